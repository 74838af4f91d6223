//! The time that a reading says it was taken at, as seconds since 1970. The clock itself is never read here.

/// The seconds since 1970 of `2026-11-15T12:00:00Z`: UTC only, fractions of a second are borne.
pub(super) fn seconds(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let time = time.split_once('.').map_or(Some(time), |(whole, part)| is_digits(part).then_some(whole))?;
    let [hour, minute, second] = numbers(time, ':', [2, 2, 2])?;
    let is_date = year >= 1970 && (1..=12).contains(&month) && (1..=days_of(year, month)).contains(&day);
    let is_time = hour < 24 && minute < 60 && second <= 60;
    (is_date && is_time).then(|| (days_before(year, month) + day - 1) * 86_400 + hour * 3600 + minute * 60 + second)
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Three numbers of exactly so many digits.
fn numbers(text: &str, separator: char, digits: [usize; 3]) -> Option<[u64; 3]> {
    let mut parts = text.split(separator);
    let mut found = [0; 3];
    for (own, length) in found.iter_mut().zip(digits) {
        *own = parts.next().filter(|part| part.len() == length && is_digits(part))?.parse().ok()?;
    }
    parts.next().is_none().then_some(found)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_of(year: u64, month: u64) -> u64 {
    match month {
        2 => 28 + u64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// The days from 1970 to the first of a month.
fn days_before(year: u64, month: u64) -> u64 {
    let years: u64 = (1970..year).map(|year| 365 + u64::from(is_leap(year))).sum();
    years + (1..month).map(|month| days_of(year, month)).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::seconds;

    #[test]
    fn times_are_counted_from_1970() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T12:00:00Z", 951_825_600),
            ("2026-11-15T12:00:00Z", 1_794_744_000),
            ("2026-11-15T12:00:00.25Z", 1_794_744_000),
            ("2100-03-01T00:00:00Z", 4_107_542_400),
        ] {
            assert_eq!(seconds(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_time_in_utc_has_no_age() {
        for text in [
            "",
            "2026-11-15",
            "2026-11-15T12:00:00",
            "2026-11-15T12:00:00+01:00",
            "2026-11-15 12:00:00Z",
            "2026-02-29T12:00:00Z",
            "2026-13-01T12:00:00Z",
            "1969-12-31T23:59:59Z",
            "2026-11-15T24:00:00Z",
            "2026-11-15T12:00:00.Z",
            "2026-11-15T12:00Z",
            "26-11-15T12:00:00Z",
            "2026-11-15T12:00:00ZZ",
            "+026-11-15T12:00:00Z",
        ] {
            assert_eq!(seconds(text), None, "{text}");
        }
    }
}
