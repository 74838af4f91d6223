//! Who may do what, as Proxmox tells it: privileges by path, users with their tokens, roles.
//!
//! What never enters: what this program needs of it (`doctor`).

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::object::{Object, UniqueMap};
use super::scalar::PerlScalar;

/// What somebody may do: privileges by path, each with whether it spreads to what lies below.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permissions(pub BTreeMap<Box<str>, BTreeMap<Box<str>, bool>>);

impl Permissions {
    /// Whether a privilege is granted on a path that the answer names.
    #[must_use]
    pub fn has(&self, path: &str, privilege: &str) -> bool {
        self.0.get(path).is_some_and(|privileges| privileges.contains_key(privilege))
    }

    /// The privileges on a path that the answer names and, where only those are asked for, that spread from there.
    pub fn privileges_on(&self, path: &str, spread: SpreadFilter) -> impl Iterator<Item = &str> {
        let all = self.0.get(path).into_iter().flatten();
        all.filter(move |(_, spreads)| spread == SpreadFilter::Any || **spreads).map(|(privilege, _)| &**privilege)
    }
}

/// Which privileges on a path count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpreadFilter {
    /// All that hold there.
    Any,
    /// Those that hold for what lies below as well.
    Below,
}

/// A privilege is granted where it is named; its value only says whether it spreads to what lies below.
pub(super) fn parse_permissions(UniqueMap(rows): UniqueMap<UniqueMap<PerlScalar<'_>>>) -> Permissions {
    let spreads = |UniqueMap(privileges): UniqueMap<PerlScalar<'_>>| {
        privileges.into_iter().map(|(privilege, value)| (privilege, value.flag() == Some(true))).collect()
    };
    Permissions(rows.into_iter().map(|(path, privileges)| (path, spreads(privileges))).collect())
}

/// A user with the tokens that belong to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxmoxUser {
    /// Whether it is switched on.
    pub enabled: bool,
    /// When it ends.
    pub expiry: Expiry,
    /// Its tokens, by the part of their id after the `!`.
    pub tokens: BTreeMap<Box<str>, TokenState>,
}

/// What a token may at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenState {
    /// Whether it has only what was granted to itself, within what its user has.
    pub separated: bool,
    /// When it ends, if not with its user.
    pub expiry: Expiry,
}

/// When a user or a token ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// Not by itself.
    Never,
    /// Then, in seconds since 1970.
    At(u64),
    /// What was said about it is no time.
    Unclear,
}

#[derive(Deserialize)]
pub(super) struct UserRow<'a> {
    #[serde(borrow, default)]
    enable: PerlScalar<'a>,
    #[serde(borrow, default)]
    expire: PerlScalar<'a>,
    #[serde(borrow, default)]
    tokens: UniqueMap<Object<TokenRow<'a>>>,
}

#[derive(Deserialize)]
struct TokenRow<'a> {
    #[serde(borrow, default)]
    privsep: PerlScalar<'a>,
    #[serde(borrow, default)]
    expire: PerlScalar<'a>,
}

/// What is left out is on: a user is enabled and a token separated unless it says otherwise.
pub(super) fn parse_user(row: UserRow<'_>) -> ProxmoxUser {
    let token = |row: TokenRow<'_>| TokenState { separated: row.privsep.flag() != Some(false), expiry: parse_expiry(&row.expire) };
    ProxmoxUser {
        enabled: row.enable.flag() != Some(false),
        expiry: parse_expiry(&row.expire),
        tokens: row.tokens.0.into_iter().map(|(id, Object(row))| (id, token(row))).collect(),
    }
}

/// 0 is never, and so is what is left out.
fn parse_expiry(value: &PerlScalar<'_>) -> Expiry {
    match value.number() {
        Some(0) => Expiry::Never,
        Some(secs) => Expiry::At(secs),
        None if matches!(value, PerlScalar::Absent) => Expiry::Never,
        None => Expiry::Unclear,
    }
}

/// The roles of a cluster, with their privileges.
pub type RolePrivileges = BTreeMap<Box<str>, BTreeSet<Box<str>>>;

#[derive(Deserialize)]
pub(super) struct RoleRow<'a> {
    #[serde(borrow, default)]
    roleid: PerlScalar<'a>,
    #[serde(borrow, default)]
    privs: PerlScalar<'a>,
}

pub(super) fn parse_roles(rows: Vec<RoleRow<'_>>) -> RolePrivileges {
    let privileges = |row: &RoleRow<'_>| {
        let text = row.privs.text().unwrap_or_default();
        text.split([',', ';', ' ']).filter(|word| !word.is_empty()).map(Into::into).collect()
    };
    rows.into_iter().filter_map(|row| Some((row.roleid.word()?, privileges(&row)))).collect()
}
