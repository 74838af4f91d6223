//! A story on a lab: commands and what happens to the world between them, told as one transcript.
//!
//! Everything is done twice, each time in a new directory and on a new lab, in surroundings that must not matter. What never
//! enters: what is expected.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use converger_lab::{Act, Record};
use tempfile::TempDir;

use crate::diff::diff;
use crate::lab::Lab;
use crate::run::{self, SURROUNDINGS, Surroundings};
use crate::scenario::{Scenario, content};
use crate::volatile::Volatile;

/// How the lab is reached where the story does not say: as `converger lab --into` would leave it.
const CONVERGER_TOML: &str = "\
[environments.lab]
url = \"{url}\"
fingerprints = [\"{fingerprint}\"]
token = \"converger@pve!main\"
secret = { file = \"secret\" }
";

/// What is not for the program.
const NOT_COPIED: [&str; 5] = ["commands", "expected.txt", "lab.yaml", "other-lab.yaml", "story.md"];

/// Runs the story and compares.
pub(crate) fn check(scenario: &Scenario, faults: &mut Vec<String>) {
    let told = SURROUNDINGS.map(|surroundings| tell(scenario, &surroundings, faults));
    let [first, second] = match told {
        [Ok(first), Ok(second)] => [first, second],
        [Err(fault), _] | [_, Err(fault)] => return faults.push(fault),
    };
    if first != second {
        faults.push(format!("told twice, it is another story:\n{}", diff(&first, &second)));
    }
    scenario.settle("expected.txt", Some(first), faults);
}

/// The transcript of one telling.
fn tell(scenario: &Scenario, surroundings: &Surroundings, faults: &mut Vec<String>) -> Result<String, String> {
    let mut stage = Stage::set(scenario, surroundings)?;
    let commands = scenario.read("commands").unwrap_or_else(|| "audit desired.yaml\n".into());
    let mut transcript = String::new();
    for line in commands.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        if !transcript.is_empty() {
            transcript.push('\n');
        }
        match Line::read(line)? {
            Line::Run(arguments) => stage.run(&arguments, &mut transcript, faults),
            other => {
                stage.between(other)?;
                let _ = writeln!(transcript, "# {line}");
            }
        }
    }
    Ok(transcript)
}

/// One line of `commands`.
enum Line {
    /// Something happens to the world.
    Act(Box<Act>),
    /// So many milliseconds pass in the world.
    Wait(u64),
    /// A file of the story takes the place of another.
    Copy(String, String),
    /// The program is run.
    Run(Vec<String>),
}

impl Line {
    fn read(line: &str) -> Result<Self, String> {
        let wrong = |error: &dyn std::fmt::Display| format!("commands: `{line}`: {error}");
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "act" => Ok(Self::Act(serde_json::from_str(rest).map_err(|error| wrong(&error))?)),
            "wait" => Ok(Self::Wait(rest.parse().map_err(|error| wrong(&error))?)),
            "copy" => {
                let (from, to) = rest.split_once(' ').ok_or_else(|| wrong(&"from where to where?"))?;
                Ok(Self::Copy(from.to_owned(), to.to_owned()))
            }
            _ => Ok(Self::Run(line.split_whitespace().map(str::to_owned).collect())),
        }
    }
}

/// Where a story plays.
struct Stage<'s> {
    surroundings: &'s Surroundings,
    room: TempDir,
    labs: Vec<Lab>,
    secrets: Vec<String>,
    volatile: Volatile,
}

impl<'s> Stage<'s> {
    fn set(scenario: &Scenario, surroundings: &'s Surroundings) -> Result<Self, String> {
        let worlds = [("", "lab.yaml"), ("other:", "other-lab.yaml")];
        let worlds = worlds.into_iter().filter_map(|(prefix, file)| Some((prefix, file, scenario.read(file)?)));
        let start =
            |(prefix, file, text): (&'static str, &str, String)| Lab::start(prefix, &text).map_err(|fault| format!("{file}: {fault}"));
        let labs: Vec<Lab> = worlds.map(start).collect::<Result<_, _>>()?;
        let room = tempfile::tempdir().expect("a directory");
        let mut files = scenario.content();
        files.retain(|name, _| !NOT_COPIED.contains(&name.as_str()));
        files.entry("converger.toml".into()).or_insert_with(|| CONVERGER_TOML.into());
        let first = labs.iter().flat_map(Lab::secrets).next().cloned().unwrap_or_default();
        let secret = files.remove("secret").unwrap_or_else(|| format!("{first}\n").into());
        private(&room.path().join("secret"), &secret);
        for (name, bytes) in &files {
            fs::write(room.path().join(name), filled(name, bytes, &labs)?).expect("written");
        }
        for (file, certificate) in labs.iter().map(Lab::authority) {
            fs::write(room.path().join(file), certificate).expect("written");
        }
        let mut secrets: Vec<String> = labs.iter().flat_map(Lab::secrets).cloned().collect();
        secrets.push(String::from_utf8_lossy(&secret).trim().to_owned());
        secrets.retain(|secret| !secret.is_empty());
        let volatile = Volatile::new(labs.iter().flat_map(Lab::volatile).collect(), files.into_values().collect());
        Ok(Self { surroundings, room, labs, secrets, volatile })
    }

    fn between(&mut self, line: Line) -> Result<(), String> {
        match line {
            Line::Act(act) => self.labs[0].act(*act),
            Line::Wait(milliseconds) => self.labs.iter_mut().for_each(|lab| lab.wait(milliseconds)),
            Line::Copy(from, to) => {
                let (from, to) = (self.room.path().join(from), self.room.path().join(to));
                fs::copy(&from, to).map_err(|error| format!("{}: {error}", from.display()))?;
            }
            Line::Run(_) => {}
        }
        Ok(())
    }

    /// Runs the program, and tells what it said, what it asked and what it left.
    fn run(&mut self, arguments: &[String], transcript: &mut String, faults: &mut Vec<String>) {
        let before = content(self.room.path());
        let mut program = run::program(self.room.path(), self.surroundings);
        program.env("PVE_SECRET", self.labs[0].secrets().first().map_or("", String::as_str));
        program.env("CREDENTIALS_DIRECTORY", self.room.path());
        let mut ran = run::run(program, arguments, faults);
        let requests: Vec<Record> = self.labs.iter_mut().flat_map(Lab::requests).collect();
        let verb = arguments.first().map_or("", String::as_str);
        let mut written = content(self.room.path());
        written.retain(|name, bytes| before.get(name) != Some(bytes));
        faults.extend(misdeeds(verb, &requests, &written));
        faults.extend(leaks(&self.secrets, &ran.text(), &written));
        if arguments.iter().any(|argument| argument == "--json") && !ran.stdout.is_empty() {
            ran.stdout = run::pretty(&ran.stdout, verb, ran.exit, faults).unwrap_or_default();
        }
        let _ = write!(transcript, "$ converger {}\n{}", arguments.join(" "), self.volatile.replaced(&ran.text()));
        transcript.push_str(&asked(&requests));
        for (name, bytes) in written {
            let text = String::from_utf8_lossy(&bytes);
            let shown = if name.ends_with(".json") { run::pretty(&text, verb, ran.exit, faults) } else { Some(text.into_owned()) };
            let _ = write!(transcript, "--- wrote {name}\n{}", self.volatile.replaced(&shown.unwrap_or_default()));
        }
    }
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
        misdeeds.extend(written.keys().map(|file| format!("audit wrote {file}")));
    }
    misdeeds
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
    fn a_line_of_commands_that_means_nothing_is_refused() {
        for line in ["act {\"explode\": 1}", "wait long", "copy one"] {
            assert!(Line::read(line).is_err(), "{line}");
        }
        assert!(matches!(Line::read("act {\"stop\": 100}"), Ok(Line::Act(_))));
    }
}
