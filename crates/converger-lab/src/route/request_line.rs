//! Parses request lines independently of any world: the target, the method and the parameters of
//! path and query.
//!
//! The result is cached per thread, because many worlds get the same requests. Must not depend on a
//! world, a caller or a body.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::decode::{self, RequestTarget, ResponseFormat};
use crate::flavour::Flavour;
use crate::response::ApiError;
use crate::schema::{self, ApiMethod, GivenParams, GivenValue};
use crate::wire::LabRequest;
use crate::word_map::WordMap;

use super::WEB_PAGE;

/// Maximum number of cached lines per release; lines that name a task never repeat.
const CACHED_LINES_MAX: usize = 1 << 12;

/// Checked parameters, or the error of each.
type CheckedParams = Result<Rc<Vec<(String, String)>>, BTreeMap<String, String>>;

/// A parsed request line.
pub(super) struct ParsedRequestLine {
    /// The format of the response, or the error for a path outside the API.
    pub(super) format: Result<ResponseFormat, ApiError>,
    pub(super) segments: Vec<String>,
    /// The method of the path.
    pub(super) method: Option<&'static ApiMethod>,
    captured: Vec<(String, String)>,
    query: GivenParams,
    /// All parameters of a request without a body, as received and checked.
    params: OnceCell<Result<GivenParams, ApiError>>,
    values: OnceCell<CheckedParams>,
}

impl ParsedRequestLine {
    /// The parsed line of a request; `GET` lines are cached.
    pub(super) fn parse_cached(request: &LabRequest, flavour: Flavour) -> Rc<Self> {
        // Modifying requests are rare and not worth caching.
        if request.method != "GET" {
            return Rc::new(Self::parse(request, flavour));
        }
        CACHED_LINES.with_borrow_mut(|known| {
            let lines = &mut known[flavour as usize];
            if let Some(line) = lines.get(request.path.as_str()) {
                return Rc::clone(line);
            }
            if lines.len() >= CACHED_LINES_MAX {
                lines.clear();
            }
            let line = Rc::new(Self::parse(request, flavour));
            lines.insert(request.path.as_str().into(), Rc::clone(&line));
            line
        })
    }

    fn parse(request: &LabRequest, flavour: Flavour) -> Self {
        let (path, query) = decode::split_query(&request.path);
        let target = decode::parse_target(path);
        let segments = if let RequestTarget::Api { rest, .. } = &target { decode::split_segments(rest) } else { Vec::new() };
        let (method, captured) = schema::find_method(&request.method, &segments, flavour).unzip();
        Self {
            segments: segments.into_iter().map(str::to_owned).collect(),
            method,
            captured: captured.unwrap_or_default(),
            query: decode::parse_form(query.as_bytes()),
            format: response_format(target),
            params: OnceCell::new(),
            values: OnceCell::new(),
        }
    }

    /// The parameters of path and query.
    pub(super) fn params(&self) -> &Result<GivenParams, ApiError> {
        self.params.get_or_init(|| with_captures(self.query.clone(), &self.captured))
    }

    /// The same with the parameters of a body; those of the query win.
    pub(super) fn params_with(&self, body: GivenParams) -> Result<GivenParams, ApiError> {
        with_captures(decode::merge_params(body, self.query.clone()), &self.captured)
    }

    /// The checked form of [`Self::params`].
    pub(super) fn checked_params(&self, method: &ApiMethod, params: &GivenParams, flavour: Flavour) -> CheckedParams {
        self.values.get_or_init(|| schema::check_params(method, params.clone(), flavour).map(Rc::new)).clone()
    }
}

thread_local! {
    static CACHED_LINES: RefCell<[WordMap<Box<str>, Rc<ParsedRequestLine>>; 3]> = RefCell::default();
}

fn response_format(target: RequestTarget<'_>) -> Result<ResponseFormat, ApiError> {
    match target {
        RequestTarget::Api { format, .. } => Ok(format),
        RequestTarget::OutsideApi(path) if path == "/" => {
            Err(ApiError::Raw { status: 200, reason: "OK".to_owned(), body: WEB_PAGE.to_owned(), delay_ms: 0 })
        }
        RequestTarget::NoFormat(text) => Err(ApiError::with_text_body(501, text)),
        RequestTarget::OutsideApi(path) => {
            let reason = format!("no such file '{path}'");
            Err(ApiError::Raw { status: 500, body: format!("{reason}\n"), reason, delay_ms: 0 })
        }
    }
}

/// Merges the parameters of path and request; a name in both must have the same value.
fn with_captures(params: GivenParams, captured: &[(String, String)]) -> Result<GivenParams, ApiError> {
    let mut all: GivenParams = Vec::with_capacity(captured.len() + params.len());
    for (name, value) in captured {
        if params.iter().any(|(known, given_value)| known == name && given_value.to_text() != *value) {
            return Err(ApiError::parameter_error(name, "duplicate parameter (already defined in URI) with conflicting values!"));
        }
        all.push((name.clone(), GivenValue::Text(value.clone())));
    }
    let rest = params.into_iter().filter(|(name, _)| !captured.iter().any(|(known, _)| known == name));
    all.extend(rest);
    Ok(all)
}
