//! Permissions as Proxmox reports them: privileges by path, users with their tokens, and roles.
//!
//! Must not depend on what this program needs (`doctor`).

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::object::{Object, UniqueMap};
use super::scalar::PerlScalar;

/// The privileges of a token or user by path, each with whether it propagates to the paths below.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permissions(pub BTreeMap<Box<str>, BTreeMap<Box<str>, bool>>);

impl Permissions {
    /// Whether a privilege is granted on a path of the response.
    #[must_use]
    pub fn has(&self, path: &str, privilege: &str) -> bool {
        self.0.get(path).is_some_and(|privileges| privileges.contains_key(privilege))
    }

    /// The privileges on a path of the response, optionally only those that propagate.
    pub fn privileges_on(&self, path: &str, spread: SpreadFilter) -> impl Iterator<Item = &str> {
        let all = self.0.get(path).into_iter().flatten();
        all.filter(move |(_, spreads)| spread == SpreadFilter::Any || **spreads).map(|(privilege, _)| &**privilege)
    }
}

/// Which privileges on a path count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpreadFilter {
    /// All privileges on the path.
    Any,
    /// Only those that propagate to the paths below.
    Below,
}

/// A listed privilege is granted; its value only tells whether it propagates.
pub(super) fn parse_permissions(UniqueMap(rows): UniqueMap<UniqueMap<PerlScalar<'_>>>) -> Permissions {
    let spreads = |UniqueMap(privileges): UniqueMap<PerlScalar<'_>>| {
        privileges.into_iter().map(|(privilege, value)| (privilege, value.flag() == Some(true))).collect()
    };
    Permissions(rows.into_iter().map(|(path, privileges)| (path, spreads(privileges))).collect())
}

/// A user with its tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxmoxUser {
    /// Whether it is enabled.
    pub enabled: bool,
    /// When it expires.
    pub expiry: Expiry,
    /// Its tokens, by the part of their id after the `!`.
    pub tokens: BTreeMap<Box<str>, TokenState>,
}

/// The settings of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenState {
    /// Whether it has privilege separation: its own privileges, limited by those of its user.
    pub separated: bool,
    /// When it expires, unless its user expires earlier.
    pub expiry: Expiry,
}

/// When a user or a token expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// Never.
    Never,
    /// At this time, in seconds since 1970.
    At(u64),
    /// The value is not a time.
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

/// Omitted settings are on: a user is enabled and a token is separated unless the response says otherwise.
pub(super) fn parse_user(row: UserRow<'_>) -> ProxmoxUser {
    let token = |row: TokenRow<'_>| TokenState { separated: row.privsep.flag() != Some(false), expiry: parse_expiry(&row.expire) };
    ProxmoxUser {
        enabled: row.enable.flag() != Some(false),
        expiry: parse_expiry(&row.expire),
        tokens: row.tokens.0.into_iter().map(|(id, Object(row))| (id, token(row))).collect(),
    }
}

/// 0 means never, and so does an omitted value.
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
