//! Builds world specs of any size from a seed.
//!
//! Must not depend on anything but the seed, the size and the flavour.

use std::collections::BTreeMap;

use super::{GuestSpec, NodeSpec, ScalarSpec, StorageSpec, TakenSnapshotSpec, TokenSpec, WorldSpec};
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

impl WorldSpec {
    /// Adds templates, snapshots, further storages and different processors, drawn from the seed of the spec. Guests keep their ids, states
    /// and settings; some get local disks.
    #[must_use]
    pub fn with_seeded_assets(mut self) -> Self {
        // A generator of its own: the guests of a seed must not depend on whether assets are added.
        let mut random = SeededRandom::new(self.seed ^ 0x5eed_a55e);
        let nodes: Vec<String> = self.nodes.keys().cloned().collect();
        self.storages.extend(further_storages(&nodes));
        for node in self.nodes.values_mut() {
            let model = random.pick_item(&["AMD EPYC 9354", "AMD EPYC 7313", "Intel(R) Xeon(R) Gold 6330"]).copied();
            node.cpu_model = model.map(str::to_owned);
            node.memory_used = node.memory.map(|memory| memory / 100 * (20 + random.number_below(60)));
        }
        for guest in &mut self.guests {
            add_seeded_assets(&mut random, guest);
        }
        let first = self.guests.iter().map(|guest| guest.vmid).max().map_or(100, |vmid| vmid.saturating_add(1));
        let count = 1 + u32::try_from(random.number_below(3)).unwrap_or(0);
        self.guests.extend((first..first.saturating_add(count)).map(|vmid| seeded_template(&mut random, vmid, &nodes)));
        self
    }
}

/// A local storage of every node, a shared one of the first two nodes only, and one that holds no disks.
fn further_storages(nodes: &[String]) -> [(String, StorageSpec); 3] {
    let texts = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let fast = StorageSpec { kind: Some("lvmthin".to_owned()), total: Some(2 << 40), used: Some(1 << 40), ..StorageSpec::default() };
    let first_two = nodes.iter().take(2).cloned().collect();
    let edge = StorageSpec { kind: Some("rbd".to_owned()), shared: true, nodes: Some(first_two), ..StorageSpec::default() };
    let vault = StorageSpec {
        path: Some("/mnt/vault".to_owned()),
        content: texts(&["backup", "iso"]),
        files: texts(&["iso/debian-13.iso"]),
        ..StorageSpec::default()
    };
    [("fast".to_owned(), fast), ("edge".to_owned(), edge), ("vault".to_owned(), vault)]
}

/// One guest in four has snapshots, and one virtual machine in six has local disks.
fn add_seeded_assets(random: &mut SeededRandom, guest: &mut GuestSpec) {
    if random.chance(1, 6) && guest.kind == LabGuestKind::Qemu {
        let disk = format!("fast:vm-{}-disk-0,size=16G", guest.vmid);
        guest.config.insert("scsi0".to_owned(), ScalarSpec::Text(disk));
    }
    if !random.chance(1, 4) {
        return;
    }
    let count = 1 + random.number_below(3);
    let is_running = guest.state.is_some() && guest.kind == LabGuestKind::Qemu;
    guest.taken = (0..count)
        .map(|number| TakenSnapshotSpec {
            name: format!("s{number}"),
            age_s: (count - number) * (3_600 + random.number_below(86_400)),
            description: random.chance(1, 2).then(|| "before the upgrade".to_owned()),
            ram: is_running && random.chance(1, 3),
        })
        .collect();
}

/// A template with cloud-init settings.
fn seeded_template(random: &mut SeededRandom, vmid: u32, nodes: &[String]) -> GuestSpec {
    let node = random.pick_item(nodes).map_or("pve1", String::as_str);
    let mut guest = GuestSpec::new(vmid, LabGuestKind::Qemu, node);
    guest.name = Some(format!("golden-{vmid}"));
    guest.template = true;
    let storage = random.pick_item(&["tank", "fast"]).copied().unwrap_or("tank");
    let mut put = |key: &str, value: &str| drop(guest.config.insert(key.to_owned(), ScalarSpec::Text(value.to_owned())));
    put("scsi0", &format!("{storage}:vm-{vmid}-disk-0,size=4G"));
    put("ide2", &format!("{storage}:vm-{vmid}-cloudinit,media=cdrom"));
    put("net0", "virtio,bridge=vmbr0");
    put("ciuser", "ops");
    put("ipconfig0", "ip=dhcp");
    guest
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
