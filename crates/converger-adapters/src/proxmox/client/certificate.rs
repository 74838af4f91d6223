//! The validity period of a certificate, for diagnosis. Trust is decided in `trust`.
//!
//! It parses only the part of X.509 up to the dates; each element is bounded by the enclosing one.

use converger_core::timestamp::seconds_from_civil;

/// The validity period of a certificate, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct CertificateValidity {
    pub from_secs: u64,
    pub until_secs: u64,
}

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The validity period of a DER certificate; `None` if it is not a certificate.
pub(super) fn parse_validity(der: &[u8]) -> Option<CertificateValidity> {
    let (certificate, _) = read_element(der, SEQUENCE)?;
    let (mut rest, _) = read_element(certificate, SEQUENCE)?;
    if rest.first() == Some(&VERSION) {
        (_, rest) = read_element(rest, VERSION)?;
    }
    // The serial number, the signature algorithm and the issuer precede the dates.
    for tag in [INTEGER, SEQUENCE, SEQUENCE] {
        (_, rest) = read_element(rest, tag)?;
    }
    let (dates, _) = read_element(rest, SEQUENCE)?;
    let (from_secs, dates) = read_time(dates)?;
    let (until_secs, _) = read_time(dates)?;
    Some(CertificateValidity { from_secs, until_secs })
}

/// Returns the content of the leading element with this tag, and the bytes after it.
fn read_element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (first, rest) = bytes.split_first()?;
    let (length, rest) = read_length(rest)?;
    (*first == tag).then_some(())?;
    rest.split_at_checked(length)
}

/// Reads a DER length of at most four bytes.
fn read_length(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (first, rest) = bytes.split_first()?;
    let count = usize::from(first & 0x7f);
    if first & 0x80 == 0 {
        return Some((count, rest));
    }
    let (digits, rest) = rest.split_at_checked(count).filter(|_| (1..=4).contains(&count))?;
    let length = digits.iter().fold(0_u32, |sum, digit| sum << 8 | u32::from(*digit));
    Some((usize::try_from(length).ok()?, rest))
}

/// Reads `YYMMDDhhmmssZ`, or the same with a year of four digits, as seconds since 1970.
fn read_time(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let is_short = bytes.first() == Some(&UTC_TIME);
    let (content, rest) = read_element(bytes, if is_short { UTC_TIME } else { GENERALIZED_TIME })?;
    let text = std::str::from_utf8(content).ok()?.strip_suffix('Z')?;
    let (year, text) = text.split_at_checked(if is_short { 2 } else { 4 })?;
    let year: u64 = parse_digits(year)?;
    // Years of two digits range from 1950 to 2049.
    let year = year
        + if !is_short {
            0
        } else if year < 50 {
            2000
        } else {
            1900
        };
    let part = |index: usize| parse_digits(text.get(2 * index..2 * index + 2)?);
    let secs = seconds_from_civil([year, part(0)?, part(1)?], [part(2)?, part(3)?, part(4)?])?;
    Some((secs, rest))
}

fn parse_digits(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn self_signed_certificate(not_before: (i32, u8, u8), not_after: (i32, u8, u8)) -> Vec<u8> {
        let mut params = rcgen::CertificateParams::new(vec!["pve1.example".to_owned()]).expect("parameters");
        params.not_before = rcgen::date_time_ymd(not_before.0, not_before.1, not_before.2);
        params.not_after = rcgen::date_time_ymd(not_after.0, not_after.1, not_after.2);
        let key = rcgen::KeyPair::generate().expect("a key");
        params.self_signed(&key).expect("signed").der().to_vec()
    }

    #[test]
    fn reads_the_dates_of_a_certificate() {
        let own = parse_validity(&self_signed_certificate((2026, 11, 15), (2028, 2, 29))).expect("dates");
        assert_eq!(own, CertificateValidity { from_secs: 1_794_700_800, until_secs: 1_835_395_200 });
        let far = parse_validity(&self_signed_certificate((1975, 1, 1), (2062, 1, 1))).expect("dates");
        assert_eq!(
            far,
            CertificateValidity { from_secs: 157_766_400, until_secs: 2_903_299_200 },
            "a date after 2049 has a year of four digits"
        );
    }

    #[test]
    fn damaged_certificate_has_no_dates_and_does_not_panic() {
        let whole = self_signed_certificate((2026, 11, 15), (2028, 11, 15));
        assert_eq!(parse_validity(b"not a certificate"), None);
        for end in 0..120 {
            assert_eq!(parse_validity(&whole[..end]), None, "{end} bytes");
        }
        for index in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[index] ^= 0xff;
            // The result does not matter; it must not panic.
            let _ = parse_validity(&damaged);
        }
        assert_eq!(read_length(&[0x85, 1, 1, 1, 1, 1]), None, "a length of five bytes");
        assert_eq!(read_length(&[0x80]), None, "an indefinite length");
    }
}
