//! That nothing ran twice: counted from the lab's record, against the number of steps that were planned.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use converger_lab::RequestRecord;

/// The table of changes. An error is the same table with what is wrong.
pub(super) fn check_changes(changes: &[RequestRecord], steps: u64) -> Result<String, String> {
    let mut counts: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for change in changes {
        *counts.entry((&change.path, &change.method)).or_default() += 1;
    }
    let mut text = String::new();
    for ((path, method), count) in &counts {
        let times = if *count == 1 { "once".to_owned() } else { format!("{count} times") };
        let _ = writeln!(text, "  {times:<8} {method:<4} {}", path.trim_start_matches("/api2/extjs"));
    }
    let sent = u64::try_from(changes.len()).unwrap_or(u64::MAX);
    let _ = writeln!(text, "The first plan had {steps} steps, and the lab was asked for {sent} changes.");
    let is_once = counts.values().all(|count| *count == 1) && sent == steps && steps > 0;
    if is_once { Ok(text) } else { Err(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(path: &str) -> RequestRecord {
        let (entry, user) = (String::new(), String::new());
        RequestRecord { at_ms: 0, entry, method: "POST".into(), path: path.into(), user, status: 200 }
    }

    #[test]
    fn repeated_or_missing_change_fails_the_check() {
        assert!(check_changes(&[change("/a"), change("/b")], 2).is_ok());
        assert!(check_changes(&[change("/a"), change("/a")], 2).is_err(), "one ran twice");
        assert!(check_changes(&[change("/a")], 2).is_err(), "one never ran");
        assert!(check_changes(&[change("/a"), change("/b"), change("/c")], 2).is_err(), "one was never planned");
        assert!(check_changes(&[], 0).is_err(), "nothing ran at all");
    }
}
