//! Locates the keys that identify guests in a text, so that birth marks can be inserted beside them.
//!
//! Must not interpret values: the text was parsed before, and only positions are read.

use super::parse::{GUEST_KEYS, KEYS, read_vmid};
use crate::birth_marks;
use crate::document::{DecodeAborted as End, Diagnostics, DocumentDecoder, DocumentReader, EventSource, Notation, Span, decode};
use crate::guest::Vmid;

/// The spans of a key and its scalar value.
#[derive(Clone, Copy)]
pub(super) struct KeyValueSpan {
    pub(super) key: Span,
    pub(super) value: Span,
}

/// One guest in the text.
pub(super) struct GuestLayout {
    pub(super) vmid: Vmid,
    /// The span at which its map begins.
    pub(super) map: Span,
    pub(super) id: KeyValueSpan,
    pub(super) kind: Option<KeyValueSpan>,
    pub(super) name: Option<KeyValueSpan>,
    pub(super) identity: Option<IdentityLayout>,
}

/// The birth marks of one guest in the text, in the order of [`birth_marks::KEYS`].
pub(super) struct IdentityLayout {
    pub(super) map: Span,
    pub(super) entries: [Option<KeyValueSpan>; 4],
}

/// The guests of a text without faults, in file order.
pub(super) fn locate_guests(bytes: &[u8], notation: Notation) -> Result<Vec<GuestLayout>, Diagnostics> {
    decode(bytes, notation, LayoutDecoder)
}

struct LayoutDecoder;

impl DocumentDecoder<Vec<GuestLayout>> for LayoutDecoder {
    fn decode<'t, S: EventSource<'t>>(self, reader: &mut DocumentReader<'t, S>) -> Result<Vec<GuestLayout>, End> {
        let mut layouts = Vec::new();
        reader.read_fields("the file", &KEYS, |reader, key, _| match key {
            2 => reader.read_items("guests", |reader| read_guest(reader, &mut layouts)).map(|_| ()),
            _ => reader.skip_value(),
        })?;
        Ok(layouts)
    }
}

fn read_guest<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>, layouts: &mut Vec<GuestLayout>) -> Result<(), End> {
    let (mut id, mut kind, mut name, mut identity) = (None, None, None, None);
    let seen = reader.read_fields("a guest", &GUEST_KEYS, |reader, key, span| {
        match key {
            0 => id = read_vmid(reader, "`vmid`")?.map(|(vmid, value)| (vmid, KeyValueSpan { key: span, value })),
            1 => kind = read_entry(reader, span)?,
            2 => name = read_entry(reader, span)?,
            9 => identity = read_identity(reader)?,
            _ => reader.skip_value()?,
        }
        Ok(())
    })?;
    if let (Some(seen), Some((vmid, id))) = (seen, id) {
        layouts.push(GuestLayout { vmid, map: seen.span, id, kind, name, identity });
    }
    Ok(())
}

fn read_identity<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<IdentityLayout>, End> {
    let mut entries = [None; 4];
    let seen = reader.read_fields("`identity`", &birth_marks::KEYS, |reader, key, span| {
        let found = read_entry(reader, span)?;
        if let Some(slot) = entries.get_mut(key) {
            *slot = found;
        }
        Ok(())
    })?;
    Ok(seen.map(|seen| IdentityLayout { map: seen.span, entries }))
}

fn read_entry<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>, key: Span) -> Result<Option<KeyValueSpan>, End> {
    Ok(reader.read_scalar("a value", "a scalar")?.map(|(_, value)| KeyValueSpan { key, value }))
}
