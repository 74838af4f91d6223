//! Birth marks as desired.yaml and current.json write them: one form, read once for both.
//!
//! Which marks a guest can have depends on its kind, and the kind may stand behind them in the file.

use crate::artifact::INTEGER_MAX;
use crate::document::{Diagnostic, Reader, Source, Span, Stop as End};
use crate::guest::{Identity, Kind};

/// The keys under which marks are written.
pub(crate) const KEYS: [&str; 4] = ["uuid", "ctime", "rootfs", "mac"];

/// A mark as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    Text(Box<str>),
    Number(u64),
}

/// The marks of a guest of this kind with their keys, in the order in which they are written.
pub(crate) fn written(identity: &Identity) -> [(&'static str, Option<Mark>); 2] {
    let text = |mark: &Option<Box<str>>| mark.clone().map(Mark::Text);
    match identity {
        Identity::Qemu { uuid, ctime } => [("uuid", text(uuid)), ("ctime", ctime.map(Mark::Number))],
        Identity::Lxc { rootfs, mac } => [("rootfs", text(rootfs)), ("mac", text(mac))],
    }
}

/// The marks that were given, in the order of the keys, with their places.
#[derive(Default)]
pub(crate) struct Marks {
    marks: [Option<(Box<str>, Span)>; 4],
    names_any: bool,
}

pub(crate) fn read<'t, S: Source<'t>>(reader: &mut Reader<'t, S>) -> Result<Option<Marks>, End> {
    let mut marks = Marks::default();
    let seen = reader.fields("`identity`", &KEYS, |reader, key, span| {
        let mark: Option<Box<str>> = match key {
            1 => reader.integer("`ctime`", 0, INTEGER_MAX)?.map(|(number, _)| number.to_string().into()),
            _ => match reader.text("a birth mark")? {
                // An observer that writes nothing for "none" would make every guest match.
                Some((text, span)) if text.trim().is_empty() => reader.refuse(Diagnostic::new(span, "a birth mark is empty"))?,
                mark => mark.map(|(text, _)| text.into()),
            },
        };
        marks.names_any = true;
        if let Some(slot) = marks.marks.get_mut(key) {
            *slot = mark.map(|mark| (mark, span));
        }
        Ok(())
    })?;
    Ok(seen.map(|_| marks))
}

impl Marks {
    /// Whether any mark was named, be it a faulty one.
    pub(crate) fn names_any(&self) -> bool {
        self.names_any
    }

    /// The identity of a guest of this kind; marks of the other kind are reported.
    pub(crate) fn of<'t, S: Source<'t>>(self, kind: Kind, reader: &mut Reader<'t, S>) -> Result<Identity, End> {
        let [uuid, ctime, rootfs, mac] = self.marks;
        let (foreign, help) = match kind {
            Kind::Qemu => ([("rootfs", &rootfs), ("mac", &mac)], "qemu guests have `uuid` and `ctime`"),
            Kind::Lxc => ([("uuid", &uuid), ("ctime", &ctime)], "lxc guests have `rootfs` and `mac`"),
        };
        for (key, mark) in foreign {
            if let Some((_, span)) = mark {
                reader.report(Diagnostic::new(*span, format!("`{key}` is not a birth mark of {kind} guests")).help(help))?;
            }
        }
        let text = |mark: Option<(Box<str>, Span)>| mark.map(|(text, _)| text);
        Ok(match kind {
            Kind::Qemu => Identity::Qemu {
                uuid: text(uuid).map(|uuid| uuid.to_ascii_lowercase().into()),
                ctime: text(ctime).and_then(|ctime| ctime.parse().ok()),
            },
            Kind::Lxc => Identity::Lxc { rootfs: text(rootfs), mac: text(mac).map(|mac| mac.to_ascii_uppercase().into()) },
        })
    }
}
