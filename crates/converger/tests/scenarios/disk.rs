//! A disk of its own for the state directory of a story, small enough to be full: a tmpfs in a mount namespace that one process keeps.
//!
//! It goes with that process, so that nothing is left mounted whatever becomes of the tests. Where neither a user with a namespace of
//! its own nor root may mount anything, the story fails and says so. What never enters: what a story does with it.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::run::ProgramVariables;

/// Its name in the state directory; it holds nothing.
const FILLER: &str = "filler";
/// What is written at once: the smallest that a tmpfs gives.
const PAGE_BYTES: usize = 4096;

/// A mounted disk.
pub(crate) struct TestDisk {
    /// Ends with its standard input.
    mount_holder: Child,
    /// How the keeper came to its namespace, and others come to it.
    enter: &'static [&'static str],
    directory: PathBuf,
    mounted: PathBuf,
}

/// With a user of its own first: root in a container may mount there, and not elsewhere.
const NAMESPACE_OPTIONS: [(&[&str], &[&str]); 2] =
    [(&["--user", "--map-root-user", "--mount"], &["--user", "--preserve-credentials", "--mount"]), (&["--mount"], &["--mount"])];

impl TestDisk {
    /// Mounts one of so many kibibytes on a directory of the room, which is made where it is not there.
    pub(crate) fn mount(room: &Path, name: &str, kibibytes: u32) -> Result<Self, String> {
        let place = room.join(name);
        fs::create_dir_all(&place).map_err(|error| format!("{name}: {error}"))?;
        let mut tried = Vec::new();
        for (leave, enter) in NAMESPACE_OPTIONS {
            match spawn_mount_holder(leave, &place, kibibytes) {
                Ok(keeper) => {
                    let mounted =
                        Path::new("/proc").join(keeper.id().to_string()).join("root").join(place.strip_prefix("/").unwrap_or(&place));
                    return Ok(Self { mount_holder: keeper, enter, directory: room.to_owned(), mounted });
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

    /// The program where the disk is, in the room, with nothing of this process around it.
    pub(crate) fn program(&self, surroundings: &ProgramVariables) -> Command {
        let mut command = self.command_in_namespace();
        // The directory is looked up there: one that was entered before would lead past the disk.
        command.args(["/bin/sh", "-c", "cd \"$0\" && exec \"$@\""]).arg(&self.directory).arg(env!("CARGO_BIN_EXE_converger"));
        command.env_clear().envs(surroundings.iter().copied()).stdin(Stdio::null());
        command
    }

    /// Everything but so many kibibytes is taken from here on.
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

    /// There is room again.
    pub(crate) fn empty(&self) -> Result<(), String> {
        fs::remove_file(self.mounted.join(FILLER)).map_err(|error| format!("{FILLER}: {error}"))
    }

    /// Nothing, or everything, can be written from here on.
    pub(crate) fn remount(&self, option: &str) -> Result<(), String> {
        let place = self.directory.join(self.mounted.file_name().unwrap_or_default());
        let mut mount = self.command_in_namespace();
        let output = mount.args(["mount", "-o", &format!("remount,{option}")]).arg(place).output().map_err(|error| error.to_string())?;
        if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
    }

    fn command_in_namespace(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.mount_holder.id())).args(self.enter).arg("--");
        command
    }
}

/// A process that has mounted it, and waits until nobody needs it.
fn spawn_mount_holder(leave: &[&str], place: &Path, kibibytes: u32) -> Result<Child, String> {
    let script = format!("mount -t tmpfs -o size={kibibytes}k,mode=0700 tmpfs \"$0\" && echo ready && exec cat");
    let mut command = Command::new("unshare");
    command.args(leave).args(["--propagation", "private", "--", "/bin/sh", "-c", &script]).arg(place);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let mut line = String::new();
    let read = child.stdout.take().map(|said| BufReader::new(said).read_line(&mut line));
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
    let room = tempfile::tempdir().expect("a directory");
    let disk = TestDisk::mount(room.path(), "state", 64).expect("mounted");
    let own = disk.mounted().join("own");
    fs::write(&own, "x").expect("there is room");
    assert!(!room.path().join("state/own").exists(), "nobody else sees it");
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
