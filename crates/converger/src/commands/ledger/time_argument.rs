//! Parses the time arguments of ledger commands.

use converger_core::timestamp;

use super::super::CommandError;

/// Parses a day, a time in UTC, or an age in days, into milliseconds since 1970.
pub(super) fn parse_time_ms(flag: &str, text: &str, now_ms: u64) -> Result<u64, CommandError> {
    const DAY_MS: u64 = 86_400_000;
    let ago = || text.strip_suffix('d')?.parse::<u64>().ok()?.checked_mul(DAY_MS).map(|ago| now_ms.saturating_sub(ago));
    let time =
        || timestamp::parse_timestamp(text).or_else(|| timestamp::parse_timestamp(&format!("{text}T00:00:00Z"))).map(|secs| secs * 1000);
    let wrong = |why: String| Err(CommandError::input_error(why).with_help("such as 2026-06-30, 2026-06-30T12:00:00Z or 90d"));
    match ago().or_else(time) {
        Some(when) if when <= now_ms => Ok(when),
        Some(_) => wrong(format!("{flag} {} is in the future", text.escape_debug())),
        None => wrong(format!("{flag} `{}` is not a day, time or age", text.escape_debug())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_a_day_a_time_or_an_age_but_no_future() {
        let now_ms = 1_794_770_467_000;
        let read = |text| parse_time_ms("--before", text, now_ms).ok();
        assert_eq!(read("2026-11-15T19:21:07Z"), Some(now_ms));
        assert_eq!(read("2026-11-15"), Some(1_794_700_800_000));
        assert_eq!(read("0d"), Some(now_ms));
        assert_eq!(read("2d"), Some(now_ms - 2 * 86_400_000));
        for wrong in ["", "d", "-1d", "1.5d", "2026-11-16", "yesterday", "2026-02-30", "99999999999999999999d"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
