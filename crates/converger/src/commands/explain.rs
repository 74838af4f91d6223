//! `converger explain` and `converger contract`: codes, declarable fields, words for steps, and the guarantees of this program.

use std::fmt::Write as _;
use std::io::Write;

use converger_core::action::CATALOGUE;
use converger_core::contract::{self, ContractReport};
use converger_core::document::nearest_word;
use converger_core::failure::{self, TABLE as FAILURES};
use converger_core::normalize::{AbsentMeaning, FieldRole, FieldRule, FieldValue, LiveEffect, TABLE as FIELDS};
use converger_core::refusal::{RefusalCode, RefusalEntry, RefusalReach, TABLE as CODES};
use converger_core::status::{self, EndStatus};
use serde_json::{Value as Json, json};

use super::decisions::{DecisionLocation, explain_recorded};
use super::{CommandError, finish_output};
use crate::exit_status::ExitStatus;
use crate::line_wrap;
use crate::output;
use crate::render::{self, apply_style};

pub(super) fn explain(topic: Option<&str>, location: &DecisionLocation<'_>, as_json: bool) -> Result<ExitStatus, CommandError> {
    let (text, data) = match topic {
        None => (render_codes(), json!(CODES.iter().map(code_json).chain(FAILURES.iter().map(failure_json)).collect::<Vec<_>>())),
        Some("fields") => (render_fields(), json!(FIELDS.iter().map(field_json).collect::<Vec<_>>())),
        Some("steps") => (render_steps(), json!({ "actions": CATALOGUE, "words": STEP_TERMS.map(term_json) })),
        Some(name) => {
            let refusal = RefusalCode::from_word(name).map(|code| (render_code(code.entry()), code_json(code.entry())));
            let failure = || failure::FailureCode::from_word(name).map(|code| (render_failure(code.entry()), failure_json(code.entry())));
            match refusal.or_else(failure) {
                Some(known) => known,
                None => return explain_recorded(location, name, as_json)?.ok_or_else(|| unknown_topic_error(name, location)),
            }
        }
    };
    print_topic(&text, &data, as_json, ExitStatus::Done)
}

fn print_topic(text: &str, data: &Json, as_json: bool, end: ExitStatus) -> Result<ExitStatus, CommandError> {
    let written = if as_json {
        output::print_json(|out| writeln!(out, "{data}"))
    } else {
        write!(anstream::stdout(), "{}", line_wrap::wrap_for_stdout(text))
    };
    finish_output(written, end)
}

fn unknown_topic_error(name: &str, location: &DecisionLocation<'_>) -> CommandError {
    let codes: Vec<&str> = CODES.iter().map(|entry| entry.word).chain(FAILURES.iter().map(|entry| entry.word)).collect();
    let near = codes.iter().copied().find(|own| own.contains(name) || name.contains(own)).or_else(|| nearest_word(name, &codes));
    let error = CommandError::input_error(format!("there is no code, plan, run, operation or entry `{}`", name.escape_debug()));
    match near {
        Some(near) => error.with_help(format!("did you mean `{near}`? `converger explain` lists them all")),
        None => error
            .with_help(format!("`converger explain` lists the codes; plans, runs and operations were searched in {}", location.describe())),
    }
}

fn render_codes() -> String {
    let line = |code: &str, title: &str| format!("{} {title}\n", apply_style(render::BOLD, format!("{code:<24}")));
    let head = |text: &str| format!("{}\n", apply_style(render::DIM, text));
    let refusals: String = CODES.iter().map(|entry| line(entry.word, entry.title)).collect();
    let failures: String = FAILURES.iter().map(|entry| line(entry.word, entry.title)).collect();
    format!("{}{refusals}{}{failures}", head("refusals: the program decides not to act"), head("failures: something cannot be done"))
}

fn render_code(entry: &RefusalEntry) -> String {
    let reach = match entry.reach {
        RefusalReach::Guest => "one guest; others are not affected",
        RefusalReach::Run => "the whole run",
    };
    let mut text = format!("{}: {}\n\n{}\n\n", apply_style(render::RED.bold(), entry.word), entry.title, entry.meaning);
    for remedy in entry.code.remedies() {
        let _ = writeln!(text, "{} {remedy}", apply_style(render::CYAN, "remedy:"));
    }
    let _ = writeln!(text, "{}  {}", apply_style(render::CYAN, "stage:"), entry.stage.word());
    let _ = writeln!(text, "{}  {reach}", apply_style(render::CYAN, "reach:"));
    text + &render_end_status(status::refusal_status(entry.code))
}

/// The exit status and the HTTP status of a code.
fn render_end_status(EndStatus { exit, http }: EndStatus) -> String {
    format!("{}   exit status {exit}, HTTP {http}\n", apply_style(render::CYAN, "ends:"))
}

fn render_failure(entry: &failure::FailureEntry) -> String {
    let title = format!("{}: {}", apply_style(render::RED.bold(), entry.word), entry.title);
    format!(
        "{title}\n\n{}\n\n{} {}\n{}   failure\n{}",
        entry.meaning,
        apply_style(render::CYAN, "remedy:"),
        entry.remedy,
        apply_style(render::CYAN, "kind:"),
        render_end_status(status::failure_status(entry.code))
    )
}

fn failure_json(entry: &failure::FailureEntry) -> Json {
    let EndStatus { exit, http } = status::failure_status(entry.code);
    json!({
        "code": entry.word, "title": entry.title, "meaning": entry.meaning, "remedy": entry.remedy, "kind": "failure",
        "exit": exit, "http": http,
    })
}

fn code_json(entry: &RefusalEntry) -> Json {
    let reach = if entry.reach == RefusalReach::Guest { "guest" } else { "run" };
    let EndStatus { exit, http } = status::refusal_status(entry.code);
    json!({
        "code": entry.word, "title": entry.title, "meaning": entry.meaning,
        "remedy": entry.code.remedies().join(" "), "stage": entry.stage.word(), "reach": reach, "kind": "refusal",
        "exit": exit, "http": http,
    })
}

fn render_fields() -> String {
    let mut text = String::from("kind  field        value                                 when absent        while it runs\n");
    for rule in FIELDS.iter().filter(|rule| rule.role == FieldRole::Managed) {
        let (kind, field, unit) = (rule.kind, rule.field.word(), describe_bounds(rule));
        let _ = writeln!(text, "{:<5} {field:<12} {unit:<37} {:<18} {}", kind.word(), describe_absent(rule), describe_live_effect(rule));
    }
    text
}

fn field_json(rule: &FieldRule) -> Json {
    json!({
        "kind": rule.kind.word(), "field": rule.field.word(), "declarable": rule.role == FieldRole::Managed, "value": describe_bounds(rule),
        "absent": describe_absent(rule), "running": describe_live_effect(rule), "null_removes": rule.can_unset,
    })
}

/// The words that classify a step, with their meanings.
const STEP_TERMS: [(&str, &str, &str); 11] = [
    ("impact", "none", "nothing that runs is affected"),
    ("impact", "reload", "something changes inside the running guest, without interrupting it"),
    ("impact", "reboot", "it goes down and comes up again"),
    ("impact", "stop", "it goes down; a person types its name before that"),
    ("impact", "data-loss", "data is lost"),
    ("risk", "low", "only text for people changes, such as a description"),
    ("risk", "medium", "it can fail, or have consequences inside the guest"),
    ("risk", "high", "the guest cannot write out its memory, or worse"),
    ("class", "benign", "nothing is interrupted, and it can be undone; the digest of the proposal confirms it (--confirm)"),
    ("class", "disruptive", "something is interrupted; a person has to confirm it"),
    ("class", "destructive", "something may be lost for good"),
];

fn render_steps() -> String {
    let mut text = String::from(
        "A step is marked if it interrupts its guest or is risky: (stop, high risk). With --verbose every step has its full classification: \
         (impact none, risk medium, benign).\n",
    );
    let mut last = "";
    for (kind, term, meaning) in STEP_TERMS {
        if kind != last {
            let _ = writeln!(text, "\n{}", apply_style(render::DIM, kind));
            last = kind;
        }
        let _ = writeln!(text, "{} {meaning}", apply_style(render::BOLD, format!("{term:<12}")));
    }
    let _ = writeln!(text, "\n{}", apply_style(render::DIM, "minimum by change; what is known about a guest can only raise it"));
    for action in &CATALOGUE {
        let weight = render::describe_classification(action.impact, action.risk, action.class);
        let _ = writeln!(text, "{} {weight}", apply_style(render::BOLD, format!("{:<12}", action.change)));
    }
    text
}

fn term_json((kind, term, meaning): (&str, &str, &str)) -> Json {
    json!({ "kind": kind, "word": term, "meaning": meaning })
}

/// The form of the value, with its bounds if it is a number.
fn describe_bounds(rule: &FieldRule) -> String {
    use converger_core::normalize::ValueShape;
    let range = |make: fn(u32) -> FieldValue| format!("{} to {}", make(rule.min), make(rule.max));
    match rule.field.shape() {
        ValueShape::Count => range(FieldValue::Count),
        ValueShape::Mib => range(FieldValue::Mib),
        ValueShape::Thousandths => range(FieldValue::Thousandths),
        shape => shape.unit().to_owned(),
    }
}

fn describe_absent(rule: &FieldRule) -> String {
    use converger_core::normalize::ValueShape;
    match (rule.absent, rule.field.shape()) {
        (AbsentMeaning::Flag(flag), _) => flag.to_string(),
        (AbsentMeaning::Number(number), ValueShape::Mib) => FieldValue::Mib(number).to_string(),
        (AbsentMeaning::Number(number), ValueShape::Thousandths) => FieldValue::Thousandths(number).to_string(),
        (AbsentMeaning::Number(number), _) => number.to_string(),
        (AbsentMeaning::Empty, _) => "empty".into(),
        (AbsentMeaning::Undefined, _) => "no default".into(),
    }
}

fn describe_live_effect(rule: &FieldRule) -> &'static str {
    match rule.live {
        LiveEffect::Record => "at once",
        LiveEffect::Always => "at once, in the running guest",
        LiveEffect::MemoryHotplug => "at once with memory hotplug and numa, else at the next start",
        LiveEffect::BalloonResize => "at once; switched on or off at the next start",
        LiveEffect::Restart => "at the next start",
    }
}

pub(super) fn check_contract(as_json: bool, verbose: bool) -> Result<ExitStatus, CommandError> {
    let report = contract::check();
    let end = if report.holds() { ExitStatus::Done } else { ExitStatus::Broken };
    print_topic(&render_contract(&report, verbose), &contract_json(&report), as_json, end)
}

fn render_contract(report: &ContractReport, verbose: bool) -> String {
    let mut text = String::new();
    for guarantee in &report.guarantees {
        let tests = render::count_with_noun(u64::try_from(guarantee.tests.len()).unwrap_or(u64::MAX), "test");
        let id = apply_style(render::BOLD, format!("{:<4}", guarantee.id));
        let _ = writeln!(text, "{id} {} {}", guarantee.title, apply_style(render::DIM, format!("({tests})")));
        for test in guarantee.tests.iter().filter(|_| verbose) {
            let _ = writeln!(text, "       {}", apply_style(render::DIM, test));
        }
    }
    if !verbose {
        let _ = writeln!(text, "{}", apply_style(render::DIM, "--verbose lists the tests"));
    }
    let _ =
        writeln!(text, "\ntext of the guarantees   {} {}", render_mark(report.design.holds()), render::short_digest(report.design.found));
    let _ =
        writeln!(text, "golden plan vectors      {} {}", render_mark(report.vectors.holds()), render::short_digest(report.vectors.found));
    let differing = if report.differing.is_empty() { String::new() } else { format!(", differing: {}", report.differing.join(", ")) };
    let _ = writeln!(text, "vectors planned again    {} {} vectors{differing}", render_mark(report.differing.is_empty()), report.planned);
    if !report.holds() {
        let _ = writeln!(
            text,
            "\n{} this program does not keep its contract: commands that only read still work, apply does not",
            apply_style(render::RED.bold(), "broken:")
        );
    }
    text
}

fn render_mark(holds: bool) -> String {
    if holds { apply_style(render::GREEN, "holds ") } else { apply_style(render::RED, "BROKEN") }
}

fn contract_json(report: &ContractReport) -> Json {
    let guarantees: Vec<Json> = report
        .guarantees
        .iter()
        .map(|guarantee| json!({ "id": guarantee.id, "title": guarantee.title, "tests": guarantee.tests }))
        .collect();
    let pin = |pin: &contract::PinnedDigest| json!({ "pinned": pin.pinned, "found": pin.found.to_string() });
    json!({
        "schema": "converger.contract/1", "holds": report.holds(), "design": pin(&report.design), "vectors": pin(&report.vectors),
        "planned": report.planned, "differing": report.differing, "guarantees": guarantees,
    })
}
