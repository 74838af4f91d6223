//! Worlds of any size from a seed.
//!
//! What never enters here: anything that the seed and the scale do not decide.

use std::collections::BTreeMap;

use super::{GuestSetting, NodeSetting, Scalar, Setting, StorageSetting, TokenSetting};
use crate::flavour::Flavour;
use crate::guest::Kind;
use crate::random::Random;

/// How large a seeded world is.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Nodes, at least one.
    pub nodes: u32,
    /// Guests; of more than 10,000 no world can be made.
    pub guests: u32,
}

impl Setting {
    /// A world from a seed: the same seed, scale and flavour give the same world.
    ///
    /// It has one token, `root@pam!lab`, with root's privileges and the secret `lab`.
    #[must_use]
    pub fn seeded(seed: u64, scale: Scale, flavour: Flavour) -> Self {
        let mut random = Random::new(seed);
        let nodes: Vec<String> = (1..=scale.nodes.max(1)).map(|number| format!("pve{number}")).collect();
        let guests = (0..scale.guests).map(|index| guest(&mut random, 100_u32.saturating_add(index), &nodes)).collect();
        let token = TokenSetting { secret: "lab".to_owned(), full: true, expire_s: 0 };
        Self {
            flavour,
            seed,
            cluster: (nodes.len() > 1).then(|| "lab".to_owned()),
            nodes: nodes.iter().enumerate().map(|(index, name)| (name.clone(), node(index))).collect(),
            storages: storages(),
            guests,
            tokens: BTreeMap::from([("root@pam!lab".to_owned(), token)]),
            ..Self::default()
        }
    }
}

fn node(index: usize) -> NodeSetting {
    let cycle_offset_ms = index as u64 * 700 % 10_000;
    NodeSetting { cpus: Some(32), memory: Some(256 << 30), cycle_offset_ms, uptime_s: 86_400, ..NodeSetting::default() }
}

fn storages() -> BTreeMap<String, StorageSetting> {
    let local = StorageSetting { path: Some("/var/lib/vz".to_owned()), ..StorageSetting::default() };
    let shared = StorageSetting { kind: Some("rbd".to_owned()), shared: true, ..StorageSetting::default() };
    BTreeMap::from([("local".to_owned(), local), ("tank".to_owned(), shared)])
}

fn guest(random: &mut Random, vmid: u32, nodes: &[String]) -> GuestSetting {
    let kind = if random.chance(1, 4) { Kind::Lxc } else { Kind::Qemu };
    let node = random.pick(nodes).map_or("pve1", String::as_str);
    let mut guest = GuestSetting::new(vmid, kind, node);
    let role = random.pick(&["web", "db", "mail", "build", "cache", "prod-web", "prod-db"]).copied().unwrap_or("web");
    guest.name = Some(format!("{role}-{vmid}"));
    guest.state = random.chance(3, 4).then(|| state(random, kind));
    guest.uptime_s = random.below(1_000_000);
    guest.config = config(random, vmid, kind);
    if random.chance(1, 20) {
        guest.pending.insert("cores".to_owned(), Scalar::Number(8));
    }
    guest
}

/// Most run; a few are in one of QEMU's rarer states.
fn state(random: &mut Random, kind: Kind) -> String {
    let rare = kind == Kind::Qemu && random.chance(1, 50);
    let words = ["paused", "io-error", "prelaunch", "internal-error"];
    let word = if rare { random.pick(&words).copied() } else { None };
    word.unwrap_or("running").to_owned()
}

fn config(random: &mut Random, vmid: u32, kind: Kind) -> BTreeMap<String, Scalar> {
    let mut config = BTreeMap::new();
    let mut put = |key: &str, value: Scalar| drop(config.insert(key.to_owned(), value));
    let text = |text: String| Scalar::Text(text);
    let mebibytes = 512_i64 << random.below(6);
    put("cores", Scalar::Number(1 << random.below(4)));
    put("memory", Scalar::Number(mebibytes));
    put("onboot", Scalar::Flag(random.chance(1, 2)));
    if random.chance(1, 3) {
        put("tags", text(random.pick(&["edge", "prod", "prod;web", "backup"]).copied().unwrap_or("edge").to_owned()));
    }
    if random.chance(1, 30) {
        put("protection", Scalar::Flag(true));
    }
    if random.chance(1, 60) {
        put("lock", text("backup".to_owned()));
    }
    match kind {
        Kind::Qemu => {
            put("scsi0", text(format!("tank:vm-{vmid}-disk-0,size={}G", 8 << random.below(4))));
            put("net0", text("virtio,bridge=vmbr0".to_owned()));
            put("ostype", text("l26".to_owned()));
        }
        Kind::Lxc => {
            put("rootfs", text(format!("tank:vm-{vmid}-disk-0,size={}G", 4 << random.below(4))));
            put("net0", text("name=eth0,bridge=vmbr0,ip=dhcp".to_owned()));
        }
    }
    config
}
