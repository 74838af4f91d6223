//! The host of this process: its wall clock, random numbers and the acting user. No other module of this crate reads them.

use std::fs::File;
use std::io::Read as _;

use converger_core::apply::RunId;
use converger_engine::clock::{Clock as _, SystemClock};

use crate::error::{RuntimeError, RuntimeFault};

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

/// A unique run id: the time and a random number.
///
/// # Errors
/// The kernel returns no random number, or the clock is out of range.
pub fn new_run_id() -> Result<RunId, RuntimeError> {
    let failed = |message: String| RuntimeError::Failed(RuntimeFault::new(message));
    let random = random().map_err(failed)?;
    RunId::new(&format!("{:x}-{:08x}", now_ms() / 1000, random & u64::from(u32::MAX)))
        .ok_or_else(|| failed("the clock of this machine is out of range".to_owned()))
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
