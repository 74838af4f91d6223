//! Inserts birth marks into the text of a desired state and keeps every other byte as it is.
//!
//! Marks are inserted after the keys that identify a guest, in the style of their surroundings; existing marks are replaced one by one. The
//! result is parsed again. If it declares anything but the same guests with these marks, it is not returned: a layout that is not
//! understood leads to an error, never to a damaged file.
//!
//! Must not decide which marks a guest has, or whether they may be written.

use std::collections::BTreeMap;
use std::ops::Range;

use super::layout::{self, GuestLayout, KeyValueSpan};
use super::{Desired, parse};
use crate::birth_marks;
use crate::document::{Diagnostic, Diagnostics, Notation, Span, decode_utf8, to_yaml_quoted, to_yaml_scalar};
use crate::guest::{GuestIdentity, Vmid};

pub(super) fn insert_marks(bytes: &[u8], notation: Notation, marks: &BTreeMap<Vmid, GuestIdentity>) -> Result<String, Diagnostics> {
    let desired = parse(bytes, notation)?;
    let text = decode_utf8(bytes)?;
    let mut guests: Vec<GuestEdit<'_>> = Vec::new();
    for guest_layout in layout::locate_guests(bytes, notation)? {
        let (Some(wanted), Some((index, own))) = (marks.get(&guest_layout.vmid), desired.find(guest_layout.vmid)) else { continue };
        let page = EditedText { text, notation, is_compact: slice(text, guest_layout.id.key.end, guest_layout.id.value.start) == ":" };
        let edits =
            page.edit_guest(&guest_layout, own.identity.as_deref(), wanted).ok_or_else(|| layout_fault(notation, &guest_layout, wanted))?;
        guests.push(GuestEdit { layout: guest_layout, wanted, index, edits });
    }
    let written = |count: usize| {
        let (chosen, _) = guests.split_at_checked(count)?;
        let text = apply_edits(text, chosen);
        adds_only_marks(&desired, chosen, &text, notation).then_some(text)
    };
    written(guests.len()).ok_or_else(|| {
        let counts: Vec<usize> = (1..=guests.len()).collect();
        let first = counts.partition_point(|count| written(*count).is_some());
        guests.get(first).map_or_else(Diagnostics::default, |guest| layout_fault(notation, &guest.layout, guest.wanted))
    })
}

/// Formats birth marks as a YAML flow map on one line.
pub(super) fn format_marks(identity: &GuestIdentity) -> String {
    EditedText { text: "", notation: Notation::Yaml, is_compact: false }.format_identity(identity, " ")
}

/// The edits for one guest.
struct GuestEdit<'w> {
    layout: GuestLayout,
    wanted: &'w GuestIdentity,
    index: usize,
    edits: Vec<TextEdit>,
}

/// The replacement of one part of the text.
struct TextEdit {
    range: Range<usize>,
    text: String,
}

fn apply_edits(text: &str, guests: &[GuestEdit<'_>]) -> String {
    let mut edits: Vec<&TextEdit> = guests.iter().flat_map(|guest| &guest.edits).collect();
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

/// Whether the new text declares what the old one did, plus these marks and nothing else.
fn adds_only_marks(desired: &Desired, guests: &[GuestEdit<'_>], text: &str, notation: Notation) -> bool {
    let mut expected = desired.clone();
    for guest in guests {
        if let Some(own) = expected.guests.get_mut(guest.index) {
            own.identity = Some(Box::new(guest.wanted.clone()));
        }
    }
    parse(text.as_bytes(), notation).is_ok_and(|found| found == expected)
}

fn layout_fault(notation: Notation, guest_layout: &GuestLayout, wanted: &GuestIdentity) -> Diagnostics {
    let page = EditedText { text: "", notation, is_compact: false };
    let message = format!("the birth marks of guest {} cannot be written into a layout like this", guest_layout.vmid);
    let help = format!("write them by hand: {}", page.format_pair("identity", &page.format_identity(wanted, " ")));
    Diagnostic::new(guest_layout.id.value, message).with_help(help).into()
}

/// The text to edit, and its style.
#[derive(Clone, Copy)]
struct EditedText<'t> {
    text: &'t str,
    notation: Notation,
    /// Whether it is JSON without whitespace.
    is_compact: bool,
}

impl EditedText<'_> {
    /// The edits that give a guest these marks; `None` if its layout is not understood.
    fn edit_guest(&self, guest_layout: &GuestLayout, pinned: Option<&GuestIdentity>, wanted: &GuestIdentity) -> Option<Vec<TextEdit>> {
        if let (Some(found), Some(pinned)) = (&guest_layout.identity, pinned) {
            return self.edit_identity(found, pinned, wanted);
        }
        // The id is a plain number and always works; a name or a kind could be a block scalar.
        let beside =
            [guest_layout.name, guest_layout.kind].into_iter().flatten().find(|entry| self.is_simple(entry)).unwrap_or(guest_layout.id);
        let keys = [Some(guest_layout.id), guest_layout.kind, guest_layout.name];
        let margin = if slice(self.text, guest_layout.map.start, guest_layout.map.end + 1).starts_with("{ ") { " " } else { "" };
        let margin = if self.is_flow(guest_layout.map) { margin } else { " " };
        let pair = self.format_pair("identity", &self.format_identity(wanted, margin));
        Some(vec![self.insert_pair(guest_layout.map, &keys, &beside, &pair)])
    }

    /// Replaces marks that differ, adds missing ones, and removes those that the guest does not have.
    fn edit_identity(&self, found: &layout::IdentityLayout, pinned: &GuestIdentity, wanted: &GuestIdentity) -> Option<Vec<TextEdit>> {
        let old = birth_marks::identity_entries(pinned);
        let new = birth_marks::identity_entries(wanted);
        let entry =
            |key: &str| birth_marks::KEYS.iter().position(|own| *own == key).and_then(|index| found.entries.get(index).copied().flatten());
        let mut edits = Vec::new();
        let (mut kept_entry, mut removed_entry, mut gained) = (None, None, None);
        for ((key, old), (_, new)) in old.into_iter().zip(new) {
            match (entry(key), new) {
                (Some(entry), Some(new)) => {
                    kept_entry = Some(entry);
                    if old.as_ref() != Some(&new) {
                        edits.push(self.replace_value(&entry, &new)?);
                    }
                }
                (Some(entry), None) => removed_entry = Some(entry),
                (None, Some(new)) => gained = Some(self.format_pair(key, &self.format_mark(&new))),
                (None, None) => {}
            }
        }
        match (kept_entry, removed_entry, gained) {
            (_, None, None) => {}
            (Some(kept_entry), None, Some(pair)) if self.is_simple(&kept_entry) => {
                edits.push(self.insert_pair(found.map, &found.entries, &kept_entry, &pair))
            }
            (Some(kept_entry), Some(removed_entry), None) => edits.extend(self.remove_pair(found.map, &removed_entry, &kept_entry)?),
            (None, Some(removed_entry), Some(text)) if self.is_simple(&removed_entry) => {
                edits.push(TextEdit { range: to_index(removed_entry.key.start)..to_index(removed_entry.value.end), text });
            }
            _ => return None,
        }
        Some(edits)
    }

    /// Replaces a value and keeps its quoting style.
    fn replace_value(&self, entry: &KeyValueSpan, mark: &birth_marks::MarkValue) -> Option<TextEdit> {
        let old = slice(self.text, entry.value.start, entry.value.end);
        let text = match mark {
            birth_marks::MarkValue::Text(text) if old.starts_with('"') && self.notation == Notation::Yaml => to_yaml_quoted(text),
            birth_marks::MarkValue::Text(text) if old.starts_with('\'') && to_yaml_scalar(text) == **text => format!("'{text}'"),
            mark => self.format_mark(mark),
        };
        self.is_simple(entry).then(|| TextEdit { range: to_index(entry.value.start)..to_index(entry.value.end), text })
    }

    /// Inserts a key and its value after another one, on a new line if that one has its own.
    fn insert_pair(&self, map: Span, keys: &[Option<KeyValueSpan>], beside: &KeyValueSpan, pair: &str) -> TextEdit {
        let end = to_index(beside.value.end);
        if self.is_flow(map) {
            let gap = match (self.line_separator(beside), self.is_compact) {
                (Some(gap), _) => gap,
                (None, true) => String::new(),
                (None, false) => " ".to_owned(),
            };
            return TextEdit { range: end..end, text: format!(",{gap}{pair}") };
        }
        let line_end = self.line_end(end);
        let columns = keys.iter().flatten().map(|entry| self.column(to_index(entry.key.start)));
        let margin = " ".repeat(columns.min().unwrap_or(0));
        TextEdit { range: line_end..line_end, text: format!("{}{margin}{pair}", self.line_break(line_end)) }
    }

    /// The line break and indentation for a new line like that of an entry in braces; `None` if the entry does not begin its line, or if a
    /// comment follows it, which belongs to the entry and must stay beside it.
    fn line_separator(&self, entry: &KeyValueSpan) -> Option<String> {
        // Look only at the whitespace before the key: a file may be one very long line.
        let before = self.text.get(..to_index(entry.key.start))?;
        let line_start = before.trim_end_matches([' ', '\t']).len();
        let last = line_start.checked_sub(1).filter(|last| matches!(self.text.as_bytes().get(*last), Some(b'\n' | b'\r')))?;
        let end = to_index(entry.value.end);
        let rest = self.text.get(end..self.line_end(end))?;
        let margin = before.get(line_start..)?;
        (!rest.contains('#')).then(|| format!("{}{margin}", self.line_break(last)))
    }

    /// Removes a key and its value; comments stay.
    fn remove_pair(&self, map: Span, removed_entry: &KeyValueSpan, kept_entry: &KeyValueSpan) -> Option<Vec<TextEdit>> {
        let (start, end) = (to_index(removed_entry.key.start), to_index(removed_entry.value.end));
        let nothing = |range: Range<usize>| TextEdit { range, text: String::new() };
        if !self.is_simple(removed_entry) {
            return None;
        }
        if self.is_flow(map) {
            let is_first = removed_entry.key.start < kept_entry.key.start;
            let gap = if is_first { end..to_index(kept_entry.key.start) } else { to_index(kept_entry.value.end)..start };
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
            // Remove the line break before the line, so that a last line without a line break stays without one.
            (true, true) => Some(vec![nothing(line_start.checked_sub(self.line_break(line_start.checked_sub(1)?).len())?..line_end)]),
        }
    }

    /// `{ uuid: ..., ctime: ... }`, in the notation of the file.
    fn format_identity(&self, wanted: &GuestIdentity, margin: &str) -> String {
        let pairs = birth_marks::identity_entries(wanted)
            .into_iter()
            .filter_map(|(key, mark)| Some(self.format_pair(key, &self.format_mark(&mark?))));
        let pairs: Vec<String> = pairs.collect();
        let margin = if self.notation == Notation::Json { "" } else { margin };
        format!("{{{margin}{}{margin}}}", pairs.join(if self.is_compact { "," } else { ", " }))
    }

    fn format_pair(&self, key: &str, value: &str) -> String {
        match (self.notation, self.is_compact) {
            (Notation::Yaml, _) => format!("{key}: {value}"),
            (Notation::Json, false) => format!("\"{key}\": {value}"),
            (Notation::Json, true) => format!("\"{key}\":{value}"),
        }
    }

    fn format_mark(&self, mark: &birth_marks::MarkValue) -> String {
        match (mark, self.notation) {
            (birth_marks::MarkValue::Number(number), _) => number.to_string(),
            (birth_marks::MarkValue::Text(text), Notation::Yaml) => to_yaml_scalar(text),
            (birth_marks::MarkValue::Text(text), Notation::Json) => serde_json::Value::from(&**text).to_string(),
        }
    }

    /// Whether key and value are joined by a colon and the value is not a block scalar, whose exact span is unknown.
    fn is_simple(&self, entry: &KeyValueSpan) -> bool {
        let between = slice(self.text, entry.key.end, entry.value.start).trim_start();
        between.strip_prefix(':').is_some_and(|rest| !rest.trim_start().starts_with(['|', '>']))
    }

    /// Whether a map is in braces; a block map begins with its first key.
    fn is_flow(&self, map: Span) -> bool {
        self.text.get(to_index(map.start)..).is_some_and(|rest| rest.starts_with('{'))
    }

    fn line_start(&self, at: usize) -> usize {
        self.text.get(..at).and_then(|before| before.rfind(['\n', '\r'])).map_or(0, |line_break| line_break + 1)
    }

    fn line_end(&self, at: usize) -> usize {
        self.text.get(at..).and_then(|rest| rest.find(['\n', '\r'])).map_or(self.text.len(), |offset| at + offset)
    }

    /// The line break at a position, or the one that the text uses if there is none.
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
    text.get(to_index(start)..to_index(end)).unwrap_or("")
}

fn to_index(offset: u32) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}
