//! Access control: users, tokens, groups, roles, access control entries, pools, and the resulting
//! privileges.
//!
//! Must not depend on HTTP; the modules in `api` call this one.

mod roles;
mod ticket;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::flavour::Flavour;
use crate::response::ApiError;
pub(crate) use roles::{is_built_in_role, release_has_privilege};
pub(crate) use ticket::TicketSigner;

/// The user with all privileges.
pub(crate) const ROOT: &str = "root@pam";

/// The user or token that makes a call.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ApiCaller {
    pub(crate) user: String,
    pub(crate) token: Option<String>,
}

impl ApiCaller {
    pub(crate) fn for_user(user: &str) -> Self {
        Self { user: user.to_owned(), token: None }
    }

    /// `user@realm` or `user@realm!token`.
    pub(crate) fn id(&self) -> String {
        match &self.token {
            Some(token) => [&self.user, "!", token].concat(),
            None => self.user.clone(),
        }
    }

    /// Whether this is the caller's id, without allocating it.
    pub(crate) fn has_id(&self, id: &str) -> bool {
        let rest = id.strip_prefix(self.user.as_str());
        match &self.token {
            Some(token) => rest.and_then(|rest| rest.strip_prefix('!')) == Some(token),
            None => rest == Some(""),
        }
    }

    /// Whether the caller is root itself; root's tokens are not.
    pub(crate) fn is_root(&self) -> bool {
        self.user == ROOT && self.token.is_none()
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct LabUser {
    pub(crate) enabled: bool,
    pub(crate) expire_s: u64,
    pub(crate) password: Option<String>,
    /// Name, email address and other details of the person.
    pub(crate) details: BTreeMap<String, String>,
}

/// A group of users that share privileges.
#[derive(Clone, Debug, Default)]
pub(crate) struct UserGroup {
    pub(crate) comment: Option<String>,
    pub(crate) members: BTreeSet<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct LabToken {
    pub(crate) secret: String,
    /// The token has only privileges that both it and its owner have.
    pub(crate) privilege_separated: bool,
    pub(crate) expire_s: u64,
    pub(crate) comment: Option<String>,
    /// The caller that uses this token.
    pub(crate) caller: Arc<ApiCaller>,
}

impl LabToken {
    /// The token with this id, `user@realm!name`.
    pub(crate) fn new(id: &str, secret: String, separated: bool, expire_s: u64) -> Self {
        let (user, name) = id.split_once('!').unwrap_or((id, ""));
        let caller = Arc::new(ApiCaller { user: user.to_owned(), token: Some(name.to_owned()) });
        Self { secret, privilege_separated: separated, expire_s, comment: None, caller }
    }
}

/// Whom an access control entry applies to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Grantee {
    User(String),
    Group(String),
    Token(String),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AclEntry {
    pub(crate) path: String,
    pub(crate) grantee: Grantee,
    pub(crate) role: String,
    pub(crate) propagate: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ResourcePool {
    pub(crate) comment: Option<String>,
    pub(crate) guests: BTreeSet<u32>,
    pub(crate) storages: BTreeSet<String>,
}

/// Privileges, each with whether it propagates to paths below.
pub(crate) type PathPrivileges = BTreeMap<String, bool>;

/// Everything that determines permissions.
#[derive(Clone, Debug, Default)]
pub(crate) struct AccessControl {
    pub(crate) users: BTreeMap<String, LabUser>,
    pub(crate) tokens: BTreeMap<String, LabToken>,
    pub(crate) groups: BTreeMap<String, UserGroup>,
    pub(crate) roles: roles::RoleTable,
    pub(crate) grants: BTreeSet<AclEntry>,
    /// Entries that a fault removed; they can be restored.
    revoked: BTreeSet<AclEntry>,
    pub(crate) pools: BTreeMap<String, ResourcePool>,
}

impl AccessControl {
    /// Removes all entries on a path.
    pub(crate) fn revoke_path(&mut self, path: &str) {
        let (revoked, remaining) = std::mem::take(&mut self.grants).into_iter().partition(|grant| grant.path == path);
        self.grants = remaining;
        self.revoked.extend::<BTreeSet<AclEntry>>(revoked);
    }

    /// Restores the entries that were removed from a path.
    pub(crate) fn regrant_path(&mut self, path: &str) {
        let (back, revoked) = std::mem::take(&mut self.revoked).into_iter().partition(|grant| grant.path == path);
        self.revoked = revoked;
        self.grants.extend::<BTreeSet<AclEntry>>(back);
    }

    /// The root user and the built-in roles of a release.
    pub(crate) fn new(flavour: Flavour) -> Self {
        let root = LabUser { enabled: true, ..LabUser::default() };
        Self { users: BTreeMap::from([(ROOT.to_owned(), root)]), roles: roles::built_in_roles(flavour), ..Self::default() }
    }

    /// The caller of a token, if token and user exist, are enabled and have not expired.
    pub(crate) fn find_token_caller(&self, text: &str, now_s: u64) -> Option<Arc<ApiCaller>> {
        let is_of = |id: &str, secret: &str| text.strip_prefix(id).and_then(|rest| rest.strip_prefix('=')) == Some(secret);
        let (_, token) = self.tokens.iter().find(|(id, token)| is_of(id, &token.secret))?;
        (is_unexpired(token.expire_s, now_s) && self.is_user_enabled(&token.caller.user, now_s)).then(|| Arc::clone(&token.caller))
    }

    pub(crate) fn is_user_enabled(&self, user: &str, now_s: u64) -> bool {
        self.users.get(user).is_some_and(|user| user.enabled && is_unexpired(user.expire_s, now_s))
    }

    /// The privileges of `caller` on `path`.
    pub(crate) fn privileges_on(&self, caller: &ApiCaller, path: &str) -> PathPrivileges {
        if self.has_root_privileges(caller) {
            return self.all_privileges();
        }
        let owner =
            || if caller.user == ROOT { self.all_privileges() } else { self.granted_privileges(&Grantee::User(caller.user.clone()), path) };
        let Some(token) = caller.token.as_ref().and_then(|_| self.tokens.get(&caller.id())) else { return owner() };
        if !token.privilege_separated {
            return owner();
        }
        let owner = owner();
        let own = self.granted_privileges(&Grantee::Token(caller.id()), path);
        own.into_iter().filter(|(privilege, _)| owner.contains_key(privilege)).collect()
    }

    fn all_privileges(&self) -> PathPrivileges {
        let administrator = self.roles.get("Administrator").into_iter().flat_map(|held| held.iter());
        administrator.map(|privilege| (privilege.clone(), true)).collect()
    }

    /// The privileges from entries on the path and, for a member of a pool, from entries on the pool.
    fn granted_privileges(&self, grantee: &Grantee, path: &str) -> PathPrivileges {
        let mut privileges = self.privileges_from_entries(grantee, path);
        for pool in self.pools_of(path) {
            for (privilege, propagate) in self.privileges_from_entries(grantee, &format!("/pool/{pool}")) {
                privileges.entry(privilege).or_insert(propagate);
            }
        }
        privileges
    }

    fn pools_of(&self, path: &str) -> Vec<&String> {
        let guest = path.strip_prefix("/vms/").and_then(|id| id.parse::<u32>().ok());
        let storage = path.strip_prefix("/storage/");
        let holds =
            |pool: &ResourcePool| guest.is_some_and(|id| pool.guests.contains(&id)) || storage.is_some_and(|id| pool.storages.contains(id));
        self.pools.iter().filter(|(_, pool)| holds(pool)).map(|(name, _)| name).collect()
    }

    fn privileges_from_entries(&self, grantee: &Grantee, path: &str) -> PathPrivileges {
        let roles = self.roles_on(grantee, path);
        if roles.contains_key("NoAccess") {
            return PathPrivileges::new();
        }
        let mut privileges = PathPrivileges::new();
        for (role, propagate) in &roles {
            for privilege in self.roles.get(*role).into_iter().flat_map(|held| held.iter()) {
                *privileges.entry(privilege.clone()).or_insert(false) |= propagate;
            }
        }
        privileges
    }

    /// Goes from the root down: an entry on a longer path replaces those above it.
    fn roles_on(&self, grantee: &Grantee, path: &str) -> BTreeMap<&str, bool> {
        let mut roles = BTreeMap::new();
        for step in path_prefixes(path) {
            let roles_here = |grantee: &Grantee| self.roles_at(grantee, step, step == path);
            let own = roles_here(grantee);
            let found = if own.is_empty() { self.groups_of(grantee).flat_map(|group| roles_here(&group)).collect() } else { own };
            if !found.is_empty() {
                roles = found;
            }
        }
        roles
    }

    fn roles_at(&self, grantee: &Grantee, path: &str, last: bool) -> BTreeMap<&str, bool> {
        let applies = |grant: &&AclEntry| grant.path == path && grant.grantee == *grantee && (last || grant.propagate);
        self.grants.iter().filter(applies).map(|grant| (grant.role.as_str(), grant.propagate)).collect()
    }

    fn groups_of<'a>(&'a self, grantee: &'a Grantee) -> impl Iterator<Item = Grantee> + 'a {
        let member = move |group: &UserGroup| matches!(grantee, Grantee::User(user) if group.members.contains(user));
        self.groups.iter().filter(move |(_, group)| member(group)).map(|(group, _)| Grantee::Group(group.clone()))
    }

    /// Returns a check of a privilege on guests, for long lists. Only guests with entries of their own are checked one by one; all others
    /// share one result.
    pub(crate) fn guest_privilege_check<'a>(&'a self, caller: &'a ApiCaller, privilege: &'a str) -> impl Fn(u32) -> bool + 'a {
        let special = if self.has_root_privileges(caller) { BTreeSet::new() } else { self.guests_with_own_entries() };
        let usual = self.has_privilege(caller, "/vms/0", privilege);
        move |vmid| if special.contains(&vmid) { self.has_privilege(caller, &format!("/vms/{vmid}"), privilege) } else { usual }
    }

    /// Guests whose privileges can differ from those of all others.
    fn guests_with_own_entries(&self) -> BTreeSet<u32> {
        let by_entry = self.grants.iter().filter_map(|grant| grant.path.strip_prefix("/vms/")?.parse().ok());
        let has_pools = self.grants.iter().any(|grant| grant.path.starts_with("/pool"));
        let by_pool = self.pools.values().filter(|_| has_pools).flat_map(|pool| pool.guests.iter().copied());
        by_entry.chain(by_pool).collect()
    }

    /// Root, and tokens that have all of root's privileges. Checked first, because most callers in a lab are one of these.
    pub(crate) fn has_root_privileges(&self, caller: &ApiCaller) -> bool {
        caller.user == ROOT && caller.token.as_ref().is_none_or(|name| !self.is_privilege_separated(&caller.user, name))
    }

    /// Called many times per request, so it does not allocate the id.
    fn is_privilege_separated(&self, user: &str, name: &str) -> bool {
        let named = |id: &str| id.strip_prefix(user).and_then(|rest| rest.strip_prefix('!')) == Some(name);
        self.tokens.iter().any(|(id, token)| token.privilege_separated && named(id))
    }

    /// Whether no role was added or changed.
    pub(crate) fn has_built_in_roles(&self, flavour: Flavour) -> bool {
        roles::are_built_in(&self.roles, flavour)
    }

    /// Whether the release has this privilege.
    pub(crate) fn knows_privilege(&self, privilege: &str) -> bool {
        self.roles.get("Administrator").is_some_and(|all| all.contains(privilege))
    }

    /// Like [`Self::privileges_on`] for a single privilege, which is all that most calls need.
    pub(crate) fn has_privilege(&self, caller: &ApiCaller, path: &str, privilege: &str) -> bool {
        if self.has_root_privileges(caller) {
            return self.knows_privilege(privilege);
        }
        let owner = || {
            if caller.user == ROOT {
                self.knows_privilege(privilege)
            } else {
                self.has_granted_privilege(&Grantee::User(caller.user.clone()), path, privilege)
            }
        };
        let id = caller.id();
        match caller.token.as_ref().and_then(|_| self.tokens.get(&id)) {
            Some(token) if token.privilege_separated => self.has_granted_privilege(&Grantee::Token(id), path, privilege) && owner(),
            _ => owner(),
        }
    }

    /// Like [`Self::granted_privileges`] for a single privilege.
    fn has_granted_privilege(&self, grantee: &Grantee, path: &str, privilege: &str) -> bool {
        let on_path = |path: &str| {
            let roles = self.roles_on(grantee, path);
            let holds = |role: &&str| self.roles.get(*role).is_some_and(|held| held.contains(privilege));
            !roles.contains_key("NoAccess") && roles.keys().any(holds)
        };
        on_path(path) || self.pools_of(path).into_iter().any(|pool| on_path(&format!("/pool/{pool}")))
    }

    /// Fails unless `caller` has the privilege on the path.
    pub(crate) fn require_privilege(&self, caller: &ApiCaller, path: &str, privilege: &str) -> Result<(), ApiError> {
        if self.has_privilege(caller, path, privilege) { Ok(()) } else { Err(ApiError::denied_error(path, privilege)) }
    }

    /// Fails unless `caller` has one of the privileges on the path.
    pub(crate) fn require_any_privilege(&self, caller: &ApiCaller, path: &str, privileges: &[&str]) -> Result<(), ApiError> {
        let any = if self.has_root_privileges(caller) {
            privileges.iter().any(|privilege| self.knows_privilege(privilege))
        } else {
            privileges.iter().any(|privilege| self.has_privilege(caller, path, privilege))
        };
        if any { Ok(()) } else { Err(ApiError::denied_error(path, &privileges.join("|"))) }
    }
}

/// Zero means that it never expires.
fn is_unexpired(expire_s: u64, now_s: u64) -> bool {
    expire_s == 0 || expire_s > now_s
}

/// `/`, `/vms`, `/vms/100`.
fn path_prefixes(path: &str) -> impl Iterator<Item = &str> {
    let ends = path.match_indices('/').skip(1).map(|(offset, _)| &path[..offset]);
    let whole = (path != "/").then_some(path);
    std::iter::once("/").chain(ends).chain(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl_entry(path: &str, grantee: Grantee, role: &str) -> AclEntry {
        AclEntry { path: path.to_owned(), grantee, role: role.to_owned(), propagate: true }
    }

    fn access_with_ops_user() -> AccessControl {
        let mut access = AccessControl::new(Flavour::V9);
        access.users.insert("ops@pve".to_owned(), LabUser { enabled: true, ..LabUser::default() });
        let team = UserGroup { members: BTreeSet::from(["ops@pve".to_owned()]), ..UserGroup::default() };
        access.groups.insert("team".to_owned(), team);
        let token = |separated| LabToken::new("root@pam!any", "s".to_owned(), separated, 0);
        access.tokens.insert("ops@pve!own".to_owned(), token(true));
        access.tokens.insert("ops@pve!full".to_owned(), token(false));
        access
    }

    fn ops_caller(token: Option<&str>) -> ApiCaller {
        ApiCaller { user: "ops@pve".to_owned(), token: token.map(str::to_owned) }
    }

    #[test]
    fn revoked_entries_can_be_regranted() {
        let mut access = AccessControl::new(Flavour::V9);
        access.grants.insert(acl_entry("/vms/100", Grantee::User("ops@pve".to_owned()), "PVEVMUser"));
        let before = access.grants.clone();
        access.revoke_path("/vms/101");
        assert_eq!(access.grants, before, "another path");
        access.revoke_path("/vms/100");
        assert!(access.grants.is_empty());
        access.regrant_path("/vms/100");
        assert_eq!(access.grants, before);
    }

    #[test]
    fn privilege_separated_token_without_entries_has_no_privileges() {
        let mut access = access_with_ops_user();
        access.grants.insert(acl_entry("/vms/100", Grantee::User("ops@pve".to_owned()), "PVEVMUser"));
        assert!(access.has_privilege(&ops_caller(None), "/vms/100", "VM.Audit"));
        assert!(access.has_privilege(&ops_caller(Some("full")), "/vms/100", "VM.Audit"));
        assert!(!access.has_privilege(&ops_caller(Some("own")), "/vms/100", "VM.Audit"));
        access.grants.insert(acl_entry("/", Grantee::Token("ops@pve!own".to_owned()), "Administrator"));
        assert!(access.has_privilege(&ops_caller(Some("own")), "/vms/100", "VM.Audit"));
        assert!(!access.has_privilege(&ops_caller(Some("own")), "/vms/101", "VM.Audit"), "the owner has no privileges there");
    }

    #[test]
    fn deeper_entries_win_and_user_entries_win_over_group_entries() {
        let mut access = access_with_ops_user();
        access.grants.insert(acl_entry("/vms", Grantee::Group("team".to_owned()), "PVEVMAdmin"));
        assert!(access.has_privilege(&ops_caller(None), "/vms/100", "VM.Allocate"));
        access.grants.insert(acl_entry("/vms/100", Grantee::User("ops@pve".to_owned()), "NoAccess"));
        assert!(access.privileges_on(&ops_caller(None), "/vms/100").is_empty());
        assert!(access.has_privilege(&ops_caller(None), "/vms/101", "VM.Allocate"));
    }

    #[test]
    fn a_role_on_a_pool_counts_for_its_members() {
        let mut access = access_with_ops_user();
        access.grants.insert(acl_entry("/pool/p1", Grantee::User("ops@pve".to_owned()), "PVEVMUser"));
        assert!(!access.has_privilege(&ops_caller(None), "/vms/100", "VM.Audit"));
        access.pools.insert("p1".to_owned(), ResourcePool { guests: BTreeSet::from([100]), ..ResourcePool::default() });
        assert!(access.has_privilege(&ops_caller(None), "/vms/100", "VM.Audit"));
    }

    #[test]
    fn entries_without_propagation_apply_to_their_own_path_only() {
        let mut access = access_with_ops_user();
        let entry = AclEntry { propagate: false, ..acl_entry("/vms", Grantee::User("ops@pve".to_owned()), "PVEVMUser") };
        access.grants.insert(entry);
        assert!(access.has_privilege(&ops_caller(None), "/vms", "VM.Audit"));
        assert!(!access.has_privilege(&ops_caller(None), "/vms/100", "VM.Audit"));
    }

    #[test]
    fn list_privileges_match_the_privileges_on_each_guest() {
        let mut access = access_with_ops_user();
        access.grants.insert(acl_entry("/vms", Grantee::Group("team".to_owned()), "PVEVMUser"));
        access.grants.insert(acl_entry("/vms/101", Grantee::User("ops@pve".to_owned()), "NoAccess"));
        access.grants.insert(acl_entry("/vms/102", Grantee::Token("ops@pve!own".to_owned()), "PVEVMUser"));
        access.grants.insert(acl_entry("/pool/p1", Grantee::Token("ops@pve!own".to_owned()), "PVEVMUser"));
        access.pools.insert("p1".to_owned(), ResourcePool { guests: BTreeSet::from([101, 103]), ..ResourcePool::default() });
        let everybody = [
            ops_caller(None),
            ops_caller(Some("own")),
            ops_caller(Some("full")),
            ApiCaller::for_user(ROOT),
            ApiCaller::for_user("nobody@pve"),
        ];
        let mut seen = Vec::new();
        for caller in &everybody {
            let on_guests = access.guest_privilege_check(caller, "VM.Audit");
            for vmid in 100..105 {
                let path = format!("/vms/{vmid}");
                assert_eq!(on_guests(vmid), access.has_privilege(caller, &path, "VM.Audit"), "{caller:?} {vmid}");
                assert_eq!(on_guests(vmid), access.privileges_on(caller, &path).contains_key("VM.Audit"), "{caller:?} {vmid}");
                seen.push(on_guests(vmid));
            }
        }
        assert!(seen.contains(&true) && seen.contains(&false));
    }

    #[test]
    fn an_expired_token_is_unknown() {
        let mut access = access_with_ops_user();
        access.tokens.get_mut("ops@pve!full").unwrap().expire_s = 100;
        assert!(access.find_token_caller("ops@pve!full=s", 99).is_some());
        assert!(access.find_token_caller("ops@pve!full=s", 100).is_none());
        assert!(access.find_token_caller("ops@pve!full=t", 99).is_none());
    }
}
