//! The machine that this program runs on: marks by which its own guest is known, so that it never stops itself (G3).
//!
//! A container shares its host's firmware, and so its UUID, with all others: there only hardware addresses tell. A mark that is there and may
//! not be read is not one that the machine lacks: only what does not exist is none, and what follows from the rest is decided in the core.

use std::path::Path;
use std::{fs, io};

use converger_core::policy::{Host, Mark};
use rustix::io::Errno;

/// What QEMU writes as the maker of the case, where `smbios1` of the guest's config does not reach.
const CASE_MAKER: &str = "QEMU";

/// The marks of this machine, as far as they may be read.
pub fn own() -> Host {
    at(Path::new("/sys/class"))
}

fn at(class: &Path) -> Host {
    let net = class.join("net");
    let addresses = addresses(&net);
    let uuid = firmware_uuid(&class.join("dmi/id"));
    let unread = [(Mark::FirmwareUuid, uuid.is_err()), (Mark::HardwareAddresses, addresses.is_err())];
    let (macs, has_device) = addresses.unwrap_or_default();
    let host =
        Host::new(macs, uuid.unwrap_or_default()).without(unread.into_iter().filter(|(_, is_unread)| *is_unread).map(|(mark, _)| mark));
    if has_device { host.with_device() } else { host }
}

/// The addresses of all links, and whether one of them is that of a device. Links that come and go do no harm among them.
fn addresses(net: &Path) -> io::Result<(Vec<String>, bool)> {
    let Some(links) = there(fs::read_dir(net))? else { return Ok((Vec::new(), false)) };
    let (mut macs, mut has_device) = (Vec::new(), false);
    for link in links {
        let link = link?;
        // Links are directories; `bonding_masters` beside them is a file.
        if link.file_type()?.is_file() {
            continue;
        }
        let path = link.path();
        let address = word(&path.join("address"))?.filter(|mac| mac != "00:00:00:00:00:00");
        has_device |= address.is_some() && there(fs::metadata(path.join("device")))?.is_some();
        macs.extend(address);
    }
    Ok((macs, has_device))
}

/// The firmware's UUID is for root only nearly everywhere; where it cannot be that of a guest of Proxmox, nothing is missed.
fn firmware_uuid(dmi: &Path) -> io::Result<Option<String>> {
    word(&dmi.join("product_uuid")).or_else(|error| match word(&dmi.join("chassis_vendor")) {
        Ok(Some(maker)) if maker != CASE_MAKER => Ok(None),
        _ => Err(error),
    })
}

fn word(path: &Path) -> io::Result<Option<String>> {
    let text = there(fs::read_to_string(path))?;
    Ok(text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()))
}

/// What does not exist is no mark, and neither is what went away while it was looked at.
fn there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    let is_gone = |error: &io::Error| {
        let gone = [Errno::NOENT, Errno::NODEV, Errno::INVAL].map(Errno::raw_os_error);
        error.raw_os_error().is_some_and(|number| gone.contains(&number))
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
    use converger_core::guest::Identity;
    use converger_core::normalize::Words;
    use converger_core::policy::Own;

    const MAC: &str = "BC:24:11:AA:BB:CC";
    const UUID: &str = "1c0d6f6e-5a0e-4a55-9d3c-000000000100";

    fn room(files: &[(&str, &str)]) -> tempfile::TempDir {
        let room = tempfile::tempdir().expect("a directory");
        for (path, text) in files {
            let path = room.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, text).expect("written");
        }
        room
    }

    fn lxc(host: &Host, mac: &str) -> Own {
        host.is(&Identity::Lxc { rootfs: None, mac: Some(mac.into()) }, &Words::default())
    }

    fn qemu(host: &Host, uuid: &str, mac: &str) -> Own {
        host.is(&Identity::Qemu { uuid: Some(uuid.into()), ctime: None }, &Words::new(vec![mac.into()]))
    }

    #[test]
    fn marks_are_where_linux_shows_them() {
        let room = room(&[
            ("net/lo/address", "00:00:00:00:00:00\n"),
            ("net/eth0/address", "bc:24:11:aa:bb:cc\n"),
            ("net/bonding_masters", "bond0\n"),
            ("dmi/id/product_uuid", "1C0D6F6E-5A0E-4A55-9D3C-000000000100\n"),
        ]);
        let host = at(room.path());
        assert_eq!((lxc(&host, MAC), lxc(&host, "00:00:00:00:00:00")), (Own::Yes, Own::No));
        assert_eq!((qemu(&host, UUID, "x"), qemu(&host, "another", MAC), qemu(&host, "another", "x")), (Own::Yes, Own::Yes, Own::No));
        assert_eq!(at(&room.path().join("none")), Host::default());
    }

    /// A directory where a file belongs, and the other way round, cannot be read by anybody, root among them.
    #[test]
    fn g3_a_mark_that_is_there_and_cannot_be_read_is_not_one_that_is_not_there() {
        let blind = at(room(&[("net", ""), ("dmi/id/product_uuid", UUID)]).path());
        assert_eq!((blind.unread(), lxc(&blind, MAC)), (vec!["hardware-addresses".to_owned()], Own::Untold));
        let one = at(room(&[("net/eth0/address/x", ""), ("net/eth1/address", MAC)]).path());
        assert_eq!((one.unread(), lxc(&one, "another")), (vec!["hardware-addresses".to_owned()], Own::Untold));
        let files = [("dmi/id/product_uuid/x", ""), ("dmi/id/chassis_vendor", "QEMU\n"), ("net/eth0/address", MAC)];
        let hidden = at(room(&files).path());
        assert_eq!((hidden.unread(), qemu(&hidden, "another", "x")), (vec!["firmware-uuid".to_owned()], Own::Untold));
        assert_eq!(qemu(&hidden, "another", MAC), Own::Yes);
        let unnamed = at(room(&files[..1]).path());
        assert_eq!(qemu(&unnamed, "another", "x"), Own::Untold);
    }

    #[test]
    fn where_the_uuid_is_hidden_devices_tell_and_a_case_of_another_maker_does() {
        let files =
            [("dmi/id/product_uuid/x", ""), ("dmi/id/chassis_vendor", "QEMU\n"), ("net/ens18/address", MAC), ("net/ens18/device/x", "")];
        let host = at(room(&files).path());
        assert_eq!((qemu(&host, "another", "x"), qemu(&host, "another", MAC)), (Own::No, Own::Yes));
        let laptop = at(room(&[files[0], ("dmi/id/chassis_vendor", "LENOVO\n"), ("net/docker0/address", MAC)]).path());
        assert_eq!((laptop.unread(), qemu(&laptop, "another", "x")), (Vec::new(), Own::No));
    }
}
