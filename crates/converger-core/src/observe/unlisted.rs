//! Guests that a list lacks although they may exist, with the cause why that is unknown (G2).
//!
//! Guests that are known to be absent are not listed anywhere.

use serde::Serialize;

use super::ObservedGuest;
use super::parse::{read_cause, read_vmid};
use crate::document::{DecodeAborted as End, Diagnostic, DocumentReader, EventSource, Span};
use crate::guest::Vmid;

/// A guest that is not listed and not known to be absent. Members are sorted by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnlistedGuest {
    /// Why it is unknown whether the guest exists.
    pub cause: Box<str>,
    /// Its id.
    pub vmid: Vmid,
}

const KEYS: [&str; 2] = ["cause", "vmid"];

/// Reads one of them and appends it.
pub(super) fn read_unlisted<'t, S: EventSource<'t>>(
    reader: &mut DocumentReader<'t, S>,
    unlisted: &mut Vec<(UnlistedGuest, Span)>,
) -> Result<(), End> {
    let (mut why, mut id) = (None, None);
    let seen = reader.read_fields("a guest that is not listed", &KEYS, |reader, key, _| match key {
        0 => read_cause(reader).map(|value| why = value),
        _ => read_vmid(reader).map(|vmid| id = vmid),
    })?;
    let Some(seen) = seen else { return Ok(()) };
    reader.require_keys(&seen, "a guest that is not listed", &KEYS, &[0, 1])?;
    if let (Some(cause), Some((vmid, span))) = (why, id) {
        unlisted.push((UnlistedGuest { cause, vmid }, span));
    }
    Ok(())
}

/// Checks that each of them has no row, is given once, and that the list is not marked as complete.
pub(super) fn check_unlisted<'t, S: EventSource<'t>>(
    reader: &mut DocumentReader<'t, S>,
    complete: Option<bool>,
    guests: &[ObservedGuest],
    unlisted: &mut [(UnlistedGuest, Span)],
) -> Result<(), End> {
    unlisted.sort_by_key(|(own, span)| (own.vmid, *span));
    let mut before = None;
    for (own, span) in unlisted.iter() {
        let vmid = own.vmid;
        let is_listed = guests.binary_search_by_key(&vmid, |guest| guest.vmid).is_ok();
        let fault = match before.replace(vmid) {
            Some(other) if other == vmid => format!("guest {vmid} is given twice under `unlisted`"),
            _ if is_listed => format!("guest {vmid} is listed and also under `unlisted`"),
            _ if complete == Some(true) => format!("guest {vmid} is under `unlisted`, but the list is marked as complete"),
            _ => continue,
        };
        reader.report(Diagnostic::new(*span, fault).with_help("observe again"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::artifact;
    use crate::desired::Scope;
    use crate::guest::Vmid;
    use crate::observe::{self, Observation, PlanView};

    fn to_json(observation: &Observation) -> String {
        serde_json::to_string(observation).expect("serialises")
    }

    const UNLISTED_JSON: &str = r#""unlisted":[{"cause":"hidden","vmid":104},{"cause":"not-permitted","vmid":105}]"#;

    fn observation_json(complete: bool, guests: &str, unlisted: &str) -> String {
        format!(
            r#"{{"complete":{complete},"environment":"lab","guests":[{guests}],"nodes":[{{"name":"n1","online":true}}],"quorate":true,"schema":"converger.observation/1",{unlisted}}}"#
        )
    }

    #[test]
    fn g2_cause_of_an_unlisted_guest_survives_a_recording() {
        let text = observation_json(false, "", UNLISTED_JSON);
        let observation = observe::parse(text.as_bytes()).expect("a reading");
        assert_eq!(to_json(&observation), text);
        let ids: Vec<Vmid> = [104, 105, 106].into_iter().filter_map(Vmid::new).collect();
        let scoped = observation.clone().into_scoped(&Scope::new(ids.clone()));
        let causes = ids.iter().map(|vmid| match scoped.presence(*vmid, scoped.find(*vmid)) {
            observe::Seen::Unknown(cause) => cause,
            other => panic!("{other:?}"),
        });
        assert_eq!(causes.collect::<Vec<_>>(), ["hidden", "not-permitted", "not-listed"]);
        let digest = |ids: &[Vmid]| {
            artifact::Digest::of_value(&PlanView(&observation.clone().into_scoped(&Scope::new(ids.to_vec())))).expect("serialises")
        };
        assert_ne!(digest(&ids), digest(&ids[2..]), "a plan shows the cause");
        assert_eq!(digest(&ids[2..]), digest(&[]), "g8: nothing outside the scope is part of it");
    }

    #[test]
    fn g2_list_with_unlisted_guests_is_never_complete() {
        let mut observation = observe::parse(observation_json(false, "", UNLISTED_JSON).as_bytes()).expect("a reading");
        observation.complete = true;
        let scope = Scope::new([104].into_iter().filter_map(Vmid::new).collect());
        assert!(!observation.clone().into_scoped(&scope).complete);
        assert!(observation.into_scoped(&Scope::new(vec![])).complete);
    }

    #[test]
    fn rejects_contradictory_unlisted_guests() {
        let row = r#"{"kind":"qemu","name":"a","node":"n1","status":"stopped","vmid":104}"#;
        let duplicate = r#""unlisted":[{"cause":"hidden","vmid":104},{"cause":"hidden","vmid":104}]"#;
        for (bad, expected) in [
            (observation_json(false, row, UNLISTED_JSON), "is listed and also under"),
            (observation_json(true, "", UNLISTED_JSON), "the list is marked as complete"),
            (observation_json(false, "", duplicate), "twice"),
            (observation_json(false, "", r#""unlisted":[{"vmid":104}]"#), "lacks the key `cause`"),
            (observation_json(false, "", r#""unlisted":[{"cause":"No","vmid":104}]"#), "is not a cause"),
            (observation_json(false, "", r#""unlisted":[{"cause":"hidden","vmid":1}]"#), "must be between"),
        ] {
            let faults = observe::parse(bad.as_bytes()).expect_err(&bad);
            assert!(faults.list().iter().any(|fault| fault.message.contains(expected)), "{expected}: {faults:?}");
        }
    }
}
