//! High availability as Proxmox reports it: the managed guests and their states.

use serde::Deserialize;

use super::scalar::PerlScalar;

/// A guest that high availability manages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HaService {
    /// The service id, such as `vm:100` or `ct:101`.
    pub sid: Box<str>,
    /// Its state according to the manager.
    pub state: Option<Box<str>>,
}

/// The state of the high-availability manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HaStatus {
    /// The state of fencing; not reported before version 9.
    pub fencing: Option<Box<str>>,
    /// The status of the node that decides; `None` as long as nothing is managed.
    pub manager: Option<Box<str>>,
    /// The managed guests with their states.
    pub services: Vec<HaService>,
}

#[derive(Deserialize)]
pub(super) struct HaStatusRow<'a> {
    #[serde(borrow, default)]
    r#type: PerlScalar<'a>,
    #[serde(borrow, default)]
    status: PerlScalar<'a>,
    #[serde(borrow, default)]
    sid: PerlScalar<'a>,
    #[serde(borrow, default)]
    state: PerlScalar<'a>,
}

pub(super) fn parse_ha_status(rows: Vec<HaStatusRow<'_>>) -> HaStatus {
    let of = |kind: &str| rows.iter().find(|row| row.r#type.is_text(kind)).and_then(|row| row.status.word());
    let (fencing, manager) = (of("fencing"), of("master"));
    let services = rows.into_iter().filter(|row| row.r#type.is_text("service"));
    let services = services.filter_map(|row| Some(HaService { sid: row.sid.word()?, state: row.state.word() })).collect();
    HaStatus { fencing, manager, services }
}
