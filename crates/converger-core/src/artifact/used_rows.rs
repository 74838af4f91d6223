//! The rows of this program's tables that a plan depends on. A plan binds these rows only, so that evidence stays valid when an action or a
//! field is added.
//!
//! - Catalogue: the row of each change that a step makes. The planner reads a row to classify a step, and no other.
//! - Fields: the row of each field that the intent declares or that a step writes, for the kind of the guest, and of each field that is
//!   read with it ([`normalize::read_with`]): those decide when a change takes effect and whether Proxmox accepts it.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::action::{Action, CATALOGUE, Change};
use crate::guest::GuestKind;
use crate::normalize::{self, Field, FieldRule, TABLE};
use crate::plan::{Plan, Verdict};

/// The tables that a decision may depend on. Tests pass other ones than those of this program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecisionTables<'t> {
    pub(crate) catalogue: &'t [Action],
    pub(crate) fields: &'t [FieldRule],
}

/// The tables of this program.
pub(crate) const OWN_TABLES: DecisionTables<'static> = DecisionTables { catalogue: &CATALOGUE, fields: &TABLE };

/// The rows that a plan depends on, each list sorted by name.
#[derive(Clone, Debug)]
pub(crate) struct UsedRows<'t> {
    pub(crate) catalogue: Vec<&'t Action>,
    pub(crate) fields: Vec<&'t FieldRule>,
}

impl<'t> UsedRows<'t> {
    pub(crate) fn of_plan(plan: &Plan, tables: DecisionTables<'t>) -> Self {
        let (mut changes, mut fields) = (BTreeSet::new(), BTreeSet::new());
        for (guest, verdict) in plan.guests() {
            guest.config.iter().for_each(|setting| add_field(&mut fields, guest.kind, setting.field));
            let Verdict::Steps(steps) = verdict else { continue };
            for step in steps {
                changes.insert(step.change.word());
                match &step.change {
                    Change::ConfigSet(written) => written.iter().for_each(|change| add_field(&mut fields, guest.kind, change.field)),
                    Change::Provision(provisioning) => {
                        provisioning.fields.iter().for_each(|setting| add_field(&mut fields, guest.kind, setting.field));
                    }
                    _ => {}
                }
            }
        }
        let mut catalogue: Vec<&Action> = tables.catalogue.iter().filter(|row| changes.contains(row.change)).collect();
        let mut fields: Vec<&FieldRule> = tables.fields.iter().filter(|row| fields.contains(&(row.kind, row.field))).collect();
        // The order must not depend on the position of a row in its table.
        catalogue.sort_by_key(|row| row.action);
        fields.sort_by_key(|row| (row.kind.word(), row.field.word()));
        Self { catalogue, fields }
    }
}

/// Adds a field of a kind and the fields that are read with it.
fn add_field(fields: &mut BTreeSet<(GuestKind, Field)>, kind: GuestKind, field: Field) {
    fields.insert((kind, field));
    fields.extend(normalize::read_with(field).iter().map(|other| (kind, *other)));
}

/// Whether each of these recorded rows is a row of a table, unchanged.
pub(crate) fn has_rows<T: Serialize>(table: &[T], recorded: &[serde_json::Value]) -> bool {
    let own: Vec<serde_json::Value> = table.iter().filter_map(|row| serde_json::to_value(row).ok()).collect();
    recorded.iter().all(|row| own.contains(row))
}
