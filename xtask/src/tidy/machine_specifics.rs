//! Finds text that is specific to one machine: its paths, and the registries that it downloads
//! from.
//!
//! Paths of guests and nodes belong to other machines and are not checked; test data avoids the few
//! folders below.

use super::{TidyViolation, TrackedFile};

/// Folders of machines on which this repository was developed.
const MACHINE_FOLDERS: &[&str] = &["work", "root", "farm"];

/// Split, so that this table does not match itself.
const REGISTRY_HOSTS: &[&str] = &[
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("files.python", "hosted.org"),
    concat!("deb.", "debian.org"),
    concat!("security.", "debian.org"),
    concat!("registry.", "npmjs.org"),
];

pub(super) fn violations(file: &TrackedFile) -> Vec<TidyViolation> {
    let lines = file.text.lines().enumerate();
    lines.filter_map(|(index, line)| line_violation(file, line).map(|found| TidyViolation::new(&file.path, index + 1, found))).collect()
}

fn line_violation(file: &TrackedFile, line: &str) -> Option<String> {
    let path =
        machine_path(line).map(|path| format!("`{path}` is specific to one machine; make it relative to the repository, or an argument"));
    path.or_else(|| registry_host(file, line))
}

fn machine_path(line: &str) -> Option<String> {
    let mut folders = MACHINE_FOLDERS.iter().map(|folder| format!("/{folder}/"));
    folders.find(|folder| is_absolute(line, folder)).or_else(|| home_path(line))
}

/// A path is absolute if no path character precedes it: not in `a/b`, `./b`, `~/b` or `{a}/b`.
fn is_absolute(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(offset, _)| is_path_start(line, offset))
}

fn is_path_start(line: &str, offset: usize) -> bool {
    let before = line[..offset].chars().next_back();
    !before.is_some_and(|character| character.is_alphanumeric() || "_-.~})>*".contains(character))
}

/// `/home/` and a name; placeholders such as `/home/<user>` and `/home/$USER` do not count.
fn home_path(line: &str) -> Option<String> {
    let offsets = line.match_indices("/home/").map(|(offset, _)| offset);
    let names = offsets.filter(|offset| is_path_start(line, *offset)).map(|offset| &line[offset + "/home/".len()..]);
    let name = |rest: &str| rest.split(|character: char| !character.is_alphanumeric()).next().unwrap_or("").to_owned();
    names.map(name).find(|name| !name.is_empty()).map(|name| format!("/home/{name}"))
}

fn registry_host(file: &TrackedFile, line: &str) -> Option<String> {
    let locked = file.path.ends_with("Cargo.lock") && line.starts_with("source = ");
    let host = REGISTRY_HOSTS.iter().find(|host| !locked && line.contains(*host))?;
    Some(format!("`{host}` is the host of a registry; remove it, because cargo, pip and apt may be configured to use a mirror"))
}

#[cfg(test)]
mod tests {
    use super::super::sample::{file, lines};
    use super::*;

    fn violation_lines(path: &str, text: &str) -> Vec<usize> {
        lines(&violations(&file(path, text)))
    }

    /// A path that is joined at run time, so that this file does not match itself.
    fn joined_path(parts: &[&str]) -> String {
        format!("/{}", parts.join("/"))
    }

    #[test]
    fn every_folder_of_a_machine_is_found() {
        for folder in MACHINE_FOLDERS {
            assert_eq!(violation_lines("a.md", &format!("first\ncd {}\n", joined_path(&[folder, "main"]))), [2], "{folder}");
        }
        assert_eq!(violation_lines("a.rs", &format!("(\"{}\")", joined_path(&["home", "ada", "x"]))), [1]);
        assert_eq!(violation_lines("a.rs", &format!("file://{}", joined_path(&["home", "ada"]))), [1]);
    }

    #[test]
    fn relative_paths_and_home_placeholders_pass() {
        for text in ["docs/work/a", "./root/b", "~/work/c", "{dir}/work/d", "/home/<user>/e", "/home/$USER", "x/home/ada"] {
            assert!(violation_lines("a.md", text).is_empty(), "{text}");
        }
    }

    #[test]
    fn every_registry_host_is_found_but_not_in_a_lock_files_sources() {
        for host in REGISTRY_HOSTS {
            assert_eq!(violation_lines("README.md", &format!("a\nhttps://index.{host}/b\n")), [2], "{host}");
            assert_eq!(violation_lines("Cargo.lock", &format!("# {host}")), [1], "{host}");
            assert!(violation_lines("Cargo.lock", &format!("source = \"registry+https://{host}-index\"")).is_empty());
        }
        assert!(violation_lines("Cargo.toml", "[patch.crates-io]").is_empty());
    }
}
