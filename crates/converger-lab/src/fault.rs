//! Faults as data: on requests, on tasks, and external events at given times.
//!
//! A fault on a request changes what the client receives; it never changes the world itself.
//! Randomness must come from a seed only.

mod bad_day;
mod world_event;

use serde::Deserialize;

pub use bad_day::{BadDay, SeededBadDay};
pub(crate) use world_event::apply_world_event;
pub use world_event::{NodeService, WorldEvent};

use crate::random::SeededRandom;
use crate::task::{LabTasks, TaskId};
use crate::task_work::WorkStart;
use crate::wire::LabRequest;

/// What happens to a request or its response.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ResponseFault {
    /// The request never arrives.
    LostBefore,
    /// The request is executed, and the response is lost.
    LostAfter,
    /// The response ends after this many bytes of the body.
    Truncated(usize),
    /// The response takes this many milliseconds longer.
    Slow(u64),
    /// A different response is sent, and the request is not executed.
    Instead {
        /// The status code.
        status: u16,
        /// The reason phrase.
        reason: String,
        /// The body.
        #[serde(default)]
        body: String,
        /// Whether the content type is HTML.
        #[serde(default)]
        html: bool,
    },
    /// The request is executed, and a proxy in between gives up: 595, 596 or 599, with an empty body.
    After {
        /// The status code.
        status: u16,
        /// The reason phrase.
        reason: String,
    },
    /// The client is redirected (301) to this location, and the request is not executed.
    Redirect(String),
    /// The response arrives in chunks, with a pause after each.
    Drip {
        /// Bytes per chunk; at least one.
        bytes: u32,
        /// The pause in milliseconds.
        every_ms: u64,
    },
    /// The body is padded with blanks.
    Flood {
        /// Total bytes of the body.
        bytes: u64,
        /// No content length is sent; the body ends when the connection closes.
        #[serde(default)]
        unannounced: bool,
    },
    /// The body is compressed although the client did not ask for it, and decompresses to this many bytes.
    GzipBomb(u64),
}

/// A fault on requests. Conditions that are omitted match every request.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RequestFault {
    /// The method, in upper case.
    pub method: Option<String>,
    /// The path without query; `*` matches any text.
    pub path: Option<String>,
    /// Only the nth matching request, counted from 1.
    pub nth: Option<u64>,
    /// Only the first `times` matching requests.
    pub times: Option<u64>,
    /// Only from this time on (milliseconds after the start).
    pub from_ms: Option<u64>,
    /// Only before this time.
    pub until_ms: Option<u64>,
    /// What happens.
    #[serde(rename = "twist")]
    pub fault: Option<ResponseFault>,
}

/// How long a task takes that does nothing.
const DO_NOTHING_MS: u64 = 40;

/// What happens to a task.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskFaultEffect {
    /// It fails at once with this text.
    Fail(String),
    /// It never ends.
    Hang,
    /// It succeeds with this many warnings.
    Warnings(u32),
    /// It does its work and then fails with this text, as when a step after the last effect fails.
    FailAfter(String),
    /// It succeeds at once and does nothing.
    DoNothing,
    /// Its worker is killed halfway: no last log line, locks stay, and what it had done so far stays.
    Killed,
}

impl TaskFaultEffect {
    /// The result with which the task's work starts; `None` if the work proceeds normally.
    pub(crate) fn start_result(&self) -> Option<WorkStart> {
        match self {
            Self::Fail(text) => Some(Err(text.clone())),
            Self::Hang => Some(Ok(None)),
            Self::DoNothing => Some(Ok(Some(DO_NOTHING_MS))),
            Self::Warnings(_) | Self::FailAfter(_) | Self::Killed => None,
        }
    }

    /// How long the work takes with this fault: a killed worker gets half of the time.
    pub(crate) fn shorten(&self, duration_ms: u64) -> u64 {
        if matches!(self, Self::Killed) { duration_ms / 2 } else { duration_ms }
    }
}

/// A fault on tasks. Conditions that are omitted match every task.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TaskFault {
    /// The type of the task: `qmstart`.
    pub kind: Option<String>,
    /// What the task is about, usually a VMID.
    pub about: Option<String>,
    /// Only the nth matching task, counted from 1.
    pub nth: Option<u64>,
    /// What happens.
    #[serde(rename = "twist")]
    pub effect: Option<TaskFaultEffect>,
}

/// An external event at a given time.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimedWorldEvent {
    /// Milliseconds after the start.
    pub at_ms: u64,
    /// What happens.
    #[serde(rename = "act")]
    pub event: WorldEvent,
}

/// Random faults on requests.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomFaults {
    /// The seed.
    pub seed: u64,
    /// How many of 1,000 requests are affected.
    pub per_thousand: u64,
}

/// All faults of a world.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FaultPlan {
    /// Faults on requests; the first that matches applies.
    pub requests: Vec<RequestFault>,
    /// Faults on tasks; the first that matches applies.
    pub tasks: Vec<TaskFault>,
    /// External events and their times.
    pub moments: Vec<TimedWorldEvent>,
    /// Random faults, in addition.
    pub chance: Option<RandomFaults>,
    /// A seeded series of faults, in addition.
    pub bad_day: Option<SeededBadDay>,
}

/// The faults of a running world, each with the number of its matches so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct ActiveFaults {
    start_ms: u64,
    requests: Vec<(RequestFault, u64)>,
    tasks: Vec<(TaskFault, u64)>,
    chance: Option<(SeededRandom, u64)>,
}

impl ActiveFaults {
    pub(crate) fn new(plan: &FaultPlan, start_ms: u64) -> Self {
        Self {
            start_ms,
            requests: plan.requests.iter().map(|fault| (fault.clone(), 0)).collect(),
            tasks: plan.tasks.iter().map(|fault| (fault.clone(), 0)).collect(),
            chance: plan.chance.map(|chance| (SeededRandom::new(chance.seed), chance.per_thousand)),
        }
    }

    /// The fault that applies to this request.
    pub(crate) fn next_request_fault(&mut self, now_ms: u64, request: &LabRequest) -> Option<ResponseFault> {
        let since_ms = now_ms.saturating_sub(self.start_ms);
        for (fault, fitted) in &mut self.requests {
            if fault.matches_request(since_ms, request) {
                *fitted += 1;
                if fault.matches_count(*fitted) {
                    return fault.fault.clone();
                }
            }
        }
        let (random, per_thousand) = self.chance.as_mut()?;
        if random.chance(*per_thousand, 1_000) { Some(random_response_fault(random)) } else { None }
    }

    /// The fault that applies to this task at its start.
    pub(crate) fn next_task_fault(&mut self, tasks: &LabTasks, id: TaskId) -> Option<TaskFaultEffect> {
        let task = tasks.get(id)?;
        for (fault, fitted) in &mut self.tasks {
            let kind = fault.kind.as_ref().is_none_or(|kind| *kind == task.kind);
            let about = fault.about.as_ref().is_none_or(|about| *about == task.about);
            if kind && about {
                *fitted += 1;
                if fault.nth.is_none_or(|nth| nth == *fitted) {
                    return fault.effect.clone();
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
    fn matches_request(&self, since_ms: u64, request: &LabRequest) -> bool {
        let path = request.path.split('?').next().unwrap_or_default();
        self.method.as_ref().is_none_or(|method| *method == request.method)
            && self.path.as_ref().is_none_or(|pattern| matches_pattern(pattern, path))
            && self.from_ms.is_none_or(|from_ms| since_ms >= from_ms)
            && self.until_ms.is_none_or(|until_ms| since_ms < until_ms)
    }

    fn matches_count(&self, fitted: u64) -> bool {
        self.nth.is_none_or(|nth| nth == fitted) && self.times.is_none_or(|times| fitted <= times)
    }
}

/// A random fault that is typical of networks and servers.
fn random_response_fault(random: &mut SeededRandom) -> ResponseFault {
    let without_body = |status: u16, reason: &str| ResponseFault::After { status, reason: reason.to_owned() };
    let instead = |status: u16, reason: &str, body: &str, html: bool| ResponseFault::Instead {
        status,
        reason: reason.to_owned(),
        body: body.to_owned(),
        html,
    };
    match random.number_below(11) {
        0 => ResponseFault::LostBefore,
        1 => ResponseFault::LostAfter,
        2 => ResponseFault::Truncated(usize::try_from(random.number_below(40)).unwrap_or(0)),
        3 => ResponseFault::Slow(random.number_below(45_000)),
        4 => instead(595, "Connection refused", "", false),
        5 => without_body(596, "Connection timed out"),
        6 => without_body(599, "Too many redirections"),
        7 => ResponseFault::Redirect("https://localhost:1/".to_owned()),
        8 => ResponseFault::Drip { bytes: 1 + u32::try_from(random.number_below(64)).unwrap_or(0), every_ms: random.number_below(200) },
        9 => instead(502, "Bad Gateway", "<html><body><h1>502 Bad Gateway</h1></body></html>", true),
        _ => instead(503, "Service Unavailable", "", false),
    }
}

/// Whether the text matches the pattern; `*` matches any text, everything else only itself.
fn matches_pattern(pattern: &str, text: &str) -> bool {
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
            assert_eq!(matches_pattern(pattern, text), fits, "{pattern} {text}");
        }
    }

    #[test]
    fn only_the_nth_matching_request_is_hit() {
        let fault =
            RequestFault { method: Some("PUT".to_owned()), nth: Some(2), fault: Some(ResponseFault::LostAfter), ..RequestFault::default() };
        let plan = FaultPlan { requests: vec![fault], ..FaultPlan::default() };
        let mut faults = ActiveFaults::new(&plan, 0);
        let mut next_fault = |method: &str| faults.next_request_fault(0, &LabRequest::new(method, "/x"));
        let seen: Vec<Option<ResponseFault>> = ["PUT", "GET", "PUT", "PUT"].into_iter().map(&mut next_fault).collect();
        assert_eq!(seen, [None, None, Some(ResponseFault::LostAfter), None]);
    }

    #[test]
    fn faults_apply_within_their_time_window_only() {
        let fault =
            RequestFault { from_ms: Some(10), until_ms: Some(20), fault: Some(ResponseFault::LostBefore), ..RequestFault::default() };
        let plan = FaultPlan { requests: vec![fault], ..FaultPlan::default() };
        let mut faults = ActiveFaults::new(&plan, 1_000);
        let mut hit = |now_ms| faults.next_request_fault(now_ms, &LabRequest::new("GET", "/x")).is_some();
        assert_eq!([1_009, 1_010, 1_019, 1_020].map(&mut hit), [false, true, true, false]);
    }

    #[test]
    fn random_faults_are_the_same_for_the_same_seed() {
        let plan = |seed| FaultPlan { chance: Some(RandomFaults { seed, per_thousand: 300 }), ..FaultPlan::default() };
        let faults_for = |seed| {
            let mut faults = ActiveFaults::new(&plan(seed), 0);
            (0..50).map(|_| faults.next_request_fault(0, &LabRequest::new("GET", "/x"))).collect::<Vec<_>>()
        };
        assert_eq!(faults_for(7), faults_for(7));
        assert!(faults_for(7).iter().any(Option::is_some) && faults_for(7).iter().any(Option::is_none));
    }
}
