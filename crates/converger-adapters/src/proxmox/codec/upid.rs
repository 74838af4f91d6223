//! The id of a task: `UPID:node:pid:pstart:starttime:type:id:user:`.
//!
//! Its parts are foreign data. The node selects where to query the task; nothing else depends on it.

use std::fmt;

use converger_core::guest::{NodeName, Vmid};

/// A well-formed task id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Upid {
    text: Box<str>,
    node: NodeName,
    started_at: u64,
    worker: Box<str>,
    target: Box<str>,
    user: Box<str>,
}

impl Upid {
    /// Parses a task id; `None` for anything that Proxmox itself would not parse.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let inner = text.strip_prefix("UPID:")?.strip_suffix(':')?;
        let parts: Vec<&str> = inner.split(':').collect();
        let &[node, pid, pstart, starttime, worker, target, user] = parts.as_slice() else { return None };
        let is_hex = |part: &str, lengths: std::ops::RangeInclusive<usize>| {
            lengths.contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        let is_word = |part: &str| !part.contains(|own: char| own == '/' || own.is_whitespace());
        let fits = is_hex(pid, 8..=8) && is_hex(pstart, 8..=9) && is_hex(starttime, 8..=8);
        let has_words = !worker.is_empty() && !user.is_empty() && [worker, target, user].into_iter().all(is_word);
        if !fits || !has_words {
            return None;
        }
        Some(Self {
            text: text.into(),
            node: NodeName::new(node)?,
            started_at: u64::from_str_radix(starttime, 16).ok()?,
            worker: worker.into(),
            target: target.into(),
            user: user.into(),
        })
    }

    /// The whole id.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The node that runs it, which is the only one that knows it.
    #[must_use]
    pub fn node(&self) -> &NodeName {
        &self.node
    }

    /// When it started, in seconds since 1970 on the node's clock.
    #[must_use]
    pub fn started_at(&self) -> u64 {
        self.started_at
    }

    /// The type of the task, such as `qmstart`.
    #[must_use]
    pub fn worker(&self) -> &str {
        &self.worker
    }

    /// The guest that the task is about. Only tasks of guests have one: `cephdestroyosd:3` is not about guest 3.
    #[must_use]
    pub fn guest(&self) -> Option<Vmid> {
        let of_guests = ["qm", "vz", "ha"].iter().any(|prefix| self.worker.starts_with(prefix)) || &*self.worker == "resize";
        of_guests.then(|| self.target.parse().ok().and_then(Vmid::new)).flatten()
    }

    /// The user who started it, or a token as `user@realm!token`.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.user
    }
}

impl fmt::Display for Upid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_a_task_id() {
        let upid = Upid::new("UPID:pve1:000043FD:0009433D:6AFA0639:qmcreate:100:root@pam!probe:").expect("well-formed");
        assert_eq!(upid.node().as_str(), "pve1");
        assert_eq!(upid.started_at(), 0x6AFA_0639);
        assert_eq!(upid.worker(), "qmcreate");
        assert_eq!(upid.guest().map(Vmid::get), Some(100));
        assert_eq!(upid.user(), "root@pam!probe");
        assert_eq!(upid.to_string(), upid.as_str());
    }

    #[test]
    fn target_may_be_empty_or_no_guest() {
        let empty = Upid::new("UPID:pve1:000043FD:0009433D0:6AFA0639:aptupdate::root@pam:").expect("well-formed");
        assert_eq!(empty.guest(), None);
        let disk = Upid::new("UPID:pve1:000043FD:0009433D:6AFA0639:cephdestroyosd:300:root@pam:").expect("well-formed");
        assert_eq!(disk.guest(), None);
    }

    #[test]
    fn rejects_malformed_task_ids() {
        let malformed = [
            "",
            "foo",
            "UPID:pve1:000043FD:0009433D:6AFA0639:qmcreate:100:root@pam",
            "UPID:pve1:43FD:0009433D:6AFA0639:qmcreate:100:root@pam:",
            "UPID:pve1:000043FD:0009433D:6AFA063X:qmcreate:100:root@pam:",
            "UPID:pve_1:000043FD:0009433D:6AFA0639:qmcreate:100:root@pam:",
            "UPID:pve1:000043FD:0009433D:6AFA0639::100:root@pam:",
            "UPID:pve1:000043FD:0009433D:6AFA0639:qmcreate:1/0:root@pam:",
            "UPID:pve1:000043FD:0009433D:6AFA0639:qmcreate:100:root@pam:x:",
        ];
        for text in malformed {
            assert_eq!(Upid::new(text), None, "{text}");
        }
    }
}
