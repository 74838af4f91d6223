//! Compares the true state of a guest with the declared one, in the raw texts of Proxmox.

use converger_core::action::FieldChange;
use converger_core::guest::{GuestIdentity, RunState};
use converger_core::plan::RestartField;
use converger_lab::{GuestTruth, LabGuestKind};

use super::super::setup::WantedGuest;

pub(crate) fn runs_as(truth: &GuestTruth, state: RunState) -> bool {
    match state {
        // A frozen container still reads as running.
        RunState::Running => {
            truth.process.as_deref().is_some_and(|process_state| process_state == "running" || truth.kind == LabGuestKind::Lxc)
        }
        RunState::Stopped => truth.process.is_none(),
    }
}

/// Whether each of these fields has its declared value, in effect or pending.
pub(super) fn has_fields(truth: &GuestTruth, wanted: &WantedGuest, fields: &[FieldChange]) -> bool {
    let is = |key: &str| wanted.config.get(key).is_some_and(|raw| has_value(truth, key, raw.as_deref()));
    fields.iter().all(|change| is(change.field.word()))
}

/// Whether each of these fields has its declared value in effect, with no other value pending.
pub(super) fn has_in_effect(truth: &GuestTruth, wanted: &WantedGuest, fields: &[RestartField]) -> bool {
    let is = |key: &str, raw: Option<&str>| has_value(truth, key, raw) && truth.config.get(key).map(|found| found.trim_end()) == raw;
    fields.iter().all(|restart_field| {
        wanted.config.get(restart_field.field.word()).is_some_and(|raw| is(restart_field.field.word(), raw.as_deref()))
    })
}

/// Whether everything declared is the case, in effect or pending.
pub(crate) fn is_as_wanted(truth: &GuestTruth, wanted: &WantedGuest) -> bool {
    let is_so = wanted.state.is_none_or(|state| runs_as(truth, state));
    is_so && wanted.config.iter().all(|(key, raw)| has_value(truth, key, raw.as_deref()))
}

/// Whether a key has this text, or none, in effect or pending.
pub(super) fn has_value(truth: &GuestTruth, key: &str, raw: Option<&str>) -> bool {
    if truth.pending_delete.iter().any(|own| own == key) {
        return raw.is_none();
    }
    truth.pending.get(key).or_else(|| truth.config.get(key)).map(|found| found.trim_end()) == raw
}

/// Whether this is the guest with these marks.
pub(crate) fn has_identity(truth: &GuestTruth, identity: &GuestIdentity) -> bool {
    let part = |key: &str, name: &str| {
        let text = truth.config.get(key)?;
        text.split(',').find_map(|part| part.strip_prefix(name).map(str::to_owned))
    };
    match identity {
        GuestIdentity::Qemu { uuid, ctime } => {
            let found = part("smbios1", "uuid=").map(|uuid| uuid.to_ascii_lowercase());
            found.as_deref() == uuid.as_deref() && part("meta", "ctime=").and_then(|ctime| ctime.parse().ok()) == *ctime
        }
        GuestIdentity::Lxc { rootfs, mac } => {
            let volume = truth.config.get("rootfs").and_then(|text| text.split(',').next()).map(str::to_owned);
            volume.as_deref() == rootfs.as_deref()
                && part("net0", "hwaddr=").map(|mac| mac.to_ascii_uppercase()).as_deref() == mac.as_deref()
        }
    }
}

pub(super) fn is_protected(truth: &GuestTruth) -> bool {
    let is_named = truth.name.as_deref().is_some_and(|name| name.to_ascii_lowercase().starts_with("prod-"));
    is_named || all_tags(truth).any(|tag| tag == "prod") || truth.config.get("protection").is_some_and(|value| value == "1")
}

pub(super) fn all_tags(truth: &GuestTruth) -> impl Iterator<Item = &str> {
    let now = truth.config.get("tags").into_iter();
    now.chain(truth.pending.get("tags")).flat_map(|tags| tags.split([';', ',', ' ']))
}

/// The marks that a guest keeps from its birth, in raw texts: of a virtual machine its UUID and creation time, of a container its root volume
/// and first MAC address.
pub(crate) type BirthMarks = [Option<String>; 2];

pub(crate) fn birth_marks(truth: &GuestTruth) -> BirthMarks {
    let part = |key: &str, name: &str| {
        let text = truth.config.get(key)?;
        text.split(',').find_map(|part| part.strip_prefix(name).map(str::to_owned))
    };
    let volume = || truth.config.get("rootfs").and_then(|text| text.split(',').next()).map(str::to_owned);
    match truth.kind {
        LabGuestKind::Qemu => [part("smbios1", "uuid="), part("meta", "ctime=")],
        LabGuestKind::Lxc => [volume(), part("net0", "hwaddr=")],
    }
}

/// Whether a new guest has its first config, and nothing of it waits. Of a network device only the named part is compared.
pub(crate) fn has_first_config(truth: &GuestTruth, wanted: &WantedGuest) -> bool {
    let has_part = |part: &str| truth.config.get("net0").is_some_and(|text| text.split(',').any(|own| own == part));
    wanted.config.iter().all(|(key, raw)| match (*key, raw.as_deref()) {
        ("net0", Some(part)) => has_part(part),
        (key, raw) => truth.config.get(key).map(String::as_str) == raw && !truth.pending.contains_key(key),
    })
}
