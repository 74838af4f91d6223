//! The form of the fixtures: blocks of lines, each line with a letter in front.
//!
//! `@` number, label and time · `x` why it is not covered · `!` something happens beside the API ·
//! `+` a guest appears · `~` wait for a task · `>` request · `h` header · `b` body · `<` status,
//! reason and connection · `d` how long it took, where that is long · `=` JSON with markers · `t` plain text. What never enters here: meaning.

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
    Answered { status: u16, reason: String, connection: Vec<String>, delay_ms: u64, body: Body },
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

fn set_body(exchange: &mut Exchange, wanted: Body) {
    if let Outcome::Answered { body, .. } = &mut exchange.outcome {
        *body = wanted;
    }
}
