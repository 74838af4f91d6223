//! The commands that grant missing privileges: minimal roles, on the paths where they take effect, for token and user as needed.
//!
//! A token with privilege separation has the intersection of its own privileges and those of its user, so both need the role. A token
//! without it has the privileges of its user, and its own entries have no effect.

use std::collections::{BTreeMap, BTreeSet};

use super::finding::{RemedyLine, RemedyTarget};
use super::held_privileges::{HeldPrivileges, MissingPrivilege};
use super::privilege_needs::{PrivilegeNeed, PrivilegePath, PrivilegedVerb, role_privileges};
use crate::proxmox::client::TokenId;
use crate::proxmox::codec::RolePrivileges;
use crate::proxmox::shell_quote::quote;

/// The user who needs no ACL entry.
const ROOT: &str = "root@pam";

/// Maximum number of paths with commands. For more guests with ACL entries of their own, a pool is better.
const PATHS_MAX: usize = 16;

/// The token and user that privileges are granted to.
pub(super) struct GrantTarget<'g> {
    pub(super) token: &'g TokenId,
    /// Whether the token has privilege separation; `None` if that could not be read.
    pub(super) separated: Option<bool>,
    pub(super) held: HeldPrivileges<'g>,
    /// The privileges of the token's user, if they could be read.
    pub(super) owner: Option<HeldPrivileges<'g>>,
    /// The existing roles, if they could be read.
    pub(super) roles: Option<&'g RolePrivileges>,
    pub(super) major: u32,
}

/// Commands that grant privileges.
pub(super) struct GrantLines {
    pub(super) lines: Vec<RemedyLine>,
    /// Whether there are more paths than commands.
    pub(super) is_cut: bool,
    /// Whether the grant covers more than the examined guests.
    pub(super) is_wide: bool,
}

impl GrantTarget<'_> {
    /// The commands that grant all of these privileges.
    pub(super) fn grant_lines(&self, missing_privileges: &[MissingPrivilege]) -> GrantLines {
        let mut lines = Vec::new();
        let mut all = 0;
        if self.separated != Some(false) {
            let token = format!("--tokens {}", quote(self.token.as_str()));
            let entries = acl_lines(&self.held, &token, missing_privileges);
            all = all.max(entries.len());
            lines.extend(entries.into_iter().take(PATHS_MAX));
        }
        let of_user = self.missing_for_user(missing_privileges);
        if !of_user.is_empty() {
            let user = format!("--users {}", quote(self.token.user()));
            let entries = acl_lines(self.owner.as_ref().unwrap_or(&self.held), &user, &of_user);
            all = all.max(entries.len());
            lines.extend(entries.into_iter().take(PATHS_MAX));
        }
        // Read access is for the whole cluster, and a privilege on `/` cannot be limited to a pool.
        let is_of_guests =
            missing_privileges.iter().any(|missing| missing.need.on == PrivilegePath::Guest && missing.need.verb != PrivilegedVerb::Read);
        let is_wide = is_of_guests && lines.iter().any(|line| !line.contains(" /vms/"));
        let needed: BTreeSet<&str> = missing_privileges.iter().map(|missing| missing.need.role).collect();
        let roles = needed.into_iter().filter_map(|role| self.role_line(role));
        let lines = roles.chain(lines).map(|text| RemedyLine { text, r#where: RemedyTarget::Node }).collect();
        GrantLines { lines, is_cut: all > PATHS_MAX, is_wide }
    }

    /// The privileges that the user lacks as well; all of them if that is unknown.
    fn missing_for_user(&self, missing_privileges: &[MissingPrivilege]) -> Vec<MissingPrivilege> {
        if self.token.user() == ROOT {
            return Vec::new();
        }
        match (&self.owner, self.separated) {
            (_, Some(false)) | (None, _) => missing_privileges.to_vec(),
            (Some(owner), _) => missing_privileges.iter().filter_map(|missing| missing_for_owner(owner, missing)).collect(),
        }
    }

    /// The command that creates or completes a role; `None` if the role is complete.
    fn role_line(&self, role: &str) -> Option<String> {
        let privileges = role_privileges(role, self.major);
        let privilege_list = privileges.join(" ");
        match self.roles.and_then(|roles| roles.get(role)) {
            Some(own) if privileges.iter().all(|privilege| own.contains(*privilege)) => None,
            Some(_) => Some(format!("pveum role modify {role} --append 1 --privs \"{privilege_list}\"")),
            None => Some(format!("pveum role add {role} --privs \"{privilege_list}\"")),
        }
    }
}

/// The part of a missing privilege that the user lacks too.
fn missing_for_owner(owner: &HeldPrivileges<'_>, missing: &MissingPrivilege) -> Option<MissingPrivilege> {
    let need: &PrivilegeNeed = missing.need;
    let has = |own: &super::held_privileges::PrivilegeSet<'_>| need.any_of.iter().any(|privilege| own.contains(privilege));
    if missing.guests.is_empty() {
        let status = super::held_privileges::verb_status(owner, need.verb, u32::MAX, &[]);
        return status.lacks.iter().any(|own| own.need == need).then(|| missing.clone());
    }
    let guests: Vec<_> =
        missing.guests.iter().copied().filter(|vmid| !owner.privileges_on_guest(*vmid).is_some_and(|own| has(&own))).collect();
    (!guests.is_empty()).then_some(MissingPrivilege { need: missing.need, guests })
}

/// The ACL commands for one grantee: roles by path, separated by whether they propagate.
fn acl_lines(held: &HeldPrivileges<'_>, grantee: &str, missing_privileges: &[MissingPrivilege]) -> Vec<String> {
    let mut roles_by_entry: BTreeMap<(String, bool), BTreeSet<&str>> = BTreeMap::new();
    for missing in missing_privileges {
        let guests = missing.guests.iter().copied().map(Some).chain(missing.guests.is_empty().then_some(None));
        for vmid in guests {
            let acl_entry = (held.acl_path(missing.need.on, vmid), missing.need.spreads());
            roles_by_entry.entry(acl_entry).or_default().insert(missing.need.role);
        }
    }
    let line = |((acl_path, spreads), roles): ((String, bool), BTreeSet<&str>)| {
        let roles: Vec<&str> = roles.into_iter().collect();
        let spread = if spreads { "" } else { " --propagate 0" };
        format!("pveum acl modify {acl_path} {grantee} --roles {}{spread}", roles.join(","))
    };
    roles_by_entry.into_iter().map(line).collect()
}
