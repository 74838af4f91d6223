//! Asks an environment everything that the findings rest on: each thing once, and nothing is written (G4, G5). Only the state of the
//! cluster is asked for again at the end, as every reading does.
//!
//! Every endpoint is asked who it is; the rest is asked of the first one that answers to the token and is in the right cluster.
//! What never enters: what an answer means (`doctor`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use converger_core::desired::Scope;
use converger_core::guest::{EnvironmentName, NodeName, Vmid};
use futures_util::future::join_all;

use super::need::Wants;
use crate::proxmox::client::{Distrust, Exchange, Fingerprint, REQUESTS_PER_NODE_MAX, Session, TokenId, Trust, Validity};
use crate::proxmox::codec::{
    Cause, Cluster, Command, Delivery, Event, Failure, HaStatus, Permissions, Read, Resource, Roles, TagOptions, User, UserId, Version,
};
use crate::proxmox::observe::{self, BegunWith, Need, Needs, Question, Taken, Unread};
use crate::proxmox::time;

/// So many guests are read one by one for what waits in their configs; of more, only what the list says.
pub(super) const DETAILS_MAX: usize = 100;

/// So many guests that no list shows are asked for one by one.
const ASKED_MAX: usize = 32;

/// Whom and what about.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The environment.
    pub environment: &'a EnvironmentName,
    /// The name of its cluster, if it is pinned.
    pub cluster: Option<&'a str>,
    /// The id of the token that asks.
    pub token: &'a TokenId,
    /// The guests; `None`: all that the token sees.
    pub scope: Option<&'a Scope>,
    /// What is to be done to them; `None`: whatever can be.
    pub wants: Option<&'a Wants>,
}

/// A way to one endpoint, or why there is none.
#[derive(Debug)]
pub struct Way<E> {
    /// The endpoint, for messages.
    pub place: String,
    /// Whom to trust there.
    pub trust: Trust,
    /// The session.
    pub session: Result<Session<E>, String>,
}

/// Everything that was answered.
#[derive(Debug)]
pub struct Gathered {
    pub(super) cluster: Option<String>,
    pub(super) token: TokenId,
    pub(super) scope: Option<Scope>,
    pub(super) wants: Option<Wants>,
    pub(super) now_secs: u64,
    pub(super) endpoints: Vec<EndpointSeen>,
    /// What the endpoint that was asked for the rest said.
    pub(super) answers: Option<Answers>,
}

/// What an endpoint said and showed of itself.
#[derive(Debug)]
pub(super) struct EndpointSeen {
    pub(super) place: String,
    pub(super) trust: Trust,
    /// Its release, why it does not say, or why it could not be asked.
    pub(super) version: Result<Version, Unasked>,
    /// The cluster that it is in, if it was asked.
    pub(super) cluster: Option<Result<Cluster, Failure>>,
    pub(super) fingerprint: Option<Fingerprint>,
    pub(super) validity: Option<Validity>,
    pub(super) distrust: Option<Distrust>,
    pub(super) ahead_secs: Option<i64>,
}

/// Why an endpoint does not say which release it is.
#[derive(Debug)]
pub(super) enum Unasked {
    /// It could not be asked: there is no client for it.
    NoWay(String),
    /// It was, and this came of it.
    Failed(Failure),
}

/// What one endpoint said about the rest.
#[derive(Debug)]
pub(super) struct Answers {
    pub(super) place: String,
    pub(super) version: Version,
    pub(super) cluster: Result<Cluster, Failure>,
    pub(super) permissions: Result<Permissions, Failure>,
    /// What the token's user may do.
    pub(super) owner: Result<Permissions, Failure>,
    pub(super) user: Result<User, Failure>,
    pub(super) roles: Result<Roles, Failure>,
    pub(super) ha: Result<HaStatus, Failure>,
    /// The datacenter's rules for tags, where tags are declared.
    pub(super) tag_options: Option<Result<TagOptions, Failure>>,
    pub(super) nodes: BTreeMap<NodeName, NodeSeen>,
    pub(super) reading: Result<Taken, Unread>,
    /// The guests that it is about.
    pub(super) guests: Scope,
    /// What the token may do on guests that no list shows, where that was answered.
    pub(super) asked: BTreeMap<Vmid, Permissions>,
}

/// What a node said about itself.
#[derive(Debug)]
pub(super) struct NodeSeen {
    pub(super) version: Result<Version, Failure>,
    pub(super) ahead_secs: Result<i64, Failure>,
}

/// Asks. `clock` is our clock, and `say` is told what is being asked now.
pub async fn gather<E: Exchange>(asked: &Asked<'_>, ways: &[Way<E>], clock: &dyn Fn() -> SystemTime, say: &dyn Fn(&str)) -> Gathered {
    let places: Vec<&str> = ways.iter().map(|way| way.place.as_str()).collect();
    say(&places.join(", "));
    let endpoints = join_all(ways.iter().map(|way| endpoint(way, clock))).await;
    let answering = endpoints.iter().zip(ways).find_map(|(seen, way)| {
        let version = seen.version.as_ref().ok().filter(|_| is_right(seen, asked.cluster))?;
        Some((way.session.as_ref().ok()?, version.clone(), seen.cluster.clone()?))
    });
    let answers = match answering {
        Some((session, version, cluster)) => Some(answers(asked, session, (version, cluster), clock, say).await),
        None => None,
    };
    Gathered {
        cluster: asked.cluster.map(str::to_owned),
        token: asked.token.clone(),
        scope: asked.scope.cloned(),
        wants: asked.wants.cloned(),
        now_secs: time::since_1970(clock()),
        endpoints,
        answers,
    }
}

/// Whether an endpoint may be asked for more: not one that is in another cluster than the one that is meant.
fn is_right(seen: &EndpointSeen, pinned: Option<&str>) -> bool {
    let known = seen.cluster.as_ref().and_then(|cluster| cluster.as_ref().ok());
    known.zip(pinned).is_none_or(|(cluster, pinned)| cluster.known_as() == pinned)
}

async fn endpoint<E: Exchange>(way: &Way<E>, clock: &dyn Fn() -> SystemTime) -> EndpointSeen {
    let (place, trust) = (way.place.clone(), way.trust.clone());
    let session = match &way.session {
        Ok(session) => session,
        Err(error) => {
            let version = Err(Unasked::NoWay(error.clone()));
            return EndpointSeen {
                place,
                trust,
                version,
                cluster: None,
                fingerprint: None,
                validity: None,
                distrust: None,
                ahead_secs: None,
            };
        }
    };
    let version = version(session, Read::Version).await;
    let now = clock();
    let watch = session.watch();
    let cluster = match version {
        Ok(_) => Some(observe::cluster(session).await),
        Err(_) => None,
    };
    EndpointSeen {
        place,
        trust,
        version: version.map_err(Unasked::Failed),
        cluster,
        fingerprint: watch.fingerprint(),
        validity: watch.validity(),
        distrust: watch.distrust(),
        ahead_secs: watch.date().and_then(|date| time::ahead_secs(&date, now)),
    }
}

async fn version<E: Exchange>(session: &Session<E>, read: Read) -> Result<Version, Failure> {
    match session.call(&Command::Read(read)).await? {
        Event::Version(version) => Ok(version),
        other => Err(other.unexpected()),
    }
}

async fn answers<E: Exchange>(
    asked: &Asked<'_>,
    session: &Session<E>,
    (version, cluster): (Version, Result<Cluster, Failure>),
    clock: &dyn Fn() -> SystemTime,
    say: &dyn Fn(&str),
) -> Answers {
    say("what the token may do");
    let permissions = permissions(session, Read::Permissions).await;
    let (owner, user) = owner(asked, session).await;
    let roles = roles(session).await;
    say("high availability and nodes");
    let ha = ha(session).await;
    let tag_options = tag_options(asked, session).await;
    let nodes = nodes(session, cluster.as_ref().ok(), clock).await;
    let (guests, reading) = guests(asked, session, cluster.clone(), say).await;
    let asked = hidden(session, &guests, &reading, permissions.as_ref().ok()).await;
    let place = session.place().to_owned();
    Answers { place, version, cluster, permissions, owner, user, roles, ha, tag_options, nodes, reading, guests, asked }
}

async fn permissions<E: Exchange>(session: &Session<E>, read: Read) -> Result<Permissions, Failure> {
    match session.call(&Command::Read(read)).await? {
        Event::Permissions(permissions) => Ok(permissions),
        other => Err(other.unexpected()),
    }
}

/// What the token's user may do, and what is written about user and token.
async fn owner<E: Exchange>(asked: &Asked<'_>, session: &Session<E>) -> (Result<Permissions, Failure>, Result<User, Failure>) {
    let Some(user) = UserId::new(asked.token.user()) else {
        let unnamed = || Failure::lost(Delivery::NotDelivered, Cause::Other, "the user has a name that cannot be asked for");
        return (Err(unnamed()), Err(unnamed()));
    };
    let owner = permissions(session, Read::PermissionsOf(user.clone())).await;
    let user = match session.call(&Command::Read(Read::User(user))).await {
        Ok(Event::User(user)) => Ok(user),
        Ok(other) => Err(other.unexpected()),
        Err(failure) => Err(failure),
    };
    (owner, user)
}

async fn roles<E: Exchange>(session: &Session<E>) -> Result<Roles, Failure> {
    match session.call(&Command::Read(Read::Roles)).await? {
        Event::Roles(roles) => Ok(roles),
        other => Err(other.unexpected()),
    }
}

async fn ha<E: Exchange>(session: &Session<E>) -> Result<HaStatus, Failure> {
    match session.call(&Command::Read(Read::HaStatus)).await? {
        Event::Ha(status) => Ok(status),
        other => Err(other.unexpected()),
    }
}

async fn tag_options<E: Exchange>(asked: &Asked<'_>, session: &Session<E>) -> Option<Result<TagOptions, Failure>> {
    asked.wants.filter(|wants| !wants.tags().is_empty())?;
    Some(match session.call(&Command::Read(Read::TagOptions)).await {
        Ok(Event::TagOptions(options)) => Ok(options),
        Ok(other) => Err(other.unexpected()),
        Err(failure) => Err(failure),
    })
}

/// Each node that is online. One that is not would only be waited for.
async fn nodes<E: Exchange>(
    session: &Session<E>,
    cluster: Option<&Cluster>,
    clock: &dyn Fn() -> SystemTime,
) -> BTreeMap<NodeName, NodeSeen> {
    let online = cluster.into_iter().flat_map(|cluster| &cluster.nodes).filter(|(_, online)| **online);
    let seen = online.map(|(name, _)| async move {
        let version = version(session, Read::NodeVersion(name.clone())).await;
        let time = session.call(&Command::Read(Read::NodeTime(name.clone()))).await;
        let now_secs = time::since_1970(clock());
        let ahead_secs = match time {
            Ok(Event::NodeTime(theirs)) => Ok(time::between_secs(theirs, now_secs)),
            Ok(other) => Err(other.unexpected()),
            Err(failure) => Err(failure),
        };
        (name.clone(), NodeSeen { version, ahead_secs })
    });
    join_all(seen).await.into_iter().collect()
}

/// One reading of the guests: with their configs of a few, from the list of many.
async fn guests<E: Exchange>(
    asked: &Asked<'_>,
    session: &Session<E>,
    cluster: Result<Cluster, Failure>,
    say: &dyn Fn(&str),
) -> (Scope, Result<Taken, Unread>) {
    let list = observe::list(session).await;
    let listed = list.as_ref().map(|list| list.rows.as_slice()).unwrap_or_default();
    let scope = asked.scope.cloned().unwrap_or_else(|| Scope::new(listed.iter().map(|row| row.vmid).collect()));
    let count = scope.ids().len();
    say(&format!("{count} guests"));
    let is_read = |row: &&Resource| asked.scope.is_some() && count <= DETAILS_MAX && scope.has(row.vmid);
    let needs = Needs::Declared(listed.iter().filter(is_read).map(|row| (row.vmid, config_of(row))).collect());
    let token = asked.token.as_str();
    let question = Question { environment: asked.environment, cluster: asked.cluster, token, scope: &scope, needs: &needs };
    let reading = observe::read_on(session, &question, BegunWith { cluster, list }).await;
    (scope, reading)
}

/// What is looked at of a guest: what its config holds, and what waits in it.
fn config_of(row: &Resource) -> Need {
    Need { kind: row.kind, state: None, config: true, tags: false }
}

/// What the token may do on guests of which neither the dump nor the list says anything.
async fn hidden<E: Exchange>(
    session: &Session<E>,
    guests: &Scope,
    reading: &Result<Taken, Unread>,
    dump: Option<&Permissions>,
) -> BTreeMap<Vmid, Permissions> {
    let Some(dump) = dump else { return BTreeMap::new() };
    let shown = shown(reading);
    let is_silent = |vmid: &Vmid| !shown.contains(vmid) && !dump.0.contains_key(format!("/vms/{vmid}").as_str());
    let silent: Vec<Vmid> = guests.ids().iter().copied().filter(is_silent).take(ASKED_MAX).collect();
    let mut asked = BTreeMap::new();
    for group in silent.chunks(REQUESTS_PER_NODE_MAX) {
        let answers = join_all(group.iter().map(|vmid| permissions(session, Read::PermissionsOn(*vmid)))).await;
        asked.extend(group.iter().zip(answers).filter_map(|(vmid, answer)| Some((*vmid, answer.ok()?))));
    }
    asked
}

/// The guests that the list showed.
pub(super) fn shown(reading: &Result<Taken, Unread>) -> BTreeSet<Vmid> {
    reading.iter().flat_map(|taken| taken.observation.guests.iter()).map(|row| row.vmid).collect()
}
