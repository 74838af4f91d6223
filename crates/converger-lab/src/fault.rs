//! What goes wrong, as data: on requests, on tasks, and at moments.
//!
//! A fault on a request never changes what the world is; it changes what arrives of it. What never
//! enters here: chance that does not come from a seed.

mod act;
mod seeded;

use serde::Deserialize;

pub(crate) use act::carry_out;
pub use act::{Act, Part};
pub use seeded::{BadDay, SeededDay};

use crate::random::Random;
use crate::task::{TaskId, Tasks};
use crate::wire::Request;
use crate::work::Begun;

/// What happens to a request or its answer.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Twist {
    /// It never arrives.
    LostBefore,
    /// It is carried out, and the answer is lost.
    LostAfter,
    /// The answer breaks off after so many bytes of the body.
    Truncated(usize),
    /// The answer takes so many milliseconds longer.
    Slow(u64),
    /// Something else answers, and nothing is carried out.
    Instead {
        /// The status code.
        status: u16,
        /// The reason phrase.
        reason: String,
        /// The body.
        #[serde(default)]
        body: String,
        /// Whether the body is announced as HTML.
        #[serde(default)]
        html: bool,
    },
    /// It is carried out, and a proxy on the way gives up: 596 and its kin, with an empty body.
    After {
        /// The status code.
        status: u16,
        /// The reason phrase.
        reason: String,
    },
    /// Somebody sends the caller elsewhere (301), and nothing is carried out.
    Redirect(String),
    /// The answer comes in pieces of so many bytes, with a pause after each.
    Drip {
        /// Bytes of a piece; at least one.
        bytes: u32,
        /// The pause in milliseconds.
        every_ms: u64,
    },
    /// The body is filled up with blanks to so many bytes.
    Flood {
        /// Bytes of the body.
        bytes: u64,
        /// The length is not said before: only the end of the connection is the end.
        #[serde(default)]
        unannounced: bool,
    },
    /// The body comes compressed although nobody asked for that, and unpacks to so many bytes.
    GzipBomb(u64),
}

/// Which requests a fault is about. What is left out fits everything.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RequestFault {
    /// The method in capitals.
    pub method: Option<String>,
    /// The path without query; `*` stands for anything.
    pub path: Option<String>,
    /// Only the nth request that fits, counted from 1.
    pub nth: Option<u64>,
    /// Only so many of those that fit.
    pub times: Option<u64>,
    /// Not before that moment (milliseconds after the start).
    pub from_ms: Option<u64>,
    /// Not from that moment on.
    pub until_ms: Option<u64>,
    /// What happens.
    pub twist: Option<Twist>,
}

/// What happens to a task.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskTwist {
    /// It fails at once, with that text.
    Fail(String),
    /// It never ends by itself.
    Hang,
    /// It ends well, with so many warnings.
    Warnings(u32),
}

impl TaskTwist {
    /// What the beginning of the task's work comes to; `None`: the work goes on.
    pub(crate) fn begin(&self) -> Option<Begun> {
        match self {
            Self::Fail(text) => Some(Err(text.clone())),
            Self::Hang => Some(Ok(None)),
            Self::Warnings(_) => None,
        }
    }

    pub(crate) fn warnings(&self) -> u32 {
        if let Self::Warnings(count) = self { *count } else { 0 }
    }
}

/// Which tasks a fault is about. What is left out fits everything.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TaskFault {
    /// The type of the task: `qmstart`.
    pub kind: Option<String>,
    /// What it is about, mostly a guest's number.
    pub about: Option<String>,
    /// Only the nth task that fits, counted from 1.
    pub nth: Option<u64>,
    /// What happens.
    pub twist: Option<TaskTwist>,
}

/// Something that happens to the world at a moment.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moment {
    /// Milliseconds after the start.
    pub at_ms: u64,
    /// What happens.
    pub act: Act,
}

/// Faults by chance: so many of a thousand requests.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chance {
    /// Where the chance comes from.
    pub seed: u64,
    /// How many of a thousand requests are hit.
    pub per_thousand: u64,
}

/// Everything that goes wrong in a world.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FaultPlan {
    /// Faults on requests; of those that fit the first one counts.
    pub requests: Vec<RequestFault>,
    /// Faults on tasks; of those that fit the first one counts.
    pub tasks: Vec<TaskFault>,
    /// What happens when.
    pub moments: Vec<Moment>,
    /// Faults by chance, besides.
    pub chance: Option<Chance>,
    /// A whole day of faults from a seed, besides.
    pub bad_day: Option<SeededDay>,
}

/// A plan at work: what fitted so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    start_ms: u64,
    requests: Vec<(RequestFault, u64)>,
    tasks: Vec<(TaskFault, u64)>,
    chance: Option<(Random, u64)>,
}

impl Faults {
    pub(crate) fn new(plan: &FaultPlan, start_ms: u64) -> Self {
        Self {
            start_ms,
            requests: plan.requests.iter().map(|fault| (fault.clone(), 0)).collect(),
            tasks: plan.tasks.iter().map(|fault| (fault.clone(), 0)).collect(),
            chance: plan.chance.map(|chance| (Random::new(chance.seed), chance.per_thousand)),
        }
    }

    /// What happens to this request.
    pub(crate) fn request(&mut self, now_ms: u64, request: &Request) -> Option<Twist> {
        let since_ms = now_ms.saturating_sub(self.start_ms);
        for (fault, fitted) in &mut self.requests {
            if fault.fits(since_ms, request) {
                *fitted += 1;
                if fault.counts(*fitted) {
                    return fault.twist.clone();
                }
            }
        }
        let (random, per_thousand) = self.chance.as_mut()?;
        if random.chance(*per_thousand, 1_000) { Some(any(random)) } else { None }
    }

    /// What happens to this task as it begins.
    pub(crate) fn task(&mut self, tasks: &Tasks, id: TaskId) -> Option<TaskTwist> {
        let task = tasks.get(id)?;
        for (fault, fitted) in &mut self.tasks {
            let kind = fault.kind.as_ref().is_none_or(|kind| *kind == task.kind);
            let about = fault.about.as_ref().is_none_or(|about| *about == task.about);
            if kind && about {
                *fitted += 1;
                if fault.nth.is_none_or(|nth| nth == *fitted) {
                    return fault.twist.clone();
                }
            }
        }
        None
    }

    pub(crate) fn add_request(&mut self, fault: RequestFault) {
        self.requests.push((fault, 0));
    }

    pub(crate) fn add_task(&mut self, fault: TaskFault) {
        self.tasks.push((fault, 0));
    }
}

impl RequestFault {
    fn fits(&self, since_ms: u64, request: &Request) -> bool {
        let path = request.path.split('?').next().unwrap_or_default();
        self.method.as_ref().is_none_or(|method| *method == request.method)
            && self.path.as_ref().is_none_or(|pattern| matches(pattern, path))
            && self.from_ms.is_none_or(|from_ms| since_ms >= from_ms)
            && self.until_ms.is_none_or(|until_ms| since_ms < until_ms)
    }

    fn counts(&self, fitted: u64) -> bool {
        self.nth.is_none_or(|nth| nth == fitted) && self.times.is_none_or(|times| fitted <= times)
    }
}

/// One of the faults that a network or a server has in it.
fn any(random: &mut Random) -> Twist {
    let silent = |status: u16, reason: &str| Twist::After { status, reason: reason.to_owned() };
    let instead = |status: u16, reason: &str, body: &str, html: bool| Twist::Instead {
        status,
        reason: reason.to_owned(),
        body: body.to_owned(),
        html,
    };
    match random.below(11) {
        0 => Twist::LostBefore,
        1 => Twist::LostAfter,
        2 => Twist::Truncated(usize::try_from(random.below(40)).unwrap_or(0)),
        3 => Twist::Slow(random.below(45_000)),
        4 => instead(595, "Connection refused", "", false),
        5 => silent(596, "Connection timed out"),
        6 => silent(599, "Too many redirections"),
        7 => Twist::Redirect("https://localhost:1/".to_owned()),
        8 => Twist::Drip { bytes: 1 + u32::try_from(random.below(64)).unwrap_or(0), every_ms: random.below(200) },
        9 => instead(502, "Bad Gateway", "<html><body><h1>502 Bad Gateway</h1></body></html>", true),
        _ => instead(503, "Service Unavailable", "", false),
    }
}

/// `*` stands for anything, the rest for itself.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = text.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_paths() {
        for (pattern, text, fits) in [
            ("/api2/json/version", "/api2/json/version", true),
            ("/api2/json/version", "/api2/json/version/x", false),
            ("*/config", "/api2/json/nodes/a/qemu/100/config", true),
            ("*/qemu/*/config", "/api2/json/nodes/a/qemu/100/config", true),
            ("*/qemu/*/config", "/api2/json/nodes/a/lxc/100/config", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, text), fits, "{pattern} {text}");
        }
    }

    #[test]
    fn the_nth_request_that_fits_is_hit_and_no_other() {
        let fault = RequestFault { method: Some("PUT".to_owned()), nth: Some(2), twist: Some(Twist::LostAfter), ..RequestFault::default() };
        let plan = FaultPlan { requests: vec![fault], ..FaultPlan::default() };
        let mut faults = Faults::new(&plan, 0);
        let mut ask = |method: &str| faults.request(0, &Request::new(method, "/x"));
        let seen: Vec<Option<Twist>> = ["PUT", "GET", "PUT", "PUT"].into_iter().map(&mut ask).collect();
        assert_eq!(seen, [None, None, Some(Twist::LostAfter), None]);
    }

    #[test]
    fn a_window_has_a_beginning_and_an_end() {
        let fault = RequestFault { from_ms: Some(10), until_ms: Some(20), twist: Some(Twist::LostBefore), ..RequestFault::default() };
        let plan = FaultPlan { requests: vec![fault], ..FaultPlan::default() };
        let mut faults = Faults::new(&plan, 1_000);
        let mut hit = |now_ms| faults.request(now_ms, &Request::new("GET", "/x")).is_some();
        assert_eq!([1_009, 1_010, 1_019, 1_020].map(&mut hit), [false, true, true, false]);
    }

    #[test]
    fn chance_is_the_same_for_the_same_seed() {
        let plan = |seed| FaultPlan { chance: Some(Chance { seed, per_thousand: 300 }), ..FaultPlan::default() };
        let story = |seed| {
            let mut faults = Faults::new(&plan(seed), 0);
            (0..50).map(|_| faults.request(0, &Request::new("GET", "/x"))).collect::<Vec<_>>()
        };
        assert_eq!(story(7), story(7));
        assert!(story(7).iter().any(Option::is_some) && story(7).iter().any(Option::is_none));
    }
}
