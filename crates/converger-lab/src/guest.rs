//! A guest: its configuration as in the config file, and its process.
//!
//! Must not depend on callers or tasks; tasks change this state.

mod config_file;
mod config_json;
pub(crate) mod drive;
pub(crate) mod size;

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::schema::split_number;

/// Keys and values of one section of a config file.
pub(crate) type ConfigSection = BTreeMap<String, String>;

/// A virtual machine or a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LabGuestKind {
    /// A virtual machine.
    Qemu,
    /// A container.
    Lxc,
}

impl LabGuestKind {
    /// The name in API paths and lists.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Qemu => "qemu",
            Self::Lxc => "lxc",
        }
    }

    /// The word for it in error texts.
    pub(crate) fn error_word(self) -> &'static str {
        match self {
            Self::Qemu => "VM",
            Self::Lxc => "CT",
        }
    }

    /// The directory of its config files.
    pub(crate) fn folder(self) -> &'static str {
        match self {
            Self::Qemu => "qemu-server",
            Self::Lxc => "lxc",
        }
    }

    /// The prefix of its task types.
    pub(crate) fn task_prefix(self) -> &'static str {
        match self {
            Self::Qemu => "qm",
            Self::Lxc => "vz",
        }
    }

    /// The prefix of its HA service id.
    pub(crate) fn ha_prefix(self) -> &'static str {
        match self {
            Self::Qemu => "vm",
            Self::Lxc => "ct",
        }
    }

    /// The config key of its name.
    pub(crate) fn name_key(self) -> &'static str {
        match self {
            Self::Qemu => "name",
            Self::Lxc => "hostname",
        }
    }

    pub(crate) fn config_template(self) -> &'static str {
        match self {
            Self::Qemu => "/nodes/{node}/qemu/{vmid}/config",
            Self::Lxc => "/nodes/{node}/lxc/{vmid}/config",
        }
    }

    /// The file that a worker locks while it changes the guest.
    pub(crate) fn lock_file(self, vmid: u32) -> String {
        match self {
            Self::Qemu => format!("/var/lock/qemu-server/lock-{vmid}.conf"),
            Self::Lxc => format!("/run/lock/lxc/pve-config-{vmid}.lock"),
        }
    }

    pub(crate) fn missing_config_text(self, node: &str, vmid: u32) -> String {
        format!("Configuration file 'nodes/{node}/{}/{vmid}.conf' does not exist", self.folder())
    }
}

/// The process of a running guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GuestProcess {
    pub(crate) pid: u32,
    pub(crate) since_ms: u64,
    /// The state that QEMU reports: `running`, `paused`, `io-error`, ...
    pub(crate) qemu_state: String,
}

/// How the guest's operating system behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GuestBehaviour {
    /// How long a shutdown takes; `None` if it ignores shutdown requests.
    pub(crate) shutdown_ms: Option<u64>,
    /// Whether it releases a network card on unplug.
    pub(crate) allows_unplug: bool,
}

impl Default for GuestBehaviour {
    fn default() -> Self {
        Self { shutdown_ms: Some(4_000), allows_unplug: true }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct LabGuest {
    pub(crate) vmid: u32,
    pub(crate) kind: LabGuestKind,
    pub(crate) node: String,
    /// The settings in effect.
    pub(crate) config: ConfigSection,
    /// Settings that take effect at the next start.
    pub(crate) pending: ConfigSection,
    /// Keys that are deleted at the next start; `true` if their disks are destroyed as well.
    pub(crate) deletions: BTreeMap<String, bool>,
    pub(crate) snapshots: BTreeMap<String, ConfigSection>,
    /// Raw `lxc.*` lines.
    pub(crate) raw: Vec<(String, String)>,
    /// The cloud-init settings in the current image; `None` before the first image.
    pub(crate) baked_cloud_init: Option<ConfigSection>,
    pub(crate) process: Option<GuestProcess>,
    pub(crate) behaviour: GuestBehaviour,
}

impl LabGuest {
    pub(crate) fn new(vmid: u32, kind: LabGuestKind, node: &str) -> Self {
        Self {
            vmid,
            kind,
            node: node.to_owned(),
            config: ConfigSection::new(),
            pending: ConfigSection::new(),
            deletions: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            raw: Vec::new(),
            baked_cloud_init: None,
            process: None,
            behaviour: GuestBehaviour::default(),
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.config.get(key).map(String::as_str)
    }

    pub(crate) fn is_enabled(&self, key: &str) -> bool {
        self.get(key) == Some("1")
    }

    pub(crate) fn number(&self, key: &str) -> Option<u64> {
        self.get(key)?.parse().ok()
    }

    pub(crate) fn lock(&self) -> Option<&str> {
        self.get("lock")
    }

    pub(crate) fn is_template(&self) -> bool {
        self.is_enabled("template")
    }

    pub(crate) fn is_protected(&self) -> bool {
        self.is_enabled("protection")
    }

    pub(crate) fn is_running(&self) -> bool {
        self.process.is_some()
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.qemu_state == "paused")
    }

    /// The error text for a locked guest: `VM is locked (backup)`.
    pub(crate) fn lock_error(&self) -> Option<String> {
        self.lock().map(|lock| format!("{} is locked ({lock})", self.kind.error_word()))
    }

    /// Whether the config no longer has the given digest. No digest means no check.
    pub(crate) fn differs_from_digest(&self, digest: Option<&str>) -> bool {
        digest.is_some_and(|digest| !digest.is_empty() && digest != self.digest())
    }

    /// The HA service id: `vm:100`.
    pub(crate) fn ha_service_id(&self) -> String {
        format!("{}:{}", self.kind.ha_prefix(), self.vmid)
    }

    /// The name that lists show; a default if none is set.
    pub(crate) fn display_name(&self) -> String {
        let fallback = || match self.kind {
            LabGuestKind::Qemu => format!("VM {}", self.vmid),
            LabGuestKind::Lxc => format!("CT{}", self.vmid),
        };
        self.get(self.kind.name_key()).map_or_else(fallback, str::to_owned)
    }

    /// Adds a volume that no key uses any more under the first free `unusedN`.
    pub(crate) fn add_unused(&mut self, volume: &str) {
        let free = (0..).map(|number| format!("unused{number}")).find(|key| !self.config.contains_key(key));
        if let Some(key) = free {
            self.config.insert(key, volume.to_owned());
        }
    }

    /// Drops the pending change of a key.
    pub(crate) fn drop_pending(&mut self, key: &str) -> Option<String> {
        self.deletions.remove(key);
        self.pending.remove(key)
    }

    /// The cloud-init settings in effect.
    pub(crate) fn cloud_init_settings(&self) -> ConfigSection {
        self.config.iter().filter(|(key, _)| is_cloud_init_key(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// Writes the current settings into the cloud-init image, if the guest has one.
    pub(crate) fn bake_cloud_init(&mut self) {
        let has_image = drive::drives(self.kind, &self.config).any(|(_, drive)| drive.is_cloud_init());
        if has_image && self.kind == LabGuestKind::Qemu {
            self.baked_cloud_init = Some(self.cloud_init_settings());
        }
    }

    /// All sections that can refer to a volume.
    pub(crate) fn sections(&self) -> impl Iterator<Item = &ConfigSection> {
        [&self.config, &self.pending].into_iter().chain(self.snapshots.values())
    }
}

/// Whether a key holds a disk: a drive of a virtual machine or a mount point of a container.
pub(crate) fn is_disk_key(kind: LabGuestKind, key: &str) -> bool {
    let stem = split_number(key).map_or("", |(stem, _)| stem);
    match kind {
        LabGuestKind::Qemu => matches!(stem, "ide" | "sata" | "scsi" | "virtio" | "efidisk" | "tpmstate"),
        LabGuestKind::Lxc => key == "rootfs" || stem == "mp",
    }
}

/// Whether a key is a setting of cloud-init.
pub(crate) fn is_cloud_init_key(key: &str) -> bool {
    let named = ["cicustom", "cipassword", "citype", "ciupgrade", "ciuser", "nameserver", "searchdomain", "sshkeys"];
    named.contains(&key) || split_number(key).is_some_and(|(stem, _)| stem == "ipconfig")
}

/// Whether a key holds a network card.
pub(crate) fn is_card_key(key: &str) -> bool {
    split_number(key).is_some_and(|(stem, _)| stem == "net")
}

pub(crate) fn is_unused_key(key: &str) -> bool {
    split_number(key).is_some_and(|(stem, _)| stem == "unused")
}
