//! An export that is killed at any write is either the old one or the new one, complete. If there was none before, it is reported as
//! interrupted. The next export repairs it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::export_files::ExportFiles;
use crate::fixture::{CommandOutput, EvidenceFixture};
use crate::oracle::accept_export;

/// All system calls by which an export leaves something on disk.
const CALLS: [&str; 5] = ["write", "fsync,fdatasync", "/^mkdir", "linkat", "/^rename"];

/// More calls than an export makes: the loop ends earlier, with an undisturbed export.
const CALLS_MAX: u64 = 400;

/// Kills an export at its nth call of this kind; returns whether that call happened.
fn is_killed(fixture: &EvidenceFixture, directory: &str, call: &str, nth: u64) -> bool {
    let (trace, inject) = (format!("trace={call}"), format!("inject={call}:signal=KILL:when={nth}"));
    let program = env!("CARGO_BIN_EXE_converger");
    let arguments = ["-f", "-qq", "-o", "strace", "-e", &trace, "-e", &inject, program, "ledger", "export", directory];
    let strace_output = fixture.apply_fixture.command("strace", &arguments).output().expect("strace is installed (`cargo xtask ci tools`)");
    match CommandOutput::from(strace_output) {
        CommandOutput { code: Some(0), .. } => false,
        CommandOutput { code: None, .. } => true,
        output => panic!("{call} {nth}: {output:?}"),
    }
}

/// Kills at every call; counts the results.
fn kill_at_each_call(
    fixture: &EvidenceFixture,
    before: Option<&Path>,
    judge: impl Fn(&str) -> &'static str,
) -> BTreeMap<&'static str, u32> {
    let mut ends = BTreeMap::new();
    for call in CALLS {
        for nth in 1..CALLS_MAX {
            let target = fixture.apply_fixture.path("target");
            match before {
                Some(before) => ExportFiles::read(before).write(&target),
                None => drop(fs::remove_dir_all(&target)),
            }
            let killed = is_killed(fixture, "target", call, nth);
            let what = format!("{call} {nth}");
            *ends.entry(judge(&what)).or_default() += 1;
            if !killed {
                break;
            }
            if nth % 5 == 1 {
                fixture.run_expecting(&["ledger", "export", "target"], 0);
                assert_eq!(judge(&what), "new", "{what}: the next one mends it");
                let left: Vec<_> = ExportFiles::read(&target).0.into_keys().filter(|name| name.ends_with(".tmp")).collect();
                assert!(left.is_empty(), "{what}: {left:?} are of nobody");
            }
        }
    }
    ends
}

#[test]
fn export_killed_at_any_write_is_the_old_or_the_new_one() {
    let fixture = EvidenceFixture::with_long_history();
    let old = fixture.export_to("old");
    let (key, size) = (fixture.key(), fixture.entry_count());
    fixture.run_expecting(&["apply", "missing.yaml"], 3);
    let now = fixture.entry_count();
    assert!(now / 256 > size / 256, "a tile became full between {size} and {now}");
    let judge = |what: &str| {
        let output = fixture.run_expecting(&["verify", "target", "--key", &key], 0);
        let accepted = accept_export(&ExportFiles::read(&fixture.apply_fixture.path("target")), &key)
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(output.contains(&format!("{} entries", accepted.size)), "{what}: {output}");
        if accepted.size == size {
            "old"
        } else {
            assert_eq!(accepted.size, now, "{what}");
            "new"
        }
    };
    let ends = kill_at_each_call(&fixture, Some(&old), judge);
    println!("{} points: {ends:?}", ends.values().sum::<u32>());
    assert!(ends["old"] > 30 && ends["new"] >= 4, "{ends:?}");
}

#[test]
fn killed_first_export_is_reported_as_incomplete() {
    let fixture = EvidenceFixture::with_short_history();
    let key = fixture.key();
    let judge = |what: &str| {
        let output = fixture.run(&["verify", "target", "--key", &key]);
        match output.code {
            Some(0) => "new",
            Some(6) if output.err.contains("the file `checkpoint` is missing: the export was interrupted, or the file was removed") => {
                "none"
            }
            // Not even the directory was created.
            Some(2) if output.err.contains("cannot read target") => "nothing",
            _ => panic!("{what}: {output:?}"),
        }
    };
    let ends = kill_at_each_call(&fixture, None, judge);
    println!("{} points: {ends:?}", ends.values().sum::<u32>());
    assert!(ends["none"] > 40 && ends["new"] >= 4, "{ends:?}");
}
