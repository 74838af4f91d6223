//! Values of disk keys: the volume and its options, or a request for a new disk.
//!
//! The volumes themselves are in `storage`.

use crate::flavour::Flavour;
use crate::schema::property::{self, PropertyValues};
use crate::schema::{config_key_schema, split_number};

use super::{ConfigSection, LabGuest, LabGuestKind, is_disk_key, size};

/// The parsed value of a disk key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DriveValue {
    /// The volume, path, `none`, or for a new disk `storage:GiB`.
    pub(crate) file: String,
    pub(crate) options: PropertyValues,
}

impl DriveValue {
    /// Parses a value from a config.
    pub(crate) fn parse(value: &str) -> Self {
        let mut parts = value.split(',');
        let first = parts.next().unwrap_or_default();
        let file = first.strip_prefix("file=").or_else(|| first.strip_prefix("volume=")).unwrap_or(first);
        let options = parts.filter_map(|part| part.split_once('=')).map(|(key, text)| (key.to_owned(), text.to_owned()));
        Self { file: file.to_owned(), options: options.collect() }
    }

    /// The value as text: the volume first, then the options sorted by name.
    pub(crate) fn to_text(&self) -> String {
        let options = self.options.iter().map(|(key, text)| format!(",{key}={text}"));
        std::iter::once(self.file.clone()).chain(options).collect()
    }

    pub(crate) fn is_cdrom(&self) -> bool {
        let media = self.options.get("media").is_some_and(|media| media == "cdrom");
        media || self.file == "none" || self.file == "cdrom" || self.is_cloud_init()
    }

    /// Whether this is a cloud-init image, which appears as a CD but is a volume of the guest.
    pub(crate) fn is_cloud_init(&self) -> bool {
        let Some((_, rest)) = self.file.split_once(':') else { return false };
        let stem = rest.rsplit('/').next().and_then(|name| name.split('.').next()).unwrap_or_default();
        let owner = |stem: &str| stem.strip_prefix("vm-").and_then(|rest| rest.strip_suffix("-cloudinit")).map(str::to_owned);
        stem == "cloudinit" || owner(stem).is_some_and(|vmid| vmid.parse::<u32>().is_ok())
    }

    /// Whether the volume is created, copied and destroyed with the guest. Other CDs are only inserted.
    pub(crate) fn is_owned(&self) -> bool {
        !self.is_cdrom() || self.is_cloud_init()
    }

    /// The storage of a cloud-init image that is still to be created.
    pub(crate) fn new_cloud_init_storage(&self) -> Option<&str> {
        self.file.split_once(':').filter(|(_, rest)| *rest == "cloudinit").map(|(storage, _)| storage)
    }

    /// Storage and size of a disk that is still to be created.
    pub(crate) fn new_disk_request(&self) -> Option<(&str, u64)> {
        let (storage, amount) = self.file.split_once(':')?;
        let numeric = !amount.is_empty() && amount.chars().all(|character| character.is_ascii_digit() || character == '.');
        if numeric { size::parse_gibibytes(amount).map(|bytes| (storage, bytes)) } else { None }
    }

    /// The storage of an existing volume.
    pub(crate) fn storage(&self) -> Option<&str> {
        self.file.split_once(':').map(|(storage, _)| storage).filter(|_| !self.file.starts_with('/'))
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.options.get("size").and_then(|text| size::parse(text)).unwrap_or(0)
    }

    pub(crate) fn set_size_bytes(&mut self, bytes: u64) {
        self.options.insert("size".to_owned(), size::format_size(bytes));
    }
}

/// The value of a disk key in a request, with aliases resolved.
pub(crate) fn parse_request_value(kind: LabGuestKind, key: &str, value: &str, flavour: Flavour) -> DriveValue {
    let shapes = config_key_schema(kind.config_template(), key, flavour).map(|shape| &shape.properties);
    let parsed = shapes.and_then(|shapes| property::parse(shapes, value, key).ok());
    let Some(mut options) = parsed else { return DriveValue::parse(value) };
    let file = options.remove("file").or_else(|| options.remove("volume")).unwrap_or_default();
    DriveValue { file, options }
}

/// Keys and drives of a section, including CD drives.
pub(crate) fn drives(kind: LabGuestKind, section: &ConfigSection) -> impl Iterator<Item = (&String, DriveValue)> {
    section.iter().filter(move |(key, _)| is_disk_key(kind, key)).map(|(key, value)| (key, DriveValue::parse(value)))
}

impl LabGuest {
    /// The devices of `boot: order=a;b`.
    pub(crate) fn boot_order(&self) -> Vec<String> {
        parse_boot_order(self.pending.get("boot").or_else(|| self.config.get("boot")).map_or("", String::as_str))
    }

    /// The size of the boot disk, which lists show as the guest's disk size.
    pub(crate) fn disk_bytes(&self) -> u64 {
        let first = match self.kind {
            LabGuestKind::Lxc => self.get("rootfs").map(DriveValue::parse),
            LabGuestKind::Qemu => {
                let in_order = parse_boot_order(self.get("boot").unwrap_or_default()).into_iter();
                let ordered = in_order.filter_map(|key| if is_disk_key(LabGuestKind::Qemu, &key) { self.get(&key) } else { None });
                ordered.map(DriveValue::parse).find(|drive| !drive.is_cdrom())
            }
        };
        first.map_or(0, |drive| drive.size_bytes())
    }
}

/// The devices of an `order=` value.
pub(crate) fn parse_boot_order(boot: &str) -> Vec<String> {
    let list = boot.split(',').find_map(|part| part.strip_prefix("order=")).unwrap_or_default();
    list.split(';').filter(|device| !device.is_empty()).map(str::to_owned).collect()
}

/// The default boot order of a new guest: first disk, first CD drive, first network card. Proxmox stores one blank for a guest without any
/// of them.
pub(crate) fn default_boot_order(section: &ConfigSection) -> String {
    let mut disks: Vec<(&String, DriveValue)> = drives(LabGuestKind::Qemu, section).filter(|(key, _)| is_bootable(key)).collect();
    disks.sort_by_key(|(key, _)| boot_rank(key));
    let disk = disks.iter().find(|(_, drive)| !drive.is_cdrom()).map(|(key, _)| key.as_str());
    let cdrom = disks.iter().find(|(_, drive)| drive.is_cdrom()).map(|(key, _)| key.as_str());
    let card = section.keys().find(|key| super::is_card_key(key)).map(String::as_str);
    let devices: Vec<&str> = [disk, cdrom, card].into_iter().flatten().collect();
    if devices.is_empty() { " ".to_owned() } else { format!("order={}", devices.join(";")) }
}

fn is_bootable(key: &str) -> bool {
    split_number(key).is_some_and(|(stem, _)| !matches!(stem, "efidisk" | "tpmstate"))
}

/// The order in which Proxmox looks for disks: ide, scsi, virtio, sata.
fn boot_rank(key: &str) -> (usize, u32) {
    let (stem, number) = split_number(key).unwrap_or((key, 0));
    let bus_rank = ["ide", "scsi", "virtio", "sata"].iter().position(|known| *known == stem);
    (bus_rank.unwrap_or(usize::MAX), number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_disks_are_distinguished_from_existing_volumes() {
        assert_eq!(DriveValue::parse("dir1:1.5,format=raw").new_disk_request(), Some(("dir1", 1_610_612_736)));
        assert_eq!(DriveValue::parse("dir1:100/vm-100-disk-0.qcow2,size=1G").new_disk_request(), None);
        assert_eq!(DriveValue::parse("none,media=cdrom").new_disk_request(), None);
    }

    #[test]
    fn cloud_init_images_are_cds_that_the_guest_owns() {
        for file in ["tank:cloudinit", "tank:vm-100-cloudinit,media=cdrom", "dir1:100/vm-100-cloudinit.qcow2"] {
            let drive = DriveValue::parse(file);
            assert!(drive.is_cloud_init() && drive.is_cdrom() && drive.is_owned(), "{file}");
        }
        for file in ["dir1:iso/cloudinit-tools.iso,media=cdrom", "none,media=cdrom", "dir1:vm-x-cloudinit,media=cdrom"] {
            let drive = DriveValue::parse(file);
            assert!(!drive.is_cloud_init() && drive.is_cdrom() && !drive.is_owned(), "{file}");
        }
        assert_eq!(DriveValue::parse("tank:cloudinit").new_cloud_init_storage(), Some("tank"));
        assert_eq!(DriveValue::parse("tank:vm-100-cloudinit").new_cloud_init_storage(), None);
    }

    #[test]
    fn the_volume_comes_first_and_options_are_sorted() {
        let drive = parse_request_value(LabGuestKind::Qemu, "scsi0", "ssd=on,file=dir1:100/vm-100-disk-0.raw,cache=none", Flavour::V9);
        assert_eq!(drive.to_text(), "dir1:100/vm-100-disk-0.raw,cache=none,ssd=1");
    }

    #[test]
    fn the_default_order_is_disk_cdrom_card() {
        let section = ConfigSection::from(
            [("net0", "virtio"), ("scsi0", "a:b,size=1G"), ("ide2", "none,media=cdrom")]
                .map(|(key, value)| (key.to_owned(), value.to_owned())),
        );
        assert_eq!(default_boot_order(&section), "order=scsi0;ide2;net0");
        assert_eq!(default_boot_order(&ConfigSection::new()), " ", "a guest without disk and network card has one blank");
    }
}
