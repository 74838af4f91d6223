//! How often a second the lab lists ten thousand guests on one core; for `cargo xtask bench`.
//!
//! What never enters here: assertions; a number that depends on the machine is printed, not judged.

use std::time::Instant;

use converger_lab::{Flavour, Request, Scale, Setting, World};

fn main() {
    let setting = Setting::seeded(1, Scale { nodes: 16, guests: 10_000 }, Flavour::V9);
    let Ok(mut world) = World::new(&setting) else { return };
    let request = Request::new("GET", "/api2/json/cluster/resources?type=vm").token("root@pam!lab=lab");
    let now_ms = setting.start_ms + 20_000;
    let bytes = world.answer(now_ms, &request).body.len();
    let began = Instant::now();
    let rounds = 100;
    for round in 0..rounds {
        world.answer(now_ms + round * 1_000, &request);
    }
    let per_second = rounds as f64 / began.elapsed().as_secs_f64();
    println!("{bytes} bytes, {per_second:.0} times a second");
}
