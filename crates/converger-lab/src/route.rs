//! The way of a request: server, caller, method, permission, node, parameters, and only then the
//! method itself. The order is Proxmox's and decides which error wins.
//!
//! What never enters here: what a method does (see `api`).

mod caller;
mod line;
mod permission;

use std::rc::Rc;
use std::sync::Arc;

use crate::access::Who;
use crate::api::{self, Call};
use crate::decode::Format;
use crate::engine::Event;
use crate::fault::Twist;
use crate::flavour::Flavour;
use crate::guest::Kind;
use crate::node::Service;
use crate::respond::{self, Data, Fail, Way};
use crate::schema::{self, Method, Params};
use crate::wire::{Answer, Fate, Request};
use crate::world::World;
use line::Line;

/// The proxy waits so long for a node or a daemon.
const PROXY_MS: u64 = 30_000;

/// Nobody waits longer than that for a proxy that hangs.
const HUNG_MS: u64 = 60_000;

/// What people see who open the address in a browser.
const PAGE: &str = "<!DOCTYPE html><html><head><title>Proxmox Virtual Environment</title></head><body></body></html>";

/// Whether a request comes for the first time, or is carried out late because a node was slow.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trip {
    First,
    Late,
}

/// Answer a request that arrived at `entry`, faults included.
pub(crate) fn answer(world: &mut World, entry: &str, request: &Request) -> (Option<Arc<Who>>, Answer) {
    let twist = world.faults.request(world.now_ms, request);
    match twist {
        Some(Twist::LostBefore) => (None, Answer { fate: Fate::LostBefore, ..Answer::default() }),
        Some(Twist::Instead { status, reason, body, html }) => (None, instead(status, &reason, &body, html)),
        Some(Twist::Redirect(to)) => (None, redirect(to)),
        twist => {
            let (who, answer) = serve(world, entry, request, Trip::First);
            (who, twisted(answer, twist))
        }
    }
}

/// Whether the body of a request is received before it is answered: its head alone can be reason enough to refuse it.
#[cfg(feature = "server")]
pub(crate) fn takes_body(request: &Request) -> bool {
    caller::check_method(request).is_ok() && caller::refused_length(request).is_none()
}

/// Carry out a request whose caller no longer waits.
pub(crate) fn carry_out(world: &mut World, entry: &str, request: &Request) {
    let _ = serve(world, entry, request, Trip::Late);
}

fn instead(status: u16, reason: &str, body: &str, html: bool) -> Answer {
    let mut answer = respond::raw(status, reason, body, 0);
    if html {
        answer.headers.push(("Content-Type".into(), "text/html;charset=UTF-8".into()));
    }
    answer
}

fn redirect(to: String) -> Answer {
    let mut answer = respond::raw(301, "Moved Permanently", "Moved Permanently", 0);
    answer.headers.push(("Location".into(), to.into()));
    answer
}

fn twisted(mut answer: Answer, twist: Option<Twist>) -> Answer {
    match twist {
        Some(Twist::LostAfter) => answer.fate = Fate::LostAfter,
        Some(Twist::Truncated(bytes)) => answer.fate = Fate::Truncated(bytes.min(answer.body.len())),
        Some(Twist::Slow(delay_ms)) => answer.delay_ms = answer.delay_ms.saturating_add(delay_ms),
        Some(Twist::Drip { bytes, every_ms }) => answer.fate = Fate::Drip { bytes: bytes.max(1), every_ms },
        Some(Twist::Flood { bytes, unannounced }) => answer.fate = Fate::Flood { bytes, announced: !unannounced },
        Some(Twist::GzipBomb(bytes)) => answer.fate = Fate::GzipBomb(bytes),
        Some(Twist::After { status, reason }) => answer = respond::raw(status, &reason, "", PROXY_MS),
        _ => {}
    }
    answer
}

fn serve(world: &mut World, entry: &str, request: &Request, trip: Trip) -> (Option<Arc<Who>>, Answer) {
    if !world.listens_at(entry) {
        // A proxy that hangs takes the connection, and the caller waits as long as it has patience.
        let hangs = world.nodes.get(entry).is_some_and(|node| node.online && node.proxy == Service::Hung);
        return (None, Answer { delay_ms: if hangs { HUNG_MS } else { 0 }, fate: Fate::LostBefore, ..Answer::default() });
    }
    if caller::too_much_head(request) {
        return (None, Answer { delay_ms: 5_000, fate: Fate::CloseWithoutAnswer, ..Answer::default() });
    }
    let line = Line::of(request, world.flavour);
    let format = *line.format.as_ref().unwrap_or(&Format::Json);
    let mut trace = Trace { who: None, way: Way::default() };
    let outcome = reached(world, entry, request, &line, trip, &mut trace);
    (trace.who, respond::answer(format, world.flavour, trace.way, outcome))
}

/// What is known so far about a request on its way.
struct Trace {
    who: Option<Arc<Who>>,
    way: Way,
}

fn reached(world: &mut World, entry: &str, request: &Request, line: &Line, trip: Trip, trace: &mut Trace) -> Result<Data, Fail> {
    caller::check_method(request)?;
    if let Err(outside) = &line.format {
        return Err(outside.clone());
    }
    file_system(world, entry)?;
    trace.who = caller::identify(world, request, &line.segments)?;
    let body = caller::content(request)?;
    let path = || format!("/{}", line.segments.join("/"));
    let missing = || Fail::NotImplemented(format!("Method '{} {}' not implemented", request.method, path()));
    let method = line.method.ok_or_else(missing)?;
    let own = body.map(|body| line.params_with(body)).transpose()?;
    let params = own.as_ref().map_or_else(|| line.params().as_ref().map_err(Fail::clone), Ok)?;
    let who = trace.who.clone().unwrap_or_else(|| Who::user("").into());
    if who.token.is_some() && !method.token_allowed {
        return Err(Fail::Denied(format!("URI '{}' not available with API token, need proper ticket.\n", path())));
    }
    permission::check(world, &who, method, params)?;
    let handler = api::handler(method).ok_or_else(missing)?;
    let (node, way) = proxy(world, entry, request, method, params, trip)?;
    trace.way = way;
    let check = |params: Params| schema::check(method, params, world.flavour).map(Rc::new);
    let values = match &own {
        _ if loses_body(world, request, way) => check(of_path(method, params)),
        Some(params) => check(params.clone()),
        None => line.values(method, params, world.flavour),
    };
    let call = Call { method, values: values?, who, entry: entry.to_owned(), node, kind: kind(method) };
    let slow_ms = world.nodes.get(&call.node).map_or(0, |node| node.slow_ms);
    handler(world, &call).map(|data| data.after(if trip == Trip::First { slow_ms } else { 0 }))
}

/// Until 7 a JSON body was lost on the way to another node.
fn loses_body(world: &World, request: &Request, way: Way) -> bool {
    let is_json = || request.find("Content-Type").is_some_and(|content| content.starts_with("application/json"));
    way.remote && world.flavour == Flavour::V7 && is_json()
}

/// What the path says arrives.
fn of_path(method: &Method, params: &Params) -> Params {
    params.iter().filter(|(name, _)| method.template.contains(&format!("{{{name}}}"))).cloned().collect()
}

fn kind(method: &Method) -> Kind {
    if method.is_lxc { Kind::Lxc } else { Kind::Qemu }
}

/// Without the cluster file system nobody can be told apart; the first caller waits longest.
fn file_system(world: &mut World, entry: &str) -> Result<(), Fail> {
    let Some(node) = world.nodes.get_mut(entry).filter(|node| node.files != Service::Up) else { return Ok(()) };
    node.files_asked += 1;
    let delay_ms = if node.files_asked == 1 { 10_000 } else { 3_000 };
    let reason = "RPCEnvironment init request failed: Unable to load access control list: Connection refused";
    Err(Fail::silent(500, reason, delay_ms))
}

/// Hand the call to the node and the daemon that it belongs to, and return the node's name and the hands that it goes through.
fn proxy(world: &mut World, entry: &str, request: &Request, method: &Method, params: &Params, trip: Trip) -> Result<(String, Way), Fail> {
    let named = params.iter().find(|(name, _)| name == "node").filter(|_| method.on_node).map(|(_, given)| given.text());
    let node = match named {
        Some(name) if name != "localhost" => name,
        _ => entry.to_owned(),
    };
    let Some(target) = world.nodes.get(&node) else { return Err(unknown_node(&node)) };
    let remote = node != entry;
    if remote && !world.reaches(entry, &node) {
        return Err(Fail::silent(595, "No route to host", 3_000));
    }
    let refused = (remote && target.proxy != Service::Up) || (method.protected && target.daemon == Service::Down);
    if refused {
        return Err(Fail::silent(595, "Connection refused", 0));
    }
    if trip == Trip::First {
        patience(world, entry, &node, request, method.protected)?;
    }
    Ok((node, Way { daemon: method.protected, remote, read: method.verb == "GET" }))
}

fn unknown_node(name: &str) -> Fail {
    Fail::died(format!("hostname lookup '{name}' failed - failed to get address info for: {name}: Name or service not known"))
}

/// A hung daemon or a very slow node takes the request, the proxy gives up, and the request is carried out all the same.
fn patience(world: &mut World, entry: &str, name: &str, request: &Request, protected: bool) -> Result<(), Fail> {
    let timeout = || Err(Fail::silent(596, "Connection timed out", PROXY_MS));
    let at_ms = world.now_ms;
    let Some(node) = world.nodes.get_mut(name) else { return Ok(()) };
    if protected && node.daemon == Service::Hung {
        node.backlog.push(request.clone());
        return timeout();
    }
    if node.slow_ms >= PROXY_MS && (protected || name != entry) {
        let later_ms = at_ms.saturating_add(node.slow_ms);
        world.schedule(later_ms, Event::Later(entry.to_owned(), request.clone()));
        return timeout();
    }
    Ok(())
}
