//! A separate small disk for the state directory of a scenario, so that it can become full: a tmpfs in a mount namespace that one process
//! holds.
//!
//! It disappears with that process, so nothing stays mounted whatever happens to the tests. If neither a user namespace nor root may
//! mount, the scenario fails with a message.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::run::ProgramVariables;

/// The name of a file in the state directory that only takes up space.
const FILLER: &str = "filler";
/// The block size of writes: the smallest unit of a tmpfs.
const PAGE_BYTES: usize = 4096;

/// A mounted disk.
pub(crate) struct TestDisk {
    /// Ends when its standard input is closed.
    mount_holder: Child,
    /// How the holder entered its namespace, and how others enter it.
    enter: &'static [&'static str],
    directory: PathBuf,
    mounted: PathBuf,
}

/// First with a user namespace: root in a container may mount only there.
const NAMESPACE_OPTIONS: [(&[&str], &[&str]); 2] =
    [(&["--user", "--map-root-user", "--mount"], &["--user", "--preserve-credentials", "--mount"]), (&["--mount"], &["--mount"])];

impl TestDisk {
    /// Mounts a disk of this size on a subdirectory of `room`, which is created if necessary.
    pub(crate) fn mount(directory: &Path, name: &str, kibibytes: u32) -> Result<Self, String> {
        let mount_point = directory.join(name);
        fs::create_dir_all(&mount_point).map_err(|error| format!("{name}: {error}"))?;
        let mut tried = Vec::new();
        for (leave, enter) in NAMESPACE_OPTIONS {
            match spawn_mount_holder(leave, &mount_point, kibibytes) {
                Ok(mount_holder) => {
                    let mounted = Path::new("/proc")
                        .join(mount_holder.id().to_string())
                        .join("root")
                        .join(mount_point.strip_prefix("/").unwrap_or(&mount_point));
                    return Ok(Self { mount_holder, enter, directory: directory.to_owned(), mounted });
                }
                Err(error) => tried.push(format!("`unshare {}`: {error}", leave.join(" "))),
            }
        }
        Err(format!("a story about a full disk needs a tmpfs, and nobody may mount one here: {}", tried.join("; ")))
    }

    /// The directory as the program sees it.
    pub(crate) fn mounted(&self) -> &Path {
        &self.mounted
    }

    /// The program in the namespace of the disk, without the variables of this process.
    pub(crate) fn program(&self, surroundings: &ProgramVariables) -> Command {
        let mut command = self.command_in_namespace();
        // The directory is resolved inside the namespace; one that was opened before would lead past the disk.
        command.args(["/bin/sh", "-c", "cd \"$0\" && exec \"$@\""]).arg(&self.directory).arg(env!("CARGO_BIN_EXE_converger"));
        command.env_clear().envs(surroundings.iter().copied()).stdin(Stdio::null());
        command
    }

    /// Fills the disk, except for this many KiB.
    pub(crate) fn fill(&self, left_kibibytes: usize) -> Result<(), String> {
        let path = self.mounted.join(FILLER);
        let wrong = |error: std::io::Error| format!("{}: {error}", path.display());
        let mut file = File::create(&path).map_err(wrong)?;
        let mut bytes = 0;
        while file.write_all(&[0; PAGE_BYTES]).is_ok() {
            bytes += PAGE_BYTES;
        }
        file.set_len(bytes.saturating_sub(left_kibibytes * 1024) as u64).map_err(wrong)
    }

    /// Frees the disk.
    pub(crate) fn empty(&self) -> Result<(), String> {
        fs::remove_file(self.mounted.join(FILLER)).map_err(|error| format!("{FILLER}: {error}"))
    }

    /// Remounts the disk read-only or writable.
    pub(crate) fn remount(&self, option: &str) -> Result<(), String> {
        let mount_point = self.directory.join(self.mounted.file_name().unwrap_or_default());
        let mut mount = self.command_in_namespace();
        let output =
            mount.args(["mount", "-o", &format!("remount,{option}")]).arg(mount_point).output().map_err(|error| error.to_string())?;
        if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
    }

    fn command_in_namespace(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.mount_holder.id())).args(self.enter).arg("--");
        command
    }
}

/// A process that has mounted the disk and waits until it is not needed any more.
fn spawn_mount_holder(leave: &[&str], mount_point: &Path, kibibytes: u32) -> Result<Child, String> {
    let script = format!("mount -t tmpfs -o size={kibibytes}k,mode=0700 tmpfs \"$0\" && echo ready && exec cat");
    let mut command = Command::new("unshare");
    command.args(leave).args(["--propagation", "private", "--", "/bin/sh", "-c", &script]).arg(mount_point);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let mut line = String::new();
    let read = child.stdout.take().map(|stdout| BufReader::new(stdout).read_line(&mut line));
    if matches!(read, Some(Ok(_))) && line == "ready\n" {
        return Ok(child);
    }
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

impl Drop for TestDisk {
    fn drop(&mut self) {
        drop(self.mount_holder.stdin.take());
        let _ = self.mount_holder.wait();
    }
}

#[test]
fn disk_fills_becomes_read_only_and_is_unmounted() {
    let directory = tempfile::tempdir().expect("a directory");
    let disk = TestDisk::mount(directory.path(), "state", 64).expect("mounted");
    let own = disk.mounted().join("own");
    fs::write(&own, "x").expect("there is room");
    assert!(!directory.path().join("state/own").exists(), "nobody else sees it");
    disk.fill(0).expect("filled");
    let error = fs::write(disk.mounted().join("other"), [1; 4096]).expect_err("it is full");
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    disk.empty().expect("emptied");
    disk.remount("ro").expect("read-only");
    assert_eq!(fs::write(&own, "y").expect_err("it is read-only").kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    disk.remount("rw").expect("writable");
    fs::write(&own, "y").expect("there is room");
    let mounted = disk.mounted().to_owned();
    drop(disk);
    assert!(!mounted.exists());
}
