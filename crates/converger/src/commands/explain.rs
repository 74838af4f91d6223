//! What the program says about itself: refusal codes, the fields that can be declared, what steps amount to, and its contract.

use std::fmt::Write as _;
use std::io::Write;

use converger_core::action::CATALOGUE;
use converger_core::contract::{self, Report};
use converger_core::document::nearest;
use converger_core::failure::{self, TABLE as FAILURES};
use converger_core::normalize::{Absent, Live, Role, Rule, TABLE as FIELDS, Value};
use converger_core::refusal::{Code, Entry, Reach, TABLE as CODES};
use converger_core::status::{self, Status};
use serde_json::{Value as Json, json};

use super::decisions::{Place, explain_recorded};
use super::{Stop, shown};
use crate::exit::End;
use crate::output;
use crate::render::{self, styled};
use crate::screen;

pub(super) fn explain(topic: Option<&str>, place: &Place<'_>, as_json: bool) -> Result<End, Stop> {
    let (text, data) = match topic {
        None => (codes_text(), json!(CODES.iter().map(code_json).chain(FAILURES.iter().map(failure_json)).collect::<Vec<_>>())),
        Some("fields") => (fields_text(), json!(FIELDS.iter().map(field_json).collect::<Vec<_>>())),
        Some("steps") => (steps_text(), json!({ "actions": CATALOGUE, "words": WORDS.map(word_json) })),
        Some(word) => {
            let refusal = Code::find(word).map(|code| (code_text(code.entry()), code_json(code.entry())));
            let failure = || failure::Code::find(word).map(|code| (failure_text(code.entry()), failure_json(code.entry())));
            match refusal.or_else(failure) {
                Some(known) => known,
                None => return explain_recorded(place, word, as_json)?.ok_or_else(|| unknown(word, place)),
            }
        }
    };
    print(&text, &data, as_json, End::Done)
}

fn print(text: &str, data: &Json, as_json: bool, end: End) -> Result<End, Stop> {
    let written = if as_json { output::json(|out| writeln!(out, "{data}")) } else { write!(anstream::stdout(), "{}", screen::out(text)) };
    shown(written, end)
}

fn unknown(word: &str, place: &Place<'_>) -> Stop {
    let words: Vec<&str> = CODES.iter().map(|entry| entry.word).chain(FAILURES.iter().map(|entry| entry.word)).collect();
    let near = words.iter().copied().find(|own| own.contains(word) || word.contains(own)).or_else(|| nearest(word, &words));
    let stop = Stop::input(format!("there is no code, plan, run, operation or entry `{}`", word.escape_debug()));
    match near {
        Some(near) => stop.help(format!("did you mean `{near}`? `converger explain` lists them all")),
        None => stop.help(format!("`converger explain` lists the codes; plans, runs and operations were looked for in {}", place.shown())),
    }
}

fn codes_text() -> String {
    let line = |word: &str, title: &str| format!("{} {title}\n", styled(render::BOLD, format!("{word:<24}")));
    let head = |text: &str| format!("{}\n", styled(render::DIM, text));
    let refusals: String = CODES.iter().map(|entry| line(entry.word, entry.title)).collect();
    let failures: String = FAILURES.iter().map(|entry| line(entry.word, entry.title)).collect();
    format!("{}{refusals}{}{failures}", head("refusals: decisions not to act"), head("failures: what could not be done"))
}

fn code_text(entry: &Entry) -> String {
    let reach = match entry.reach {
        Reach::Guest => "one guest; others go on",
        Reach::Run => "the whole run",
    };
    let mut text = format!("{}: {}\n\n{}\n\n", styled(render::RED.bold(), entry.word), entry.title, entry.meaning);
    for remedy in entry.code.remedies() {
        let _ = writeln!(text, "{} {remedy}", styled(render::CYAN, "remedy:"));
    }
    let _ = writeln!(text, "{}  {}", styled(render::CYAN, "stage:"), entry.stage.word());
    let _ = writeln!(text, "{}  {reach}", styled(render::CYAN, "reach:"));
    text + &ends_text(status::of_refusal(entry.code))
}

/// How a process ends by a code, and what a client is told.
fn ends_text(Status { exit, http }: Status) -> String {
    format!("{}   exit status {exit}, HTTP {http}\n", styled(render::CYAN, "ends:"))
}

fn failure_text(entry: &failure::Entry) -> String {
    let title = format!("{}: {}", styled(render::RED.bold(), entry.word), entry.title);
    format!(
        "{title}\n\n{}\n\n{} {}\n{}   failure\n{}",
        entry.meaning,
        styled(render::CYAN, "remedy:"),
        entry.remedy,
        styled(render::CYAN, "kind:"),
        ends_text(status::of_failure(entry.code))
    )
}

fn failure_json(entry: &failure::Entry) -> Json {
    let Status { exit, http } = status::of_failure(entry.code);
    json!({
        "code": entry.word, "title": entry.title, "meaning": entry.meaning, "remedy": entry.remedy, "kind": "failure",
        "exit": exit, "http": http,
    })
}

fn code_json(entry: &Entry) -> Json {
    let reach = if entry.reach == Reach::Guest { "guest" } else { "run" };
    let Status { exit, http } = status::of_refusal(entry.code);
    json!({
        "code": entry.word, "title": entry.title, "meaning": entry.meaning,
        "remedy": entry.code.remedies().join(" "), "stage": entry.stage.word(), "reach": reach, "kind": "refusal",
        "exit": exit, "http": http,
    })
}

fn fields_text() -> String {
    let mut text = String::from("kind  field        value                                 when absent        while it runs\n");
    for rule in FIELDS.iter().filter(|rule| rule.role == Role::Managed) {
        let (kind, field, unit) = (rule.kind, rule.field.word(), bounds(rule));
        let _ = writeln!(text, "{:<5} {field:<12} {unit:<37} {:<18} {}", kind.word(), absent(rule), live(rule));
    }
    text
}

fn field_json(rule: &Rule) -> Json {
    json!({
        "kind": rule.kind.word(), "field": rule.field.word(), "declarable": rule.role == Role::Managed, "value": bounds(rule),
        "absent": absent(rule), "running": live(rule), "null_removes": rule.can_unset,
    })
}

/// The words behind a step, with what each means: impact, risk, class.
const WORDS: [(&str, &str, &str); 11] = [
    ("impact", "none", "nothing that runs is touched"),
    ("impact", "reload", "something changes inside the running guest, without interrupting it"),
    ("impact", "reboot", "it goes down and comes up again"),
    ("impact", "stop", "it goes down; a person types its name before that"),
    ("impact", "data-loss", "data is lost"),
    ("risk", "low", "what people are told changes, such as a description"),
    ("risk", "medium", "it can fail, or have consequences inside the guest"),
    ("risk", "high", "the guest cannot write out what it holds in memory, or worse"),
    ("class", "benign", "nothing is interrupted, and it can be undone; the plan's digest is enough of a word (--confirm)"),
    ("class", "disruptive", "something is interrupted; a person has to say yes"),
    ("class", "destructive", "something may be lost for good"),
];

fn steps_text() -> String {
    let mut text = String::from("Behind each step stands what it amounts to: (impact none, risk medium, benign).\n");
    let mut last = "";
    for (kind, word, meaning) in WORDS {
        if kind != last {
            let _ = writeln!(text, "\n{}", styled(render::DIM, kind));
            last = kind;
        }
        let _ = writeln!(text, "{} {meaning}", styled(render::BOLD, format!("{word:<12}")));
    }
    let _ = writeln!(text, "\n{}", styled(render::DIM, "at least, by change; what is known of a guest can only raise it"));
    for action in &CATALOGUE {
        let weight = render::weight(action.impact, action.risk, action.class);
        let _ = writeln!(text, "{} {weight}", styled(render::BOLD, format!("{:<12}", action.change)));
    }
    text
}

fn word_json((kind, word, meaning): (&str, &str, &str)) -> Json {
    json!({ "kind": kind, "word": word, "meaning": meaning })
}

/// The value in words, with its bounds where it is a number.
fn bounds(rule: &Rule) -> String {
    use converger_core::normalize::Shape;
    let range = |make: fn(u32) -> Value| format!("{} to {}", make(rule.min), make(rule.max));
    match rule.field.shape() {
        Shape::Count => range(Value::Count),
        Shape::Mib => range(Value::Mib),
        Shape::Thousandths => range(Value::Thousandths),
        shape => shape.unit().to_owned(),
    }
}

fn absent(rule: &Rule) -> String {
    use converger_core::normalize::Shape;
    match (rule.absent, rule.field.shape()) {
        (Absent::Flag(flag), _) => flag.to_string(),
        (Absent::Number(number), Shape::Mib) => Value::Mib(number).to_string(),
        (Absent::Number(number), Shape::Thousandths) => Value::Thousandths(number).to_string(),
        (Absent::Number(number), _) => number.to_string(),
        (Absent::Empty, _) => "empty".into(),
        (Absent::Undefined, _) => "no value equals it".into(),
    }
}

fn live(rule: &Rule) -> &'static str {
    match rule.live {
        Live::Record => "at once",
        Live::Always => "at once, in the running guest",
        Live::MemoryHotplug => "at once with memory hotplug and numa, else at the next start",
        Live::BalloonResize => "at once; switched on or off at the next start",
        Live::Restart => "at the next start",
    }
}

pub(super) fn contract(as_json: bool, verbose: bool) -> Result<End, Stop> {
    let report = contract::check();
    let end = if report.holds() { End::Done } else { End::Broken };
    print(&contract_text(&report, verbose), &contract_json(&report), as_json, end)
}

fn contract_text(report: &Report, verbose: bool) -> String {
    let mut text = String::new();
    for guarantee in &report.guarantees {
        let tests = render::counted(u64::try_from(guarantee.tests.len()).unwrap_or(u64::MAX), "test");
        let id = styled(render::BOLD, format!("{:<4}", guarantee.id));
        let _ = writeln!(text, "{id} {} {}", guarantee.title, styled(render::DIM, format!("({tests})")));
        for test in guarantee.tests.iter().filter(|_| verbose) {
            let _ = writeln!(text, "       {}", styled(render::DIM, test));
        }
    }
    if !verbose {
        let _ = writeln!(text, "{}", styled(render::DIM, "--verbose names the tests"));
    }
    let _ = writeln!(text, "\ntext of the guarantees   {} {}", mark(report.design.holds()), report.design.found);
    let _ = writeln!(text, "golden plan vectors      {} {}", mark(report.vectors.holds()), report.vectors.found);
    let differing = if report.differing.is_empty() { String::new() } else { format!(", differing: {}", report.differing.join(", ")) };
    let _ = writeln!(text, "planned again just now   {} {} vectors{differing}", mark(report.differing.is_empty()), report.planned);
    if !report.holds() {
        let _ = writeln!(
            text,
            "\n{} this program does not keep its contract: reading goes on, acting does not",
            styled(render::RED.bold(), "broken:")
        );
    }
    text
}

fn mark(holds: bool) -> String {
    if holds { styled(render::GREEN, "holds ") } else { styled(render::RED, "BROKEN") }
}

fn contract_json(report: &Report) -> Json {
    let guarantees: Vec<Json> = report
        .guarantees
        .iter()
        .map(|guarantee| json!({ "id": guarantee.id, "title": guarantee.title, "tests": guarantee.tests }))
        .collect();
    let pin = |pin: &contract::Pin| json!({ "pinned": pin.pinned, "found": pin.found.to_string() });
    json!({
        "schema": "converger.contract/1", "holds": report.holds(), "design": pin(&report.design), "vectors": pin(&report.vectors),
        "planned": report.planned, "differing": report.differing, "guarantees": guarantees,
    })
}
