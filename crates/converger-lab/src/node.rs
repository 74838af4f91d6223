//! A node: what it has, which of its services answer, and where it stands in the cluster.
//!
//! What never enters here: guests.

use std::collections::BTreeSet;

use crate::wire::{Face, Request};

/// How one of a node's services is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Service {
    #[default]
    Up,
    /// Its port refuses.
    Down,
    /// It takes requests and does not answer; what it took is carried out when it wakes up.
    Hung,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    /// Its number in the cluster; zero where there is none.
    pub(crate) number: u32,
    pub(crate) ip: String,
    pub(crate) cpus: u64,
    pub(crate) memory: u64,
    pub(crate) disk: u64,
    pub(crate) bridges: BTreeSet<String>,
    pub(crate) fingerprint: String,
    pub(crate) boot_ms: u64,
    /// How far its own clock is off.
    pub(crate) clock_off_ms: i64,
    next_pid: u32,
    pub(crate) online: bool,
    /// Nodes of one island reach each other.
    pub(crate) island: u32,
    pub(crate) proxy: Service,
    pub(crate) daemon: Service,
    /// The cluster file system: without it nothing can be said.
    pub(crate) files: Service,
    /// pvestatd. While it is not up, the other nodes keep its last report for five minutes and have none afterwards.
    pub(crate) statd: Service,
    /// Calls that met the silent file system; the first waits longer.
    pub(crate) files_asked: u32,
    /// Its list of guests is silently empty.
    pub(crate) blind: bool,
    /// Every answer of this node takes so much longer.
    pub(crate) slow_ms: u64,
    /// When in each ten seconds it tells the others about its guests.
    pub(crate) cycle_offset_ms: u64,
    pub(crate) told_ms: Option<u64>,
    /// So many rounds more are told in the form of before release 9.
    pub(crate) old_rounds: u32,
    /// Requests that a hung daemon has taken.
    pub(crate) backlog: Vec<Request>,
    /// What it shows to those who begin TLS.
    pub(crate) face: Face,
}

/// Every node tells the others about its guests so often.
pub(crate) const CYCLE_MS: u64 = 10_000;

impl Node {
    pub(crate) fn new(name: &str, number: u32, boot_ms: u64) -> Self {
        Self {
            name: name.to_owned(),
            number,
            ip: format!("10.99.0.{}", 10 + number),
            cpus: 8,
            memory: 64 << 30,
            disk: 256 << 30,
            bridges: BTreeSet::from(["vmbr0".to_owned()]),
            fingerprint: String::new(),
            boot_ms,
            clock_off_ms: 0,
            next_pid: 17_000,
            online: true,
            island: 0,
            proxy: Service::Up,
            daemon: Service::Up,
            files: Service::Up,
            statd: Service::Up,
            files_asked: 0,
            blind: false,
            slow_ms: 0,
            cycle_offset_ms: 0,
            told_ms: None,
            old_rounds: 0,
            backlog: Vec::new(),
            face: Face::Own,
        }
    }

    /// The id of the next process on this node.
    pub(crate) fn pid(&mut self) -> u32 {
        self.next_pid += 3;
        self.next_pid
    }

    /// The id that the daemon's own worker has.
    pub(crate) fn daemon_pid(&self) -> u32 {
        self.next_pid - 2
    }

    /// Process start times are counted in hundredths of a second since boot.
    pub(crate) fn ticks(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.boot_ms) / 10
    }

    /// The last time at or before `now_ms` at which it tells the others.
    pub(crate) fn last_cycle(&self, now_ms: u64) -> Option<u64> {
        let since = now_ms.checked_sub(self.cycle_offset_ms)?;
        Some(self.cycle_offset_ms + since / CYCLE_MS * CYCLE_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_keep_their_offset() {
        let node = Node { cycle_offset_ms: 3_000, ..Node::new("a", 1, 0) };
        assert_eq!(node.last_cycle(2_999), None);
        assert_eq!(node.last_cycle(3_000), Some(3_000));
        assert_eq!(node.last_cycle(12_999), Some(3_000));
        assert_eq!(node.last_cycle(13_000), Some(13_000));
    }
}
