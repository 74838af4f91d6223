//! Where a story on a lab plays: a directory, the labs, and the program in it.
//!
//! What never enters: in which order things happen (`live`), and what is expected.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use converger_lab::Record;
use tempfile::TempDir;

use crate::clock::Clock;
use crate::disk::Disk;
use crate::hook::Hook;
use crate::lab::{self, Lab};
use crate::line::Line;
use crate::run::{self, Surroundings};
use crate::scenario::{Scenario, content};
use crate::volatile::Volatile;

/// How the lab is reached where the story does not say: as `converger lab --clock 100 --into` would leave it.
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

/// What is not for the program.
const NOT_COPIED: [&str; 5] = ["commands", "expected.txt", "lab.yaml", "other-lab.yaml", "story.md"];

/// Where what must survive the program is kept.
const STATE: &str = "state";

/// Who the program runs as.
const USER: &str = "ann";

/// Where a story plays.
pub(crate) struct Stage<'s> {
    surroundings: &'s Surroundings,
    room: TempDir,
    labs: Vec<Lab>,
    /// What happens to the first of them while a command runs.
    hook: Arc<Hook>,
    secrets: Vec<String>,
    volatile: Volatile,
    /// Whether anything is carried out in it: then what is read is not listed, and artifacts are shown where that is asked for.
    acts: bool,
    /// What runs or happens while the next command does.
    meanwhile: Arc<Mutex<String>>,
    props: Props,
}

/// What only some stories need.
#[derive(Clone, Default)]
struct Props {
    /// Where the state is kept.
    disk: Option<Arc<Disk>>,
    /// Our own.
    clock: Option<Arc<Clock>>,
}

impl Props {
    fn program(&self, room: &Path, surroundings: &Surroundings) -> Command {
        let mut program = self.disk.as_ref().map_or_else(|| run::program(room, surroundings), |disk| disk.program(surroundings));
        self.clock.iter().for_each(|clock| clock.give(&mut program).expect("it was compiled"));
        program
    }

    fn change(&self, line: &Line, room: &Path) -> Result<(), String> {
        let disk = || self.disk.as_ref().ok_or("the state is on no disk of its own; `disk 256` puts it on one");
        match line {
            Line::Fill(kibibytes) => disk()?.fill(*kibibytes),
            Line::Empty => disk()?.empty(),
            Line::ReadOnly => disk()?.remount("ro"),
            Line::Writable => disk()?.remount("rw"),
            Line::Clock(seconds) => self.clock.as_ref().ok_or("there is no clock")?.set(*seconds),
            line => in_room(line, room),
        }
    }
}

impl<'s> Stage<'s> {
    pub(crate) fn set(scenario: &Scenario, surroundings: &'s Surroundings, commands: &str) -> Result<Self, String> {
        let hook = Arc::new(Hook::default());
        let clock = lab::clock(commands.lines().find_map(|line| line.strip_prefix("@clock ")))?;
        let worlds = [("", "lab.yaml"), ("other:", "other-lab.yaml")];
        let worlds = worlds.into_iter().filter_map(|(prefix, file)| Some((prefix, file, scenario.read(file)?)));
        let start = |(prefix, file, text): (&'static str, &str, String)| {
            let watcher = prefix.is_empty().then(|| hook.watcher());
            Lab::start(prefix, &text, clock, watcher).map_err(|fault| format!("{file}: {fault}"))
        };
        let labs: Vec<Lab> = worlds.map(start).collect::<Result<_, _>>()?;
        labs.iter().take(1).for_each(|lab| hook.belongs_to(lab.world()));
        let room = tempfile::tempdir().expect("a directory");
        let mut files = scenario.content();
        files.retain(|name, _| !NOT_COPIED.contains(&name.as_str()));
        files.entry("converger.toml".into()).or_insert_with(|| CONVERGER_TOML.into());
        let first = labs.iter().flat_map(Lab::secrets).next().cloned().unwrap_or_default();
        let secret = files.remove("secret").unwrap_or_else(|| format!("{first}\n").into());
        private(&room.path().join("secret"), &secret);
        for (name, bytes) in &files {
            let path = room.path().join(name);
            fs::write(&path, filled(name, bytes, &labs)?).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("whatever the mask of this process is");
        }
        for (file, certificate) in labs.iter().map(Lab::authority) {
            fs::write(room.path().join(file), certificate).expect("written");
        }
        let mut secrets: Vec<String> = labs.iter().flat_map(Lab::secrets).cloned().collect();
        secrets.push(String::from_utf8_lossy(&secret).trim().to_owned());
        secrets.retain(|secret| !secret.is_empty());
        let volatile = Volatile::new(known(&labs, room.path()), files.into_values().collect());
        let acts = commands.lines().any(|line| line.split(' ').any(|word| matches!(word, "apply" | "ledger" | "verify")));
        let has_clock = commands.lines().any(|line| line.split(' ').any(|word| word == "clock"));
        let props = Props { clock: if has_clock { Some(Arc::new(Clock::new()?)) } else { None }, ..Props::default() };
        Ok(Self { surroundings, room, labs, hook, secrets, volatile, acts, meanwhile: Arc::default(), props })
    }

    /// Something that is no command happens; what there is to be seen of it.
    pub(crate) fn between(&mut self, line: Line) -> Result<String, String> {
        match line {
            Line::Act(act) => self.labs[0].act(*act),
            Line::Wait(milliseconds) => self.labs.iter_mut().for_each(|lab| lab.wait(milliseconds)),
            Line::When(when) => self.hook.expect(*when),
            Line::Look(vmid) => return Ok(format!("{}\n", self.labs[0].look(vmid))),
            Line::Show(file) => return self.show(&file),
            Line::Disk(kibibytes) => self.props.disk = Some(Arc::new(Disk::mount(self.room.path(), STATE, kibibytes)?)),
            line => self.props.change(&line, self.room.path())?,
        }
        Ok(String::new())
    }

    fn show(&self, file: &str) -> Result<String, String> {
        let text = fs::read_to_string(self.room.path().join(file)).map_err(|error| format!("show {file}: {error}"))?;
        let mut faults = Vec::new();
        let shown = if file.ends_with(".json") { run::pretty(&text, "show", 0, &mut faults) } else { Some(text) };
        match shown.filter(|_| faults.is_empty()) {
            Some(shown) => Ok(self.volatile.replaced_of_run(&shown)),
            None => Err(format!("show {file}: {}", faults.join("; "))),
        }
    }

    /// Runs the program, and tells what it said, what it asked and what it left. `NAME=value` before the verb is set for it.
    pub(crate) fn run(
        &mut self,
        line: &[String],
        typed: Option<&[String]>,
        kibibytes: Option<u32>,
        transcript: &mut String,
        faults: &mut Vec<String>,
    ) {
        let before = self.content();
        let (settings, arguments) = line.split_at(line.iter().take_while(|word| word.contains('=') && !word.starts_with('-')).count());
        let mut program = self.program(kibibytes);
        program.envs(settings.iter().filter_map(|setting| setting.split_once('=')));
        self.prepare_meanwhile();
        let hook = Arc::clone(&self.hook);
        let mut ran = run::run_at(program, &self.filled(arguments), typed, &hook.running, faults);
        if hook.left() > 0 {
            faults.push(format!("what was to happen while `{}` runs did not", arguments.join(" ")));
        }
        let requests: Vec<Record> = self.labs.iter_mut().flat_map(Lab::requests).collect();
        let verb = arguments.first().map_or("", String::as_str);
        let mut written = self.content();
        written.retain(|name, bytes| before.get(name) != Some(bytes));
        faults.extend(misdeeds(verb, &requests, &written));
        faults.extend(leaks(&self.secrets, &ran.text(), &written));
        written.retain(|name, _| !name.starts_with(STATE));
        if arguments.iter().any(|argument| argument == "--json") && !ran.stdout.is_empty() {
            let lines = ran.stdout.lines().map(|line| run::pretty(&format!("{line}\n"), verb, ran.exit, faults).unwrap_or_default());
            ran.stdout = lines.collect();
        }
        ran.stderr = by_guest(&ran.stderr);
        let how = typed.map_or("$", |_| "terminal $");
        let set: String = settings.iter().map(|setting| format!("{setting} ")).collect();
        let _ = write!(transcript, "{how} {set}converger {}\n{}", arguments.join(" "), self.shown(&ran.text()));
        let meanwhile = std::mem::take(&mut *self.meanwhile.lock().expect("nobody panicked"));
        transcript.push_str(&self.shown(&meanwhile));
        transcript.push_str(&if self.acts { changed(&requests) } else { asked(&requests) });
        for (name, bytes) in written {
            let text = String::from_utf8_lossy(&bytes);
            let shown = if name.ends_with(".json") { run::pretty(&text, verb, ran.exit, faults) } else { Some(text.into_owned()) };
            let shown = if self.acts && name.ends_with(".json") { None } else { shown };
            let _ = write!(transcript, "--- wrote {name}\n{}", self.shown(&shown.unwrap_or_default()));
        }
    }

    fn shown(&self, text: &str) -> String {
        if self.acts { self.volatile.replaced_of_run(text) } else { self.volatile.replaced(text) }
    }

    fn program(&self, kibibytes: Option<u32>) -> Command {
        let mut program = match kibibytes {
            None => self.props.program(self.room.path(), self.surroundings),
            Some(kibibytes) => run::limited(self.room.path(), self.surroundings, kibibytes),
        };
        program.env("PVE_SECRET", self.labs[0].secrets().first().map_or("", String::as_str));
        program.env("CREDENTIALS_DIRECTORY", self.room.path()).env("USER", USER);
        program
    }

    /// What a line of a story may have in braces: the digest of the plan that was written last, and runs that came up.
    fn filled(&self, arguments: &[String]) -> Vec<String> {
        let plan = fs::read(self.room.path().join("plan.json")).unwrap_or_default();
        let plan: serde_json::Value = serde_json::from_slice(&plan).unwrap_or_default();
        let digest = plan["digest"].as_str().unwrap_or("{digest}");
        arguments.iter().map(|argument| self.volatile.filled(&argument.replace("{digest}", digest))).collect()
    }

    /// Commands that run while another one does. They are for the store only: the lab answers nobody as long.
    fn prepare_meanwhile(&self) {
        let (room, surroundings, props) = (self.room.path().to_owned(), *self.surroundings, self.props.clone());
        let told = Arc::clone(&self.meanwhile);
        self.hook.carry_out_with(Box::new(move |line| {
            let mut told = told.lock().expect("nobody panicked");
            let Line::Run(arguments) = line else {
                return props.change(line, &room).expect("it can be done");
            };
            let mut program = props.program(&room, &surroundings);
            program.env("USER", "bob");
            let ran = run::run(program, arguments, &mut Vec::new());
            let _ = write!(told, "--- meanwhile\n$ converger {}\n{}", arguments.join(" "), ran.text());
        }));
    }

    /// All files, those of the state too.
    fn content(&self) -> BTreeMap<String, Vec<u8>> {
        let mut all = content(self.room.path());
        let state = self.props.disk.as_ref().map_or_else(|| self.room.path().join(STATE), |disk| disk.directory().to_owned());
        if state.is_dir() {
            all.extend(content(&state).into_iter().map(|(name, bytes)| (format!("{STATE}/{name}"), bytes)));
        }
        all
    }
}

/// What differs from machine to machine, and what it is called.
fn known(labs: &[Lab], room: &Path) -> Vec<(String, String)> {
    let mut known: Vec<(String, String)> = labs.iter().flat_map(Lab::volatile).collect();
    known.push((room.display().to_string(), "<room>".into()));
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    // Whoever plays the stories calls themselves by these names.
    let own = Command::new("id").arg("-un").output().map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let own = own.unwrap_or_default();
    known.extend([USER, "bob"].map(|user| (format!("{own}(as {user})@{}", host.trim()), format!("{user}@<here>"))));
    known.extend([USER, "bob"].map(|user| (format!("{user}@{}", host.trim()), format!("{user}@<here>"))));
    known
}

/// What happens to files.
fn in_room(line: &Line, room: &Path) -> Result<(), String> {
    let wrong = |file: &str, error: std::io::Error| format!("{file}: {error}");
    match line {
        Line::Copy(from, to) => fs::copy(room.join(from), room.join(to)).map(drop).map_err(|error| wrong(from, error)),
        Line::Move(from, to) => fs::rename(room.join(from), room.join(to)).map_err(|error| wrong(from, error)),
        Line::Link(to, name) => {
            // Whatever has the name makes room.
            let _ = fs::remove_file(room.join(name));
            std::os::unix::fs::symlink(to, room.join(name)).map_err(|error| wrong(name, error))
        }
        Line::Directory(name, mode) => fs::DirBuilder::new().mode(*mode).create(room.join(name)).map_err(|error| wrong(name, error)),
        Line::Poke { file, offset, bytes } => {
            let opened = fs::File::options().write(true).open(room.join(file));
            let poked = opened.and_then(|mut file| file.seek(SeekFrom::Start(*offset)).and_then(|_| file.write_all(bytes)));
            poked.map_err(|error| wrong(file, error))
        }
        line => Err(format!("{line:?} cannot happen there")),
    }
}

/// Lines about guests come from several lanes at once: those of one guest stay in their order, and guests are put into theirs.
fn by_guest(text: &str) -> String {
    let guest = |line: &str| line.split(' ').next().and_then(|word| word.parse::<u32>().ok());
    let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
    for run in lines.chunk_by_mut(|one, other| guest(one).is_some() == guest(other).is_some()) {
        run.sort_by_key(|line| guest(line));
    }
    lines.concat()
}

/// Where a secret came out.
fn leaks(secrets: &[String], said: &str, written: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let written = written.iter().map(|(name, bytes)| (name.as_str(), String::from_utf8_lossy(bytes)));
    let places = written.chain([("what it said", said.into())]);
    let leaks = places.filter(|(_, text)| secrets.iter().any(|secret| text.contains(secret.as_str())));
    leaks.map(|(place, _)| format!("the secret of a token is in {place}")).collect()
}

/// What no command that reads may do: send anything but reads (G4, G5), and for an audit, leave anything behind.
fn misdeeds(verb: &str, requests: &[Record], written: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let changes = requests.iter().filter(|record| verb != "apply" && record.method != "GET");
    let mut misdeeds: Vec<String> = changes.map(|record| format!("{verb} sent {} {}", record.method, record.path)).collect();
    if verb == "audit" {
        // Where somebody left a log, SQLite notes in this file who reads it. It holds nothing.
        let lasting = written.keys().filter(|file| !file.ends_with(".db-shm"));
        misdeeds.extend(lasting.map(|file| format!("audit wrote {file}")));
    }
    misdeeds
}

/// The changes that were asked for, each with its count. How often something is read until it is as wanted depends on other lanes.
fn changed(requests: &[Record]) -> String {
    let changes: Vec<Record> = requests.iter().filter(|record| record.method != "GET").cloned().collect();
    asked(&changes).replacen(" request", " change", 1).replace("--- 0 changes\n", "--- no changes\n")
}

/// The requests, each kind once with its count.
fn asked(requests: &[Record]) -> String {
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

/// A file of the story with the addresses of its labs.
fn filled(name: &str, bytes: &[u8], labs: &[Lab]) -> Result<Vec<u8>, String> {
    let Some(text) = std::str::from_utf8(bytes).ok().filter(|_| name.ends_with(".toml")) else { return Ok(bytes.to_vec()) };
    let mut text = text.to_owned();
    for (key, value) in labs.iter().flat_map(Lab::placeholders) {
        text = text.replace(&key, &value);
    }
    match text.find("{url").or_else(|| text.find("{other:")) {
        Some(at) => Err(format!("{name}: there is nothing that `{}` stands for", text[at..].lines().next().unwrap_or_default())),
        None => Ok(text.into_bytes()),
    }
}

/// A file that nobody else may read.
fn private(path: &Path, bytes: &[u8]) {
    let mut file = fs::File::options().write(true).create_new(true).mode(0o600).open(path).expect("made");
    file.write_all(bytes).expect("written");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(method: &str) -> Record {
        let (entry, path) = ("pve1".to_owned(), "/x".to_owned());
        Record { at_ms: 0, entry, method: method.to_owned(), path, user: String::new(), status: 200 }
    }

    #[test]
    fn a_command_that_should_only_read_is_caught_when_it_does_more() {
        let written = BTreeMap::from([("plan.json".to_owned(), Vec::new())]);
        assert_eq!(misdeeds("plan", &[record("GET")], &written), Vec::<String>::new());
        assert_eq!(misdeeds("plan", &[record("GET"), record("PUT")], &written), ["plan sent PUT /x"]);
        assert_eq!(misdeeds("audit", &[], &written), ["audit wrote plan.json"]);
        assert_eq!(misdeeds("apply", &[record("POST")], &written), Vec::<String>::new());
    }

    #[test]
    fn a_secret_that_comes_out_is_found_wherever_it_is() {
        let secrets = ["hunter2".to_owned()];
        let written = BTreeMap::from([("plan.json".to_owned(), b"{\"token\":\"a=hunter2\"}".to_vec()), ("b".to_owned(), Vec::new())]);
        assert_eq!(leaks(&secrets, "nothing", &BTreeMap::new()), Vec::<String>::new());
        assert_eq!(
            leaks(&secrets, "it is hunter2.", &written),
            ["plan.json", "what it said"].map(|place| format!("the secret of a token is in {place}"))
        );
    }

    #[test]
    fn requests_are_counted_by_what_was_asked_and_answered() {
        let lost = Record { status: 0, ..record("GET") };
        assert_eq!(asked(&[record("GET"), lost, record("GET")]), "--- 3 requests\npve1 GET /x 200 (2 times)\npve1 GET /x lost\n");
    }

    #[test]
    fn changes_are_counted_and_reads_are_not() {
        assert_eq!(changed(&[record("GET"), record("PUT")]), "--- 1 change\npve1 PUT /x 200\n");
        assert_eq!(changed(&[record("GET")]), "--- no changes\n");
    }

    #[test]
    fn lines_of_several_guests_are_put_in_order() {
        assert_eq!(by_guest("b\n102 x\n101 z\n101 a\na\n"), "b\n101 z\n101 a\n102 x\na\n");
    }
}
