//! One crash, told to its end: a lab, a victim, its death, what a person does then, and what all witnesses say.
//!
//! What never enters here: what is right and wrong about it (`evidence`), and which crashes there are (`points`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::evidence::{Death, Ended, Evidence, Step};
use super::player::{self, Played};
use super::points::{Memory, Place, Point, Reached, Run, TOLD, Who};
use super::trace::{self, Wish};
use crate::lab::{Lab, Time};
use crate::shell::{self, Failure};

const WORLD: &str = "xtask/crash/world.yaml";
/// Lists are ten seconds old at most; with this they are half a second old.
const SPEED: &str = "20";
/// What an apply says first once everything that was under way is found out.
const READY: &str = "guests in scope";
/// What is kept in a state directory.
const STORE: &str = "converger.db";
/// Who waits for longer than this kills what they wait for: an answer that was lost is looked for during a minute.
const PATIENCE: Duration = Duration::from_secs(4);
/// For what must end by itself.
const LONG: Duration = Duration::from_secs(60);
/// So often is applied after a crash until nothing is to be done.
const ROUNDS_MAX: usize = 4;

/// Where one crash after another is played.
pub(crate) struct Stage {
    converger: PathBuf,
    room: PathBuf,
    /// Of the plan that every victim carries out.
    digest: String,
}

/// What came of a point.
pub(crate) enum Told {
    /// The victim never came to that call.
    Untouched,
    /// It did.
    Struck(Box<Evidence>),
}

impl Stage {
    /// A room of its own. Its store is made once and copied for each crash.
    pub(crate) fn new(converger: &Path, room: &Path) -> Result<Self, Failure> {
        emptied(room)?;
        let room = room.canonicalize().map_err(|error| failed(room, &error))?;
        let converger = converger.canonicalize().map_err(|error| failed(converger, &error))?;
        let mut stage = Self { converger, room, digest: String::new() };
        for name in ["script.yaml", "person.yaml"] {
            let from = Path::new("xtask/crash").join(name);
            fs::copy(&from, stage.room.join(name)).map_err(|error| failed(&from, &error))?;
        }
        let lab = stage.lab()?;
        stage.make("made")?;
        stage.digest = stage.planned()?;
        drop(lab);
        Ok(stage)
    }

    /// A store without operations, by people who freeze and thaw. Only reading would make none.
    fn make(&self, state: &str) -> Result<(), Failure> {
        for said in [&["freeze", "lab", "--reason", "a store is made"][..], &["thaw", "lab"]] {
            let done = self.at_home(self.converger(said), state).output().map_err(|error| failed(&self.converger, &error))?;
            if !done.status.success() {
                return Err(Failure::new(format!("`{}` failed: {}", said.join(" "), String::from_utf8_lossy(&done.stderr))));
            }
        }
        let made = self.room.join(state).join(STORE);
        if made.exists() { Ok(()) } else { Err(Failure::new(format!("`{}` was not made", made.display()))) }
    }

    /// The points of a run in which nothing happens.
    pub(crate) fn count(&self, run: Run) -> Result<Reached, Failure> {
        let lab = self.prepare(run.memory)?;
        let victim = self.victim(run.who, Wish::Count, &lab, LONG)?;
        drop(lab);
        if victim.code != Some(0) {
            return Err(Failure::new(format!("an apply to which nothing happened failed:\n{}", victim.said)));
        }
        Ok(run.reached(&trace::calls(&self.log())?, &self.room))
    }

    /// All that can befall whoever comes back after a crash, by one who is left in peace; nothing, where the victim never came to it or
    /// left nothing to be found out.
    pub(crate) fn count_again(&self, point: Point) -> Result<Vec<Point>, Failure> {
        let Point { place: Place { who, memory, .. }, fault, .. } = point;
        let lab = self.prepare(memory)?;
        self.victim(who, Wish::Fail(point), &lab, PATIENCE)?;
        if !trace::has_struck(&self.log(), fault)? || !self.journal_of("state")?.is_ok_and(|journal| journal.iter().any(is_open)) {
            return Ok(Vec::new());
        }
        self.again(who, 0, Some(Wish::Count), &lab)?;
        Ok(point.with_deaths(&trace::calls(&self.log())?, &self.room))
    }

    /// One crash and what comes after it.
    pub(crate) fn play(&self, point: Point) -> Result<Told, Failure> {
        let Point { place: Place { who, memory, .. }, fault, .. } = point;
        let lab = self.prepare(memory)?;
        let victim = self.victim(who, Wish::Fail(point), &lab, PATIENCE)?;
        if !trace::has_struck(&self.log(), fault)? {
            return Ok(Told::Untouched);
        }
        let was_unsynced = point.fails_to_sync() && trace::has_gone_on(&self.log())?;
        let first = self.death(&victim, was_unsynced, &lab)?;
        let second = match point.second() {
            None => None,
            Some(second) => {
                let victim = self.again(who, 0, Some(Wish::Fail(second)), &lab)?;
                if !trace::has_struck(&self.log(), second.fault)? {
                    return Ok(Told::Untouched);
                }
                let was_unsynced = second.fails_to_sync() && trace::has_gone_on(&self.log())?;
                Some(self.death(&victim, was_unsynced, &lab)?)
            }
        };
        let mut ready = None;
        let mut last = (Vec::new(), None);
        let mut said = Vec::new();
        for round in 0..ROUNDS_MAX {
            let before = sent(&lab)?.len();
            let played = self.again(who, round, None, &lab)?;
            if round == 0 {
                ready = played.ready;
            }
            said.push(played.said);
            last = (sent(&lab)?.split_off(before), played.code);
            if last == (Vec::new(), Some(0)) {
                break;
            }
            self.look_after(&lab)?;
        }
        Ok(Told::Struck(Box::new(Evidence {
            planned: planned(who),
            told: first.told,
            has_ended_well: victim.code == Some(0),
            was_unsynced,
            was_killed: victim.is_killed,
            journal_then: first.journal,
            verified_then: first.verified,
            sent_then: first.sent,
            second,
            ready,
            sent: sent(&lab)?,
            sent_last: last.0,
            last_code: last.1,
            journal_last: self.journal_of("state")?,
            verified_last: self.verified()?,
            said,
        })))
    }

    /// What somebody who died left behind.
    fn death(&self, victim: &Played, was_unsynced: bool, lab: &Lab) -> Result<Death, Failure> {
        let (journal, verified) = (self.journal_of("state")?, self.verified()?);
        // Asked a little later than the journal was copied: what was still on its way to the lab has arrived.
        Ok(Death { told: told(&victim.said), journal, verified, sent: sent(lab)?, was_unsynced })
    }

    /// Whether the record is whole as it is now, by a copy; words, where it is not.
    fn verified(&self) -> Result<Result<(), String>, Failure> {
        self.remove("then")?;
        self.copy("state", "then")?;
        let verify = self.converger(&["verify", "--db", "then"]);
        let said = self.at_home(verify, "then").output().map_err(|error| failed(&self.converger, &error))?;
        let words = String::from_utf8_lossy(&said.stderr).trim().to_owned();
        // Whoever died before anything was decided left no ledger.
        let is_none = said.status.code() == Some(2) && words.contains("there is no ledger in ");
        Ok(if said.status.success() || is_none { Ok(()) } else { Err(words) })
    }

    /// The journal in a directory as it is now, by a copy: whoever reads it changes nothing.
    fn journal_of(&self, state: &str) -> Result<Result<Vec<Ended>, String>, Failure> {
        self.remove("then")?;
        self.copy(state, "then")?;
        self.journal("then")
    }

    fn remove(&self, state: &str) -> Result<(), Failure> {
        let old = self.room.join(state);
        if old.exists() { fs::remove_dir_all(&old).map_err(|error| failed(&old, &error)) } else { Ok(()) }
    }

    /// What it leaves names a state directory; here each command names its own (`at_home`).
    fn lab(&self) -> Result<Lab, Failure> {
        let lab = Lab::start(shell::command(&self.converger, &[]), &[WORLD], &self.room, Time::Real(SPEED))?;
        let config = self.room.join("converger.toml");
        let text = fs::read_to_string(&config).map_err(|error| failed(&config, &error))?;
        fs::write(&config, without_store(&text)).map_err(|error| failed(&config, &error))?;
        Ok(lab)
    }

    fn prepare(&self, memory: Memory) -> Result<Lab, Failure> {
        self.remove("state")?;
        if memory == Memory::Kept {
            self.copy("made", "state")?;
        }
        self.lab()
    }

    fn log(&self) -> PathBuf {
        self.room.join("strace")
    }

    fn converger(&self, arguments: &[&str]) -> Command {
        shell::command(&self.converger, arguments)
    }

    /// In the room, with the state there.
    fn at_home(&self, mut command: Command, state: &str) -> Command {
        command.current_dir(&self.room).env("STATE_DIRECTORY", self.room.join(state)).env("TERM", "xterm");
        command
    }

    fn victim(&self, who: Who, wish: Wish, lab: &Lab, patience: Duration) -> Result<Played, Failure> {
        let apply = match who {
            Who::Script => self.converger(&["apply", "script.yaml", "--confirm", &self.digest]),
            Who::Person => self.converger(&["apply", "person.yaml"]),
        };
        let apply = trace::traced(wish, &self.room, &self.log(), &apply);
        self.perform(who, apply, lab, patience)
    }

    /// What a person does after a crash: the same again. A script reads the plan first and confirms what it read; every second time
    /// it expects that there is nothing to confirm. Whoever comes back may be traced too.
    fn again(&self, who: Who, round: usize, wish: Option<Wish>, lab: &Lab) -> Result<Played, Failure> {
        let apply = match who {
            Who::Person => self.converger(&["apply", "person.yaml"]),
            Who::Script if round % 2 == 1 => self.converger(&["apply", "script.yaml"]),
            Who::Script => self.converger(&["apply", "script.yaml", "--confirm", &self.planned()?]),
        };
        let apply = match wish {
            Some(wish) => trace::traced(wish, &self.room, &self.log(), &apply),
            None => apply,
        };
        // What is sent anew there and meets a bad disk is looked for as long as the victim's.
        let patience = if matches!(wish, Some(Wish::Fail(_))) { PATIENCE } else { LONG };
        self.perform(who, apply, lab, patience)
    }

    fn perform(&self, who: Who, apply: Command, lab: &Lab, patience: Duration) -> Result<Played, Failure> {
        let apply = match who {
            Who::Script => apply,
            Who::Person => at_terminal(&apply),
        };
        // At a terminal there is one place for all that is said.
        let aside = self.room.join(TOLD);
        let aside = (who == Who::Script).then_some(aside.as_path());
        player::play(self.at_home(apply, "state"), aside, READY, lab.process(), patience)
    }

    /// The digest of what would be done now.
    fn planned(&self) -> Result<String, Failure> {
        let plan = self.converger(&["plan", "script.yaml", "--json"]);
        let plan = self.at_home(plan, "state").output().map_err(|error| failed(&self.converger, &error))?;
        let digest = serde_json::from_slice::<Value>(&plan.stdout).ok().and_then(|plan| Some(plan["digest"].as_str()?.to_owned()));
        digest.ok_or_else(|| Failure::new(format!("no plan: {}", String::from_utf8_lossy(&plan.stderr))))
    }

    /// What the journal in a directory has; words, where it cannot be read.
    fn journal(&self, state: &str) -> Result<Result<Vec<Ended>, String>, Failure> {
        let list = self.converger(&["ops", "list", "lab", "--json", "--limit", "1000"]);
        let list = self.at_home(list, state).output().map_err(|error| failed(&self.converger, &error))?;
        if !matches!(list.status.code(), Some(0 | 5)) {
            return Ok(Err(String::from_utf8_lossy(&list.stderr).trim().to_owned()));
        }
        let text = String::from_utf8_lossy(&list.stdout).into_owned();
        Ok(text.lines().map(|line| entry(line).ok_or_else(|| format!("no operation: {line}"))).collect())
    }

    /// What was about to be sent keeps its guest for two minutes after a crash, because it may still come. A person need not wait for that:
    /// they look whether it arrived, and say so where it did not.
    fn look_after(&self, lab: &Lab) -> Result<(), Failure> {
        let list = self.converger(&["ops", "list", "lab", "--held", "--json"]);
        let list = self.at_home(list, "state").output().map_err(|error| failed(&self.converger, &error))?;
        let arrived = sent(lab)?;
        for line in String::from_utf8_lossy(&list.stdout).lines() {
            let Some(id) = held(line).filter(|(_, step)| !arrived.contains(step)).map(|(id, _)| id) else { continue };
            let said = ["ops", "resolve", "lab", &id, "--as", "not-run", "--reason", "it never arrived"];
            let done = self.at_home(self.converger(&said), "state").output().map_err(|error| failed(&self.converger, &error))?;
            if !done.status.success() {
                return Err(Failure::new(format!("`{}` failed: {}", said.join(" "), String::from_utf8_lossy(&done.stderr))));
            }
        }
        Ok(())
    }

    /// Copies the files of a store as they are; how they are shared is not copied, since nobody shares the copy.
    fn copy(&self, from: &str, to: &str) -> Result<(), Failure> {
        let (from, to) = (self.room.join(from), self.room.join(to));
        if !from.exists() {
            return Ok(());
        }
        let copied = || {
            fs::create_dir_all(&to)?;
            fs::set_permissions(&to, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
            for file in fs::read_dir(&from)? {
                let file = file?;
                if !file.file_name().to_string_lossy().ends_with("-shm") {
                    fs::copy(file.path(), to.join(file.file_name()))?;
                }
            }
            Ok(())
        };
        copied().map_err(|error| failed(&to, &error))
    }
}

/// A converger.toml without its section about the store.
fn without_store(text: &str) -> String {
    let mut is_kept = true;
    let mut kept = String::new();
    for line in text.lines() {
        if line.starts_with('[') {
            is_kept = line.trim_end() != "[store]";
        }
        if is_kept {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

fn emptied(room: &Path) -> Result<(), Failure> {
    let gone = if room.exists() { fs::remove_dir_all(room) } else { Ok(()) };
    gone.and_then(|()| fs::create_dir_all(room)).map_err(|error| failed(room, &error))
}

fn failed(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("`{}`: {error}", path.display()))
}

/// `script` lends it a terminal.
fn at_terminal(command: &Command) -> Command {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let quoted: Vec<String> = words.map(|word| format!("'{}'", word.to_string_lossy())).collect();
    let mut script = Command::new("script");
    script.args(["-q", "-e", "-f", "-c", &quoted.join(" "), "/dev/null"]);
    script
}

fn planned(who: Who) -> Vec<Step> {
    let steps: &[(u64, &str)] = match who {
        Who::Script => &[(101, "start"), (102, "start"), (103, "start"), (106, "config.set"), (106, "start"), (107, "config.set")],
        Who::Person => &[
            (101, "start"),
            (104, "shutdown"),
            (105, "shutdown"),
            (106, "config.set"),
            (106, "start"),
            (108, "config.set"),
            (108, "reboot"),
            (109, "stop"),
        ],
    };
    steps.iter().map(|(vmid, change)| Step { vmid: *vmid, change: (*change).to_owned() }).collect()
}

/// A line of `ops list --json`.
fn entry(line: &str) -> Option<Ended> {
    let history: Value = serde_json::from_str(line).ok()?;
    let operation = &history["operation"];
    let step = Step { vmid: operation["guest"]["vmid"].as_u64()?, change: operation["step"]["change"].as_str()?.to_owned() };
    let end = history["resolved"]["resolution"].as_str().or_else(|| history["ended"]["outcome"]["end"].as_str());
    Some(Ended { step, end: end.map(str::to_owned) })
}

/// The id and the step of an operation that may still come, from a line of `ops list --json`, or of a reboot that left no task: a second
/// one could not be told from it, so that only a person can say what became of it.
fn held(line: &str) -> Option<(String, Step)> {
    let history: Value = serde_json::from_str(line).ok()?;
    let (step, outcome) = (entry(line)?.step, &history["ended"]["outcome"]);
    let is_for_a_person = step.change == "reboot" && outcome["release"] == "person" && history["task"].is_null();
    (is_for_a_person || outcome["evidence"]["may_come_until"].is_string()).then_some(())?;
    Some((history["operation"]["id"].as_str()?.to_owned(), step))
}

/// Whether nobody knows what became of it.
fn is_open(entry: &Ended) -> bool {
    matches!(entry.end.as_deref(), None | Some("held"))
}

/// The ends that were told: `101 qemu web-1 start: done`. On a terminal such words are followed by blanks and others.
fn told(said: &str) -> Vec<Ended> {
    let pieces = said.split(['\n', '\r']).flat_map(|line| line.split("  "));
    let mut all: Vec<Ended> = Vec::new();
    for ended in pieces.filter_map(|piece| told_end(piece.trim())) {
        // The end of the run tells all of them once more.
        if !all.contains(&ended) {
            all.push(ended);
        }
    }
    all
}

fn told_end(piece: &str) -> Option<Ended> {
    let (title, end) = piece.split_once(": ")?;
    let words: Vec<&str> = title.split(' ').collect();
    let [vmid, "qemu" | "lxc", _, change] = words.as_slice() else { return None };
    let end = end.split(' ').next().filter(|end| ["done", "failed", "held", "refused", "not-run"].contains(end))?;
    Some(Ended { step: Step { vmid: vmid.parse().ok()?, change: (*change).to_owned() }, end: Some(end.to_owned()) })
}

/// Everything that the lab got and that changes something.
fn sent(lab: &Lab) -> Result<Vec<Step>, Failure> {
    let changes = lab.requests()?.into_iter().filter(|request| request["method"] != "GET");
    changes.map(|request| change(&request).ok_or_else(|| Failure::new(format!("the lab got something strange: {request}")))).collect()
}

fn change(request: &Value) -> Option<Step> {
    let mut parts = request["path"].as_str()?.rsplit('/');
    let (verb, above) = (parts.next()?, parts.next()?);
    let (vmid, change) = if verb == "config" { (above, "config.set") } else { (parts.next()?, verb) };
    Some(Step { vmid: vmid.parse().ok()?, change: change.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn ended(vmid: u64, change: &str, end: &str) -> Ended {
        Ended { step: Step { vmid, change: change.into() }, end: Some(end.into()) }
    }

    #[test]
    fn ends_are_read_from_what_is_said() {
        let plain = "read from 127.0.0.1:1 in 12 requests\n103 lxc cache-1 start: sent\n103 lxc cache-1 start: done\n101 qemu web-1 start: failed (task-failed)\n";
        assert_eq!(told(plain), [ended(103, "start", "done"), ended(101, "start", "failed")]);
        let terminal = "\r107 lxc box-1 config.set: done              ⠙ 101 qemu web-1 start: under way 0s      \r";
        assert_eq!(told(terminal), [ended(107, "config.set", "done")]);
        assert_eq!(told("101 qemu web-1 start: do"), []);
    }

    /// With it every command would use one directory, and there would be neither a store before the run nor a copy of what it left.
    #[test]
    fn the_state_directory_is_the_one_that_the_command_names() {
        let text = "# a\n[environments.lab]\nmode = \"solo\"\n\n[store]\ndirectory = \"state\"\n\n[limits]\nguests = 5\n";
        assert_eq!(without_store(text), "# a\n[environments.lab]\nmode = \"solo\"\n\n[limits]\nguests = 5\n");
        assert_eq!(without_store("[environments.lab]\n"), "[environments.lab]\n");
    }

    #[test]
    fn requests_are_read_as_steps() {
        let step = |path: &str| change(&json!({ "path": path })).map(|step| (step.vmid, step.change));
        assert_eq!(step("/api2/extjs/nodes/pve3/lxc/103/status/start"), Some((103, "start".into())));
        assert_eq!(step("/api2/extjs/nodes/pve3/qemu/106/config"), Some((106, "config.set".into())));
        assert_eq!(step("/api2/extjs/access/ticket"), None);
    }

    /// Only what may still come is a person's to look after: whatever else is held is what the sweep is to find.
    #[test]
    fn only_what_may_still_come_is_looked_after() {
        let line = |evidence: Value| {
            let operation = json!({ "id": "a-0", "guest": { "vmid": 7 }, "step": { "change": "start" } });
            json!({ "operation": operation, "ended": { "outcome": { "end": "held", "evidence": evidence } } }).to_string()
        };
        let step = Step { vmid: 7, change: "start".into() };
        assert_eq!(held(&line(json!({ "may_come_until": "2026-11-16T09:00:00Z" }))), Some(("a-0".into(), step)));
        assert_eq!(held(&line(json!({ "task": "UPID" }))), None);
        let reboot = |release: &str, task: Value| {
            let operation = json!({ "id": "a-0", "guest": { "vmid": 7 }, "step": { "change": "reboot" } });
            let outcome = json!({ "end": "held", "release": release, "evidence": {} });
            held(&json!({ "operation": operation, "task": task, "ended": { "outcome": outcome } }).to_string()).is_some()
        };
        assert!(reboot("person", Value::Null) && !reboot("reading", Value::Null) && !reboot("person", json!({ "task": "UPID" })));
    }

    #[test]
    fn a_line_of_the_journal_is_read_with_what_was_resolved() {
        let operation = json!({ "guest": { "vmid": 7 }, "step": { "change": "start" } });
        let read =
            |rest: Value| entry(&json!({ "operation": operation, "ended": rest["ended"], "resolved": rest["resolved"] }).to_string());
        assert_eq!(read(json!({ "ended": { "outcome": { "end": "done" } } })), Some(ended(7, "start", "done")));
        let resolved = json!({ "ended": { "outcome": { "end": "held" } }, "resolved": { "resolution": "failed" } });
        assert_eq!(read(resolved), Some(ended(7, "start", "failed")));
        assert_eq!(read(json!({})).and_then(|entry| entry.end), None);
        assert_eq!(entry("{}"), None);
    }
}
