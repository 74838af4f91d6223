//! Disk sizes: conversion between text and bytes, in the largest exact unit.
//!
//! Does not use floats; `1.5G` is computed in thousandths.

const UNITS: &[(char, u64)] = &[('T', 1 << 40), ('G', 1 << 30), ('M', 1 << 20), ('K', 1 << 10)];

/// Parses a text such as `32G`, `1.5G` or `4096` to bytes.
pub(crate) fn parse(text: &str) -> Option<u64> {
    let unit = text.chars().last().and_then(|last| UNITS.iter().find(|(letter, _)| *letter == last));
    let digits = unit.map_or(text, |(letter, _)| text.strip_suffix(*letter).unwrap_or(text));
    parse_scaled(digits, unit.map_or(1, |(_, bytes)| *bytes))
}

/// Parses GiB, the unit of a request for a new disk (`dir1:32`), to bytes.
pub(crate) fn parse_gibibytes(text: &str) -> Option<u64> {
    parse_scaled(text, 1 << 30)
}

/// Parses MiB, the unit of memory, to bytes.
pub(crate) fn parse_mebibytes(text: &str) -> Option<u64> {
    parse_scaled(text, 1 << 20)
}

fn parse_scaled(digits: &str, unit: u64) -> Option<u64> {
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let whole = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    if part.is_empty() {
        return Some(whole);
    }
    let thousandths: u64 = format!("{part:0<3}").get(..3)?.parse().ok()?;
    whole.checked_add(unit.checked_mul(thousandths)? / 1_000)
}

/// `34359738368` becomes `32G`, `1610612736` becomes `1536M`.
pub(crate) fn format_size(bytes: u64) -> String {
    let exact = UNITS.iter().rev().take_while(|(_, unit)| bytes != 0 && bytes.is_multiple_of(*unit)).last();
    exact.map_or_else(|| bytes.to_string(), |(letter, unit)| format!("{}{letter}", bytes / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_printed_in_the_largest_exact_unit() {
        for (text, printed) in [("32G", "32G"), ("1.5G", "1536M"), ("1024G", "1T"), ("4M", "4M"), ("1000", "1000"), ("4096", "4K")] {
            assert_eq!(parse(text).map(format_size).as_deref(), Some(printed), "{text}");
        }
    }

    #[test]
    fn invalid_sizes_are_rejected() {
        for wrong in ["", "G", "x", "1X", "99999999999999999999T"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
