//! The way of a request: server, caller, method, permission, node, parameters, and only then the
//! method itself. The order is Proxmox's and decides which error wins.
//!
//! What never enters here: what a method does (see `api`).

mod caller;
mod permission;

use crate::access::Who;
use crate::api::{self, Call};
use crate::decode::{self, Format, Target};
use crate::engine::Event;
use crate::fault::Twist;
use crate::flavour::Flavour;
use crate::guest::Kind;
use crate::node::Service;
use crate::respond::{self, Data, Fail, Way};
use crate::schema::{self, Method, Params};
use crate::wire::{Answer, Fate, Request};
use crate::world::World;

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
pub(crate) fn answer(world: &mut World, entry: &str, request: &Request) -> (Option<Who>, Answer) {
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
        answer.headers.push(("Content-Type".to_owned(), "text/html;charset=UTF-8".to_owned()));
    }
    answer
}

fn redirect(to: String) -> Answer {
    let mut answer = respond::raw(301, "Moved Permanently", "Moved Permanently", 0);
    answer.headers.push(("Location".to_owned(), to));
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

fn serve(world: &mut World, entry: &str, request: &Request, trip: Trip) -> (Option<Who>, Answer) {
    if !world.listens_at(entry) {
        // A proxy that hangs takes the connection, and the caller waits as long as it has patience.
        let hangs = world.nodes.get(entry).is_some_and(|node| node.online && node.proxy == Service::Hung);
        return (None, Answer { delay_ms: if hangs { HUNG_MS } else { 0 }, fate: Fate::LostBefore, ..Answer::default() });
    }
    if caller::too_much_head(request) {
        return (None, Answer { delay_ms: 5_000, fate: Fate::CloseWithoutAnswer, ..Answer::default() });
    }
    let (path, query) = decode::split_query(&request.path);
    let target = decode::target(path);
    let format = if let Target::Api { format, .. } = &target { *format } else { Format::Json };
    let mut trace = Trace { who: None, way: Way::default() };
    let outcome = reached(world, entry, request, &target, query, trip, &mut trace);
    (trace.who, respond::answer(format, world.flavour, trace.way, outcome))
}

/// What is known so far about a request on its way.
struct Trace {
    who: Option<Who>,
    way: Way,
}

fn reached(
    world: &mut World,
    entry: &str,
    request: &Request,
    target: &Target<'_>,
    query: &str,
    trip: Trip,
    trace: &mut Trace,
) -> Result<Data, Fail> {
    caller::check_method(request)?;
    let Target::Api { rest, .. } = target else { return Err(outside(target)) };
    let segments = &*decode::segments(rest);
    file_system(world, entry)?;
    let who = caller::identify(world, request, segments)?;
    trace.who.clone_from(&who);
    let params = caller::parameters(request, query)?;
    let path = || format!("/{}", segments.join("/"));
    let missing = || Fail::NotImplemented(format!("Method '{} {}' not implemented", request.method, path()));
    let (method, captured) = schema::find(&request.method, segments, world.flavour).ok_or_else(missing)?;
    let params = with_captures(params, captured)?;
    let who = who.unwrap_or_else(|| Who::user(""));
    if who.token.is_some() && !method.token_allowed {
        return Err(Fail::Denied(format!("URI '{}' not available with API token, need proper ticket.\n", path())));
    }
    permission::check(world, &who, method, &params)?;
    let handler = api::handler(method).ok_or_else(missing)?;
    let node = proxy(world, entry, request, method, &params, trip, trace)?;
    let params = forwarded(world, request, method, trace.way, params);
    let values = schema::check(method, params, world.flavour)?;
    let call = Call { method, values, who, entry: entry.to_owned(), node, kind: kind(method) };
    let slow_ms = world.nodes.get(&call.node).map_or(0, |node| node.slow_ms);
    handler(world, &call).map(|data| data.after(if trip == Trip::First { slow_ms } else { 0 }))
}

/// Until 7 a JSON body was lost on the way to another node; what the path says arrives.
fn forwarded(world: &World, request: &Request, method: &Method, way: Way, params: Params) -> Params {
    let json = request.find("Content-Type").is_some_and(|content| content.starts_with("application/json"));
    if !(way.remote && json && world.flavour == Flavour::V7) {
        return params;
    }
    params.into_iter().filter(|(name, _)| method.template.contains(&format!("{{{name}}}"))).collect()
}

fn kind(method: &Method) -> Kind {
    if method.is_lxc { Kind::Lxc } else { Kind::Qemu }
}

fn outside(target: &Target<'_>) -> Fail {
    match target {
        Target::File(path) if path == "/" => Fail::Raw { status: 200, reason: "OK".to_owned(), body: PAGE.to_owned(), delay_ms: 0 },
        Target::NoFormat(text) => Fail::plain(501, text.clone()),
        Target::File(path) => {
            let reason = format!("no such file '{path}'");
            Fail::Raw { status: 500, body: format!("{reason}\n"), reason, delay_ms: 0 }
        }
        Target::Api { .. } => Fail::plain(501, "no such uri"),
    }
}

/// Without the cluster file system nobody can be told apart; the first caller waits longest.
fn file_system(world: &mut World, entry: &str) -> Result<(), Fail> {
    let Some(node) = world.nodes.get_mut(entry).filter(|node| node.files != Service::Up) else { return Ok(()) };
    node.files_asked += 1;
    let delay_ms = if node.files_asked == 1 { 10_000 } else { 3_000 };
    let reason = "RPCEnvironment init request failed: Unable to load access control list: Connection refused";
    Err(Fail::silent(500, reason, delay_ms))
}

/// Parameters of the path and of the request; a name in both must mean the same.
fn with_captures(params: Params, captured: Vec<(String, String)>) -> Result<Params, Fail> {
    let mut all: Params = Vec::new();
    for (name, value) in captured {
        if params.iter().any(|(known, given)| *known == name && given.text() != value) {
            return Err(Fail::param(&name, "duplicate parameter (already defined in URI) with conflicting values!"));
        }
        all.push((name, schema::Given::Text(value)));
    }
    if !params.is_empty() {
        let rest = params.into_iter().filter(|(name, _)| !all.iter().any(|(known, _)| known == name)).collect::<Params>();
        all.extend(rest);
    }
    Ok(all)
}

/// Hand the call to the node and the daemon that it belongs to, and return the node's name.
fn proxy(
    world: &mut World,
    entry: &str,
    request: &Request,
    method: &Method,
    params: &Params,
    trip: Trip,
    trace: &mut Trace,
) -> Result<String, Fail> {
    let named = params.iter().find(|(name, _)| name == "node").map(|(_, given)| given.text());
    let node = match named {
        Some(name) if method.on_node && name != "localhost" => name,
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
    trace.way = Way { daemon: method.protected, remote, read: method.verb == "GET" };
    Ok(node)
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
