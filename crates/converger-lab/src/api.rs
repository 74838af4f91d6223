//! The API methods, in modules that follow the URL.
//!
//! Must not contain routing, the permission checks that the API schema states, or response
//! encoding.

mod access;
mod backup;
mod cluster;
mod firewall;
mod guests;
mod nodes;
mod pools;
mod replication;
mod storage;
mod tasks;

pub(crate) use cluster::CachedClusterStatus;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};

use crate::access::ApiCaller;
use crate::guest::{LabGuest, LabGuestKind};
use crate::response::{ApiData, ApiError};
use crate::schema::{self, ApiMethod};
use crate::world::World;

/// A call that passed all checks that the API schema states.
pub(crate) struct ApiCall {
    pub(crate) method: &'static ApiMethod,
    /// Checked parameters: first those of the path, then the others in the order of the request.
    pub(crate) values: Rc<Vec<(String, String)>>,
    pub(crate) caller: Arc<ApiCaller>,
    /// The node that received the request.
    pub(crate) entry: String,
    /// The node that executes it.
    pub(crate) node: String,
    pub(crate) kind: LabGuestKind,
}

impl ApiCall {
    pub(crate) fn param(&self, name: &str) -> Option<&str> {
        self.values.iter().find(|(known, _)| known == name).map(|(_, text)| text.as_str())
    }

    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.param(name) == Some("1")
    }

    pub(crate) fn number_param(&self, name: &str) -> Option<u64> {
        self.param(name)?.parse().ok()
    }

    /// The guest that the path names.
    pub(crate) fn vmid(&self) -> u32 {
        self.param("vmid").and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// The guest that the path names, on the node that the path names.
    pub(crate) fn find_guest<'a>(&self, world: &'a World) -> Result<&'a LabGuest, ApiError> {
        let missing = || ApiError::internal_error(self.kind.missing_config_text(&self.node, self.vmid()));
        world.guest_on(&self.node, self.kind, self.vmid()).ok_or_else(missing)
    }

    /// Rejects options that only root may use; a token of root is not enough.
    pub(crate) fn check_root_only(&self, names: &[&str]) -> Result<(), ApiError> {
        let used = names.iter().find(|name| self.param(name).is_some_and(|text| text != "0"));
        match used {
            Some(name) if !self.caller.is_root() => Err(ApiError::parameter_error(name, "Only root may use this option.")),
            _ => Ok(()),
        }
    }
}

/// The function that executes a method.
pub(crate) type ApiHandler = fn(&mut World, &ApiCall) -> Result<ApiData, ApiError>;

/// Verb, path template as in the API schema, and handler.
type ApiRoute = (&'static str, &'static str, ApiHandler);

static HANDLERS: LazyLock<BTreeMap<(&'static str, &'static str), ApiHandler>> = LazyLock::new(|| {
    let routes: [&[ApiRoute]; 10] = [
        access::ROUTES,
        backup::ROUTES,
        cluster::ROUTES,
        firewall::ROUTES,
        guests::ROUTES,
        nodes::ROUTES,
        pools::ROUTES,
        replication::ROUTES,
        storage::ROUTES,
        tasks::ROUTES,
    ];
    routes.into_iter().flatten().map(|(verb, template, handler)| ((*verb, *template), *handler)).collect()
});

/// The handler of a method; `None` if the lab does not implement the method.
pub(crate) fn find_handler(method: &ApiMethod) -> Option<ApiHandler> {
    HANDLERS_BY_NUMBER.get(method.number).copied().flatten()
}

/// The handlers by method number: every request needs one, and an index is cheaper than a map lookup.
static HANDLERS_BY_NUMBER: LazyLock<Vec<Option<ApiHandler>>> = LazyLock::new(|| schema::methods().map(resolve_handler).collect());

fn resolve_handler(method: &ApiMethod) -> Option<ApiHandler> {
    let find = |template: &str| HANDLERS.get(&(method.verb.as_str(), template)).copied();
    // Both guest kinds share handlers, whose path templates contain `{kind}`.
    let shared = || method.template.replacen("/qemu", "/{kind}", 1).replacen("/lxc", "/{kind}", 1);
    find(&method.template).or_else(|| find(&shared()))
}

/// Fails without quorum. Every call that writes to the cluster file system needs it.
pub(crate) fn require_quorum(world: &World, node: &str) -> Result<(), ApiError> {
    if world.is_quorate(node) { Ok(()) } else { Err(ApiError::internal_error("cluster not ready - no quorum?")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_handler_has_a_method_in_the_table() {
        let known: Vec<(&str, String)> = schema::methods().map(|method| (method.verb.as_str(), method.template.clone())).collect();
        for (verb, template) in HANDLERS.keys() {
            let qemu = (*verb, template.replace("{kind}", "qemu"));
            let lxc = (*verb, template.replace("{kind}", "lxc"));
            assert!(known.contains(&qemu) || known.contains(&lxc), "{verb} {template}");
        }
    }
}
