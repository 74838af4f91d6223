//! Changing a guest's configuration: what is asked, whether it may be, and how it is written.
//!
//! QEMU writes key by key into the pending section and applies what it can; containers check every
//! key first. What never enters here: tasks, and how an answer looks.

mod hotplug;
mod lxc;
mod normal;
mod qemu;
mod rights;

use crate::api::Call;
use crate::guest::Kind;
use crate::respond::Fail;
use crate::schema::split_list;
use crate::world::World;

pub(crate) use hotplug::apply_pending;
pub(crate) use normal::{card, container_card, tags};
pub(crate) use qemu::make_disk;
pub(crate) use rights::resources;

/// What a caller wants of a guest's configuration, checked as far as the request alone allows.
#[derive(Clone, Debug)]
pub(crate) struct Update {
    pub(crate) vmid: u32,
    pub(crate) kind: Kind,
    pub(crate) sets: Vec<(String, String)>,
    pub(crate) deletes: Vec<String>,
    pub(crate) reverts: Vec<String>,
    /// Destroy disks that are deleted, instead of setting them aside.
    pub(crate) force: bool,
    pub(crate) digest: Option<String>,
    /// The request in words, as the task log repeats it.
    pub(crate) words: String,
}

/// Parameters of the request that are not config keys.
const NOT_KEYS: &[&str] =
    &["node", "vmid", "digest", "delete", "revert", "force", "skiplock", "background_delay", "import-working-storage"];

/// Read the request.
pub(crate) fn prepare(world: &mut World, call: &Call) -> Result<Update, Fail> {
    call.root_only(&["skiplock"])?;
    let list = |name: &str| call.text(name).map_or_else(Vec::new, |text| split_list(text).map(alias).collect::<Vec<String>>());
    let given = call.values.iter().filter(|(key, _)| !NOT_KEYS.contains(&key.as_str()));
    let update = Update {
        vmid: call.vmid(),
        kind: call.kind,
        sets: given.map(|(key, value)| (alias(key), value.clone())).collect(),
        deletes: list("delete"),
        reverts: list("revert"),
        force: call.flag("force"),
        digest: call.text("digest").map(str::to_owned),
        words: words(call),
    };
    match call.kind {
        Kind::Qemu => qemu::prepare(world, call, update),
        Kind::Lxc => lxc::prepare(world, call, update),
    }
}

/// `cdrom` is another name of `ide2`.
fn alias(key: &str) -> String {
    if key == "cdrom" { "ide2".to_owned() } else { key.to_owned() }
}

fn words(call: &Call) -> String {
    let skipped = ["node", "vmid", "digest", "background_delay"];
    let mut pairs: Vec<&(String, String)> = call.values.iter().filter(|(key, _)| !skipped.contains(&key.as_str())).collect();
    pairs.sort();
    let shown = |key: &str, value: &str| if key == "cipassword" { "<hidden>".to_owned() } else { value.to_owned() };
    pairs.iter().map(|(key, value)| format!("-{key} {}", shown(key, value))).collect::<Vec<_>>().join(" ")
}

/// What containers say where QEMU says that the checksum is another.
pub(crate) const MODIFIED: &str = "detected modified configuration - file changed by other user? Try again.";

/// Whether the guest is there, is what the caller believes it to be, and is free.
pub(crate) fn guard(world: &World, node: &str, update: &Update) -> Result<(), Fail> {
    let missing = || Fail::died(update.kind.missing(node, update.vmid));
    let guest = world.guest_on(node, update.kind, update.vmid).ok_or_else(missing)?;
    let changed = guest.is_other(update.digest.as_deref());
    match (update.kind, guest.locked(), changed) {
        (Kind::Qemu, _, true) => Err(Fail::died(world.flavour.mismatch())),
        (_, Some(locked), _) => Err(Fail::died(locked)),
        (Kind::Lxc, None, true) => Err(Fail::died(MODIFIED)),
        _ => Ok(()),
    }
}

/// Write the update, as one worker does who holds the guest.
pub(crate) fn write(world: &mut World, node: &str, update: &Update) -> Result<u64, Fail> {
    guard(world, node, update)?;
    if !world.is_quorate(node) {
        return Err(Fail::died(read_only(world, node, update.kind, update.vmid, None)));
    }
    match update.kind {
        Kind::Qemu => qemu::write(world, node, update),
        Kind::Lxc => lxc::write(world, node, update).map(|()| 0),
    }
}

/// Without a quorum the shared files cannot be written.
pub(crate) fn read_only(world: &World, node: &str, kind: Kind, vmid: u32, pid: Option<u32>) -> String {
    let pid = pid.or_else(|| world.nodes.get(node).map(crate::node::Node::daemon_pid)).unwrap_or(1);
    format!("unable to open file '/etc/pve/nodes/{node}/{}/{vmid}.conf.tmp.{pid}' - Permission denied", kind.folder())
}
