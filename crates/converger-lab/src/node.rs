//! A node: its hardware, the state of its services, and its position in the cluster.
//!
//! Must not contain guests.

use std::collections::BTreeSet;

use crate::wire::{LabRequest, TlsIdentity};

/// The state of one of a node's services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ServiceState {
    #[default]
    Up,
    /// It refuses connections.
    Down,
    /// It accepts requests and does not answer. It executes them when it is up again.
    Hung,
}

#[derive(Clone, Debug)]
pub(crate) struct LabNode {
    pub(crate) name: String,
    /// Its node id in the cluster; 0 without a cluster.
    pub(crate) number: u32,
    pub(crate) ip: String,
    pub(crate) cpus: u64,
    pub(crate) cpu_model: String,
    pub(crate) memory: u64,
    /// Used memory; `None` means one tenth.
    pub(crate) memory_used: Option<u64>,
    pub(crate) disk: u64,
    pub(crate) bridges: BTreeSet<String>,
    pub(crate) fingerprint: String,
    pub(crate) boot_ms: u64,
    /// Offset of its own clock from the cluster's.
    pub(crate) clock_off_ms: i64,
    next_pid: u32,
    pub(crate) online: bool,
    /// Nodes in the same partition reach each other.
    pub(crate) network_partition: u32,
    pub(crate) proxy: ServiceState,
    pub(crate) daemon: ServiceState,
    /// The cluster file system. While it is down, no request can be answered.
    pub(crate) cluster_files: ServiceState,
    /// pvestatd. While it is not up, the other nodes keep its last report for five minutes and then show none.
    pub(crate) statd: ServiceState,
    /// Requests that met the hung cluster file system; the first one waits longer.
    pub(crate) cluster_files_requests: u32,
    /// Its list of guests is empty, without an error.
    pub(crate) lists_no_guests: bool,
    /// Additional delay of every response of this node.
    pub(crate) slow_ms: u64,
    /// The interval at which it broadcasts its guests.
    pub(crate) cycle_ms: u64,
    /// When it broadcasts its guests, as an offset into each interval.
    pub(crate) cycle_offset_ms: u64,
    pub(crate) broadcast_ms: Option<u64>,
    /// Remaining broadcasts in the format of release 8.
    pub(crate) old_format_rounds: u32,
    /// Requests that the hung daemon accepted.
    pub(crate) backlog: Vec<LabRequest>,
    /// The TLS identity that it presents.
    pub(crate) tls_identity: TlsIdentity,
}

/// The interval at which a node of Proxmox broadcasts its guests.
pub(crate) const BROADCAST_INTERVAL_MS: u64 = 10_000;

impl LabNode {
    pub(crate) fn new(name: &str, number: u32, boot_ms: u64) -> Self {
        Self {
            name: name.to_owned(),
            number,
            ip: format!("10.99.0.{}", 10 + number),
            cpus: 8,
            cpu_model: "Lab CPU".to_owned(),
            memory: 64 << 30,
            memory_used: None,
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
            cycle_ms: BROADCAST_INTERVAL_MS,
            cycle_offset_ms: 0,
            broadcast_ms: None,
            old_format_rounds: 0,
            backlog: Vec::new(),
            tls_identity: TlsIdentity::Own,
        }
    }

    /// Used memory in bytes.
    pub(crate) fn used_memory(&self) -> u64 {
        self.memory_used.unwrap_or(self.memory / 10).min(self.memory)
    }

    /// Allocates the id of the next process on this node.
    pub(crate) fn next_process_id(&mut self) -> u32 {
        self.next_pid += 3;
        self.next_pid
    }

    /// The process id of the daemon's own worker.
    pub(crate) fn daemon_process_id(&self) -> u32 {
        self.next_pid - 2
    }

    /// Hundredths of a second since boot, the unit of process start times.
    pub(crate) fn boot_ticks(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.boot_ms) / 10
    }

    /// The last broadcast time at or before `now_ms`.
    pub(crate) fn last_broadcast_ms(&self, now_ms: u64) -> Option<u64> {
        let since = now_ms.checked_sub(self.cycle_offset_ms)?;
        Some(self.cycle_offset_ms + since / self.cycle_ms * self.cycle_ms)
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
        assert_eq!(LabNode { cycle_ms: 500, ..node }.last_broadcast_ms(3_999), Some(3_500));
    }
}
