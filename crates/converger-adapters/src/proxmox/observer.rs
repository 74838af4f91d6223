//! The observer of a Proxmox environment: picks one of its endpoints, and takes one reading there.
//!
//! The first endpoint with which a connection stands is the one for the whole reading; if none answers, all are named with
//! their reasons. It starts no runtime of its own: the caller awaits it on the one that the process has.

use std::sync::OnceLock;
use std::time::SystemTime;

use converger_core::desired::{Desired, Scope};
use converger_core::failure::Code;
use converger_core::guest::{ClusterIdentity, EnvironmentName, NodeName};
use converger_core::observe::{Note, Scoped};
use thiserror::Error;

use super::client::{Bounds, Client, ClientError, Endpoint, Session, Token};
use super::codec::{Cause, Command, Event, Failure, Read, Version};
use super::doctor::need::Wants;
use super::doctor::{self, Examined};
use super::hand::{Caller, Hand};
use super::identity::{IdentityError, read_identity};
use super::observe::{self, Needs, Question, Unread};
use super::time;
use crate::{ObserveError, Observer};

/// What an environment is and how it is reached.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Its name in this program.
    pub name: EnvironmentName,
    /// The name of its cluster, if it is pinned.
    pub cluster: Option<Box<str>>,
    /// Its API endpoints, in the order in which they are tried.
    pub endpoints: Vec<Endpoint>,
    /// The token that is used at all of them.
    pub token: Token,
    /// How much an exchange may take.
    pub bounds: Bounds,
}

/// The observer of one environment.
#[derive(Debug)]
pub struct Proxmox {
    name: EnvironmentName,
    cluster: Option<Box<str>>,
    ways: Vec<Way>,
    needs: Needs,
    clock: fn() -> SystemTime,
    /// The release that answered, once it was read: it is asked for once in a run, however often the guests are read.
    release: OnceLock<Version>,
}

/// How one endpoint is reached.
#[derive(Debug)]
struct Way {
    endpoint: Endpoint,
    token: Token,
    bounds: Bounds,
}

impl Way {
    fn client(&self) -> Result<Client, ClientError> {
        Client::new(self.endpoint.clone(), &self.token, self.bounds)
    }

    /// For one reading.
    fn session(&self) -> Result<Session<Client>, ClientError> {
        self.client().map(|client| Session::for_reading(client, self.bounds))
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
    #[error("{}", unanswered(.0))]
    NoAnswer(Vec<Failure>),
    /// The endpoint that answered gave no reading.
    #[error(transparent)]
    Unread(#[from] Unread),
}

fn unanswered(failures: &[Failure]) -> String {
    match failures {
        [failure] => failure.text.to_string(),
        several => format!("none of {} endpoints can be asked\n  {}", several.len(), texts(several).join("\n  ")),
    }
}

/// What happened at each, with the code under which more is said about it.
fn texts(failures: &[Failure]) -> Vec<String> {
    failures.iter().map(|failure| format!("{} ({})", failure.text, failure.cause.code().word())).collect()
}

impl ProxmoxError {
    /// The code of the failure.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::NoEndpoint => Some(Code::EnvironmentUnconfigured),
            Self::Client(client) if client.is_of_the_configuration() => Some(Code::ClientSetup),
            Self::Client(_) => Some(Code::ProcessLimited),
            Self::NoAnswer(failures) => gravest(failures),
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
fn gravest(failures: &[Failure]) -> Option<Code> {
    let is_alarm = |failure: &&Failure| failure.cause == Cause::PinMismatch;
    let first = failures.iter().find(is_alarm).or(failures.first())?;
    let is_one = is_alarm(&first) || failures.iter().all(|failure| failure.cause == first.cause);
    Some(if is_one { first.cause.code() } else { Code::EndpointUnreachable })
}

/// An endpoint that was passed over, as the reading keeps it.
fn passed(failure: &Failure, token: &str) -> Note {
    let (code, remedy) = (failure.cause.code().word().into(), observe::remedy(failure, token).into());
    Note { code, guest: None, remedy, text: failure.text.clone() }
}

/// A reading, and what it took. What people should know about it stands in it.
#[derive(Clone, Debug)]
pub struct Report {
    /// The reading in scope.
    pub reading: Scoped,
    /// The endpoint that was asked.
    pub place: String,
    /// How many requests were made.
    pub requests: u64,
    /// How many of the first notes are about endpoints that were tried before, with which no connection came about.
    pub passed_over: usize,
    /// The node that answered, or another one that is online.
    pub node: Option<NodeName>,
}

impl Proxmox {
    /// An observer of this environment that reads everything of the guests in scope.
    ///
    /// # Errors
    /// It has no endpoint.
    pub fn new(environment: Environment) -> Result<Self, ProxmoxError> {
        let Environment { name, cluster, endpoints, token, bounds } = environment;
        if endpoints.is_empty() {
            return Err(ProxmoxError::NoEndpoint);
        }
        let ways = endpoints.into_iter().map(|endpoint| Way { endpoint, token: token.clone(), bounds }).collect();
        Ok(Self { name, cluster, ways, needs: Needs::Everything, clock: SystemTime::now, release: OnceLock::new() })
    }

    /// The same, reading only what is needed.
    #[must_use]
    pub fn with_needs(self, needs: Needs) -> Self {
        Self { needs, ..self }
    }

    /// The same, with another clock.
    #[must_use]
    pub fn with_clock(self, clock: fn() -> SystemTime) -> Self {
        Self { clock, ..self }
    }

    /// Where it is asked, in the order in which they are tried.
    #[must_use]
    pub fn places(&self) -> Vec<&str> {
        self.ways.iter().map(|way| way.endpoint.place()).collect()
    }

    /// Takes one reading, and says what it took.
    ///
    /// # Errors
    /// There is no reading at all.
    pub async fn report(&self, scope: &Scope) -> Result<Report, ProxmoxError> {
        let mut passed_over = Vec::new();
        for way in &self.ways {
            let session = way.session()?;
            // What is known of a guest may be from the first answer: a reading is as old as its beginning.
            let began = (self.clock)();
            let token = way.token.id.as_str();
            let question = Question { environment: &self.name, cluster: self.cluster.as_deref(), token, scope, needs: &self.needs };
            match observe::read(&session, &question).await {
                Ok(taken) => {
                    let mut observation = taken.observation;
                    let release = self.release(&session).await;
                    observation.taken_at = Some(time::timestamp(began).into());
                    let (place, requests) = (session.place().to_owned(), session.requests());
                    let over = passed_over.iter().map(|failure| passed(failure, token));
                    let release = observe::Note::of_release(&release).map(|note| note.told(token));
                    observation.notes = over.chain(release).chain(observation.notes).collect();
                    let passed_over = passed_over.len();
                    return Ok(Report { reading: observation.within(scope), place, requests, passed_over, node: taken.node });
                }
                // Only an endpoint with which there never was a connection is passed over: a view is not exchanged for another.
                Err(Unread::Failed { failure, .. }) if session.requests() == 1 && failure.cause.is_no_connection() => {
                    passed_over.push(failure);
                }
                Err(unread) => return Err(unread.into()),
            }
        }
        Err(ProxmoxError::NoAnswer(passed_over))
    }

    async fn release(&self, session: &Session<Client>) -> Result<Version, Failure> {
        if let Some(version) = self.release.get() {
            return Ok(version.clone());
        }
        match session.call(&Command::Read(Read::Version)).await? {
            Event::Version(version) => Ok(self.release.get_or_init(|| version).clone()),
            other => Err(other.unexpected()),
        }
    }

    /// A hand at the endpoint that a [reading](Report::place) came from: what was seen there is changed there.
    ///
    /// # Errors
    /// It is no endpoint of this environment, or no client can be set up.
    pub fn hand(&self, place: &str) -> Result<Hand<Client>, ProxmoxError> {
        let way = self.ways.iter().find(|way| way.endpoint.place() == place).ok_or(ProxmoxError::NoEndpoint)?;
        let caller = Caller { token: way.token.id.clone(), cluster: self.cluster.clone() };
        Ok(Hand::new(Session::new(way.client()?), caller))
    }

    /// Reads the identity of the cluster, in one request to the endpoint that a reading came from: what was seen there is compared and changed
    /// there.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub async fn identity(&self, report: &Report) -> Result<ClusterIdentity, IdentityError> {
        let none = || IdentityError::NoNode { place: report.place.clone() };
        let way = self.ways.iter().find(|way| way.endpoint.place() == report.place).ok_or_else(none)?;
        let node = report.node.as_ref().ok_or_else(none)?;
        let session = way.session()?;
        read_identity(&session, node).await
    }

    /// Says what the environment lacks, and what to type about it. `say` is told what is being asked now.
    /// Where there is a declared state, it is about the guests and the fields of that alone.
    pub async fn examine(&self, desired: Option<&Desired>, say: &dyn Fn(&str)) -> Examined {
        let Some(token) = self.ways.first().map(|way| &way.token.id) else { return Examined::default() };
        let ways = self.ways.iter().map(|way| {
            let (place, trust) = (way.endpoint.place().to_owned(), way.endpoint.trust().clone());
            doctor::Way { place, trust, session: way.session().map_err(|error| error.to_string()) }
        });
        let ways: Vec<doctor::Way<Client>> = ways.collect();
        let (scope, wants) = (desired.map(Desired::scope), desired.map(Wants::of));
        let (scope, wants) = (scope.as_ref(), wants.as_ref());
        let asked = doctor::Asked { environment: &self.name, cluster: self.cluster.as_deref(), token, scope, wants };
        let gathered = doctor::gather(&asked, &ways, &self.clock, say).await;
        doctor::findings(&gathered)
    }
}

impl Observer for Proxmox {
    async fn observe(&self, environment: &EnvironmentName, scope: &Scope) -> Result<Scoped, ObserveError> {
        if self.name != *environment {
            let (found, wanted) = (self.name.to_string(), environment.to_string());
            let place = self.ways.first().map_or_else(String::new, |way| way.endpoint.place().to_owned());
            return Err(ObserveError::OtherEnvironment { place, found, wanted });
        }
        self.report(scope).await.map(|report| report.reading).map_err(|error| ObserveError::Proxmox(Box::new(error)))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::super::client::{Fingerprint, Secret, TokenId, Trust};
    use super::*;

    fn environment(trust: Trust) -> Environment {
        let token = Token {
            id: TokenId::new("svc@pve!probe").expect("an id"),
            secret: Secret::new("f3b1c8de-0000-4000-8000-123456789abc").expect("a secret"),
        };
        let endpoint = Endpoint::new("https://127.0.0.1:1", trust).expect("an address");
        Environment {
            name: EnvironmentName::new("lab").expect("a name"),
            cluster: None,
            endpoints: vec![endpoint],
            token,
            bounds: Bounds::default(),
        }
    }

    #[test]
    fn a_connection_that_cannot_be_made_ready_has_a_code_and_a_remedy() {
        let gone = Trust::CaFile("no/such/file.pem".into());
        let observer = Proxmox::new(environment(gone)).expect("nothing is read yet");
        let error = observer.report(&Scope::new(vec![])).now_or_never().expect("no request is made").expect_err("nobody is trusted");
        assert!(matches!(&error, ProxmoxError::Client(client) if client.is_of_the_configuration()), "{error}");
        assert_eq!(error.code(), Some(Code::ClientSetup), "{error}");
        assert!(error.remedy().is_some_and(|remedy| remedy.contains("Mend")), "{error}");
    }

    #[test]
    fn that_nothing_is_configured_has_a_code_of_its_own() {
        let nowhere = Environment { endpoints: vec![], ..environment(Trust::Fingerprints([Fingerprint::of(b"x")].into())) };
        let error = Proxmox::new(nowhere).expect_err("nowhere to ask");
        assert_eq!(error.code(), Some(Code::EnvironmentUnconfigured));
        assert!(error.remedy().is_some_and(|remedy| remedy.contains("converger.toml")), "{error}");
    }
}
