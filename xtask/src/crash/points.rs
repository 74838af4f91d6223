//! Where a crash may happen: which run, which files, which system call, the how-manieth, and what becomes of it.
//!
//! strace counts calls per thread and per kind of call, and strikes whichever thread comes to a number first. Which call that is, is
//! told by a run that was counted. Calls are also counted by file, because threads have files of their own: one that comes later
//! would never be the first to come to a small number. What is not reached in any of these ways is counted and named.
//! What never enters here: strace itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use super::trace::Call;

/// Who applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Who {
    /// A script: it confirms by the digest of the plan.
    Script,
    /// A person at a terminal, who types the names of the guests that go down.
    Person,
}

/// What is there before the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Memory {
    /// No state directory: crashes while it is made.
    None,
    /// A store without operations.
    Kept,
}

/// Which calls are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    /// Those on the log of the store.
    Log,
    /// Those on everything else in the state directory.
    File,
    /// By which one thread wakes another: a commit that is durable and not heard of yet.
    Wake,
    /// What is told while it is under way, by a thread of its own.
    Told,
    /// What is drawn on a terminal.
    Screen,
    /// All.
    Any,
}

/// What a thread is woken by.
const EVENT: &str = "anon_inode:[eventfd]";
/// A terminal that is lent has one of so many numbers; a victim has no other.
const SCREENS: usize = 64;
/// Where what is told while it is under way goes to.
pub(crate) const TOLD: &str = "told";

impl Scope {
    /// Those that strace tells apart by file first: what is reached there need not be reached among all.
    const ALL: [Self; 6] = [Self::Log, Self::File, Self::Wake, Self::Told, Self::Screen, Self::Any];

    /// The files in a room that it is about; none: every file.
    pub(crate) fn files(self, room: &Path) -> Option<Vec<String>> {
        let path = |name: &str| room.join(name).display().to_string();
        match self {
            Self::Log => Some(vec![path("state/converger.db-wal")]),
            Self::File => {
                let names = ["converger.db", "converger.db-shm", "converger.db-journal", "lab.lock"].map(|name| format!("state/{name}"));
                Some(names.iter().map(String::as_str).chain(["state"]).map(path).collect())
            }
            Self::Wake => Some(vec![EVENT.to_owned()]),
            Self::Told => Some(vec![path(TOLD)]),
            Self::Screen => Some((0..SCREENS).map(|number| format!("/dev/pts/{number}")).collect()),
            Self::Any => None,
        }
    }

    /// What may befall a call. Waking somebody does not fail.
    fn faults(self) -> &'static [Fault] {
        if self == Self::Wake { &[Fault::Kill] } else { &Fault::ALL }
    }
}

/// What becomes of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// The process is killed before it.
    Kill,
    /// It fails with an error of the disk.
    Broken,
    /// It fails for want of room.
    Full,
}

impl Fault {
    pub(crate) const ALL: [Self; 3] = [Self::Kill, Self::Broken, Self::Full];

    /// In strace's words.
    pub(crate) fn injected(self) -> &'static str {
        match self {
            Self::Kill => "signal=KILL",
            Self::Broken => "error=EIO",
            Self::Full => "error=ENOSPC",
        }
    }
}

/// One crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Point {
    pub(crate) place: Place,
    pub(crate) nth: usize,
    pub(crate) fault: Fault,
    /// Something befalls whoever comes back after it too.
    pub(crate) then: Option<Then>,
}

/// What befalls whoever comes back, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Then {
    pub(crate) scope: Scope,
    pub(crate) call: &'static str,
    pub(crate) nth: usize,
    pub(crate) fault: Fault,
}

impl Point {
    /// What befalls whoever comes back, as a point of its own.
    pub(crate) fn second(self) -> Option<Self> {
        let Then { scope, call, nth, fault } = self.then?;
        Some(Self { place: Place { scope, call, ..self.place }, nth, fault, then: None })
    }

    /// This point with everything that can befall whoever comes back after it, by the calls that they make undisturbed.
    pub(crate) fn with_deaths(self, calls: &[Call], room: &Path) -> Vec<Self> {
        let reached = Run { who: self.place.who, memory: Memory::Kept }.reached(calls, room).points;
        let then = |point: Self| Then { scope: point.place.scope, call: point.place.call, nth: point.nth, fault: point.fault };
        reached.into_iter().map(|point| Self { then: Some(then(point)), ..self }).collect()
    }

    /// The fault of the last of what happens.
    pub(crate) fn last_fault(self) -> Fault {
        self.then.map_or(self.fault, |then| then.fault)
    }

    /// Whether a sync fails.
    pub(crate) fn fails_to_sync(self) -> bool {
        ["fsync", "fdatasync"].contains(&self.place.call) && self.fault != Fault::Kill
    }
}

/// A kind of call in a kind of run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) who: Who,
    pub(crate) memory: Memory,
    pub(crate) scope: Scope,
    pub(crate) call: &'static str,
}

/// A kind of run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Run {
    pub(crate) who: Who,
    pub(crate) memory: Memory,
}

/// What a run that was counted says about the points of others like it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Reached {
    pub(crate) points: Vec<Point>,
    /// All calls that write.
    pub(crate) calls: usize,
    /// Those that are never the first of their number, by thread, call and file.
    pub(crate) behind: BTreeMap<String, usize>,
}

/// Writes where it makes a file.
pub(crate) const CREATES: &str = "openat";

/// Calls that write, sync, cut, make, name or remove.
pub(crate) const CALLS: [&str; 21] = [
    CREATES,
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

impl Run {
    pub(crate) const ALL: [Self; 3] = [
        Self { who: Who::Script, memory: Memory::Kept },
        Self { who: Who::Person, memory: Memory::Kept },
        Self { who: Who::Script, memory: Memory::None },
    ];

    fn scopes(self) -> &'static [Scope] {
        match self.memory {
            Memory::None => &[Scope::Any],
            Memory::Kept => &Scope::ALL,
        }
    }

    /// The points that a run has in which nothing happened. Each call is struck in one way only. Where there was no store, only its
    /// making is of interest: what comes later is the same as with one.
    pub(crate) fn reached(self, calls: &[Call], room: &Path) -> Reached {
        let first = calls.first().map(|call| call.thread);
        let calls = match self.memory {
            Memory::None => &calls[..calls.iter().position(|call| Some(call.thread) != first).unwrap_or(calls.len())],
            Memory::Kept => calls,
        };
        let (mut points, mut known) = (Vec::new(), BTreeSet::new());
        for (scope, call) in self.scopes().iter().flat_map(|scope| CALLS.map(|call| (*scope, call))) {
            let place = Place { who: self.who, memory: self.memory, scope, call };
            for (nth, at) in place.leaders(calls, room) {
                if calls[at].writes && known.insert(at) {
                    points.extend(scope.faults().iter().map(|fault| Point { place, nth, fault: *fault, then: None }));
                }
            }
        }
        let mut behind = BTreeMap::new();
        let is_behind = |(at, call): &(usize, &Call)| call.writes && !known.contains(at);
        for (_, call) in calls.iter().enumerate().filter(is_behind) {
            *behind.entry(call.title(room)).or_default() += 1;
        }
        Reached { points, calls: calls.iter().filter(|call| call.writes).count(), behind }
    }
}

impl Call {
    /// Whose it is, what it is, and what for.
    fn title(&self, room: &Path) -> String {
        let of = |scope: &&Scope| scope.files(room).is_some_and(|files| self.files.iter().any(|file| files.contains(file)));
        let scope = Scope::ALL.iter().find(of).map_or("other", |scope| word(&SCOPE, scope));
        format!("{} {} {scope}", self.of, self.name)
    }
}

impl Place {
    /// Each number that a thread comes to, and the first call that has it: the one that strace strikes.
    fn leaders(&self, calls: &[Call], room: &Path) -> Vec<(usize, usize)> {
        let files = self.scope.files(room);
        let is_own =
            |call: &Call| call.name == self.call && files.as_ref().is_none_or(|own| call.files.iter().any(|file| own.contains(file)));
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

/// All points in an order that a seed decides, in which the faults take turns.
pub(crate) fn shuffled(points: Vec<Point>, seed: u64) -> Vec<Point> {
    let mut keyed: Vec<(u64, Point)> = Vec::with_capacity(points.len());
    let mut state = seed;
    for point in points {
        keyed.push((next(&mut state), point));
    }
    keyed.sort();
    let mut turns: Vec<(usize, Fault, Point)> = Vec::with_capacity(keyed.len());
    let mut seen = [0; Fault::ALL.len()];
    for (_, point) in keyed {
        let fault = point.last_fault();
        let own = &mut seen[Fault::ALL.iter().position(|own| *own == fault).unwrap_or(0)];
        turns.push((*own, fault, point));
        *own += 1;
    }
    turns.sort_by_key(|(turn, fault, _)| (*turn, *fault));
    turns.into_iter().map(|(_, _, point)| point).collect()
}

/// The generator splitmix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

const WHO: [(Who, &str); 2] = [(Who::Script, "script"), (Who::Person, "person")];
const MEMORY: [(Memory, &str); 2] = [(Memory::None, "new"), (Memory::Kept, "kept")];
const SCOPE: [(Scope, &str); 6] = [
    (Scope::Log, "log"),
    (Scope::File, "file"),
    (Scope::Wake, "wake"),
    (Scope::Told, "told"),
    (Scope::Screen, "screen"),
    (Scope::Any, "any"),
];
const FAULT: [(Fault, &str); 3] = [(Fault::Kill, "kill"), (Fault::Broken, "eio"), (Fault::Full, "enospc")];

fn word<T: PartialEq>(words: &[(T, &'static str)], value: &T) -> &'static str {
    words.iter().find(|(own, _)| own == value).map_or("", |(_, word)| word)
}

fn value<T: Copy>(words: &[(T, &'static str)], word: &str) -> Option<T> {
    words.iter().find(|(_, own)| *own == word).map(|(value, _)| *value)
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(word(&FAULT, self))
    }
}

impl fmt::Display for Point {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { who, memory, scope, call } = self.place;
        let [who, memory, scope] = [word(&WHO, &who), word(&MEMORY, &memory), word(&SCOPE, &scope)];
        write!(formatter, "{who}/{memory}/{scope}/{call}/{}/{}", self.nth, self.fault)?;
        match self.then {
            Some(Then { scope, call, nth, fault }) => write!(formatter, "/then/{}/{call}/{nth}/{fault}", word(&SCOPE, &scope)),
            None => Ok(()),
        }
    }
}

impl FromStr for Point {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (first, then) = text.split_once("/then/").map_or((text, None), |(first, then)| (first, Some(then)));
        let parts: Vec<&str> = first.split('/').collect();
        let [who, memory, scope, call, nth, fault] = parts.as_slice() else { return Err(()) };
        let place = Place {
            who: value(&WHO, who).ok_or(())?,
            memory: value(&MEMORY, memory).ok_or(())?,
            scope: value(&SCOPE, scope).ok_or(())?,
            call: called(call)?,
        };
        let then = then.map(str::parse).transpose()?;
        Ok(Self { place, nth: number(nth)?, fault: value(&FAULT, fault).ok_or(())?, then })
    }
}

impl FromStr for Then {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let parts: Vec<&str> = text.split('/').collect();
        let [scope, call, nth, fault] = parts.as_slice() else { return Err(()) };
        let (scope, fault) = (value(&SCOPE, scope).ok_or(())?, value(&FAULT, fault).ok_or(())?);
        Ok(Self { scope, call: called(call)?, nth: number(nth)?, fault })
    }
}

fn called(name: &str) -> Result<&'static str, ()> {
    CALLS.into_iter().find(|own| *own == name).ok_or(())
}

fn number(text: &str) -> Result<usize, ()> {
    text.parse().ok().filter(|nth| *nth > 0).ok_or(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: Run = Run { who: Who::Script, memory: Memory::Kept };

    fn room() -> &'static Path {
        Path::new("/r")
    }

    /// `1:write` is a call of the first thread, `2:write:told` one on a file.
    fn calls(text: &str) -> Vec<Call> {
        let call = |word: &str| {
            let parts: Vec<&str> = word.split(':').collect();
            let file = match parts.get(2) {
                Some(&"wake") => EVENT.to_owned(),
                file => format!("/r/{}", file.copied().unwrap_or("other")),
            };
            Call {
                thread: parts[0].parse().unwrap(),
                of: format!("t{}", parts[0]),
                name: parts[1].into(),
                files: vec![file],
                writes: parts.get(3).is_none(),
            }
        };
        text.split(' ').map(call).collect()
    }

    fn kills(reached: &Reached) -> Vec<String> {
        reached.points.iter().filter(|point| point.fault == Fault::Kill).map(|point| point.to_string().replace("/kill", "")).collect()
    }

    #[test]
    fn the_first_thread_that_comes_to_a_number_is_struck_and_the_others_are_counted() {
        let reached = KEPT.reached(&calls("1:write 1:fsync 2:write 2:write 1:write 2:write"), room());
        let all = ["script/kept/any/write/1", "script/kept/any/write/2", "script/kept/any/write/3", "script/kept/any/fsync/1"];
        assert_eq!(kills(&reached), all);
        assert_eq!((reached.calls, reached.behind), (6, BTreeMap::from([("t1 write other".into(), 1), ("t2 write other".into(), 1)])));
        let new = Run { memory: Memory::None, ..KEPT }.reached(&calls("1:write 1:fsync 2:write 1:write"), room());
        assert_eq!(kills(&new), ["script/new/any/write/1", "script/new/any/fsync/1"], "only the making of the store");
    }

    #[test]
    fn what_has_a_file_of_its_own_is_reached_by_it_and_only_once() {
        let reached = KEPT.reached(&calls("1:write:state/lab.lock 1:write 2:write:told 2:write:told 3:write:wake"), room());
        let all = ["file/write/1", "wake/write/1", "told/write/1", "told/write/2", "any/write/2"];
        assert_eq!(kills(&reached), all.map(|rest| format!("script/kept/{rest}")));
        assert_eq!((reached.behind.len(), reached.points.len()), (0, 4 * 3 + 1), "waking does not fail");
    }

    #[test]
    fn opening_counts_where_it_makes_a_file_by_its_number_among_all() {
        let reached = KEPT.reached(&calls("1:openat:a:reads 1:openat:b 1:openat:state/lab.lock"), room());
        assert_eq!(kills(&reached), ["script/kept/file/openat/1", "script/kept/any/openat/2"]);
        assert_eq!(reached.calls, 2);
    }

    #[test]
    fn a_point_is_read_as_it_is_written() {
        let twice = "script/kept/log/pwrite64/17/kill/then/any/sendto/4/eio";
        let all = [
            "script/kept/log/pwrite64/17/kill",
            "person/kept/any/writev/1/enospc",
            "script/new/file/openat/3/eio",
            "script/kept/told/write/2/kill",
            twice,
        ];
        for text in all {
            assert_eq!(text.parse::<Point>().map(|point| point.to_string()), Ok(text.to_owned()));
        }
        let half = "script/kept/log/write/1/kill/then/any/sendto/4";
        for text in ["", "script/kept/log/pwrite64/0/kill", "script/kept/log/read/1/kill", "script/kept/log/write/1/kill/more", half] {
            assert_eq!(text.parse::<Point>(), Err(()), "{text}");
        }
    }

    #[test]
    fn everything_befalls_whoever_comes_back_at_each_of_its_own_calls() {
        let first: Point = "person/kept/log/pwrite64/3/eio".parse().unwrap();
        let twice = first.with_deaths(&calls("1:write 2:fsync:state/converger.db-wal"), room());
        let then: Vec<String> = twice.iter().map(|point| point.to_string().replace("person/kept/log/pwrite64/3/eio/then/", "")).collect();
        let each = |call: &str| Fault::ALL.map(|fault| format!("{call}/1/{fault}"));
        assert_eq!(then, [each("log/fsync"), each("any/write")].concat());
        let second = twice[1].second().map(|point| point.to_string());
        assert_eq!((second.as_deref(), first.second()), (Some("person/kept/log/fsync/1/eio"), None));
        assert_eq!((twice[2].last_fault(), first.last_fault()), (Fault::Full, Fault::Broken));
    }

    #[test]
    fn a_failed_sync_is_told_from_others() {
        let fails = |text: &str| text.parse::<Point>().unwrap().fails_to_sync();
        assert!(fails("script/kept/log/fsync/2/eio") && fails("person/kept/any/fdatasync/1/enospc"));
        for text in ["script/kept/log/fsync/2/kill", "script/kept/log/pwrite64/2/eio"] {
            assert!(!fails(text), "{text}");
        }
    }

    #[test]
    fn a_seed_gives_one_order_and_the_faults_take_turns() {
        let mut points = KEPT.reached(&calls(&["1:write"; 50].join(" ")), room()).points;
        points.sort();
        let order = shuffled(points.clone(), 7);
        assert_eq!(order, shuffled(points.clone(), 7));
        assert_ne!(order, shuffled(points.clone(), 8));
        for turn in order.chunks(3) {
            assert_eq!(turn.iter().map(|point| point.fault).collect::<Vec<_>>(), Fault::ALL);
        }
        let mut sorted = order;
        sorted.sort();
        assert_eq!(sorted, points, "each point once");
    }
}
