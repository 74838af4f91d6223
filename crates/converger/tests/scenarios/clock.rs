//! A shifted wall clock for the program, as on a machine that slept or whose clock was corrected.
//!
//! A small C library that is preloaded shifts the time of day; the program itself has no such switch. The clocks of the world belong to the
//! lab.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scenarios/clock.c");

/// A shifted clock for one scenario.
pub(crate) struct ShiftedClock {
    directory: TempDir,
}

impl ShiftedClock {
    pub(crate) fn new() -> Result<Self, String> {
        compile_shim()?;
        tempfile::tempdir().map(|directory| Self { directory }).map_err(|error| error.to_string())
    }

    /// Sets the offset to this machine's clock in seconds.
    pub(crate) fn set(&self, seconds: i64) -> Result<(), String> {
        // Atomically, so that a concurrent reader sees the old or the new value.
        let next = self.directory.path().join("next");
        let set = fs::write(&next, seconds.to_string()).and_then(|()| fs::rename(&next, self.offset_file()));
        set.map_err(|error| format!("clock: {error}"))
    }

    /// Starts a program with this clock.
    pub(crate) fn attach_to(&self, program: &mut Command) -> Result<(), String> {
        program.env("LD_PRELOAD", compile_shim()?).env("SHIFTED_CLOCK", self.offset_file());
        Ok(())
    }

    fn offset_file(&self) -> PathBuf {
        self.directory.path().join("seconds")
    }
}

/// Compiled once. A C compiler exists, because building SQLite needs one.
fn compile_shim() -> Result<&'static Path, String> {
    static SHIM: OnceLock<Result<(TempDir, PathBuf), String>> = OnceLock::new();
    let shim = SHIM.get_or_init(|| {
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let path = directory.path().join("clock.so");
        let output = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&path).arg(SOURCE).output();
        let output = output.map_err(|error| format!("`cc` is needed for a story with a clock of its own: {error}"))?;
        if output.status.success() { Ok((directory, path)) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
    });
    shim.as_ref().map(|(_, path)| path.as_path()).map_err(Clone::clone)
}

#[test]
fn shifts_only_the_wall_clock_of_the_program() {
    let clock = ShiftedClock::new().expect("a clock");
    let year = || {
        let mut date = Command::new("date");
        clock.attach_to(&mut date).expect("given");
        String::from_utf8(date.args(["-u", "+%Y"]).output().expect("it runs").stdout)
            .expect("digits")
            .trim()
            .parse::<u32>()
            .expect("a year")
    };
    let now = year();
    clock.set(10 * 366 * 86_400).expect("set");
    assert_eq!(year(), now + 10);
    clock.set(0).expect("set");
    assert_eq!(year(), now);
}
