//! The managed fields: one table, keyed by kind and field, that defines the type of a value, the meaning of an absent key, and when a
//! change takes effect.
//!
//! A field that is not in the table cannot be declared, so nothing that reaches the host (`args`, `hookscript`, passed-through devices,
//! bind mounts) can be written. Values are compared in their effective form: absent and explicitly default are equal, because Proxmox
//! treats them the same.
//!
//! Must not parse files (`desired` and `observe` do) or decide what to do (`plan`).

mod value;

use serde::Serialize;

use crate::guest::GuestKind;

pub use value::{BootOrder, FieldValue, HotplugFeatures, StartupOrder, WordSet};

/// A config key that this program knows. Sorted by name, as in every artifact.
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

    /// The field with this name. Called for every key of every config, so it is one match instead of a search.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
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

    /// The key in backticks, for messages. A constant, because decoders use it on their hot path.
    pub(crate) fn quoted_name(self) -> &'static str {
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

    /// The type of its value, which is the same for both kinds.
    #[must_use]
    pub fn shape(self) -> ValueShape {
        match self {
            Self::Agent | Self::Numa | Self::Onboot => ValueShape::Flag,
            Self::Balloon | Self::Memory | Self::Swap => ValueShape::Mib,
            Self::Cores | Self::Cpuunits | Self::Sockets => ValueShape::Count,
            Self::Cpulimit => ValueShape::Thousandths,
            Self::Description => ValueShape::Text,
            Self::Boot => ValueShape::Boot,
            Self::Hotplug => ValueShape::Features,
            Self::Startup => ValueShape::Startup,
            Self::Tags => ValueShape::Tags,
        }
    }
}

/// The type of a field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueShape {
    /// `true` or `false`.
    Flag,
    /// A whole number.
    Count,
    /// Memory in MiB; desired.yaml writes a unit (`512MiB`, `8GiB`).
    Mib,
    /// Thousandths of a CPU; desired.yaml writes a decimal in quotes (`"1.5"`).
    Thousandths,
    /// Text without trailing whitespace.
    Text,
    /// A sorted set of tags.
    Tags,
    /// `{order, up, down}`.
    Startup,
    /// A list of devices in boot order.
    Boot,
    /// The features that can be changed while the guest runs.
    Features,
}

impl ValueShape {
    /// The unit of the number in an artifact, or a description of the value.
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

/// How a field is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FieldRole {
    /// It can be declared, and is changed to the declared value.
    Managed,
    /// It is read because it affects how other fields take effect; it cannot be declared.
    Context,
}

/// What Proxmox assumes if the key is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AbsentMeaning {
    /// This flag.
    Flag(bool),
    /// This number, in the field's unit.
    Number(u32),
    /// An empty value.
    Empty,
    /// It depends on the host or on other keys, so no explicit value is equal to it.
    Undefined,
}

/// When a change takes effect on a running guest. On a stopped guest it always takes effect at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LiveEffect {
    /// At once, without any effect inside the guest.
    Record,
    /// At once, inside the running guest.
    Always,
    /// At once if `hotplug` has `memory` and `numa` is on, otherwise at the next start.
    MemoryHotplug,
    /// At once, unless it is switched on or off (from or to 0).
    BalloonResize,
    /// At the next start.
    Restart,
}

/// One row of the table. Members are sorted by name, as in the digest of the rules.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct FieldRule {
    /// What an absent key means.
    pub absent: AbsentMeaning,
    /// Whether `null` may remove the key.
    pub can_unset: bool,
    /// The key.
    pub field: Field,
    /// The kind of guest.
    pub kind: GuestKind,
    /// When a change takes effect on a running guest.
    pub live: LiveEffect,
    /// The largest number in the field's unit; for text, the number of characters.
    pub max: u32,
    /// The smallest number.
    pub min: u32,
    /// Whether it can be declared.
    pub role: FieldRole,
}

/// When a change of a field takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeEffect {
    /// At once, without any effect inside the guest.
    Recorded,
    /// At once, inside the running guest.
    Live,
    /// At the next start; the value is pending until then.
    AtRestart,
}

impl ChangeEffect {
    /// Its name in artifacts.
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

const fn managed_rule(kind: GuestKind, field: Field, min: u32, max: u32, absent: AbsentMeaning, live: LiveEffect) -> FieldRule {
    FieldRule { kind, field, role: FieldRole::Managed, min, max, absent, live, can_unset: true }
}

const fn context_rule(field: Field, absent: AbsentMeaning) -> FieldRule {
    FieldRule { role: FieldRole::Context, ..managed_rule(GuestKind::Qemu, field, 0, 1, absent, LiveEffect::Restart) }
}

/// The table. Sources: the API schema of Proxmox VE and `docs/proxmox-facts.md`.
///
/// - `cpuunits` above 10000 is clamped with cgroup v2, and below 2 with v1, so a value outside would never read back as written.
/// - `balloon` absent means "as much as `memory`": it depends on another field, so no explicit value is equal to it.
/// - `cores` of a container absent means all cores of the host.
/// - `memory` of a container cannot be deleted; `swap` absent means none.
pub static TABLE: [FieldRule; 23] = {
    use AbsentMeaning::{Empty, Flag, Number, Undefined};
    use Field as F;
    use GuestKind::{Lxc, Qemu};
    use LiveEffect::{Always, BalloonResize, MemoryHotplug, Record, Restart};
    [
        managed_rule(Qemu, F::Agent, 0, 1, Flag(false), Restart),
        managed_rule(Qemu, F::Balloon, 0, MIB_MAX, Undefined, BalloonResize),
        managed_rule(Qemu, F::Boot, 1, 32, Undefined, Restart),
        managed_rule(Qemu, F::Cores, 1, COUNT_MAX, Number(1), Restart),
        managed_rule(Qemu, F::Cpulimit, 0, 128_000, Number(0), Always),
        managed_rule(Qemu, F::Cpuunits, 2, 10_000, Undefined, Always),
        managed_rule(Qemu, F::Description, 0, 8192, Empty, Record),
        context_rule(F::Hotplug, Undefined),
        managed_rule(Qemu, F::Memory, 16, MIB_MAX, Number(512), MemoryHotplug),
        context_rule(F::Numa, Flag(false)),
        managed_rule(Qemu, F::Onboot, 0, 1, Flag(false), Record),
        managed_rule(Qemu, F::Sockets, 1, COUNT_MAX, Number(1), Restart),
        managed_rule(Qemu, F::Startup, 0, 1_000_000, Undefined, Record),
        managed_rule(Qemu, F::Tags, 0, 64, Empty, Record),
        managed_rule(Lxc, F::Cores, 1, COUNT_MAX, Undefined, Always),
        managed_rule(Lxc, F::Cpulimit, 0, 8_192_000, Number(0), Always),
        managed_rule(Lxc, F::Cpuunits, 2, 10_000, Undefined, Always),
        managed_rule(Lxc, F::Description, 0, 8192, Empty, Record),
        FieldRule { can_unset: false, ..managed_rule(Lxc, F::Memory, 16, MIB_MAX, Number(512), Always) },
        managed_rule(Lxc, F::Onboot, 0, 1, Flag(false), Record),
        managed_rule(Lxc, F::Startup, 0, 1_000_000, Undefined, Record),
        managed_rule(Lxc, F::Swap, 0, MIB_MAX, Number(0), Always),
        managed_rule(Lxc, F::Tags, 0, 64, Empty, Record),
    ]
};

/// The rule for a field of a kind, if there is one.
#[must_use]
pub fn rule_of(kind: GuestKind, field: Field) -> Option<&'static FieldRule> {
    TABLE.iter().find(|rule| rule.kind == kind && rule.field == field)
}

/// Other fields that affect how a change of this field takes effect, or whether Proxmox accepts it. A guest that declares this field needs
/// their values to be understood too.
#[must_use]
pub fn read_with(field: Field) -> &'static [Field] {
    match field {
        Field::Memory => &[Field::Balloon, Field::Hotplug, Field::Numa],
        Field::Balloon => &[Field::Memory],
        _ => &[],
    }
}

/// Whether the wanted value (`None`: unset) is in effect if `observed` was read.
#[must_use]
pub fn is_met(rule: &FieldRule, wanted: Option<&FieldValue>, observed: Option<&FieldValue>) -> bool {
    match (wanted, observed) {
        (Some(wanted), Some(observed)) => wanted == observed,
        (Some(value), None) | (None, Some(value)) => equals_absent(rule, value),
        (None, None) => true,
    }
}

/// Whether an explicit value has the effect of an absent key.
fn equals_absent(rule: &FieldRule, value: &FieldValue) -> bool {
    match (rule.absent, value) {
        (AbsentMeaning::Flag(default), FieldValue::Flag(flag)) => default == *flag,
        (AbsentMeaning::Number(default), FieldValue::Count(number) | FieldValue::Mib(number) | FieldValue::Thousandths(number)) => {
            default == *number
        }
        (AbsentMeaning::Empty, FieldValue::Text(text)) => text.is_empty(),
        (AbsentMeaning::Empty, FieldValue::Tags(tags)) => tags.is_empty(),
        (AbsentMeaning::Undefined, FieldValue::Boot(BootOrder::Legacy(letters))) => &**letters == BootOrder::LEGACY_DEFAULT,
        _ => false,
    }
}

/// The part of the observed config that affects how other fields take effect.
#[derive(Clone, Copy, Debug)]
pub struct EffectContext {
    /// Whether memory can be hot-plugged: `hotplug` has `memory` and `numa` is on.
    pub memory_hotplug: bool,
}

/// When a change from `before` to `after` takes effect on a running guest.
#[must_use]
pub fn effect(rule: &FieldRule, before: Option<&FieldValue>, after: Option<&FieldValue>, context: EffectContext) -> ChangeEffect {
    let is_off = |value: Option<&FieldValue>| matches!(value, Some(FieldValue::Mib(0)));
    let live = match rule.live {
        LiveEffect::Record => return ChangeEffect::Recorded,
        LiveEffect::Always => true,
        LiveEffect::MemoryHotplug => context.memory_hotplug,
        LiveEffect::BalloonResize => is_off(before) == is_off(after),
        LiveEffect::Restart => false,
    };
    if live { ChangeEffect::Live } else { ChangeEffect::AtRestart }
}

/// Prefixes of keys that let a guest reach its host: host programs and files, devices and directories.
pub const HOST_REACHING: [&str; 12] =
    ["args", "cicustom", "dev", "hookscript", "hostpci", "ivshmem", "lxc.", "mp", "parallel", "serial", "usb", "virtiofs"];

/// Whether a config key lets a guest reach its host. Compares prefixes, because the number of such keys depends on the release.
#[must_use]
pub fn reaches_host(key: &str) -> bool {
    HOST_REACHING.iter().any(|prefix| key.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_sorted_and_unique() {
        assert!(TABLE.is_sorted_by_key(|rule| (rule.kind, rule.field)));
        assert!(TABLE.windows(2).all(|pair| (pair[0].kind, pair[0].field) != (pair[1].kind, pair[1].field)));
        assert!(Field::ALL.iter().zip(Field::WORDS).all(|(field, word)| field.word() == word));
        assert!(Field::ALL.iter().all(|field| field.quoted_name() == format!("`{}`", field.word())));
        assert!(Field::ALL.iter().all(|field| Field::from_word(field.word()) == Some(*field)));
        assert!(Field::WORDS.is_sorted(), "artifacts list fields in this order");
    }

    #[test]
    fn host_reaching_keys_are_not_manageable() {
        for word in Field::WORDS {
            assert!(!reaches_host(word), "{word} must not be manageable");
        }
        for word in ["lock", "protection", "template", "name", "hostname"] {
            assert!(!Field::WORDS.contains(&word), "{word} must not be manageable");
        }
    }

    #[test]
    fn host_reaching_keys_match_by_prefix() {
        for prefix in HOST_REACHING {
            for key in [prefix.to_owned(), format!("{prefix}0"), format!("{prefix}255")] {
                assert!(reaches_host(&key), "{key}");
            }
        }
        assert!(reaches_host("lxc.mount.entry") && !reaches_host("net0") && !reaches_host("scsi0"));
    }

    #[test]
    fn absent_equals_the_explicit_default_only() {
        let cores = rule_of(GuestKind::Qemu, Field::Cores).expect("in the table");
        assert!(is_met(cores, Some(&FieldValue::Count(1)), None));
        assert!(is_met(cores, None, Some(&FieldValue::Count(1))));
        assert!(!is_met(cores, Some(&FieldValue::Count(2)), None));
        let balloon = rule_of(GuestKind::Qemu, Field::Balloon).expect("in the table");
        assert!(!is_met(balloon, Some(&FieldValue::Mib(0)), None));
        assert!(is_met(balloon, None, None));
        let boot = rule_of(GuestKind::Qemu, Field::Boot).expect("in the table");
        assert!(is_met(boot, None, Some(&FieldValue::Boot(BootOrder::Legacy("cdn".into())))));
        assert!(!is_met(boot, None, Some(&FieldValue::Boot(BootOrder::Legacy("n".into())))));
    }

    #[test]
    fn memory_takes_effect_at_once_only_if_it_can_be_hot_plugged() {
        let memory = rule_of(GuestKind::Qemu, Field::Memory).expect("in the table");
        let effect =
            |memory_hotplug| effect(memory, Some(&FieldValue::Mib(512)), Some(&FieldValue::Mib(1024)), EffectContext { memory_hotplug });
        assert_eq!(effect(false), ChangeEffect::AtRestart);
        assert_eq!(effect(true), ChangeEffect::Live);
    }

    #[test]
    fn balloon_is_resized_live_but_not_switched_on_or_off() {
        let balloon = rule_of(GuestKind::Qemu, Field::Balloon).expect("in the table");
        let context = EffectContext { memory_hotplug: true };
        assert_eq!(effect(balloon, Some(&FieldValue::Mib(512)), Some(&FieldValue::Mib(256)), context), ChangeEffect::Live);
        assert_eq!(effect(balloon, Some(&FieldValue::Mib(512)), Some(&FieldValue::Mib(0)), context), ChangeEffect::AtRestart);
        assert_eq!(effect(balloon, Some(&FieldValue::Mib(0)), None, context), ChangeEffect::AtRestart);
    }
}
