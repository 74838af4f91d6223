//! The host of a run: wall clock, run ids, the acting user and the identity of the machine.
//!
//! Runs take all of that from a [`Host`] value. The functions of this module read the host that this process runs on.

use std::fs::File;
use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use converger_core::apply::{BootId, RunId};
use converger_core::policy::MachineIdentity;
use converger_engine::clock::{Clock as _, SystemClock};

use crate::error::RuntimeError;
use crate::machine;

/// The acting user and machine, for people who read the journal later.
pub fn actor() -> String {
    // Others choose these names: only one line of bounded length is kept.
    let fit = |text: &str| text.trim().chars().filter(|character| !character.is_control()).take(NAME_CHARS_MAX).collect::<String>();
    let read_variable = |name: &str| std::env::var(name).ok().map(|value| fit(&value)).filter(|value| !value.trim().is_empty());
    let id = rustix::process::getuid().as_raw();
    let named = || name_of(id, &std::fs::read_to_string("/etc/passwd").unwrap_or_default()).map(|name| fit(&name));
    // The system decides who acts. A different name in the environment is kept beside it: anyone can set that.
    let own = named().unwrap_or_else(|| format!("uid:{id}"));
    let user = match read_variable("USER").or_else(|| read_variable("LOGNAME")) {
        Some(claimed) if claimed != own => format!("{own}(as {claimed})"),
        _ => own,
    };
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").map(|name| fit(&name)).ok();
    host.filter(|host| !host.is_empty()).map_or(user.clone(), |host| format!("{user}@{host}"))
}

/// The name of a user in a list in the format of /etc/passwd.
fn name_of(id: u32, list: &str) -> Option<String> {
    let rows = list.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let mut named = rows.filter(|row| row.get(2).is_some_and(|own| own.parse() == Ok(id)));
    named.find_map(|row| row.first().filter(|name| !name.trim().is_empty()).map(|name| (*name).to_owned()))
}

/// The most characters of a user or machine name that are kept.
const NAME_CHARS_MAX: usize = 200;

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemClock.now_ms()
}

/// A random number of the kernel, for unique names.
///
/// # Errors
/// The kernel returns none.
pub fn random() -> Result<u64, String> {
    let mut bytes = [0; 8];
    let read = File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes));
    read.map(|()| u64::from_ne_bytes(bytes)).map_err(|error| format!("cannot read a random number from /dev/urandom: {error}"))
}

/// What a run takes from the machine and the user, passed in so that a caller controls it: wall clock, run ids, acting user, machine identity.
///
/// Clones share a manual clock and the count of run ids.
#[derive(Clone, Debug)]
pub struct Host {
    /// The wall clock.
    pub clock: WallClock,
    /// The ids of new runs.
    pub ids: RunIds,
    /// The acting user and machine, for what this process does without a request of a person, such as binding a name to a cluster.
    pub actor: Box<str>,
    /// The identity of this machine, whose own guest is never stopped (G3).
    pub machine: MachineSource,
}

impl Host {
    /// The host that this process runs on.
    #[must_use]
    pub fn system() -> Self {
        Self { clock: WallClock::System, ids: RunIds::Random, actor: actor().into(), machine: MachineSource::System }
    }

    /// Milliseconds since 1970.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// The id of a new run: the time and a number.
    ///
    /// # Errors
    /// The kernel returns no random number, or the clock is out of range.
    pub(crate) fn new_run_id(&self) -> Result<RunId, RuntimeError> {
        let number = self.ids.next_number().map_err(RuntimeError::failed)?;
        RunId::new(&format!("{:x}-{:08x}", self.now_ms() / 1000, number & u64::from(u32::MAX)))
            .ok_or_else(|| RuntimeError::failed("the clock of this machine is out of range"))
    }

    pub(crate) fn machine_identity(&self) -> MachineIdentity {
        match &self.machine {
            MachineSource::System => machine::read_machine_identity(),
            MachineSource::Fixed(identity) => identity.clone(),
        }
    }

    /// The boot of this machine, if known.
    pub(crate) fn boot(&self) -> Option<BootId> {
        SystemClock.uptime().map(|uptime| uptime.boot)
    }
}

/// A wall clock.
#[derive(Clone, Debug)]
pub enum WallClock {
    /// The clock of this machine.
    System,
    /// A clock that the caller advances.
    Manual(ManualClock),
}

impl WallClock {
    /// Milliseconds since 1970.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        match self {
            Self::System => now_ms(),
            Self::Manual(clock) => clock.now_ms(),
        }
    }
}

/// A clock that stands still until it is advanced. Clones share the time.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// A clock that shows this time, in milliseconds since 1970.
    #[must_use]
    pub fn new(now_ms: u64) -> Self {
        Self(Arc::new(AtomicU64::new(now_ms)))
    }

    /// Advances the clock.
    pub fn advance_ms(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }

    fn now_ms(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// Where the ids of new runs come from.
#[derive(Clone, Debug)]
pub enum RunIds {
    /// Random numbers of the kernel.
    Random,
    /// Consecutive numbers. They are unique only within one state directory that nothing else writes to.
    Counted(Arc<AtomicU64>),
}

impl RunIds {
    /// Consecutive numbers from this one on.
    #[must_use]
    pub fn counted_from(first: u64) -> Self {
        Self::Counted(Arc::new(AtomicU64::new(first)))
    }

    fn next_number(&self) -> Result<u64, String> {
        match self {
            Self::Random => random(),
            Self::Counted(next) => Ok(next.fetch_add(1, Ordering::SeqCst)),
        }
    }
}

/// Where the identity of this machine comes from.
#[derive(Clone, Debug)]
pub enum MachineSource {
    /// It is read for each plan: links come and go.
    System,
    /// This identity.
    Fixed(MachineIdentity),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_user_name_by_id_and_ignores_malformed_lines() {
        let list = "root:x:0:0:root:/root:/bin/bash\n:x:7:7::/:\n# a comment\nann:x:1000:1000:Ann:/srv/ann:/bin/sh\n";
        let name = |id| name_of(id, list);
        assert_eq!((name(0).as_deref(), name(1000).as_deref()), (Some("root"), Some("ann")));
        assert_eq!((name(7), name(100), name(10_000)), (None, None, None));
    }
}
