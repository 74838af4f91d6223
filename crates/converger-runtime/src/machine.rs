//! The birth marks of the machine that this program runs on, so that it never stops its own guest (G3).
//!
//! Containers share the firmware of their host, and its UUID: only hardware addresses distinguish them. A mark that exists and cannot be read is not a
//! missing mark; core decides what follows from it.

use std::path::Path;
use std::{fs, io};

use converger_core::policy::{MachineIdentity, MachineMark};
use rustix::io::Errno;

/// The chassis vendor of QEMU guests, which `smbios1` in the guest's config does not change.
const QEMU_CHASSIS_VENDOR: &str = "QEMU";

/// Reads the marks of this machine, as far as they are readable.
pub fn read_machine_identity() -> MachineIdentity {
    read_identity_at(Path::new("/sys/class"))
}

fn read_identity_at(class: &Path) -> MachineIdentity {
    let net = class.join("net");
    let addresses = read_hardware_addresses(&net);
    let uuid = read_firmware_uuid(&class.join("dmi/id"));
    let unread = [(MachineMark::FirmwareUuid, uuid.is_err()), (MachineMark::HardwareAddresses, addresses.is_err())];
    let (macs, has_device) = addresses.unwrap_or_default();
    let host = MachineIdentity::new(macs, uuid.unwrap_or_default())
        .with_unreadable(unread.into_iter().filter(|(_, is_unread)| *is_unread).map(|(mark, _)| mark));
    if has_device { host.with_device() } else { host }
}

/// The addresses of all network links, and whether one of them belongs to a device. Links that come and go do no harm.
fn read_hardware_addresses(net: &Path) -> io::Result<(Vec<String>, bool)> {
    let Some(links) = ignore_missing(fs::read_dir(net))? else { return Ok((Vec::new(), false)) };
    let (mut macs, mut has_device) = (Vec::new(), false);
    for link in links {
        let link = link?;
        // Links are directories; `bonding_masters` is a file beside them.
        if link.file_type()?.is_file() {
            continue;
        }
        let path = link.path();
        let address = read_trimmed(&path.join("address"))?.filter(|mac| mac != "00:00:00:00:00:00");
        has_device |= address.is_some() && ignore_missing(fs::metadata(path.join("device")))?.is_some();
        macs.extend(address);
    }
    Ok((macs, has_device))
}

/// Usually only root may read the firmware UUID. If the chassis vendor shows that this is no guest of Proxmox, the UUID is not needed.
fn read_firmware_uuid(dmi: &Path) -> io::Result<Option<String>> {
    read_trimmed(&dmi.join("product_uuid")).or_else(|error| match read_trimmed(&dmi.join("chassis_vendor")) {
        Ok(Some(vendor)) if vendor != QEMU_CHASSIS_VENDOR => Ok(None),
        _ => Err(error),
    })
}

fn read_trimmed(path: &Path) -> io::Result<Option<String>> {
    let text = ignore_missing(fs::read_to_string(path))?;
    Ok(text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()))
}

/// `None` for a file that does not exist, or that disappeared during the read.
fn ignore_missing<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    let is_gone = |error: &io::Error| {
        let gone_codes = [Errno::NOENT, Errno::NODEV, Errno::INVAL].map(Errno::raw_os_error);
        error.raw_os_error().is_some_and(|number| gone_codes.contains(&number))
    };
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use converger_core::guest::GuestIdentity;
    use converger_core::normalize::WordSet;
    use converger_core::policy::OwnGuest;

    const MAC: &str = "BC:24:11:AA:BB:CC";
    const UUID: &str = "1c0d6f6e-5a0e-4a55-9d3c-000000000100";

    fn sysfs_fixture(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().expect("a directory");
        for (path, text) in files {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, text).expect("written");
        }
        directory
    }

    fn match_lxc(host: &MachineIdentity, mac: &str) -> OwnGuest {
        host.match_guest(&GuestIdentity::Lxc { rootfs: None, mac: Some(mac.into()) }, &WordSet::default())
    }

    fn match_qemu(host: &MachineIdentity, uuid: &str, mac: &str) -> OwnGuest {
        host.match_guest(&GuestIdentity::Qemu { uuid: Some(uuid.into()), ctime: None }, &WordSet::new(vec![mac.into()]))
    }

    #[test]
    fn reads_marks_from_sysfs() {
        let directory = sysfs_fixture(&[
            ("net/lo/address", "00:00:00:00:00:00\n"),
            ("net/eth0/address", "bc:24:11:aa:bb:cc\n"),
            ("net/bonding_masters", "bond0\n"),
            ("dmi/id/product_uuid", "1C0D6F6E-5A0E-4A55-9D3C-000000000100\n"),
        ]);
        let host = read_identity_at(directory.path());
        assert_eq!((match_lxc(&host, MAC), match_lxc(&host, "00:00:00:00:00:00")), (OwnGuest::Yes, OwnGuest::No));
        assert_eq!(
            (match_qemu(&host, UUID, "x"), match_qemu(&host, "another", MAC), match_qemu(&host, "another", "x")),
            (OwnGuest::Yes, OwnGuest::Yes, OwnGuest::No)
        );
        assert_eq!(read_identity_at(&directory.path().join("none")), MachineIdentity::default());
    }

    /// Not even root can read a directory as a file, or a file as a directory.
    #[test]
    fn g3_unreadable_mark_is_not_a_missing_mark() {
        let blind = read_identity_at(sysfs_fixture(&[("net", ""), ("dmi/id/product_uuid", UUID)]).path());
        assert_eq!((blind.unreadable_marks(), match_lxc(&blind, MAC)), (vec!["hardware-addresses".to_owned()], OwnGuest::Unknown));
        let one = read_identity_at(sysfs_fixture(&[("net/eth0/address/x", ""), ("net/eth1/address", MAC)]).path());
        assert_eq!((one.unreadable_marks(), match_lxc(&one, "another")), (vec!["hardware-addresses".to_owned()], OwnGuest::Unknown));
        let files = [("dmi/id/product_uuid/x", ""), ("dmi/id/chassis_vendor", "QEMU\n"), ("net/eth0/address", MAC)];
        let hidden = read_identity_at(sysfs_fixture(&files).path());
        assert_eq!((hidden.unreadable_marks(), match_qemu(&hidden, "another", "x")), (vec!["firmware-uuid".to_owned()], OwnGuest::Unknown));
        assert_eq!(match_qemu(&hidden, "another", MAC), OwnGuest::Yes);
        let unnamed = read_identity_at(sysfs_fixture(&files[..1]).path());
        assert_eq!(match_qemu(&unnamed, "another", "x"), OwnGuest::Unknown);
    }

    #[test]
    fn hidden_uuid_is_decided_by_devices_or_by_another_chassis_vendor() {
        let files =
            [("dmi/id/product_uuid/x", ""), ("dmi/id/chassis_vendor", "QEMU\n"), ("net/ens18/address", MAC), ("net/ens18/device/x", "")];
        let host = read_identity_at(sysfs_fixture(&files).path());
        assert_eq!((match_qemu(&host, "another", "x"), match_qemu(&host, "another", MAC)), (OwnGuest::No, OwnGuest::Yes));
        let laptop =
            read_identity_at(sysfs_fixture(&[files[0], ("dmi/id/chassis_vendor", "LENOVO\n"), ("net/docker0/address", MAC)]).path());
        assert_eq!((laptop.unreadable_marks(), match_qemu(&laptop, "another", "x")), (Vec::new(), OwnGuest::No));
    }
}
