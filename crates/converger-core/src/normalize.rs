//! The managed fields: one table, keyed by kind and field, that says what a value is, what an absent key means,
//! and when a change takes effect.
//!
//! A field that is not in the table cannot be declared, so nothing that reaches the host (`args`, `hookscript`,
//! passed-through devices, bind mounts) can be written. Values are compared here in their effective form: absent and
//! explicitly default are the same, because Proxmox treats them the same.
//!
//! What never enters: text of a file (`desired`, `observe` parse it) and the decision what to do (`plan`).

mod value;

use serde::Serialize;

use crate::guest::Kind;

pub use value::{Boot, Features, Startup, Value, Words};

/// A config key that this program knows. The order is that of the names, as in every artifact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Field {
    Agent,
    Balloon,
    Boot,
    Cores,
    Cpulimit,
    Cpuunits,
    Description,
    Hotplug,
    Memory,
    Numa,
    Onboot,
    Sockets,
    Startup,
    Swap,
    Tags,
}

impl Field {
    /// All fields, in order.
    pub const ALL: [Self; 15] = [
        Self::Agent,
        Self::Balloon,
        Self::Boot,
        Self::Cores,
        Self::Cpulimit,
        Self::Cpuunits,
        Self::Description,
        Self::Hotplug,
        Self::Memory,
        Self::Numa,
        Self::Onboot,
        Self::Sockets,
        Self::Startup,
        Self::Swap,
        Self::Tags,
    ];

    /// Their names, in the order of [`Field::ALL`].
    pub const WORDS: [&'static str; 15] = [
        "agent",
        "balloon",
        "boot",
        "cores",
        "cpulimit",
        "cpuunits",
        "description",
        "hotplug",
        "memory",
        "numa",
        "onboot",
        "sockets",
        "startup",
        "swap",
        "tags",
    ];

    /// The key in desired.yaml, in every artifact and in Proxmox.
    #[must_use]
    pub fn word(self) -> &'static str {
        Self::WORDS.get(self as usize).copied().unwrap_or("")
    }

    /// The field of this name. Every key of every config is asked for, so that it is one comparison and not one for each field.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        Some(match word {
            "agent" => Self::Agent,
            "balloon" => Self::Balloon,
            "boot" => Self::Boot,
            "cores" => Self::Cores,
            "cpulimit" => Self::Cpulimit,
            "cpuunits" => Self::Cpuunits,
            "description" => Self::Description,
            "hotplug" => Self::Hotplug,
            "memory" => Self::Memory,
            "numa" => Self::Numa,
            "onboot" => Self::Onboot,
            "sockets" => Self::Sockets,
            "startup" => Self::Startup,
            "swap" => Self::Swap,
            "tags" => Self::Tags,
            _ => return None,
        })
    }

    /// The key in backticks, for messages: made once here, because decoders name a field on their hot path.
    pub(crate) fn quoted(self) -> &'static str {
        const QUOTED: [&str; 15] = [
            "`agent`",
            "`balloon`",
            "`boot`",
            "`cores`",
            "`cpulimit`",
            "`cpuunits`",
            "`description`",
            "`hotplug`",
            "`memory`",
            "`numa`",
            "`onboot`",
            "`sockets`",
            "`startup`",
            "`swap`",
            "`tags`",
        ];
        QUOTED.get(self as usize).copied().unwrap_or("")
    }

    /// The type of its value, the same for both kinds.
    #[must_use]
    pub fn shape(self) -> Shape {
        match self {
            Self::Agent | Self::Numa | Self::Onboot => Shape::Flag,
            Self::Balloon | Self::Memory | Self::Swap => Shape::Mib,
            Self::Cores | Self::Cpuunits | Self::Sockets => Shape::Count,
            Self::Cpulimit => Shape::Thousandths,
            Self::Description => Shape::Text,
            Self::Boot => Shape::Boot,
            Self::Hotplug => Shape::Features,
            Self::Startup => Shape::Startup,
            Self::Tags => Shape::Tags,
        }
    }
}

/// The type of a field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `true` or `false`.
    Flag,
    /// A whole number.
    Count,
    /// Memory in MiB; desired.yaml writes a unit (`512MiB`, `8GiB`).
    Mib,
    /// Thousandths of a CPU; desired.yaml writes a decimal in quotes (`"1.5"`).
    Thousandths,
    /// Text, without blanks at its end.
    Text,
    /// A sorted set of tags.
    Tags,
    /// `{order, up, down}`.
    Startup,
    /// A list of devices in the order in which they are tried.
    Boot,
    /// What can be changed while the guest runs.
    Features,
}

impl Shape {
    /// The unit of the number in an artifact, or how its value is written.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Self::Flag => "true or false",
            Self::Count => "number",
            Self::Mib => "MiB",
            Self::Thousandths => "thousandths of a CPU",
            Self::Text => "text",
            Self::Tags => "set of tags",
            Self::Startup => "order number; up and down in seconds",
            Self::Boot => "list of devices",
            Self::Features => "set of features",
        }
    }
}

/// What may be done with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// It can be declared, and is brought to the declared value.
    Managed,
    /// It is read because it decides how other fields take effect; it cannot be declared.
    Context,
}

/// What Proxmox does when the key is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Absent {
    /// It acts as if this flag were set.
    Flag(bool),
    /// It acts as if this number (in the field's unit) were set.
    Number(u32),
    /// It acts as if nothing were in it.
    Empty,
    /// It depends on the host or on other keys, so that no explicit value equals it.
    Undefined,
}

/// When a change takes effect on a running guest. On a stopped one it always does at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Live {
    /// At once, and nothing in the guest notices.
    Record,
    /// At once, inside the running guest.
    Always,
    /// At once if `hotplug` has `memory` and `numa` is on, otherwise at the next start.
    MemoryHotplug,
    /// At once unless it is switched on or off (from or to 0).
    BalloonResize,
    /// At the next start.
    Restart,
}

/// One line of the table. Its members stand in the order of their names, as in the digest of the rules.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Rule {
    /// What absence means.
    pub absent: Absent,
    /// Whether `null` may remove the key.
    pub can_unset: bool,
    /// The key.
    pub field: Field,
    /// The kind of guest.
    pub kind: Kind,
    /// When a change takes effect while the guest runs.
    pub live: Live,
    /// The largest number, in the field's unit (of text: characters).
    pub max: u32,
    /// The smallest.
    pub min: u32,
    /// Whether it can be declared.
    pub role: Role,
}

/// When a change of a field takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// At once, and nothing in the guest notices.
    Recorded,
    /// At once, inside the running guest.
    Live,
    /// At the next start: until then the value is pending.
    AtRestart,
}

impl Effect {
    /// The word for it in artifacts.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Recorded => "recorded",
            Self::Live => "live",
            Self::AtRestart => "at-restart",
        }
    }
}

const COUNT_MAX: u32 = 8192;
const MIB_MAX: u32 = 1 << 30;

const fn rule(kind: Kind, field: Field, min: u32, max: u32, absent: Absent, live: Live) -> Rule {
    Rule { kind, field, role: Role::Managed, min, max, absent, live, can_unset: true }
}

const fn context(field: Field, absent: Absent) -> Rule {
    Rule { role: Role::Context, ..rule(Kind::Qemu, field, 0, 1, absent, Live::Restart) }
}

/// The table. Sources: the API schema and sections 3.3, 3.4 and 5 of the facts about Proxmox.
///
/// - `cpuunits` above 10000 is clamped where cgroup v2 is used and below 2 where v1 is, so that a value outside would
///   never read back as written.
/// - `balloon` absent means "as much as `memory`": it follows another field, so no explicit value equals it.
/// - `cores` of a container absent means all of the host's.
/// - `memory` of a container cannot be deleted; `swap` absent means none.
pub static TABLE: [Rule; 23] = {
    use Absent::{Empty, Flag, Number, Undefined};
    use Field as F;
    use Kind::{Lxc, Qemu};
    use Live::{Always, BalloonResize, MemoryHotplug, Record, Restart};
    [
        rule(Qemu, F::Agent, 0, 1, Flag(false), Restart),
        rule(Qemu, F::Balloon, 0, MIB_MAX, Undefined, BalloonResize),
        rule(Qemu, F::Boot, 1, 32, Undefined, Restart),
        rule(Qemu, F::Cores, 1, COUNT_MAX, Number(1), Restart),
        rule(Qemu, F::Cpulimit, 0, 128_000, Number(0), Always),
        rule(Qemu, F::Cpuunits, 2, 10_000, Undefined, Always),
        rule(Qemu, F::Description, 0, 8192, Empty, Record),
        context(F::Hotplug, Undefined),
        rule(Qemu, F::Memory, 16, MIB_MAX, Number(512), MemoryHotplug),
        context(F::Numa, Flag(false)),
        rule(Qemu, F::Onboot, 0, 1, Flag(false), Record),
        rule(Qemu, F::Sockets, 1, COUNT_MAX, Number(1), Restart),
        rule(Qemu, F::Startup, 0, 1_000_000, Undefined, Record),
        rule(Qemu, F::Tags, 0, 64, Empty, Record),
        rule(Lxc, F::Cores, 1, COUNT_MAX, Undefined, Always),
        rule(Lxc, F::Cpulimit, 0, 8_192_000, Number(0), Always),
        rule(Lxc, F::Cpuunits, 2, 10_000, Undefined, Always),
        rule(Lxc, F::Description, 0, 8192, Empty, Record),
        Rule { can_unset: false, ..rule(Lxc, F::Memory, 16, MIB_MAX, Number(512), Always) },
        rule(Lxc, F::Onboot, 0, 1, Flag(false), Record),
        rule(Lxc, F::Startup, 0, 1_000_000, Undefined, Record),
        rule(Lxc, F::Swap, 0, MIB_MAX, Number(0), Always),
        rule(Lxc, F::Tags, 0, 64, Empty, Record),
    ]
};

/// The line for a field of a kind, if there is one.
#[must_use]
pub fn rule_of(kind: Kind, field: Field) -> Option<&'static Rule> {
    TABLE.iter().find(|rule| rule.kind == kind && rule.field == field)
}

/// Other keys whose values decide how a change of this field takes effect, or whether Proxmox accepts it. What declares the field
/// needs them understood too.
#[must_use]
pub fn read_with(field: Field) -> &'static [Field] {
    match field {
        Field::Memory => &[Field::Balloon, Field::Hotplug, Field::Numa],
        Field::Balloon => &[Field::Memory],
        _ => &[],
    }
}

/// Whether a value that is wanted (`None`: unset) is in effect where `observed` was read.
#[must_use]
pub fn is_met(rule: &Rule, wanted: Option<&Value>, observed: Option<&Value>) -> bool {
    match (wanted, observed) {
        (Some(wanted), Some(observed)) => wanted == observed,
        (Some(value), None) | (None, Some(value)) => equals_absent(rule, value),
        (None, None) => true,
    }
}

/// Whether an explicit value has the effect of an absent key.
fn equals_absent(rule: &Rule, value: &Value) -> bool {
    match (rule.absent, value) {
        (Absent::Flag(default), Value::Flag(flag)) => default == *flag,
        (Absent::Number(default), Value::Count(number) | Value::Mib(number) | Value::Thousandths(number)) => default == *number,
        (Absent::Empty, Value::Text(text)) => text.is_empty(),
        (Absent::Empty, Value::Tags(tags)) => tags.is_empty(),
        (Absent::Undefined, Value::Boot(Boot::Legacy(letters))) => &**letters == Boot::LEGACY_DEFAULT,
        _ => false,
    }
}

/// What of the observed config decides how other fields take effect.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// Memory can be plugged: `hotplug` has `memory` and `numa` is on.
    pub memory_hotplug: bool,
}

/// When a change from `before` to `after` takes effect on a running guest.
#[must_use]
pub fn effect(rule: &Rule, before: Option<&Value>, after: Option<&Value>, context: Context) -> Effect {
    let is_off = |value: Option<&Value>| matches!(value, Some(Value::Mib(0)));
    let live = match rule.live {
        Live::Record => return Effect::Recorded,
        Live::Always => true,
        Live::MemoryHotplug => context.memory_hotplug,
        Live::BalloonResize => is_off(before) == is_off(after),
        Live::Restart => false,
    };
    if live { Effect::Live } else { Effect::AtRestart }
}

/// How keys begin that let a guest reach its host: programs and files of it, its devices, its directories (design 6.18).
pub const HOST_REACHING: [&str; 11] =
    ["args", "dev", "hookscript", "hostpci", "ivshmem", "lxc.", "mp", "parallel", "serial", "usb", "virtiofs"];

/// Whether a config key lets a guest reach its host. By how it begins: releases differ in how many of each there are.
#[must_use]
pub fn reaches_host(key: &str) -> bool {
    HOST_REACHING.iter().any(|prefix| key.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_has_each_pair_once() {
        assert!(TABLE.is_sorted_by_key(|rule| (rule.kind, rule.field)));
        assert!(TABLE.windows(2).all(|pair| (pair[0].kind, pair[0].field) != (pair[1].kind, pair[1].field)));
        assert!(Field::ALL.iter().zip(Field::WORDS).all(|(field, word)| field.word() == word));
        assert!(Field::ALL.iter().all(|field| field.quoted() == format!("`{}`", field.word())));
        assert!(Field::ALL.iter().all(|field| Field::of_word(field.word()) == Some(*field)));
        assert!(Field::WORDS.is_sorted(), "artifacts list fields in this order");
    }

    #[test]
    fn what_reaches_the_host_is_not_in_the_table() {
        for word in Field::WORDS {
            assert!(!reaches_host(word), "{word} must not be manageable");
        }
        for word in ["lock", "protection", "template", "name", "hostname"] {
            assert!(!Field::WORDS.contains(&word), "{word} must not be manageable");
        }
    }

    #[test]
    fn what_reaches_the_host_is_known_by_how_it_begins() {
        for prefix in HOST_REACHING {
            for key in [prefix.to_owned(), format!("{prefix}0"), format!("{prefix}255")] {
                assert!(reaches_host(&key), "{key}");
            }
        }
        assert!(reaches_host("lxc.mount.entry") && !reaches_host("net0") && !reaches_host("scsi0"));
    }

    #[test]
    fn absent_equals_the_explicit_default_only() {
        let cores = rule_of(Kind::Qemu, Field::Cores).expect("in the table");
        assert!(is_met(cores, Some(&Value::Count(1)), None));
        assert!(is_met(cores, None, Some(&Value::Count(1))));
        assert!(!is_met(cores, Some(&Value::Count(2)), None));
        let balloon = rule_of(Kind::Qemu, Field::Balloon).expect("in the table");
        assert!(!is_met(balloon, Some(&Value::Mib(0)), None));
        assert!(is_met(balloon, None, None));
        let boot = rule_of(Kind::Qemu, Field::Boot).expect("in the table");
        assert!(is_met(boot, None, Some(&Value::Boot(Boot::Legacy("cdn".into())))));
        assert!(!is_met(boot, None, Some(&Value::Boot(Boot::Legacy("n".into())))));
    }

    #[test]
    fn memory_takes_effect_at_once_only_where_it_can_be_plugged() {
        let memory = rule_of(Kind::Qemu, Field::Memory).expect("in the table");
        let effect = |memory_hotplug| effect(memory, Some(&Value::Mib(512)), Some(&Value::Mib(1024)), Context { memory_hotplug });
        assert_eq!(effect(false), Effect::AtRestart);
        assert_eq!(effect(true), Effect::Live);
    }

    #[test]
    fn a_balloon_is_resized_live_but_not_switched() {
        let balloon = rule_of(Kind::Qemu, Field::Balloon).expect("in the table");
        let context = Context { memory_hotplug: true };
        assert_eq!(effect(balloon, Some(&Value::Mib(512)), Some(&Value::Mib(256)), context), Effect::Live);
        assert_eq!(effect(balloon, Some(&Value::Mib(512)), Some(&Value::Mib(0)), context), Effect::AtRestart);
        assert_eq!(effect(balloon, Some(&Value::Mib(0)), None, context), Effect::AtRestart);
    }
}
