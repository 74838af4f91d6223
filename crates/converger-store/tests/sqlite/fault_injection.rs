//! Kills the process at the Nth call that writes, syncs, truncates or removes a file, or lets that call fail with a disk error or a full
//! disk. In every case what was acknowledged is found, and no batch is found in part (S18, S19).
//!
//! Requires strace and fails without it. By default it tries some of the points; with `CONVERGER_TEST_EVERY_POINT` set it tries all of
//! them.

use std::collections::BTreeMap;
use std::env;
use std::path::Path;
use std::process::{Command, ExitStatus, Output};

use converger_store::conformance::{OperationSample, block_on};
use converger_store::{CommitAck, SqliteStore, Store, StoreError, StoreReader as _, StoreSettings};

use super::kill::{check_after_kill, three_intents};
use super::state_directory_path;

pub(super) const DIRECTORY: &str = "CONVERGER_TEST_INJECTED_IN";
const EVERY_POINT: &str = "CONVERGER_TEST_EVERY_POINT";
const NAME: &str = "fault_injection::no_failing_call_loses_an_acknowledged_batch";

/// More calls than the victim makes: the loop ends earlier, with a victim that no fault hit.
const CALLS_MAX: u64 = 400;

const CALLS: [&str; 4] = ["pwrite64", "fsync,fdatasync", "ftruncate", "unlink"];
const FAULTS: [&str; 3] = ["signal=KILL", "error=EIO", "error=ENOSPC"];

#[test]
fn no_failing_call_loses_an_acknowledged_batch() {
    if let Some(directory) = env::var_os(DIRECTORY) {
        return run_victim(Path::new(&directory));
    }
    // A step of seven covers every kind of call: a commit has about five writes and one sync.
    let step = if env::var_os(EVERY_POINT).is_some() { 1 } else { 7 };
    let mut ends: BTreeMap<String, u32> = BTreeMap::new();
    for (call, fault) in CALLS.iter().flat_map(|call| FAULTS.map(|fault| (*call, fault))) {
        for nth in (1..CALLS_MAX).step_by(step) {
            let end = test_point(call, fault, nth);
            *ends.entry(end.clone()).or_default() += 1;
            if end == "untouched" {
                break;
            }
        }
    }
    println!("{} points: {ends:?}", ends.values().sum::<u32>());
    for wanted in ["killed", "stopped for good", "full, and went on", "not opened", "untouched"] {
        assert!(ends.contains_key(wanted), "no point ended {wanted}: {ends:?}");
    }
}

/// Runs one test of this program under strace. A missing strace is a failure, because the test would prove nothing.
pub(super) fn run_under_strace(test: &str, directory: &Path, log: &Path, arguments: &[&str]) -> Output {
    Command::new("strace")
        .args(["-f", "-qq", "-o"])
        .arg(log)
        .args(arguments)
        .arg(env::current_exe().expect("this test"))
        .args(["--exact", test, "--nocapture"])
        .env(DIRECTORY, directory)
        .output()
        .expect("strace is installed (`cargo xtask ci tools`)")
}

/// Runs one victim, and returns how it ended.
fn test_point(call: &str, fault: &str, nth: u64) -> String {
    let (above, directory) = state_directory_path();
    let log = above.path().join("strace");
    let (trace, inject) = (format!("trace={call}"), format!("inject={call}:{fault}:when={nth}"));
    let output = run_under_strace(NAME, &directory, &log, &["-e", &trace, "-e", &inject]);
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let acknowledged: Vec<u64> = stdout.lines().filter_map(|line| line.strip_prefix("acknowledged ")?.parse().ok()).collect();
    let what = format!("{call} {fault} {nth}");
    if directory.exists() {
        check_after_kill(&directory, &acknowledged, &what);
    } else {
        assert!(acknowledged.is_empty(), "{what}");
    }
    let was_injected = std::fs::read_to_string(&log).expect("a log").contains("(INJECTED)");
    classify_end(&stdout, output.status, was_injected, &what)
}

fn classify_end(stdout: &str, status: ExitStatus, was_injected: bool, what: &str) -> String {
    let has = |expected: &str| stdout.lines().any(|line| line == expected);
    let end = match (has("not opened"), has("stopped"), has("full"), has("finished"), status.success()) {
        (true, false, false, false, true) => "not opened",
        (false, true, _, false, false) => "stopped for good",
        (false, false, true, true, true) => "full, and went on",
        (false, false, false, true, true) if was_injected => "not minded",
        (false, false, false, true, true) => "untouched",
        (false, false, _, _, false) => "killed",
        _ => panic!("{what}: {status}, and said {stdout}"),
    };
    end.to_owned()
}

/// Commits ten groups of batches and exits as the program does.
fn run_victim(directory: &Path) {
    let settings = StoreSettings::new(|_| {
        println!("\nstopped");
        std::process::abort();
    });
    let Ok(store) = SqliteStore::open(directory, settings) else { return println!("\nnot opened") };
    let sample = OperationSample::new(1);
    // Enough entries to fill a tile along the way.
    let start = || super::ledger::recovery_batch(0..200).with(sample.start_write());
    retry_while_full(|| block_on(store.commit(start())));
    for group in 0..10 {
        let waiting: Vec<_> = (group * 3..group * 3 + 3).map(|number| (number, store.commit(three_intents(&sample, number)))).collect();
        for (number, first) in waiting {
            let first = block_on(first);
            if matches!(first, Err(StoreError::Full { .. })) {
                println!("\nfull");
                retry_while_full(|| block_on(store.commit(three_intents(&sample, number))));
            } else {
                assert!(matches!(first, Ok(CommitAck::Written { .. })), "{first:?}");
            }
            println!("\nacknowledged {number}");
        }
    }
    drop(store);
    println!("\nfinished");
}

/// Repeats a commit until the disk, which was full, has space again.
fn retry_while_full(mut commit: impl FnMut() -> Result<CommitAck, StoreError>) {
    while let Err(error) = commit() {
        assert!(matches!(error, StoreError::Full { .. }), "{error}");
        println!("\nfull");
    }
}

const FULL_NAME: &str = "fault_injection::full_disk_allows_reads_and_refuses_writes";

/// A start on a full disk, with a WAL that a dead process left behind: reads still work.
#[test]
fn full_disk_allows_reads_and_refuses_writes() {
    if let Some(directory) = env::var_os(DIRECTORY) {
        return run_reader(Path::new(&directory));
    }
    let mut ends: BTreeMap<String, u32> = BTreeMap::new();
    for nth in 1..12 {
        let (_above, directory) = store_with_unmerged_log();
        let inject = format!("inject=pwrite64:error=ENOSPC:when={nth}+");
        let output = run_under_strace(FULL_NAME, &directory, Path::new("/dev/null"), &["-e", "trace=pwrite64", "-e", &inject]);
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "from write {nth} on: {stdout}{}", String::from_utf8_lossy(&output.stderr));
        let end = stdout.lines().find_map(|line| line.strip_prefix("end: ")).expect("an end").to_owned();
        *ends.entry(end).or_default() += 1;
        assert_eq!(check_after_kill(&directory, &[0], "with room again"), 1);
    }
    assert!(ends.get("read, and took nothing").is_some_and(|count| *count >= 3), "{ends:?}");
}

/// A file with a WAL, as a killed process leaves it.
fn store_with_unmerged_log() -> (tempfile::TempDir, std::path::PathBuf) {
    let (above, directory) = state_directory_path();
    let other = above.path().join("other");
    let store = SqliteStore::open(&other, super::panicking_settings()).expect("opens");
    let sample = OperationSample::new(1);
    super::commit_written(&store, sample.start_write());
    super::commit_written(&store, three_intents(&sample, 0));
    std::fs::create_dir(&directory).expect("made");
    std::fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("set");
    for name in ["converger.db", "converger.db-wal"] {
        std::fs::copy(other.join(name), directory.join(name)).expect("copied");
    }
    (above, directory)
}

fn run_reader(directory: &Path) {
    let settings = StoreSettings::new(|cause| panic!("a full disk must not be fatal: {cause}"));
    let Ok(store) = SqliteStore::open(directory, settings) else { return println!("\nend: not opened") };
    let sample = OperationSample::new(1);
    let id = sample.operation(0, 0).id;
    assert!(block_on(store.operation(id)).expect("read").is_some());
    for _ in 0..2 {
        let full = block_on(store.commit(three_intents(&sample, 1)));
        assert!(matches!(full, Err(StoreError::Full { .. })), "{full:?}");
    }
    println!("\nend: read, and took nothing");
}

const LOG_NAME: &str = "fault_injection::failed_sync_during_checkpoint_ends_the_program";

/// SQLite would hide the failure and continue.
#[test]
fn failed_sync_during_checkpoint_ends_the_program() {
    if let Some(directory) = env::var_os(DIRECTORY) {
        return run_large_writer(Path::new(&directory));
    }
    let synced = |inject: &str| {
        let (above, directory) = state_directory_path();
        drop(SqliteStore::open(&directory, super::panicking_settings()).expect("opens"));
        let log = above.path().join("strace");
        let output = run_under_strace(LOG_NAME, &directory, &log, &["-y", "-e", "trace=fsync,fdatasync", "-e", inject]);
        (String::from_utf8_lossy(&output.stdout).into_owned(), std::fs::read_to_string(&log).expect("a log"))
    };
    let (stdout, log) = synced("signal=none");
    assert!(stdout.lines().any(|line| line == "finished"), "{stdout}");
    let nth = first_file_sync(&log).unwrap_or_else(|| panic!("the WAL was never checkpointed: {log}"));
    let (stdout, log) = synced(&format!("inject=fsync,fdatasync:error=EIO:when={nth}"));
    assert!(log.lines().any(|line| line.contains("converger.db>) = -1 EIO") && line.contains("INJECTED")), "{log}");
    assert!(stdout.lines().any(|line| line == "stopped") && !stdout.lines().any(|line| line == "finished"), "{stdout}");
}

/// The number of the first sync of the file itself, counted within its thread, in a thread that synced the WAL before.
fn first_file_sync(log: &str) -> Option<usize> {
    let mut counts: BTreeMap<&str, (usize, bool)> = BTreeMap::new();
    log.lines().find_map(|line| {
        let (thread, call) = line.split_once(' ')?;
        let (count, logged) = counts.entry(thread).or_default();
        *count += 1;
        *logged |= call.contains("converger.db-wal>");
        (*logged && call.contains("converger.db>")).then_some(*count)
    })
}

/// Writes enough for a checkpoint to happen.
fn run_large_writer(directory: &Path) {
    let settings = StoreSettings::new(|_| {
        println!("\nstopped");
        std::process::abort();
    });
    let store = SqliteStore::open(directory, settings).expect("opens");
    for number in 0..8 {
        let body: std::sync::Arc<[u8]> = vec![number; 2 << 20].into();
        let digest = converger_core::artifact::Digest::of_bytes(&body);
        let answer = block_on(store.commit(converger_store::StoreWrite::Blob { digest, body }.into()));
        assert!(matches!(answer, Ok(CommitAck::Written { .. })), "{answer:?}");
    }
    println!("\nfinished");
}

/// A store whose WAL cannot be synced during opening is not opened, and closing it does not sync the WAL again (S18): after a failed sync
/// the next one may succeed although data was lost.
#[test]
fn s18_close_does_not_sync_again_after_a_failed_sync() {
    let mut ends: BTreeMap<String, u32> = BTreeMap::new();
    for error in ["EIO", "ENOSPC"] {
        for nth in 1..CALLS_MAX {
            let (_above, log, stdout) = run_with_failing_sync(error, nth);
            let mut calls = log.lines().skip_while(|line| !line.ends_with("(INJECTED)"));
            let Some(failed) = calls.next() else { break };
            let more: Vec<&str> = calls.filter(|line| line.contains("sync(")).collect();
            let end = if stdout.lines().any(|line| line == "not opened") { "not opened" } else { "opened" };
            assert!(more.is_empty(), "{error} at sync {nth}, {end}:\n{failed}\n{}", more.join("\n"));
            *ends.entry(end.to_owned()).or_default() += 1;
        }
    }
    // The header of a new WAL, its first record, and the checkpoint. After that the writer ends the program.
    assert!(ends.get("not opened") == Some(&6) && ends.get("opened").is_some_and(|count| *count > 10), "{ends:?}");
}

/// The strace log and the output of a victim whose Nth sync of the WAL, counted per thread, fails.
fn run_with_failing_sync(error: &str, nth: u64) -> (tempfile::TempDir, String, String) {
    let (above, directory) = state_directory_path();
    let log = above.path().join("strace");
    let wal = directory.join("converger.db-wal").display().to_string();
    let inject = format!("inject=fsync,fdatasync:error={error}:when={nth}");
    let output = run_under_strace(NAME, &directory, &log, &["-y", "-e", "trace=fsync,fdatasync", "-P", &wal, "-e", &inject]);
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    (above, std::fs::read_to_string(&log).expect("a log"), stdout)
}
