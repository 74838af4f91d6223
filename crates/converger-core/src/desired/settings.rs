//! The settings of one guest without the rest of a desired state, read by the same parser, so that both accept the same values.

use serde_json::{Map, Value, json};

use super::{Desired, DesiredSetting, VERSION};
use crate::document::{Diagnostics, Notation};
use crate::guest::{GuestKind, Vmid};

/// Parses settings as desired.json writes them.
pub(crate) fn parse_settings(kind: GuestKind, config: Map<String, Value>) -> Result<Box<[DesiredSetting]>, Diagnostics> {
    super::parse(settings_document(kind, config).as_bytes(), Notation::Json).map(|desired| settings_of(&desired))
}

/// Parses settings in canonical form.
pub(crate) fn parse_normal_settings(kind: GuestKind, config: &Map<String, Value>) -> Result<Box<[DesiredSetting]>, String> {
    let parsed = super::parse_normal(settings_document(kind, config.clone()).as_bytes());
    let first = |faults: Diagnostics| faults.list().first().map(|fault| fault.message.clone()).unwrap_or_default();
    parsed.map(|desired| settings_of(&desired)).map_err(first)
}

/// A desired state of one guest with this config.
fn settings_document(kind: GuestKind, config: Map<String, Value>) -> String {
    let guest = json!({ "vmid": Vmid::MIN, "kind": kind.word(), "name": "request", "config": config });
    json!({ "version": VERSION, "environment": "request", "guests": [guest] }).to_string()
}

fn settings_of(desired: &Desired) -> Box<[DesiredSetting]> {
    desired.guests().first().map(|guest| guest.config.clone()).unwrap_or_default()
}
