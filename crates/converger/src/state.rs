//! Where the program keeps what must survive it: the state directory, the store in it, and who is acting.
//!
//! What never enters here: what is written into the store.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use converger_core::failure::Code;
use converger_engine::clock::{Clock as _, SystemClock};
use converger_store::{Fatal, OpenError, Settings, SqliteStore};

use crate::exit::End;
use crate::progress;

/// The state directory: as configured, or where the system keeps such things for this user.
///
/// # Errors
/// Nothing says where it is.
pub(crate) fn directory(configured: Option<&Path>) -> Result<PathBuf, String> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // What is not absolute there is to be ignored, as those who made that name say; and a service may have several directories.
    let home = || set("XDG_STATE_HOME").filter(|home| home.is_absolute());
    if configured.is_none() && set("STATE_DIRECTORY").is_some_and(|several| several.as_os_str().as_encoded_bytes().contains(&b':')) {
        return Err("STATE_DIRECTORY names several directories; write `[store]` with `directory = \"...\"` into converger.toml".to_owned());
    }
    let own = || home().or_else(|| set("HOME").map(|home| home.join(".local/state"))).map(|home| home.join("converger"));
    configured.map(Path::to_owned).or_else(|| set("STATE_DIRECTORY")).or_else(own).ok_or_else(|| {
        "nothing says where the state is kept; write `[store]` with `directory = \"...\"` into converger.toml, or set HOME".to_owned()
    })
}

/// Opens the store. A disk in doubt ends the process at once: what was acknowledged must be true (S18).
///
/// # Errors
/// What is wrong with the directory or the file.
pub(crate) fn open(directory: &Path) -> Result<SqliteStore, OpenError> {
    if let Some(parent) = directory.parent() {
        // Only the last part is made by the store, with its own permissions; what leads there is made here.
        let _ = std::fs::create_dir_all(parent);
    }
    SqliteStore::open(
        directory,
        Settings::new(|fatal| {
            // At once, and without tidying up: whatever is written from here on could be taken for true.
            progress::settle(Duration::from_millis(300));
            // Standard error may be gone too, and that must not keep it from ending.
            let code = Code::JournalUnwritable.word();
            let (what, help) = match fatal {
                Fatal::Doubt(cause) => (format!("the disk of the state is in doubt ({cause})"), "look at the disk and make room on it"),
                Fatal::Gone(cause) => (format!("what is written would be lost ({cause})"), "put the state back as it was, where it was"),
            };
            let _ = writeln!(io::stderr(), "error[{code}]: {what}; the program ends now");
            let _ = writeln!(io::stderr(), "help: {help}; the next apply finds out what became of what was under way");
            std::process::exit(i32::from(End::Failed.number()));
        }),
    )
}

/// Who is acting: the user and the machine, for people who read the journal later.
pub(crate) fn actor() -> String {
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
pub(crate) fn now_ms() -> u64 {
    SystemClock.now_ms()
}

/// What the system calls random, for names that nobody else has.
///
/// # Errors
/// It has none.
pub(crate) fn random() -> Result<u64, String> {
    let mut bytes = [0; 8];
    let read = File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes));
    read.map(|()| u64::from_ne_bytes(bytes)).map_err(|error| format!("no random number can be had: {error}"))
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
