//! A node: what it has, which of its services answer, and where it stands in the cluster.
//!
//! What never enters here: guests.

use std::collections::BTreeSet;

use crate::wire::{LabRequest, TlsIdentity};

/// How one of a node's services is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ServiceState {
    #[default]
    Up,
    /// Its port refuses.
    Down,
    /// It takes requests and does not answer; what it took is carried out when it wakes up.
    Hung,
}

#[derive(Clone, Debug)]
pub(crate) struct LabNode {
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
    pub(crate) network_partition: u32,
    pub(crate) proxy: ServiceState,
    pub(crate) daemon: ServiceState,
    /// The cluster file system: without it nothing can be said.
    pub(crate) cluster_files: ServiceState,
    /// pvestatd. While it is not up, the other nodes keep its last report for five minutes and have none afterwards.
    pub(crate) statd: ServiceState,
    /// Calls that met the silent file system; the first waits longer.
    pub(crate) cluster_files_requests: u32,
    /// Its list of guests is silently empty.
    pub(crate) lists_no_guests: bool,
    /// Every answer of this node takes so much longer.
    pub(crate) slow_ms: u64,
    /// When in each ten seconds it tells the others about its guests.
    pub(crate) cycle_offset_ms: u64,
    pub(crate) broadcast_ms: Option<u64>,
    /// So many rounds more are told in the form of before release 9.
    pub(crate) old_format_rounds: u32,
    /// Requests that a hung daemon has taken.
    pub(crate) backlog: Vec<LabRequest>,
    /// What it shows to those who begin TLS.
    pub(crate) tls_identity: TlsIdentity,
}

/// Every node tells the others about its guests so often.
pub(crate) const BROADCAST_INTERVAL_MS: u64 = 10_000;

impl LabNode {
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
            network_partition: 0,
            proxy: ServiceState::Up,
            daemon: ServiceState::Up,
            cluster_files: ServiceState::Up,
            statd: ServiceState::Up,
            cluster_files_requests: 0,
            lists_no_guests: false,
            slow_ms: 0,
            cycle_offset_ms: 0,
            broadcast_ms: None,
            old_format_rounds: 0,
            backlog: Vec::new(),
            tls_identity: TlsIdentity::Own,
        }
    }

    /// The id of the next process on this node.
    pub(crate) fn next_process_id(&mut self) -> u32 {
        self.next_pid += 3;
        self.next_pid
    }

    /// The id that the daemon's own worker has.
    pub(crate) fn daemon_process_id(&self) -> u32 {
        self.next_pid - 2
    }

    /// Process start times are counted in hundredths of a second since boot.
    pub(crate) fn boot_ticks(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.boot_ms) / 10
    }

    /// The last time at or before `now_ms` at which it tells the others.
    pub(crate) fn last_broadcast_ms(&self, now_ms: u64) -> Option<u64> {
        let since = now_ms.checked_sub(self.cycle_offset_ms)?;
        Some(self.cycle_offset_ms + since / BROADCAST_INTERVAL_MS * BROADCAST_INTERVAL_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcasts_keep_their_offset() {
        let node = LabNode { cycle_offset_ms: 3_000, ..LabNode::new("a", 1, 0) };
        assert_eq!(node.last_broadcast_ms(2_999), None);
        assert_eq!(node.last_broadcast_ms(3_000), Some(3_000));
        assert_eq!(node.last_broadcast_ms(12_999), Some(3_000));
        assert_eq!(node.last_broadcast_ms(13_000), Some(13_000));
    }
}
