//! The setting of a world: nodes, guests, storages, people, faults, as a YAML file or as data.
//!
//! Strict: an unknown key is refused. What never enters here: answers.

mod build;
mod seeded_world;

use std::collections::BTreeMap;

use serde::Deserialize;

pub(crate) use build::{add_guest, build_world};
pub use seeded_world::WorldSize;

use crate::fault::FaultPlan;
use crate::flavour::Flavour;
use crate::guest::LabGuestKind;

/// When a world begins where nothing else is said: 15 November 2026.
pub(crate) const DEFAULT_START_MS: u64 = 1_794_700_800_000;

/// A world before its first moment.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorldSpec {
    /// The release that is played: 7, 8 or 9.
    pub flavour: Flavour,
    /// Where chance comes from: addresses, identities, ids.
    pub seed: u64,
    /// The first moment, in milliseconds since 1970.
    pub start_ms: u64,
    /// The cluster's name; left out, there is one node that never joined one.
    pub cluster: Option<String>,
    /// SHA-256 of the certificate of its root CA; left out, one comes from the seed and the names of the cluster and its nodes, so that a lab
    /// keeps it over restarts.
    pub root_ca: Option<String>,
    /// Nodes by name.
    pub nodes: BTreeMap<String, NodeSpec>,
    /// Storages by name; left out, every node has `local`.
    pub storages: BTreeMap<String, StorageSpec>,
    /// Guests.
    pub guests: Vec<GuestSpec>,
    /// Users by name (`ops@pve`); `root@pam` is always there.
    pub users: BTreeMap<String, UserSpec>,
    /// Members by group.
    pub groups: BTreeMap<String, Vec<String>>,
    /// Privileges by role, besides the built-in ones.
    pub roles: BTreeMap<String, Vec<String>>,
    /// API tokens by full name (`root@pam!probe`).
    pub tokens: BTreeMap<String, TokenSpec>,
    /// Who has which role where.
    pub acl: Vec<AclSpec>,
    /// Options of the datacenter: `tag-style`, `user-tag-access`, `registered-tags`, as `datacenter.cfg` has them.
    pub options: BTreeMap<String, String>,
    /// Pools by name.
    pub pools: BTreeMap<String, PoolSpec>,
    /// Guests under high availability (`vm:100`).
    pub ha: BTreeMap<String, HaSpec>,
    /// How guests behave that are made in this world.
    pub new_guests: NewGuestSpec,
    /// How long tasks take.
    pub pace: TaskDurations,
    /// What goes wrong.
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
            new_guests: NewGuestSpec::default(),
            pace: TaskDurations::default(),
            faults: FaultPlan::default(),
        }
    }
}

impl WorldSpec {
    /// Read a setting from YAML.
    ///
    /// # Errors
    /// Where it is wrong, and what: one line.
    pub fn from_yaml(text: &str) -> Result<Self, String> {
        serde_saphyr::from_str(text).map_err(|error| yaml_error_text(&error))
    }
}

/// `line 2, column 1: unknown field …`. Characters that act on a terminal are spelled out.
fn yaml_error_text(error: &serde_saphyr::Error) -> String {
    let message = error.without_snippet().to_string();
    let place = error.location().map(|place| (place.line(), place.column()));
    // The reader says the place behind its message, and to programmers how to be less strict.
    let end = place.map(|(line, column)| format!(" at line {line}, column {column}")).unwrap_or_default();
    let message = message.strip_suffix(&end).unwrap_or(&message).split(", set ").next().unwrap_or_default();
    let message: String =
        message.chars().flat_map(|letter| if letter.is_control() { letter.escape_debug().collect() } else { vec![letter] }).collect();
    place.map_or(message.clone(), |(line, column)| format!("line {line}, column {column}: {message}"))
}

/// A node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodeSpec {
    /// Processors.
    pub cpus: Option<u64>,
    /// Memory in bytes.
    pub memory: Option<u64>,
    /// Root disk in bytes.
    pub disk: Option<u64>,
    /// Address.
    pub ip: Option<String>,
    /// Bridges; left out, there is `vmbr0`.
    pub bridges: Option<Vec<String>>,
    /// SHA-256 of its certificate; left out, one comes from the seed.
    pub fingerprint: Option<String>,
    /// When in each ten seconds it tells the others about its guests.
    pub cycle_offset_ms: u64,
    /// How long it has been up at the start.
    pub uptime_s: u64,
    /// How many seconds its clock is ahead of the others'; behind where it is negative.
    pub clock_off_s: i64,
    /// So many of its first rounds are told in the form of before release 9, without `memhost`: as of a node that was
    /// upgraded just now.
    pub old_rounds: u32,
}

/// A storage.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StorageSpec {
    /// `dir` where nothing is said.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Where it lies, for storages with files.
    pub path: Option<String>,
    /// What it holds; left out, images and containers.
    pub content: Vec<String>,
    /// Whether every node sees the same.
    pub shared: bool,
    /// Where it exists; left out, everywhere.
    pub nodes: Option<Vec<String>>,
    /// Size in bytes.
    pub total: Option<u64>,
    /// Images of CDs and templates of containers on it: `vztmpl/debian.tar.zst`.
    pub files: Vec<String>,
    /// Settings that are only shown.
    pub extra: BTreeMap<String, String>,
}

/// A value of a config key: written as text, number or truth.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum ScalarSpec {
    /// `true` is 1, `false` is 0.
    Flag(bool),
    /// A whole number.
    Number(i64),
    /// A fraction, as `cpulimit` takes it.
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
    /// Its number.
    pub vmid: u32,
    /// `qemu` or `lxc`.
    pub kind: LabGuestKind,
    /// The node that it is on.
    pub node: String,
    /// Its name.
    #[serde(default)]
    pub name: Option<String>,
    /// `stopped`, `running`, or any word of QEMU for its state.
    #[serde(default)]
    pub state: Option<String>,
    /// How long it has been running.
    #[serde(default)]
    pub uptime_s: u64,
    /// Keys in effect.
    #[serde(default)]
    pub config: BTreeMap<String, ScalarSpec>,
    /// Keys that wait for the next start.
    #[serde(default)]
    pub pending: BTreeMap<String, ScalarSpec>,
    /// Keys that go at the next start.
    #[serde(default)]
    pub pending_delete: Vec<String>,
    /// Snapshots by name, with their keys.
    #[serde(default)]
    pub snapshots: BTreeMap<String, BTreeMap<String, ScalarSpec>>,
    /// Raw `lxc.*` lines.
    #[serde(default)]
    pub raw: Vec<(String, String)>,
    /// Nothing is added: no marks of birth, no disk.
    #[serde(default)]
    pub bare: bool,
    /// How long it takes to go down when asked.
    #[serde(default)]
    pub shutdown_ms: Option<u64>,
    /// It does not listen when asked to go down.
    #[serde(default)]
    #[serde(rename = "deaf")]
    pub ignores_shutdown: bool,
    /// It does not let go of network cards.
    #[serde(default)]
    #[serde(rename = "holds_cards")]
    pub refuses_unplug: bool,
}

impl GuestSpec {
    /// A stopped guest with nothing said about it.
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
            raw: Vec::new(),
            bare: false,
            shutdown_ms: None,
            ignores_shutdown: false,
            refuses_unplug: false,
        }
    }
}

/// How guests behave that are made through the API.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NewGuestSpec {
    /// How long they take to go down when asked.
    pub shutdown_ms: Option<u64>,
    /// They do not listen when asked to go down.
    #[serde(rename = "deaf")]
    pub ignores_shutdown: bool,
    /// They do not let go of network cards.
    #[serde(rename = "holds_cards")]
    pub refuses_unplug: bool,
}

/// A user.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UserSpec {
    /// For logging in; left out, there is no way in by password.
    pub password: Option<String>,
    /// Seconds since 1970; 0 is never.
    pub expire_s: u64,
    /// Switched off.
    pub disabled: bool,
}

/// An API token.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TokenSpec {
    /// The secret.
    pub secret: String,
    /// It has its owner's privileges; left out, only its own.
    pub full: bool,
    /// Seconds since 1970; 0 is never.
    pub expire_s: u64,
}

/// Who has which role where: one of user, group and token.
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
    /// It holds for this path only.
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

/// A guest under high availability.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HaSpec {
    /// What is wanted: `started` where nothing is said.
    pub state: Option<String>,
    /// What the manager believes; given, it stays so.
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
