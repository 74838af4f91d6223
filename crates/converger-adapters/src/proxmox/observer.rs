//! The observer of a Proxmox environment: picks one of its endpoints, and takes one reading there.
//!
//! The first endpoint with which a connection stands is the one for the whole reading; if none answers, all are named with
//! their reasons. It starts no runtime of its own: the caller awaits it on the one that the process has.

use std::sync::OnceLock;
use std::time::SystemTime;

use converger_core::desired::{Desired, GuestSelection, Scope};
use converger_core::failure::FailureCode;
use converger_core::guest::{ClusterIdentity, EnvironmentName, NodeName};
use converger_core::observe::{Note, Scoped};
use thiserror::Error;

use super::actuator::{CallerIdentity, ProxmoxActuator};
use super::client::{ApiToken, ClientError, Endpoint, ProxmoxClient, ProxmoxSession, RequestLimits};
use super::codec::{FailureCause, ProxmoxCommand, ProxmoxEvent, ProxmoxFailure, ProxmoxRead, ProxmoxVersion};
use super::doctor::privilege_needs::RequiredVerbs;
use super::doctor::{self, DoctorReport};
use super::identity::{IdentityError, read_identity};
use super::observe::{self, ObservationRequest, ReadSet, ReadingError};
use super::time;
use crate::{ObserveError, Observer};

/// What an environment is and how it is reached.
#[derive(Clone, Debug)]
pub struct ConnectionSettings {
    /// Its name in this program.
    pub name: EnvironmentName,
    /// The name of its cluster, if it is pinned.
    pub cluster: Option<Box<str>>,
    /// Its API endpoints, in the order in which they are tried.
    pub endpoints: Vec<Endpoint>,
    /// The token that is used at all of them.
    pub token: ApiToken,
    /// How much an exchange may take.
    pub bounds: RequestLimits,
}

/// The observer of one environment.
#[derive(Debug)]
pub struct ProxmoxObserver {
    name: EnvironmentName,
    cluster: Option<Box<str>>,
    endpoints: Vec<EndpointAccess>,
    needs: ReadSet,
    clock: fn() -> SystemTime,
    /// The release that answered, once it was read: it is asked for once in a run, however often the guests are read.
    release: OnceLock<ProxmoxVersion>,
}

/// How one endpoint is reached.
#[derive(Debug)]
struct EndpointAccess {
    endpoint: Endpoint,
    token: ApiToken,
    bounds: RequestLimits,
}

impl EndpointAccess {
    fn client(&self) -> Result<ProxmoxClient, ClientError> {
        ProxmoxClient::new(self.endpoint.clone(), &self.token, self.bounds)
    }

    /// For one reading.
    fn session(&self) -> Result<ProxmoxSession<ProxmoxClient>, ClientError> {
        self.client().map(|client| ProxmoxSession::for_reading(client, self.bounds))
    }
}

/// Why an environment cannot be read.
#[derive(Debug, Error)]
pub enum ProxmoxError {
    /// It has no endpoint.
    #[error("the environment has no address; give it one, such as https://pve1.example:8006")]
    NoEndpoint,
    /// A client cannot be set up.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// With no endpoint there was a connection.
    #[error("{}", describe_unanswered(.0))]
    NoAnswer(Vec<ProxmoxFailure>),
    /// The endpoint that answered gave no reading.
    #[error(transparent)]
    Unread(#[from] ReadingError),
}

fn describe_unanswered(failures: &[ProxmoxFailure]) -> String {
    match failures {
        [failure] => failure.text.to_string(),
        several => format!("none of {} endpoints can be asked\n  {}", several.len(), failure_texts(several).join("\n  ")),
    }
}

/// What happened at each, with the code under which more is said about it.
fn failure_texts(failures: &[ProxmoxFailure]) -> Vec<String> {
    failures.iter().map(|failure| format!("{} ({})", failure.text, failure.cause.code().word())).collect()
}

impl ProxmoxError {
    /// The code of the failure.
    #[must_use]
    pub fn code(&self) -> Option<FailureCode> {
        match self {
            Self::NoEndpoint => Some(FailureCode::EnvironmentUnconfigured),
            Self::Client(client) if client.is_configuration_fault() => Some(FailureCode::ClientSetup),
            Self::Client(_) => Some(FailureCode::ProcessLimited),
            Self::NoAnswer(failures) => gravest_code(failures),
            Self::Unread(unread) => Some(unread.code()),
        }
    }

    /// What to do about it, where it has a code.
    #[must_use]
    pub fn remedy(&self) -> Option<&str> {
        match self {
            Self::Unread(unread) => Some(unread.remedy()),
            _ => self.code().map(|code| code.entry().remedy.trim_end_matches('.')),
        }
    }
}

/// The one code of several endpoints. A certificate that is not the pinned one is an alarm, and counts before mere silence.
fn gravest_code(failures: &[ProxmoxFailure]) -> Option<FailureCode> {
    let is_alarm = |failure: &&ProxmoxFailure| failure.cause == FailureCause::PinMismatch;
    let first = failures.iter().find(is_alarm).or(failures.first())?;
    let is_one = is_alarm(&first) || failures.iter().all(|failure| failure.cause == first.cause);
    Some(if is_one { first.cause.code() } else { FailureCode::EndpointUnreachable })
}

/// An endpoint that was passed over, as the reading keeps it.
fn passed_over_note(failure: &ProxmoxFailure, token: &str) -> Note {
    let (code, remedy) = (failure.cause.code().word().into(), observe::failure_remedy(failure, token).into());
    Note { code, guest: None, remedy, text: failure.text.clone() }
}

/// A reading, and what it took. What people should know about it stands in it.
#[derive(Clone, Debug)]
pub struct ObservationReport {
    /// The reading in scope.
    pub reading: Scoped,
    /// The endpoint that was asked.
    pub endpoint: String,
    /// How many requests were made.
    pub requests: u64,
    /// How many of the first notes are about endpoints that were tried before, with which no connection came about.
    pub passed_over: usize,
    /// The node that answered, or another one that is online.
    pub node: Option<NodeName>,
}

impl ProxmoxObserver {
    /// An observer of this environment that reads everything of the guests in scope.
    ///
    /// # Errors
    /// It has no endpoint.
    pub fn new(environment: ConnectionSettings) -> Result<Self, ProxmoxError> {
        let ConnectionSettings { name, cluster, endpoints, token, bounds } = environment;
        if endpoints.is_empty() {
            return Err(ProxmoxError::NoEndpoint);
        }
        let ways = endpoints.into_iter().map(|endpoint| EndpointAccess { endpoint, token: token.clone(), bounds }).collect();
        Ok(Self { name, cluster, endpoints: ways, needs: ReadSet::Everything, clock: SystemTime::now, release: OnceLock::new() })
    }

    /// The same, reading only what is needed.
    #[must_use]
    pub fn with_needs(self, needs: ReadSet) -> Self {
        Self { needs, ..self }
    }

    /// The same, with another clock.
    #[must_use]
    pub fn with_clock(self, clock: fn() -> SystemTime) -> Self {
        Self { clock, ..self }
    }

    /// Where it is asked, in the order in which they are tried.
    #[must_use]
    pub fn endpoint_names(&self) -> Vec<&str> {
        self.endpoints.iter().map(|way| way.endpoint.name()).collect()
    }

    /// Takes one reading, and says what it took.
    ///
    /// # Errors
    /// There is no reading at all.
    pub async fn take_report(&self, scope: &Scope) -> Result<ObservationReport, ProxmoxError> {
        self.take_selected_report(&scope.clone().into()).await
    }

    /// Takes one reading of the selected guests, and says what it took.
    ///
    /// # Errors
    /// There is no reading at all.
    pub async fn take_selected_report(&self, selection: &GuestSelection) -> Result<ObservationReport, ProxmoxError> {
        let mut passed_over = Vec::new();
        for way in &self.endpoints {
            let session = way.session()?;
            // What is known of a guest may be from the first answer: a reading is as old as its beginning.
            let began = (self.clock)();
            let token = way.token.id.as_str();
            let (cluster, scope) = (self.cluster.as_deref(), selection.named_ids());
            let question = ObservationRequest { environment: &self.name, cluster, token, scope, needs: &self.needs };
            match observe::take_selected_reading(&session, &question, selection).await {
                Ok((taken, scope)) => {
                    let mut observation = taken.observation;
                    let release = self.release(&session).await;
                    observation.taken_at = Some(time::timestamp(began).into());
                    let (place, requests) = (session.endpoint_name().to_owned(), session.request_count());
                    let over = passed_over.iter().map(|failure| passed_over_note(failure, token));
                    let release = observe::ReadingNote::of_release(&release).map(|note| note.to_core_note(token));
                    observation.notes = over.chain(release).chain(observation.notes).collect();
                    let passed_over = passed_over.len();
                    return Ok(ObservationReport {
                        reading: observation.into_scoped(&scope),
                        endpoint: place,
                        requests,
                        passed_over,
                        node: taken.node,
                    });
                }
                // Only an endpoint with which there never was a connection is passed over: a view is not exchanged for another.
                Err(ReadingError::Failed { failure, .. }) if session.request_count() == 1 && failure.cause.is_connect_failure() => {
                    passed_over.push(failure);
                }
                Err(unread) => return Err(unread.into()),
            }
        }
        Err(ProxmoxError::NoAnswer(passed_over))
    }

    async fn release(&self, session: &ProxmoxSession<ProxmoxClient>) -> Result<ProxmoxVersion, ProxmoxFailure> {
        if let Some(version) = self.release.get() {
            return Ok(version.clone());
        }
        match session.call(&ProxmoxCommand::Read(ProxmoxRead::Version)).await? {
            ProxmoxEvent::Version(version) => Ok(self.release.get_or_init(|| version).clone()),
            other => Err(other.unexpected_failure()),
        }
    }

    /// A hand at the endpoint that a [reading](Report::place) came from: what was seen there is changed there.
    ///
    /// # Errors
    /// It is no endpoint of this environment, or no client can be set up.
    pub fn actuator(&self, place: &str) -> Result<ProxmoxActuator<ProxmoxClient>, ProxmoxError> {
        let way = self.endpoints.iter().find(|way| way.endpoint.name() == place).ok_or(ProxmoxError::NoEndpoint)?;
        let caller = CallerIdentity { token: way.token.id.clone(), cluster: self.cluster.clone() };
        Ok(ProxmoxActuator::new(ProxmoxSession::new(way.client()?), caller))
    }

    /// Reads the identity of the cluster, in one request to the endpoint that a reading came from: what was seen there is compared and changed
    /// there.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub async fn identity(&self, report: &ObservationReport) -> Result<ClusterIdentity, IdentityError> {
        let none = || IdentityError::NoNode { place: report.endpoint.clone() };
        let way = self.endpoints.iter().find(|way| way.endpoint.name() == report.endpoint).ok_or_else(none)?;
        let node = report.node.as_ref().ok_or_else(none)?;
        let session = way.session()?;
        read_identity(&session, node).await
    }

    /// Says what the environment lacks, and what to type about it. `say` is told what is being asked now.
    /// Where there is a declared state, it is about the guests and the fields of that alone.
    pub async fn examine(&self, desired: Option<&Desired>, say: &dyn Fn(&str)) -> DoctorReport {
        let Some(token) = self.endpoints.first().map(|way| &way.token.id) else { return DoctorReport::default() };
        let ways = self.endpoints.iter().map(|way| {
            let (place, trust) = (way.endpoint.name().to_owned(), way.endpoint.trust().clone());
            doctor::EndpointSession { place, trust, session: way.session().map_err(|error| error.to_string()) }
        });
        let ways: Vec<doctor::EndpointSession<ProxmoxClient>> = ways.collect();
        let (scope, wants) = (desired.map(Desired::scope), desired.map(RequiredVerbs::from_desired));
        let (scope, wants) = (scope.as_ref(), wants.as_ref());
        let asked = doctor::DoctorRequest { environment: &self.name, cluster: self.cluster.as_deref(), token, scope, wants };
        let gathered = doctor::gather_answers(&asked, &ways, &self.clock, say).await;
        doctor::examine_answers(&gathered)
    }
}

impl Observer for ProxmoxObserver {
    async fn observe(&self, environment: &EnvironmentName, scope: &Scope) -> Result<Scoped, ObserveError> {
        if self.name != *environment {
            let (found, wanted) = (self.name.to_string(), environment.to_string());
            let place = self.endpoints.first().map_or_else(String::new, |way| way.endpoint.name().to_owned());
            return Err(ObserveError::OtherEnvironment { place, found, wanted });
        }
        self.take_report(scope).await.map(|report| report.reading).map_err(|error| ObserveError::Proxmox(Box::new(error)))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::super::client::{Fingerprint, TokenId, TokenSecret, Trust};
    use super::*;

    fn test_settings(trust: Trust) -> ConnectionSettings {
        let token = ApiToken {
            id: TokenId::new("svc@pve!probe").expect("an id"),
            secret: TokenSecret::new("f3b1c8de-0000-4000-8000-123456789abc").expect("a secret"),
        };
        let endpoint = Endpoint::new("https://127.0.0.1:1", trust).expect("an address");
        ConnectionSettings {
            name: EnvironmentName::new("lab").expect("a name"),
            cluster: None,
            endpoints: vec![endpoint],
            token,
            bounds: RequestLimits::default(),
        }
    }

    #[test]
    fn client_setup_failure_has_a_code_and_a_remedy() {
        let gone = Trust::CaFile("no/such/file.pem".into());
        let observer = ProxmoxObserver::new(test_settings(gone)).expect("nothing is read yet");
        let error = observer.take_report(&Scope::new(vec![])).now_or_never().expect("no request is made").expect_err("nobody is trusted");
        assert!(matches!(&error, ProxmoxError::Client(client) if client.is_configuration_fault()), "{error}");
        assert_eq!(error.code(), Some(FailureCode::ClientSetup), "{error}");
        assert!(error.remedy().is_some_and(|remedy| remedy.contains("Mend")), "{error}");
    }

    #[test]
    fn missing_endpoint_has_its_own_code() {
        let nowhere =
            ConnectionSettings { endpoints: vec![], ..test_settings(Trust::Fingerprints([Fingerprint::of_certificate(b"x")].into())) };
        let error = ProxmoxObserver::new(nowhere).expect_err("nowhere to ask");
        assert_eq!(error.code(), Some(FailureCode::EnvironmentUnconfigured));
        assert!(error.remedy().is_some_and(|remedy| remedy.contains("converger.toml")), "{error}");
    }
}
