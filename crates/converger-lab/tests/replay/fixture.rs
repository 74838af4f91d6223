//! The form of the fixtures: blocks of lines, each line with a letter in front.
//!
//! `@` number, label and time · `x` why it is not covered · `!` something happens beside the API ·
//! `+` a guest appears · `~` wait for a task · `>` request · `h` header · `b` body · `<` status,
//! reason and connection · `d` how long it took, where that is long · `=` JSON with markers · `t` plain text. For the bytes on
//! the wire: `r` what is said, `p` the same without TLS, `w` the lines of a head, `=` and `t` the body to it, `c` after how long
//! the connection ends. What never enters here: meaning.

use serde_json::Value;

/// One recorded request and what is expected of its answer.
pub(crate) struct Exchange {
    pub(crate) number: u32,
    pub(crate) label: String,
    /// Milliseconds after the first request to that server.
    pub(crate) at_ms: u64,
    pub(crate) before: Vec<Before>,
    pub(crate) request: Wanted,
    pub(crate) outcome: Outcome,
}

/// What happens before the request.
pub(crate) enum Before {
    Act(u64, Value),
    Guest(u64, Value),
    /// Until the task that this label started is over.
    Wait(String),
}

/// A request with its placeholders.
#[derive(Default)]
pub(crate) struct Wanted {
    pub(crate) user: String,
    pub(crate) method: String,
    pub(crate) path: String,
    /// The node that it goes to, where it is not the first.
    pub(crate) entry: Option<String>,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

pub(crate) enum Outcome {
    Uncovered(String),
    Closed,
    Wire(Wire),
    Answered { status: u16, reason: String, connection: Vec<String>, delay_ms: u64, body: Body },
}

/// Everything that passes over a connection.
pub(crate) struct Wire {
    pub(crate) is_plain: bool,
    pub(crate) said: String,
    /// Lines of the head, and the body.
    pub(crate) answers: Vec<(Vec<String>, Body)>,
    /// Milliseconds after the last answer.
    pub(crate) closed_ms: u128,
}

pub(crate) enum Body {
    Empty,
    Json(Value),
    Text(String),
}

pub(crate) fn parse(text: &str) -> Vec<Exchange> {
    text.split("\n\n").filter(|block| !block.trim().is_empty()).map(exchange).collect()
}

fn exchange(block: &str) -> Exchange {
    let mut lines = block.trim().lines();
    let head = lines.next().and_then(|line| line.strip_prefix("@ ")).unwrap_or_else(|| panic!("a block begins with @: {block}"));
    let mut words = head.split(' ');
    let mut word = || words.next().unwrap_or_default().to_owned();
    let (number, label, at) = (word(), word(), word());
    let mut found = Exchange {
        number: number.parse().unwrap_or(0),
        label,
        at_ms: at.trim_start_matches('+').parse().unwrap_or(0),
        before: Vec::new(),
        request: Wanted::default(),
        outcome: Outcome::Closed,
    };
    for line in lines {
        let (letter, rest) = line.split_once(' ').unwrap_or((line, ""));
        read(&mut found, letter, rest);
    }
    found
}

fn read(exchange: &mut Exchange, letter: &str, rest: &str) {
    match letter {
        "x" => exchange.outcome = Outcome::Uncovered(rest.to_owned()),
        "!" => exchange.before.push(timed(rest, Before::Act)),
        "+" => exchange.before.push(timed(rest, Before::Guest)),
        "~" => exchange.before.push(Before::Wait(rest.to_owned())),
        ">" => request(&mut exchange.request, rest),
        "h" => exchange.request.headers.extend(rest.split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned()))),
        "b" => rest.clone_into(&mut exchange.request.body),
        "r" | "p" => exchange.outcome = Outcome::Wire(wire(letter == "p", rest)),
        "w" | "c" => on_wire(exchange, letter, rest),
        "<" if rest == "closed" => exchange.outcome = Outcome::Closed,
        "<" => exchange.outcome = answered(rest),
        "d" => {
            if let Outcome::Answered { delay_ms, .. } = &mut exchange.outcome {
                *delay_ms = rest.parse().unwrap_or(0);
            }
        }
        "=" => set_body(exchange, Body::Json(json(rest))),
        "t" => set_body(exchange, Body::Text(json(rest).as_str().unwrap_or_default().to_owned())),
        other => panic!("unknown line `{other}`: {rest}"),
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn timed(rest: &str, make: fn(u64, Value) -> Before) -> Before {
    let (at, value) = rest.split_once(' ').unwrap_or((rest, "null"));
    make(at.parse().unwrap_or(0), json(value))
}

fn request(wanted: &mut Wanted, rest: &str) {
    let (rest, entry) = rest.split_once(" via ").map_or((rest, None), |(rest, entry)| (rest, Some(entry.to_owned())));
    let mut words = rest.splitn(3, ' ').map(str::to_owned);
    let mut word = || words.next().unwrap_or_default();
    (wanted.user, wanted.method, wanted.path, wanted.entry) = (word(), word(), word(), entry);
}

fn answered(rest: &str) -> Outcome {
    let (head, connection) = rest.rsplit_once(" | ").unwrap_or((rest, ""));
    let (status, reason) = head.split_once(' ').unwrap_or((head, ""));
    let connection = connection.split(' ').map(str::to_owned).collect();
    Outcome::Answered { status: status.parse().unwrap_or(0), reason: reason.to_owned(), connection, delay_ms: 0, body: Body::Empty }
}

fn wire(is_plain: bool, said: &str) -> Wire {
    Wire { is_plain, said: json(said).as_str().unwrap_or_default().to_owned(), answers: Vec::new(), closed_ms: 0 }
}

fn on_wire(exchange: &mut Exchange, letter: &str, rest: &str) {
    let Outcome::Wire(wire) = &mut exchange.outcome else { panic!("`{letter}` belongs to the wire: {rest}") };
    if letter == "c" {
        wire.closed_ms = rest.parse().unwrap_or_else(|error| panic!("{error}: {rest}"));
        return;
    }
    let lines = json(rest).as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
    wire.answers.push((lines, Body::Empty));
}

fn set_body(exchange: &mut Exchange, wanted: Body) {
    match &mut exchange.outcome {
        Outcome::Answered { body, .. } => *body = wanted,
        Outcome::Wire(wire) => drop(wire.answers.last_mut().map(|(_, body)| *body = wanted)),
        _ => {}
    }
}
