//! High availability as Proxmox tells it: what it is asked to keep, and what it believes.

use serde::Deserialize;

use super::scalar::PerlScalar;

/// A guest that high availability manages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HaService {
    /// Such as `vm:100` or `ct:101`.
    pub sid: Box<str>,
    /// The state that it is believed to be in.
    pub state: Option<Box<str>>,
}

/// How the manager of high availability stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HaStatus {
    /// What is said about fencing; before version 9 nothing is.
    pub fencing: Option<Box<str>>,
    /// The node that decides, with what it says about itself; none until there is something to manage.
    pub manager: Option<Box<str>>,
    /// The guests that it manages, with the state that it believes them to be in.
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
