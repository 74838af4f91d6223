//! `converger init` and `converger pin` as a shell sees them: what they write, what they never overwrite, and what remains after a failure.
//!
//! Which marks and values are written is tested in the core and in `scenarios/`.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

const DESIRED: &str = "\
# ours
version: 1
environment: lab
guests:
  - { vmid: 100, kind: lxc, name: dns, state: running }   # since 2019
  - vmid: 101\r
    kind: qemu\t# a machine\r
    name: web-1\r
";

const PINNED: &str = "\
# ours
version: 1
environment: lab
guests:
  - { vmid: 100, kind: lxc, name: dns, identity: { rootfs: \"local:100/disk.raw\", mac: \"BC:24:11:00:00:01\" }, state: running }   # since 2019
  - vmid: 101\r
    kind: qemu\t# a machine\r
    name: web-1\r
    identity: { uuid: 1c0d6f6e-5a0e-4a55-9d3c-000000000065 }\r
";

/// A container and a virtual machine without a creation time, read in full.
const CURRENT: &str = r#"{"schema":"converger.observation/1","environment":"lab","complete":true,"quorate":true,"nodes":[{"name":"pve1","online":true}],"guests":[
{"vmid":100,"kind":"lxc","name":"dns","node":"pve1","status":"running","lock":null,"ha":null,"template":false,"protection":false,"tags":["edge"],"pending":[],"config":{"memory":512},"identity":{"rootfs":"local:100/disk.raw","mac":"BC:24:11:00:00:01"}},
{"vmid":101,"kind":"qemu","name":"web-1","node":"pve1","status":"stopped","lock":null,"ha":null,"template":false,"protection":false,"tags":[],"pending":[],"config":{"cores":2},"identity":{"uuid":"1c0d6f6e-5a0e-4a55-9d3c-000000000065"}}]}"#;

fn work_directory() -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("desired.yaml"), DESIRED).expect("written");
    fs::write(directory.path().join("current.json"), CURRENT).expect("written");
    directory
}

/// A directory without a declared state.
fn work_directory_without_desired() -> TempDir {
    let directory = work_directory();
    fs::remove_file(directory.path().join("desired.yaml")).expect("removed");
    directory
}

fn program(directory: &TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_converger"));
    command.args(arguments).current_dir(directory.path()).env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(directory: &TempDir, arguments: &[&str]) -> Output {
    program(directory, arguments).output().expect("the program runs")
}

fn run_pin(directory: &TempDir, arguments: &[&str]) -> Output {
    run(directory, &[&["pin", "desired.yaml", "--replay", "current.json"], arguments].concat())
}

fn run_init(directory: &TempDir, arguments: &[&str]) -> Output {
    run(directory, &[&["init", "--vmid", "100,101", "--environment", "lab", "--replay", "current.json"], arguments].concat())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

fn read(directory: &TempDir, file: &str) -> String {
    fs::read_to_string(directory.path().join(file)).expect("read")
}

fn file_names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("listed").map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<String> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Checks the exit code, these parts on standard output or standard error, and that it did not panic.
fn check_end(output: &Output, code: i32, parts: &[&str]) {
    let text = text(&output.stdout) + &text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in:\n{text}");
    }
    assert!(!text.contains("panicked"), "{text}");
}

#[test]
fn pin_writes_marks_once_and_keeps_the_rest() {
    let directory = work_directory();
    let output = run_pin(&directory, &[]);
    check_end(
        &output,
        0,
        &["wrote desired.yaml", "2 pinned, 0 pinned already", "it never had ctime", "next: converger audit desired.yaml"],
    );
    assert_eq!(read(&directory, "desired.yaml"), PINNED);
    assert_eq!(file_names(directory.path()), ["current.json", "desired.yaml"], "nothing is left beside it");
    let again = run_pin(&directory, &[]);
    check_end(&again, 0, &["0 pinned, 2 pinned already"]);
    assert_eq!((text(&again.stderr).as_str(), read(&directory, "desired.yaml").as_str()), ("", PINNED), "there is nothing to write");
    check_end(&run(&directory, &["audit", "desired.yaml", "--replay", "current.json"]), 0, &["Converged"]);
}

#[test]
fn pin_of_a_range_takes_the_declared_guests() {
    let directory = work_directory();
    check_end(&run_pin(&directory, &["--vmid", "101-120"]), 0, &["1 guest looked at", "1 pinned"]);
    assert!(!read(&directory, "desired.yaml").contains("rootfs"), "100 is not in the range");
}

#[test]
fn init_of_a_range_takes_the_guests_of_a_recording() {
    let directory = work_directory_without_desired();
    let run_range = |ids| run(&directory, &["init", "--vmid", ids, "--environment", "lab", "--replay", "current.json"]);
    check_end(&run_range("200-210"), 3, &["no visible guest has an id in 200-210"]);
    check_end(&run_range("100-110,150"), 3, &["! 150 refused"]);
    assert_eq!(file_names(directory.path()), ["current.json"]);
    check_end(&run_range("100-110"), 0, &["2 guests adopted", "100-110: 2 guests found; 9 ids have no visible guest"]);
    check_end(&run(&directory, &["audit", "desired.yaml", "--replay", "current.json"]), 0, &["Converged: 2 converged"]);
}

#[test]
fn pin_check_writes_nothing_and_reports_pending_changes() {
    let directory = work_directory();
    for flag in ["--check", "--dry-run"] {
        check_end(&run_pin(&directory, &[flag]), 4, &["would be pinned", "2 to pin", "without --check"]);
        assert_eq!(read(&directory, "desired.yaml"), DESIRED);
    }
    fs::write(directory.path().join("desired.yaml"), PINNED).expect("written");
    check_end(&run_pin(&directory, &["--check"]), 0, &["0 to pin, 2 pinned already", "next: converger audit"]);
}

#[test]
fn pin_reads_only_named_guests() {
    let directory = work_directory();
    check_end(&run_pin(&directory, &["--vmid", "101"]), 0, &["1 guest looked at", "1 pinned"]);
    assert!(read(&directory, "desired.yaml").contains("identity: { uuid") && !read(&directory, "desired.yaml").contains("rootfs"));
    for (arguments, part) in [
        (&["--vmid", "102"][..], "guest 102 is not declared in desired.yaml"),
        (&["--vmid", "100-110,102"], "guest 102 is not declared in desired.yaml"),
        (&["--vmid", "102-110"], "no guest with an id in 102-110 is declared"),
        (&["--vmid", "110-102"], "the range is reversed"),
        (&["--repin", "100-110"], "a guest id is a number between 100 and 999999999"),
        (&["--repin", "100,103"], "guest 103 is not declared in desired.yaml"),
        (&["--vmid", "99"], "a guest id is a number between 100 and 999999999"),
        (&["--vmid", "web"], "a guest id is a number between 100 and 999999999"),
    ] {
        check_end(&run_pin(&directory, arguments), 2, &[part]);
    }
}

#[test]
fn replaces_a_mismatched_pin_only_with_repin() {
    let directory = work_directory();
    let old = PINNED.replace("1c0d6f6e", "00000000");
    fs::write(directory.path().join("desired.yaml"), &old).expect("written");
    check_end(&run_pin(&directory, &[]), 3, &["identity-mismatch", "1 refused", "--repin 101   (only if these are the right guests)"]);
    assert_eq!(read(&directory, "desired.yaml"), old);
    check_end(&run_pin(&directory, &["--repin", "101"]), 0, &["1 guest looked at", "pin replaced", "uuid: pinned 00000000"]);
    assert_eq!(read(&directory, "desired.yaml"), PINNED);
}

#[test]
fn pins_other_guests_when_one_is_refused() {
    let directory = work_directory();
    fs::write(directory.path().join("current.json"), CURRENT.replace("\"status\":\"stopped\"", "\"status\":\"unknown\"")).expect("written");
    check_end(
        &run_pin(&directory, &[]),
        3,
        &["wrote desired.yaml", "guest-unknown", "1 pinned, 0 pinned already, 0 without marks, 1 refused"],
    );
    assert!(read(&directory, "desired.yaml").contains("rootfs"));
    let report: serde_json::Value = serde_json::from_str(&text(&run_pin(&directory, &["--json"]).stdout)).expect("JSON");
    assert_eq!((&report["guests"][0]["outcome"], &report["guests"][1]["outcome"]), (&"unchanged".into(), &"refused".into()));
}

#[test]
fn shows_and_keeps_a_layout_that_cannot_be_pinned() {
    let directory = work_directory();
    let odd = "version: 1\nenvironment: lab\nguests:\n- vmid: 101\n  kind: qemu\n  identity:\n    uuid: |-\n      x\n";
    fs::write(directory.path().join("desired.yaml"), odd).expect("written");
    check_end(
        &run_pin(&directory, &["--repin", "101"]),
        2,
        &["desired.yaml:4:9", "cannot be written into a layout like this", "write them by hand: identity: {"],
    );
    assert_eq!(read(&directory, "desired.yaml"), odd);
}

#[cfg(unix)]
#[test]
fn pin_keeps_links_and_permissions_and_skips_read_only_files() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let directory = work_directory();
    let path = directory.path().join("desired.yaml");
    let mode = |bits: u32| fs::set_permissions(&path, fs::Permissions::from_mode(bits)).expect("set");
    mode(0o440);
    check_end(&run_pin(&directory, &[]), 1, &["cannot write desired.yaml: it is read-only", "chmod u+w desired.yaml", "--check"]);
    check_end(&run_pin(&directory, &["--check"]), 4, &[]);
    assert_eq!(read(&directory, "desired.yaml"), DESIRED);
    mode(0o640);
    symlink("desired.yaml", directory.path().join("link.yaml")).expect("linked");
    let output = run(&directory, &["pin", "link.yaml", "--replay", "current.json"]);
    check_end(&output, 0, &["desired.yaml (link.yaml is a link to it)"]);
    assert!(directory.path().join("link.yaml").is_symlink());
    assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o640);
    assert_eq!(read(&directory, "desired.yaml"), PINNED);
}

/// Runs a command that reads its recording from standard input, and runs `meanwhile` after it has read everything else.
fn run_with_concurrent_change(directory: &TempDir, arguments: &[&str], meanwhile: impl FnOnce()) -> Output {
    let mut child = program(directory, arguments).stdin(Stdio::piped()).spawn().expect("the program runs");
    let mut writer = child.stdin.take().expect("piped");
    // More than a pipe holds: once it is written, the program is reading, and it reads this last.
    writer.write_all(" ".repeat(1 << 20).as_bytes()).expect("it reads");
    meanwhile();
    writer.write_all(CURRENT.as_bytes()).expect("it reads");
    drop(writer);
    child.wait_with_output().expect("it ends")
}

#[test]
fn pin_does_not_overwrite_a_concurrent_change() {
    let directory = work_directory();
    let concurrent_text = format!("{DESIRED}# and theirs\n");
    let output = run_with_concurrent_change(&directory, &["pin", "desired.yaml", "--replay", "-"], || {
        fs::write(directory.path().join("desired.yaml"), &concurrent_text).expect("written");
    });
    check_end(&output, 1, &["cannot write desired.yaml: it changed since it was read", "run the command again"]);
    assert_eq!(read(&directory, "desired.yaml"), concurrent_text);
    assert_eq!(file_names(directory.path()), ["current.json", "desired.yaml"]);
}

#[test]
fn init_writes_a_state_that_plans_nothing() {
    let directory = work_directory_without_desired();
    let output = run_init(&directory, &[]);
    check_end(
        &output,
        0,
        &["wrote desired.yaml", "2 guests adopted", "it never had ctime", "next: converger audit desired.yaml --replay current.json"],
    );
    assert_eq!(file_names(directory.path()), ["current.json", "desired.yaml"]);
    check_end(&run(&directory, &["audit", "desired.yaml", "--replay", "current.json"]), 0, &["Converged: 2 converged"]);
    check_end(&run_pin(&directory, &["--check"]), 0, &["0 to pin"]);
    let printed = run_init(&directory, &["--dry-run"]);
    assert_eq!((text(&printed.stdout), text(&printed.stderr).as_str()), (read(&directory, "desired.yaml"), ""));
    let report: serde_json::Value = serde_json::from_str(&text(&run_init(&directory, &["--json"]).stdout)).expect("JSON");
    assert_eq!(report["text"].as_str(), Some(read(&directory, "desired.yaml").as_str()));
}

#[test]
fn init_never_overwrites_a_file() {
    let directory = work_directory();
    fs::create_dir(directory.path().join("directory.yaml")).expect("made");
    for out in [&[][..], &["--out", "desired.yaml"], &["--out", "directory.yaml"], &["--out", "./desired.yaml"]] {
        check_end(&run_init(&directory, out), 2, &["exists already and is not replaced", "--out", "--dry-run"]);
    }
    assert_eq!(read(&directory, "desired.yaml"), DESIRED);
    assert_eq!(file_names(directory.path()), ["current.json", "desired.yaml", "directory.yaml"]);
}

#[cfg(unix)]
#[test]
fn init_follows_no_link_and_loses_no_race() {
    let directory = work_directory_without_desired();
    std::os::unix::fs::symlink("nowhere.yaml", directory.path().join("link.yaml")).expect("linked");
    check_end(&run_init(&directory, &["--out", "link.yaml"]), 2, &["link.yaml exists already"]);
    let output = run_with_concurrent_change(&directory, &["init", "--vmid", "100", "--environment", "lab", "--replay", "-"], || {
        fs::write(directory.path().join("desired.yaml"), "theirs").expect("written");
    });
    check_end(&output, 2, &["desired.yaml exists already and is not replaced"]);
    assert_eq!(read(&directory, "desired.yaml"), "theirs");
    assert_eq!(file_names(directory.path()), ["current.json", "desired.yaml", "link.yaml"]);
}

#[test]
fn init_writes_nothing_if_one_guest_cannot_be_adopted() {
    let directory = work_directory_without_desired();
    let arguments = ["init", "--vmid", "100,105", "--environment", "lab", "--replay", "current.json"];
    check_end(&run(&directory, &arguments), 3, &["nothing was written", "! 105 refused", "guest-missing", "without these guests"]);
    let report: serde_json::Value =
        serde_json::from_str(&text(&run(&directory, &[&arguments[..], &["--json"]].concat()).stdout)).expect("JSON");
    assert!(report["text"].is_null() && report["guests"][0]["refusals"][0]["code"] == "guest-missing", "{report}");
    assert_eq!(file_names(directory.path()), ["current.json"]);
}

#[test]
fn init_names_missing_arguments() {
    let directory = work_directory_without_desired();
    for (arguments, part) in [
        (&["init", "--environment", "lab", "--replay", "current.json"][..], "--vmid <IDS>"),
        (&["init", "--vmid", "100", "--replay", "current.json"], "--environment NAME"),
        (&["init", "--vmid", "100,", "--environment", "lab", "--replay", "current.json"], "a guest id is a number"),
        (&["init", "--vmid", "100", "--environment", "Lab", "--replay", "current.json"], "`Lab` is not the name of an environment"),
        (&["init", "--vmid", "100", "--environment", "other", "--replay", "current.json"], "not of `other`"),
        (&["init", "--vmid", "100", "--environment", "lab", "--replay", "gone.json"], "cannot read gone.json"),
        (&["init", "--vmid", "100", "--environment", "lab", "--replay", "current.json", "--out", "-"], "--dry-run prints"),
        (&["init", "--vmid", "100", "--environment", "lab", "--replay", "current.json", "--out", "a.json"], "would be read as JSON"),
    ] {
        check_end(&run(&directory, arguments), 2, &[part]);
    }
    check_end(&run_init(&directory, &["--out", "no/such/room.yaml"]), 1, &["cannot write no/such/room.yaml"]);
    assert_eq!(file_names(directory.path()), ["current.json"]);
}

/// A file of another program may be one line; searching for its end once per guest would take minutes. The limit is in CPU seconds and more
/// than ten times what is needed.
#[cfg(target_os = "linux")]
#[test]
fn pin_handles_one_long_line_in_linear_time() {
    let directory = tempfile::tempdir().expect("a directory");
    let list = |each: fn(u32) -> String| (100..20_100).map(each).collect::<Vec<String>>().join(",");
    let declared = list(|vmid| format!(r#"{{"vmid":{vmid},"kind":"qemu","name":"web"}}"#));
    let rows =
        list(|vmid| format!(r#"{{"vmid":{vmid},"kind":"qemu","name":"web","node":"a","status":"stopped","identity":{{"ctime":{vmid}}}}}"#));
    let head = r#""complete":true,"quorate":true,"nodes":[{"name":"a","online":true}]"#;
    let current = format!(r#"{{"schema":"converger.observation/1","environment":"lab",{head},"guests":[{rows}]}}"#);
    fs::write(directory.path().join("desired.json"), format!(r#"{{"version":1,"environment":"lab","guests":[{declared}]}}"#))
        .expect("written");
    fs::write(directory.path().join("current.json"), current).expect("written");
    let limited = "ulimit -t 20 && exec \"$0\" \"$@\"";
    let mut command = Command::new("/bin/sh");
    command.args(["-c", limited, env!("CARGO_BIN_EXE_converger"), "pin", "desired.json", "--replay", "current.json"]);
    let output = command.current_dir(directory.path()).env_clear().stdin(Stdio::null()).output().expect("a shell runs");
    check_end(&output, 0, &["20000 pinned"]);
    assert_eq!(read(&directory, "desired.json").matches(r#""identity":{"ctime":"#).count(), 20_000);
}
