//! What any observer must pass, whoever wrote it: it is put before worlds whose truth is known, and held to the truth.
//!
//! An observer may know less than the truth and must then say so. It may never know more, know otherwise, look outside
//! of its scope, or leave a trace. `docs/adapters.md` shows how to use this.

mod worlds;

use std::fmt;

use converger_core::desired::Scope;
use converger_core::guest::{EnvironmentName, Vmid};
use converger_core::observe::{Observation, ObservedGuest, ObservedStatus, Reading, Scoped};

use crate::Observer;

pub use worlds::{KnownWorld, known_worlds};

/// A place where worlds can be set up for an observer.
pub trait ObserverFixture {
    /// The observer that is checked.
    type Observer: Observer;

    /// Makes the world as `truth` says and gives an observer of it.
    ///
    /// What is [`Reading::Unread`] in the truth cannot be read in that world (no permission, a node that is silent).
    fn set_up_world(&mut self, truth: &Observation) -> Self::Observer;

    /// How often the world was changed since it was set up. An observer leaves it at 0.
    fn change_count(&self) -> u64;
}

/// A rule that an observer broke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObserverFinding {
    /// The world in which it did.
    pub world: &'static str,
    /// The rule, and what was seen.
    pub what: String,
}

impl fmt::Display for ObserverFinding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "in the world `{}`: {}", self.world, self.what)
    }
}

/// Puts the observer before every world. No finding means that it conforms.
#[must_use]
pub async fn check_observer(stage: &mut impl ObserverFixture) -> Vec<ObserverFinding> {
    let mut findings = Vec::new();
    for world in known_worlds() {
        findings.extend(check_world(stage, &world).await);
    }
    findings
}

async fn check_world(stage: &mut impl ObserverFixture, world: &KnownWorld) -> Vec<ObserverFinding> {
    let observer = stage.set_up_world(&world.truth);
    let mut broken = Vec::new();
    match observer.observe(&world.truth.environment, &world.scope).await {
        Err(error) => broken.push(format!("there is no reading: {error}")),
        Ok(reading) => {
            broken.extend(find_false_claims(world, &reading));
            broken.extend(find_unstable_reading(&observer, world, &reading).await);
        }
    }
    broken.extend(find_wrong_environment_accepted(&observer, &world.scope).await);
    if stage.change_count() > 0 {
        broken.push(format!("it changed what it looked at {} times", stage.change_count()));
    }
    broken.into_iter().map(|what| ObserverFinding { world: world.name, what }).collect()
}

/// The same world gives the same reading; only the time may differ.
async fn find_unstable_reading(observer: &impl Observer, world: &KnownWorld, first: &Scoped) -> Option<String> {
    let timeless = |reading: &Scoped| Observation { taken_at: None, ..Observation::clone(reading) };
    match observer.observe(&world.truth.environment, &world.scope).await {
        Ok(second) if timeless(&second) == timeless(first) => None,
        Ok(_) => Some("two readings of a world that did not change differ".into()),
        Err(error) => Some(format!("the second reading failed: {error}")),
    }
}

async fn find_wrong_environment_accepted(observer: &impl Observer, scope: &Scope) -> Option<String> {
    let other = EnvironmentName::new("another-environment")?;
    observer.observe(&other, scope).await.is_ok().then(|| "it gave a reading for an environment that it is not connected to".into())
}

/// Everything that a reading may not claim.
fn find_false_claims(world: &KnownWorld, reading: &Scoped) -> Vec<String> {
    let truth = &world.truth;
    let mut broken = Vec::new();
    if reading.environment != truth.environment {
        broken.push(format!("it calls the environment `{}`", reading.environment));
    }
    broken.extend(find_blindness(world, reading));
    if reading.complete && !truth.complete {
        broken.push("it calls an incomplete list complete".into());
    }
    if reading.quorate && !truth.quorate {
        broken.push("it claims a quorum that is not there".into());
    }
    let expected = truth.guests.iter().filter(|row| !world.scope.contains(row.vmid)).count() as u64;
    if reading.complete && reading.unmanaged != expected {
        broken.push(format!("it counts {} guests outside of the scope, where there are {expected}", reading.unmanaged));
    }
    for row in &reading.guests {
        broken.extend(find_false_row_claims(world, reading, row));
    }
    broken.extend(find_unlisted_guests(world, reading));
    broken
}

/// Where nothing stands in the way, whoever sees nothing is no observer.
fn find_blindness(world: &KnownWorld, reading: &Scoped) -> Vec<String> {
    if !world.is_readable {
        return Vec::new();
    }
    let unknown = reading.guests.iter().filter(|row| matches!(row.status, ObservedStatus::Unknown(_)));
    let unseen = unknown.map(|row| format!("guest {} could be seen, and is called unknown", row.vmid));
    let incomplete = (!reading.complete || !reading.quorate).then(|| "the whole list could be read, and is not".to_owned());
    unseen.chain(incomplete).collect()
}

/// A guest that is there must be listed, or the list must not be called complete.
fn find_unlisted_guests(world: &KnownWorld, reading: &Scoped) -> Vec<String> {
    let in_scope = world.truth.guests.iter().filter(|row| world.scope.contains(row.vmid));
    let lost: Vec<Vmid> = in_scope.map(|row| row.vmid).filter(|vmid| reading.complete && reading.find(*vmid).is_none()).collect();
    lost.iter().map(|vmid| format!("guest {vmid} is there, and a list that is called complete lacks it")).collect()
}

fn find_false_row_claims(world: &KnownWorld, reading: &Scoped, row: &ObservedGuest) -> Vec<String> {
    let vmid = row.vmid;
    if !world.scope.contains(vmid) {
        return vec![format!("guest {vmid} is outside of the scope")];
    }
    let Some(truth) = world.truth.guests.iter().find(|other| other.vmid == vmid) else {
        return vec![format!("guest {vmid} does not exist")];
    };
    let node = |observation: &Observation, row: &ObservedGuest| observation.node_of(row).cloned();
    let claims = [
        ("kind", row.kind == truth.kind),
        ("node", node(reading, row) == node(&world.truth, truth)),
        ("name", row.name.is_none() || row.name == truth.name),
        ("status", matches!(row.status, ObservedStatus::Unknown(_)) || row.status == truth.status),
        ("lock", is_unread_or_true(&row.lock, &truth.lock)),
        ("ha", is_unread_or_true(&row.ha, &truth.ha)),
        ("template", is_unread_or_true(&row.template, &truth.template)),
        ("protection", is_unread_or_true(&row.protection, &truth.protection)),
        ("tags", is_unread_or_true(&row.tags, &truth.tags)),
        ("identity", is_unread_or_true(&row.identity, &truth.identity)),
        ("config", is_unread_or_true(&row.config, &truth.config)),
        ("pending", is_unread_or_true(&row.pending, &truth.pending)),
    ];
    claims.into_iter().filter(|(_, holds)| !holds).map(|(field, _)| format!("guest {vmid}: it claims a {field} that is not so")).collect()
}

/// Not having read is always honest; having read must be the truth.
fn is_unread_or_true<T: PartialEq>(claim: &Reading<T>, truth: &Reading<T>) -> bool {
    !claim.is_read() || claim == truth
}

#[cfg(test)]
mod tests {
    use converger_core::guest::GuestIdentity;
    use futures_util::FutureExt as _;

    use super::*;
    use crate::ObserveError;

    /// An observer that knows the truth, spoilt by `spoil`.
    struct FaultyObserver {
        truth: Observation,
        corrupt: fn(&mut Observation),
    }

    impl Observer for FaultyObserver {
        async fn observe(&self, environment: &EnvironmentName, scope: &Scope) -> Result<Scoped, ObserveError> {
            let mut reading = self.truth.clone();
            if reading.environment != *environment {
                let (found, wanted) = (reading.environment.to_string(), environment.to_string());
                return Err(ObserveError::OtherEnvironment { place: "here".into(), found, wanted });
            }
            (self.corrupt)(&mut reading);
            Ok(reading.into_scoped(scope))
        }
    }

    struct FaultyObserverFixture(fn(&mut Observation));

    impl ObserverFixture for FaultyObserverFixture {
        type Observer = FaultyObserver;

        fn set_up_world(&mut self, truth: &Observation) -> FaultyObserver {
            FaultyObserver { truth: truth.clone(), corrupt: self.0 }
        }

        fn change_count(&self) -> u64 {
            0
        }
    }

    fn find(spoil: fn(&mut Observation)) -> Vec<ObserverFinding> {
        check_observer(&mut FaultyObserverFixture(spoil)).now_or_never().expect("nothing is waited for")
    }

    fn assert_finding(spoil: fn(&mut Observation), part: &str) {
        let findings = find(spoil);
        assert!(findings.iter().any(|finding| finding.what.contains(part)), "{part:?} was not found in {findings:?}");
    }

    #[test]
    fn truthful_or_less_informed_observer_conforms() {
        assert_eq!(find(|_| {}), []);
        let less = |reading: &mut Observation| {
            for row in &mut reading.guests {
                row.config = Reading::Unread;
                row.lock = Reading::Unread;
            }
        };
        assert_eq!(find(less), []);
    }

    #[test]
    fn finds_every_false_claim() {
        assert_finding(|reading| reading.guests.iter_mut().for_each(|row| row.status = ObservedStatus::Unknown(None)), "called unknown");
        assert_finding(|reading| reading.complete = false, "could be read, and is not");
        assert_finding(|reading| reading.environment = EnvironmentName::new("x").expect("a name"), "calls the environment");
        assert_finding(|reading| reading.guests.iter_mut().for_each(|row| row.name = Some("forged".into())), "claims a name");
        let identity = |reading: &mut Observation| {
            let forged = || GuestIdentity::Qemu { uuid: Some("forged".into()), ctime: None };
            reading.guests.iter_mut().for_each(|row| row.identity = Reading::Read(Box::new(forged())));
        };
        assert_finding(identity, "claims a identity");
        assert_finding(|reading| reading.complete = true, "calls an incomplete list complete");
        assert_finding(|reading| reading.quorate = true, "claims a quorum");
        assert_finding(|reading| reading.guests = Box::new([]), "a list that is called complete lacks it");
        assert_finding(|reading| reading.unmanaged = 7, "outside of the scope, where there are");
        assert_finding(|reading| reading.nodes.iter_mut().for_each(|node| node.online = true), "claims a node");
        assert_finding(|reading| reading.guests.iter_mut().for_each(|row| row.lock = Reading::Read(None)), "claims a lock");
        assert_finding(|reading| reading.guests.iter_mut().for_each(|row| row.ha = Reading::Read(None)), "claims a ha");
        assert_finding(|reading| reading.guests.iter_mut().for_each(|row| row.template = Reading::Read(false)), "claims a template");
        assert_finding(|reading| reading.guests.iter_mut().for_each(|row| row.protection = Reading::Read(false)), "claims a protection");
        assert_finding(|reading| reading.guests.iter_mut().for_each(|row| row.pending = Reading::Read(Box::new([]))), "claims a pending");
        assert_finding(
            |reading| reading.guests.iter_mut().for_each(|row| row.config = Reading::Read(Default::default())),
            "claims a config",
        );
        assert_finding(|reading| reading.guests.iter_mut().for_each(|row| row.tags = Reading::Read(Default::default())), "claims a tags");
        let guessed = |reading: &mut Observation| {
            let stopped = ObservedStatus::Known(converger_core::guest::RunState::Stopped);
            reading.guests.iter_mut().for_each(|row| row.status = stopped.clone());
        };
        assert_finding(guessed, "claims a status");
    }
}
