//! The program as a shell sees it: exit codes, streams, files that are written completely or not at all, colours, and hostile input.
//!
//! Verdicts and their wording are tested in `scenarios/`.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

const DESIRED: &str = "version: 1\nenvironment: lab\nguests:\n  - { vmid: 100, kind: lxc, name: dns, state: running }\n";

const SUBCOMMANDS: [&str; 18] = [
    "apply",
    "audit",
    "completions",
    "contract",
    "doctor",
    "explain",
    "freeze",
    "guests",
    "hold",
    "init",
    "lab",
    "observe",
    "ops",
    "pin",
    "plan",
    "release",
    "schema",
    "thaw",
];

/// One container named `dns`, with this status.
fn observation_json(status: &str) -> String {
    format!(
        r#"{{"schema":"converger.observation/1","environment":"lab","complete":true,"quorate":true,
        "nodes":[{{"name":"pve1","online":true}}],
        "guests":[{{"vmid":100,"kind":"lxc","name":"dns","node":"pve1","status":"{status}","lock":null,"ha":null,
        "template":false,"protection":false,"tags":[],"pending":[]}}]}}"#
    )
}

/// A directory with a declared state and a recording in which one guest is to be started.
fn work_directory() -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("desired.yaml"), DESIRED).expect("written");
    fs::write(directory.path().join("current.json"), observation_json("stopped")).expect("written");
    directory
}

fn program(directory: &TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_converger"));
    command.args(arguments).current_dir(directory.path()).env_clear().stdin(Stdio::null());
    command
}

fn run(directory: &TempDir, arguments: &[&str]) -> Output {
    program(directory, arguments).output().expect("the program runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

/// Checks the exit code and these parts on standard error, and that standard output is empty.
fn check_error(output: &Output, code: i32, parts: &[&str]) {
    let stderr = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    for part in parts {
        assert!(stderr.contains(part), "`{part}` is not in:\n{stderr}");
    }
    assert!(!stderr.contains("panicked"), "{stderr}");
    assert_eq!(stdout(output), "");
}

/// The names of the files in a directory.
fn file_names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("listed").map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<String> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn each_result_has_its_exit_code() {
    let directory = work_directory();
    for (status, code) in [("running", 0), ("stopped", 4), ("unknown", 3)] {
        fs::write(directory.path().join("current.json"), observation_json(status)).expect("written");
        for command in ["audit", "plan"] {
            let output = run(&directory, &[command, "desired.yaml", "--replay", "current.json"]);
            assert_eq!(output.status.code(), Some(code), "{command} of a {status} guest: {}", stderr(&output));
        }
    }
    let observed = run(&directory, &["observe", "desired.yaml", "--replay", "current.json", "--json"]);
    assert_eq!(observed.status.code(), Some(0), "a reading is taken, whatever is in it");
}

#[test]
fn bad_usage_exits_with_2_and_a_hint() {
    let directory = work_directory();
    check_error(&run(&directory, &["audit", "desired.yaml"]), 2, &["converger.toml", "--replay"]);
    check_error(&run(&directory, &["adit", "desired.yaml"]), 2, &["audit"]);
    check_error(&run(&directory, &["audit", "desired.yaml", "--replay", "current.json", "--json", "--all"]), 2, &["--all", "--json"]);
    check_error(&run(&directory, &[]), 2, &["Usage:", "Examples:"]);
}

#[test]
fn unreadable_input_is_named_with_a_remedy() {
    let directory = work_directory();
    fs::create_dir(directory.path().join("directory")).expect("made");
    let audit = |desired: &str, replay: &str| run(&directory, &["audit", desired, "--replay", replay]);
    check_error(&audit("nowhere.yaml", "current.json"), 2, &["cannot read nowhere.yaml", "help:"]);
    check_error(&audit("desired.yaml", "nowhere.json"), 2, &["cannot read nowhere.json", "help:"]);
    check_error(&audit("directory", "current.json"), 2, &["cannot read directory"]);
    check_error(&audit("desired.yaml", "directory"), 2, &["cannot read directory"]);
}

#[cfg(unix)]
#[test]
fn forbidden_input_is_named_with_a_remedy() {
    use std::os::unix::fs::PermissionsExt;
    let directory = work_directory();
    let path = directory.path().join("desired.yaml");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).expect("taken away");
    let output = run(&directory, &["audit", "desired.yaml", "--replay", "current.json"]);
    // Nothing can be hidden from root, which CI may run as.
    if fs::read(&path).is_ok() {
        assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    } else {
        check_error(&output, 2, &["cannot read desired.yaml", "ls -l"]);
    }
}

#[test]
fn reads_a_recording_from_standard_input() {
    let directory = work_directory();
    let named = run(&directory, &["audit", "desired.yaml", "--replay", "current.json", "--json"]);
    let piped =
        with_input(program(&directory, &["audit", "desired.yaml", "--replay", "-", "--json"]), observation_json("stopped").as_bytes());
    assert_eq!(piped.status.code(), Some(4), "{}", stderr(&piped));
    assert_eq!(stdout(&piped), stdout(&named));
    let half = with_input(program(&directory, &["audit", "desired.yaml", "--replay", "-"]), &observation_json("stopped").as_bytes()[..100]);
    check_error(&half, 2, &["standard input:", "the text ends here"]);
    let nothing = run(&directory, &["audit", "desired.yaml", "--replay", "-"]);
    check_error(&nothing, 2, &["standard input"]);
}

fn with_input(mut command: Command, input: &[u8]) -> Output {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program runs");
    child.stdin.take().expect("piped").write_all(input).expect("it reads");
    child.wait_with_output().expect("it ends")
}

#[test]
fn plan_writes_what_json_prints_and_names_its_digest() {
    let directory = work_directory();
    fs::write(directory.path().join("plan.json"), r#"{"schema":"converger.plan/1","summary":"an older plan, longer than nothing"}"#)
        .expect("written");
    let written = run(&directory, &["plan", "desired.yaml", "--replay", "current.json"]);
    let printed = run(&directory, &["plan", "desired.yaml", "--replay", "current.json", "--json"]);
    let file = fs::read_to_string(directory.path().join("plan.json")).expect("written");
    assert_eq!(file, stdout(&printed));
    let plan: serde_json::Value = serde_json::from_str(&file).expect("JSON");
    let digest = plan["proposal"].as_str().expect("a digest");
    assert_eq!(stderr(&written), format!("wrote plan.json (digest {digest})\n"));
    assert_eq!(stderr(&printed), "");
    assert!(stdout(&written).contains("100 lxc dns"), "{}", stdout(&written));
    assert_eq!(file_names(directory.path()), ["current.json", "desired.yaml", "plan.json"], "nothing is left beside it");
}

#[test]
fn plan_writes_the_out_file_with_json_too() {
    let directory = work_directory();
    let output = run(&directory, &["plan", "desired.yaml", "--replay", "current.json", "--json", "--out", "lab.json"]);
    assert_eq!(output.status.code(), Some(4));
    assert_eq!(fs::read_to_string(directory.path().join("lab.json")).expect("written"), stdout(&output));
    assert_eq!(file_names(directory.path()), ["current.json", "desired.yaml", "lab.json"]);
}

#[test]
fn observation_file_round_trips() {
    let directory = work_directory();
    let written = run(&directory, &["observe", "desired.yaml", "--replay", "current.json", "--out", "scoped.json"]);
    assert_eq!((written.status.code(), stderr(&written).as_str()), (Some(0), "wrote scoped.json\n"));
    assert!(stdout(&written).contains("lab"), "{}", stdout(&written));
    let again = run(&directory, &["observe", "desired.yaml", "--replay", "scoped.json", "--json"]);
    assert_eq!(fs::read_to_string(directory.path().join("scoped.json")).expect("written"), stdout(&again));
    assert_eq!(file_names(directory.path()), ["current.json", "desired.yaml", "scoped.json"]);
}

#[test]
fn unwritable_output_fails_and_leaves_nothing() {
    let directory = work_directory();
    fs::create_dir(directory.path().join("directory")).expect("made");
    for command in ["plan", "observe"] {
        for out in ["no/such/directory.json", "directory"] {
            let output = run(&directory, &[command, "desired.yaml", "--replay", "current.json", "--out", out]);
            check_error(&output, 1, &[&format!("cannot write {out}"), "help:"]);
        }
    }
    assert_eq!(file_names(directory.path()), ["current.json", "desired.yaml", "directory"]);
    assert_eq!(file_names(&directory.path().join("directory")), Vec::<String>::new());
}

#[test]
fn inputs_are_never_overwritten() {
    let directory = work_directory();
    let inputs_before =
        [fs::read(directory.path().join("desired.yaml")).expect("read"), fs::read(directory.path().join("current.json")).expect("read")];
    let absolute = directory.path().join("current.json");
    for command in ["plan", "observe"] {
        for out in ["desired.yaml", "current.json", "./desired.yaml", absolute.to_str().expect("UTF-8")] {
            let output = run(&directory, &[command, "desired.yaml", "--replay", "current.json", "--out", out]);
            check_error(&output, 2, &["cannot write", "--out"]);
        }
    }
    // By default `observe` writes current.json, and does not replace an existing recording.
    check_error(&run(&directory, &["observe", "desired.yaml", "--replay", "current.json"]), 2, &["current.json exists already", "--out"]);
    let now =
        [fs::read(directory.path().join("desired.yaml")).expect("read"), fs::read(directory.path().join("current.json")).expect("read")];
    assert_eq!(now, inputs_before);
}

#[cfg(unix)]
#[test]
fn inputs_are_never_overwritten_through_a_link() {
    let directory = work_directory();
    std::os::unix::fs::symlink("desired.yaml", directory.path().join("link.json")).expect("linked");
    let output = run(&directory, &["plan", "desired.yaml", "--replay", "current.json", "--out", "link.json"]);
    check_error(&output, 2, &["cannot write"]);
    assert_eq!(fs::read_to_string(directory.path().join("desired.yaml")).expect("read"), DESIRED);
}

#[test]
fn invalid_input_writes_no_output() {
    let directory = work_directory();
    let older = r#"{"schema":"converger.plan/1"}"#;
    fs::write(directory.path().join("plan.json"), older).expect("written");
    fs::write(directory.path().join("current.json"), "{").expect("written");
    check_error(&run(&directory, &["plan", "desired.yaml", "--replay", "current.json"]), 2, &["current.json:1"]);
    check_error(&run(&directory, &["observe", "desired.yaml", "--replay", "current.json", "--out", "new.json"]), 2, &["current.json:1"]);
    assert_eq!(fs::read_to_string(directory.path().join("plan.json")).expect("read"), older);
    assert_eq!(file_names(directory.path()), ["current.json", "desired.yaml", "plan.json"]);
}

/// The reader is gone before the program prints anything, because the program waits for its input until then.
#[test]
fn closed_pipe_is_not_a_failure() {
    let directory = work_directory();
    for (arguments, code) in [
        (&["audit", "desired.yaml", "--replay", "-"][..], 4),
        (&["audit", "desired.yaml", "--replay", "-", "--json"][..], 4),
        (&["plan", "desired.yaml", "--replay", "-", "--json"][..], 4),
        (&["observe", "desired.yaml", "--replay", "-", "--json"][..], 0),
    ] {
        let mut command = program(&directory, arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program runs");
        drop(child.stdout.take());
        child.stdin.take().expect("piped").write_all(observation_json("stopped").as_bytes()).expect("it reads");
        let exit_status = child.wait().expect("it ends");
        let mut stderr = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("UTF-8");
        assert_eq!((exit_status.code(), stderr.as_str()), (Some(code), ""), "{arguments:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn full_disk_under_standard_output_is_reported() {
    let directory = work_directory();
    for arguments in [
        &["audit", "desired.yaml", "--replay", "current.json"][..],
        &["audit", "desired.yaml", "--replay", "current.json", "--json"][..],
        &["plan", "desired.yaml", "--replay", "current.json", "--json"][..],
        &["observe", "desired.yaml", "--replay", "current.json", "--json"][..],
        &["pin", "desired.yaml", "--replay", "current.json", "--check"][..],
        &["pin", "desired.yaml", "--replay", "current.json", "--json"][..],
        &["init", "--vmid", "100", "--environment", "lab", "--replay", "current.json", "--dry-run"][..],
        &["init", "--vmid", "100", "--environment", "lab", "--replay", "current.json", "--json"][..],
        &["explain"][..],
        &["explain", "frozen", "--json"][..],
        &["contract"][..],
        &["schema", "plan"][..],
        &["completions", "bash"][..],
    ] {
        let full = fs::File::options().write(true).open("/dev/full").expect("Linux has it");
        let output =
            program(&directory, arguments).stdout(full).stderr(Stdio::piped()).spawn().expect("the program runs").wait_with_output();
        check_error(&output.expect("it ends"), 1, &["error[output-unwritable]: cannot write to standard output", "No space left"]);
    }
}

#[test]
fn every_subcommand_has_examples() {
    let directory = work_directory();
    let overview = stdout(&run(&directory, &["--help"]));
    assert!(overview.contains("Examples:") && overview.contains("Exit codes:"), "{overview}");
    let named = overview.lines().filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next());
    let listed: Vec<&str> = named.filter(|name| SUBCOMMANDS.contains(name)).collect();
    assert_eq!(listed.len(), SUBCOMMANDS.len(), "the overview lists every subcommand once: {listed:?}");
    for subcommand in SUBCOMMANDS {
        let output = run(&directory, &[subcommand, "--help"]);
        let help = stdout(&output);
        assert_eq!(output.status.code(), Some(0), "{subcommand}");
        assert!(help.lines().count() > 5 && help.contains(&format!("Usage: converger {subcommand}")), "{help}");
    }
    for subcommand in SUBCOMMANDS {
        let help = stdout(&run(&directory, &[subcommand, "--help"]));
        let mut examples = help.lines().skip_while(|line| *line != "Examples:");
        assert!(examples.any(|line| line.contains(&format!("converger {subcommand}"))), "{subcommand} has no example:\n{help}");
    }
}

#[test]
fn completions_list_the_subcommands() {
    let directory = work_directory();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = run(&directory, &["completions", shell]);
        let script = stdout(&output);
        assert_eq!(output.status.code(), Some(0), "{shell}");
        assert!(SUBCOMMANDS.iter().all(|subcommand| script.contains(subcommand)), "{shell}: {script}");
    }
    check_error(&run(&directory, &["completions", "cmd"]), 2, &["bash", "zsh", "fish"]);
}

#[test]
fn version_is_one_line() {
    let output = run(&work_directory(), &["--version"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(stdout(&output), concat!("converger ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn colours_follow_the_environment_and_json_has_none() {
    let directory = work_directory();
    let has_escape = |arguments: &[&str], variables: &[(&str, &str)]| {
        let output = program(&directory, arguments).envs(variables.iter().copied()).output().expect("the program runs");
        output.stdout.contains(&0x1b) || output.stderr.contains(&0x1b)
    };
    let report = ["audit", "desired.yaml", "--replay", "current.json"];
    let fault = ["audit", "desired.yaml", "--replay", "desired.yaml"];
    let json = ["audit", "desired.yaml", "--replay", "current.json", "--json"];
    let forced = ("CLICOLOR_FORCE", "1");
    for arguments in [&report[..], &fault] {
        assert!(has_escape(arguments, &[forced]), "{arguments:?}");
        assert!(!has_escape(arguments, &[]), "{arguments:?}");
        assert!(!has_escape(arguments, &[("NO_COLOR", "1")]), "{arguments:?}");
        assert!(!has_escape(arguments, &[("TERM", "xterm-256color"), ("COLORTERM", "truecolor")]), "{arguments:?}");
    }
    assert!(!has_escape(&json, &[forced]), "an artifact has no colours");
}

/// Runs with a memory limit, so that input that grows in memory is detected without a clock.
#[cfg(target_os = "linux")]
fn run_with_memory_limit(directory: &TempDir, mebibytes: usize, arguments: &[&str]) -> Output {
    let limited = format!("ulimit -v {} && exec \"$0\" \"$@\"", mebibytes * 1024);
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &limited, env!("CARGO_BIN_EXE_converger")]).args(arguments);
    command.current_dir(directory.path()).env_clear().stdin(Stdio::null()).output().expect("a shell runs")
}

#[cfg(target_os = "linux")]
#[test]
fn refuses_ten_megabytes_of_nested_aliases_in_bounded_memory() {
    const LINES: usize = 120_000;
    let directory = work_directory();
    let aliases = |line: usize| format!("a{line}: &a{line} [{}]\n", vec![format!("*a{}", line - 1); 9].join(", "));
    let text: String = ["version: 1\nenvironment: lab\na0: &a0 [x]\n".to_owned()].into_iter().chain((1..LINES).map(aliases)).collect();
    assert!(text.len() > 10_000_000);
    fs::write(directory.path().join("desired.yaml"), text).expect("written");
    let output = run_with_memory_limit(&directory, 256, &["audit", "desired.yaml", "--replay", "current.json"]);
    check_error(&output, 2, &["aliases (`*name`) are not accepted", "100 faults in desired.yaml; there may be more"]);
}

#[cfg(target_os = "linux")]
#[test]
fn refuses_a_hundred_thousand_brackets_in_bounded_memory() {
    let directory = work_directory();
    let brackets = "[".repeat(100_000);
    for (desired, replay) in [("deep.yaml", "current.json"), ("deep.json", "current.json"), ("desired.yaml", "deep.json")] {
        fs::write(directory.path().join("deep.yaml"), &brackets).expect("written");
        fs::write(directory.path().join("deep.json"), &brackets).expect("written");
        let output = run_with_memory_limit(&directory, 256, &["audit", desired, "--replay", replay]);
        check_error(&output, 2, &["1 fault in deep."]);
    }
    let steps: String = (0..3_000).map(|depth| format!("{}k{depth}:\n", " ".repeat(depth))).collect();
    fs::write(directory.path().join("deep.yaml"), steps).expect("written");
    check_error(&run_with_memory_limit(&directory, 256, &["audit", "deep.yaml", "--replay", "current.json"]), 2, &["in deep.yaml"]);
}

const TWO_ENVIRONMENTS: &str = "[environments.lab.protect]\nids = [100]\n[environments.site-b.protect]\nids = [100]\n";

/// The state directory is inside the directory of the test.
fn write_config(directory: &TempDir, text: &str) {
    fs::write(directory.path().join("converger.toml"), format!("{text}\n[store]\ndirectory = \"state\"\n")).expect("written");
}

#[test]
fn the_only_environment_need_not_be_named() {
    let directory = work_directory();
    write_config(&directory, "[environments.lab.protect]\nids = [100]\n");
    let listed = run(&directory, &["ops", "list"]);
    assert_eq!(listed.status.code(), Some(0), "{}", stderr(&listed));
    assert!(stdout(&listed).contains("no operations"), "{}", stdout(&listed));
    for arguments in [&["ops", "show", "7f3a-0"][..], &["ops", "resolve", "7f3a-0", "--as", "done", "--reason", "x"]] {
        check_error(&run(&directory, arguments), 2, &["there is no operation `7f3a-0` in `lab`"]);
    }
    // They are resolved to the environment, which cannot be reached.
    for arguments in [&["freeze", "--reason", "x"][..], &["hold", "100", "--reason", "x"], &["release", "100"], &["thaw"]] {
        check_error(&run(&directory, arguments), 2, &["environment-unconfigured", "`lab`"]);
    }
}

#[test]
fn several_environments_are_listed_where_none_is_named() {
    let directory = work_directory();
    write_config(&directory, TWO_ENVIRONMENTS);
    for arguments in [&["ops", "list"][..], &["freeze", "--reason", "x"], &["hold", "100", "--reason", "x"], &["ops", "show", "7f3a-0"]] {
        check_error(&run(&directory, arguments), 2, &["no environment is named, and converger.toml has 2: lab, site-b"]);
    }
    assert_eq!(run(&directory, &["ops", "list", "site-b"]).status.code(), Some(0));
    fs::remove_file(directory.path().join("converger.toml")).expect("removed");
    check_error(
        &run(&directory, &["ops", "list"]),
        2,
        &["there is no converger.toml in this directory", "configure it in converger.toml:"],
    );
}

#[test]
fn all_faults_of_the_configuration_are_shown_in_place_without_secrets() {
    let directory = work_directory();
    let text = "[limits]\nguests = \"10\"\n\n[environments.lab]\ntoken = \"a@pve!x=hunter2\" # hunter2\nmode = \"sole\"\n";
    fs::write(directory.path().join("converger.toml"), text).expect("written");
    for arguments in [&["audit", "desired.yaml"][..], &["doctor"], &["ops", "list"], &["ledger", "tail"], &["init", "--vmid", "100"]] {
        let output = run(&directory, arguments);
        let parts = ["converger.toml:2:10", "2 | guests = \"**\"", "^^^^ here", "did you mean `solo`?", "5 faults in converger.toml"];
        check_error(&output, 2, &parts);
        assert!(!stderr(&output).contains("hunter2"), "{}", stderr(&output));
        assert_eq!(stderr(&output).matches("error[config-invalid]").count(), 5);
    }
}

/// An existing configuration that cannot be read may contain a freeze or protection, so defaults must not replace it.
#[cfg(unix)]
#[test]
fn dangling_config_link_is_an_error() {
    let directory = work_directory();
    std::os::unix::fs::symlink("gone.toml", directory.path().join("converger.toml")).expect("linked");
    let output = run(&directory, &["audit", "desired.yaml", "--replay", "current.json"]);
    check_error(&output, 2, &["cannot read converger.toml"]);
}

#[test]
fn configuration_is_never_overwritten() {
    let directory = work_directory();
    let limits = "[limits]\nguests = 5\n";
    for (config, arguments) in [("converger.toml", &[][..]), ("own.toml", &["--config", "own.toml"][..])] {
        fs::write(directory.path().join(config), limits).expect("written");
        let command = [&["plan", "desired.yaml", "--replay", "current.json", "--out", config][..], arguments].concat();
        let output = run(&directory, &command);
        assert_eq!(fs::read_to_string(directory.path().join(config)).expect("read"), limits);
        check_error(&output, 2, &["cannot write"]);
    }
}

/// As root, `--out /dev/null` would replace the device with a file.
#[cfg(unix)]
#[test]
fn pipe_or_device_is_never_replaced_by_a_file() {
    use std::os::unix::fs::FileTypeExt;
    let directory = work_directory();
    let status = Command::new("mkfifo").arg(directory.path().join("pipe")).status().expect("mkfifo runs");
    assert!(status.success());
    let output = run(&directory, &["plan", "desired.yaml", "--replay", "current.json", "--out", "pipe"]);
    assert!(fs::metadata(directory.path().join("pipe")).expect("it is there").file_type().is_fifo());
    check_error(&output, 1, &["cannot write pipe"]);
}

/// A pipe may never have a writer, and a device may be endless.
#[cfg(unix)]
#[test]
fn refuses_a_pipe_or_device_as_recording() {
    let directory = work_directory();
    assert!(Command::new("mkfifo").arg(directory.path().join("pipe")).status().expect("mkfifo runs").success());
    for recording in ["pipe", "/dev/zero"] {
        for command in ["audit", "plan"] {
            let output = run(&directory, &[command, "desired.yaml", "--replay", recording]);
            check_error(&output, 2, &[&format!("cannot read {recording}: it is a pipe, a socket or a device, and not a regular file")]);
        }
    }
    let piped = with_input(
        program(&directory, &["audit", "desired.yaml", "--replay", "/dev/stdin", "--json"]),
        observation_json("stopped").as_bytes(),
    );
    assert_eq!(piped.status.code(), Some(4), "{}", stderr(&piped));
}

/// A converger.toml with an environment on another machine, with the secret in a systemd credential.
fn write_credential_config(directory: &TempDir, secret: &str) {
    let config = "[environments.lab]\nurl = \"https://pve1.invalid:8006\"\ntoken = \"svc@pve!main\"\nsecret = { credential = \"pve\" }\n";
    fs::write(directory.path().join("converger.toml"), config).expect("written");
    fs::create_dir(directory.path().join("credentials")).expect("made");
    fs::write(directory.path().join("credentials/pve"), secret).expect("written");
}

#[test]
fn credential_is_never_overwritten() {
    let directory = work_directory();
    write_credential_config(&directory, "f3b1c8de-0000-4000-8000-123456789abc\n");
    for command in ["plan", "observe"] {
        let mut program = program(&directory, &[command, "desired.yaml", "--replay", "current.json", "--out", "credentials/pve"]);
        let output = program.env("CREDENTIALS_DIRECTORY", directory.path().join("credentials")).output().expect("the program runs");
        check_error(&output, 2, &["cannot write", "credentials/pve"]);
    }
    let credential = fs::read_to_string(directory.path().join("credentials/pve")).expect("read");
    assert_eq!(credential, "f3b1c8de-0000-4000-8000-123456789abc\n");
}

#[test]
fn refuses_a_secret_too_short_to_redact() {
    let directory = work_directory();
    write_credential_config(&directory, "hunter2\n");
    for command in ["audit", "plan"] {
        let mut program = program(&directory, &[command, "desired.yaml"]);
        let output = program.env("CREDENTIALS_DIRECTORY", directory.path().join("credentials")).output().expect("the program runs");
        check_error(&output, 2, &["the systemd credential `pve` holds a secret of less than 12 characters", "secrets of Proxmox have 36"]);
        assert!(!stderr(&output).contains("hunter2"), "{}", stderr(&output));
    }
}

#[test]
fn help_suggests_only_options_of_the_command() {
    let directory = work_directory();
    let commands: [&[&str]; 6] = [
        &["hold", "lab", "100", "--reason", "x"],
        &["release", "lab", "100"],
        &["freeze", "lab", "--reason", "x"],
        &["thaw", "lab"],
        &["doctor", "desired.yaml"],
        &["guests", "--environment", "lab"],
    ];
    fs::write(directory.path().join("converger.toml"), "[limits]\nguests = 5\n").expect("written");
    for command in commands {
        let output = run(&directory, command);
        check_error(&output, 2, &["[environments.lab]"]);
        assert!(!stderr(&output).contains("--replay"), "{command:?}: {}", stderr(&output));
    }
    check_error(&run(&directory, &["audit", "desired.yaml"]), 2, &["[environments.lab]", "--replay"]);
}

/// Canonical JSON is one line. A fault in the recording of a large fleet must not take minutes to display. The limit is in CPU seconds and
/// a hundred times what a hundred short snippets take.
#[cfg(target_os = "linux")]
#[test]
fn reports_faults_in_one_long_line_in_linear_time() {
    let directory = work_directory();
    let guests = r#"{"vmid":1},"#.repeat(1_000_000);
    fs::write(directory.path().join("desired.json"), format!(r#"{{"version":1,"environment":"lab","guests":[{guests}{{}}]}}"#))
        .expect("written");
    let limited = "ulimit -t 20 && exec \"$0\" \"$@\"";
    let mut command = Command::new("/bin/sh");
    command.args(["-c", limited, env!("CARGO_BIN_EXE_converger"), "audit", "desired.json", "--replay", "current.json"]);
    let output = command.current_dir(directory.path()).env_clear().stdin(Stdio::null()).output().expect("a shell runs");
    check_error(&output, 2, &["100 faults in desired.json; there may be more"]);
}

/// The bound in the help is the one that the engine uses.
#[test]
fn apply_help_states_the_longest_wait_for_a_guest() {
    let help = stdout(&run(&work_directory(), &["apply", "--help"]));
    let joined_help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let patience = converger_engine::operation::Patience::default();
    let expected = format!("for up to {} seconds (more if `timeout` exceeds 60 seconds)", patience.late_arrival_ms.div_ceil(1000));
    assert!(joined_help.contains(&expected), "{expected}: {help}");
    assert_eq!(patience.with_response_timeout(61_000).late_arrival_ms, patience.late_arrival_ms + 1_000);
}

#[test]
fn contract_lists_tests_only_on_request() {
    let directory = work_directory();
    let stdout_of = |arguments: &[&str]| stdout(&run(&directory, arguments));
    let (summary, verbose) = (stdout_of(&["contract"]), stdout_of(&["contract", "--verbose"]));
    assert!(summary.lines().count() < 40 && summary.contains("--verbose lists the tests"), "{summary}");
    let json: serde_json::Value = serde_json::from_str(&stdout_of(&["contract", "--json"])).expect("JSON");
    let guarantees = json["guarantees"].as_array().expect("a list");
    let names: Vec<&str> =
        guarantees.iter().flat_map(|own| own["tests"].as_array().expect("a list")).filter_map(|name| name.as_str()).collect();
    assert!(names.len() > 100, "{}", names.len());
    assert!(names.iter().all(|name| verbose.contains(name) && !summary.contains(name)));
    assert!(guarantees.iter().all(|own| summary.contains(own["id"].as_str().expect("an id"))), "{summary}");
}

/// Two declared guests, and a third one that is not.
fn two_of_three_directory() -> TempDir {
    let directory = work_directory();
    let declared = |vmid: u32| format!("  - {{ vmid: {vmid}, kind: lxc, name: dns-{vmid}, state: running }}\n");
    let row = |vmid: u32| {
        format!(
            r#"{{"vmid":{vmid},"kind":"lxc","name":"dns-{vmid}","node":"pve1","status":"stopped","lock":null,"ha":null,
            "template":false,"protection":false,"tags":[],"pending":[]}}"#
        )
    };
    let desired = format!("version: 1\nenvironment: lab\nguests:\n{}{}", declared(100), declared(101));
    let current = format!(
        r#"{{"schema":"converger.observation/1","environment":"lab","complete":true,"quorate":true,
        "nodes":[{{"name":"pve1","online":true}}],"guests":[{},{},{}]}}"#,
        row(100),
        row(101),
        row(102)
    );
    fs::write(directory.path().join("desired.yaml"), desired).expect("written");
    fs::write(directory.path().join("current.json"), current).expect("written");
    directory
}

#[test]
fn guests_that_only_leaves_out_are_not_counted_as_unmanaged() {
    let directory = two_of_three_directory();
    let unmanaged = |more: &[&str]| {
        let output = run(&directory, &[&["audit", "desired.yaml", "--replay", "current.json", "--json"], more].concat());
        let plan: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)));
        plan["summary"]["unmanaged"].clone()
    };
    assert_eq!(unmanaged(&[]), 1);
    assert_eq!(unmanaged(&["--only", "100"]), 1, "guest 101 is declared");
}

#[test]
fn verbose_and_quiet_change_no_json_and_exclude_each_other() {
    let directory = two_of_three_directory();
    let json = |more: &[&str]| run(&directory, &[&["audit", "desired.yaml", "--replay", "current.json", "--json"], more].concat()).stdout;
    assert_eq!([json(&["--quiet"]), json(&["--verbose"])], [json(&[]), json(&[])]);
    check_error(&run(&directory, &["--verbose", "contract", "--quiet"]), 2, &["error[usage-wrong]: ", "'--verbose'", "'--quiet'"]);
    let verbose = stdout(&run(&directory, &["audit", "desired.yaml", "--replay", "current.json", "--verbose"]));
    assert!(verbose.contains("(impact none, risk medium, benign; needs confirmation)"), "{verbose}");
}

#[test]
fn verifying_a_file_that_is_no_receipt_is_bad_usage_and_no_tampering() {
    let directory = work_directory();
    fs::write(directory.path().join("binary"), [0xff, 0xfe, 0]).expect("written");
    for name in ["desired.yaml", "current.json", "binary"] {
        let output = run(&directory, &["verify", name]);
        check_error(&output, 2, &["usage-wrong", &format!("{name} is not a receipt, an export or a state directory")]);
        assert!(!stderr(&output).contains("keep it as evidence"), "{output:?}");
    }
    fs::write(directory.path().join("receipt.txt"), "converger.receipt/1\ncut").expect("written");
    check_error(&run(&directory, &["verify", "receipt.txt"]), 6, &["integrity-violation", "keep it as evidence"]);
}

#[test]
fn without_a_configuration_the_help_says_to_write_one() {
    let directory = work_directory();
    for arguments in [&["guests"][..], &["init", "--vmid", "100"], &["hold", "100", "--reason", "x"], &["freeze", "--reason", "x"]] {
        let output = run(&directory, arguments);
        check_error(&output, 2, &["there is no converger.toml", "configure it in converger.toml:", "[environments.lab]"]);
        assert!(!stderr(&output).contains("--environment NAME"), "{output:?}");
    }
    write_config(&directory, TWO_ENVIRONMENTS);
    check_error(&run(&directory, &["hold", "100", "--reason", "x"]), 2, &["`converger hold NAME 100`"]);
    fs::rename(directory.path().join("converger.toml"), directory.path().join("other.toml")).expect("renamed");
    let output = run(&directory, &["guests", "--config", "other.toml", "--environment", "nowhere"]);
    check_error(&output, 2, &["configure it in other.toml:"]);
}

#[test]
fn an_artifact_in_place_of_another_input_is_one_fault() {
    let directory = work_directory();
    assert_eq!(run(&directory, &["plan", "desired.yaml", "--replay", "current.json"]).status.code(), Some(4));
    let replay = run(&directory, &["audit", "desired.yaml", "--replay", "plan.json"]);
    check_error(&replay, 2, &["plan.json is a plan (converger.plan/1); --replay needs an observation (current.json)"]);
    for (name, kind) in [("plan.json", "a plan (converger.plan/1)"), ("current.json", "an observation (converger.observation/1)")] {
        let output = run(&directory, &["audit", name, "--replay", "current.json"]);
        check_error(&output, 2, &[&format!("{name} is {kind}; the declared state (desired.yaml) is needed here")]);
        assert_eq!(stderr(&output).matches("error").count(), 1, "{output:?}");
    }
    fs::write(directory.path().join("junk.json"), "junk").expect("written");
    check_error(&run(&directory, &["diff", "junk.json", "plan.json"]), 2, &["junk.json is not a plan: it is not JSON (line 1, column 1)"]);
    check_error(&run(&directory, &["diff", "current.json", "plan.json"]), 2, &["is not a plan: it is an observation"]);
}

#[test]
fn a_syntax_fault_is_shown_without_its_consequences() {
    let directory = work_directory();
    let text = "version: 1\nenvironment: lab\nguests:\n  - kind: lxc\n  - vmid: 101\n   kind: lxc\n";
    fs::write(directory.path().join("desired.yaml"), text).expect("written");
    let output = run(&directory, &["audit", "desired.yaml", "--replay", "current.json"]);
    check_error(&output, 2, &["this is not valid YAML", "1 fault in desired.yaml"]);
    assert!(!stderr(&output).contains("lacks the key"), "{output:?}");
}

#[test]
fn a_wrong_url_is_named_without_its_value() {
    let directory = work_directory();
    for (url, fault) in [
        ("127.0.0.1:8006", "`url` must begin with https://"),
        ("http://pve1:8006", "`url` must begin with https://"),
        ("https://pve1:8006/hunter2", "`url` must end after the port, without a path"),
    ] {
        let section = format!("[environments.lab]\nurl = \"{url}\"\ntoken = \"a@pve!me\"\nsecret = {{ env = \"X\" }}\n");
        fs::write(directory.path().join("converger.toml"), section).expect("written");
        check_error(&run(&directory, &["doctor"]), 2, &[fault, "write it as https://name:8006"]);
    }
}

#[test]
fn doctor_with_a_closed_port_says_that_no_endpoint_was_reached() {
    let directory = work_directory();
    let section = "[environments.lab]\nurl = \"https://127.0.0.1:1\"\ntoken = \"a@pve!me\"\nsecret = { env = \"X\" }\nmode = \"solo\"\n";
    write_config(&directory, section);
    let output = program(&directory, &["doctor", "--quiet"]).env("X", "5ec2e700-0000-4000-8000-000000000001").output().expect("it runs");
    let shown = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{shown}");
    assert!(shown.contains("127.0.0.1:1: connection refused\n"), "{shown}");
    assert!(shown.contains("because no endpoint was reached") && !shown.contains('✓'), "{shown}");
    assert!(shown.contains("1 ok, 0 warnings, 1 failed, 1 unknown"), "{shown}");
}
