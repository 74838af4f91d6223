//! How much a change amounts to: the catalogue sets the floor, and what is known here can only raise it.

use crate::action::{Change, Class, FieldChange, Impact, Risk};
use crate::normalize::{Effect, Field};

/// The impact of a change on the guest while it is carried out.
#[must_use]
pub fn impact(change: &Change) -> Impact {
    let raised = match change {
        Change::ConfigSet(fields) if fields.iter().any(|field| field.effect == Effect::Live) => Impact::Reload,
        _ => Impact::None,
    };
    change.action().impact.max(raised)
}

/// The risk of a change.
#[must_use]
pub fn risk(change: &Change) -> Risk {
    let raised = match change {
        Change::ConfigSet(fields) if fields.iter().all(is_note) => Risk::Low,
        Change::ConfigSet(_) => Risk::Medium,
        // The guest cannot write out what it holds in memory.
        Change::Stop => Risk::High,
        Change::Start | Change::Shutdown { .. } | Change::Reboot { .. } => Risk::Low,
    };
    change.action().risk.max(raised)
}

/// The class of a change.
#[must_use]
pub fn class(change: &Change) -> Class {
    let raised = if impact(change) >= Impact::DataLoss { Class::Destructive } else { Class::Benign };
    change.action().class.max(raised)
}

/// Fields that tell people something, and the guest nothing.
fn is_note(change: &FieldChange) -> bool {
    matches!(change.field, Field::Description | Field::Tags | Field::Onboot | Field::Startup)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::normalize::Value;

    fn set(field: Field, effect: Effect) -> Change {
        Change::ConfigSet(Box::new([FieldChange { field, before: None, after: Some(Value::Count(1)), pending: None, effect }]))
    }

    #[test]
    fn the_classifier_only_raises() {
        let changes = [
            set(Field::Cores, Effect::AtRestart),
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
    fn notes_are_low_and_live_changes_reload() {
        assert_eq!(risk(&set(Field::Tags, Effect::Recorded)), Risk::Low);
        assert_eq!(risk(&set(Field::Cores, Effect::AtRestart)), Risk::Medium);
        assert_eq!(impact(&set(Field::Cpulimit, Effect::Live)), Impact::Reload);
        assert_eq!(impact(&set(Field::Cores, Effect::AtRestart)), Impact::None);
        assert_eq!(risk(&Change::Stop), Risk::High);
    }
}
