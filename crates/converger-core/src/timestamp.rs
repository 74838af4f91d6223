//! Timestamps as written in artifacts: UTC in seconds, such as `2026-11-15T12:00:00Z`. Callers read the clock and pass the time in.

/// Formats seconds since 1970 in UTC, such as `2026-11-15T12:00:00Z`.
#[must_use]
pub fn format_timestamp(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil_from_days(days);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// The date in UTC, such as `2026-11-15`.
#[must_use]
pub fn format_date(seconds: u64) -> String {
    format_timestamp(seconds).chars().take_while(|own| *own != 'T').collect()
}

/// Parses text in the format of [`format_timestamp`] to seconds since 1970.
#[must_use]
pub fn parse_timestamp(text: &str) -> Option<u64> {
    let text: &[u8; TIMESTAMP_TEMPLATE.len()] = text.as_bytes().try_into().ok()?;
    let is_formed = text.iter().zip(TIMESTAMP_TEMPLATE).all(|(own, form)| if *form == b'0' { own.is_ascii_digit() } else { own == form });
    if !is_formed {
        return None;
    }
    let number = |from: usize, digits: usize| {
        text.iter().skip(from).take(digits).fold(0, |number, digit| number * 10 + u64::from(digit.wrapping_sub(b'0')))
    };
    let (date, [hour, minute, second]) = ([number(0, 4), number(5, 2), number(8, 2)], [number(11, 2), number(14, 2), number(17, 2)]);
    let seconds = seconds_from_civil(date, [hour, minute, second])?;
    // The conversion accepts February 30 and second 60 by carrying over; `format_timestamp` never writes them, so reject them.
    (civil_from_days(seconds / 86_400) == date.into() && second < 60).then_some(seconds)
}

/// The format of [`format_timestamp`]; `0` means any digit.
const TIMESTAMP_TEMPLATE: &[u8; 20] = b"0000-00-00T00:00:00Z";

/// Seconds from 1970 to a date and time in UTC.
#[must_use]
pub fn seconds_from_civil([year, month, day]: [u64; 3], [hour, minute, second]: [u64; 3]) -> Option<u64> {
    let is_date = (1970..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    let is_time = hour < 24 && minute < 60 && second <= 60;
    (is_date && is_time).then(|| days_from_civil(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second)
}

/// The date of a day since 1970. Counts years from March, so that the leap day is the last day of a year.
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    const ERA: u64 = 146_097;
    let shifted = days + 719_468;
    let (era, day) = (shifted / ERA, shifted % ERA);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let march_month = (5 * of_year + 2) / 153;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, of_year - (153 * march_month + 2) / 5 + 1)
}

/// Days from 1970 to a date; the inverse of [`civil_from_days`].
fn days_from_civil(year: u64, month: u64, day: u64) -> u64 {
    let year = year - u64::from(month <= 2);
    let (era, of_era) = (year / 400, year % 400);
    let march_month = (month + 9) % 12;
    let of_year = (153 * march_month + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_utc_and_read_back() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_794_770_467, "2026-11-15T19:21:07Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(format_timestamp(seconds), text);
            assert_eq!(parse_timestamp(text), Some(seconds));
        }
        for bad in [
            "",
            "2026-11-15",
            "2026-11-15T19:21:07",
            "2026-11-15T19:21:07+00:00",
            "2026-02-30T00:00:00Z",
            "26-11-15T19:21:07Z",
            "2026-1-15T1:1:7Z",
            "2026-11-15 19:21:07Z",
            "2026-+1-15T19:21:07Z",
            "2026-11-15T23:59:60Z",
            "2026-11-15T24:00:00Z",
            "1969-12-31T23:59:59Z",
            "2026-11-15T19:21:0\u{e9}",
        ] {
            assert_eq!(parse_timestamp(bad), None, "{bad}");
        }
        for day in (0..60_000).step_by(17) {
            let (year, month, date) = civil_from_days(day);
            assert_eq!(days_from_civil(year, month, date), day, "{year}-{month}-{date}");
        }
    }
}
