//! A generated fleet as texts: its desired state, and what an observer would have recorded.
//!
//! The same fleet gives the same bytes. Rows have the members of real ones: guards, tags, birth marks, config. Must not know what is
//! planned; benches and tests find that out.

// Each bench and test uses only a part of it.
#![allow(dead_code)]

use converger_core::testing::Rng;

/// A fleet with this many guests, some of them drifted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BenchFleet {
    /// The number of declared guests.
    pub(crate) guests: u32,
    /// The share of drifted guests.
    pub(crate) drifted_share: GuestShare,
    /// The share of guests that come after the previous guest.
    pub(crate) ordered_share: GuestShare,
}

/// A random share of the guests.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GuestShare {
    /// No guest.
    None,
    /// On average one in this many guests.
    OneIn(u64),
}

impl GuestShare {
    fn draws(self, rng: &mut Rng) -> bool {
        match self {
            Self::None => false,
            Self::OneIn(times) => rng.one_in(times),
        }
    }
}

const ROLES: [&str; 8] = ["web", "db", "cache", "mail", "build", "dns", "prod-shop", "desk"];
const TAGS: [&str; 8] = ["berlin", "customer-a", "customer-b", "edge", "lab", "nightly-backup", "staging", "web"];
const MEMORY_MIB: [u32; 6] = [512, 1024, 2048, 4096, 8192, 16384];
const NODES: u64 = 32;

struct FleetGuest {
    vmid: u32,
    kind: &'static str,
    name: String,
    node: u64,
    cores: u64,
    memory_mib: u32,
    description: String,
    tags: Vec<&'static str>,
    onboot: bool,
    runs: bool,
    uuid: String,
    ctime: u64,
    mac: String,
    is_pinned: bool,
    after: Option<u32>,
    drift: FleetDrift,
}

/// The difference between a declared guest and its row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FleetDrift {
    None,
    Cores,
    Memory,
    CoresAndMemory,
    Description,
    Tags,
    Onboot,
    RunState,
    Locked,
    Unknown,
    Renamed,
    Missing,
}

impl FleetDrift {
    /// Most drifted guests differ in config, some in run-state, and one in eight cannot be changed.
    fn random(rng: &mut Rng) -> Self {
        match rng.below(32) {
            0..4 => Self::Cores,
            4..8 => Self::Memory,
            8..11 => Self::CoresAndMemory,
            11..16 => Self::Description,
            16..20 => Self::Tags,
            20..23 => Self::Onboot,
            23..28 => Self::RunState,
            28 => Self::Locked,
            29 => Self::Unknown,
            30 => Self::Renamed,
            _ => Self::Missing,
        }
    }
}

impl BenchFleet {
    /// desired.json on one line, as written by a machine.
    pub(crate) fn desired_json(self) -> String {
        let rows: Vec<String> = self.guests().map(|guest| guest.declared_json()).collect();
        format!("{{\"version\":1,\"environment\":\"lab\",\"guests\":[{}]}}\n", rows.join(","))
    }

    /// desired.yaml in the layout of a person.
    pub(crate) fn desired_yaml(self) -> String {
        let rows: String = self.guests().map(|guest| guest.declared_yaml()).collect();
        format!("version: 1\nenvironment: lab\nguests:\n{rows}")
    }

    /// current.json on one line, as written by an observer.
    pub(crate) fn current_json(self) -> String {
        let nodes: Vec<String> = (1..=NODES).map(|node| format!(r#"{{"name":"pve{node}","online":true}}"#)).collect();
        let listed = self.guests().filter(|guest| guest.drift != FleetDrift::Missing);
        let rows: Vec<String> = listed.map(|guest| guest.observed_json()).collect();
        format!(
            "{{\"schema\":\"converger.observation/1\",\"environment\":\"lab\",\"source\":\"proxmox\",\"taken_at\":\"2026-11-15T12:00:00Z\",\
             \"complete\":true,\"quorate\":true,\"nodes\":[{}],\"guests\":[{}]}}\n",
            nodes.join(","),
            rows.join(",")
        )
    }

    /// The guests, sorted by id.
    fn guests(self) -> impl Iterator<Item = FleetGuest> {
        let mut rng = Rng::new(2026);
        let mut vmid = 100;
        (0..self.guests).map(move |index| {
            let before = vmid;
            vmid += 1 + u32::from(rng.one_in(8));
            let guest = FleetGuest::random(&mut rng, vmid, index);
            let after = (index > 0 && self.ordered_share.draws(&mut rng)).then_some(before);
            let drift = if self.drifted_share.draws(&mut rng) { FleetDrift::random(&mut rng) } else { FleetDrift::None };
            FleetGuest { after, drift, ..guest }
        })
    }
}

impl FleetGuest {
    fn random(rng: &mut Rng, vmid: u32, index: u32) -> Self {
        let role = rng.pick(&ROLES).expect("there are roles");
        let hex = format!("{:016x}{:016x}", rng.next_u64(), rng.next_u64());
        Self {
            vmid,
            kind: if rng.one_in(3) { "lxc" } else { "qemu" },
            name: format!("{role}-{index}"),
            node: 1 + rng.below(NODES),
            cores: 2 + rng.below(14),
            memory_mib: *rng.pick(&MEMORY_MIB).expect("there are sizes"),
            description: format!("{role} number {index}, ordered by team {}", rng.below(40)),
            tags: TAGS.into_iter().filter(|_| rng.one_in(4)).collect(),
            onboot: !rng.one_in(4),
            runs: !rng.one_in(6),
            uuid: format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]),
            ctime: 1_600_000_000 + rng.below(150_000_000),
            mac: format!("BC:24:11:{:02X}:{:02X}:{:02X}", rng.below(256), rng.below(256), rng.below(256)),
            is_pinned: rng.one_in(4),
            after: None,
            drift: FleetDrift::None,
        }
    }

    fn declared_json(&self) -> String {
        let identity = if self.is_pinned { format!(",\"identity\":{}", self.identity_json()) } else { String::new() };
        let after = self.after.map(|vmid| format!(",\"after\":[{vmid}]")).unwrap_or_default();
        format!(
            r#"{{"vmid":{},"kind":"{}","name":"{}","state":"{}","config":{{"cores":{},"memory":"{}MiB","description":"{}","tags":{},"onboot":{}}}{after}{identity}}}"#,
            self.vmid,
            self.kind,
            self.name,
            state_name(self.runs),
            self.cores,
            self.memory_mib,
            self.description,
            json_list(&self.tags),
            self.onboot,
        )
    }

    fn declared_yaml(&self) -> String {
        let identity = if self.is_pinned { format!("    identity: {}\n", self.identity_yaml()) } else { String::new() };
        let after = self.after.map(|vmid| format!("    after: [{vmid}]\n")).unwrap_or_default();
        format!(
            "  - vmid: {}\n    kind: {}\n    name: {}\n    state: {}\n    config:\n      cores: {}\n      memory: {}MiB\n      \
             description: {}\n      tags: [{}]\n      onboot: {}\n{after}{identity}",
            self.vmid,
            self.kind,
            self.name,
            state_name(self.runs),
            self.cores,
            self.memory_mib,
            self.description,
            self.tags.join(", "),
            self.onboot,
        )
    }

    fn identity_json(&self) -> String {
        match self.kind {
            "qemu" => format!(r#"{{"uuid":"{}","ctime":{}}}"#, self.uuid, self.ctime),
            _ => format!(r#"{{"rootfs":"local-lvm:vm-{}-disk-0","mac":"{}"}}"#, self.vmid, self.mac),
        }
    }

    fn identity_yaml(&self) -> String {
        match self.kind {
            "qemu" => format!("{{ uuid: \"{}\", ctime: {} }}", self.uuid, self.ctime),
            _ => format!("{{ rootfs: \"local-lvm:vm-{}-disk-0\", mac: \"{}\" }}", self.vmid, self.mac),
        }
    }

    fn observed_json(&self) -> String {
        if self.drift == FleetDrift::Unknown {
            let (vmid, kind, node) = (self.vmid, self.kind, self.node);
            return format!(r#"{{"vmid":{vmid},"kind":"{kind}","node":"pve{node}","status":"unknown","cause":"read-failed"}}"#);
        }
        let drifts = |drifts: &[FleetDrift]| drifts.contains(&self.drift);
        let name = if self.drift == FleetDrift::Renamed { format!("{}-old", self.name) } else { self.name.clone() };
        let runs = self.runs != drifts(&[FleetDrift::RunState, FleetDrift::Locked]);
        let cores = if drifts(&[FleetDrift::Cores, FleetDrift::CoresAndMemory]) { self.cores - 1 } else { self.cores };
        let memory = if drifts(&[FleetDrift::Memory, FleetDrift::CoresAndMemory]) { self.memory_mib * 2 } else { self.memory_mib };
        let description = if self.drift == FleetDrift::Description { "to be described" } else { &self.description };
        let tags = if self.drift == FleetDrift::Tags { json_list(&["unsorted"]) } else { json_list(&self.tags) };
        format!(
            r#"{{"vmid":{},"kind":"{}","name":"{name}","node":"pve{}","status":"{}","cpus":{cores},"maxmem":{},"lock":{},"ha":null,"template":false,"protection":false,"tags":{tags},"identity":{},"config":{{"cores":{cores},"memory":{memory},"description":"{description}","onboot":{}}},"pending":[],"digest":"{:016x}{:016x}{:08x}"}}"#,
            self.vmid,
            self.kind,
            self.node,
            state_name(runs),
            u64::from(memory) << 20,
            if self.drift == FleetDrift::Locked { "\"backup\"" } else { "null" },
            self.identity_json(),
            self.onboot != (self.drift == FleetDrift::Onboot),
            self.ctime.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            u64::from(self.vmid).wrapping_mul(0xbf58_476d_1ce4_e5b9),
            self.vmid,
        )
    }
}

fn state_name(runs: bool) -> &'static str {
    if runs { "running" } else { "stopped" }
}

fn json_list(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
    format!("[{}]", quoted.join(","))
}
