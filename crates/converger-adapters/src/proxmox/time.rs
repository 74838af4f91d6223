//! Times as people, servers and certificates write them. The clock itself is read outside and handed in.

use std::time::{SystemTime, UNIX_EPOCH};

/// The time in UTC, as `2026-11-15T12:00:00Z`.
pub(super) fn timestamp(time: SystemTime) -> String {
    written(since_1970(time))
}

/// Seconds since 1970 on a clock that people set.
pub(super) fn since_1970(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The day in UTC, as `2026-11-15`.
pub(super) fn date(seconds: u64) -> String {
    written(seconds).chars().take_while(|own| *own != 'T').collect()
}

fn written(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// The date of a day since 1970, by counting in years that begin in March: then the leap day is the last of its year.
fn civil(days: u64) -> (u64, u64, u64) {
    const ERA: u64 = 146_097;
    let shifted = days + 719_468;
    let (era, day) = (shifted / ERA, shifted % ERA);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let march_month = (5 * of_year + 2) / 153;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, of_year - (153 * march_month + 2) / 5 + 1)
}

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// The seconds since 1970 of a `Date` header, such as `Sun, 15 Nov 2026 19:27:48 GMT`.
pub(super) fn of_header(text: &str) -> Option<u64> {
    let words: Vec<&str> = text.split(' ').collect();
    let &[_, day, month, year, time, "GMT"] = words.as_slice() else { return None };
    let month = MONTHS.iter().position(|own| *own == month)? as u64 + 1;
    let (day, year): (u64, u64) = (day.parse().ok()?, year.parse().ok()?);
    let parts: Vec<u64> = time.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let &[hour, minute, second] = parts.as_slice() else { return None };
    civil_secs([year, month, day], [hour, minute, second])
}

/// The seconds from 1970 to a date and time of day in UTC.
pub(super) fn civil_secs([year, month, day]: [u64; 3], [hour, minute, second]: [u64; 3]) -> Option<u64> {
    let is_date = (1970..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    let is_time = hour < 24 && minute < 60 && second <= 60;
    (is_date && is_time).then(|| days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second)
}

/// The days from 1970 to a date: [`civil`] the other way round.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let year = year - u64::from(month <= 2);
    let (era, of_era) = (year / 400, year % 400);
    let march_month = (month + 9) % 12;
    let of_year = (153 * march_month + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// By how many seconds a server's clock is ahead of ours, as far as its header tells.
pub(super) fn ahead_secs(header: &str, now: SystemTime) -> Option<i64> {
    let theirs = i64::try_from(of_header(header)?).ok()?;
    let ours = i64::try_from(now.duration_since(UNIX_EPOCH).ok()?.as_secs()).ok()?;
    Some(theirs - ours)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_are_written_in_utc() {
        let at = |seconds| timestamp(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_794_770_467), "2026-11-15T19:21:07Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
    }

    #[test]
    fn dates_of_headers_are_read_back() {
        assert_eq!(of_header("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(of_header("Sun, 15 Nov 2026 19:21:07 GMT"), Some(1_794_770_467));
        assert_eq!(of_header("Tue, 29 Feb 2000 00:00:00 GMT"), Some(951_782_400));
        for bad in ["", "Sun, 15 Nov 2026 19:21:07", "Sun, 15 Foo 2026 19:21:07 GMT", "Sun, 15 Nov 1026 19:21:07 GMT", "a b c d e GMT"] {
            assert_eq!(of_header(bad), None, "{bad}");
        }
        for day in (0..60_000).step_by(17) {
            let (year, month, date) = civil(day);
            assert_eq!(days(year, month, date), day, "{year}-{month}-{date}");
        }
    }

    #[test]
    fn clocks_are_compared() {
        let now = UNIX_EPOCH + Duration::from_secs(1_794_770_460);
        assert_eq!(ahead_secs("Sun, 15 Nov 2026 19:21:07 GMT", now), Some(7));
        assert_eq!(ahead_secs("Sun, 15 Nov 2026 19:20:00 GMT", now), Some(-60));
    }
}
