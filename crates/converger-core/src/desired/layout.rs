//! Where the keys that tell guests apart stand in a text, so that birth marks can be written beside them.
//!
//! What never enters: the meaning of what is written there. The text has been parsed before, and only places are taken.

use super::parse::{GUEST_KEYS, KEYS, vmid};
use crate::document::{Decode, Diagnostics, Notation, Reader, Source, Span, Stop as End, decode};
use crate::guest::Vmid;
use crate::marks;

/// A key and its value, as far as they are written within one scalar each.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) key: Span,
    pub(super) value: Span,
}

/// One guest in the text.
pub(super) struct Place {
    pub(super) vmid: Vmid,
    /// Where its map begins.
    pub(super) map: Span,
    pub(super) id: Entry,
    pub(super) kind: Option<Entry>,
    pub(super) name: Option<Entry>,
    pub(super) identity: Option<Marks>,
}

/// The birth marks of one guest in the text, in the order of [`marks::KEYS`].
pub(super) struct Marks {
    pub(super) map: Span,
    pub(super) entries: [Option<Entry>; 4],
}

/// The guests of a text that has no faults, in the order in which they stand there.
pub(super) fn of(bytes: &[u8], notation: Notation) -> Result<Vec<Place>, Diagnostics> {
    decode(bytes, notation, File)
}

struct File;

impl Decode<Vec<Place>> for File {
    fn decode<'t, S: Source<'t>>(self, reader: &mut Reader<'t, S>) -> Result<Vec<Place>, End> {
        let mut places = Vec::new();
        reader.fields("the file", &KEYS, |reader, key, _| match key {
            2 => reader.items("guests", |reader| guest(reader, &mut places)).map(|_| ()),
            _ => reader.skip_value(),
        })?;
        Ok(places)
    }
}

fn guest<'t, S: Source<'t>>(reader: &mut Reader<'t, S>, places: &mut Vec<Place>) -> Result<(), End> {
    let (mut id, mut kind, mut name, mut identity) = (None, None, None, None);
    let seen = reader.fields("a guest", &GUEST_KEYS, |reader, key, span| {
        match key {
            0 => id = vmid(reader, "`vmid`")?.map(|(vmid, value)| (vmid, Entry { key: span, value })),
            1 => kind = entry(reader, span)?,
            2 => name = entry(reader, span)?,
            9 => identity = identity_of(reader)?,
            _ => reader.skip_value()?,
        }
        Ok(())
    })?;
    if let (Some(seen), Some((vmid, id))) = (seen, id) {
        places.push(Place { vmid, map: seen.span, id, kind, name, identity });
    }
    Ok(())
}

fn identity_of<'t, S: Source<'t>>(reader: &mut Reader<'t, S>) -> Result<Option<Marks>, End> {
    let mut entries = [None; 4];
    let seen = reader.fields("`identity`", &marks::KEYS, |reader, key, span| {
        let found = entry(reader, span)?;
        if let Some(slot) = entries.get_mut(key) {
            *slot = found;
        }
        Ok(())
    })?;
    Ok(seen.map(|seen| Marks { map: seen.span, entries }))
}

fn entry<'t, S: Source<'t>>(reader: &mut Reader<'t, S>, key: Span) -> Result<Option<Entry>, End> {
    Ok(reader.scalar("a value", "a scalar")?.map(|(_, value)| Entry { key, value }))
}
