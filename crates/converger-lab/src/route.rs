//! The path of a request: server, caller, method, permission, node, parameters, and then the
//! handler. The order is that of Proxmox and decides which error is reported.
//!
//! What a method does is in `api`.

mod caller;
mod permission;
mod request_line;

use std::rc::Rc;
use std::sync::Arc;

use crate::access::ApiCaller;
use crate::api::{self, ApiCall};
use crate::decode::ResponseFormat;
use crate::events::ScheduledEvent;
use crate::fault::ResponseFault;
use crate::flavour::Flavour;
use crate::guest::LabGuestKind;
use crate::node::ServiceState;
use crate::response::{self, ApiData, ApiError, RequestHops};
use crate::schema::{self, ApiMethod, GivenParams};
use crate::wire::{LabRequest, LabResponse, WireDelivery};
use crate::world::World;
use request_line::ParsedRequestLine;

/// How long the proxy waits for a node or a daemon.
const PROXY_TIMEOUT_MS: u64 = 30_000;

/// How long clients wait for a hung proxy.
const HUNG_PROXY_TIMEOUT_MS: u64 = 60_000;

/// The page that a browser gets.
const WEB_PAGE: &str = "<!DOCTYPE html><html><head><title>Proxmox Virtual Environment</title></head><body></body></html>";

/// Whether a request is new, or is executed late because a node was slow.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RequestAttempt {
    First,
    Late,
}

/// Answers a request that arrived at `entry`, including faults.
pub(crate) fn answer_request(world: &mut World, entry: &str, request: &LabRequest) -> (Option<Arc<ApiCaller>>, LabResponse) {
    let fault = world.faults.next_request_fault(world.now_ms, request);
    match fault {
        Some(ResponseFault::LostBefore) => (None, LabResponse { delivery: WireDelivery::LostBefore, ..LabResponse::default() }),
        Some(ResponseFault::Instead { status, reason, body, html }) => (None, substitute_response(status, &reason, &body, html)),
        Some(ResponseFault::Redirect(to)) => (None, redirect_response(to)),
        fault => {
            let (caller, answer) = serve_request(world, entry, request, RequestAttempt::First);
            (caller, apply_response_fault(answer, fault))
        }
    }
}

/// Whether the body of a request is read before the response; some requests are rejected because of their head alone.
#[cfg(feature = "server")]
pub(crate) fn takes_body(request: &LabRequest) -> bool {
    caller::check_method(request).is_ok() && caller::length_refusal(request).is_none()
}

/// Executes a request whose client has already timed out.
pub(crate) fn run_late_request(world: &mut World, entry: &str, request: &LabRequest) {
    let _ = serve_request(world, entry, request, RequestAttempt::Late);
}

fn substitute_response(status: u16, reason: &str, body: &str, html: bool) -> LabResponse {
    let mut answer = response::raw_response(status, reason, body, 0);
    if html {
        answer.headers.push(("Content-Type".into(), "text/html;charset=UTF-8".into()));
    }
    answer
}

fn redirect_response(to: String) -> LabResponse {
    let mut answer = response::raw_response(301, "Moved Permanently", "Moved Permanently", 0);
    answer.headers.push(("Location".into(), to.into()));
    answer
}

fn apply_response_fault(mut answer: LabResponse, fault: Option<ResponseFault>) -> LabResponse {
    match fault {
        Some(ResponseFault::LostAfter) => answer.delivery = WireDelivery::LostAfter,
        Some(ResponseFault::Truncated(bytes)) => answer.delivery = WireDelivery::Truncated(bytes.min(answer.body.len())),
        Some(ResponseFault::Slow(delay_ms)) => answer.delay_ms = answer.delay_ms.saturating_add(delay_ms),
        Some(ResponseFault::Drip { bytes, every_ms }) => answer.delivery = WireDelivery::Drip { bytes: bytes.max(1), every_ms },
        Some(ResponseFault::Flood { bytes, unannounced }) => answer.delivery = WireDelivery::Flood { bytes, announced: !unannounced },
        Some(ResponseFault::GzipBomb(bytes)) => answer.delivery = WireDelivery::GzipBomb(bytes),
        Some(ResponseFault::After { status, reason }) => answer = response::raw_response(status, &reason, "", PROXY_TIMEOUT_MS),
        _ => {}
    }
    answer
}

fn serve_request(world: &mut World, entry: &str, request: &LabRequest, attempt: RequestAttempt) -> (Option<Arc<ApiCaller>>, LabResponse) {
    if !world.is_listening(entry) {
        // A hung proxy accepts the connection, and the client waits until its own timeout.
        let hangs = world.nodes.get(entry).is_some_and(|node| node.online && node.proxy == ServiceState::Hung);
        return (
            None,
            LabResponse {
                delay_ms: if hangs { HUNG_PROXY_TIMEOUT_MS } else { 0 },
                delivery: WireDelivery::LostBefore,
                ..LabResponse::default()
            },
        );
    }
    if caller::is_head_too_large(request) {
        return (None, LabResponse { delay_ms: 5_000, delivery: WireDelivery::CloseWithoutAnswer, ..LabResponse::default() });
    }
    let line = ParsedRequestLine::parse_cached(request, world.flavour);
    let format = *line.format.as_ref().unwrap_or(&ResponseFormat::Json);
    let mut trace = RequestProgress { caller: None, hops: RequestHops::default() };
    let outcome = run_api_call(world, entry, request, &line, attempt, &mut trace);
    (trace.caller, response::build_response(format, world.flavour, trace.hops, outcome))
}

/// What is known so far about a request that is being processed.
struct RequestProgress {
    caller: Option<Arc<ApiCaller>>,
    hops: RequestHops,
}

fn run_api_call(
    world: &mut World,
    entry: &str,
    request: &LabRequest,
    line: &ParsedRequestLine,
    attempt: RequestAttempt,
    trace: &mut RequestProgress,
) -> Result<ApiData, ApiError> {
    caller::check_method(request)?;
    if let Err(outside) = &line.format {
        return Err(outside.clone());
    }
    check_cluster_files(world, entry)?;
    trace.caller = caller::identify_caller(world, request, &line.segments)?;
    let body = caller::read_body_params(request)?;
    let path = || format!("/{}", line.segments.join("/"));
    let missing = || ApiError::NotImplemented(format!("Method '{} {}' not implemented", request.method, path()));
    let method = line.method.ok_or_else(missing)?;
    let own = body.map(|body| line.params_with(body)).transpose()?;
    let params = own.as_ref().map_or_else(|| line.params().as_ref().map_err(ApiError::clone), Ok)?;
    let caller = trace.caller.clone().unwrap_or_else(|| ApiCaller::for_user("").into());
    if caller.token.is_some() && !method.token_allowed {
        return Err(ApiError::Denied(format!("URI '{}' not available with API token, need proper ticket.\n", path())));
    }
    permission::check_permission(world, &caller, method, params)?;
    let handler = api::find_handler(method).ok_or_else(missing)?;
    let (node, hops) = proxy_to_node(world, entry, request, method, params, attempt)?;
    trace.hops = hops;
    let check = |params: GivenParams| schema::check_params(method, params, world.flavour).map(Rc::new);
    let values = match &own {
        _ if loses_body(world, request, hops) => check(path_params(method, params)),
        Some(params) => check(params.clone()),
        None => line.checked_params(method, params, world.flavour),
    };
    let call = ApiCall { method, values: values?, caller, entry: entry.to_owned(), node, kind: guest_kind(method) };
    let slow_ms = world.nodes.get(&call.node).map_or(0, |node| node.slow_ms);
    handler(world, &call).map(|data| data.with_delay(if attempt == RequestAttempt::First { slow_ms } else { 0 }))
}

/// In release 7, a JSON body was lost on the way to another node.
fn loses_body(world: &World, request: &LabRequest, hops: RequestHops) -> bool {
    let is_json = || request.find_header("Content-Type").is_some_and(|content| content.starts_with("application/json"));
    hops.remote && world.flavour == Flavour::V7 && is_json()
}

/// The parameters in the path, which are not lost.
fn path_params(method: &ApiMethod, params: &GivenParams) -> GivenParams {
    params.iter().filter(|(name, _)| method.template.contains(&format!("{{{name}}}"))).cloned().collect()
}

fn guest_kind(method: &ApiMethod) -> LabGuestKind {
    if method.is_lxc { LabGuestKind::Lxc } else { LabGuestKind::Qemu }
}

/// Without the cluster file system nobody can be authenticated; the first request waits longest.
fn check_cluster_files(world: &mut World, entry: &str) -> Result<(), ApiError> {
    let Some(node) = world.nodes.get_mut(entry).filter(|node| node.cluster_files != ServiceState::Up) else { return Ok(()) };
    node.cluster_files_requests += 1;
    let delay_ms = if node.cluster_files_requests == 1 { 10_000 } else { 3_000 };
    let reason = "RPCEnvironment init request failed: Unable to load access control list: Connection refused";
    Err(ApiError::without_body(500, reason, delay_ms))
}

/// Passes the call to the node and the daemon that it belongs to. Returns the node's name and the hops.
fn proxy_to_node(
    world: &mut World,
    entry: &str,
    request: &LabRequest,
    method: &ApiMethod,
    params: &GivenParams,
    attempt: RequestAttempt,
) -> Result<(String, RequestHops), ApiError> {
    let named = params.iter().find(|(name, _)| name == "node").filter(|_| method.on_node).map(|(_, value)| value.to_text());
    let node = match named {
        Some(name) if name != "localhost" => name,
        _ => entry.to_owned(),
    };
    let Some(target) = world.nodes.get(&node) else { return Err(unknown_node_error(&node)) };
    let remote = node != entry;
    if remote && !world.is_reachable(entry, &node) {
        return Err(ApiError::without_body(595, "No route to host", 3_000));
    }
    let refused = (remote && target.proxy != ServiceState::Up) || (method.protected && target.daemon == ServiceState::Down);
    if refused {
        return Err(ApiError::without_body(595, "Connection refused", 0));
    }
    if attempt == RequestAttempt::First {
        check_node_answers(world, entry, &node, request, method.protected)?;
    }
    Ok((node, RequestHops { daemon: method.protected, remote, read: method.verb == "GET" }))
}

fn unknown_node_error(name: &str) -> ApiError {
    ApiError::internal_error(format!("hostname lookup '{name}' failed - failed to get address info for: {name}: Name or service not known"))
}

/// A hung daemon or a very slow node accepts the request; the proxy times out, and the request is executed nevertheless.
fn check_node_answers(world: &mut World, entry: &str, name: &str, request: &LabRequest, protected: bool) -> Result<(), ApiError> {
    let timeout = || Err(ApiError::without_body(596, "Connection timed out", PROXY_TIMEOUT_MS));
    let at_ms = world.now_ms;
    let Some(node) = world.nodes.get_mut(name) else { return Ok(()) };
    if protected && node.daemon == ServiceState::Hung {
        node.backlog.push(request.clone());
        return timeout();
    }
    if node.slow_ms >= PROXY_TIMEOUT_MS && (protected || name != entry) {
        let later_ms = at_ms.saturating_add(node.slow_ms);
        world.schedule(later_ms, ScheduledEvent::DelayedRequest(entry.to_owned(), request.clone()));
        return timeout();
    }
    Ok(())
}
