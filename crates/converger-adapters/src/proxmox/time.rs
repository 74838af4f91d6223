//! Time formats of people, servers and certificates. The caller reads the clock and passes the time in.

use std::time::{SystemTime, UNIX_EPOCH};

use converger_core::timestamp::{self, seconds_from_civil};

/// The time in UTC, as `2026-11-15T12:00:00Z`.
pub(super) fn timestamp(time: SystemTime) -> String {
    timestamp::format_timestamp(epoch_secs(time))
}

/// Seconds since 1970; 0 for a clock that is set to an earlier time.
pub(super) fn epoch_secs(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Seconds since 1970 of a `Date` header such as `Sun, 15 Nov 2026 19:27:48 GMT`.
pub(super) fn parse_date_header(text: &str) -> Option<u64> {
    let words: Vec<&str> = text.split(' ').collect();
    let &[_, day, month, year, time, "GMT"] = words.as_slice() else { return None };
    let month = MONTHS.iter().position(|own| *own == month)? as u64 + 1;
    let (day, year): (u64, u64) = (day.parse().ok()?, year.parse().ok()?);
    let parts: Vec<u64> = time.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let &[hour, minute, second] = parts.as_slice() else { return None };
    seconds_from_civil([year, month, day], [hour, minute, second])
}

/// How many seconds the server's clock is ahead of ours according to its `Date` header.
pub(super) fn ahead_secs(header: &str, now: SystemTime) -> Option<i64> {
    Some(signed_difference_secs(parse_date_header(header)?, now.duration_since(UNIX_EPOCH).ok()?.as_secs()))
}

/// How many seconds `remote_secs` is after `local_secs`, without overflow.
pub(super) fn signed_difference_secs(remote_secs: u64, local_secs: u64) -> i64 {
    let signed = |secs: u64| i64::try_from(secs).unwrap_or(i64::MAX);
    signed(remote_secs.saturating_sub(local_secs)) - signed(local_secs.saturating_sub(remote_secs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn parses_date_headers() {
        assert_eq!(parse_date_header("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(parse_date_header("Sun, 15 Nov 2026 19:21:07 GMT"), Some(1_794_770_467));
        assert_eq!(parse_date_header("Tue, 29 Feb 2000 00:00:00 GMT"), Some(951_782_400));
        for bad in ["", "Sun, 15 Nov 2026 19:21:07", "Sun, 15 Foo 2026 19:21:07 GMT", "Sun, 15 Nov 1026 19:21:07 GMT", "a b c d e GMT"] {
            assert_eq!(parse_date_header(bad), None, "{bad}");
        }
    }

    #[test]
    fn compares_clocks() {
        let now = UNIX_EPOCH + Duration::from_secs(1_794_770_460);
        assert_eq!(ahead_secs("Sun, 15 Nov 2026 19:21:07 GMT", now), Some(7));
        assert_eq!(ahead_secs("Sun, 15 Nov 2026 19:20:00 GMT", now), Some(-60));
        assert_eq!(
            (signed_difference_secs(u64::MAX, 7), signed_difference_secs(7, u64::MAX)),
            (i64::MAX, -i64::MAX),
            "an absurd clock is still ahead or behind"
        );
    }
}
