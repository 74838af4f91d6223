//! Classifies a change. The catalogue gives lower bounds, and these functions can only raise them.

use crate::action::{Change, ChangeClass, FieldChange, Impact, MigrationMode, Risk};
use crate::normalize::{ChangeEffect, Field};

/// The impact of a change on the guest while it is executed.
#[must_use]
pub fn impact(change: &Change) -> Impact {
    let raised = match change {
        Change::ConfigSet(fields) if fields.iter().any(|field| field.effect == ChangeEffect::Live) => Impact::Reload,
        // The guest pauses while its memory is saved.
        Change::SnapshotCreate(new) if new.ram => Impact::Reload,
        Change::Migrate(migration) => match migration.mode {
            MigrationMode::Online => Impact::Reload,
            MigrationMode::Restart => Impact::Reboot,
            // The guest cannot be started until it has arrived.
            MigrationMode::Offline => Impact::Stop,
        },
        _ => Impact::None,
    };
    change.action().impact.max(raised)
}

/// The risk of a change.
#[must_use]
pub fn risk(change: &Change) -> Risk {
    let raised = match change {
        Change::ConfigSet(fields) if fields.iter().all(is_metadata_field) => Risk::Low,
        Change::ConfigSet(_) => Risk::Medium,
        // A hard stop loses what the guest has not written to disk.
        Change::Stop => Risk::High,
        Change::Start
        | Change::Shutdown { .. }
        | Change::Reboot { .. }
        | Change::SnapshotCreate(_)
        | Change::SnapshotDelete(_)
        | Change::SnapshotRollback(_)
        | Change::DiskGrow(_)
        | Change::Migrate(_)
        | Change::Clone(_)
        | Change::Provision(_) => Risk::Low,
    };
    change.action().risk.max(raised)
}

/// The class of a change.
#[must_use]
pub fn class(change: &Change) -> ChangeClass {
    let raised = if impact(change) >= Impact::DataLoss { ChangeClass::Destructive } else { ChangeClass::Benign };
    change.action().class.max(raised)
}

/// Whether a field carries information for people only and does not affect the running guest.
fn is_metadata_field(change: &FieldChange) -> bool {
    matches!(change.field, Field::Description | Field::Tags | Field::Onboot | Field::Startup)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::normalize::FieldValue;

    fn config_set(field: Field, effect: ChangeEffect) -> Change {
        Change::ConfigSet(Box::new([FieldChange { field, before: None, after: Some(FieldValue::Count(1)), pending: None, effect }]))
    }

    #[test]
    fn classifier_never_lowers_the_catalogue() {
        let changes = [
            config_set(Field::Cores, ChangeEffect::AtRestart),
            Change::Start,
            Change::Stop,
            Change::Shutdown { timeout_secs: 1 },
            Change::Reboot { timeout_secs: 1 },
        ];
        for change in &changes {
            let floor = change.action();
            assert!(impact(change) >= floor.impact && risk(change) >= floor.risk && class(change) >= floor.class, "{change:?}");
        }
    }

    #[test]
    fn metadata_changes_are_low_risk_and_live_changes_reload() {
        assert_eq!(risk(&config_set(Field::Tags, ChangeEffect::Recorded)), Risk::Low);
        assert_eq!(risk(&config_set(Field::Cores, ChangeEffect::AtRestart)), Risk::Medium);
        assert_eq!(impact(&config_set(Field::Cpulimit, ChangeEffect::Live)), Impact::Reload);
        assert_eq!(impact(&config_set(Field::Cores, ChangeEffect::AtRestart)), Impact::None);
        assert_eq!(risk(&Change::Stop), Risk::High);
    }
}
