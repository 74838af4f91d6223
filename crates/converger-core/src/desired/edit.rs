//! Writes birth marks into the text of a declared state and leaves every other byte as it stands.
//!
//! Marks are inserted behind the keys that tell a guest apart, in the style of their surroundings; marks that are there are
//! replaced one by one. The text that comes out is parsed again, and if it declares anything else than the same guests with these
//! marks, nothing is given out: a layout that is not understood is a fault and never a damaged file.
//!
//! What never enters: which marks a guest has, and whether they may be written.

use std::collections::BTreeMap;
use std::ops::Range;

use super::layout::{self, Entry, Place};
use super::{Desired, parse};
use crate::document::{Diagnostic, Diagnostics, Notation, Span, utf8, yaml_quoted, yaml_text};
use crate::guest::{Identity, Vmid};
use crate::marks;

pub(super) fn with_marks(bytes: &[u8], notation: Notation, marks: &BTreeMap<Vmid, Identity>) -> Result<String, Diagnostics> {
    let desired = parse(bytes, notation)?;
    let text = utf8(bytes)?;
    let mut guests: Vec<Guest<'_>> = Vec::new();
    for place in layout::of(bytes, notation)? {
        let (Some(wanted), Some((index, own))) = (marks.get(&place.vmid), desired.find(place.vmid)) else { continue };
        let page = Page { text, notation, is_compact: slice(text, place.id.key.end, place.id.value.start) == ":" };
        let edits = page.guest(&place, own.identity.as_deref(), wanted).ok_or_else(|| foreign(notation, &place, wanted))?;
        guests.push(Guest { place, wanted, index, edits });
    }
    let written = |count: usize| {
        let (chosen, _) = guests.split_at_checked(count)?;
        let text = applied(text, chosen);
        is_as_wanted(&desired, chosen, &text, notation).then_some(text)
    };
    written(guests.len()).ok_or_else(|| {
        let counts: Vec<usize> = (1..=guests.len()).collect();
        let first = counts.partition_point(|count| written(*count).is_some());
        guests.get(first).map_or_else(Diagnostics::default, |guest| foreign(notation, &guest.place, guest.wanted))
    })
}

/// Birth marks as a map of YAML within one line.
pub(super) fn marks_text(identity: &Identity) -> String {
    Page { text: "", notation: Notation::Yaml, is_compact: false }.map(identity, " ")
}

/// A guest whose marks are written.
struct Guest<'w> {
    place: Place,
    wanted: &'w Identity,
    index: usize,
    edits: Vec<Edit>,
}

/// A part of the text that is replaced.
struct Edit {
    range: Range<usize>,
    text: String,
}

fn applied(text: &str, guests: &[Guest<'_>]) -> String {
    let mut edits: Vec<&Edit> = guests.iter().flat_map(|guest| &guest.edits).collect();
    edits.sort_by_key(|edit| (edit.range.start, edit.range.end));
    let mut out = String::with_capacity(text.len() + edits.iter().map(|edit| edit.text.len()).sum::<usize>());
    let mut at = 0;
    for edit in edits {
        out.push_str(text.get(at..edit.range.start).unwrap_or(""));
        out.push_str(&edit.text);
        at = edit.range.end;
    }
    out.push_str(text.get(at..).unwrap_or(""));
    out
}

/// Whether the new text declares what the old one did, with these marks and nothing else.
fn is_as_wanted(desired: &Desired, guests: &[Guest<'_>], text: &str, notation: Notation) -> bool {
    let mut expected = desired.clone();
    for guest in guests {
        if let Some(own) = expected.guests.get_mut(guest.index) {
            own.identity = Some(Box::new(guest.wanted.clone()));
        }
    }
    parse(text.as_bytes(), notation).is_ok_and(|found| found == expected)
}

fn foreign(notation: Notation, place: &Place, wanted: &Identity) -> Diagnostics {
    let page = Page { text: "", notation, is_compact: false };
    let message = format!("the birth marks of guest {} cannot be written into a layout like this", place.vmid);
    let help = format!("write them by hand: {}", page.pair("identity", &page.map(wanted, " ")));
    Diagnostic::new(place.id.value, message).help(help).into()
}

/// The text that is edited, and how it is written.
#[derive(Clone, Copy)]
struct Page<'t> {
    text: &'t str,
    notation: Notation,
    /// JSON without blanks.
    is_compact: bool,
}

impl Page<'_> {
    /// What to edit so that a guest has these marks; `None` where its layout is not understood.
    fn guest(&self, place: &Place, pinned: Option<&Identity>, wanted: &Identity) -> Option<Vec<Edit>> {
        if let (Some(found), Some(pinned)) = (&place.identity, pinned) {
            return self.identity(found, pinned, wanted);
        }
        // The id is a bare number and always does; a name or a kind could be a block of lines.
        let beside = [place.name, place.kind].into_iter().flatten().find(|entry| self.is_simple(entry)).unwrap_or(place.id);
        let keys = [Some(place.id), place.kind, place.name];
        let margin = if slice(self.text, place.map.start, place.map.end + 1).starts_with("{ ") { " " } else { "" };
        let margin = if self.is_flow(place.map) { margin } else { " " };
        let pair = self.pair("identity", &self.map(wanted, margin));
        Some(vec![self.insert(place.map, &keys, &beside, &pair)])
    }

    /// Each mark that differs is replaced, those that are not there are added, and those that the guest lacks are removed.
    fn identity(&self, found: &layout::Marks, pinned: &Identity, wanted: &Identity) -> Option<Vec<Edit>> {
        let old = marks::written(pinned);
        let new = marks::written(wanted);
        let entry =
            |key: &str| marks::KEYS.iter().position(|own| *own == key).and_then(|index| found.entries.get(index).copied().flatten());
        let mut edits = Vec::new();
        let (mut kept, mut lost, mut gained) = (None, None, None);
        for ((key, old), (_, new)) in old.into_iter().zip(new) {
            match (entry(key), new) {
                (Some(entry), Some(new)) => {
                    kept = Some(entry);
                    if old.as_ref() != Some(&new) {
                        edits.push(self.replace(&entry, &new)?);
                    }
                }
                (Some(entry), None) => lost = Some(entry),
                (None, Some(new)) => gained = Some(self.pair(key, &self.mark(&new))),
                (None, None) => {}
            }
        }
        match (kept, lost, gained) {
            (_, None, None) => {}
            (Some(kept), None, Some(pair)) if self.is_simple(&kept) => edits.push(self.insert(found.map, &found.entries, &kept, &pair)),
            (Some(kept), Some(lost), None) => edits.extend(self.remove(found.map, &lost, &kept)?),
            (None, Some(lost), Some(text)) if self.is_simple(&lost) => {
                edits.push(Edit { range: index(lost.key.start)..index(lost.value.end), text });
            }
            _ => return None,
        }
        Some(edits)
    }

    /// Another value in the quotes of the old one.
    fn replace(&self, entry: &Entry, mark: &marks::Mark) -> Option<Edit> {
        let old = slice(self.text, entry.value.start, entry.value.end);
        let text = match mark {
            marks::Mark::Text(text) if old.starts_with('"') && self.notation == Notation::Yaml => yaml_quoted(text),
            marks::Mark::Text(text) if old.starts_with('\'') && yaml_text(text) == **text => format!("'{text}'"),
            mark => self.mark(mark),
        };
        self.is_simple(entry).then(|| Edit { range: index(entry.value.start)..index(entry.value.end), text })
    }

    /// A key with its value behind another one, on a line of its own where that one is.
    fn insert(&self, map: Span, keys: &[Option<Entry>], beside: &Entry, pair: &str) -> Edit {
        let end = index(beside.value.end);
        if self.is_flow(map) {
            let gap = match (self.own_line(beside), self.is_compact) {
                (Some(gap), _) => gap,
                (None, true) => String::new(),
                (None, false) => " ".to_owned(),
            };
            return Edit { range: end..end, text: format!(",{gap}{pair}") };
        }
        let line_end = self.line_end(end);
        let columns = keys.iter().flatten().map(|entry| self.column(index(entry.key.start)));
        let margin = " ".repeat(columns.min().unwrap_or(0));
        Edit { range: line_end..line_end, text: format!("{}{margin}{pair}", self.line_break(line_end)) }
    }

    /// What makes a new line like that of an entry in braces, if the entry begins one and no comment follows on it: the comment is
    /// about the entry and stays beside it.
    fn own_line(&self, entry: &Entry) -> Option<String> {
        // Only the blanks before the key are looked at: a file may be one line of any length.
        let before = self.text.get(..index(entry.key.start))?;
        let line_start = before.trim_end_matches([' ', '\t']).len();
        let last = line_start.checked_sub(1).filter(|last| matches!(self.text.as_bytes().get(*last), Some(b'\n' | b'\r')))?;
        let end = index(entry.value.end);
        let rest = self.text.get(end..self.line_end(end))?;
        let margin = before.get(line_start..)?;
        (!rest.contains('#')).then(|| format!("{}{margin}", self.line_break(last)))
    }

    /// Takes a key and its value out; comments stay.
    fn remove(&self, map: Span, lost: &Entry, kept: &Entry) -> Option<Vec<Edit>> {
        let (start, end) = (index(lost.key.start), index(lost.value.end));
        let nothing = |range: Range<usize>| Edit { range, text: String::new() };
        if !self.is_simple(lost) {
            return None;
        }
        if self.is_flow(map) {
            let is_first = lost.key.start < kept.key.start;
            let gap = if is_first { end..index(kept.key.start) } else { index(kept.value.end)..start };
            let between = self.text.get(gap.clone())?;
            let comma = gap.start + (between.len() - between.trim_start().strip_prefix(',')?.len());
            return Some(match (is_first, between.contains('#')) {
                (true, false) => vec![nothing(start..gap.end)],
                (false, false) => vec![nothing(gap.start..end)],
                (true, true) => vec![nothing(start..comma)],
                (false, true) => vec![nothing(gap.start..comma), nothing(start..end)],
            });
        }
        let (line_start, line_end) = (self.line_start(start), self.line_end(end));
        let is_blank = |range: Range<usize>| self.text.get(range).is_some_and(|text| text.trim().is_empty());
        match (is_blank(line_start..start), is_blank(end..line_end)) {
            (false, _) => None,
            (true, false) => Some(vec![nothing(start..end)]),
            // The break before the line goes with it, so that a last line without one leaves none.
            (true, true) => Some(vec![nothing(line_start.checked_sub(self.line_break(line_start.checked_sub(1)?).len())?..line_end)]),
        }
    }

    /// `{ uuid: ..., ctime: ... }`, in the notation of the file.
    fn map(&self, wanted: &Identity, margin: &str) -> String {
        let pairs = marks::written(wanted).into_iter().filter_map(|(key, mark)| Some(self.pair(key, &self.mark(&mark?))));
        let pairs: Vec<String> = pairs.collect();
        let margin = if self.notation == Notation::Json { "" } else { margin };
        format!("{{{margin}{}{margin}}}", pairs.join(if self.is_compact { "," } else { ", " }))
    }

    fn pair(&self, key: &str, value: &str) -> String {
        match (self.notation, self.is_compact) {
            (Notation::Yaml, _) => format!("{key}: {value}"),
            (Notation::Json, false) => format!("\"{key}\": {value}"),
            (Notation::Json, true) => format!("\"{key}\":{value}"),
        }
    }

    fn mark(&self, mark: &marks::Mark) -> String {
        match (mark, self.notation) {
            (marks::Mark::Number(number), _) => number.to_string(),
            (marks::Mark::Text(text), Notation::Yaml) => yaml_text(text),
            (marks::Mark::Text(text), Notation::Json) => serde_json::Value::from(&**text).to_string(),
        }
    }

    /// Whether key and value are joined by a colon, and the value is no block of lines, whose place is not known exactly.
    fn is_simple(&self, entry: &Entry) -> bool {
        let between = slice(self.text, entry.key.end, entry.value.start).trim_start();
        between.strip_prefix(':').is_some_and(|rest| !rest.trim_start().starts_with(['|', '>']))
    }

    /// A map in braces; the map of a block begins with its first key.
    fn is_flow(&self, map: Span) -> bool {
        self.text.get(index(map.start)..).is_some_and(|rest| rest.starts_with('{'))
    }

    fn line_start(&self, at: usize) -> usize {
        self.text.get(..at).and_then(|before| before.rfind(['\n', '\r'])).map_or(0, |line_break| line_break + 1)
    }

    fn line_end(&self, at: usize) -> usize {
        self.text.get(at..).and_then(|rest| rest.find(['\n', '\r'])).map_or(self.text.len(), |offset| at + offset)
    }

    /// The line break at a place, or the one that the text uses where there is none.
    fn line_break(&self, at: usize) -> &'static str {
        let first = self.text.find(['\n', '\r']).unwrap_or(at);
        let at = if self.text.get(at..).is_some_and(|rest| rest.starts_with(['\n', '\r'])) { at } else { first };
        let (before, behind) = self.text.split_at_checked(at).unwrap_or(("", ""));
        match behind.as_bytes() {
            [b'\r', b'\n', ..] => "\r\n",
            [b'\r', ..] => "\r",
            [b'\n', ..] if before.ends_with('\r') => "\r\n",
            _ => "\n",
        }
    }

    fn column(&self, at: usize) -> usize {
        self.text.get(self.line_start(at)..at).map_or(0, |before| before.chars().count())
    }
}

fn slice(text: &str, start: u32, end: u32) -> &str {
    text.get(index(start)..index(end)).unwrap_or("")
}

fn index(offset: u32) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}
