//! What the server itself checks: size of the head, method, credentials, content.
//!
//! What never enters here: paths, apart from the few that need no credentials.

use std::borrow::Cow;
use std::sync::Arc;

use crate::access::Who;
use crate::decode;
use crate::respond::Fail;
use crate::schema::Params;
use crate::wire::Request;
use crate::world::World;

const METHODS: &[&str] = &["GET", "POST", "PUT", "DELETE"];
const HEAD_LINES_MAX: usize = 64;
const HEAD_BYTES_MAX: usize = 8 * 1024;
const BODY_BYTES_MAX: u64 = 512 * 1024;

/// A failed identification is answered late, against guessing.
const GUESS_MS: u64 = 3_000;

/// More than that and the server closes without a word. The empty line at the end counts too.
pub(super) fn too_much_head(request: &Request) -> bool {
    let bytes: usize = request.headers.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
    request.headers.len() + 1 >= HEAD_LINES_MAX || bytes >= HEAD_BYTES_MAX
}

pub(super) fn check_method(request: &Request) -> Result<(), Fail> {
    let method = &request.method;
    if !METHODS.contains(&method.as_str()) {
        return Err(Fail::silent(501, &format!("method '{method}' not available"), 0));
    }
    match request.find("Transfer-Encoding") {
        Some(coding) if coding.eq_ignore_ascii_case("chunked") => Err(Fail::plain(501, "chunked transfer encoding not supported")),
        Some(coding) if !coding.is_empty() => Err(Fail::plain(501, format!("Unknown transfer encoding '{coding}'"))),
        _ => Ok(()),
    }
}

/// Who calls; `None` only where nobody needs to be known.
pub(super) fn identify(world: &World, request: &Request, segments: &[String]) -> Result<Option<Arc<Who>>, Fail> {
    let now_s = world.wall_s();
    if let Some(ticket) = cookie(request) {
        return by_ticket(world, request, &ticket, now_s).map(|who| Some(who.into()));
    }
    let Some(token) = token(request) else {
        return if is_open(&request.method, segments) { Ok(None) } else { Err(refused("No ticket")) };
    };
    match world.access.token(&token, now_s) {
        Some(who) => Ok(Some(who)),
        None => Err(refused("Authentication failed!")),
    }
}

fn refused(reason: &str) -> Fail {
    Fail::silent(401, reason, GUESS_MS)
}

/// Paths for people who are about to log in.
fn is_open(method: &str, segments: &[String]) -> bool {
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    matches!((method, segments.as_slice()), ("GET", ["access", "domains"]) | ("GET" | "POST", ["access", "ticket"]))
}

fn cookie(request: &Request) -> Option<String> {
    let pairs = request.find("Cookie")?.split(';').map(str::trim);
    pairs.filter_map(|pair| pair.strip_prefix("PVEAuthCookie=")).map(decode::unescape).next()
}

/// `PVEAPIToken=user!name=secret`; a blank may stand for the first `=`.
fn token(request: &Request) -> Option<Cow<'_, str>> {
    let rest = request.find("Authorization")?.strip_prefix("PVEAPIToken")?;
    rest.strip_prefix(['=', ' ']).map(|token| decode::unescaped(token.trim()))
}

fn by_ticket(world: &World, request: &Request, ticket: &str, now_s: u64) -> Result<Who, Fail> {
    let user = world.tickets.user(ticket, now_s).filter(|user| world.access.user_enabled(user, now_s));
    let user = user.ok_or_else(|| refused("Authentication failed!"))?;
    let companion = request.find("CSRFPreventionToken").unwrap_or_default();
    let safe = request.method == "GET" || world.tickets.companion_is_genuine(&user, companion, now_s);
    if safe { Ok(Who::user(&user)) } else { Err(refused("Permission denied - invalid csrf token")) }
}

/// The parameters of the body, where there is one.
pub(super) fn content(request: &Request) -> Result<Option<Params>, Fail> {
    match refused_length(request) {
        Some(text) => Err(Fail::plain(501, text)),
        None if request.body.is_empty() => Ok(None),
        None => body(request).map(Some),
    }
}

/// Why a body is not received at all: its length alone says so.
pub(super) fn refused_length(request: &Request) -> Option<String> {
    let bytes = request.announced_bytes().unwrap_or(0).max(request.body.len() as u64);
    let is_unexpected = bytes > 0 && !matches!(request.method.as_str(), "POST" | "PUT");
    if is_unexpected {
        return Some(format!("Unexpected content for method '{}'", request.method));
    }
    (bytes > BODY_BYTES_MAX).then(|| "for data too large".to_owned())
}

fn body(request: &Request) -> Result<Params, Fail> {
    let content = request.find("Content-Type").unwrap_or("application/x-www-form-urlencoded");
    match content.split(';').next().unwrap_or_default().trim() {
        "application/x-www-form-urlencoded" => Ok(decode::form(&request.body)),
        "application/json" => decode::json(&request.body).map_err(malformed),
        other => Err(Fail::plain(506, format!("upload 'Content-Type '{other}' not implemented"))),
    }
}

fn malformed(text: String) -> Fail {
    Fail::Raw { status: 500, body: format!("{text}\n"), reason: text, delay_ms: 0 }
}
