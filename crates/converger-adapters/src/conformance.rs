//! The checks that every observer must pass. Each check sets up a world whose truth is known and compares the observation with it.
//!
//! An observer may know less than the truth if it says so. It must not claim more or something else, look outside its scope, or change
//! anything. `docs/adapters.md` shows how to use this module.

mod worlds;

use std::fmt;

use converger_core::desired::Scope;
use converger_core::guest::{EnvironmentName, Vmid};
use converger_core::observe::{Observation, ObservedGuest, ObservedStatus, Reading, Scoped};

use crate::Observer;

pub use worlds::{KnownWorld, known_worlds};

/// Sets up worlds for an observer.
pub trait ObserverFixture {
    /// The observer under test.
    type Observer: Observer;

    /// Sets up the world that `truth` describes and returns an observer of it.
    ///
    /// Fields that are [`Reading::Unread`] in the truth must be unreadable in that world (no permission, or a node that does not respond).
    fn set_up_world(&mut self, truth: &Observation) -> Self::Observer;

    /// Number of changes to the world since it was set up. An observer must leave it at 0.
    fn change_count(&self) -> u64;
}

/// A rule that an observer broke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObserverFinding {
    /// The world in which it was broken.
    pub world: &'static str,
    /// The rule and the observed violation.
    pub what: String,
}

impl fmt::Display for ObserverFinding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "in the world `{}`: {}", self.world, self.what)
    }
}

/// Runs the observer in every world. It conforms if there are no findings.
#[must_use]
pub async fn check_observer(fixture: &mut impl ObserverFixture) -> Vec<ObserverFinding> {
    let mut findings = Vec::new();
    for world in known_worlds() {
        findings.extend(check_world(fixture, &world).await);
    }
    findings
}

async fn check_world(fixture: &mut impl ObserverFixture, world: &KnownWorld) -> Vec<ObserverFinding> {
    let observer = fixture.set_up_world(&world.observation);
    let mut broken = Vec::new();
    match observer.observe(&world.observation.environment, &world.scope).await {
        Err(error) => broken.push(format!("the observation failed: {error}")),
        Ok(reading) => {
            broken.extend(find_false_claims(world, &reading));
            broken.extend(find_unstable_reading(&observer, world, &reading).await);
        }
    }
    broken.extend(find_wrong_environment_accepted(&observer, &world.scope).await);
    if fixture.change_count() > 0 {
        broken.push(format!("it changed the world {} times", fixture.change_count()));
    }
    broken.into_iter().map(|what| ObserverFinding { world: world.name, what }).collect()
}

/// An unchanged world must give the same observation twice; only the time may differ.
async fn find_unstable_reading(observer: &impl Observer, world: &KnownWorld, first: &Scoped) -> Option<String> {
    let timeless = |reading: &Scoped| Observation { taken_at: None, ..Observation::clone(reading) };
    match observer.observe(&world.observation.environment, &world.scope).await {
        Ok(second) if timeless(&second) == timeless(first) => None,
        Ok(_) => Some("two observations of an unchanged world differ".into()),
        Err(error) => Some(format!("the second observation failed: {error}")),
    }
}

async fn find_wrong_environment_accepted(observer: &impl Observer, scope: &Scope) -> Option<String> {
    let other = EnvironmentName::new("another-environment")?;
    observer.observe(&other, scope).await.is_ok().then(|| "it returned an observation of an environment that it is not connected to".into())
}

/// Lists every false claim of an observation.
fn find_false_claims(world: &KnownWorld, reading: &Scoped) -> Vec<String> {
    let truth = &world.observation;
    let mut broken = Vec::new();
    if reading.environment != truth.environment {
        broken.push(format!("it reports the wrong environment `{}`", reading.environment));
    }
    broken.extend(find_blindness(world, reading));
    if reading.complete && !truth.complete {
        broken.push("it reports an incomplete list as complete".into());
    }
    if reading.quorate && !truth.quorate {
        broken.push("it reports a quorum that does not exist".into());
    }
    let expected = truth.guests.iter().filter(|row| !world.scope.contains(row.vmid)).count() as u64;
    if reading.complete && reading.unmanaged != expected {
        broken.push(format!("it counts {} guests outside the scope instead of {expected}", reading.unmanaged));
    }
    for row in &reading.guests {
        broken.extend(find_false_row_claims(world, reading, row));
    }
    broken.extend(find_unlisted_guests(world, reading));
    broken
}

/// In a world where everything is readable, an observer must not report anything as unknown.
fn find_blindness(world: &KnownWorld, reading: &Scoped) -> Vec<String> {
    if !world.is_readable {
        return Vec::new();
    }
    let unknown = reading.guests.iter().filter(|row| matches!(row.status, ObservedStatus::Unknown(_)));
    let unseen = unknown.map(|row| format!("guest {} is readable but reported as unknown", row.vmid));
    let incomplete = (!reading.complete || !reading.quorate)
        .then(|| "the whole list is readable but reported as incomplete or without quorum".to_owned());
    unseen.chain(incomplete).collect()
}

/// An existing guest must be listed, or the list must be reported as incomplete.
fn find_unlisted_guests(world: &KnownWorld, reading: &Scoped) -> Vec<String> {
    let in_scope = world.observation.guests.iter().filter(|row| world.scope.contains(row.vmid));
    let lost: Vec<Vmid> = in_scope.map(|row| row.vmid).filter(|vmid| reading.complete && reading.find(*vmid).is_none()).collect();
    lost.iter().map(|vmid| format!("guest {vmid} exists but is missing from a list reported as complete")).collect()
}

fn find_false_row_claims(world: &KnownWorld, reading: &Scoped, row: &ObservedGuest) -> Vec<String> {
    let vmid = row.vmid;
    if !world.scope.contains(vmid) {
        return vec![format!("guest {vmid} is outside the scope")];
    }
    let Some(truth) = world.observation.guests.iter().find(|other| other.vmid == vmid) else {
        return vec![format!("guest {vmid} does not exist")];
    };
    let node = |observation: &Observation, row: &ObservedGuest| observation.node_of(row).cloned();
    let claims = [
        ("kind", row.kind == truth.kind),
        ("node", node(reading, row) == node(&world.observation, truth)),
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
    claims.into_iter().filter(|(_, holds)| !holds).map(|(field, _)| format!("guest {vmid}: the reported {field} is wrong")).collect()
}

/// An unread field is always acceptable; a field that was read must equal the truth.
fn is_unread_or_true<T: PartialEq>(claim: &Reading<T>, truth: &Reading<T>) -> bool {
    !claim.is_read() || claim == truth
}

#[cfg(test)]
mod tests {
    use converger_core::guest::GuestIdentity;
    use futures_util::FutureExt as _;

    use super::*;
    use crate::ObserveError;

    /// An observer that knows the truth and changes it with `corrupt` before it reports.
    struct FaultyObserver {
        observation: Observation,
        corrupt: fn(&mut Observation),
    }

    impl Observer for FaultyObserver {
        async fn observe(&self, environment: &EnvironmentName, scope: &Scope) -> Result<Scoped, ObserveError> {
            let mut reading = self.observation.clone();
            if reading.environment != *environment {
                let (found, wanted) = (reading.environment.to_string(), environment.to_string());
                return Err(ObserveError::OtherEnvironment { endpoint: "here".into(), found, wanted });
            }
            (self.corrupt)(&mut reading);
            Ok(reading.into_scoped(scope))
        }
    }

    struct FaultyObserverFixture(fn(&mut Observation));

    impl ObserverFixture for FaultyObserverFixture {
        type Observer = FaultyObserver;

        fn set_up_world(&mut self, truth: &Observation) -> FaultyObserver {
            FaultyObserver { observation: truth.clone(), corrupt: self.0 }
        }

        fn change_count(&self) -> u64 {
            0
        }
    }

    fn find(spoil: fn(&mut Observation)) -> Vec<ObserverFinding> {
        check_observer(&mut FaultyObserverFixture(spoil)).now_or_never().expect("no await suspends")
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
        assert_finding(
            |reading| reading.guests.iter_mut().for_each(|row| row.status = ObservedStatus::Unknown(None)),
            "reported as unknown",
        );
        assert_finding(|reading| reading.complete = false, "reported as incomplete");
        assert_finding(|reading| reading.environment = EnvironmentName::new("x").expect("a name"), "wrong environment");
        assert_finding(|reading| reading.guests.iter_mut().for_each(|row| row.name = Some("forged".into())), "reported name is wrong");
        let identity = |reading: &mut Observation| {
            let forged = || GuestIdentity::Qemu { uuid: Some("forged".into()), ctime: None };
            reading.guests.iter_mut().for_each(|row| row.identity = Reading::Read(Box::new(forged())));
        };
        assert_finding(identity, "reported identity is wrong");
        assert_finding(|reading| reading.complete = true, "incomplete list as complete");
        assert_finding(|reading| reading.quorate = true, "reports a quorum");
        assert_finding(|reading| reading.guests = Box::new([]), "missing from a list reported as complete");
        assert_finding(|reading| reading.unmanaged = 7, "outside the scope instead of");
        assert_finding(|reading| reading.nodes.iter_mut().for_each(|node| node.online = true), "reported node is wrong");
        assert_finding(|reading| reading.guests.iter_mut().for_each(|row| row.lock = Reading::Read(None)), "reported lock is wrong");
        assert_finding(|reading| reading.guests.iter_mut().for_each(|row| row.ha = Reading::Read(None)), "reported ha is wrong");
        assert_finding(
            |reading| reading.guests.iter_mut().for_each(|row| row.template = Reading::Read(false)),
            "reported template is wrong",
        );
        assert_finding(
            |reading| reading.guests.iter_mut().for_each(|row| row.protection = Reading::Read(false)),
            "reported protection is wrong",
        );
        assert_finding(
            |reading| reading.guests.iter_mut().for_each(|row| row.pending = Reading::Read(Box::new([]))),
            "reported pending is wrong",
        );
        assert_finding(
            |reading| reading.guests.iter_mut().for_each(|row| row.config = Reading::Read(Default::default())),
            "reported config is wrong",
        );
        assert_finding(
            |reading| reading.guests.iter_mut().for_each(|row| row.tags = Reading::Read(Default::default())),
            "reported tags is wrong",
        );
        let guessed = |reading: &mut Observation| {
            let stopped = ObservedStatus::Known(converger_core::guest::RunState::Stopped);
            reading.guests.iter_mut().for_each(|row| row.status = stopped.clone());
        };
        assert_finding(guessed, "reported status is wrong");
    }
}
