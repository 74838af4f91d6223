//! The config file as text, and its digest. The digest depends on the content only, so that
//! changing A to B and back gives the digest of A again.
//!
//! The lab never parses such files; it stores sections.

use std::fmt::Write;

use super::{ConfigSection, LabGuest, LabGuestKind};

impl LabGuest {
    /// The digest that the API returns and that a write can require.
    pub(crate) fn digest(&self) -> String {
        crate::digest::sha1_hex(&self.file_text())
    }

    /// The whole file: main section, pending section, snapshots by name.
    fn file_text(&self) -> String {
        let mut text = String::with_capacity(FILE_BYTES_HINT);
        write_section(&mut text, &self.config);
        for (key, value) in &self.raw {
            let _ = writeln!(text, "{key}: {value}");
        }
        if !self.pending.is_empty() || !self.deletions.is_empty() {
            let _ = writeln!(text, "\n[{}]", self.pending_title());
            text.push_str(&self.deletion_line());
            write_section(&mut text, &self.pending);
        }
        for (name, values) in &self.snapshots {
            let _ = writeln!(text, "\n[{name}]");
            write_section(&mut text, values);
        }
        text
    }

    fn pending_title(&self) -> &'static str {
        match self.kind {
            LabGuestKind::Qemu => "PENDING",
            LabGuestKind::Lxc => "pve:pending",
        }
    }

    fn deletion_line(&self) -> String {
        let deletion_text = |(key, force): (&String, &bool)| if *force { format!("!{key}") } else { key.clone() };
        let deletions: Vec<String> = self.deletions.iter().map(deletion_text).collect();
        if deletions.is_empty() { String::new() } else { format!("delete: {}\n", deletions.join(",")) }
    }
}

/// Typical size of a file.
const FILE_BYTES_HINT: usize = 500;

fn write_section(text: &mut String, values: &ConfigSection) {
    for line in values.get("description").map_or("", String::as_str).lines() {
        text.push('#');
        line.bytes().for_each(|byte| push_escaped(text, byte));
        text.push('\n');
    }
    for (key, value) in values.iter().filter(|(key, _)| *key != "description") {
        [key, ": ", value, "\n"].into_iter().for_each(|part| text.push_str(part));
    }
}

fn push_escaped(text: &mut String, byte: u8) {
    let is_plain = (b' '..=b'~').contains(&byte) && byte != b'%' && byte != b':';
    if is_plain {
        text.push(char::from(byte));
    } else {
        // Writing to a string cannot fail.
        let _ = write!(text, "%{byte:02X}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test_guest() -> LabGuest {
        let mut guest = LabGuest::new(100, LabGuestKind::Qemu, "pve1");
        guest.config.insert("cores".to_owned(), "2".to_owned());
        guest.config.insert("description".to_owned(), "ü: 50%\nline".to_owned());
        guest
    }

    #[test]
    fn any_change_changes_the_digest_and_going_back_restores_it() {
        let mut guest = test_guest();
        let first = guest.digest();
        guest.pending.insert("cores".to_owned(), "4".to_owned());
        assert_ne!(guest.digest(), first);
        guest.pending.clear();
        guest.snapshots.insert("s1".to_owned(), ConfigSection::new());
        assert_ne!(guest.digest(), first);
        guest.snapshots.clear();
        assert_eq!(guest.digest(), first);
    }

    #[test]
    fn the_file_reads_as_proxmox_writes_it() {
        let mut guest = test_guest();
        guest.deletions.insert("scsi1".to_owned(), true);
        guest.deletions.insert("ostype".to_owned(), false);
        assert_eq!(guest.file_text(), "#%C3%BC%3A 50%25\n#line\ncores: 2\n\n[PENDING]\ndelete: ostype,!scsi1\n");
    }
}
