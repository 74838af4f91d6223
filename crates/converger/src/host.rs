//! The machine that this program runs on: marks by which its own guest is known, so that it never stops itself (G3).
//!
//! A container shares its host's firmware, and so its UUID, with all others: there only hardware addresses tell.

use std::fs;
use std::path::Path;

use converger_core::policy::Host;

/// The marks of this machine, as far as they may be read.
pub(crate) fn own() -> Host {
    at(Path::new("/sys/class"))
}

fn at(class: &Path) -> Host {
    let word = |path: &Path| fs::read_to_string(path).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    let devices = fs::read_dir(class.join("net")).into_iter().flatten().flatten();
    let macs = devices.filter_map(|device| word(&device.path().join("address"))).filter(|mac| mac != "00:00:00:00:00:00");
    Host::new(macs, word(&class.join("dmi/id/product_uuid")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use converger_core::guest::Identity;

    #[test]
    fn marks_are_where_linux_shows_them() {
        let room = tempfile::tempdir().expect("a directory");
        let write = |path: &str, text: &str| {
            let path = room.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, text).expect("written");
        };
        write("net/lo/address", "00:00:00:00:00:00\n");
        write("net/eth0/address", "bc:24:11:aa:bb:cc\n");
        write("dmi/id/product_uuid", "1C0D6F6E-5A0E-4A55-9D3C-000000000100\n");
        let host = at(room.path());
        assert!(host.is(&Identity::Lxc { rootfs: None, mac: Some("BC:24:11:AA:BB:CC".into()) }));
        assert!(!host.is(&Identity::Lxc { rootfs: None, mac: Some("00:00:00:00:00:00".into()) }));
        assert!(host.is(&Identity::Qemu { uuid: Some("1c0d6f6e-5a0e-4a55-9d3c-000000000100".into()), ctime: None }));
        assert_eq!(at(&room.path().join("none")), Host::default());
    }
}
