//! What the first line of a request says by itself, in any world: where it points, which method that is, and which parameters stand in it.
//!
//! It is taken apart once for each thread: many worlds are asked the same. What never enters here: a world, a caller, a body.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::decode::{self, Format, Target};
use crate::flavour::Flavour;
use crate::respond::Fail;
use crate::schema::{self, Given, Method, Params};
use crate::wire::Request;
use crate::words::Words;

use super::PAGE;

/// So many lines are remembered for each release; some of them name a task and come once.
const LINES_MAX: usize = 1 << 12;

/// Checked parameters, or what is wrong with each.
type Values = Result<Rc<Vec<(String, String)>>, BTreeMap<String, String>>;

/// A line, taken apart.
pub(super) struct Line {
    /// How the answer is shaped; or what is said to those who ask for something outside of the API.
    pub(super) format: Result<Format, Fail>,
    pub(super) segments: Vec<String>,
    /// The method that the segments lead to, and what they capture.
    pub(super) method: Option<&'static Method>,
    captured: Vec<(String, String)>,
    query: Params,
    /// All parameters of a request without a body, as they came and checked.
    params: OnceCell<Result<Params, Fail>>,
    values: OnceCell<Values>,
}

impl Line {
    /// The line of a request to a release.
    pub(super) fn of(request: &Request, flavour: Flavour) -> Rc<Self> {
        // What changes something is rare.
        if request.method != "GET" {
            return Rc::new(Self::parsed(request, flavour));
        }
        KNOWN.with_borrow_mut(|known| {
            let lines = &mut known[flavour as usize];
            if let Some(line) = lines.get(request.path.as_str()) {
                return Rc::clone(line);
            }
            if lines.len() >= LINES_MAX {
                lines.clear();
            }
            let line = Rc::new(Self::parsed(request, flavour));
            lines.insert(request.path.as_str().into(), Rc::clone(&line));
            line
        })
    }

    fn parsed(request: &Request, flavour: Flavour) -> Self {
        let (path, query) = decode::split_query(&request.path);
        let target = decode::target(path);
        let segments = if let Target::Api { rest, .. } = &target { decode::segments(rest) } else { Vec::new() };
        let (method, captured) = schema::find(&request.method, &segments, flavour).unzip();
        Self {
            segments: segments.into_iter().map(str::to_owned).collect(),
            method,
            captured: captured.unwrap_or_default(),
            query: decode::form(query.as_bytes()),
            format: format(target),
            params: OnceCell::new(),
            values: OnceCell::new(),
        }
    }

    /// The parameters of path and query.
    pub(super) fn params(&self) -> &Result<Params, Fail> {
        self.params.get_or_init(|| with_captures(self.query.clone(), &self.captured))
    }

    /// The same with those of a body, which the query beats.
    pub(super) fn params_with(&self, body: Params) -> Result<Params, Fail> {
        with_captures(decode::merge(body, self.query.clone()), &self.captured)
    }

    /// What [`Self::params`] are once they are checked.
    pub(super) fn values(&self, method: &Method, params: &Params, flavour: Flavour) -> Values {
        self.values.get_or_init(|| schema::check(method, params.clone(), flavour).map(Rc::new)).clone()
    }
}

thread_local! {
    static KNOWN: RefCell<[Words<Box<str>, Rc<Line>>; 3]> = RefCell::default();
}

fn format(target: Target<'_>) -> Result<Format, Fail> {
    match target {
        Target::Api { format, .. } => Ok(format),
        Target::File(path) if path == "/" => Err(Fail::Raw { status: 200, reason: "OK".to_owned(), body: PAGE.to_owned(), delay_ms: 0 }),
        Target::NoFormat(text) => Err(Fail::plain(501, text)),
        Target::File(path) => {
            let reason = format!("no such file '{path}'");
            Err(Fail::Raw { status: 500, body: format!("{reason}\n"), reason, delay_ms: 0 })
        }
    }
}

/// Parameters of the path and of the request; a name in both must mean the same.
fn with_captures(params: Params, captured: &[(String, String)]) -> Result<Params, Fail> {
    let mut all: Params = Vec::with_capacity(captured.len() + params.len());
    for (name, value) in captured {
        if params.iter().any(|(known, given)| known == name && given.text() != *value) {
            return Err(Fail::param(name, "duplicate parameter (already defined in URI) with conflicting values!"));
        }
        all.push((name.clone(), Given::Text(value.clone())));
    }
    let rest = params.into_iter().filter(|(name, _)| !captured.iter().any(|(known, _)| known == name));
    all.extend(rest);
    Ok(all)
}
