//! Sends the requests that the findings need, each once, and writes nothing (G4, G5). Only the state of the cluster is read again at the
//! end, as in every observation.
//!
//! Every endpoint is asked for its release and cluster. The rest is read from the first endpoint that accepts the token and is in the right
//! cluster. Must not interpret the responses (`doctor`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use converger_core::desired::Scope;
use converger_core::guest::{EnvironmentName, NodeName, Vmid};
use futures_util::future::join_all;

use super::privilege_needs::RequiredVerbs;
use crate::proxmox::client::{
    CertificateValidity, Fingerprint, ProxmoxSession, ProxmoxTransport, REQUESTS_PER_NODE_MAX, TokenId, Trust, TrustFailure,
};
use crate::proxmox::codec::{
    ClusterStatus, Delivery, FailureCause, GuestResource, HaStatus, Permissions, ProxmoxCommand, ProxmoxEvent, ProxmoxFailure, ProxmoxRead,
    ProxmoxUser, ProxmoxVersion, RolePrivileges, TagOptions, UserId,
};
use crate::proxmox::observe::{self, ExtraReads, GuestNeed, InitialAnswers, ObservationRequest, ProxmoxReading, ReadSet, ReadingError};
use crate::proxmox::time;

/// Maximum number of guests whose configs are read for pending changes; with more guests, only the list is used.
pub(super) const DETAILS_MAX: usize = 100;

/// Maximum number of unlisted guests whose permissions are read one by one.
const HIDDEN_GUESTS_MAX: usize = 32;

/// What to examine.
#[derive(Clone, Copy, Debug)]
pub struct DoctorRequest<'a> {
    /// The environment.
    pub environment: &'a EnvironmentName,
    /// The name of its cluster, if pinned.
    pub cluster: Option<&'a str>,
    /// The id of the token.
    pub token: &'a TokenId,
    /// The guests; `None` for all guests that the token sees.
    pub scope: Option<&'a Scope>,
    /// The verbs that they need; `None` for all verbs.
    pub wants: Option<&'a RequiredVerbs>,
}

/// An endpoint with its session, or the reason why there is none.
#[derive(Debug)]
pub struct EndpointSession<E> {
    /// The name of the endpoint, for messages.
    pub endpoint: String,
    /// What to trust there.
    pub trust: Trust,
    /// The session.
    pub session: Result<ProxmoxSession<E>, String>,
}

/// All responses.
#[derive(Debug)]
pub struct DoctorAnswers {
    pub(super) cluster: Option<String>,
    pub(super) token: TokenId,
    pub(super) scope: Option<Scope>,
    pub(super) wants: Option<RequiredVerbs>,
    pub(super) now_secs: u64,
    pub(super) endpoints: Vec<EndpointAnswers>,
    /// The responses of the endpoint that was asked for the rest.
    pub(super) answers: Option<EnvironmentAnswers>,
}

/// What an endpoint responded and presented of itself.
#[derive(Debug)]
pub(super) struct EndpointAnswers {
    pub(super) endpoint: String,
    pub(super) trust: Trust,
    /// Its release, or why that is unknown.
    pub(super) version: Result<ProxmoxVersion, VersionFailure>,
    /// Its cluster, if it was asked.
    pub(super) cluster: Option<Result<ClusterStatus, ProxmoxFailure>>,
    pub(super) fingerprint: Option<Fingerprint>,
    pub(super) validity: Option<CertificateValidity>,
    pub(super) distrust: Option<TrustFailure>,
    pub(super) ahead_secs: Option<i64>,
}

/// Why the release of an endpoint is unknown.
#[derive(Debug)]
pub(super) enum VersionFailure {
    /// There is no client for it.
    NoClient(String),
    /// The request failed.
    Failed(ProxmoxFailure),
}

/// What one endpoint responded about the environment.
#[derive(Debug)]
pub(super) struct EnvironmentAnswers {
    pub(super) endpoint: String,
    pub(super) version: ProxmoxVersion,
    pub(super) cluster: Result<ClusterStatus, ProxmoxFailure>,
    pub(super) permissions: Result<Permissions, ProxmoxFailure>,
    /// The permissions of the token's user.
    pub(super) owner: Result<Permissions, ProxmoxFailure>,
    pub(super) user: Result<ProxmoxUser, ProxmoxFailure>,
    pub(super) roles: Result<RolePrivileges, ProxmoxFailure>,
    pub(super) ha: Result<HaStatus, ProxmoxFailure>,
    /// The datacenter's rules for tags, if tags are declared.
    pub(super) tag_options: Option<Result<TagOptions, ProxmoxFailure>>,
    pub(super) nodes: BTreeMap<NodeName, NodeAnswers>,
    pub(super) reading: Result<ProxmoxReading, ReadingError>,
    /// The examined guests.
    pub(super) guests: Scope,
    /// The permissions of the token on unlisted guests, as far as they could be read.
    pub(super) hidden_permissions: BTreeMap<Vmid, Permissions>,
}

/// What a node reported about itself.
#[derive(Debug)]
pub(super) struct NodeAnswers {
    pub(super) version: Result<ProxmoxVersion, ProxmoxFailure>,
    pub(super) ahead_secs: Result<i64, ProxmoxFailure>,
}

/// Sends all requests. `clock` is our clock; `report_progress` receives the current step.
pub async fn gather_answers<E: ProxmoxTransport>(
    request: &DoctorRequest<'_>,
    endpoint_sessions: &[EndpointSession<E>],
    clock: &dyn Fn() -> SystemTime,
    report_progress: &dyn Fn(&str),
) -> DoctorAnswers {
    let endpoint_names: Vec<&str> = endpoint_sessions.iter().map(|endpoint_session| endpoint_session.endpoint.as_str()).collect();
    report_progress(&endpoint_names.join(", "));
    let endpoints = join_all(endpoint_sessions.iter().map(|endpoint_session| ask_endpoint(endpoint_session, clock))).await;
    let answering_endpoint = endpoints.iter().zip(endpoint_sessions).find_map(|(seen, endpoint_session)| {
        let version = seen.version.as_ref().ok().filter(|_| is_expected_cluster(seen, request.cluster))?;
        Some((endpoint_session.session.as_ref().ok()?, version.clone(), seen.cluster.clone()?))
    });
    let answers = match answering_endpoint {
        Some((session, version, cluster)) => Some(ask_environment(request, session, (version, cluster), clock, report_progress).await),
        None => None,
    };
    DoctorAnswers {
        cluster: request.cluster.map(str::to_owned),
        token: request.token.clone(),
        scope: request.scope.cloned(),
        wants: request.wants.cloned(),
        now_secs: time::epoch_secs(clock()),
        endpoints,
        answers,
    }
}

/// Whether an endpoint may be asked for more. One in another cluster than the pinned one may not.
fn is_expected_cluster(seen: &EndpointAnswers, pinned: Option<&str>) -> bool {
    let known = seen.cluster.as_ref().and_then(|cluster| cluster.as_ref().ok());
    known.zip(pinned).is_none_or(|(cluster, pinned)| cluster.effective_name() == pinned)
}

async fn ask_endpoint<E: ProxmoxTransport>(endpoint_session: &EndpointSession<E>, clock: &dyn Fn() -> SystemTime) -> EndpointAnswers {
    let (endpoint_name, trust) = (endpoint_session.endpoint.clone(), endpoint_session.trust.clone());
    let session = match &endpoint_session.session {
        Ok(session) => session,
        Err(error) => {
            let version = Err(VersionFailure::NoClient(error.clone()));
            return EndpointAnswers {
                endpoint: endpoint_name,
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
    let version = ask_version(session, ProxmoxRead::Version).await;
    let now = clock();
    let watch = session.monitor();
    let cluster = match version {
        Ok(_) => Some(observe::read_cluster(session).await),
        Err(_) => None,
    };
    EndpointAnswers {
        endpoint: endpoint_name,
        trust,
        version: version.map_err(VersionFailure::Failed),
        cluster,
        fingerprint: watch.fingerprint(),
        validity: watch.validity(),
        distrust: watch.distrust(),
        ahead_secs: watch.date().and_then(|date| time::ahead_secs(&date, now)),
    }
}

async fn ask_version<E: ProxmoxTransport>(session: &ProxmoxSession<E>, read: ProxmoxRead) -> Result<ProxmoxVersion, ProxmoxFailure> {
    match session.call(&ProxmoxCommand::Read(read)).await? {
        ProxmoxEvent::Version(version) => Ok(version),
        other => Err(other.unexpected_failure()),
    }
}

async fn ask_environment<E: ProxmoxTransport>(
    request: &DoctorRequest<'_>,
    session: &ProxmoxSession<E>,
    (version, cluster): (ProxmoxVersion, Result<ClusterStatus, ProxmoxFailure>),
    clock: &dyn Fn() -> SystemTime,
    report_progress: &dyn Fn(&str),
) -> EnvironmentAnswers {
    report_progress("permissions of the token");
    let permissions = ask_permissions(session, ProxmoxRead::Permissions).await;
    let (owner, user) = ask_owner(request, session).await;
    let roles = ask_roles(session).await;
    report_progress("high availability and nodes");
    let ha = ask_ha(session).await;
    let tag_options = tag_options(request, session).await;
    let nodes = ask_nodes(session, cluster.as_ref().ok(), clock).await;
    let (guests, reading) = ask_guests(request, session, cluster.clone(), report_progress).await;
    let hidden_permissions = ask_hidden_guests(session, &guests, &reading, permissions.as_ref().ok()).await;
    let endpoint_name = session.endpoint_name().to_owned();
    EnvironmentAnswers {
        endpoint: endpoint_name,
        version,
        cluster,
        permissions,
        owner,
        user,
        roles,
        ha,
        tag_options,
        nodes,
        reading,
        guests,
        hidden_permissions,
    }
}

async fn ask_permissions<E: ProxmoxTransport>(session: &ProxmoxSession<E>, read: ProxmoxRead) -> Result<Permissions, ProxmoxFailure> {
    match session.call(&ProxmoxCommand::Read(read)).await? {
        ProxmoxEvent::Permissions(permissions) => Ok(permissions),
        other => Err(other.unexpected_failure()),
    }
}

/// Reads the permissions of the token's user, and the settings of user and token.
async fn ask_owner<E: ProxmoxTransport>(
    request: &DoctorRequest<'_>,
    session: &ProxmoxSession<E>,
) -> (Result<Permissions, ProxmoxFailure>, Result<ProxmoxUser, ProxmoxFailure>) {
    let Some(user) = UserId::new(request.token.user()) else {
        let unnamed = || {
            ProxmoxFailure::without_response(Delivery::NotDelivered, FailureCause::Other, "the user name cannot be part of an API request")
        };
        return (Err(unnamed()), Err(unnamed()));
    };
    let owner = ask_permissions(session, ProxmoxRead::PermissionsOf(user.clone())).await;
    let user = match session.call(&ProxmoxCommand::Read(ProxmoxRead::User(user))).await {
        Ok(ProxmoxEvent::User(user)) => Ok(user),
        Ok(other) => Err(other.unexpected_failure()),
        Err(failure) => Err(failure),
    };
    (owner, user)
}

async fn ask_roles<E: ProxmoxTransport>(session: &ProxmoxSession<E>) -> Result<RolePrivileges, ProxmoxFailure> {
    match session.call(&ProxmoxCommand::Read(ProxmoxRead::Roles)).await? {
        ProxmoxEvent::Roles(roles) => Ok(roles),
        other => Err(other.unexpected_failure()),
    }
}

async fn ask_ha<E: ProxmoxTransport>(session: &ProxmoxSession<E>) -> Result<HaStatus, ProxmoxFailure> {
    match session.call(&ProxmoxCommand::Read(ProxmoxRead::HaStatus)).await? {
        ProxmoxEvent::Ha(status) => Ok(status),
        other => Err(other.unexpected_failure()),
    }
}

async fn tag_options<E: ProxmoxTransport>(
    request: &DoctorRequest<'_>,
    session: &ProxmoxSession<E>,
) -> Option<Result<TagOptions, ProxmoxFailure>> {
    request.wants.filter(|required_verbs| !required_verbs.tags().is_empty())?;
    Some(match session.call(&ProxmoxCommand::Read(ProxmoxRead::TagOptions)).await {
        Ok(ProxmoxEvent::TagOptions(options)) => Ok(options),
        Ok(other) => Err(other.unexpected_failure()),
        Err(failure) => Err(failure),
    })
}

/// Asks each node that is online. The others would only cause timeouts.
async fn ask_nodes<E: ProxmoxTransport>(
    session: &ProxmoxSession<E>,
    cluster: Option<&ClusterStatus>,
    clock: &dyn Fn() -> SystemTime,
) -> BTreeMap<NodeName, NodeAnswers> {
    let online = cluster.into_iter().flat_map(|cluster| &cluster.nodes).filter(|(_, online)| **online);
    let seen = online.map(|(name, _)| async move {
        let version = ask_version(session, ProxmoxRead::NodeVersion(name.clone())).await;
        let time = session.call(&ProxmoxCommand::Read(ProxmoxRead::NodeTime(name.clone()))).await;
        let now_secs = time::epoch_secs(clock());
        let ahead_secs = match time {
            Ok(ProxmoxEvent::NodeTime(remote_secs)) => Ok(time::signed_difference_secs(remote_secs, now_secs)),
            Ok(other) => Err(other.unexpected_failure()),
            Err(failure) => Err(failure),
        };
        (name.clone(), NodeAnswers { version, ahead_secs })
    });
    join_all(seen).await.into_iter().collect()
}

/// Observes the guests: with configs if they are few, otherwise from the list.
async fn ask_guests<E: ProxmoxTransport>(
    request: &DoctorRequest<'_>,
    session: &ProxmoxSession<E>,
    cluster: Result<ClusterStatus, ProxmoxFailure>,
    report_progress: &dyn Fn(&str),
) -> (Scope, Result<ProxmoxReading, ReadingError>) {
    let list = observe::read_list(session).await;
    let listed = list.as_ref().map(|list| list.rows.as_slice()).unwrap_or_default();
    let scope = request.scope.cloned().unwrap_or_else(|| Scope::new(listed.iter().map(|row| row.vmid).collect()));
    let count = scope.ids().len();
    report_progress(&format!("{count} guests"));
    let is_read = |row: &&GuestResource| request.scope.is_some() && count <= DETAILS_MAX && scope.contains(row.vmid);
    let needs = ReadSet::Declared(listed.iter().filter(is_read).map(|row| (row.vmid, config_need(row))).collect());
    let token = request.token.as_str();
    let question = ObservationRequest { environment: request.environment, cluster: request.cluster, token, scope: &scope, needs: &needs };
    let reading = observe::continue_reading(session, &question, InitialAnswers { cluster, list }).await;
    (scope, reading)
}

/// Needs of a guest: its config with pending changes.
fn config_need(row: &GuestResource) -> GuestNeed {
    GuestNeed { kind: row.kind, state: None, config: true, tags: false, extras: ExtraReads::default() }
}

/// Reads the permissions on guests that neither the permission dump nor the list mentions.
async fn ask_hidden_guests<E: ProxmoxTransport>(
    session: &ProxmoxSession<E>,
    guests: &Scope,
    reading: &Result<ProxmoxReading, ReadingError>,
    dump: Option<&Permissions>,
) -> BTreeMap<Vmid, Permissions> {
    let Some(dump) = dump else { return BTreeMap::new() };
    let listed = listed_guests(reading);
    let is_silent = |vmid: &Vmid| !listed.contains(vmid) && !dump.0.contains_key(format!("/vms/{vmid}").as_str());
    let hidden_guests: Vec<Vmid> = guests.ids().iter().copied().filter(is_silent).take(HIDDEN_GUESTS_MAX).collect();
    let mut hidden_permissions = BTreeMap::new();
    for group in hidden_guests.chunks(REQUESTS_PER_NODE_MAX) {
        let answers = join_all(group.iter().map(|vmid| ask_permissions(session, ProxmoxRead::PermissionsOn(*vmid)))).await;
        hidden_permissions.extend(group.iter().zip(answers).filter_map(|(vmid, answer)| Some((*vmid, answer.ok()?))));
    }
    hidden_permissions
}

/// The guests in the list.
pub(super) fn listed_guests(reading: &Result<ProxmoxReading, ReadingError>) -> BTreeSet<Vmid> {
    reading.iter().flat_map(|proxmox_reading| proxmox_reading.observation.guests.iter()).map(|row| row.vmid).collect()
}
