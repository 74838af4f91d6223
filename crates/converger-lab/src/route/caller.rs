//! Checks of the server itself: size of the head, method, credentials, content.
//!
//! Must not depend on paths, except for the few public ones.

use std::borrow::Cow;
use std::sync::Arc;

use crate::access::ApiCaller;
use crate::decode;
use crate::response::ApiError;
use crate::schema::GivenParams;
use crate::wire::LabRequest;
use crate::world::World;

const METHODS: &[&str] = &["GET", "POST", "PUT", "DELETE"];
const HEAD_LINES_MAX: usize = 64;
const HEAD_BYTES_MAX: usize = 8 * 1024;
const BODY_BYTES_MAX: u64 = 512 * 1024;

/// A failed authentication is answered late, to slow down guessing.
const FAILED_LOGIN_DELAY_MS: u64 = 3_000;

/// Beyond these limits the server closes the connection without a response. The empty line at the end counts too.
pub(super) fn is_head_too_large(request: &LabRequest) -> bool {
    let bytes: usize = request.headers.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
    request.headers.len() + 1 >= HEAD_LINES_MAX || bytes >= HEAD_BYTES_MAX
}

pub(super) fn check_method(request: &LabRequest) -> Result<(), ApiError> {
    let method = &request.method;
    if !METHODS.contains(&method.as_str()) {
        return Err(ApiError::without_body(501, &format!("method '{method}' not available"), 0));
    }
    match request.find_header("Transfer-Encoding") {
        Some(coding) if coding.eq_ignore_ascii_case("chunked") => {
            Err(ApiError::with_text_body(501, "chunked transfer encoding not supported"))
        }
        Some(coding) if !coding.is_empty() => Err(ApiError::with_text_body(501, format!("Unknown transfer encoding '{coding}'"))),
        _ => Ok(()),
    }
}

/// The caller; `None` only for public paths.
pub(super) fn identify_caller(world: &World, request: &LabRequest, segments: &[String]) -> Result<Option<Arc<ApiCaller>>, ApiError> {
    let now_s = world.cluster_clock_s();
    if let Some(ticket) = read_ticket_cookie(request) {
        return identify_by_ticket(world, request, &ticket, now_s).map(|caller| Some(caller.into()));
    }
    let Some(token) = read_token_header(request) else {
        return if is_public_path(&request.method, segments) { Ok(None) } else { Err(authentication_error("No ticket")) };
    };
    match world.access.find_token_caller(&token, now_s) {
        Some(caller) => Ok(Some(caller)),
        None => Err(authentication_error("Authentication failed!")),
    }
}

fn authentication_error(reason: &str) -> ApiError {
    ApiError::without_body(401, reason, FAILED_LOGIN_DELAY_MS)
}

/// Paths that can be called before logging in.
fn is_public_path(method: &str, segments: &[String]) -> bool {
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    matches!((method, segments.as_slice()), ("GET", ["access", "domains"]) | ("GET" | "POST", ["access", "ticket"]))
}

fn read_ticket_cookie(request: &LabRequest) -> Option<String> {
    let pairs = request.find_header("Cookie")?.split(';').map(str::trim);
    pairs.filter_map(|pair| pair.strip_prefix("PVEAuthCookie=")).map(decode::decode_text).next()
}

/// `PVEAPIToken=user!name=secret`; a blank is allowed instead of the first `=`.
fn read_token_header(request: &LabRequest) -> Option<Cow<'_, str>> {
    let rest = request.find_header("Authorization")?.strip_prefix("PVEAPIToken")?;
    rest.strip_prefix(['=', ' ']).map(|token| decode::decode_cow(token.trim()))
}

fn identify_by_ticket(world: &World, request: &LabRequest, ticket: &str, now_s: u64) -> Result<ApiCaller, ApiError> {
    let user = world.tickets.verify_ticket(ticket, now_s).filter(|user| world.access.is_user_enabled(user, now_s));
    let user = user.ok_or_else(|| authentication_error("Authentication failed!"))?;
    let companion = request.find_header("CSRFPreventionToken").unwrap_or_default();
    let safe = request.method == "GET" || world.tickets.is_csrf_token_valid(&user, companion, now_s);
    if safe { Ok(ApiCaller::for_user(&user)) } else { Err(authentication_error("Permission denied - invalid csrf token")) }
}

/// The parameters of the body, if there is one.
pub(super) fn read_body_params(request: &LabRequest) -> Result<Option<GivenParams>, ApiError> {
    match length_refusal(request) {
        Some(text) => Err(ApiError::with_text_body(501, text)),
        None if request.body.is_empty() => Ok(None),
        None => parse_body(request).map(Some),
    }
}

/// The error if a body is rejected because of its length alone.
pub(super) fn length_refusal(request: &LabRequest) -> Option<String> {
    let bytes = request.content_length().unwrap_or(0).max(request.body.len() as u64);
    let is_unexpected = bytes > 0 && !matches!(request.method.as_str(), "POST" | "PUT");
    if is_unexpected {
        return Some(format!("Unexpected content for method '{}'", request.method));
    }
    (bytes > BODY_BYTES_MAX).then(|| "for data too large".to_owned())
}

fn parse_body(request: &LabRequest) -> Result<GivenParams, ApiError> {
    let content = request.find_header("Content-Type").unwrap_or("application/x-www-form-urlencoded");
    match content.split(';').next().unwrap_or_default().trim() {
        "application/x-www-form-urlencoded" => Ok(decode::parse_form(&request.body)),
        "application/json" => decode::parse_json_body(&request.body).map_err(malformed_body_error),
        other => Err(ApiError::with_text_body(506, format!("upload 'Content-Type '{other}' not implemented"))),
    }
}

fn malformed_body_error(text: String) -> ApiError {
    ApiError::Raw { status: 500, body: format!("{text}\n"), reason: text, delay_ms: 0 }
}
