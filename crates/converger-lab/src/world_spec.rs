//! The world spec: nodes, guests, storages, users and faults, from a YAML file or built in code.
//!
//! Parsing is strict: an unknown key is an error. Must not produce responses.

mod build;
mod seeded_world;

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use serde::Deserialize;

pub(crate) use build::{add_guest, build_world};
pub use seeded_world::WorldSize;

use crate::fault::FaultPlan;
use crate::flavour::Flavour;
use crate::guest::LabGuestKind;

/// The default start of a world: 15 November 2026.
pub(crate) const DEFAULT_START_MS: u64 = 1_794_700_800_000;

/// The initial state of a world.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorldSpec {
    /// The release to simulate: 7, 8 or 9.
    pub flavour: Flavour,
    /// The seed of all random values: addresses, identities, process ids.
    pub seed: u64,
    /// The start time, in milliseconds since 1970.
    pub start_ms: u64,
    /// The cluster's name; if omitted, the world has a single node that never joined a cluster.
    pub cluster: Option<String>,
    /// SHA-256 fingerprint of the root CA's certificate. If omitted, it is derived from the seed and the names of the cluster and its
    /// nodes, so that it survives a restart of the lab.
    pub root_ca: Option<String>,
    /// Nodes by name.
    pub nodes: BTreeMap<String, NodeSpec>,
    /// Storages by name; if omitted, every node has `local`.
    pub storages: BTreeMap<String, StorageSpec>,
    /// Guests.
    pub guests: Vec<GuestSpec>,
    /// Users by name (`ops@pve`); `root@pam` always exists.
    pub users: BTreeMap<String, UserSpec>,
    /// Group members by group name.
    pub groups: BTreeMap<String, Vec<String>>,
    /// Privileges by role, besides the built-in ones.
    pub roles: BTreeMap<String, Vec<String>>,
    /// API tokens by full name (`root@pam!probe`).
    pub tokens: BTreeMap<String, TokenSpec>,
    /// Access control entries: who has which role on which path.
    pub acl: Vec<AclSpec>,
    /// Datacenter options as in `datacenter.cfg`: `tag-style`, `user-tag-access`, `registered-tags`.
    pub options: BTreeMap<String, String>,
    /// Pools by name.
    pub pools: BTreeMap<String, PoolSpec>,
    /// Guests under high availability (`vm:100`).
    pub ha: BTreeMap<String, HaSpec>,
    /// Replication jobs.
    pub replication: Vec<ReplicationSpec>,
    /// Behaviour of guests that are created through the API.
    pub new_guests: NewGuestSpec,
    /// How long tasks take.
    pub pace: TaskDurations,
    /// The faults.
    pub faults: FaultPlan,
}

impl Default for WorldSpec {
    fn default() -> Self {
        Self {
            flavour: Flavour::default(),
            seed: 1,
            start_ms: DEFAULT_START_MS,
            cluster: None,
            root_ca: None,
            nodes: BTreeMap::new(),
            storages: BTreeMap::new(),
            guests: Vec::new(),
            users: BTreeMap::new(),
            groups: BTreeMap::new(),
            roles: BTreeMap::new(),
            tokens: BTreeMap::new(),
            acl: Vec::new(),
            options: BTreeMap::new(),
            pools: BTreeMap::new(),
            ha: BTreeMap::new(),
            replication: Vec::new(),
            new_guests: NewGuestSpec::default(),
            pace: TaskDurations::default(),
            faults: FaultPlan::default(),
        }
    }
}

impl WorldSpec {
    /// Parses a world spec from YAML.
    ///
    /// # Errors
    /// One line: the position and what is wrong there.
    pub fn from_yaml(text: &str) -> Result<Self, String> {
        serde_saphyr::from_str(text).map_err(|error| yaml_error_text(&error))
    }
}

/// Formats a parse error as `line 2, column 1: unknown field …`. Control characters are escaped, because they would act on the terminal.
fn yaml_error_text(error: &serde_saphyr::Error) -> String {
    let message = error.without_snippet().to_string();
    let position = error.location().map(|location| (location.line(), location.column()));
    // The parser appends the position to its message, and advice for programmers on how to relax it. Both are cut off.
    let end = position.map(|(line, column)| format!(" at line {line}, column {column}")).unwrap_or_default();
    let message = message.strip_suffix(&end).unwrap_or(&message).split(", set ").next().unwrap_or_default();
    let message: String =
        message.chars().flat_map(|letter| if letter.is_control() { letter.escape_debug().collect() } else { vec![letter] }).collect();
    position.map_or(message.clone(), |(line, column)| format!("line {line}, column {column}: {message}"))
}

/// A node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodeSpec {
    /// Processors.
    pub cpus: Option<u64>,
    /// The model of its processors.
    pub cpu_model: Option<String>,
    /// Memory in bytes.
    pub memory: Option<u64>,
    /// Used memory in bytes; if omitted, one tenth.
    pub memory_used: Option<u64>,
    /// Root disk in bytes.
    pub disk: Option<u64>,
    /// Address.
    pub ip: Option<String>,
    /// Bridges; if omitted, `vmbr0`.
    pub bridges: Option<Vec<String>>,
    /// SHA-256 fingerprint of its certificate; if omitted, it is derived from the seed.
    pub fingerprint: Option<String>,
    /// The interval at which it broadcasts its guests; if omitted, ten seconds as in Proxmox.
    pub cycle_ms: Option<NonZeroU64>,
    /// When it broadcasts its guests, as an offset into each interval.
    pub cycle_offset_ms: u64,
    /// Its uptime at the start.
    pub uptime_s: u64,
    /// Seconds that its clock is ahead of the cluster's; negative if it is behind.
    pub clock_off_s: i64,
    /// The number of initial broadcasts in the format of release 8, without `memhost`, as from a node that was just upgraded.
    pub old_rounds: u32,
}

/// A storage.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StorageSpec {
    /// The type; default `dir`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The directory, for file-based storages.
    pub path: Option<String>,
    /// The content types; default: disk images and container root file systems.
    pub content: Vec<String>,
    /// Whether all nodes share its content.
    pub shared: bool,
    /// The nodes that have it; if omitted, all.
    pub nodes: Option<Vec<String>>,
    /// Whether it is disabled on all nodes.
    pub disabled: bool,
    /// Size in bytes.
    pub total: Option<u64>,
    /// Used bytes at the start. Volumes that are created or grow later add to it, and the storage can become full. If omitted, it is always
    /// one tenth of the size.
    pub used: Option<u64>,
    /// ISO images and container templates on it: `vztmpl/debian.tar.zst`.
    pub files: Vec<String>,
    /// Further settings, which the API only returns.
    pub extra: BTreeMap<String, String>,
}

/// A value of a config key: text, number or boolean.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum ScalarSpec {
    /// A boolean; `true` is written as 1, `false` as 0.
    Flag(bool),
    /// An integer.
    Number(i64),
    /// A fraction, as in `cpulimit`.
    Fraction(f64),
    /// Anything else.
    Text(String),
}

impl ScalarSpec {
    fn to_text(&self) -> String {
        match self {
            Self::Flag(flag) => u8::from(*flag).to_string(),
            Self::Number(number) => number.to_string(),
            Self::Fraction(fraction) => fraction.to_string(),
            Self::Text(text) => text.clone(),
        }
    }
}

/// A guest.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestSpec {
    /// The VMID.
    pub vmid: u32,
    /// `qemu` or `lxc`.
    pub kind: LabGuestKind,
    /// The node that it is on.
    pub node: String,
    /// Its name.
    #[serde(default)]
    pub name: Option<String>,
    /// `stopped`, `running`, or any other QEMU state.
    #[serde(default)]
    pub state: Option<String>,
    /// How long it has been running, in seconds.
    #[serde(default)]
    pub uptime_s: u64,
    /// Keys in effect.
    #[serde(default)]
    pub config: BTreeMap<String, ScalarSpec>,
    /// Pending keys, applied at the next start.
    #[serde(default)]
    pub pending: BTreeMap<String, ScalarSpec>,
    /// Keys to be deleted at the next start.
    #[serde(default)]
    pub pending_delete: Vec<String>,
    /// Snapshots by name, each with its config keys.
    #[serde(default)]
    pub snapshots: BTreeMap<String, BTreeMap<String, ScalarSpec>>,
    /// Snapshots in the order in which they were taken, each with the guest's config and linked to the one before.
    #[serde(default)]
    pub taken: Vec<TakenSnapshotSpec>,
    /// It is a template: its disks become base volumes.
    #[serde(default)]
    pub template: bool,
    /// Raw `lxc.*` lines.
    #[serde(default)]
    pub raw: Vec<(String, String)>,
    /// Use the config as given: add no birth marks and no disk.
    #[serde(default)]
    pub bare: bool,
    /// How long a shutdown takes.
    #[serde(default)]
    pub shutdown_ms: Option<u64>,
    /// It ignores shutdown requests.
    #[serde(default)]
    #[serde(rename = "deaf")]
    pub ignores_shutdown: bool,
    /// It does not release network cards when they are unplugged.
    #[serde(default)]
    #[serde(rename = "holds_cards")]
    pub refuses_unplug: bool,
}

impl GuestSpec {
    /// A stopped guest with an empty config.
    #[must_use]
    pub fn new(vmid: u32, kind: LabGuestKind, node: &str) -> Self {
        Self {
            vmid,
            kind,
            node: node.to_owned(),
            name: None,
            state: None,
            uptime_s: 0,
            config: BTreeMap::new(),
            pending: BTreeMap::new(),
            pending_delete: Vec::new(),
            snapshots: BTreeMap::new(),
            taken: Vec::new(),
            template: false,
            raw: Vec::new(),
            bare: false,
            shutdown_ms: None,
            ignores_shutdown: false,
            refuses_unplug: false,
        }
    }
}

/// A snapshot that was taken before the start.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TakenSnapshotSpec {
    /// Its name.
    pub name: String,
    /// How many seconds before the start it was taken.
    pub age_s: u64,
    /// Its description.
    pub description: Option<String>,
    /// Whether the RAM of the running guest was saved.
    pub ram: bool,
}

/// A replication job. Its source is the node of its guest.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicationSpec {
    /// The guest.
    pub guest: u32,
    /// The node that gets the copy.
    pub target: String,
    /// When it runs: `*/15`.
    #[serde(default)]
    pub schedule: Option<String>,
    /// Whether it is disabled.
    #[serde(default)]
    pub disabled: bool,
}

/// Behaviour of guests that are created through the API.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NewGuestSpec {
    /// How long a shutdown takes.
    pub shutdown_ms: Option<u64>,
    /// They ignore shutdown requests.
    #[serde(rename = "deaf")]
    pub ignores_shutdown: bool,
    /// They do not release network cards when they are unplugged.
    #[serde(rename = "holds_cards")]
    pub refuses_unplug: bool,
}

/// A user.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UserSpec {
    /// The login password; if omitted, the user cannot log in with one.
    pub password: Option<String>,
    /// Expiry in seconds since 1970; 0 means never.
    pub expire_s: u64,
    /// Whether the account is disabled.
    pub disabled: bool,
}

/// An API token.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TokenSpec {
    /// The secret.
    pub secret: String,
    /// Whether it has all privileges of its owner; by default it has only its own (`privsep`).
    pub full: bool,
    /// Expiry in seconds since 1970; 0 means never.
    pub expire_s: u64,
}

/// An access control entry: a role on a path for exactly one user, group or token.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AclSpec {
    /// The path.
    pub path: String,
    /// The role.
    pub role: String,
    /// A user.
    #[serde(default)]
    pub user: Option<String>,
    /// A group.
    #[serde(default)]
    pub group: Option<String>,
    /// A token.
    #[serde(default)]
    pub token: Option<String>,
    /// The entry does not propagate to paths below.
    #[serde(default)]
    pub here_only: bool,
}

/// A pool.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PoolSpec {
    /// Its guests.
    pub guests: Vec<u32>,
    /// Its storages.
    pub storages: Vec<String>,
}

/// A guest that is managed by HA.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HaSpec {
    /// The requested state; default `started`.
    pub state: Option<String>,
    /// The state that the HA manager reports. If given, it never changes.
    pub believed: Option<String>,
}

/// How long tasks take, in milliseconds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs, reason = "each field is named after its task")]
pub struct TaskDurations {
    pub start_ms: u64,
    pub stop_ms: u64,
    pub signal_ms: u64,
    pub config_ms: u64,
    pub create_ms: u64,
    pub destroy_ms: u64,
    pub clone_ms: u64,
    pub template_ms: u64,
    pub snapshot_ms: u64,
    pub resize_ms: u64,
    pub migrate_ms: u64,
    pub manage_ms: u64,
    pub backup_ms: u64,
}

impl Default for TaskDurations {
    fn default() -> Self {
        Self {
            start_ms: 600,
            stop_ms: 500,
            signal_ms: 100,
            config_ms: 40,
            create_ms: 300,
            destroy_ms: 200,
            clone_ms: 400,
            template_ms: 100,
            snapshot_ms: 200,
            resize_ms: 150,
            migrate_ms: 3_000,
            manage_ms: 100,
            backup_ms: 900,
        }
    }
}
