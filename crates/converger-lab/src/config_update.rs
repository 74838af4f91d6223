//! Changes a guest's configuration: parses the request, checks it and writes it.
//!
//! Virtual machines write key by key into the pending section and apply what they can; containers
//! check all keys first. Must not depend on tasks or response encoding.

mod hotplug;
mod lxc;
mod normalize;
mod privileges;
mod qemu;

use crate::api::ApiCall;
use crate::guest::LabGuestKind;
use crate::response::ApiError;
use crate::schema::split_list;
use crate::world::World;

pub(crate) use hotplug::apply_pending;
pub(crate) use normalize::{normalize_card, normalize_container_card, normalize_tags};
pub(crate) use privileges::check_resource_privileges;
pub(crate) use qemu::{hash_password, make_disk};

/// A requested config change, checked as far as the request alone allows.
#[derive(Clone, Debug)]
pub(crate) struct ConfigUpdate {
    pub(crate) vmid: u32,
    pub(crate) kind: LabGuestKind,
    pub(crate) sets: Vec<(String, String)>,
    pub(crate) deletes: Vec<String>,
    pub(crate) reverts: Vec<String>,
    /// Destroy deleted disks instead of keeping them as unused.
    pub(crate) force: bool,
    pub(crate) digest: Option<String>,
    /// The request as the task log repeats it.
    pub(crate) log_text: String,
}

/// Parameters of the request that are not config keys.
const NON_CONFIG_PARAMS: &[&str] =
    &["node", "vmid", "digest", "delete", "revert", "force", "skiplock", "background_delay", "import-working-storage"];

/// Parses the request.
pub(crate) fn prepare_update(world: &mut World, call: &ApiCall) -> Result<ConfigUpdate, ApiError> {
    call.check_root_only(&["skiplock"])?;
    let list = |name: &str| call.param(name).map_or_else(Vec::new, |text| split_list(text).map(resolve_alias).collect::<Vec<String>>());
    let config_values = call.values.iter().filter(|(key, _)| !NON_CONFIG_PARAMS.contains(&key.as_str()));
    let update = ConfigUpdate {
        vmid: call.vmid(),
        kind: call.kind,
        sets: config_values.map(|(key, value)| (resolve_alias(key), value.clone())).collect(),
        deletes: list("delete"),
        reverts: list("revert"),
        force: call.is_set("force"),
        digest: call.param("digest").map(str::to_owned),
        log_text: request_log_text(call),
    };
    match call.kind {
        LabGuestKind::Qemu => qemu::prepare_qemu_update(world, call, update),
        LabGuestKind::Lxc => lxc::prepare_container_update(world, call, update),
    }
}

/// `cdrom` is an alias of `ide2`.
fn resolve_alias(key: &str) -> String {
    if key == "cdrom" { "ide2".to_owned() } else { key.to_owned() }
}

fn request_log_text(call: &ApiCall) -> String {
    let skipped = ["node", "vmid", "digest", "background_delay"];
    let mut pairs: Vec<&(String, String)> = call.values.iter().filter(|(key, _)| !skipped.contains(&key.as_str())).collect();
    pairs.sort();
    let visible_value = |key: &str, value: &str| if key == "cipassword" { "<hidden>".to_owned() } else { value.to_owned() };
    pairs.iter().map(|(key, value)| format!("-{key} {}", visible_value(key, value))).collect::<Vec<_>>().join(" ")
}

/// The error of containers if the digest does not match.
pub(crate) const LXC_MODIFIED_TEXT: &str = "detected modified configuration - file changed by other user? Try again.";

/// Checks that the guest exists, has the expected digest and is not locked.
pub(crate) fn check_guest_free(world: &World, node: &str, update: &ConfigUpdate) -> Result<(), ApiError> {
    let missing = || ApiError::internal_error(update.kind.missing_config_text(node, update.vmid));
    let guest = world.guest_on(node, update.kind, update.vmid).ok_or_else(missing)?;
    let changed = guest.differs_from_digest(update.digest.as_deref());
    match (update.kind, guest.lock_error(), changed) {
        (LabGuestKind::Qemu, _, true) => Err(ApiError::internal_error(world.flavour.checksum_mismatch_text())),
        (_, Some(locked), _) => Err(ApiError::internal_error(locked)),
        (LabGuestKind::Lxc, None, true) => Err(ApiError::internal_error(LXC_MODIFIED_TEXT)),
        _ => Ok(()),
    }
}

/// Writes the update. The caller holds the guest's lock.
pub(crate) fn write_update(world: &mut World, node: &str, update: &ConfigUpdate) -> Result<u64, ApiError> {
    check_guest_free(world, node, update)?;
    if !world.is_quorate(node) {
        return Err(ApiError::internal_error(read_only_text(world, node, update.kind, update.vmid, None)));
    }
    match update.kind {
        LabGuestKind::Qemu => qemu::write_qemu_update(world, node, update),
        LabGuestKind::Lxc => lxc::write_container_update(world, node, update).map(|()| 0),
    }
}

/// The error of a write without quorum: the cluster file system is read-only.
pub(crate) fn read_only_text(world: &World, node: &str, kind: LabGuestKind, vmid: u32, pid: Option<u32>) -> String {
    let pid = pid.or_else(|| world.nodes.get(node).map(crate::node::LabNode::daemon_process_id)).unwrap_or(1);
    format!("unable to open file '/etc/pve/nodes/{node}/{}/{vmid}.conf.tmp.{pid}' - Permission denied", kind.folder())
}
