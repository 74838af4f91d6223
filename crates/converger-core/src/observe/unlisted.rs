//! Guests that a list lacks and that may be there all the same: why it cannot be said whether they are (G2).
//!
//! What never enters: guests that are known to be absent. Those are in no list at all.

use serde::Serialize;

use super::ObservedGuest;
use super::parse::{cause, vmid};
use crate::document::{Diagnostic, Reader, Source, Span, Stop as End};
use crate::guest::Vmid;

/// A guest that is not listed and not known to be absent, and why not. Members stand in the order of their names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unlisted {
    /// Why it cannot be said whether it is there.
    pub cause: Box<str>,
    /// Its id.
    pub vmid: Vmid,
}

const KEYS: [&str; 2] = ["cause", "vmid"];

/// Reads one of them onto the others.
pub(super) fn read<'t, S: Source<'t>>(reader: &mut Reader<'t, S>, unlisted: &mut Vec<(Unlisted, Span)>) -> Result<(), End> {
    let (mut why, mut id) = (None, None);
    let seen = reader.fields("a guest that is not listed", &KEYS, |reader, key, _| match key {
        0 => cause(reader).map(|word| why = word),
        _ => vmid(reader).map(|vmid| id = vmid),
    })?;
    let Some(seen) = seen else { return Ok(()) };
    reader.required(&seen, "a guest that is not listed", &KEYS, &[0, 1])?;
    if let (Some(cause), Some((vmid, span))) = (why, id) {
        unlisted.push((Unlisted { cause, vmid }, span));
    }
    Ok(())
}

/// What is not listed is in no row, is named once, and makes the list incomplete.
pub(super) fn check<'t, S: Source<'t>>(
    reader: &mut Reader<'t, S>,
    complete: Option<bool>,
    guests: &[ObservedGuest],
    unlisted: &mut [(Unlisted, Span)],
) -> Result<(), End> {
    unlisted.sort_by_key(|(own, span)| (own.vmid, *span));
    let mut before = None;
    for (own, span) in unlisted.iter() {
        let vmid = own.vmid;
        let is_listed = guests.binary_search_by_key(&vmid, |guest| guest.vmid).is_ok();
        let fault = match before.replace(vmid) {
            Some(other) if other == vmid => format!("guest {vmid} is twice under `unlisted`"),
            _ if is_listed => format!("guest {vmid} is listed, and stands under `unlisted` too"),
            _ if complete == Some(true) => format!("guest {vmid} stands under `unlisted`, but the list is called complete"),
            _ => continue,
        };
        reader.report(Diagnostic::new(*span, fault).help("take a new reading"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::artifact;
    use crate::desired::Scope;
    use crate::guest::Vmid;
    use crate::observe::{self, InScope, Observation};

    fn written(observation: &Observation) -> String {
        serde_json::to_string(observation).expect("serialises")
    }

    const APART: &str = r#""unlisted":[{"cause":"hidden","vmid":104},{"cause":"not-permitted","vmid":105}]"#;

    fn lacking(complete: bool, guests: &str, unlisted: &str) -> String {
        format!(
            r#"{{"complete":{complete},"environment":"lab","guests":[{guests}],"nodes":[{{"name":"n1","online":true}}],"quorate":true,"schema":"converger.observation/1",{unlisted}}}"#
        )
    }

    #[test]
    fn g2_why_a_guest_is_not_listed_is_its_cause_and_survives_a_recording() {
        let text = lacking(false, "", APART);
        let observation = observe::parse(text.as_bytes()).expect("a reading");
        assert_eq!(written(&observation), text);
        let ids: Vec<Vmid> = [104, 105, 106].into_iter().filter_map(Vmid::new).collect();
        let scoped = observation.clone().within(&Scope::new(ids.clone()));
        let causes = ids.iter().map(|vmid| match scoped.seen(*vmid, scoped.find(*vmid)) {
            observe::Seen::Unknown(cause) => cause,
            other => panic!("{other:?}"),
        });
        assert_eq!(causes.collect::<Vec<_>>(), ["hidden", "not-permitted", "not-listed"]);
        let digest =
            |ids: &[Vmid]| artifact::Digest::of(&InScope(&observation.clone().within(&Scope::new(ids.to_vec())))).expect("serialises");
        assert_ne!(digest(&ids), digest(&ids[2..]), "a plan shows the cause");
        assert_eq!(digest(&ids[2..]), digest(&[]), "g8: what is outside of the scope is not in it");
    }

    #[test]
    fn g2_a_list_that_lacks_a_guest_is_not_whole_whatever_its_observer_says() {
        let mut observation = observe::parse(lacking(false, "", APART).as_bytes()).expect("a reading");
        observation.complete = true;
        let scope = Scope::new([104].into_iter().filter_map(Vmid::new).collect());
        assert!(!observation.clone().within(&scope).complete);
        assert!(observation.within(&Scope::new(vec![])).complete);
    }

    #[test]
    fn a_guest_that_is_listed_and_not_listed_is_refused() {
        let row = r#"{"kind":"qemu","name":"a","node":"n1","status":"stopped","vmid":104}"#;
        let twice = r#""unlisted":[{"cause":"hidden","vmid":104},{"cause":"hidden","vmid":104}]"#;
        for (bad, said) in [
            (lacking(false, row, APART), "is listed, and stands under"),
            (lacking(true, "", APART), "the list is called complete"),
            (lacking(false, "", twice), "twice"),
            (lacking(false, "", r#""unlisted":[{"vmid":104}]"#), "lacks the key `cause`"),
            (lacking(false, "", r#""unlisted":[{"cause":"No","vmid":104}]"#), "is not a cause"),
            (lacking(false, "", r#""unlisted":[{"cause":"hidden","vmid":1}]"#), "must be between"),
        ] {
            let faults = observe::parse(bad.as_bytes()).expect_err(&bad);
            assert!(faults.list().iter().any(|fault| fault.message.contains(said)), "{said}: {faults:?}");
        }
    }
}
