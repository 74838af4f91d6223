//! Where a crash may happen: which run, which files, which system call, the how-manieth, and what becomes of it.
//!
//! strace counts calls per thread and per kind of call. Calls on the files of the store are therefore counted by file, because the
//! thread that opens them and the one that writes them are two: the later one would never be the first to come to a small number.
//! What never enters here: strace itself.

use std::fmt;
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
    /// All.
    Any,
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
    /// Whoever comes back after it is killed too.
    pub(crate) then: Option<Then>,
}

/// Where whoever comes back is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Then {
    pub(crate) scope: Scope,
    pub(crate) call: &'static str,
    pub(crate) nth: usize,
}

impl Point {
    /// The death of whoever comes back, as a point of its own.
    pub(crate) fn second(self) -> Option<Self> {
        let Then { scope, call, nth } = self.then?;
        Some(Self { place: Place { scope, call, ..self.place }, nth, fault: Fault::Kill, then: None })
    }

    /// This point with every death of whoever comes back after it, by the calls that they make undisturbed.
    pub(crate) fn with_deaths(self, scope: Scope, calls: &[Call]) -> impl Iterator<Item = Self> {
        let of = move |call: &'static str| Place { scope, call, memory: Memory::Kept, ..self.place };
        let counts = CALLS.map(|call| (call, of(call).count(calls)));
        let then = counts.into_iter().flat_map(move |(call, count)| (1..=count).map(move |nth| Then { scope, call, nth }));
        then.map(move |then| Self { then: Some(then), ..self })
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

const RUNS: [(Who, Memory); 3] = [(Who::Script, Memory::Kept), (Who::Person, Memory::Kept), (Who::Script, Memory::None)];

/// Calls that write, sync, cut, name or remove.
pub(crate) const CALLS: [&str; 20] = [
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

/// Every place there could be, whether anything happens there or not.
pub(crate) fn places() -> Vec<Place> {
    let scopes = |memory| match memory {
        Memory::None => &[Scope::Any][..],
        Memory::Kept => &[Scope::Log, Scope::File, Scope::Any],
    };
    let runs = RUNS.iter().flat_map(|(who, memory)| scopes(*memory).iter().map(|scope| (*who, *memory, *scope)));
    runs.flat_map(|(who, memory, scope)| CALLS.map(|call| Place { who, memory, scope, call })).collect()
}

impl Place {
    /// How many points there are, by a run in which nothing happened. Where there was no store, only its making is of interest: what
    /// comes later is the same as with one.
    pub(crate) fn count(&self, calls: &[Call]) -> usize {
        let first = calls.first().map(|call| call.thread);
        let until = match self.memory {
            Memory::None => calls.iter().position(|call| Some(call.thread) != first).unwrap_or(calls.len()),
            Memory::Kept => calls.len(),
        };
        let own: Vec<u32> = calls[..until].iter().filter(|call| call.name == self.call).map(|call| call.thread).collect();
        own.iter().map(|thread| own.iter().filter(|other| *other == thread).count()).max().unwrap_or(0)
    }

    /// All of its points.
    pub(crate) fn points(self, count: usize) -> impl Iterator<Item = Point> {
        (1..=count).flat_map(move |nth| Fault::ALL.map(|fault| Point { place: self, nth, fault, then: None }))
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
        let own = &mut seen[Fault::ALL.iter().position(|fault| *fault == point.fault).unwrap_or(0)];
        turns.push((*own, point.fault, point));
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
const SCOPE: [(Scope, &str); 3] = [(Scope::Log, "log"), (Scope::File, "file"), (Scope::Any, "any")];
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
            Some(Then { scope, call, nth }) => write!(formatter, "/then/{}/{call}/{nth}", word(&SCOPE, &scope)),
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
        let [scope, call, nth] = parts.as_slice() else { return Err(()) };
        Ok(Self { scope: value(&SCOPE, scope).ok_or(())?, call: called(call)?, nth: number(nth)? })
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

    fn place(memory: Memory) -> Place {
        Place { who: Who::Script, memory, scope: Scope::Any, call: "write" }
    }

    fn calls(text: &str) -> Vec<Call> {
        text.split(' ')
            .filter_map(|word| word.split_once(':'))
            .map(|(thread, name)| Call { thread: thread.parse().unwrap(), name: name.into() })
            .collect()
    }

    #[test]
    fn points_are_counted_by_the_thread_that_comes_furthest() {
        let calls = calls("1:write 1:fsync 2:write 2:write 1:write 2:write");
        assert_eq!(place(Memory::Kept).count(&calls), 3);
        assert_eq!(Place { call: "fsync", ..place(Memory::Kept) }.count(&calls), 1);
        assert_eq!(Place { call: "unlink", ..place(Memory::Kept) }.count(&calls), 0);
        assert_eq!(place(Memory::None).count(&calls), 1, "only the making of the store");
    }

    #[test]
    fn a_point_is_read_as_it_is_written() {
        let twice = "script/kept/log/pwrite64/17/kill/then/any/sendto/4";
        for text in ["script/kept/log/pwrite64/17/kill", "person/kept/any/writev/1/enospc", "script/new/file/fsync/3/eio", twice] {
            assert_eq!(text.parse::<Point>().map(|point| point.to_string()), Ok(text.to_owned()));
        }
        let half = "script/kept/log/write/1/kill/then/any/sendto";
        for text in ["", "script/kept/log/pwrite64/0/kill", "script/kept/log/read/1/kill", "script/kept/log/write/1/kill/more", half] {
            assert_eq!(text.parse::<Point>(), Err(()), "{text}");
        }
    }

    #[test]
    fn whoever_comes_back_is_killed_at_each_of_its_own_calls() {
        let first: Point = "person/kept/log/pwrite64/3/eio".parse().unwrap();
        let twice: Vec<Point> = first.with_deaths(Scope::Any, &calls("1:write 2:fsync 2:write 2:write")).collect();
        let then: Vec<String> = twice.iter().map(|point| point.to_string().replace("person/kept/log/pwrite64/3/eio/then/", "")).collect();
        assert_eq!(then, ["any/write/1", "any/write/2", "any/fsync/1"]);
        let second = twice[2].second().map(|point| point.to_string());
        assert_eq!((second.as_deref(), first.second()), (Some("person/kept/any/fsync/1/kill"), None));
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
        let points: Vec<Point> = place(Memory::Kept).points(50).collect();
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
