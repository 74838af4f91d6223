//! The setting of a scenario with a lab: a directory, the labs, and the program in it.
//!
//! The order of events is in `live`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use converger_lab::RequestRecord;
use tempfile::TempDir;

use crate::clock::ShiftedClock;
use crate::disk::TestDisk;
use crate::lab::{self, ScenarioLab};
use crate::line::ScenarioLine;
use crate::request_hook::RequestHook;
use crate::run::{self, ProgramRun, ProgramVariables};
use crate::scenario::{Scenario, read_directory};
use crate::volatile::VolatileValues;

/// The default configuration, as `converger lab --clock 100 --into` would write it.
const CONVERGER_TOML: &str = "\
[environments.lab]
url = \"{url}\"
fingerprints = [\"{fingerprint}\"]
token = \"converger@pve!main\"
secret = { file = \"secret\" }
mode = \"solo\"
clock = \"requests\"

[store]
directory = \"state\"
";

/// Files that are not copied for the program.
const NOT_COPIED: [&str; 5] = ["commands", "expected.txt", "lab.yaml", "other-lab.yaml", "story.md"];

/// The state directory.
const STATE: &str = "state";

/// The user that the program runs as.
const USER: &str = "ann";

/// The setting of one scenario.
pub(crate) struct ScenarioStage<'s> {
    variables: &'s ProgramVariables,
    directory: TempDir,
    labs: Vec<ScenarioLab>,
    /// Handles events in the first lab while a command runs.
    hook: Arc<RequestHook>,
    secrets: Vec<String>,
    volatile: VolatileValues,
    /// Whether the scenario applies anything: then reads are not listed, and artifacts are shown only on request.
    applies: bool,
    /// The output of commands and events during the next command.
    concurrent_output: Arc<Mutex<String>>,
    resources: StageResources,
}

/// Resources that only some scenarios need.
#[derive(Clone, Default)]
struct StageResources {
    /// The disk of the state directory.
    disk: Option<Arc<TestDisk>>,
    /// The clock of the program.
    clock: Option<Arc<ShiftedClock>>,
}

impl StageResources {
    fn program(&self, directory: &Path, surroundings: &ProgramVariables) -> Command {
        let mut program = self.disk.as_ref().map_or_else(|| run::program(directory, surroundings), |disk| disk.program(surroundings));
        self.clock.iter().for_each(|clock| clock.attach_to(&mut program).expect("it was compiled"));
        program
    }

    fn apply_line(&self, line: &ScenarioLine, directory: &Path) -> Result<(), String> {
        let disk = || self.disk.as_ref().ok_or("the state is on no disk of its own; `disk 256` puts it on one");
        match line {
            ScenarioLine::Fill(kibibytes) => disk()?.fill(*kibibytes),
            ScenarioLine::Empty => disk()?.empty(),
            ScenarioLine::ReadOnly => disk()?.remount("ro"),
            ScenarioLine::Writable => disk()?.remount("rw"),
            ScenarioLine::Clock(seconds) => self.clock.as_ref().ok_or("there is no clock")?.set(*seconds),
            line => change_files(line, directory),
        }
    }
}

impl<'s> ScenarioStage<'s> {
    /// Starts the labs of a scenario, the first one with this release of Proxmox VE if one is given.
    pub(crate) fn start(
        scenario: &Scenario,
        surroundings: &'s ProgramVariables,
        commands: &str,
        flavour: Option<u8>,
    ) -> Result<Self, String> {
        let hook = Arc::new(RequestHook::default());
        let clock = lab::parse_clock(commands.lines().find_map(|line| line.strip_prefix("@clock ")))?;
        let worlds = [("", "lab.yaml"), ("other:", "other-lab.yaml")];
        let worlds = worlds.into_iter().filter_map(|(prefix, file)| Some((prefix, file, scenario.read(file)?)));
        let start = |(prefix, file, mut text): (&'static str, &str, String)| {
            if let Some(flavour) = flavour.filter(|_| prefix.is_empty()) {
                text.insert_str(0, &format!("flavour: {flavour}\n"));
            }
            let watcher = prefix.is_empty().then(|| hook.watcher());
            ScenarioLab::start(prefix, &text, clock, watcher).map_err(|fault| format!("{file}: {fault}"))
        };
        let labs: Vec<ScenarioLab> = worlds.map(start).collect::<Result<_, _>>()?;
        labs.iter().take(1).for_each(|lab| hook.set_world(lab.world()));
        let directory = tempfile::tempdir().expect("a directory");
        let mut files = scenario.file_contents();
        files.retain(|name, _| !NOT_COPIED.contains(&name.as_str()));
        files.entry("converger.toml".into()).or_insert_with(|| CONVERGER_TOML.into());
        let first = labs.iter().flat_map(ScenarioLab::secrets).next().cloned().unwrap_or_default();
        let secret = files.remove("secret").unwrap_or_else(|| format!("{first}\n").into());
        write_private(&directory.path().join("secret"), &secret);
        for (name, bytes) in &files {
            let path = directory.path().join(name);
            fs::write(&path, fill_placeholders(name, bytes, &labs)?).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("whatever the mask of this process is");
        }
        for (file, certificate) in labs.iter().map(ScenarioLab::authority) {
            fs::write(directory.path().join(file), certificate).expect("written");
        }
        let mut secrets: Vec<String> = labs.iter().flat_map(ScenarioLab::secrets).cloned().collect();
        secrets.push(String::from_utf8_lossy(&secret).trim().to_owned());
        secrets.retain(|secret| !secret.is_empty());
        let volatile = VolatileValues::new(volatile_values(&labs, directory.path()), files.into_values().collect());
        let applies = commands.lines().any(|line| line.split(' ').any(|word| matches!(word, "apply" | "action" | "ledger" | "verify")));
        let has_clock = commands.lines().any(|line| line.split(' ').any(|word| word == "clock"));
        let props =
            StageResources { clock: if has_clock { Some(Arc::new(ShiftedClock::new()?)) } else { None }, ..StageResources::default() };
        Ok(Self {
            variables: surroundings,
            directory,
            labs,
            hook,
            secrets,
            volatile,
            applies,
            concurrent_output: Arc::default(),
            resources: props,
        })
    }

    /// Executes a line that is not a command; returns its output.
    pub(crate) fn execute_line(&mut self, line: ScenarioLine) -> Result<String, String> {
        match line {
            ScenarioLine::Act(event) => self.labs[0].inject_event(*event),
            ScenarioLine::Wait(milliseconds) => self.labs.iter_mut().for_each(|lab| lab.advance_time(milliseconds)),
            ScenarioLine::When(when) => self.hook.add_trigger(*when),
            ScenarioLine::Look(vmid) => return Ok(format!("{}\n", self.labs[0].describe_guest(vmid))),
            ScenarioLine::Show(file) => return self.show_file(&file),
            ScenarioLine::Disk(kibibytes) => {
                self.resources.disk = Some(Arc::new(TestDisk::mount(self.directory.path(), STATE, kibibytes)?))
            }
            line => self.resources.apply_line(&line, self.directory.path())?,
        }
        Ok(String::new())
    }

    fn show_file(&self, file: &str) -> Result<String, String> {
        let text = fs::read_to_string(self.directory.path().join(file)).map_err(|error| format!("show {file}: {error}"))?;
        let mut faults = Vec::new();
        let shown = if file.ends_with(".json") { run::pretty_json(&text, "show", 0, &mut faults) } else { Some(text) };
        match shown.filter(|_| faults.is_empty()) {
            Some(shown) => Ok(self.volatile.replace_run_values(&shown)),
            None => Err(format!("show {file}: {}", faults.join("; "))),
        }
    }

    /// Runs the program; returns its output, its requests and its files. `NAME=value` before the verb sets a variable.
    pub(crate) fn run_command(
        &mut self,
        line: &[String],
        typed: Option<&[String]>,
        kibibytes: Option<u32>,
        transcript: &mut String,
        faults: &mut Vec<String>,
    ) {
        let before = self.all_files();
        let (settings, arguments) = line.split_at(line.iter().take_while(|word| word.contains('=') && !word.starts_with('-')).count());
        let mut program = self.program(kibibytes);
        program.envs(settings.iter().filter_map(|setting| setting.split_once('=')));
        self.prepare_concurrent_commands();
        let hook = Arc::clone(&self.hook);
        let mut program_run = run::run_program_at(program, &self.fill_arguments(arguments), typed, &hook.running, faults);
        if hook.take_unfired() > 0 {
            faults.push(format!("what was to happen while `{}` runs did not", arguments.join(" ")));
        }
        let requests: Vec<RequestRecord> = self.labs.iter_mut().flat_map(ScenarioLab::requests).collect();
        let verb = name_verb(arguments);
        let mut written = self.all_files();
        written.retain(|name, bytes| before.get(name) != Some(bytes));
        faults.extend(find_forbidden_effects(verb, &requests, &written));
        faults.extend(find_leaks(&self.secrets, &program_run.transcript(), &written));
        written.retain(|name, _| !name.starts_with(STATE));
        if arguments.iter().any(|argument| argument == "--json") && !program_run.stdout.is_empty() {
            let lines = program_run
                .stdout
                .lines()
                .map(|line| run::pretty_json(&format!("{line}\n"), verb, program_run.exit, faults).unwrap_or_default());
            program_run.stdout = lines.collect();
        }
        program_run.stderr = sort_by_guest(&program_run.stderr);
        let how = typed.map_or("$", |_| "terminal $");
        let set: String = settings.iter().map(|setting| format!("{setting} ")).collect();
        let _ = write!(transcript, "{how} {set}converger {}\n{}", arguments.join(" "), self.normalize(&program_run.transcript()));
        let meanwhile = std::mem::take(&mut *self.concurrent_output.lock().expect("nobody panicked"));
        transcript.push_str(&self.normalize(&meanwhile));
        transcript.push_str(&if self.applies { list_changes(&requests) } else { list_requests(&requests) });
        for (name, bytes) in written {
            let text = String::from_utf8_lossy(&bytes);
            let shown =
                if name.ends_with(".json") { run::pretty_json(&text, verb, program_run.exit, faults) } else { Some(text.into_owned()) };
            let shown = if self.applies && name.ends_with(".json") { None } else { shown };
            let _ = write!(transcript, "--- wrote {name}\n{}", self.normalize(&shown.unwrap_or_default()));
        }
    }

    /// Runs the program with these lines typed at a terminal, or without one; returns its output and the requests that the labs received.
    pub(crate) fn run_plainly(&mut self, arguments: &[&str], typed: Option<&[String]>) -> (ProgramRun, Vec<RequestRecord>) {
        let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let hook = Arc::clone(&self.hook);
        let program_run = run::run_program_at(self.program(None), &arguments, typed, &hook.running, &mut Vec::new());
        (program_run, self.labs.iter_mut().flat_map(ScenarioLab::requests).collect())
    }

    /// Removes the events that were to happen during the last command and did not; returns their number.
    pub(crate) fn take_unfired(&self) -> usize {
        self.hook.take_unfired()
    }

    /// The first lab.
    pub(crate) fn lab(&self) -> &ScenarioLab {
        &self.labs[0]
    }

    fn normalize(&self, text: &str) -> String {
        if self.applies { self.volatile.replace_run_values(text) } else { self.volatile.replace_values(text) }
    }

    fn program(&self, kibibytes: Option<u32>) -> Command {
        let mut program = match kibibytes {
            None => self.resources.program(self.directory.path(), self.variables),
            Some(kibibytes) => run::file_limited_program(self.directory.path(), self.variables, kibibytes),
        };
        program.env("PVE_SECRET", self.labs[0].secrets().first().map_or("", String::as_str));
        program.env("CREDENTIALS_DIRECTORY", self.directory.path()).env("USER", USER);
        program
    }

    /// Fills the placeholders of a line: the digest that confirms the last written plan, and known runs.
    fn fill_arguments(&self, arguments: &[String]) -> Vec<String> {
        let plan = fs::read(self.directory.path().join("plan.json")).unwrap_or_default();
        let plan: serde_json::Value = serde_json::from_slice(&plan).unwrap_or_default();
        let digest = plan["proposal"].as_str().unwrap_or("{digest}");
        arguments.iter().map(|argument| self.volatile.fill_argument(&argument.replace("{digest}", digest))).collect()
    }

    /// Prepares commands that run during another one. They may only use the store, because the lab responds to nobody in the meantime.
    fn prepare_concurrent_commands(&self) {
        let (directory, surroundings, props) = (self.directory.path().to_owned(), *self.variables, self.resources.clone());
        let concurrent_output = Arc::clone(&self.concurrent_output);
        self.hook.set_line_handler(Box::new(move |line| {
            let mut output = concurrent_output.lock().expect("nobody panicked");
            let ScenarioLine::Run(arguments) = line else {
                return props.apply_line(line, &directory).expect("it can be done");
            };
            let mut program = props.program(&directory, &surroundings);
            program.env("USER", "bob");
            let program_run = run::run_program(program, arguments, &mut Vec::new());
            let _ = write!(output, "--- meanwhile\n$ converger {}\n{}", arguments.join(" "), program_run.transcript());
        }));
    }

    /// All files, including those of the state.
    fn all_files(&self) -> BTreeMap<String, Vec<u8>> {
        let mut all = read_directory(self.directory.path());
        let state = self.resources.disk.as_ref().map_or_else(|| self.directory.path().join(STATE), |disk| disk.mounted().to_owned());
        if state.is_dir() {
            all.extend(read_directory(&state).into_iter().map(|(name, bytes)| (format!("{STATE}/{name}"), bytes)));
        }
        all
    }
}

/// Values that differ between machines, with their names.
fn volatile_values(labs: &[ScenarioLab], directory: &Path) -> Vec<(String, String)> {
    let mut known: Vec<(String, String)> = labs.iter().flat_map(ScenarioLab::volatile_values).collect();
    known.push((directory.display().to_string(), "<room>".into()));
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    // The person who runs the tests appears under these names.
    let own = Command::new("id").arg("-un").output().map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let own = own.unwrap_or_default();
    let uid = Command::new("id").arg("-u").output().map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    known.push((format!("cli:{}:", uid.unwrap_or_default()), "cli:<user>:".into()));
    known.extend([USER, "bob"].map(|user| (format!("{own}(as {user})@{}", host.trim()), format!("{user}@<here>"))));
    known.extend([USER, "bob"].map(|user| (format!("{user}@{}", host.trim()), format!("{user}@<here>"))));
    known
}

/// Executes a line about files.
fn change_files(line: &ScenarioLine, directory: &Path) -> Result<(), String> {
    let wrong = |file: &str, error: std::io::Error| format!("{file}: {error}");
    match line {
        ScenarioLine::Copy(from, to) => fs::copy(directory.join(from), directory.join(to)).map(drop).map_err(|error| wrong(from, error)),
        ScenarioLine::Move(from, to) => fs::rename(directory.join(from), directory.join(to)).map_err(|error| wrong(from, error)),
        ScenarioLine::Link(to, name) => {
            // Removes an existing file of this name.
            let _ = fs::remove_file(directory.join(name));
            std::os::unix::fs::symlink(to, directory.join(name)).map_err(|error| wrong(name, error))
        }
        ScenarioLine::Directory(name, mode) => {
            fs::DirBuilder::new().mode(*mode).create(directory.join(name)).map_err(|error| wrong(name, error))
        }
        ScenarioLine::Poke { file, offset, bytes } => {
            let opened = fs::File::options().write(true).open(directory.join(file));
            let poked = opened.and_then(|mut file| file.seek(SeekFrom::Start(*offset)).and_then(|_| file.write_all(bytes)));
            poked.map_err(|error| wrong(file, error))
        }
        line => Err(format!("{line:?} cannot happen there")),
    }
}

/// Lines about guests come from concurrent operations. The lines of one guest keep their order, and guests are sorted.
fn sort_by_guest(text: &str) -> String {
    let guest = |line: &str| line.split(' ').next().and_then(|word| word.parse::<u32>().ok());
    let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
    for run in lines.chunk_by_mut(|one, other| guest(one).is_some() == guest(other).is_some()) {
        run.sort_by_key(|line| guest(line));
    }
    lines.concat()
}

/// The places where a secret leaked.
fn find_leaks(secrets: &[String], transcript: &str, written: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let written = written.iter().map(|(name, bytes)| (name.as_str(), String::from_utf8_lossy(bytes)));
    let outputs = written.chain([("what it said", transcript.into())]);
    let leaks = outputs.filter(|(_, text)| secrets.iter().any(|secret| text.contains(secret.as_str())));
    leaks.map(|(source, _)| format!("the secret of a token is in {source}")).collect()
}

/// The command, for checks. A requested action is applied like a declared state, unless only its plan is shown.
fn name_verb(arguments: &[String]) -> &str {
    match arguments.first().map_or("", String::as_str) {
        "action" if arguments.iter().any(|argument| argument == "--plan") => "plan",
        "action" => "apply",
        verb => verb,
    }
}

/// What no command that reads may do: send anything but reads (G4, G5), and for an audit or a list of guests, leave anything behind.
fn find_forbidden_effects(verb: &str, requests: &[RequestRecord], written: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let changes = requests.iter().filter(|record| verb != "apply" && record.method != "GET");
    let mut misdeeds: Vec<String> = changes.map(|record| format!("{verb} sent {} {}", record.method, record.path)).collect();
    if matches!(verb, "audit" | "guests") {
        // If there is a WAL, SQLite registers readers in this file. It contains no data.
        let lasting = written.keys().filter(|file| !file.ends_with(".db-shm"));
        misdeeds.extend(lasting.map(|file| format!("{verb} wrote {file}")));
    }
    misdeeds
}

/// The sent changes with their counts. Reads are omitted, because their number depends on concurrent operations.
fn list_changes(requests: &[RequestRecord]) -> String {
    let changes: Vec<RequestRecord> = requests.iter().filter(|record| record.method != "GET").cloned().collect();
    list_requests(&changes).replacen(" request", " change", 1).replace("--- 0 changes\n", "--- no changes\n")
}

/// The requests, each kind once with its count.
fn list_requests(requests: &[RequestRecord]) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for record in requests {
        let status = if record.status == 0 { "lost".to_owned() } else { record.status.to_string() };
        *counts.entry(format!("{} {} {} {status}", record.entry, record.method, record.path)).or_default() += 1;
    }
    let mut text = format!("--- {} request{}\n", requests.len(), if requests.len() == 1 { "" } else { "s" });
    for (line, count) in counts {
        let times = if count == 1 { String::new() } else { format!(" ({count} times)") };
        let _ = writeln!(text, "{line}{times}");
    }
    text
}

/// A file of the scenario with the addresses of its labs.
fn fill_placeholders(name: &str, bytes: &[u8], labs: &[ScenarioLab]) -> Result<Vec<u8>, String> {
    let Some(text) = std::str::from_utf8(bytes).ok().filter(|_| name.ends_with(".toml")) else { return Ok(bytes.to_vec()) };
    let mut text = text.to_owned();
    for (key, value) in labs.iter().flat_map(ScenarioLab::placeholders) {
        text = text.replace(&key, &value);
    }
    match text.find("{url").or_else(|| text.find("{other:")) {
        Some(at) => Err(format!("{name}: there is nothing that `{}` stands for", text[at..].lines().next().unwrap_or_default())),
        None => Ok(text.into_bytes()),
    }
}

/// Writes a file that only its owner may read.
fn write_private(path: &Path, bytes: &[u8]) {
    let mut file = fs::File::options().write(true).create_new(true).mode(0o600).open(path).expect("made");
    file.write_all(bytes).expect("written");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_record(method: &str) -> RequestRecord {
        let (entry, path) = ("pve1".to_owned(), "/x".to_owned());
        RequestRecord { at_ms: 0, entry, method: method.to_owned(), path, user: String::new(), status: 200 }
    }

    #[test]
    fn detects_a_read_only_command_that_writes() {
        let written = BTreeMap::from([("plan.json".to_owned(), Vec::new())]);
        assert_eq!(find_forbidden_effects("plan", &[sample_record("GET")], &written), Vec::<String>::new());
        assert_eq!(find_forbidden_effects("plan", &[sample_record("GET"), sample_record("PUT")], &written), ["plan sent PUT /x"]);
        assert_eq!(find_forbidden_effects("audit", &[], &written), ["audit wrote plan.json"]);
        assert_eq!(find_forbidden_effects("apply", &[sample_record("POST")], &written), Vec::<String>::new());
    }

    #[test]
    fn detects_a_leaked_secret_anywhere() {
        let secrets = ["hunter2".to_owned()];
        let written = BTreeMap::from([("plan.json".to_owned(), b"{\"token\":\"a=hunter2\"}".to_vec()), ("b".to_owned(), Vec::new())]);
        assert_eq!(find_leaks(&secrets, "nothing", &BTreeMap::new()), Vec::<String>::new());
        assert_eq!(
            find_leaks(&secrets, "it is hunter2.", &written),
            ["plan.json", "what it said"].map(|source| format!("the secret of a token is in {source}"))
        );
    }

    #[test]
    fn requests_are_counted_by_path_and_status() {
        let lost_request = RequestRecord { status: 0, ..sample_record("GET") };
        assert_eq!(
            list_requests(&[sample_record("GET"), lost_request, sample_record("GET")]),
            "--- 3 requests\npve1 GET /x 200 (2 times)\npve1 GET /x lost\n"
        );
    }

    #[test]
    fn changes_are_counted_and_reads_are_not() {
        assert_eq!(list_changes(&[sample_record("GET"), sample_record("PUT")]), "--- 1 change\npve1 PUT /x 200\n");
        assert_eq!(list_changes(&[sample_record("GET")]), "--- no changes\n");
    }

    #[test]
    fn sorts_lines_by_guest() {
        assert_eq!(sort_by_guest("b\n102 x\n101 z\n101 a\na\n"), "b\n101 z\n101 a\n102 x\na\n");
    }
}
