//! Maps each request to its command. A request that cannot be encoded is answered here, and nothing is sent.

use converger_core::action::{Change, DiskGrowth, FieldChange, NewSnapshot, Provisioning};
use converger_core::apply::{ConfigRevision, EnvFault, EnvFaultKind, EnvRequest, EnvResponse, GuestAddress, SendResult, TaskId};
use converger_core::guest::GuestKind;

use super::revision;
use crate::proxmox::codec::{
    ConfigSet, EscapedText, GuestPath, ProvisionWrite, ProxmoxCommand, ProxmoxRead, ProxmoxWrite, UnwritableChange, Upid,
};

/// The command for a request.
///
/// # Errors
/// The response to a request that cannot be encoded. Nothing is sent then.
pub fn command_for(request: &EnvRequest) -> Result<ProxmoxCommand, Box<EnvResponse>> {
    match request {
        EnvRequest::Cluster => Ok(ProxmoxCommand::Read(ProxmoxRead::ClusterStatus)),
        EnvRequest::Status(address) => Ok(ProxmoxCommand::Read(ProxmoxRead::GuestStatus(guest_path(address)))),
        // `/pending` and not `/config`: it returns the values in effect and the pending ones, as of one moment.
        EnvRequest::Config(address) => Ok(ProxmoxCommand::Read(ProxmoxRead::GuestPending(guest_path(address)))),
        EnvRequest::Snapshots(address) => Ok(ProxmoxCommand::Read(ProxmoxRead::Snapshots(guest_path(address)))),
        EnvRequest::IdState(vmid) => Ok(ProxmoxCommand::Read(ProxmoxRead::NextId(*vmid))),
        EnvRequest::Locate(_) => Ok(ProxmoxCommand::Read(ProxmoxRead::Resources)),
        EnvRequest::Send { address, change, revision } => write_command(address, change, revision.as_ref()).map(ProxmoxCommand::Write),
        EnvRequest::Task(task) => task_status_read(task).map(ProxmoxCommand::Read),
        // Without a time filter: running tasks lead the list, whatever the node's clock was when they started.
        EnvRequest::Tasks { address, .. } => {
            let (node, vmid) = (address.node.clone(), address.vmid);
            Ok(ProxmoxCommand::Read(ProxmoxRead::Tasks { node, vmid }))
        }
    }
}

fn guest_path(address: &GuestAddress) -> GuestPath {
    GuestPath { node: address.node.clone(), kind: address.kind, vmid: address.vmid }
}

fn task_status_read(task: &TaskId) -> Result<ProxmoxRead, Box<EnvResponse>> {
    let unknown = || {
        Box::new(EnvResponse::Unreadable(EnvFault::new(
            EnvFaultKind::Unsupported,
            "not-a-task",
            "this text is not the id of a Proxmox task",
        )))
    };
    Upid::new(task.as_str()).map(ProxmoxRead::TaskStatus).ok_or_else(unknown)
}

fn write_command(address: &GuestAddress, change: &Change, revision: Option<&ConfigRevision>) -> Result<ProxmoxWrite, Box<EnvResponse>> {
    let guest = guest_path(address);
    match change {
        Change::Start => Ok(ProxmoxWrite::Start(guest)),
        Change::Shutdown { timeout_secs } => Ok(ProxmoxWrite::Shutdown { guest, timeout_secs: *timeout_secs }),
        Change::Stop => Ok(ProxmoxWrite::Stop(guest)),
        Change::Reboot { timeout_secs } if guest.kind == GuestKind::Qemu => {
            Ok(ProxmoxWrite::RebootQemu { node: guest.node, vmid: guest.vmid, timeout_secs: *timeout_secs })
        }
        Change::Reboot { .. } => {
            Err(unsupported_response("reboot-kills", "rebooting a container through Proxmox ends it by force after the timeout"))
        }
        Change::ConfigSet(fields) => config_set_command(guest, fields, revision).map(ProxmoxWrite::ConfigSet),
        Change::SnapshotCreate(snapshot) => Ok(ProxmoxWrite::SnapshotCreate { guest, snapshot: NewSnapshot::clone(snapshot) }),
        Change::SnapshotDelete(snapshot) => Ok(ProxmoxWrite::SnapshotDelete { guest, name: snapshot.name.clone() }),
        Change::SnapshotRollback(rollback) => Ok(ProxmoxWrite::SnapshotRollback { guest, name: rollback.snapshot.name.clone() }),
        Change::DiskGrow(growth) => grow_command(guest, growth, revision),
        Change::Migrate(migration) => Ok(ProxmoxWrite::Migrate { guest, migration: migration.clone() }),
        Change::Clone(clone) => Ok(ProxmoxWrite::Clone { guest, clone: clone.clone() }),
        Change::Provision(provisioning) => provision_command(guest, provisioning, revision),
    }
}

/// The growth is bound to the config that was checked, so that a disk that was swapped meanwhile is not grown (S7).
fn grow_command(guest: GuestPath, growth: &DiskGrowth, revision: Option<&ConfigRevision>) -> Result<ProxmoxWrite, Box<EnvResponse>> {
    let Some(basis) = revision.and_then(revision::parse_basis) else {
        return Err(unsupported_response("no-digest", "there is no digest to bind the change to"));
    };
    Ok(ProxmoxWrite::Grow { guest, disk: growth.disk.clone(), size: growth.after, digest: basis.digest().clone() })
}

fn provision_command(
    guest: GuestPath,
    provisioning: &Provisioning,
    revision: Option<&ConfigRevision>,
) -> Result<ProxmoxWrite, Box<EnvResponse>> {
    let Some(basis) = revision.and_then(revision::parse_basis) else {
        return Err(unsupported_response("no-digest", "there is no digest to bind the write to"));
    };
    let write = ProvisionWrite::new(guest, provisioning, &basis).map_err(|unwritable| unwritable_response(&unwritable))?;
    Ok(ProxmoxWrite::Provision(Box::new(write)))
}

fn config_set_command(guest: GuestPath, fields: &[FieldChange], revision: Option<&ConfigRevision>) -> Result<ConfigSet, Box<EnvResponse>> {
    let Some(basis) = revision.and_then(revision::parse_basis) else {
        return Err(unsupported_response("no-digest", "there is no digest to bind the write to"));
    };
    ConfigSet::new(guest, fields, &basis).map_err(|unwritable| unwritable_response(&unwritable))
}

fn unwritable_response(unwritable: &UnwritableChange) -> Box<EnvResponse> {
    let fault_kind = match unwritable {
        UnwritableChange::ForeignPending(_) | UnwritableChange::ReachesHost(_) | UnwritableChange::PendingDiffers(_) => {
            EnvFaultKind::ConfigChanged
        }
        _ => EnvFaultKind::Unsupported,
    };
    Box::new(EnvResponse::Sent(SendResult::Rejected(EnvFault::new(fault_kind, "unwritable", &describe_unwritable(unwritable)))))
}

/// The response to a change that this program does not support. Nothing was sent.
fn unsupported_response(code: &str, text: &str) -> Box<EnvResponse> {
    Box::new(EnvResponse::Sent(SendResult::Rejected(EnvFault::new(EnvFaultKind::Unsupported, code, text))))
}

fn describe_unwritable(unwritable: &UnwritableChange) -> String {
    match unwritable {
        UnwritableChange::NotManaged(field) => format!("`{}` is not managed for this kind of guest", field.word()),
        UnwritableChange::NotAValue(field) => format!("the value of `{}` cannot be written", field.word()),
        UnwritableChange::NotRemovable(field) => format!("`{}` cannot be removed", field.word()),
        UnwritableChange::Nothing => "there is nothing to write".to_owned(),
        UnwritableChange::ForeignPending(key) => {
            format!("`{}` is pending, and any write to this config would try to apply it", EscapedText(key))
        }
        UnwritableChange::ReachesHost(key) => {
            format!("`{}` is pending and reaches the host; a write would try to apply it", EscapedText(key))
        }
        UnwritableChange::NoNetworkDevice => "the guest has no network device `net0`, and no bridge is given for a new one".to_owned(),
        UnwritableChange::PendingDiffers(field) => format!("the pending value of `{}` is not the planned one", field.word()),
    }
}
