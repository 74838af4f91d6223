//! Builds world specs of any size from a seed.
//!
//! Must not depend on anything but the seed, the size and the flavour.

use std::collections::BTreeMap;

use super::{GuestSpec, NodeSpec, ScalarSpec, StorageSpec, TokenSpec, WorldSpec};
use crate::flavour::Flavour;
use crate::guest::LabGuestKind;
use crate::random::SeededRandom;

/// The size of a seeded world.
#[derive(Clone, Copy, Debug)]
pub struct WorldSize {
    /// Number of nodes; 0 counts as 1.
    pub nodes: u32,
    /// Number of guests; building a world with more than 10,000 fails.
    pub guests: u32,
}

impl WorldSpec {
    /// Builds a world spec from a seed. The same seed, size and flavour give the same world.
    ///
    /// It has one token, `root@pam!lab`, with root's privileges and the secret `lab`.
    #[must_use]
    pub fn from_seed(seed: u64, scale: WorldSize, flavour: Flavour) -> Self {
        let mut random = SeededRandom::new(seed);
        let nodes: Vec<String> = (1..=scale.nodes.max(1)).map(|number| format!("pve{number}")).collect();
        let guests = (0..scale.guests).map(|index| seeded_guest(&mut random, 100_u32.saturating_add(index), &nodes)).collect();
        let token = TokenSpec { secret: "lab".to_owned(), full: true, expire_s: 0 };
        Self {
            flavour,
            seed,
            cluster: (nodes.len() > 1).then(|| "lab".to_owned()),
            nodes: nodes.iter().enumerate().map(|(index, name)| (name.clone(), seeded_node(index))).collect(),
            storages: seeded_storages(),
            guests,
            tokens: BTreeMap::from([("root@pam!lab".to_owned(), token)]),
            ..Self::default()
        }
    }
}

fn seeded_node(index: usize) -> NodeSpec {
    let cycle_offset_ms = index as u64 * 700 % 10_000;
    NodeSpec { cpus: Some(32), memory: Some(256 << 30), cycle_offset_ms, uptime_s: 86_400, ..NodeSpec::default() }
}

fn seeded_storages() -> BTreeMap<String, StorageSpec> {
    let local = StorageSpec { path: Some("/var/lib/vz".to_owned()), ..StorageSpec::default() };
    let shared = StorageSpec { kind: Some("rbd".to_owned()), shared: true, ..StorageSpec::default() };
    BTreeMap::from([("local".to_owned(), local), ("tank".to_owned(), shared)])
}

fn seeded_guest(random: &mut SeededRandom, vmid: u32, nodes: &[String]) -> GuestSpec {
    let kind = if random.chance(1, 4) { LabGuestKind::Lxc } else { LabGuestKind::Qemu };
    let node = random.pick_item(nodes).map_or("pve1", String::as_str);
    let mut guest = GuestSpec::new(vmid, kind, node);
    let role = random.pick_item(&["web", "db", "mail", "build", "cache", "prod-web", "prod-db"]).copied().unwrap_or("web");
    guest.name = Some(format!("{role}-{vmid}"));
    guest.state = random.chance(3, 4).then(|| seeded_state(random, kind));
    guest.uptime_s = random.number_below(1_000_000);
    guest.config = seeded_config(random, vmid, kind);
    if random.chance(1, 20) {
        guest.pending.insert("cores".to_owned(), ScalarSpec::Number(8));
    }
    guest
}

/// Most guests run; one virtual machine in 50 is in a rare QEMU state.
fn seeded_state(random: &mut SeededRandom, kind: LabGuestKind) -> String {
    let rare = kind == LabGuestKind::Qemu && random.chance(1, 50);
    let states = ["paused", "io-error", "prelaunch", "internal-error"];
    let state = if rare { random.pick_item(&states).copied() } else { None };
    state.unwrap_or("running").to_owned()
}

fn seeded_config(random: &mut SeededRandom, vmid: u32, kind: LabGuestKind) -> BTreeMap<String, ScalarSpec> {
    let mut config = BTreeMap::new();
    let mut put = |key: &str, value: ScalarSpec| drop(config.insert(key.to_owned(), value));
    let text = |text: String| ScalarSpec::Text(text);
    let mebibytes = 512_i64 << random.number_below(6);
    put("cores", ScalarSpec::Number(1 << random.number_below(4)));
    put("memory", ScalarSpec::Number(mebibytes));
    put("onboot", ScalarSpec::Flag(random.chance(1, 2)));
    if random.chance(1, 3) {
        put("tags", text(random.pick_item(&["edge", "prod", "prod;web", "backup"]).copied().unwrap_or("edge").to_owned()));
    }
    if random.chance(1, 30) {
        put("protection", ScalarSpec::Flag(true));
    }
    if random.chance(1, 60) {
        put("lock", text("backup".to_owned()));
    }
    match kind {
        LabGuestKind::Qemu => {
            put("scsi0", text(format!("tank:vm-{vmid}-disk-0,size={}G", 8 << random.number_below(4))));
            put("net0", text("virtio,bridge=vmbr0".to_owned()));
            put("ostype", text("l26".to_owned()));
        }
        LabGuestKind::Lxc => {
            put("rootfs", text(format!("tank:vm-{vmid}-disk-0,size={}G", 4 << random.number_below(4))));
            put("net0", text("name=eth0,bridge=vmbr0,ip=dhcp".to_owned()));
        }
    }
    config
}
