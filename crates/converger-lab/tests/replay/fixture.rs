//! The format of the fixtures: blocks of lines, each with a leading letter.
//!
//! `@` number, label and time · `x` why it is not covered · `!` an external event · `+` a guest is
//! added · `~` wait for a task · `>` request · `h` header · `b` body · `<` status, reason and
//! connection · `d` how long it took, if that is long · `=` JSON with markers · `t` plain text.
//! For bytes on the wire: `r` what is sent, `p` the same without TLS, `w` the lines of a head, `=`
//! and `t` its body, `c` after how long the connection closes.
//!
//! Must not interpret the contents.

use serde_json::Value;

/// One recorded request and its expected outcome.
pub(crate) struct RecordedExchange {
    pub(crate) number: u32,
    pub(crate) label: String,
    /// Milliseconds after the first request to that server.
    pub(crate) at_ms: u64,
    pub(crate) before: Vec<BeforeRequest>,
    pub(crate) request: RecordedRequest,
    pub(crate) outcome: ExpectedOutcome,
}

/// What happens before the request.
pub(crate) enum BeforeRequest {
    Event(u64, Value),
    Guest(u64, Value),
    /// Waits until the task that this label started has ended.
    Wait(String),
}

/// A request with its placeholders.
#[derive(Default)]
pub(crate) struct RecordedRequest {
    pub(crate) user: String,
    pub(crate) method: String,
    pub(crate) path: String,
    /// The node that receives it, if it is not the first.
    pub(crate) entry: Option<String>,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

pub(crate) enum ExpectedOutcome {
    Uncovered(String),
    Closed,
    Wire(ExpectedWire),
    Response { status: u16, reason: String, connection: Vec<String>, delay_ms: u64, body: ExpectedBody },
}

/// All bytes of a connection.
pub(crate) struct ExpectedWire {
    pub(crate) is_plain: bool,
    pub(crate) sent: String,
    /// The lines of the head, and the body.
    pub(crate) answers: Vec<(Vec<String>, ExpectedBody)>,
    /// Milliseconds after the last response.
    pub(crate) closed_ms: u128,
}

pub(crate) enum ExpectedBody {
    Empty,
    Json(Value),
    Text(String),
}

pub(crate) fn parse_fixture(text: &str) -> Vec<RecordedExchange> {
    text.split("\n\n").filter(|block| !block.trim().is_empty()).map(parse_exchange).collect()
}

fn parse_exchange(block: &str) -> RecordedExchange {
    let mut lines = block.trim().lines();
    let head = lines.next().and_then(|line| line.strip_prefix("@ ")).unwrap_or_else(|| panic!("a block must start with @: {block}"));
    let mut words = head.split(' ');
    let mut next_word = || words.next().unwrap_or_default().to_owned();
    let (number, label, at) = (next_word(), next_word(), next_word());
    let mut found = RecordedExchange {
        number: number.parse().unwrap_or(0),
        label,
        at_ms: at.trim_start_matches('+').parse().unwrap_or(0),
        before: Vec::new(),
        request: RecordedRequest::default(),
        outcome: ExpectedOutcome::Closed,
    };
    for line in lines {
        let (letter, rest) = line.split_once(' ').unwrap_or((line, ""));
        parse_line(&mut found, letter, rest);
    }
    found
}

fn parse_line(exchange: &mut RecordedExchange, letter: &str, rest: &str) {
    match letter {
        "x" => exchange.outcome = ExpectedOutcome::Uncovered(rest.to_owned()),
        "!" => exchange.before.push(parse_timed_event(rest, BeforeRequest::Event)),
        "+" => exchange.before.push(parse_timed_event(rest, BeforeRequest::Guest)),
        "~" => exchange.before.push(BeforeRequest::Wait(rest.to_owned())),
        ">" => parse_request(&mut exchange.request, rest),
        "h" => exchange.request.headers.extend(rest.split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned()))),
        "b" => rest.clone_into(&mut exchange.request.body),
        "r" | "p" => exchange.outcome = ExpectedOutcome::Wire(new_wire(letter == "p", rest)),
        "w" | "c" => parse_wire_line(exchange, letter, rest),
        "<" if rest == "closed" => exchange.outcome = ExpectedOutcome::Closed,
        "<" => exchange.outcome = parse_response(rest),
        "d" => {
            if let ExpectedOutcome::Response { delay_ms, .. } = &mut exchange.outcome {
                *delay_ms = rest.parse().unwrap_or(0);
            }
        }
        "=" => set_body(exchange, ExpectedBody::Json(parse_json(rest))),
        "t" => set_body(exchange, ExpectedBody::Text(parse_json(rest).as_str().unwrap_or_default().to_owned())),
        other => panic!("unknown line `{other}`: {rest}"),
    }
}

fn parse_json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn parse_timed_event(rest: &str, make: fn(u64, Value) -> BeforeRequest) -> BeforeRequest {
    let (at, value) = rest.split_once(' ').unwrap_or((rest, "null"));
    make(at.parse().unwrap_or(0), parse_json(value))
}

fn parse_request(wanted: &mut RecordedRequest, rest: &str) {
    let (rest, entry) = rest.split_once(" via ").map_or((rest, None), |(rest, entry)| (rest, Some(entry.to_owned())));
    let mut words = rest.splitn(3, ' ').map(str::to_owned);
    let mut next_word = || words.next().unwrap_or_default();
    (wanted.user, wanted.method, wanted.path, wanted.entry) = (next_word(), next_word(), next_word(), entry);
}

fn parse_response(rest: &str) -> ExpectedOutcome {
    let (head, connection) = rest.rsplit_once(" | ").unwrap_or((rest, ""));
    let (status, reason) = head.split_once(' ').unwrap_or((head, ""));
    let connection = connection.split(' ').map(str::to_owned).collect();
    ExpectedOutcome::Response {
        status: status.parse().unwrap_or(0),
        reason: reason.to_owned(),
        connection,
        delay_ms: 0,
        body: ExpectedBody::Empty,
    }
}

fn new_wire(is_plain: bool, text: &str) -> ExpectedWire {
    ExpectedWire { is_plain, sent: parse_json(text).as_str().unwrap_or_default().to_owned(), answers: Vec::new(), closed_ms: 0 }
}

fn parse_wire_line(exchange: &mut RecordedExchange, letter: &str, rest: &str) {
    let ExpectedOutcome::Wire(wire) = &mut exchange.outcome else { panic!("`{letter}` is only valid for wire exchanges: {rest}") };
    if letter == "c" {
        wire.closed_ms = rest.parse().unwrap_or_else(|error| panic!("{error}: {rest}"));
        return;
    }
    let lines = parse_json(rest).as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
    wire.answers.push((lines, ExpectedBody::Empty));
}

fn set_body(exchange: &mut RecordedExchange, wanted: ExpectedBody) {
    match &mut exchange.outcome {
        ExpectedOutcome::Response { body, .. } => *body = wanted,
        ExpectedOutcome::Wire(wire) => drop(wire.answers.last_mut().map(|(_, body)| *body = wanted)),
        _ => {}
    }
}
