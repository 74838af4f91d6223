//! Ids of guests on the command line: single ids and ranges, joined by commas (`100-120,130`).
//!
//! The one parser for `--only` and `--vmid`. Whether the guests exist or are declared is decided by the commands.

use std::fmt;

use converger_core::desired::{GuestSelection, VmidRange};
use converger_core::guest::Vmid;

/// The most ids of one range. A larger one is a mistake, such as a missing comma.
const RANGE_IDS_MAX: u32 = 10_000;

/// One item of a list: an id, or a range of ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdItem {
    Id(Vmid),
    Range(VmidRange),
}

impl fmt::Display for IdItem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(vmid) => write!(out, "{vmid}"),
            Self::Range(range) => write!(out, "{range}"),
        }
    }
}

/// The guests that a list of items selects.
pub(crate) fn select_guests(items: &[IdItem]) -> GuestSelection {
    let (mut ids, mut ranges) = (Vec::new(), Vec::new());
    for item in items {
        match item {
            IdItem::Id(vmid) => ids.push(*vmid),
            IdItem::Range(range) => ranges.push(*range),
        }
    }
    GuestSelection::new(ids, ranges)
}

/// Parses one item of a list.
pub(super) fn parse_id_item(text: &str) -> Result<IdItem, String> {
    let Some((first, last)) = text.split_once('-') else { return parse_vmid(text).map(IdItem::Id) };
    let range = VmidRange::new(parse_vmid(first)?, parse_vmid(last)?)
        .ok_or_else(|| format!("the range is reversed; write the lower id first: {last}-{first}"))?;
    if range.count() > RANGE_IDS_MAX {
        return Err(format!(
            "the range has {} ids, and {RANGE_IDS_MAX} is the most; use several ranges, or a comma between ids",
            range.count()
        ));
    }
    Ok(IdItem::Range(range))
}

/// Parses the id of one guest.
pub(super) fn parse_vmid(text: &str) -> Result<Vmid, String> {
    // `str::parse` accepts a sign, which no id has.
    let digits = Some(text).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let number = digits.and_then(|digits| digits.parse().ok()).and_then(Vmid::new);
    number.ok_or_else(|| format!("a guest id is a number between {} and {}", Vmid::MIN, Vmid::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_list(text: &str) -> Result<GuestSelection, String> {
        let items = text.split(',').map(parse_id_item).collect::<Result<Vec<_>, _>>();
        items.map(|items| select_guests(&items))
    }

    fn ids(numbers: &[u64]) -> Vec<Vmid> {
        numbers.iter().filter_map(|number| Vmid::new(*number)).collect()
    }

    #[test]
    fn refuses_lists_that_are_no_ids() {
        let bounds = "a number between 100 and 999999999";
        for text in
            ["", "99", "1000000000", "web", "-", "100-", "-100", "100-web", "100--120", "100-120-130", " 100", "+100", "100,,101", "100,"]
        {
            assert!(parse_list(text).is_err_and(|why| why.contains(bounds)), "{text}: {:?}", parse_list(text));
        }
        for text in ["99-120", "100-1000000000", "99999999999999999999-100"] {
            assert!(parse_list(text).is_err_and(|why| why.contains(bounds)), "{text}");
        }
        assert_eq!(parse_list("120-100"), Err("the range is reversed; write the lower id first: 100-120".to_owned()));
    }

    #[test]
    fn refuses_a_range_that_is_surely_a_mistake() {
        assert!(parse_list("100-10099").is_ok());
        for text in ["100-10100", "100-999999999"] {
            assert!(parse_list(text).is_err_and(|why| why.contains("10000 is the most")), "{text}");
        }
    }

    #[test]
    fn ids_and_ranges_become_one_selection() {
        let selection = parse_list("100-120,130,110-125,105").expect("a list");
        assert_eq!((selection.named_ids().ids(), selection.ranges().len()), (&ids(&[105, 130])[..], 1));
        assert_eq!(selection.ranges()[0].to_string(), "100-125");
        assert_eq!(selection.resolve(ids(&[100, 121, 126])).ids(), ids(&[100, 105, 121, 130]));
    }
}
