//! Storages and their volumes, as far as guests need them: names, sizes, owners.
//!
//! Disks have no bytes.

use std::collections::{BTreeMap, BTreeSet};

use crate::guest::{ConfigSection, LabGuestKind};

/// The size of every cloud-init image.
pub(crate) const CLOUD_INIT_BYTES: u64 = 4 << 20;

#[derive(Clone, Debug)]
pub(crate) struct LabStorage {
    /// `dir`, `nfs`, `lvmthin`, `zfspool`, ...
    pub(crate) kind: String,
    pub(crate) path: Option<String>,
    pub(crate) content: BTreeSet<String>,
    pub(crate) shared: bool,
    /// The nodes that have it; `None` means all.
    pub(crate) nodes: Option<BTreeSet<String>>,
    pub(crate) enabled: bool,
    pub(crate) total: u64,
    /// Used bytes at the start; `None` if the storage always reports one tenth of its size as used and is never full.
    pub(crate) used: Option<u64>,
    /// Bytes of all its volumes at the start.
    pub(crate) volume_bytes_at_start: u64,
    /// ISO images and container templates on it: `vztmpl/debian.tar.zst`.
    pub(crate) files: BTreeSet<String>,
    /// Further settings, which the API only returns.
    pub(crate) extra: BTreeMap<String, String>,
}

impl LabStorage {
    pub(crate) fn has_files(&self) -> bool {
        matches!(self.kind.as_str(), "dir" | "nfs" | "cifs" | "cephfs" | "btrfs")
    }

    pub(crate) fn is_available_on(&self, node: &str) -> bool {
        self.enabled && self.nodes.as_ref().is_none_or(|nodes| nodes.contains(node))
    }
}

/// Every storage without a given usage reports one tenth of its size as used.
const USED_DIVISOR: u64 = 10;

/// The size of an LVM extent.
const EXTENT_BYTES: u64 = 4 << 20;

/// What needs space on a storage; decides the error if there is none.
#[derive(Clone, Copy, Debug)]
pub(crate) enum VolumeChange<'a> {
    /// A volume is created.
    Create(&'a str),
    /// This volume grows.
    Resize(&'a str),
    /// Data is copied to a new volume.
    Copy,
}

#[derive(Clone, Debug)]
pub(crate) struct StorageVolume {
    pub(crate) vmid: u32,
    pub(crate) bytes: u64,
    pub(crate) format: String,
    /// The base volume of a linked clone.
    pub(crate) base: Option<String>,
}

/// A saved guest that can be restored.
#[derive(Clone, Debug)]
pub(crate) struct GuestBackup {
    pub(crate) vmid: u32,
    pub(crate) kind: LabGuestKind,
    pub(crate) bytes: u64,
    pub(crate) made_s: u64,
    pub(crate) notes: Option<String>,
    pub(crate) protected: bool,
    /// The config at the time of the backup.
    pub(crate) section: ConfigSection,
}

/// All storages, volumes and backups by id (`storage:name`).
#[derive(Clone, Debug, Default)]
pub(crate) struct LabStorages {
    pub(crate) all: BTreeMap<String, LabStorage>,
    pub(crate) volumes: BTreeMap<String, StorageVolume>,
    pub(crate) backups: BTreeMap<String, GuestBackup>,
}

impl LabStorages {
    pub(crate) fn find_storage(&self, name: &str) -> Result<&LabStorage, String> {
        self.all.get(name).ok_or_else(|| format!("storage '{name}' does not exist"))
    }

    /// The storage, if it is enabled and available on a node.
    pub(crate) fn check_enabled(&self, name: &str, node: &str) -> Result<&LabStorage, String> {
        let storage = self.find_storage(name)?;
        match (storage.enabled, storage.is_available_on(node)) {
            (false, _) => Err(format!("storage '{name}' is disabled")),
            (true, false) => Err(format!("storage '{name}' is not available on node '{node}'")),
            (true, true) => Ok(storage),
        }
    }

    /// Used bytes of a storage: what it started with, and what its volumes grew by since.
    pub(crate) fn used_bytes(&self, name: &str) -> u64 {
        let Some(storage) = self.all.get(name) else { return 0 };
        let Some(used) = storage.used else { return storage.total / USED_DIVISOR };
        let used = (used + self.volume_bytes(name)).saturating_sub(storage.volume_bytes_at_start);
        used.min(storage.total)
    }

    /// Sets how many bytes of a storage are used, including its volumes.
    pub(crate) fn set_usage(&mut self, name: &str, used: u64) {
        let bytes = self.volume_bytes(name);
        if let Some(storage) = self.all.get_mut(name) {
            (storage.used, storage.volume_bytes_at_start) = (Some(used), bytes);
        }
    }

    /// Bytes of all volumes on a storage.
    pub(crate) fn volume_bytes(&self, name: &str) -> u64 {
        let prefix = format!("{name}:");
        self.volumes.iter().filter(|(id, _)| id.starts_with(&prefix)).map(|(_, volume)| volume.bytes).sum()
    }

    /// Fails if a storage has no space for this many more bytes. Only LVM and ZFS reserve space for a volume; on other storages, a volume
    /// that is larger than the free space is accepted, and only copying data to it fails.
    pub(crate) fn check_space(&self, name: &str, more: u64, change: VolumeChange<'_>) -> Result<(), String> {
        let Some(storage) = self.all.get(name).filter(|storage| storage.used.is_some()) else { return Ok(()) };
        let free = storage.total.saturating_sub(self.used_bytes(name));
        if more <= free {
            return Ok(());
        }
        let (needed_extents, free_extents) = (more.div_ceil(EXTENT_BYTES), free / EXTENT_BYTES);
        match (storage.kind.as_str(), change) {
            ("lvm", VolumeChange::Resize(_)) => Err(format!(
                "lvextend error:   Insufficient free space: {needed_extents} extents needed, but only {free_extents} available"
            )),
            ("lvm", _) => Err(format!(
                "lvcreate error:   Volume group \"{name}\" has insufficient free space ({free_extents} extents): {needed_extents} required."
            )),
            ("zfspool", VolumeChange::Resize(id)) => {
                Err(format!("zfs error: cannot set property for '{name}/{}': size is greater than available space", volume_name(id)))
            }
            ("zfspool", VolumeChange::Create(stem)) => Err(format!("zfs error: cannot create '{name}/{stem}': out of space")),
            (_, VolumeChange::Copy) => Err("copy failed: command '/usr/bin/qemu-img convert -p -n' failed: exit code 1".to_owned()),
            _ => Ok(()),
        }
    }

    /// Creates a volume for a guest and returns its id.
    pub(crate) fn allocate_volume(&mut self, storage: &str, vmid: u32, bytes: u64, format: &str) -> Result<String, String> {
        self.find_storage(storage)?;
        let free = (0..).map(|number| format!("vm-{vmid}-disk-{number}")).find(|stem| !self.is_taken(storage, vmid, stem));
        let stem = free.unwrap_or_default();
        self.check_space(storage, bytes, VolumeChange::Create(&stem))?;
        let id = self.volume_id(storage, vmid, &stem, format);
        self.volumes.insert(id.clone(), StorageVolume { vmid, bytes, format: format.to_owned(), base: None });
        Ok(id)
    }

    /// Creates a volume with this name, which must be free.
    pub(crate) fn allocate_named_volume(
        &mut self,
        storage: &str,
        vmid: u32,
        name: &str,
        bytes: u64,
        format: &str,
    ) -> Result<String, String> {
        self.find_storage(storage)?;
        let id = self.volume_id(storage, vmid, name.split('.').next().unwrap_or(name), format);
        if self.volumes.contains_key(&id) {
            return Err(format!("disk image '{}' already exists", self.volume_path(&id)));
        }
        self.check_space(storage, bytes, VolumeChange::Create(name))?;
        self.volumes.insert(id.clone(), StorageVolume { vmid, bytes, format: format.to_owned(), base: None });
        Ok(id)
    }

    /// Creates a guest's cloud-init image. A guest can have only one; a second one fails.
    pub(crate) fn allocate_cloud_init(&mut self, storage: &str, vmid: u32, format: Option<String>) -> Result<String, String> {
        let default = if self.find_storage(storage)?.has_files() { "qcow2" } else { "raw" };
        let format = format.unwrap_or_else(|| default.to_owned());
        self.allocate_named_volume(storage, vmid, &format!("vm-{vmid}-cloudinit"), CLOUD_INIT_BYTES, &format)
    }

    /// The id of a linked clone's volume, which names its base: `tank:base-110-disk-0/vm-115-disk-0`. LVM keeps the base elsewhere.
    pub(crate) fn link_volume(&mut self, base: &str, id: &str) -> String {
        let (storage, rest) = id.split_once(':').unwrap_or(("", id));
        let kind = self.kind_of_volume(id);
        let (_, base_rest) = base.split_once(':').unwrap_or(("", base));
        let owner_and_name: Vec<&str> = base_rest.rsplit('/').take(2).collect();
        let linked = match (kind, owner_and_name.as_slice()) {
            ("lvmthin" | "lvm", _) => id.to_owned(),
            (_, [name, owner]) if self.all.get(storage).is_some_and(LabStorage::has_files) => format!("{storage}:{owner}/{name}/{rest}"),
            _ => format!("{storage}:{}/{rest}", volume_name(base)),
        };
        if let Some(mut volume) = self.volumes.remove(id) {
            volume.base = Some(base.to_owned());
            self.volumes.insert(linked.clone(), volume);
        }
        linked
    }

    /// The base volume that the id of a linked clone's volume names.
    pub(crate) fn base_of_volume(&self, id: &str) -> Option<String> {
        let (storage, rest) = id.split_once(':')?;
        let parts: Vec<&str> = rest.split('/').collect();
        match parts.as_slice() {
            [owner, base, _, _] => Some(format!("{storage}:{owner}/{base}")),
            [base, _] if base.starts_with("base-") => Some(format!("{storage}:{base}")),
            _ => None,
        }
    }

    /// A format that a storage supports: block storages hold raw volumes only.
    pub(crate) fn usable_format<'a>(&self, storage: &str, format: &'a str) -> &'a str {
        if self.all.get(storage).is_some_and(LabStorage::has_files) { format } else { "raw" }
    }

    fn volume_id(&self, storage: &str, vmid: u32, stem: &str, format: &str) -> String {
        let files = self.all.get(storage).is_some_and(LabStorage::has_files);
        if files { format!("{storage}:{vmid}/{stem}.{format}") } else { format!("{storage}:{stem}") }
    }

    fn is_taken(&self, storage: &str, vmid: u32, stem: &str) -> bool {
        let same = |id: &String| id.starts_with(&format!("{storage}:")) && volume_name(id).split('.').next() == Some(stem);
        self.volumes.iter().any(|(id, volume)| volume.vmid == vmid && same(id))
    }

    /// The path of a volume on the node, for logs.
    pub(crate) fn volume_path(&self, id: &str) -> String {
        let (storage, rest) = id.split_once(':').unwrap_or(("", id));
        let root = self.all.get(storage).and_then(|storage| storage.path.as_deref()).unwrap_or("/dev");
        let folder = match rest.split_once('/') {
            Some(("backup", name)) => return format!("{root}/dump/{name}"),
            Some(("iso", name)) => return format!("{root}/template/iso/{name}"),
            Some(("vztmpl", name)) => return format!("{root}/template/cache/{name}"),
            _ => "images",
        };
        format!("{root}/{folder}/{rest}")
    }

    /// Whether a storage contains this ISO image or container template.
    pub(crate) fn has_file(&self, id: &str) -> bool {
        let (storage, file) = id.split_once(':').unwrap_or(("", id));
        self.all.get(storage).is_some_and(|storage| storage.files.contains(file))
    }

    /// Removes a volume, a backup or a file.
    pub(crate) fn remove_content(&mut self, id: &str) {
        self.volumes.remove(id);
        self.backups.remove(id);
        let (storage, file) = id.split_once(':').unwrap_or(("", id));
        if let Some(storage) = self.all.get_mut(storage) {
            storage.files.remove(file);
        }
    }

    /// Whether a linked clone still depends on this volume.
    pub(crate) fn is_base_in_use(&self, id: &str) -> bool {
        self.volumes.values().any(|volume| volume.base.as_deref() == Some(id))
    }

    /// The type of the storage that a volume is on; empty if there is none.
    pub(crate) fn kind_of_volume(&self, id: &str) -> &str {
        let (storage, _) = id.split_once(':').unwrap_or(("", ""));
        self.all.get(storage).map_or("", |storage| storage.kind.as_str())
    }

    pub(crate) fn supports_snapshots(&self, id: &str) -> bool {
        let kind = self.kind_of_volume(id);
        let qcow2 = self.volumes.get(id).is_some_and(|volume| volume.format == "qcow2");
        qcow2 || matches!(kind, "lvmthin" | "zfspool" | "rbd" | "btrfs")
    }

    /// Converts a volume to a base volume: `vm-110-disk-0` becomes `base-110-disk-0`.
    pub(crate) fn convert_to_base(&mut self, id: &str) -> String {
        let (head, tail) = id.rsplit_once("vm-").unwrap_or(("", id));
        let renamed = if head.is_empty() { id.to_owned() } else { format!("{head}base-{tail}") };
        if let Some(volume) = self.volumes.remove(id) {
            self.volumes.insert(renamed.clone(), volume);
        }
        renamed
    }
}

/// The last part of a volume id: `vm-100-disk-0.qcow2`.
pub(crate) fn volume_name(id: &str) -> &str {
    let rest = id.split_once(':').map_or(id, |(_, rest)| rest);
    rest.rsplit('/').next().unwrap_or(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test_storages() -> LabStorages {
        let storage = |kind: &str| LabStorage {
            kind: kind.to_owned(),
            path: Some("/mnt/dir1".to_owned()),
            content: BTreeSet::new(),
            shared: false,
            nodes: None,
            enabled: true,
            total: 1 << 40,
            used: None,
            volume_bytes_at_start: 0,
            files: BTreeSet::new(),
            extra: BTreeMap::new(),
        };
        LabStorages {
            all: BTreeMap::from([("dir1".to_owned(), storage("dir")), ("thin".to_owned(), storage("lvmthin"))]),
            ..LabStorages::default()
        }
    }

    #[test]
    fn new_volumes_get_the_first_free_number() {
        let mut storages = test_storages();
        assert_eq!(storages.allocate_volume("dir1", 100, 1, "qcow2").unwrap(), "dir1:100/vm-100-disk-0.qcow2");
        assert_eq!(storages.allocate_volume("dir1", 100, 1, "raw").unwrap(), "dir1:100/vm-100-disk-1.raw");
        assert_eq!(storages.allocate_volume("thin", 100, 1, "raw").unwrap(), "thin:vm-100-disk-0");
        assert_eq!(storages.allocate_volume("nosuch", 100, 1, "raw").unwrap_err(), "storage 'nosuch' does not exist");
    }

    #[test]
    fn base_volumes_are_renamed_and_in_use_while_a_linked_clone_exists() {
        let mut storages = test_storages();
        let id = storages.allocate_volume("dir1", 110, 1, "qcow2").unwrap();
        let base = storages.convert_to_base(&id);
        assert_eq!(base, "dir1:110/base-110-disk-0.qcow2");
        let clone = storages.allocate_volume("dir1", 115, 1, "qcow2").unwrap();
        assert!(!storages.is_base_in_use(&base));
        let linked = storages.link_volume(&base, &clone);
        assert_eq!(linked, "dir1:110/base-110-disk-0.qcow2/115/vm-115-disk-0.qcow2");
        assert!(storages.is_base_in_use(&base));
        assert_eq!(storages.base_of_volume(&linked), Some(base));
        assert_eq!(storages.base_of_volume("dir1:115/vm-115-disk-0.qcow2"), None);
    }
}
