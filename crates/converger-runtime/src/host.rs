//! The host of this process: its wall clock, its random numbers and the acting user. Nothing else in this crate reads them.

use std::fs::File;
use std::io::Read as _;

use converger_core::apply::RunId;
use converger_engine::clock::{Clock as _, SystemClock};

use crate::error::{RuntimeError, RuntimeFault};

/// Who is acting: the user and the machine, for people who read the journal later.
pub fn actor() -> String {
    // Whatever stands in these is words of others: a name is one line, and not a page.
    let fit = |text: &str| text.trim().chars().filter(|character| !character.is_control()).take(NAME_CHARS_MAX).collect::<String>();
    let word = |name: &str| std::env::var(name).ok().map(|value| fit(&value)).filter(|value| !value.trim().is_empty());
    let id = rustix::process::getuid().as_raw();
    let named = || name_of(id, &std::fs::read_to_string("/etc/passwd").unwrap_or_default()).map(|name| fit(&name));
    // Who it is the system says. What the environment says instead is kept beside it: anybody can set that.
    let own = named().unwrap_or_else(|| format!("uid:{id}"));
    let user = match word("USER").or_else(|| word("LOGNAME")) {
        Some(claimed) if claimed != own => format!("{own}(as {claimed})"),
        _ => own,
    };
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").map(|name| fit(&name)).ok();
    host.filter(|host| !host.is_empty()).map_or(user.clone(), |host| format!("{user}@{host}"))
}

/// The name of a user in the system's own list: name, password, id, and more, with colons between.
fn name_of(id: u32, list: &str) -> Option<String> {
    let rows = list.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let mut named = rows.filter(|row| row.get(2).is_some_and(|own| own.parse() == Ok(id)));
    named.find_map(|row| row.first().filter(|name| !name.trim().is_empty()).map(|name| (*name).to_owned()))
}

/// The longest name of a user or a machine that is kept.
const NAME_CHARS_MAX: usize = 200;

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemClock.now_ms()
}

/// What the system calls random, for names that nobody else has.
///
/// # Errors
/// It has none.
pub fn random() -> Result<u64, String> {
    let mut bytes = [0; 8];
    let read = File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes));
    read.map(|()| u64::from_ne_bytes(bytes)).map_err(|error| format!("no random number can be had: {error}"))
}

/// An id that no other run has: the time and a random number.
///
/// # Errors
/// The system has no random number, or its clock is out of range.
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
    fn who_has_no_name_around_has_one_in_the_list_of_users() {
        let list = "root:x:0:0:root:/root:/bin/bash\n:x:7:7::/:\n# a line of somebody\nann:x:1000:1000:Ann:/srv/ann:/bin/sh\n";
        let name = |id| name_of(id, list);
        assert_eq!((name(0).as_deref(), name(1000).as_deref()), (Some("root"), Some("ann")));
        assert_eq!((name(7), name(100), name(10_000)), (None, None, None));
    }
}
