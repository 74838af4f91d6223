//! A secret that is recognised wherever it leaks: as itself and in the encodings that other programs use.

use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};

/// A secret and its encodings.
pub(crate) struct SecretCanary {
    forms: Vec<(&'static str, Vec<u8>)>,
}

impl SecretCanary {
    pub(crate) fn new(secret: impl AsRef<[u8]>) -> Self {
        let secret = secret.as_ref();
        let each = |write: fn(u8) -> String| secret.iter().copied().map(write).collect::<String>().into_bytes();
        let tilde = |byte: u8| if byte == b'~' { b"%7E".to_vec() } else { vec![byte] };
        let mut forms = vec![
            ("itself", secret.to_vec()),
            ("backwards", secret.iter().rev().copied().collect()),
            ("in an address", each(|byte| format!("%{byte:02X}"))),
            ("in an address, small", each(|byte| format!("%{byte:02x}"))),
            ("in an address, where it must be", secret.iter().copied().flat_map(tilde).collect()),
            ("in hexadecimal", each(|byte| format!("{byte:02x}"))),
            ("in capitals", each(|byte| format!("{byte:02X}"))),
            ("in JSON", each(|byte| format!("\\u{byte:04x}"))),
            ("in two bytes", secret.iter().flat_map(|byte| [*byte, 0]).collect()),
        ];
        for before in 0..3 {
            for alphabet in [&STANDARD, &URL_SAFE] {
                let encoded = alphabet.encode([vec![b'='; before], secret.to_vec()].concat());
                // The text before and after the secret changes the characters at both ends.
                forms.push(("in base64", encoded.as_bytes()[before * 8_usize.div_ceil(6)..encoded.len() - 4].to_vec()));
            }
        }
        Self { forms }
    }

    /// The encodings that occur in these bytes.
    pub(crate) fn find_forms(&self, bytes: &[u8]) -> Vec<&'static str> {
        let is_in = |form: &[u8]| bytes.windows(form.len()).any(|part| part == form);
        self.forms.iter().filter(|(_, form)| is_in(form)).map(|(name, _)| *name).collect()
    }

    /// The files below a directory that contain the secret, except files with these names.
    pub(crate) fn find_in_files(&self, directory: &Path, without: &[&str]) -> Vec<String> {
        let mut found = Vec::new();
        for entry in fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry")) {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if path.is_dir() {
                found.extend(self.find_in_files(&path, without));
            } else if !without.contains(&name.as_str()) {
                let forms = self.find_forms(&fs::read(&path).expect("a file"));
                found.extend(forms.iter().chain(&self.find_forms(name.as_bytes())).map(|form| format!("{}: {form}", path.display())));
            }
        }
        found
    }
}

/// The search must find the secret; otherwise finding nothing would prove nothing.
#[test]
fn finds_a_secret_in_every_form() {
    let secret = "canary~7e57.5ec2e7-0000-4000-8000-00c0ffee";
    let canary = SecretCanary::new(secret);
    for (name, form) in &canary.forms {
        let bytes = [b"before ", form.as_slice(), b" after"].concat();
        assert!(canary.find_forms(&bytes).contains(name), "{name}");
    }
    for before in 0..6 {
        let header = format!("{}PVEAPIToken=root@pam!lab={} and more", "x".repeat(before), secret);
        let found = canary.find_forms(STANDARD.encode(&header).as_bytes());
        assert!(!found.is_empty() && found.iter().all(|form| *form == "in base64"), "{before}: {found:?}");
    }
    assert_eq!(canary.find_forms(b"canary~7e57.5ec2e7-0000-4000-8000-00c0ffe"), Vec::<&str>::new());
    let directory = tempfile::tempdir().expect("a directory");
    fs::create_dir(directory.path().join("below")).expect("made");
    fs::write(directory.path().join("below/file"), secret).expect("written");
    assert_eq!(canary.find_in_files(directory.path(), &[]).len(), 1);
    assert_eq!(canary.find_in_files(directory.path(), &["file"]).len(), 0);
}
