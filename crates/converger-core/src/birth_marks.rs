//! Birth marks as written in desired.yaml and current.json. Both use the same form and this code.
//!
//! Which marks a guest can have depends on its kind, and the kind may come after the marks in the file.

use crate::artifact::INTEGER_MAX;
use crate::document::{DecodeAborted as End, Diagnostic, DocumentReader, EventSource, Span, nearest_word, unknown_key_fault};
use crate::guest::{GuestIdentity, GuestKind};

/// The keys of the marks.
pub(crate) const KEYS: [&str; 4] = ["uuid", "ctime", "rootfs", "mac"];

/// A mark as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MarkValue {
    Text(Box<str>),
    Number(u64),
}

/// The marks of an identity with their keys, in the order in which they are written.
pub(crate) fn identity_entries(identity: &GuestIdentity) -> [(&'static str, Option<MarkValue>); 2] {
    let text = |mark: &Option<Box<str>>| mark.clone().map(MarkValue::Text);
    match identity {
        GuestIdentity::Qemu { uuid, ctime } => [("uuid", text(uuid)), ("ctime", ctime.map(MarkValue::Number))],
        GuestIdentity::Lxc { rootfs, mac } => [("rootfs", text(rootfs)), ("mac", text(mac))],
    }
}

/// The marks that were given, in the order of `KEYS`, with their positions.
#[derive(Default)]
pub(crate) struct MarksDraft {
    marks: [Option<(Box<str>, Span)>; 4],
    has_any_key: bool,
}

pub(crate) fn read_marks<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<MarksDraft>, End> {
    let mut marks = MarksDraft::default();
    let on_unknown = |reader: &mut DocumentReader<'t, S>, key: &str, span| {
        let fault = unknown_key_fault("`identity`", &KEYS, key, span);
        let is_near = nearest_word(key, &KEYS).is_some();
        reader.report(if is_near { fault } else { fault.with_help("known keys: uuid, ctime (qemu guests); rootfs, mac (lxc guests)") })
    };
    let seen = reader.read_fields_and_unknown("`identity`", &KEYS, on_unknown, |reader, key, span| {
        let mark: Option<Box<str>> = match key {
            1 => reader.read_integer("`ctime`", 0, INTEGER_MAX)?.map(|(number, _)| number.to_string().into()),
            _ => match reader.read_text("a birth mark")? {
                // An observer that writes an empty string for "none" would make every guest match.
                Some((text, span)) if text.trim().is_empty() => reader.report_none(Diagnostic::new(span, "a birth mark is empty"))?,
                mark => mark.map(|(text, _)| text.into()),
            },
        };
        marks.has_any_key = true;
        if let Some(slot) = marks.marks.get_mut(key) {
            *slot = mark.map(|mark| (mark, span));
        }
        Ok(())
    })?;
    Ok(seen.map(|_| marks))
}

impl MarksDraft {
    /// Whether any mark was given, even a faulty one.
    pub(crate) fn has_any_key(&self) -> bool {
        self.has_any_key
    }

    /// The identity of a guest of this kind; marks of the other kind are reported.
    pub(crate) fn into_identity<'t, S: EventSource<'t>>(
        self,
        kind: GuestKind,
        reader: &mut DocumentReader<'t, S>,
    ) -> Result<GuestIdentity, End> {
        let [uuid, ctime, rootfs, mac] = self.marks;
        let (foreign, help) = match kind {
            GuestKind::Qemu => ([("rootfs", &rootfs), ("mac", &mac)], "qemu guests have `uuid` and `ctime`"),
            GuestKind::Lxc => ([("uuid", &uuid), ("ctime", &ctime)], "lxc guests have `rootfs` and `mac`"),
        };
        for (key, mark) in foreign {
            if let Some((_, span)) = mark {
                reader.report(Diagnostic::new(*span, format!("`{key}` is not a birth mark of {kind} guests")).with_help(help))?;
            }
        }
        let text = |mark: Option<(Box<str>, Span)>| mark.map(|(text, _)| text);
        Ok(match kind {
            GuestKind::Qemu => GuestIdentity::Qemu {
                uuid: text(uuid).map(|uuid| uuid.to_ascii_lowercase().into()),
                ctime: text(ctime).and_then(|ctime| ctime.parse().ok()),
            },
            GuestKind::Lxc => GuestIdentity::Lxc { rootfs: text(rootfs), mac: text(mac).map(|mac| mac.to_ascii_uppercase().into()) },
        })
    }
}
