//! What people should know about a reading: kept in it, shown with it and with every plan on it, and never decided by.
//!
//! What never enters: anything that a plan could depend on. That stands in the rows.

use serde::Serialize;

use crate::document::{Diagnostic, Reader, Source, Stop as End, quoted};
use crate::guest::Vmid;

/// Something that was not as it should be while reading. Members stand in the order of their names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Note {
    /// The word for it, such as `pin-mismatch` or `not-permitted`.
    pub code: Box<str>,
    /// The guest, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest: Option<Vmid>,
    /// What to do about it.
    pub remedy: Box<str>,
    /// What was seen; words of others may be in it.
    pub text: Box<str>,
}

const KEYS: [&str; 4] = ["code", "guest", "remedy", "text"];

/// Reads one note onto the others.
pub(super) fn read<'t, S: Source<'t>>(reader: &mut Reader<'t, S>, notes: &mut Vec<Note>) -> Result<(), End> {
    let (mut code, mut guest, mut remedy, mut text) = (None, None, None, None);
    let seen = reader.fields("a note", &KEYS, |reader, key, _| match key {
        0 => word(reader).map(|word| code = word),
        1 => reader.integer("`guest`", u64::from(Vmid::MIN), u64::from(Vmid::MAX)).map(|id| guest = id.and_then(|(id, _)| Vmid::new(id))),
        2 => super::parse::text(reader, "`remedy`").map(|own| remedy = own),
        _ => super::parse::text(reader, "`text`").map(|own| text = own),
    })?;
    let Some(seen) = seen else { return Ok(()) };
    reader.required(&seen, "a note", &KEYS, &[0, 2, 3])?;
    if let (Some(code), Some(remedy), Some(text)) = (code, remedy, text) {
        notes.push(Note { code, guest, remedy, text });
    }
    Ok(())
}

fn word<'t, S: Source<'t>>(reader: &mut Reader<'t, S>) -> Result<Option<Box<str>>, End> {
    let Some((found, span)) = reader.text("`code`")? else { return Ok(None) };
    if super::parse::is_cause(&found) {
        return Ok(Some(found.into()));
    }
    reader.refuse(Diagnostic::new(span, format!("{} is not a code", quoted(&found))).help("use lower-case words joined by `-`"))
}

#[cfg(test)]
mod tests {
    use crate::artifact;
    use crate::desired::Scope;
    use crate::guest::Vmid;
    use crate::observe::{self, InScope, Observation};

    fn with(notes: &str) -> String {
        format!(
            r#"{{"complete":true,"environment":"lab","guests":[],"nodes":[],{notes}"quorate":true,"schema":"converger.observation/1"}}"#
        )
    }

    fn written(observation: &Observation) -> String {
        serde_json::to_string(observation).expect("serialises")
    }

    const ALL: &str = r#""notes":[{"code":"pin-mismatch","remedy":"compare","text":"pve1:8006: another"},{"code":"hidden","guest":103,"remedy":"r","text":"t"}],"#;

    #[test]
    fn notes_are_read_back_as_they_were_and_change_no_digest() {
        let plain = observe::parse(with("").as_bytes()).expect("a reading");
        let noted = observe::parse(with(ALL).as_bytes()).expect("a reading");
        assert_eq!(noted.notes.len(), 2);
        assert_eq!((written(&plain), written(&noted)), (with(""), with(ALL)));
        let digest = |own: &Observation| artifact::Digest::of(&InScope(own)).expect("serialises");
        assert_eq!(digest(&plain), digest(&noted));
    }

    #[test]
    fn a_note_about_a_guest_outside_of_the_scope_is_dropped_with_it() {
        let noted = observe::parse(with(ALL).as_bytes()).expect("a reading");
        let codes = |ids: &[u64]| {
            let scoped = noted.clone().within(&Scope::new(ids.iter().filter_map(|id| Vmid::new(*id)).collect()));
            scoped.notes.iter().map(|note| note.code.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(codes(&[103]), ["pin-mismatch", "hidden"]);
        assert_eq!(codes(&[104]), ["pin-mismatch"]);
    }

    #[test]
    fn a_note_that_is_none_is_refused() {
        for bad in [
            r#""notes":{},"#,
            r#""notes":[{"code":"Not A Code","remedy":"","text":""}],"#,
            r#""notes":[{"code":"a","text":""}],"#,
            r#""notes":[{"code":"a","guest":1,"remedy":"","text":""}],"#,
            r#""notes":[{"code":"a","remedy":"","text":"","more":1}],"#,
        ] {
            assert!(observe::parse(with(bad).as_bytes()).is_err(), "{bad}");
        }
    }
}
