//! The observer of a Proxmox environment. It picks one of the endpoints and takes one observation there.
//!
//! The first endpoint that accepts a connection serves the whole observation. If none does, the error lists all of them with their reasons.
//! The observer starts no runtime of its own; the caller awaits it on the runtime of the process.

use std::collections::BTreeSet;
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
use super::observe::{self, ObservationRequest, ReadProgress, ReadSet, ReadingError};
use super::time;
use crate::{ObserveError, Observer};

/// The name of an environment and how to connect to it.
#[derive(Clone, Debug)]
pub struct ConnectionSettings {
    /// Its name in this program.
    pub name: EnvironmentName,
    /// The name of its cluster, if pinned.
    pub cluster: Option<Box<str>>,
    /// Its API endpoints, in the order in which they are tried.
    pub endpoints: Vec<Endpoint>,
    /// The token for all endpoints.
    pub token: ApiToken,
    /// The limits of requests.
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
    /// The Proxmox release, once read. It is read once per run, however often the guests are observed.
    release: OnceLock<ProxmoxVersion>,
}

/// An endpoint and how to connect to it.
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

    /// A session for one observation.
    fn session(&self) -> Result<ProxmoxSession<ProxmoxClient>, ClientError> {
        self.client().map(|client| ProxmoxSession::for_reading(client, self.bounds))
    }
}

/// Why an environment cannot be observed.
#[derive(Debug, Error)]
pub enum ProxmoxError {
    /// The environment has no endpoint.
    #[error("the environment has no address; give it one, such as https://pve1.example:8006")]
    NoEndpoint,
    /// A client cannot be set up.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// No endpoint accepted a connection.
    #[error("{}", describe_unanswered(.0))]
    NoAnswer(Vec<ProxmoxFailure>),
    /// The endpoint that accepted a connection gave no observation.
    #[error(transparent)]
    Unread(#[from] ReadingError),
}

fn describe_unanswered(failures: &[ProxmoxFailure]) -> String {
    match failures {
        [failure] => failure.text.to_string(),
        several => format!("none of {} endpoints accepted a connection\n  {}", several.len(), failure_texts(several).join("\n  ")),
    }
}

/// The failure at each endpoint, with its code unless all have the same one.
fn failure_texts(failures: &[ProxmoxFailure]) -> Vec<String> {
    let code = |failure: &ProxmoxFailure| failure.cause.code().word();
    let is_same = failures.windows(2).all(|pair| pair.iter().map(code).collect::<BTreeSet<_>>().len() == 1);
    let describe = |failure: &ProxmoxFailure| match is_same {
        true => failure.text.to_string(),
        false => format!("{} ({})", failure.text, code(failure)),
    };
    failures.iter().map(describe).collect()
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

    /// The remedy, if there is a code.
    #[must_use]
    pub fn remedy(&self) -> Option<&str> {
        match self {
            Self::Unread(unread) => Some(unread.remedy()),
            _ => self.code().map(|code| code.entry().remedy.trim_end_matches('.')),
        }
    }
}

/// The common code of several failed endpoints. A mismatch with a pinned certificate is an alarm and takes precedence over an unreachable
/// endpoint.
fn gravest_code(failures: &[ProxmoxFailure]) -> Option<FailureCode> {
    let is_alarm = |failure: &&ProxmoxFailure| failure.cause == FailureCause::PinMismatch;
    let first = failures.iter().find(is_alarm).or(failures.first())?;
    let is_one = is_alarm(&first) || failures.iter().all(|failure| failure.cause == first.cause);
    Some(if is_one { first.cause.code() } else { FailureCode::EndpointUnreachable })
}

/// The note about an endpoint that was skipped.
fn passed_over_note(failure: &ProxmoxFailure, token: &str) -> Note {
    let (code, remedy) = (failure.cause.code().word().into(), observe::failure_remedy(failure, token).into());
    Note { code, guest: None, remedy, text: failure.text.clone() }
}

/// An observation and how it was taken. The observation itself carries the notes for people.
#[derive(Clone, Debug)]
pub struct ObservationReport {
    /// The observation in scope.
    pub reading: Scoped,
    /// The endpoint that served it.
    pub endpoint: String,
    /// Number of requests that were sent.
    pub requests: u64,
    /// How many of the first notes are about skipped endpoints, which did not accept a connection.
    pub passed_over: usize,
    /// The node of the endpoint, or another node that is online.
    pub node: Option<NodeName>,
}

impl ProxmoxObserver {
    /// An observer of this environment that reads everything about the guests in scope.
    ///
    /// # Errors
    /// The environment has no endpoint.
    pub fn new(environment: ConnectionSettings) -> Result<Self, ProxmoxError> {
        let ConnectionSettings { name, cluster, endpoints, token, bounds } = environment;
        if endpoints.is_empty() {
            return Err(ProxmoxError::NoEndpoint);
        }
        let endpoint_accesses = endpoints.into_iter().map(|endpoint| EndpointAccess { endpoint, token: token.clone(), bounds }).collect();
        Ok(Self {
            name,
            cluster,
            endpoints: endpoint_accesses,
            needs: ReadSet::Everything,
            clock: SystemTime::now,
            release: OnceLock::new(),
        })
    }

    /// Limits the observer to what is needed.
    #[must_use]
    pub fn with_needs(self, needs: ReadSet) -> Self {
        Self { needs, ..self }
    }

    /// Replaces the clock.
    #[must_use]
    pub fn with_clock(self, clock: fn() -> SystemTime) -> Self {
        Self { clock, ..self }
    }

    /// The names of the endpoints, in the order in which they are tried.
    #[must_use]
    pub fn endpoint_names(&self) -> Vec<&str> {
        self.endpoints.iter().map(|access| access.endpoint.name()).collect()
    }

    /// Takes one observation and reports how it was taken.
    ///
    /// # Errors
    /// No observation could be taken.
    pub async fn take_report(&self, scope: &Scope) -> Result<ObservationReport, ProxmoxError> {
        self.take_report_with_progress(&scope.clone().into(), &|_, _| {}).await
    }

    /// Takes one observation of the selected guests and reports meanwhile how many of them were read.
    ///
    /// # Errors
    /// No observation could be taken.
    pub async fn take_report_with_progress(
        &self,
        selection: &GuestSelection,
        progress: ReadProgress<'_>,
    ) -> Result<ObservationReport, ProxmoxError> {
        let mut passed_over = Vec::new();
        for access in &self.endpoints {
            let session = access.session()?;
            // The first response may be the only one about a guest, so the observation is as old as its first request.
            let began = (self.clock)();
            let token = access.token.id.as_str();
            let (cluster, scope) = (self.cluster.as_deref(), selection.named_ids());
            let question = ObservationRequest { environment: &self.name, cluster, token, scope, needs: &self.needs };
            match observe::take_selected_reading(&session, &question, selection, progress).await {
                Ok((reading, scope)) => {
                    let mut observation = reading.observation;
                    let release = self.release(&session).await;
                    observation.taken_at = Some(time::timestamp(began).into());
                    let (endpoint_name, requests) = (session.endpoint_name().to_owned(), session.request_count());
                    let over = passed_over.iter().map(|failure| passed_over_note(failure, token));
                    let release = observe::ReadingNote::of_release(&release).map(|note| note.to_core_note(token));
                    observation.notes = over.chain(release).chain(observation.notes).collect();
                    let passed_over = passed_over.len();
                    return Ok(ObservationReport {
                        reading: observation.into_scoped(&scope),
                        endpoint: endpoint_name,
                        requests,
                        passed_over,
                        node: reading.node,
                    });
                }
                // Only an endpoint that never accepted a connection is skipped: the view of one endpoint must not be replaced with that of
                // another.
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

    /// An actuator at the [endpoint](ObservationReport::endpoint) of an observation: changes are sent where the guests were observed.
    ///
    /// # Errors
    /// The environment has no such endpoint, or no client can be set up.
    pub fn actuator(&self, endpoint_name: &str) -> Result<ProxmoxActuator<ProxmoxClient>, ProxmoxError> {
        let access = self.endpoints.iter().find(|access| access.endpoint.name() == endpoint_name).ok_or(ProxmoxError::NoEndpoint)?;
        let caller = CallerIdentity { token: access.token.id.clone(), cluster: self.cluster.clone() };
        Ok(ProxmoxActuator::new(ProxmoxSession::new(access.client()?), caller))
    }

    /// Reads the identity of the cluster with one request to the endpoint of an observation, so that the identity belongs to the observed
    /// cluster.
    ///
    /// # Errors
    /// The identity cannot be read, or is not one.
    pub async fn identity(&self, report: &ObservationReport) -> Result<ClusterIdentity, IdentityError> {
        let none = || IdentityError::NoNode { endpoint: report.endpoint.clone() };
        let access = self.endpoints.iter().find(|access| access.endpoint.name() == report.endpoint).ok_or_else(none)?;
        let node = report.node.as_ref().ok_or_else(none)?;
        let session = access.session()?;
        read_identity(&session, node).await
    }

    /// Reports what the environment lacks and the commands that fix it. `report_progress` receives the current step. With a declared state,
    /// only its guests and fields matter.
    pub async fn examine(&self, desired: Option<&Desired>, report_progress: &dyn Fn(&str)) -> DoctorReport {
        let Some(token) = self.endpoints.first().map(|access| &access.token.id) else { return DoctorReport::default() };
        let endpoint_sessions = self.endpoints.iter().map(|access| {
            let (endpoint_name, trust) = (access.endpoint.name().to_owned(), access.endpoint.trust().clone());
            doctor::EndpointSession { endpoint: endpoint_name, trust, session: access.session().map_err(|error| error.to_string()) }
        });
        let endpoint_sessions: Vec<doctor::EndpointSession<ProxmoxClient>> = endpoint_sessions.collect();
        let (scope, required_verbs) = (desired.map(Desired::scope), desired.map(RequiredVerbs::from_desired));
        let (scope, required_verbs) = (scope.as_ref(), required_verbs.as_ref());
        let request =
            doctor::DoctorRequest { environment: &self.name, cluster: self.cluster.as_deref(), token, scope, wants: required_verbs };
        let doctor_answers = doctor::gather_answers(&request, &endpoint_sessions, &self.clock, report_progress).await;
        doctor::examine_answers(&doctor_answers)
    }
}

impl Observer for ProxmoxObserver {
    async fn observe(&self, environment: &EnvironmentName, scope: &Scope) -> Result<Scoped, ObserveError> {
        if self.name != *environment {
            let (found, wanted) = (self.name.to_string(), environment.to_string());
            let endpoint_name = self.endpoints.first().map_or_else(String::new, |access| access.endpoint.name().to_owned());
            return Err(ObserveError::OtherEnvironment { endpoint: endpoint_name, found, wanted });
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
        let missing_file = Trust::CaFile("no/such/file.pem".into());
        let observer = ProxmoxObserver::new(test_settings(missing_file)).expect("nothing is read yet");
        let error = observer.take_report(&Scope::new(vec![])).now_or_never().expect("no request is made").expect_err("nobody is trusted");
        assert!(matches!(&error, ProxmoxError::Client(client) if client.is_configuration_fault()), "{error}");
        assert_eq!(error.code(), Some(FailureCode::ClientSetup), "{error}");
        assert!(error.remedy().is_some_and(|remedy| remedy.contains("Fix")), "{error}");
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
