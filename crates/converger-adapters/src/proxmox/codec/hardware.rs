//! The disks in a config, and the keys that tie a guest to its node.
//!
//! Must not decide what follows from them (the core).

use converger_core::guest::{DiskKey, DiskSize, GuestKind, StorageName};
use converger_core::normalize::reaches_host;
use converger_core::observe::{GuestDisk, GuestHardware, GuestVolume};

use super::config::PendingItem;
use super::property::PropertyString;
use super::scalar::PerlScalar;

/// The hardware, or the key of a disk, volume or CPU whose value is not understood: a list without it would not be complete.
pub(super) fn parse_hardware(kind: GuestKind, items: &[PendingItem<'_>]) -> Result<GuestHardware, Box<str>> {
    let (mut disks, mut others) = (Vec::new(), Vec::new());
    let mut cpu_type = None;
    let mut host_devices: Vec<Box<str>> = Vec::new();
    for item in items {
        let key = &*item.key;
        if [&item.value, &item.pending].into_iter().any(|value| is_host_device(kind, key, value)) {
            host_devices.push(key.into());
        }
        if item.value == PerlScalar::Absent {
            continue;
        }
        let text = item.value.text();
        if let Some(disk) = DiskKey::new(kind, key) {
            disks.push(text.and_then(|text| parse_disk(disk, &text)).ok_or(key)?);
        } else if is_other_volume(key) {
            others.push(text.and_then(|text| parse_other_volume(key, &text)).ok_or(key)?);
        } else if kind == GuestKind::Qemu && key == "cpu" {
            cpu_type = PropertyString::parse(&text.ok_or(key)?, "cputype").get("cputype").map(Into::into);
        }
    }
    disks.sort_by(|left, right| left.key.cmp(&right.key));
    others.sort_by(|left, right| left.key.cmp(&right.key));
    host_devices.sort_unstable();
    host_devices.dedup();
    Ok(GuestHardware { cpu_type, disks: disks.into(), host_devices: host_devices.into(), other_volumes: others.into() })
}

fn parse_disk(key: DiskKey, text: &str) -> Option<GuestDisk> {
    let properties = PropertyString::parse(text, "volume");
    let volume = find_volume(&properties)?;
    let is_cdrom = properties.get("media") == Some("cdrom");
    // The size of a medium is not a size that the guest could grow to.
    let size = properties.get("size").filter(|_| !is_cdrom).and_then(DiskSize::parse);
    Some(GuestDisk { is_cdrom, key, size, storage: storage_of(volume), volume: volume.into() })
}

/// The volume of a disk. Virtual machines have it under `file` or `volume`, containers under `volume`; both may omit the key.
fn find_volume<'t>(properties: &PropertyString<'t>) -> Option<&'t str> {
    properties.get("volume").or_else(|| properties.get("file")).filter(|volume| !volume.is_empty())
}

/// The storage of a volume such as `local-lvm:vm-100-disk-0`. A path on the node has none, nor has the word for an empty drive.
fn storage_of(volume: &str) -> Option<StorageName> {
    volume.split_once(':').and_then(|(storage, _)| StorageName::new(storage))
}

/// Whether the key holds a volume that is no disk of the guest: the state of a TPM, a detached disk, or saved memory.
fn is_other_volume(key: &str) -> bool {
    let is_numbered = |prefix| key.strip_prefix(prefix).is_some_and(|rest: &str| rest.parse::<u32>().is_ok());
    key == "vmstate" || is_numbered("tpmstate") || is_numbered("unused")
}

fn parse_other_volume(key: &str, text: &str) -> Option<GuestVolume> {
    let volume = find_volume(&PropertyString::parse(text, "volume"))?;
    Some(GuestVolume { key: key.into(), storage: storage_of(volume), volume: volume.into() })
}

/// Whether this value of a key gives the guest something of its node. A value of an unexpected type does.
fn is_host_device(kind: GuestKind, key: &str, value: &PerlScalar<'_>) -> bool {
    if *value == PerlScalar::Absent {
        return false;
    }
    let text = value.text();
    let text = text.as_deref();
    if DiskKey::new(kind, key).is_some() {
        // A path on the node, or its own optical drive.
        let is_of_node = |volume: &str| volume.starts_with('/') || volume == "cdrom";
        return text.is_some_and(|text| find_volume(&PropertyString::parse(text, "volume")).is_some_and(is_of_node));
    }
    match key {
        _ if key.starts_with("usb") => {
            !text.is_some_and(|text| PropertyString::parse(text, "host").get("host").is_some_and(|host| host.eq_ignore_ascii_case("spice")))
        }
        _ if key.starts_with("serial") => text != Some("socket"),
        // The raw lines of a container's config.
        "lxc" => true,
        _ => reaches_host(key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(kind: GuestKind, json: &str) -> Result<GuestHardware, Box<str>> {
        parse_hardware(kind, &serde_json::from_str::<Vec<PendingItem<'_>>>(json).expect("items"))
    }

    fn parse_pairs(kind: GuestKind, pairs: &[(&str, &str)]) -> Result<GuestHardware, Box<str>> {
        let items: Vec<_> = pairs.iter().map(|(key, value)| serde_json::json!({ "key": key, "value": value })).collect();
        parse(kind, &serde_json::to_string(&items).expect("serialises"))
    }

    fn shown_disks(hardware: &GuestHardware) -> Vec<String> {
        let shown = hardware.disks.iter().map(|disk| {
            let storage = disk.storage.as_ref().map_or("-", StorageName::as_str);
            let size = disk.size.map_or_else(|| "-".to_owned(), |size| size.to_string());
            format!("{} {storage} {} {size}{}", disk.key.as_str(), disk.volume, if disk.is_cdrom { " cdrom" } else { "" })
        });
        shown.collect()
    }

    #[test]
    fn lists_disks_with_volume_storage_and_size() {
        let hardware = parse_pairs(
            GuestKind::Qemu,
            &[
                ("virtio1", "file=tank:vm-100-disk-1,size=1536M"),
                ("scsi0", "dir1:100/vm-100-disk-0.qcow2,discard=on,size=32G"),
                ("ide2", "none,media=cdrom"),
                ("ide3", "local:iso/x.iso,media=cdrom,size=4M"),
                ("sata0", "/dev/disk/by-id/ata-x,size=1.5T"),
                ("efidisk0", "tank:vm-100-disk-2,size=528K"),
                ("tpmstate0", "tank:vm-100-disk-3,size=4M,version=v2.0"),
                ("unused0", "tank:vm-100-disk-9"),
                ("cpu", "x86-64-v2-AES,flags=+aes"),
                ("name", "a"),
            ],
        )
        .expect("understood");
        assert_eq!(
            shown_disks(&hardware),
            [
                "efidisk0 tank tank:vm-100-disk-2 528K",
                "ide2 - none - cdrom",
                "ide3 local local:iso/x.iso - cdrom",
                "sata0 - /dev/disk/by-id/ata-x -",
                "scsi0 dir1 dir1:100/vm-100-disk-0.qcow2 32G",
                "virtio1 tank tank:vm-100-disk-1 1536M",
            ]
        );
        let others: Vec<_> = hardware.other_volumes.iter().map(|own| (&*own.key, &*own.volume)).collect();
        assert_eq!(others, [("tpmstate0", "tank:vm-100-disk-3"), ("unused0", "tank:vm-100-disk-9")]);
        assert_eq!(hardware.cpu_type.as_deref(), Some("x86-64-v2-AES"));
        assert_eq!(*hardware.host_devices, ["sata0".into()]);
    }

    #[test]
    fn lists_disks_of_a_container() {
        let hardware = parse_pairs(
            GuestKind::Lxc,
            &[
                ("rootfs", "volume=dir1:200/vm-200-disk-0.raw,size=1G"),
                ("mp0", "tank:vm-200-disk-1,mp=/data,size=8G"),
                ("mp1", "/srv/share,mp=/share"),
                ("cpu", "not a key of containers"),
            ],
        )
        .expect("understood");
        assert_eq!(
            shown_disks(&hardware),
            ["mp0 tank tank:vm-200-disk-1 8G", "mp1 - /srv/share -", "rootfs dir1 dir1:200/vm-200-disk-0.raw 1G"]
        );
        assert_eq!((&*hardware.host_devices, hardware.cpu_type), (["mp1".into()].as_slice(), None));
    }

    #[test]
    fn names_what_ties_a_guest_to_its_node() {
        for (kind, key, value) in [
            (GuestKind::Qemu, "hostpci0", "0000:01:00,pcie=1"),
            (GuestKind::Qemu, "hostpci1", "mapping=gpu"),
            (GuestKind::Qemu, "usb0", "host=1-2"),
            (GuestKind::Qemu, "usb1", "mapping=stick"),
            (GuestKind::Qemu, "serial0", "/dev/ttyS0"),
            (GuestKind::Qemu, "parallel0", "/dev/parport0"),
            (GuestKind::Qemu, "ivshmem", "size=32"),
            (GuestKind::Qemu, "virtiofs0", "share"),
            (GuestKind::Qemu, "ide2", "cdrom,media=cdrom"),
            (GuestKind::Qemu, "args", "-device x"),
            (GuestKind::Qemu, "hookscript", "local:snippets/x.pl"),
            (GuestKind::Lxc, "dev0", "/dev/ttyS0"),
            (GuestKind::Lxc, "mp0", "/srv,mp=/srv"),
            (GuestKind::Lxc, "hookscript", "local:snippets/x.pl"),
        ] {
            assert_eq!(*parse_pairs(kind, &[(key, value)]).expect("understood").host_devices, [key.into()], "{key} {value}");
        }
        for (key, value) in [("usb0", "spice"), ("usb0", "host=SPICE,usb3=1"), ("serial0", "socket"), ("net0", "virtio"), ("scsi0", "a1:x")]
        {
            assert_eq!(*parse_pairs(GuestKind::Qemu, &[(key, value)]).expect("understood").host_devices, [], "{key} {value}");
        }
        let raw = parse(GuestKind::Lxc, r#"[{"key":"lxc","value":[["lxc.mount.entry","/srv srv none bind"]]}]"#).expect("understood");
        assert_eq!(*raw.host_devices, ["lxc".into()]);
        let pending = parse(GuestKind::Qemu, r#"[{"key":"hostpci0","pending":"0000:01:00"}]"#).expect("understood");
        assert_eq!(*pending.host_devices, ["hostpci0".into()], "it has the device from its next start on");
    }

    #[test]
    fn g2_disk_that_is_not_understood_makes_the_list_unread() {
        for (kind, key, value) in [
            (GuestKind::Qemu, "scsi0", r#""size=1G""#),
            (GuestKind::Qemu, "scsi0", r#""""#),
            (GuestKind::Qemu, "scsi0", "null"),
            (GuestKind::Qemu, "tpmstate0", "[]"),
            (GuestKind::Qemu, "cpu", "{}"),
            (GuestKind::Lxc, "rootfs", r#""volume=,size=1G""#),
        ] {
            let json = format!(r#"[{{"key":"{key}","value":{value}}},{{"key":"name","value":"a"}}]"#);
            assert_eq!(parse(kind, &json), Err(key.into()), "{json}");
        }
        let added = parse(GuestKind::Qemu, r#"[{"key":"scsi1","pending":"a1:x,size=1G"}]"#).expect("understood");
        assert_eq!(*added.disks, [], "a pending disk is not attached yet");
    }
}
