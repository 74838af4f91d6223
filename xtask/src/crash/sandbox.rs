//! Plays one crash to its end: starts a lab, runs and kills the victim, applies again, and gathers
//! the evidence.
//!
//! What is right and wrong is in `evidence`; which crashes exist is in `points`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::evidence::{CrashEvidence, CrashStep, RecoveryCrash, StepEnd};
use super::points::{CallSite, CrashActor, CrashPoint, CrashRun, PROGRESS_FILE, ReachablePoints, StateBefore};
use super::process_run::{self, ProcessRun};
use super::requests;
use super::trace::{self, TraceMode};
use crate::lab::{LabChild, LabTime};
use crate::shell::{self, TaskError, TaskResult};

const WORLD_FILE: &str = "xtask/crash/world.yaml";
/// The lab and the program must have one time: at a higher speed tasks look older than the intents of the operations that they belong to,
/// and recovery does not find them. The world has short tasks and fresh lists instead.
const LAB_SPEED: &str = "1";
/// The guests of the world.
const WORLD_GUESTS: [u64; 10] = [101, 102, 103, 104, 105, 106, 107, 108, 109, 900];
const WORLD_NODES: [&str; 3] = ["pve1", "pve2", "pve3"];
/// The idempotency key of the victim's request.
const VICTIM_KEY: &str = "first";
/// What an apply prints first once it has recovered everything in flight, and nothing else prints: the first line of the plan, the title of
/// the recovered operations, or that this request was executed before, after which nothing more is read.
const READY_TEXTS: [&str; 3] = ["in scope · read at ", "Recovered from an earlier run ", "executed this request before with the same key "];
/// The database file in a state directory.
const STORE_FILE: &str = "converger.db";
/// A victim that takes longer is killed, because it may look for a lost response for a minute.
const VICTIM_TIMEOUT: Duration = Duration::from_secs(4);
/// Timeout of runs that must end by themselves.
const RUN_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of applies after a crash until nothing is left to do.
const APPLY_ROUNDS_MAX: usize = 4;

/// A directory in which crashes are played one after another.
pub(crate) struct CrashSandbox {
    converger: PathBuf,
    directory: PathBuf,
    /// The digest of the plan that every victim applies, by actor.
    digests: BTreeMap<CrashActor, String>,
}

/// The result of a point.
pub(crate) enum PointOutcome {
    /// The victim never reached that call.
    NotReached,
    /// The fault was injected.
    Hit(Box<CrashEvidence>),
}

impl CrashSandbox {
    /// Prepares the directory. The store is created once and copied for each crash.
    pub(crate) fn new(converger: &Path, directory: &Path) -> Result<Self, TaskError> {
        recreate_directory(directory)?;
        let directory = directory.canonicalize().map_err(|error| file_error(directory, &error))?;
        let converger = converger.canonicalize().map_err(|error| file_error(converger, &error))?;
        let mut sandbox = Self { converger, directory, digests: BTreeMap::new() };
        for name in CrashActor::files() {
            let from = Path::new("xtask/crash").join(name);
            fs::copy(&from, sandbox.directory.join(name)).map_err(|error| file_error(&from, &error))?;
        }
        let lab = sandbox.start_lab()?;
        sandbox.make_store("made")?;
        for run in CrashRun::all().into_iter().filter(|run| !run.actor.is_person()) {
            let digest = sandbox.current_plan_digest(run.actor)?;
            sandbox.digests.insert(run.actor, digest);
        }
        drop(lab);
        Ok(sandbox)
    }

    /// Creates a store without operations with a freeze and a thaw, because only reading would create none.
    fn make_store(&self, state: &str) -> Result<(), TaskError> {
        for arguments in [&["freeze", "lab", "--reason", "a store is made"][..], &["thaw", "lab"]] {
            let done =
                self.in_sandbox(self.converger_command(arguments), state).output().map_err(|error| file_error(&self.converger, &error))?;
            if !done.status.success() {
                return Err(TaskError::new(format!("`{}` failed: {}", arguments.join(" "), String::from_utf8_lossy(&done.stderr))));
            }
        }
        let store_file = self.directory.join(state).join(STORE_FILE);
        if store_file.exists() { Ok(()) } else { Err(TaskError::new(format!("`{}` was not created", store_file.display()))) }
    }

    /// The points of a run without faults.
    pub(crate) fn count_points(&self, run: CrashRun) -> Result<ReachablePoints, TaskError> {
        let lab = self.prepare_lab(run.memory)?;
        let victim = self.run_victim(run.actor, TraceMode::Count, &lab, RUN_TIMEOUT)?;
        drop(lab);
        if victim.code != Some(0) {
            return Err(TaskError::new(format!("an apply without a fault failed:\n{}", victim.output)));
        }
        Ok(run.reachable_points(&trace::read_calls(&self.strace_log())?, &self.directory))
    }

    /// All points in the recovery from a crash, counted by an undisturbed recovery. Empty if the victim never reached the point or left
    /// nothing to recover.
    pub(crate) fn count_recovery_points(&self, point: CrashPoint) -> Result<Vec<CrashPoint>, TaskError> {
        let CrashPoint { site: CallSite { actor, memory, .. }, fault, .. } = point;
        let lab = self.prepare_lab(memory)?;
        self.run_victim(actor, TraceMode::Fail(point), &lab, VICTIM_TIMEOUT)?;
        if !trace::was_fault_injected(&self.strace_log(), fault)?
            || !self.read_journal_copy("state")?.is_ok_and(|journal| journal.iter().any(is_unresolved))
        {
            return Ok(Vec::new());
        }
        self.run_apply_again(actor, 0, Some(TraceMode::Count), &lab)?;
        Ok(point.with_recovery_faults(&trace::read_calls(&self.strace_log())?, &self.directory))
    }

    /// Plays one crash and its recovery.
    pub(crate) fn play_point(&self, point: CrashPoint) -> Result<PointOutcome, TaskError> {
        let CrashPoint { site: CallSite { actor, memory, .. }, fault, .. } = point;
        let requested_steps = |lab: &LabChild| requested_steps(lab, actor);
        let lab = self.prepare_lab(memory)?;
        let victim = self.run_victim(actor, TraceMode::Fail(point), &lab, VICTIM_TIMEOUT)?;
        if !trace::was_fault_injected(&self.strace_log(), fault)? {
            return Ok(PointOutcome::NotReached);
        }
        let was_unsynced = point.fails_to_sync() && trace::continued_after_failure(&self.strace_log())?;
        let first = self.read_recovery_crash(actor, &victim, was_unsynced, &lab)?;
        let second = match point.recovery_point() {
            None => None,
            Some(second) => {
                let victim = self.run_apply_again(actor, 0, Some(TraceMode::Fail(second)), &lab)?;
                if !trace::was_fault_injected(&self.strace_log(), second.fault)? {
                    return Ok(PointOutcome::NotReached);
                }
                let was_unsynced = second.fails_to_sync() && trace::continued_after_failure(&self.strace_log())?;
                Some(self.read_recovery_crash(actor, &victim, was_unsynced, &lab)?)
            }
        };
        let mut ready = None;
        let mut last = (Vec::new(), None);
        let mut outputs = Vec::new();
        for round in 0..APPLY_ROUNDS_MAX {
            if round > 0 {
                wait_for_tasks(&lab)?;
            }
            let before = requested_steps(&lab)?.len();
            let played = self.run_apply_again(actor, round, None, &lab)?;
            if round == 0 {
                ready = played.ready;
            }
            outputs.push(played.output);
            last = (requested_steps(&lab)?.split_off(before), played.code);
            // First: an operation whose request never arrived is no end of its request.
            self.resolve_held(actor, &lab)?;
            // A request that is done cannot be made again: its objects exist.
            if self.check_request_done(actor)? {
                last = (Vec::new(), Some(0));
                break;
            }
            if last == (Vec::new(), Some(0)) {
                break;
            }
        }
        Ok(PointOutcome::Hit(Box::new(CrashEvidence {
            planned: actor.planned_steps(),
            made: actor.made_guest(),
            reported: first.reported,
            has_ended_well: victim.code == Some(0),
            continued_after_failed_sync: was_unsynced,
            was_killed: victim.is_killed,
            journal_then: first.journal,
            verified_then: first.verified,
            sent_then: first.sent,
            second,
            ready,
            sent: requested_steps(&lab)?,
            guests_last: describe_new_guests(&lab)?,
            sent_last: last.0,
            last_code: last.1,
            journal_last: self.read_journal_copy("state")?,
            verified_last: self.verify_ledger()?,
            output: outputs,
        })))
    }

    /// What a crashed run left behind.
    fn read_recovery_crash(
        &self,
        actor: CrashActor,
        victim: &ProcessRun,
        was_unsynced: bool,
        lab: &LabChild,
    ) -> Result<RecoveryCrash, TaskError> {
        let (journal, verified) = (self.read_journal_copy("state")?, self.verify_ledger()?);
        // The lab is asked after the journal was copied, so requests that were in flight have arrived.
        Ok(RecoveryCrash {
            reported: parse_reported_ends(&victim.output),
            journal,
            verified,
            sent: requested_steps(lab, actor)?,
            continued_after_failed_sync: was_unsynced,
        })
    }

    /// Verifies a copy of the current ledger; returns the error text if it fails.
    fn verify_ledger(&self) -> Result<Result<(), String>, TaskError> {
        self.remove_state("then")?;
        self.copy_state("state", "then")?;
        let verify = self.converger_command(&["verify", "--db", "then"]);
        let output = self.in_sandbox(verify, "then").output().map_err(|error| file_error(&self.converger, &error))?;
        let error_text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        // A run that died before its first decision left no ledger.
        let is_none = output.status.code() == Some(2) && error_text.contains("there is no ledger in ");
        Ok(if output.status.success() || is_none { Ok(()) } else { Err(error_text) })
    }

    /// Reads a copy of a journal, so that reading changes nothing.
    fn read_journal_copy(&self, state: &str) -> Result<Result<Vec<StepEnd>, String>, TaskError> {
        self.remove_state("then")?;
        self.copy_state(state, "then")?;
        self.read_journal("then")
    }

    fn remove_state(&self, state: &str) -> Result<(), TaskError> {
        let old = self.directory.join(state);
        if old.exists() { fs::remove_dir_all(&old).map_err(|error| file_error(&old, &error)) } else { Ok(()) }
    }

    /// Starts the lab and removes the store section from its config: here each command sets its own state directory (`in_sandbox`).
    fn start_lab(&self) -> Result<LabChild, TaskError> {
        let lab = LabChild::start(shell::new_command(&self.converger, &[]), &[WORLD_FILE], &self.directory, LabTime::Real(LAB_SPEED))?;
        let config = self.directory.join("converger.toml");
        let text = fs::read_to_string(&config).map_err(|error| file_error(&config, &error))?;
        fs::write(&config, remove_store_section(&text)).map_err(|error| file_error(&config, &error))?;
        Ok(lab)
    }

    fn prepare_lab(&self, memory: StateBefore) -> Result<LabChild, TaskError> {
        self.remove_state("state")?;
        if memory == StateBefore::Kept {
            self.copy_state("made", "state")?;
        }
        self.start_lab()
    }

    fn strace_log(&self) -> PathBuf {
        self.directory.join("strace")
    }

    fn converger_command(&self, arguments: &[&str]) -> Command {
        shell::new_command(&self.converger, arguments)
    }

    /// Runs a command in the sandbox directory with this state directory.
    fn in_sandbox(&self, mut command: Command, state: &str) -> Command {
        command.current_dir(&self.directory).env("STATE_DIRECTORY", self.directory.join(state)).env("TERM", "xterm");
        command
    }

    fn run_victim(&self, actor: CrashActor, trace_mode: TraceMode, lab: &LabChild, patience: Duration) -> Result<ProcessRun, TaskError> {
        let apply = self.command_of(actor, self.digests.get(&actor).map_or("", String::as_str), VICTIM_KEY);
        let apply = trace::strace_command(trace_mode, &self.directory, &self.strace_log(), &apply);
        self.run_apply(actor, apply, lab, patience)
    }

    /// What a person does after a crash: apply again. A script reads the plan first and confirms it; every second time it expects that
    /// nothing needs confirmation. A request is made with the same key first, and with another one if it did not succeed. The apply can be
    /// traced as well.
    fn run_apply_again(
        &self,
        actor: CrashActor,
        round: usize,
        trace_mode: Option<TraceMode>,
        lab: &LabChild,
    ) -> Result<ProcessRun, TaskError> {
        let apply = match actor {
            CrashActor::Script if round % 2 == 1 => self.converger_command(&["apply", "script.yaml"]),
            CrashActor::Script => self.command_of(actor, &self.current_plan_digest(actor)?, VICTIM_KEY),
            CrashActor::Requester(_) if round == 0 => {
                self.command_of(actor, self.digests.get(&actor).map_or("", String::as_str), VICTIM_KEY)
            }
            actor => {
                let digest = if actor.is_person() { String::new() } else { self.current_plan_digest(actor)? };
                self.command_of(actor, &digest, &format!("again-{round}"))
            }
        };
        let apply = match trace_mode {
            Some(trace_mode) => trace::strace_command(trace_mode, &self.directory, &self.strace_log(), &apply),
            None => apply,
        };
        // A request that is sent again on a failing disk gets the same timeout as the victim.
        let patience = if matches!(trace_mode, Some(TraceMode::Fail(_))) { VICTIM_TIMEOUT } else { RUN_TIMEOUT };
        self.run_apply(actor, apply, lab, patience)
    }

    fn run_apply(&self, actor: CrashActor, apply: Command, lab: &LabChild, patience: Duration) -> Result<ProcessRun, TaskError> {
        let apply = if actor.is_person() { wrap_in_terminal(&apply) } else { apply };
        // On a terminal, both outputs go to the same place.
        let error_file = self.directory.join(PROGRESS_FILE);
        let error_file = (!actor.is_person()).then_some(error_file.as_path());
        process_run::run_process(self.in_sandbox(apply, "state"), error_file, &READY_TEXTS, lab.process_id(), patience)
    }

    /// The command of an actor, confirmed with this digest unless a person confirms it at a terminal. Only requests have a key.
    fn command_of(&self, actor: CrashActor, digest: &str, key: &str) -> Command {
        match (actor.workload(), actor.file()) {
            (Some(workload), _) => self.converger_command(&workload.arguments(digest, key)),
            (None, Some(file)) if actor.is_person() => self.converger_command(&["apply", file]),
            (None, file) => self.converger_command(&["apply", file.unwrap_or_default(), "--confirm", digest]),
        }
    }

    /// The digest of the current proposal.
    fn current_plan_digest(&self, actor: CrashActor) -> Result<String, TaskError> {
        let plan = match actor.workload() {
            Some(workload) => self.converger_command(&workload.plan_arguments()),
            None => self.converger_command(&["plan", "script.yaml", "--json"]),
        };
        let plan = self.in_sandbox(plan, "state").output().map_err(|error| file_error(&self.converger, &error))?;
        let digest = serde_json::from_slice::<Value>(&plan.stdout).ok().and_then(|plan| Some(plan["proposal"].as_str()?.to_owned()));
        digest.ok_or_else(|| TaskError::new(format!("no plan: {}", String::from_utf8_lossy(&plan.stderr))))
    }

    /// The journal in a state directory; an error text if it cannot be read.
    fn read_journal(&self, state: &str) -> Result<Result<Vec<StepEnd>, String>, TaskError> {
        let list = self.converger_command(&["ops", "list", "lab", "--json", "--limit", "1000"]);
        let list = self.in_sandbox(list, state).output().map_err(|error| file_error(&self.converger, &error))?;
        if !matches!(list.status.code(), Some(0 | 5)) {
            return Ok(Err(String::from_utf8_lossy(&list.stderr).trim().to_owned()));
        }
        let text = String::from_utf8_lossy(&list.stdout).into_owned();
        Ok(text.lines().map(|line| parse_journal_entry(line).ok_or_else(|| format!("not an operation: {line}"))).collect())
    }

    /// Resolves operations that are held because their request may still arrive, which blocks a guest for two minutes after a crash. A
    /// person need not wait: they check whether the request arrived, and resolve the operation as not run if it did not.
    fn resolve_held(&self, actor: CrashActor, lab: &LabChild) -> Result<(), TaskError> {
        let list = self.converger_command(&["ops", "list", "lab", "--held", "--json"]);
        let list = self.in_sandbox(list, "state").output().map_err(|error| file_error(&self.converger, &error))?;
        let arrived = requested_steps(lab, actor)?;
        for line in String::from_utf8_lossy(&list.stdout).lines() {
            let Some(id) = parse_held(line).filter(|(_, step)| !arrived.contains(step)).map(|(id, _)| id) else { continue };
            let arguments = ["ops", "resolve", "lab", &id, "--as", "not-run", "--reason", "it never arrived"];
            let done = self
                .in_sandbox(self.converger_command(&arguments), "state")
                .output()
                .map_err(|error| file_error(&self.converger, &error))?;
            if !done.status.success() {
                return Err(TaskError::new(format!("`{}` failed: {}", arguments.join(" "), String::from_utf8_lossy(&done.stderr))));
            }
        }
        Ok(())
    }

    /// Whether all steps of a script's request are done. A person's request is repeated until it says so.
    fn check_request_done(&self, actor: CrashActor) -> Result<bool, TaskError> {
        if actor.workload().is_none() || actor.is_person() {
            return Ok(false);
        }
        let journal = self.read_journal("state")?.unwrap_or_default();
        let is_done = |step: CrashStep| journal.contains(&StepEnd { step, end: Some("done".into()) });
        Ok(actor.planned_steps().into_iter().all(is_done))
    }

    /// Copies the files of a store, except the shared-memory file, because nobody else uses the copy.
    fn copy_state(&self, from: &str, to: &str) -> Result<(), TaskError> {
        let (from, to) = (self.directory.join(from), self.directory.join(to));
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
        copied().map_err(|error| file_error(&to, &error))
    }
}

/// A converger.toml without its `[store]` section.
fn remove_store_section(text: &str) -> String {
    let mut is_kept = true;
    let mut remaining = String::new();
    for line in text.lines() {
        if line.starts_with('[') {
            is_kept = line.trim_end() != "[store]";
        }
        if is_kept {
            remaining.push_str(line);
            remaining.push('\n');
        }
    }
    remaining
}

fn recreate_directory(directory: &Path) -> Result<(), TaskError> {
    let removed = if directory.exists() { fs::remove_dir_all(directory) } else { Ok(()) };
    removed.and_then(|()| fs::create_dir_all(directory)).map_err(|error| file_error(directory, &error))
}

fn file_error(path: &Path, error: &std::io::Error) -> TaskError {
    TaskError::new(format!("`{}`: {error}", path.display()))
}

/// Runs a command on a pseudo-terminal of `script`.
fn wrap_in_terminal(command: &Command) -> Command {
    let arguments = std::iter::once(command.get_program()).chain(command.get_args());
    let quoted: Vec<String> = arguments.map(|argument| format!("'{}'", argument.to_string_lossy())).collect();
    let mut script = Command::new("script");
    script.args(["-q", "-e", "-f", "-c", &quoted.join(" "), "/dev/null"]);
    script
}

/// Parses a line of `ops list --json`.
fn parse_journal_entry(line: &str) -> Option<StepEnd> {
    let history: Value = serde_json::from_str(line).ok()?;
    let operation = &history["operation"];
    let step = CrashStep { vmid: operation["guest"]["vmid"].as_u64()?, change: operation["step"]["change"].as_str()?.to_owned() };
    let end = history["resolved"]["resolution"].as_str().or_else(|| history["ended"]["outcome"]["end"].as_str());
    Some(StepEnd { step, end: end.map(str::to_owned) })
}

/// Parses a line of `ops list --json`: id and step of an operation whose request may still arrive, or of a reboot without a task. A second
/// reboot could not be distinguished from the first, so only a person can resolve it.
fn parse_held(line: &str) -> Option<(String, CrashStep)> {
    let history: Value = serde_json::from_str(line).ok()?;
    let (step, outcome) = (parse_journal_entry(line)?.step, &history["ended"]["outcome"]);
    let is_for_a_person = step.change == "reboot" && outcome["release"] == "person" && history["task"].is_null();
    (is_for_a_person || outcome["evidence"]["may_come_until"].is_string()).then_some(())?;
    Some((history["operation"]["id"].as_str()?.to_owned(), step))
}

/// Whether the outcome is unknown.
fn is_unresolved(entry: &StepEnd) -> bool {
    matches!(entry.end.as_deref(), None | Some("held"))
}

/// The reported ends, such as `101 qemu web-1 start: done`. On a terminal, blanks and other text follow.
fn parse_reported_ends(output: &str) -> Vec<StepEnd> {
    let pieces = output.split(['\n', '\r']).flat_map(|line| line.split("  "));
    let mut all: Vec<StepEnd> = Vec::new();
    for step_end in pieces.filter_map(|piece| parse_reported_end(piece.trim())) {
        // The end of the run reports all of them again.
        if !all.contains(&step_end) {
            all.push(step_end);
        }
    }
    all
}

fn parse_reported_end(piece: &str) -> Option<StepEnd> {
    let (title, end) = piece.split_once(": ")?;
    let words: Vec<&str> = title.split(' ').collect();
    let [vmid, "qemu" | "lxc", _, change] = words.as_slice() else { return None };
    let end = end.split(' ').next().filter(|end| ["done", "failed", "held", "refused", "not-run"].contains(end))?;
    Some(StepEnd { step: CrashStep { vmid: vmid.parse().ok()?, change: (*change).to_owned() }, end: Some(end.to_owned()) })
}

/// Waits until no task runs, as a person does who reads that one still does. Otherwise all applies may fall into the time of one task.
fn wait_for_tasks(lab: &LabChild) -> TaskResult {
    let lists: Vec<String> = WORLD_NODES.iter().map(|node| format!("nodes/{node}/tasks?source=active")).collect();
    for _ in 0..TASK_READINGS_MAX {
        let is_running = |task: &Value| task["status"] == "RUNNING" || task["endtime"].is_null();
        if !lab.read(&lists)?.iter().flat_map(|list| list.as_array().into_iter().flatten()).any(is_running) {
            return Ok(());
        }
    }
    // A task that hangs is for the next apply to report.
    Ok(())
}

/// Each reading takes some milliseconds, and the longest task little more than a second.
const TASK_READINGS_MAX: usize = 1_000;

/// All modifying requests that the lab received.
fn requested_steps(lab: &LabChild, actor: CrashActor) -> Result<Vec<CrashStep>, TaskError> {
    let planned = actor.planned_steps();
    let changes = lab.requests()?.into_iter().filter(|request| request["method"] != "GET");
    let step =
        |request: Value| parse_request_step(&request, &planned).ok_or_else(|| TaskError::new(format!("unexpected request: {request}")));
    changes.map(step).collect()
}

fn parse_request_step(request: &Value, planned: &[CrashStep]) -> Option<CrashStep> {
    let mut parts = request["path"].as_str()?.rsplit('/');
    let (verb, above) = (parts.next()?, parts.next()?);
    // `103/config` or `103/status/start`.
    let vmid = above.parse().ok().or_else(|| parts.next()?.parse().ok())?;
    Some(requests::step_of_request(vmid, verb, planned))
}

/// All guests that the world did not have at first, as the nodes that have them say.
fn describe_new_guests(lab: &LabChild) -> Result<Vec<String>, TaskError> {
    let lists = WORLD_NODES.iter().flat_map(|node| ["qemu", "lxc"].map(|kind| format!("nodes/{node}/{kind}")));
    let lists: Vec<String> = lists.collect();
    let mut all = Vec::new();
    for (list, guests) in lists.iter().zip(lab.read(&lists)?) {
        for guest in guests.as_array().into_iter().flatten() {
            let vmid = guest["vmid"].as_u64().unwrap_or_default();
            if !WORLD_GUESTS.contains(&vmid) {
                let config = lab.read(&[format!("{list}/{vmid}/config")])?.pop().unwrap_or_default();
                all.push(describe_guest(vmid, guest, &config));
            }
        }
    }
    Ok(all)
}

/// A guest in one line: what its first config and the growth of its disk set.
fn describe_guest(vmid: u64, row: &Value, config: &Value) -> String {
    let part = |key: &str, name: &str| {
        let value = config[key].as_str()?.split(',').find_map(|part| part.strip_prefix(name));
        Some(format!(", {key} {}", value.unwrap_or("without")))
    };
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let parts = [part("net0", "bridge="), part("scsi0", "size=")].into_iter().flatten().collect::<String>();
    format!("{vmid} {} {}: memory {}{parts}", text(&row["name"]), text(&row["status"]), text(&config["memory"]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn test_step_end(vmid: u64, change: &str, end: &str) -> StepEnd {
        StepEnd { step: CrashStep { vmid, change: change.into() }, end: Some(end.into()) }
    }

    #[test]
    fn ends_are_parsed_from_output() {
        let plain = "read from 127.0.0.1:1 in 12 requests\n103 lxc cache-1 start: sent\n103 lxc cache-1 start: done\n101 qemu web-1 start: failed (task-failed)\n";
        assert_eq!(parse_reported_ends(plain), [test_step_end(103, "start", "done"), test_step_end(101, "start", "failed")]);
        let terminal = "\r107 lxc box-1 config.set: done              ⠙ 101 qemu web-1 start: under way 0s      \r";
        assert_eq!(parse_reported_ends(terminal), [test_step_end(107, "config.set", "done")]);
        assert_eq!(parse_reported_ends("101 qemu web-1 start: do"), []);
    }

    /// With it, all commands would share one directory: no store before the run, and no copy of what the run left.
    #[test]
    fn the_store_section_is_removed_from_the_config() {
        let text = "# a\n[environments.lab]\nmode = \"solo\"\n\n[store]\ndirectory = \"state\"\n\n[limits]\nguests = 5\n";
        assert_eq!(remove_store_section(text), "# a\n[environments.lab]\nmode = \"solo\"\n\n[limits]\nguests = 5\n");
        assert_eq!(remove_store_section("[environments.lab]\n"), "[environments.lab]\n");
    }

    #[test]
    fn new_guests_are_described_by_what_is_set() {
        let row = json!({ "name": "web", "status": "running" });
        let config = json!({ "memory": "2048", "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0", "scsi0": "tank:vm-1-disk-0,size=2G" });
        assert_eq!(describe_guest(1, &row, &config), "1 web running: memory 2048, net0 vmbr0, scsi0 2G");
        assert_eq!(describe_guest(1, &row, &json!({ "memory": 512 })), "1 web running: memory 512");
    }

    #[test]
    fn requests_are_parsed_as_steps() {
        let planned = [CrashStep { vmid: 121, change: "clone".into() }];
        let step = |path: &str| parse_request_step(&json!({ "path": path }), &planned).map(|step| (step.vmid, step.change));
        assert_eq!(step("/api2/extjs/nodes/pve3/lxc/103/status/start"), Some((103, "start".into())));
        assert_eq!(step("/api2/extjs/nodes/pve3/qemu/106/config"), Some((106, "config.set".into())));
        assert_eq!(step("/api2/extjs/nodes/pve1/qemu/900/clone"), Some((121, "clone".into())));
        assert_eq!(step("/api2/extjs/access/ticket"), None);
    }

    /// Only operations whose request may still arrive are for a person to resolve; the sweep must find everything else that is held.
    #[test]
    fn only_possibly_pending_operations_are_resolved() {
        let line = |evidence: Value| {
            let operation = json!({ "id": "a-0", "guest": { "vmid": 7 }, "step": { "change": "start" } });
            json!({ "operation": operation, "ended": { "outcome": { "end": "held", "evidence": evidence } } }).to_string()
        };
        let step = CrashStep { vmid: 7, change: "start".into() };
        assert_eq!(parse_held(&line(json!({ "may_come_until": "2026-11-16T09:00:00Z" }))), Some(("a-0".into(), step)));
        assert_eq!(parse_held(&line(json!({ "task": "UPID" }))), None);
        let reboot = |release: &str, task: Value| {
            let operation = json!({ "id": "a-0", "guest": { "vmid": 7 }, "step": { "change": "reboot" } });
            let outcome = json!({ "end": "held", "release": release, "evidence": {} });
            parse_held(&json!({ "operation": operation, "task": task, "ended": { "outcome": outcome } }).to_string()).is_some()
        };
        assert!(reboot("person", Value::Null) && !reboot("reading", Value::Null) && !reboot("person", json!({ "task": "UPID" })));
    }

    #[test]
    fn journal_lines_are_parsed_with_resolutions() {
        let operation = json!({ "guest": { "vmid": 7 }, "step": { "change": "start" } });
        let read = |rest: Value| {
            parse_journal_entry(&json!({ "operation": operation, "ended": rest["ended"], "resolved": rest["resolved"] }).to_string())
        };
        assert_eq!(read(json!({ "ended": { "outcome": { "end": "done" } } })), Some(test_step_end(7, "start", "done")));
        let resolved = json!({ "ended": { "outcome": { "end": "held" } }, "resolved": { "resolution": "failed" } });
        assert_eq!(read(resolved), Some(test_step_end(7, "start", "failed")));
        assert_eq!(read(json!({})).and_then(|entry| entry.end), None);
        assert_eq!(parse_journal_entry("{}"), None);
    }
}
