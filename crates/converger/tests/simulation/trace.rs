//! All events in order: a hash of them, and optionally the lines themselves. One seed gives one trace.

use std::fmt::{self, Write as _};

use converger_core::apply::{EnvResponse, SendResult, TaskState};
use converger_core::observe::ObservedStatus;

/// The trace of a simulation.
#[derive(Clone)]
pub(crate) struct SimulationTrace {
    hash: u64,
    /// The current line.
    line: String,
    lines: Option<Vec<String>>,
}

impl SimulationTrace {
    pub(crate) fn new(keeps_lines: bool) -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, line: String::with_capacity(LINE_BYTES), lines: keeps_lines.then(Vec::new) }
    }

    /// Adds a line at a time in milliseconds since the world began.
    pub(crate) fn add_line(&mut self, at_ms: u64, text: fmt::Arguments<'_>) {
        self.line.clear();
        // Writing to a string cannot fail.
        let _ = self.line.write_fmt(text);
        self.mix(at_ms);
        self.mix_line();
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{:>9}.{:03}  {}", at_ms / 1000, at_ms % 1000, self.line));
        }
    }

    fn mix(&mut self, word: u64) {
        self.hash = (self.hash.rotate_left(23) ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
    }

    /// Hashes eight bytes at a time, and the length, so that adjacent lines stay distinct.
    fn mix_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let (eights, rest) = line.as_bytes().as_chunks::<8>();
        eights.iter().for_each(|eight| self.mix(u64::from_le_bytes(*eight)));
        self.mix(rest.iter().fold(line.len() as u64, |word, byte| word << 8 | u64::from(*byte)));
        self.line = line;
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash ^ self.hash >> 29
    }

    pub(crate) fn into_lines(self) -> Vec<String> {
        self.lines.unwrap_or_default()
    }
}

/// Typical length of a line.
const LINE_BYTES: usize = 200;

/// A response in a few words: everything that a decision depends on, but readable.
pub(crate) struct AnswerSummary<'a>(pub(crate) &'a EnvResponse);

impl fmt::Display for AnswerSummary<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            EnvResponse::Cluster(membership) => {
                let online = membership.nodes.values().filter(|online| **online).count();
                write!(out, "quorate {}, {online} of {} nodes", membership.quorate, membership.nodes.len())
            }
            EnvResponse::Status(live) => {
                let is_known = matches!(live.status, ObservedStatus::Known(_));
                let ha = live.ha.as_ref().map(|ha| ha.state.as_deref());
                write!(out, "{} (known {is_known}, lock {:?}, ha {ha:?}, up {:?})", live.word, live.lock, live.uptime_secs)
            }
            EnvResponse::Config(config) => {
                let pending_keys: Vec<&str> = config.pending.iter().map(|entry| entry.key()).collect();
                let revision = config.revision.as_ref().map_or("", |revision| revision.as_str().get(..8).unwrap_or(""));
                write!(out, "{} at {revision} (lock {:?}, waiting {pending_keys:?})", config.name, config.lock)
            }
            EnvResponse::Snapshots(tree) => {
                let names = tree.list.iter().map(|own| (&*own.name, own.made_at, own.state.as_deref()));
                write!(out, "{:?}, now after {:?}", names.collect::<Vec<_>>(), tree.current)
            }
            EnvResponse::IdState(state) => write!(out, "{state:?}"),
            EnvResponse::Located(address) => write!(out, "{:?}", address.as_ref().map(|address| address.node.as_str())),
            EnvResponse::Sent(sent) => match sent {
                SendResult::Task(task) => write!(out, "task {task}"),
                SendResult::Done => out.write_str("done"),
                SendResult::Rejected(cause) => write!(out, "no: {} {}", cause.word, cause.text),
                SendResult::NotDelivered(cause) => write!(out, "not delivered: {} {}", cause.word, cause.text),
                SendResult::MaybeExecuted(cause) => write!(out, "may have run: {} {}", cause.word, cause.text),
            },
            EnvResponse::Task(state) => match state {
                TaskState::Running => out.write_str("at work"),
                TaskState::Ended { warnings, .. } => write!(out, "ended, {warnings} warnings"),
                TaskState::Failed { cause, .. } => write!(out, "failed: {}", cause.text),
                TaskState::Lost(cause) => write!(out, "lost: {}", cause.text),
            },
            EnvResponse::Tasks(seen) => write!(out, "{} tasks", seen.len()),
            EnvResponse::GuestNotFound(cause) => write!(out, "not there: {}", cause.word),
            EnvResponse::Unreadable(cause) => write!(out, "unread: {} {}", cause.word, cause.text),
        }
    }
}
