//! Constructors of the refusals that requested actions and births from templates lead to.

use super::{Datum, Refusal, RefusalCode};
use crate::apply::{IdempotencyKey, OperationId};
use crate::guest::{DiskKey, DiskSize, RunState, Vmid};
use crate::policy::Birth;

impl Refusal {
    /// The same refusal about the source of a clone. It is shown with the new guest, which need not exist.
    pub(crate) fn of_source(self, source: Vmid) -> Self {
        self.with("source", Datum::Number(u64::from(source.get())))
    }

    pub(crate) fn snapshot_exists(name: &str, made_at: Option<u64>) -> Self {
        let refusal = Self::new(RefusalCode::SnapshotExists).with("snapshot", name);
        made_at.into_iter().fold(refusal, |refusal, secs| refusal.with("made_at", Datum::Number(secs)))
    }

    pub(crate) fn snapshot_missing(name: &str, existing: Vec<String>) -> Self {
        Self::new(RefusalCode::SnapshotMissing).with("existing", Datum::Words(existing)).with("snapshot", name)
    }

    pub(crate) fn snapshot_unfinished(name: &str, state: &str) -> Self {
        Self::new(RefusalCode::SnapshotUnfinished).with("snapshot", name).with("state", state)
    }

    pub(crate) fn snapshot_hardware(cpu: &str, models: Vec<String>) -> Self {
        Self::new(RefusalCode::SnapshotHardware).with("cpu", cpu).with("cpu_models", Datum::Words(models))
    }

    pub(crate) fn ram_state_unavailable(cause: &str) -> Self {
        Self::new(RefusalCode::RamStateUnavailable).with("cause", cause)
    }

    pub(crate) fn run_state_unsuitable(needed: RunState, found: RunState) -> Self {
        Self::new(RefusalCode::RunStateUnsuitable).with("found", found.word()).with("needed", needed.word())
    }

    pub(crate) fn disk_missing(disk: &DiskKey, existing: Vec<String>) -> Self {
        Self::new(RefusalCode::DiskMissing).with("disk", disk.as_str()).with("existing", Datum::Words(existing))
    }

    pub(crate) fn disk_shrink(disk: &DiskKey, size: DiskSize, requested: DiskSize) -> Self {
        let (size, requested) = (size.to_string(), requested.to_string());
        Self::new(RefusalCode::DiskShrink).with("disk", disk.as_str()).with("requested", &*requested).with("size", &*size)
    }

    pub(crate) fn local_resources(resources: Vec<String>) -> Self {
        Self::new(RefusalCode::LocalResources).with("resources", Datum::Words(resources))
    }

    pub(crate) fn guest_replicated() -> Self {
        Self::new(RefusalCode::GuestReplicated)
    }

    pub(crate) fn node_memory(node: &str, needed_mib: u64, available_mib: u64) -> Self {
        let refusal = Self::new(RefusalCode::NodeMemory).with("node", node);
        refusal.with("available_mib", Datum::Number(available_mib)).with("needed_mib", Datum::Number(needed_mib))
    }

    pub(crate) fn storage_unsuitable(storage: &str, node: &str, cause: &str) -> Self {
        Self::new(RefusalCode::StorageUnsuitable).with("cause", cause).with("node", node).with("storage", storage)
    }

    pub(crate) fn storage_full(storage: &str, needed_mib: u64, available_mib: u64) -> Self {
        let refusal = Self::new(RefusalCode::StorageFull).with("storage", storage);
        refusal.with("available_mib", Datum::Number(available_mib)).with("needed_mib", Datum::Number(needed_mib))
    }

    /// The name is that of the existing guest, if it was read.
    pub(crate) fn id_taken(vmid: Vmid, name: Option<&str>) -> Self {
        let refusal = Self::new(RefusalCode::IdTaken).with("id", Datum::Number(u64::from(vmid.get())));
        name.into_iter().fold(refusal, |refusal, name| refusal.with("name", name))
    }

    /// The refusal of a guest that `from` does not make, because it existed before.
    pub(crate) fn guest_missing_again(cause: &str) -> Self {
        Self::new(RefusalCode::GuestMissing).with("cause", cause)
    }

    /// The marks are those that the template has.
    pub(crate) fn template_unpinned(template: Vmid, marks: String) -> Self {
        Self::new(RefusalCode::TemplateUnpinned).with("identity", &*marks).with("template", Datum::Number(u64::from(template.get())))
    }

    pub(crate) fn template_mismatch(template: Vmid, marks: Vec<String>) -> Self {
        Self::new(RefusalCode::TemplateMismatch)
            .with("marks", Datum::Words(marks))
            .with("template", Datum::Number(u64::from(template.get())))
    }

    pub(crate) fn template_unusable(template: Vmid, cause: &str) -> Self {
        Self::new(RefusalCode::TemplateUnusable).with("cause", cause).with("template", Datum::Number(u64::from(template.get())))
    }

    pub(crate) fn not_template(source: Vmid) -> Self {
        Self::new(RefusalCode::NotTemplate).with("source", Datum::Number(u64::from(source.get())))
    }

    pub(crate) fn cloud_init_missing(source: Vmid, parameters: &[&str]) -> Self {
        let parameters = parameters.iter().map(|name| (*name).to_owned()).collect();
        let refusal = Self::new(RefusalCode::CloudInitMissing).with("parameters", Datum::Words(parameters));
        refusal.with("source", Datum::Number(u64::from(source.get())))
    }

    pub(crate) fn protection_copied(grounds: Vec<String>) -> Self {
        Self::new(RefusalCode::ProtectionCopied).with("grounds", Datum::Words(grounds))
    }

    pub(crate) fn provisioning_unfinished(birth: &Birth) -> Self {
        let refusal = Self::new(RefusalCode::ProvisioningUnfinished);
        birth.request.into_iter().fold(refusal, |refusal, request| refusal.with("request", &*request.to_string()))
    }

    /// The refusal of a request whose key belongs to an operation of another request.
    #[must_use]
    pub fn key_reused(key: &IdempotencyKey, first: &OperationId) -> Self {
        Self::new(RefusalCode::KeyReused).with("key", key.as_str()).with("operation", first.as_str())
    }
}
