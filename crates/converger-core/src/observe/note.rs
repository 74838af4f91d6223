//! Notes about an observation for people: stored in it, displayed with it and with every plan on it. They do not affect decisions.
//!
//! Must not contain anything that a plan could depend on; that belongs into the rows.

use serde::Serialize;

use crate::document::{DecodeAborted as End, Diagnostic, DocumentReader, EventSource, quote};
use crate::guest::Vmid;

/// Something unexpected during an observation. Members are sorted by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Note {
    /// The code, such as `pin-mismatch` or `not-permitted`.
    pub code: Box<str>,
    /// The guest, if it concerns one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest: Option<Vmid>,
    /// What to do about it.
    pub remedy: Box<str>,
    /// What was observed. May contain untrusted text.
    pub text: Box<str>,
}

const KEYS: [&str; 4] = ["code", "guest", "remedy", "text"];

/// Reads one note and appends it.
pub(super) fn read_note<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>, notes: &mut Vec<Note>) -> Result<(), End> {
    let (mut code, mut guest, mut remedy, mut text) = (None, None, None, None);
    let seen = reader.read_fields("a note", &KEYS, |reader, key, _| match key {
        0 => read_code(reader).map(|value| code = value),
        1 => reader
            .read_integer("`guest`", u64::from(Vmid::MIN), u64::from(Vmid::MAX))
            .map(|id| guest = id.and_then(|(id, _)| Vmid::new(id))),
        2 => super::parse::read_text(reader, "`remedy`").map(|own| remedy = own),
        _ => super::parse::read_text(reader, "`text`").map(|own| text = own),
    })?;
    let Some(seen) = seen else { return Ok(()) };
    reader.require_keys(&seen, "a note", &KEYS, &[0, 2, 3])?;
    if let (Some(code), Some(remedy), Some(text)) = (code, remedy, text) {
        notes.push(Note { code, guest, remedy, text });
    }
    Ok(())
}

fn read_code<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<Box<str>>, End> {
    let Some((found, span)) = reader.read_text("`code`")? else { return Ok(None) };
    if super::parse::is_cause(&found) {
        return Ok(Some(found.into()));
    }
    reader.report_none(Diagnostic::new(span, format!("{} is not a code", quote(&found))).with_help("use lower-case words joined by `-`"))
}

#[cfg(test)]
mod tests {
    use crate::artifact;
    use crate::desired::Scope;
    use crate::guest::Vmid;
    use crate::observe::{self, Observation, PlanView};

    fn observation_json(notes: &str) -> String {
        format!(
            r#"{{"complete":true,"environment":"lab","guests":[],"nodes":[],{notes}"quorate":true,"schema":"converger.observation/1"}}"#
        )
    }

    fn to_json(observation: &Observation) -> String {
        serde_json::to_string(observation).expect("serialises")
    }

    const ALL: &str = r#""notes":[{"code":"pin-mismatch","remedy":"compare","text":"pve1:8006: another"},{"code":"hidden","guest":103,"remedy":"r","text":"t"}],"#;

    #[test]
    fn notes_round_trip_and_change_no_digest() {
        let plain = observe::parse(observation_json("").as_bytes()).expect("a reading");
        let noted = observe::parse(observation_json(ALL).as_bytes()).expect("a reading");
        assert_eq!(noted.notes.len(), 2);
        assert_eq!((to_json(&plain), to_json(&noted)), (observation_json(""), observation_json(ALL)));
        let digest = |own: &Observation| artifact::Digest::of_value(&PlanView(own)).expect("serialises");
        assert_eq!(digest(&plain), digest(&noted));
    }

    #[test]
    fn notes_about_guests_outside_the_scope_are_dropped() {
        let noted = observe::parse(observation_json(ALL).as_bytes()).expect("a reading");
        let codes = |ids: &[u64]| {
            let scoped = noted.clone().into_scoped(&Scope::new(ids.iter().filter_map(|id| Vmid::new(*id)).collect()));
            scoped.notes.iter().map(|note| note.code.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(codes(&[103]), ["pin-mismatch", "hidden"]);
        assert_eq!(codes(&[104]), ["pin-mismatch"]);
    }

    #[test]
    fn rejects_malformed_notes() {
        for bad in [
            r#""notes":{},"#,
            r#""notes":[{"code":"Not A Code","remedy":"","text":""}],"#,
            r#""notes":[{"code":"a","text":""}],"#,
            r#""notes":[{"code":"a","guest":1,"remedy":"","text":""}],"#,
            r#""notes":[{"code":"a","remedy":"","text":"","more":1}],"#,
        ] {
            assert!(observe::parse(observation_json(bad).as_bytes()).is_err(), "{bad}");
        }
    }
}
