//! Where a fault can be injected: which run, which files, which system call, the nth of them, and
//! which fault.
//!
//! strace counts calls per thread and per call name, and injects into whichever thread reaches a
//! number first. A counting run shows which call that is. Calls are also counted per file, because
//! threads use different files: a thread that starts later would never be the first to reach a
//! small number. Calls that no point reaches are counted and named. Running strace is in `trace`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use super::evidence::CrashStep;
use super::requests::{RequestConfirmation, RequestWorkload, WORKLOADS};
use super::trace::TracedCall;

/// Who runs the apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CrashActor {
    /// A script, which confirms with the digest of the plan.
    Script,
    /// A person at a terminal, who types the names of the guests that go down.
    Person,
    /// A person at a terminal, who types the names of the guests that are made from a template.
    Maker,
    /// Requests one action. The index of the workload, which says who confirms it.
    Requester(usize),
}

impl CrashActor {
    /// Its name in points.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Script => "script",
            Self::Person => "person",
            Self::Maker => "declared",
            Self::Requester(workload) => WORKLOADS.get(workload).map_or("", |workload| workload.name),
        }
    }

    /// Those that apply a file.
    const APPLIES: [Self; 3] = [Self::Script, Self::Person, Self::Maker];

    /// The files that are applied.
    pub(crate) fn files() -> impl Iterator<Item = &'static str> {
        Self::APPLIES.into_iter().filter_map(Self::file)
    }

    fn parse(name: &str) -> Option<Self> {
        let requesters = (0..WORKLOADS.len()).map(Self::Requester);
        Self::APPLIES.into_iter().chain(requesters).find(|actor| actor.name() == name)
    }

    /// What it requests, if it does not apply a file.
    pub(crate) fn workload(self) -> Option<&'static RequestWorkload> {
        match self {
            Self::Script | Self::Person | Self::Maker => None,
            Self::Requester(workload) => WORKLOADS.get(workload),
        }
    }

    /// The file that it applies, if it does not request an action.
    pub(crate) fn file(self) -> Option<&'static str> {
        match self {
            Self::Script => Some("script.yaml"),
            Self::Person => Some("person.yaml"),
            Self::Maker => Some("declared.yaml"),
            Self::Requester(_) => None,
        }
    }

    /// Whether a person confirms its plans at a terminal, and no digest.
    pub(crate) fn is_person(self) -> bool {
        match self {
            Self::Script => false,
            Self::Person | Self::Maker => true,
            Self::Requester(_) => self.workload().is_some_and(|workload| workload.confirmation == RequestConfirmation::Person),
        }
    }

    /// Whether it makes a guest from a template and configures it.
    pub(crate) fn provisions(self) -> bool {
        self.planned_steps().iter().any(|step| step.change == "provision")
    }

    /// The steps of its plan.
    pub(crate) fn planned_steps(self) -> Vec<CrashStep> {
        let steps: &[(u64, &str)] = match self {
            Self::Requester(_) => self.workload().map(|workload| workload.steps).unwrap_or_default(),
            Self::Script => &[(101, "start"), (102, "start"), (103, "start"), (106, "config.set"), (106, "start"), (107, "config.set")],
            Self::Person => &[
                (101, "start"),
                (104, "shutdown"),
                (105, "shutdown"),
                (106, "config.set"),
                (106, "start"),
                (108, "config.set"),
                (108, "reboot"),
                (109, "stop"),
            ],
            Self::Maker => &[(123, "clone"), (123, "provision"), (123, "disk.grow"), (123, "start")],
        };
        steps.iter().map(|(vmid, change)| CrashStep { vmid: *vmid, change: (*change).to_owned() }).collect()
    }

    /// The guest that it makes, as the lab describes it at the end.
    pub(crate) fn made_guest(self) -> Option<&'static str> {
        match self {
            Self::Script | Self::Person => None,
            Self::Maker => Some("123 web-123 running: memory 2048, net0 vmbr0, scsi0 2G"),
            Self::Requester(_) => self.workload()?.made_guest,
        }
    }
}

/// The state before the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StateBefore {
    /// No state directory: crashes happen while it is created.
    None,
    /// A store without operations.
    Kept,
}

/// Which calls are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CallScope {
    /// Calls on the WAL of the store.
    Log,
    /// Calls on all other files in the state directory.
    File,
    /// Calls by which one thread wakes another: a commit that is durable, but not acknowledged yet.
    Wake,
    /// Progress output, which has its own thread.
    Told,
    /// Output to a terminal.
    Screen,
    /// All calls.
    Any,
}

/// The file that wakes a thread.
const EVENTFD_FILE: &str = "anon_inode:[eventfd]";
/// Pseudo-terminals have one of this many numbers; a victim has no other.
const TERMINALS_MAX: usize = 64;
/// The file for progress output.
pub(crate) const PROGRESS_FILE: &str = "told";

impl CallScope {
    /// Scopes with files come first, because a call that is reachable there may not be reachable among all calls.
    const ALL: [Self; 6] = [Self::Log, Self::File, Self::Wake, Self::Told, Self::Screen, Self::Any];

    /// The files of this scope in a directory; `None` means every file.
    pub(crate) fn files(self, directory: &Path) -> Option<Vec<String>> {
        let path = |name: &str| directory.join(name).display().to_string();
        match self {
            Self::Log => Some(vec![path("state/converger.db-wal")]),
            Self::File => {
                let names = ["converger.db", "converger.db-shm", "converger.db-journal", "lab.lock"].map(|name| format!("state/{name}"));
                Some(names.iter().map(String::as_str).chain(["state"]).map(path).collect())
            }
            Self::Wake => Some(vec![EVENTFD_FILE.to_owned()]),
            Self::Told => Some(vec![path(PROGRESS_FILE)]),
            Self::Screen => Some((0..TERMINALS_MAX).map(|number| format!("/dev/pts/{number}")).collect()),
            Self::Any => None,
        }
    }

    /// The faults of a call. Waking a thread cannot fail.
    fn faults(self) -> &'static [InjectedFault] {
        if self == Self::Wake { &[InjectedFault::Kill] } else { &InjectedFault::ALL }
    }
}

/// What happens to the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum InjectedFault {
    /// The process is killed before it.
    Kill,
    /// It fails with an I/O error.
    Broken,
    /// It fails because the disk is full.
    Full,
}

impl InjectedFault {
    pub(crate) const ALL: [Self; 3] = [Self::Kill, Self::Broken, Self::Full];

    /// The fault in strace's syntax.
    pub(crate) fn strace_injection(self) -> &'static str {
        match self {
            Self::Kill => "signal=KILL",
            Self::Broken => "error=EIO",
            Self::Full => "error=ENOSPC",
        }
    }
}

/// One crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CrashPoint {
    pub(crate) site: CallSite,
    pub(crate) nth: usize,
    pub(crate) fault: InjectedFault,
    /// A fault in the recovery from this crash.
    pub(crate) recovery_fault: Option<RecoveryFault>,
}

/// A fault in a recovery, and where it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RecoveryFault {
    pub(crate) scope: CallScope,
    pub(crate) call: &'static str,
    pub(crate) nth: usize,
    pub(crate) fault: InjectedFault,
}

impl CrashPoint {
    /// The fault in the recovery as a point of its own.
    pub(crate) fn recovery_point(self) -> Option<Self> {
        let RecoveryFault { scope, call, nth, fault } = self.recovery_fault?;
        Some(Self { site: CallSite { scope, call, ..self.site }, nth, fault, recovery_fault: None })
    }

    /// This point combined with every possible fault in its recovery, given the calls of an undisturbed recovery.
    pub(crate) fn with_recovery_faults(self, calls: &[TracedCall], directory: &Path) -> Vec<Self> {
        let reached = CrashRun { actor: self.site.actor, memory: StateBefore::Kept }.reachable_points(calls, directory).points;
        let then = |point: Self| RecoveryFault { scope: point.site.scope, call: point.site.call, nth: point.nth, fault: point.fault };
        reached.into_iter().map(|point| Self { recovery_fault: Some(then(point)), ..self }).collect()
    }

    /// The fault that happens last.
    pub(crate) fn last_fault(self) -> InjectedFault {
        self.recovery_fault.map_or(self.fault, |then| then.fault)
    }

    /// Whether a sync fails.
    pub(crate) fn fails_to_sync(self) -> bool {
        ["fsync", "fdatasync"].contains(&self.site.call) && self.fault != InjectedFault::Kill
    }
}

/// A kind of call in a kind of run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CallSite {
    pub(crate) actor: CrashActor,
    pub(crate) memory: StateBefore,
    pub(crate) scope: CallScope,
    pub(crate) call: &'static str,
}

/// A kind of run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CrashRun {
    pub(crate) actor: CrashActor,
    pub(crate) memory: StateBefore,
}

/// What a counting run shows about the points of runs like it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ReachablePoints {
    pub(crate) points: Vec<CrashPoint>,
    /// All calls that write.
    pub(crate) calls: usize,
    /// Calls that are never the first to reach their number, by thread, call and file.
    pub(crate) unreachable: BTreeMap<String, usize>,
}

/// Writes only if it creates a file.
pub(crate) const CREATE_CALL: &str = "openat";

/// Calls that write, sync, truncate, create, rename or remove.
pub(crate) const WRITE_CALLS: [&str; 21] = [
    CREATE_CALL,
    "write",
    "writev",
    "pwrite64",
    "pwritev",
    "pwritev2",
    "sendto",
    "sendmsg",
    "fsync",
    "fdatasync",
    "ftruncate",
    "fallocate",
    "fchmod",
    "mkdir",
    "mkdirat",
    "rename",
    "renameat",
    "renameat2",
    "unlink",
    "unlinkat",
    "linkat",
];

impl CrashRun {
    /// All runs.
    pub(crate) fn all() -> Vec<Self> {
        let kept = |actor| Self { actor, memory: StateBefore::Kept };
        let applies = CrashActor::APPLIES.map(kept).into_iter().chain([Self { actor: CrashActor::Script, memory: StateBefore::None }]);
        applies.chain((0..WORKLOADS.len()).map(|workload| kept(CrashActor::Requester(workload)))).collect()
    }

    fn scopes(self) -> &'static [CallScope] {
        match self.memory {
            StateBefore::None => &[CallScope::Any],
            StateBefore::Kept => &CallScope::ALL,
        }
    }

    /// The points of a run without faults. Each call is hit through one scope only. Without a store, only its creation matters: everything
    /// after that is the same as with a store.
    pub(crate) fn reachable_points(self, calls: &[TracedCall], directory: &Path) -> ReachablePoints {
        let first = calls.first().map(|call| call.thread);
        let calls = match self.memory {
            StateBefore::None => &calls[..calls.iter().position(|call| Some(call.thread) != first).unwrap_or(calls.len())],
            StateBefore::Kept => calls,
        };
        let (mut points, mut known) = (Vec::new(), BTreeSet::new());
        for (scope, call) in self.scopes().iter().flat_map(|scope| WRITE_CALLS.map(|call| (*scope, call))) {
            let site = CallSite { actor: self.actor, memory: self.memory, scope, call };
            for (nth, at) in site.first_calls(calls, directory) {
                if calls[at].writes && known.insert(at) {
                    points.extend(scope.faults().iter().map(|fault| CrashPoint { site, nth, fault: *fault, recovery_fault: None }));
                }
            }
        }
        let mut behind = BTreeMap::new();
        let is_behind = |(at, call): &(usize, &TracedCall)| call.writes && !known.contains(at);
        for (_, call) in calls.iter().enumerate().filter(is_behind) {
            *behind.entry(call.call_title(directory)).or_default() += 1;
        }
        ReachablePoints { points, calls: calls.iter().filter(|call| call.writes).count(), unreachable: behind }
    }
}

impl TracedCall {
    /// Thread, call and scope of a call.
    fn call_title(&self, directory: &Path) -> String {
        let of = |scope: &&CallScope| scope.files(directory).is_some_and(|files| self.files.iter().any(|file| files.contains(file)));
        let scope = CallScope::ALL.iter().find(of).map_or("other", |scope| name_of(&SCOPE_NAMES, scope));
        format!("{} {} {scope}", self.thread_name, self.name)
    }
}

impl CallSite {
    /// Every number that a thread reaches, and the first call with it, which is the one that strace hits.
    fn first_calls(&self, calls: &[TracedCall], directory: &Path) -> Vec<(usize, usize)> {
        let files = self.scope.files(directory);
        let is_own =
            |call: &TracedCall| call.name == self.call && files.as_ref().is_none_or(|own| call.files.iter().any(|file| own.contains(file)));
        let (mut counts, mut leaders): (BTreeMap<u32, usize>, Vec<(usize, usize)>) = Default::default();
        for (at, call) in calls.iter().enumerate().filter(|(_, call)| is_own(call)) {
            let nth = counts.entry(call.thread).or_default();
            *nth += 1;
            if *nth > leaders.len() {
                leaders.push((*nth, at));
            }
        }
        leaders
    }
}

/// All points in a seeded order, in which the faults alternate.
pub(crate) fn shuffle_points(points: Vec<CrashPoint>, seed: u64) -> Vec<CrashPoint> {
    let mut keyed: Vec<(u64, CrashPoint)> = Vec::with_capacity(points.len());
    let mut state = seed;
    for point in points {
        keyed.push((next_random(&mut state), point));
    }
    keyed.sort();
    let mut rounds: Vec<(usize, InjectedFault, CrashPoint)> = Vec::with_capacity(keyed.len());
    let mut seen = [0; InjectedFault::ALL.len()];
    for (_, point) in keyed {
        let fault = point.last_fault();
        let own = &mut seen[InjectedFault::ALL.iter().position(|own| *own == fault).unwrap_or(0)];
        rounds.push((*own, fault, point));
        *own += 1;
    }
    rounds.sort_by_key(|(round, fault, _)| (*round, *fault));
    rounds.into_iter().map(|(_, _, point)| point).collect()
}

/// The splitmix64 generator.
fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

const STATE_NAMES: [(StateBefore, &str); 2] = [(StateBefore::None, "new"), (StateBefore::Kept, "kept")];
const SCOPE_NAMES: [(CallScope, &str); 6] = [
    (CallScope::Log, "log"),
    (CallScope::File, "file"),
    (CallScope::Wake, "wake"),
    (CallScope::Told, "told"),
    (CallScope::Screen, "screen"),
    (CallScope::Any, "any"),
];
const FAULT_NAMES: [(InjectedFault, &str); 3] =
    [(InjectedFault::Kill, "kill"), (InjectedFault::Broken, "eio"), (InjectedFault::Full, "enospc")];

fn name_of<T: PartialEq>(names: &[(T, &'static str)], value: &T) -> &'static str {
    names.iter().find(|(own, _)| own == value).map_or("", |(_, name)| name)
}

fn value_named<T: Copy>(names: &[(T, &'static str)], name: &str) -> Option<T> {
    names.iter().find(|(_, own)| *own == name).map(|(value, _)| *value)
}

impl fmt::Display for InjectedFault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(name_of(&FAULT_NAMES, self))
    }
}

impl fmt::Display for CrashPoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CallSite { actor, memory, scope, call } = self.site;
        let [actor, memory, scope] = [actor.name(), name_of(&STATE_NAMES, &memory), name_of(&SCOPE_NAMES, &scope)];
        write!(formatter, "{actor}/{memory}/{scope}/{call}/{}/{}", self.nth, self.fault)?;
        match self.recovery_fault {
            Some(RecoveryFault { scope, call, nth, fault }) => {
                write!(formatter, "/then/{}/{call}/{nth}/{fault}", name_of(&SCOPE_NAMES, &scope))
            }
            None => Ok(()),
        }
    }
}

impl FromStr for CrashPoint {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (first, then) = text.split_once("/then/").map_or((text, None), |(first, then)| (first, Some(then)));
        let parts: Vec<&str> = first.split('/').collect();
        let [actor, memory, scope, call, nth, fault] = parts.as_slice() else { return Err(()) };
        let site = CallSite {
            actor: CrashActor::parse(actor).ok_or(())?,
            memory: value_named(&STATE_NAMES, memory).ok_or(())?,
            scope: value_named(&SCOPE_NAMES, scope).ok_or(())?,
            call: find_call(call)?,
        };
        let then = then.map(str::parse).transpose()?;
        Ok(Self { site, nth: parse_nth(nth)?, fault: value_named(&FAULT_NAMES, fault).ok_or(())?, recovery_fault: then })
    }
}

impl FromStr for RecoveryFault {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let parts: Vec<&str> = text.split('/').collect();
        let [scope, call, nth, fault] = parts.as_slice() else { return Err(()) };
        let (scope, fault) = (value_named(&SCOPE_NAMES, scope).ok_or(())?, value_named(&FAULT_NAMES, fault).ok_or(())?);
        Ok(Self { scope, call: find_call(call)?, nth: parse_nth(nth)?, fault })
    }
}

fn find_call(name: &str) -> Result<&'static str, ()> {
    WRITE_CALLS.into_iter().find(|own| *own == name).ok_or(())
}

fn parse_nth(text: &str) -> Result<usize, ()> {
    text.parse().ok().filter(|nth| *nth > 0).ok_or(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT_RUN: CrashRun = CrashRun { actor: CrashActor::Script, memory: StateBefore::Kept };

    fn test_directory() -> &'static Path {
        Path::new("/r")
    }

    /// Parses calls: `1:write` is a call of the first thread, `2:write:told` one on a file.
    fn parse_calls(text: &str) -> Vec<TracedCall> {
        let call = |call_text: &str| {
            let parts: Vec<&str> = call_text.split(':').collect();
            let file = match parts.get(2) {
                Some(&"wake") => EVENTFD_FILE.to_owned(),
                file => format!("/r/{}", file.copied().unwrap_or("other")),
            };
            TracedCall {
                thread: parts[0].parse().unwrap(),
                thread_name: format!("t{}", parts[0]),
                name: parts[1].into(),
                files: vec![file],
                writes: parts.get(3).is_none(),
            }
        };
        text.split(' ').map(call).collect()
    }

    fn kill_points(reached: &ReachablePoints) -> Vec<String> {
        reached
            .points
            .iter()
            .filter(|point| point.fault == InjectedFault::Kill)
            .map(|point| point.to_string().replace("/kill", ""))
            .collect()
    }

    #[test]
    fn only_the_first_thread_to_reach_a_count_is_hit() {
        let reached = KEPT_RUN.reachable_points(&parse_calls("1:write 1:fsync 2:write 2:write 1:write 2:write"), test_directory());
        let all = ["script/kept/any/write/1", "script/kept/any/write/2", "script/kept/any/write/3", "script/kept/any/fsync/1"];
        assert_eq!(kill_points(&reached), all);
        assert_eq!((reached.calls, reached.unreachable), (6, BTreeMap::from([("t1 write other".into(), 1), ("t2 write other".into(), 1)])));
        let new = CrashRun { memory: StateBefore::None, ..KEPT_RUN }
            .reachable_points(&parse_calls("1:write 1:fsync 2:write 1:write"), test_directory());
        assert_eq!(kill_points(&new), ["script/new/any/write/1", "script/new/any/fsync/1"], "only the creation of the store");
    }

    #[test]
    fn calls_on_their_own_file_are_reached_once() {
        let reached = KEPT_RUN
            .reachable_points(&parse_calls("1:write:state/lab.lock 1:write 2:write:told 2:write:told 3:write:wake"), test_directory());
        let all = ["file/write/1", "wake/write/1", "told/write/1", "told/write/2", "any/write/2"];
        assert_eq!(kill_points(&reached), all.map(|rest| format!("script/kept/{rest}")));
        assert_eq!((reached.unreachable.len(), reached.points.len()), (0, 4 * 3 + 1), "waking a thread cannot fail");
    }

    #[test]
    fn openat_counts_only_if_it_creates_a_file() {
        let reached = KEPT_RUN.reachable_points(&parse_calls("1:openat:a:reads 1:openat:b 1:openat:state/lab.lock"), test_directory());
        assert_eq!(kill_points(&reached), ["script/kept/file/openat/1", "script/kept/any/openat/2"]);
        assert_eq!(reached.calls, 2);
    }

    #[test]
    fn points_round_trip_through_text() {
        let twice = "script/kept/log/pwrite64/17/kill/then/any/sendto/4/eio";
        let all = [
            "script/kept/log/pwrite64/17/kill",
            "person/kept/any/writev/1/enospc",
            "script/new/file/openat/3/eio",
            "script/kept/told/write/2/kill",
            "clone/kept/log/pwrite64/3/kill",
            "snapshot/kept/any/sendto/3/kill",
            "provision/kept/screen/write/3/eio",
            "declared/kept/log/fsync/3/kill",
            twice,
        ];
        for text in all {
            assert_eq!(text.parse::<CrashPoint>().map(|point| point.to_string()), Ok(text.to_owned()));
        }
        let half = "script/kept/log/write/1/kill/then/any/sendto/4";
        for text in ["", "script/kept/log/pwrite64/0/kill", "script/kept/log/read/1/kill", "script/kept/log/write/1/kill/more", half] {
            assert_eq!(text.parse::<CrashPoint>(), Err(()), "{text}");
        }
    }

    #[test]
    fn recovery_faults_cover_every_call_of_the_recovery() {
        let first: CrashPoint = "person/kept/log/pwrite64/3/eio".parse().unwrap();
        let twice = first.with_recovery_faults(&parse_calls("1:write 2:fsync:state/converger.db-wal"), test_directory());
        let then: Vec<String> = twice.iter().map(|point| point.to_string().replace("person/kept/log/pwrite64/3/eio/then/", "")).collect();
        let each = |call: &str| InjectedFault::ALL.map(|fault| format!("{call}/1/{fault}"));
        assert_eq!(then, [each("log/fsync"), each("any/write")].concat());
        let second = twice[1].recovery_point().map(|point| point.to_string());
        assert_eq!((second.as_deref(), first.recovery_point()), (Some("person/kept/log/fsync/1/eio"), None));
        assert_eq!((twice[2].last_fault(), first.last_fault()), (InjectedFault::Full, InjectedFault::Broken));
    }

    #[test]
    fn failed_syncs_are_recognised() {
        let fails = |text: &str| text.parse::<CrashPoint>().unwrap().fails_to_sync();
        assert!(fails("script/kept/log/fsync/2/eio") && fails("person/kept/any/fdatasync/1/enospc"));
        for text in ["script/kept/log/fsync/2/kill", "script/kept/log/pwrite64/2/eio"] {
            assert!(!fails(text), "{text}");
        }
    }

    #[test]
    fn shuffling_is_seeded_and_alternates_faults() {
        let mut points = KEPT_RUN.reachable_points(&parse_calls(&["1:write"; 50].join(" ")), test_directory()).points;
        points.sort();
        let order = shuffle_points(points.clone(), 7);
        assert_eq!(order, shuffle_points(points.clone(), 7));
        assert_ne!(order, shuffle_points(points.clone(), 8));
        for group in order.chunks(3) {
            assert_eq!(group.iter().map(|point| point.fault).collect::<Vec<_>>(), InjectedFault::ALL);
        }
        let mut sorted = order;
        sorted.sort();
        assert_eq!(sorted, points, "each point once");
    }
}
