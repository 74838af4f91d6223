//! Text for people: a diff per guest, refusals with their remedy, one line of summary.
//!
//! Everything that others wrote (names, notes, tags) is escaped before it is shown. Styles are stripped by the stream
//! where it is not a terminal, or where `NO_COLOR` is set.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anstyle::{AnsiColor, Style};
use converger_adapters::proxmox::ObservationReport;
use converger_core::action::{Change, ChangeClass, FieldChange, Impact, Risk};
use converger_core::apply::{Evidence, Fact, Findings, Operation, OperationHistory, Outcome, Slug, check};
use converger_core::audit::{self, AuditConclusion, PlanSummary};
use converger_core::desired::{DesiredGuest, RestartPolicy};
use converger_core::failure;
use converger_core::guest::RunState;
use converger_core::normalize::{ChangeEffect, FieldValue};
use converger_core::observe::{Observation, ObservedStatus, PendingChange};
use converger_core::plan::{Plan, Step, Verdict};
use converger_core::policy::Limits;
use converger_core::refusal::{Datum, Refusal, RefusalCode, RefusalReach};
use converger_core::safety::Judged;

use crate::cli::ObservationArgs;
use crate::commands::ErrorMessage;
use crate::files;

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const RED: Style = AnsiColor::Red.on_default();
pub(crate) const GREEN: Style = AnsiColor::Green.on_default();
pub(crate) const YELLOW: Style = AnsiColor::Yellow.on_default();
pub(crate) const CYAN: Style = AnsiColor::Cyan.on_default();

/// Converged guests are listed one by one up to so many; beyond that they are only counted.
const CONVERGED_SHOWN_MAX: u64 = 20;

/// A text in a style.
pub(crate) fn apply_style(style: Style, text: impl std::fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}

/// What is said when a command stops.
pub(crate) fn render_error(word: &str, message: &ErrorMessage, code: Option<&str>, help: Option<&str>) -> String {
    let title = code.map_or(format!("{word}:"), |code| format!("{word}[{code}]:"));
    let mut text = match message {
        ErrorMessage::Preformatted(laid) => laid.clone(),
        ErrorMessage::Sentence(sentence) => format!("{} {}\n", apply_style(RED.bold(), title), sentence.trim_end()),
    };
    text.push_str(&help.map(self::render_help).unwrap_or_default());
    text
}

/// What to do about it.
pub(crate) fn render_help(help: &str) -> String {
    format!("{} {help}\n", apply_style(CYAN.bold(), "help:"))
}

/// That a file was written.
pub(crate) fn render_written_file(path: &Path, digest: Option<&str>) -> String {
    let digest = digest.map(|digest| format!(" ({digest})")).unwrap_or_default();
    apply_style(DIM, format!("wrote {}{digest}", files::display_path(path)))
}

/// The report on a judged plan, as text.
pub(crate) fn render_report(judged: &Judged, origin: &str, all: bool) -> io::Result<String> {
    let mut text = Vec::new();
    write_report(&mut text, judged, origin, all)?;
    String::from_utf8(text).map_err(io::Error::other)
}

/// What is to be done comes last, beside the counts and the question; before it what is refused, and first what needs nobody's eyes.
fn write_report(out: &mut impl Write, judged: &Judged, origin: &str, all: bool) -> io::Result<()> {
    let plan = judged.plan();
    let summary = audit::summarize_plan(judged);
    let shows_converged = all || summary.converged <= CONVERGED_SHOWN_MAX;
    let environment = apply_style(BOLD, plan.desired().environment());
    let taken_at = plan.observation().taken_at.as_deref().map(|time| format!(" · read at {time}")).unwrap_or_default();
    writeln!(out, "{environment} {}", apply_style(DIM, format!("· {} in scope{taken_at}", count_with_noun(summary.guests, "guest"))))?;
    writeln!(out, "{}", apply_style(DIM, format!("{origin}: {}", describe_limits(judged.judgement().limits()))))?;
    if summary.guests > 0 {
        writeln!(out)?;
    }
    let converged = format!(
        "{} {} {}\n",
        apply_style(GREEN, "="),
        count_with_noun(summary.converged, "guest"),
        apply_style(DIM, "converged; --all lists them")
    );
    let mut told = ShownRemedies::default();
    let groups = [
        if shows_converged { render_group(plan, |verdict| matches!(verdict, Verdict::Converged { .. }), &mut told) } else { converged },
        render_group(plan, |verdict| matches!(verdict, Verdict::Refused(_)), &mut told),
        render_group(plan, |verdict| matches!(verdict, Verdict::Steps(_)), &mut told),
    ];
    let groups: Vec<String> = groups.into_iter().filter(|group| !group.is_empty()).collect();
    out.write_all(groups.join("\n").as_bytes())?;
    for cause in plan.refusals().iter().chain(judged.judgement().refusals()) {
        write!(out, "\n{}", render_refusal(cause))?;
    }
    writeln!(out, "\n{}", render_summary(judged, &summary))
}

/// The guests of one kind of verdict, in the order of the plan.
fn render_group(plan: &Plan, is_meant: impl Fn(&Verdict) -> bool, told: &mut ShownRemedies) -> String {
    plan.guests().filter(|(_, verdict)| is_meant(verdict)).map(|(guest, verdict)| render_guest(plan, guest, verdict, told)).collect()
}

/// Limits may come from nowhere but the program; they are shown all the same.
fn describe_limits(limits: &Limits) -> String {
    format!("a run may change {} ({} %) and interrupt {}", count_with_noun(limits.guests.into(), "guest"), limits.percent, limits.stops)
}

pub(crate) fn count_with_noun(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

fn render_summary(judged: &Judged, summary: &PlanSummary) -> String {
    let changed = summary.guests - summary.converged - summary.refused;
    let mut parts = vec![format!("{} converged", summary.converged)];
    parts.push(format!("{changed} to change in {}", count_with_noun(summary.steps, "step")));
    parts.push(format!("{} refused", summary.refused));
    parts.push(format!("{} unmanaged", summary.unmanaged));
    let counts = parts.join(", ");
    let whole: Vec<&str> = judged.plan().refusals().iter().chain(judged.judgement().refusals()).map(|cause| cause.code().word()).collect();
    if !whole.is_empty() {
        return apply_style(RED.bold(), format!("Refused as a whole ({}), nothing would be done: {counts}", whole.join(", ")));
    }
    match audit::conclude_audit(judged) {
        AuditConclusion::Converged => apply_style(GREEN.bold(), format!("Converged: {counts}")),
        AuditConclusion::ChangesPending => apply_style(YELLOW.bold(), format!("Changes pending: {counts}")),
        AuditConclusion::Refused => apply_style(RED.bold(), format!("Refused: {counts}")),
    }
}

fn render_guest(plan: &Plan, guest: &DesiredGuest, verdict: &Verdict, told: &mut ShownRemedies) -> String {
    let name = plan.name_of(guest).map_or("(no name)".to_owned(), quote_untrusted);
    let title = format!("{} {} {}", guest.vmid, guest.kind, apply_style(BOLD, name));
    match verdict {
        Verdict::Converged { pending_restart } => {
            let note = if *pending_restart { describe_pending(plan, guest) } else { "converged".to_owned() };
            format!("{} {title} {}\n", apply_style(GREEN, "="), apply_style(DIM, note))
        }
        Verdict::Steps(steps) => {
            let steps: String = steps.iter().map(render_step).collect();
            format!("{} {title}\n{steps}", apply_style(YELLOW, "~"))
        }
        Verdict::Refused(refusals) => format!("{} {title} {}", apply_style(RED, "!"), render_guest_refusals(refusals, told)),
    }
}

/// Codes whose remedy stands in a report already: for the next guest it is the same.
#[derive(Default)]
pub(crate) struct ShownRemedies(BTreeSet<RefusalCode>);

/// That a guest is refused, with its own causes; those of the whole run are only named, and said once at the end.
pub(crate) fn render_guest_refusals(refusals: &[Refusal], told: &mut ShownRemedies) -> String {
    let own = refusals.iter().filter(|refusal| refusal.code().entry().reach == RefusalReach::Guest);
    let causes = own.map(|cause| if told.0.insert(cause.code()) { render_refusal(cause) } else { render_refusal_cause(cause) });
    let causes: String = causes.flat_map(|cause| cause.lines().map(|line| format!("    {line}\n")).collect::<Vec<_>>()).collect();
    let shared = refusals.iter().filter(|refusal| refusal.code().entry().reach == RefusalReach::Run).map(|refusal| refusal.code().word());
    let shared: Vec<&str> = shared.collect();
    let note = if shared.is_empty() { String::new() } else { apply_style(DIM, format!(" with the whole run: {}", shared.join(", "))) };
    format!("{}{note}\n{causes}", apply_style(RED, "refused"))
}

/// What is written and not yet in effect.
fn describe_pending(plan: &Plan, guest: &DesiredGuest) -> String {
    let pending = plan.observation().find(guest.vmid).and_then(|row| row.pending.as_ref().into_option());
    let declared = |key: &str| guest.config.iter().any(|setting| setting.field.word() == key);
    let keys: Vec<&str> = pending.into_iter().flatten().map(PendingChange::key).filter(|key| declared(key)).collect();
    // A guest that is stopped and started again must be declared to run.
    let way = match guest.restart {
        RestartPolicy::Never => "`restart: when-needed` would allow one",
        RestartPolicy::WhenNeeded => "a restart of this one needs `state: running` too",
    };
    format!("converged; {} takes effect at the next start ({way})", keys.join(", "))
}

/// Words of others: as they are if they cannot be taken for ours, otherwise quoted and escaped.
pub(crate) fn quote_untrusted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'+' | b':' | b'/' | b'@');
    if !word.is_empty() && word.bytes().all(is_plain) { word.to_owned() } else { collapse_blanks(&format!("{word:?}")) }
}

/// The most blanks beside each other that are shown as such.
const BLANKS_MAX: usize = 3;

/// Runs of blanks by their number: a terminal would break a padded line, and what follows would stand at the beginning of one, as if it were ours.
fn collapse_blanks(quoted: &str) -> String {
    let (mut text, mut rest) = (String::new(), quoted);
    while let Some(at) = rest.find(' ') {
        let (before, blanks) = rest.split_at(at);
        rest = blanks.trim_start_matches(' ');
        text.push_str(before);
        match blanks.len() - rest.len() {
            count if count <= BLANKS_MAX => text.extend(std::iter::repeat_n(' ', count)),
            count => text.push_str(&format!(" [{count} blanks] ")),
        }
    }
    text + rest
}

/// What a step amounts to. `converger explain steps` says what the words mean.
pub(crate) fn describe_classification(impact: Impact, risk: Risk, class: ChangeClass) -> String {
    format!("(impact {}, risk {}, {})", serialized_name(&impact), serialized_name(&risk), serialized_name(&class))
}

fn render_step(step: &Step) -> String {
    let weight = apply_style(DIM, describe_classification(step.impact(), step.risk(), step.class()));
    let mut text = format!("    {}: {} {weight}\n", apply_style(BOLD, step.change.word()), step.reason_text());
    match &step.change {
        Change::ConfigSet(fields) => fields.iter().for_each(|field| text.push_str(&render_field_change(field))),
        Change::Shutdown { timeout_secs } | Change::Reboot { timeout_secs } => {
            let _ = writeln!(text, "      {}", apply_style(DIM, format!("within {timeout_secs} s, and never harder after that")));
        }
        Change::Stop => {
            let _ = writeln!(text, "      {}", apply_style(DIM, "at once, as if power were cut"));
        }
        Change::Start => {}
    }
    if !step.wait.is_empty() {
        let ids: Vec<String> = step.wait.iter().map(ToString::to_string).collect();
        let _ = writeln!(text, "      {}", apply_style(DIM, format!("after the power step of {}", ids.join(", "))));
    }
    text
}

fn render_field_change(change: &FieldChange) -> String {
    let side = |value: &Option<FieldValue>| value.as_ref().map_or("(absent)".to_owned(), |value| collapse_blanks(&value.to_string()));
    let word = change.field.word();
    let note = match change.effect {
        ChangeEffect::Recorded => "",
        ChangeEffect::Live => "  takes effect while it runs",
        ChangeEffect::AtRestart => "  takes effect at the next start",
    };
    let before = apply_style(RED, format!("- {word}: {}", side(&change.before)));
    let pending =
        change.pending.as_ref().map(|pending| format!("      {}\n", apply_style(RED, format!("- {word}: {} (pending)", side(pending)))));
    let after = apply_style(GREEN, format!("+ {word}: {}", side(&change.after)));
    format!("      {before}\n{}      {after}{}\n", pending.unwrap_or_default(), apply_style(DIM, note))
}

/// The word of a value in artifacts.
fn serialized_name(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// A refusal: code, what happened, evidence, remedy.
pub(crate) fn render_refusal(refusal: &Refusal) -> String {
    format!("{}  {} {}\n", render_refusal_cause(refusal), apply_style(CYAN, "remedy:"), refusal.remedy())
}

/// The same without its remedy.
fn render_refusal_cause(refusal: &Refusal) -> String {
    format!("{}: {}\n", apply_style(RED.bold(), refusal.code().word()), describe_refusal(refusal))
}

/// What a refusal says, with its evidence.
pub(crate) fn describe_refusal(refusal: &Refusal) -> String {
    let evidence: Vec<String> = refusal.evidence().iter().map(|(key, datum)| format!("{key}: {}", format_datum(datum))).collect();
    let evidence = if evidence.is_empty() { String::new() } else { format!(" ({})", evidence.join("; ")) };
    format!("{}{evidence}", refusal.title())
}

fn format_datum(datum: &Datum) -> String {
    match datum {
        Datum::Number(number) => number.to_string(),
        Datum::Text(text) => quote_untrusted(text),
        Datum::Ids(ids) => ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        Datum::Words(words) => words.iter().map(|word| quote_untrusted(word)).collect::<Vec<_>>().join(", "),
    }
}

/// How an operation ended that is not done: what happened, what that rests on, and what to do.
pub(crate) fn describe_outcome(outcome: &Outcome) -> String {
    let Findings { evidence, observed } = outcome.findings();
    describe_cause(outcome.code().map_or("", Slug::as_str), evidence, observed)
}

/// A cause as it was recorded, with what it rests on, what was observed then, and what to do.
pub(crate) fn describe_cause(word: &str, evidence: &Evidence, observed: &Evidence) -> String {
    let has = |key: &str| evidence.get(key).is_some();
    let is_cause = |word: &str| evidence.get("cause") == Some(&Fact::Text(word.into()));
    let was_seen = |key: &str| has(key) || observed.get(key).is_some() || is_cause(key);
    let (title, remedy) = match (failure::FailureCode::from_word(word), RefusalCode::from_word(word)) {
        (Some(code), _) => (code.title(was_seen), code.remedy(was_seen)),
        (None, Some(code)) => (code.title(has), code.remedy(has)),
        (None, None) => ("a cause that this version does not know", "Use the version of the program that wrote it."),
    };
    // An adapter has no word for most causes; what was said tells.
    let worded = describe_facts(evidence).into_iter().filter(|fact| fact != "cause: other");
    let read = describe_facts(observed).into_iter().map(|fact| format!("read {fact}"));
    let facts: Vec<String> = worded.chain(read).collect();
    let facts = if facts.is_empty() { String::new() } else { format!(" ({})", facts.join("; ")) };
    format!("{}: {title}{facts}\n  {} {remedy}\n", apply_style(RED.bold(), word), apply_style(CYAN, "remedy:"))
}

/// Why an operation is done although it sent nothing; none where it sent its change.
pub(crate) fn nothing_sent(operation: &Operation, outcome: &Outcome) -> Option<&'static str> {
    let evidence = &outcome.findings().evidence;
    if evidence.get("not_needed").is_some() {
        return Some("not needed any more; nothing sent");
    }
    let is_found = matches!(evidence.get("found_so"), Some(Fact::Text(text)) if &**text == check::FOUND_BEFORE_SENDING);
    is_found.then(|| match operation.step.change.resulting_state() {
        Some(RunState::Running) => "already running; nothing sent",
        Some(RunState::Stopped) => "already stopped; nothing sent",
        None => "already as declared; nothing sent",
    })
}

/// Facts of an operation, in words.
pub(crate) fn describe_facts(evidence: &Evidence) -> Vec<String> {
    let text = |fact: &Fact| match fact {
        Fact::Number(number) => number.to_string(),
        Fact::Text(text) => truncate_fact(text),
        Fact::Words(words) => words.iter().map(|word| truncate_fact(word)).collect::<Vec<_>>().join(", "),
    };
    evidence.iter().map(|(key, fact)| format!("{}: {}", key.as_str(), text(fact))).collect()
}

/// The most characters of a fact that people are shown: a page.
const FACT_CHARS_MAX: usize = 2000;

/// Words of others, as far as anybody reads them at a terminal. What is kept, and written as JSON, is whole.
fn truncate_fact(text: &str) -> String {
    truncate_untrusted(text, FACT_CHARS_MAX)
}

/// Words of others, quoted and cut after so many characters.
pub(crate) fn truncate_untrusted(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        None => quote_untrusted(text),
        Some((at, _)) => format!(
            "{} [{} more, with --json]",
            quote_untrusted(&text[..at]),
            count_with_noun(text[at..].chars().count() as u64, "character")
        ),
    }
}

/// The options that lead to the same reading again.
pub(crate) fn observation_options(look: &ObservationArgs) -> String {
    let option = |name: &str, path: &Option<PathBuf>| {
        path.as_ref().map(|path| format!(" --{name} {}", files::shell_argument(path))).unwrap_or_default()
    };
    option("replay", &look.replay) + &option("config", &look.config)
}

/// That an operation holds its guest, where nothing else says so.
pub(crate) fn render_unsettled_operation(history: &OperationHistory) -> String {
    let (id, guest) = (history.id().as_str(), &history.operation.guest);
    let what = format!("{} of {} {} ({id})", history.operation.step.change.word(), guest.vmid, quote_untrusted(&guest.name));
    let how = if history.progress().is_open() {
        "is under way, or was left when its run was killed: an apply first finds out".to_owned()
    } else {
        format!("is held: nobody knows what became of it; see `converger ops show {} {id}`", history.operation.environment)
    };
    format!("{} {what} {how}\n", apply_style(YELLOW, "note:"))
}

/// Where a live reading is from, and what was not as it should be.
pub(crate) fn render_reading_source(report: &ObservationReport) -> String {
    let requests = count_with_noun(report.requests, "request");
    let mut text = format!("{}\n", apply_style(DIM, format!("read from {} in {requests}", report.endpoint)));
    let mut notes = report.reading.notes.iter().enumerate().peekable();
    while let Some((index, note)) = notes.next() {
        let label = if index < report.passed_over { "passed over:" } else { "note:" };
        let _ = writeln!(text, "{} {} ({})", apply_style(YELLOW.bold(), label), note.text, note.code);
        // What helps several of them is said once, after the last.
        if notes.peek().is_none_or(|(_, next)| next.remedy != note.remedy) {
            let _ = writeln!(text, "  {} {}", apply_style(CYAN, "remedy:"), note.remedy);
        }
    }
    text
}

/// What a reading holds, in a few lines.
pub(crate) fn render_observation(observation: &Observation, scope: usize) -> String {
    let known =
        |is_known: bool| observation.guests.iter().filter(|guest| matches!(guest.status, ObservedStatus::Known(_)) == is_known).count();
    let unlisted = scope.saturating_sub(observation.guests.len());
    let unlisted_are = if observation.complete { "missing" } else { "unknown because the list is incomplete" };
    let yes = |is: bool| if is { "yes" } else { "no" };
    let mut text = String::new();
    let _ = writeln!(text, "{} {}", apply_style(BOLD, &observation.environment), apply_style(DIM, format!("· {scope} in scope")));
    let _ = writeln!(text, "  quorate: {}   complete: {}", yes(observation.quorate), yes(observation.complete));
    let _ =
        writeln!(text, "  {} seen, {} unknown, {unlisted} {unlisted_are}, {} unmanaged", known(true), known(false), observation.unmanaged);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untrusted_text_cannot_break_the_layout() {
        let padded = format!("web{}Changes pending: nothing", " ".repeat(400));
        assert_eq!(quote_untrusted(&padded), "\"web [400 blanks] Changes pending: nothing\"");
        assert_eq!(
            (quote_untrusted("web-1"), quote_untrusted("a  b"), quote_untrusted("   ")),
            ("web-1".into(), "\"a  b\"".into(), "\"   \"".into())
        );
        assert_eq!(quote_untrusted("x\u{3000}\u{a0}\ny"), "\"x\\u{3000}\\u{a0}\\ny\"");
    }

    #[test]
    fn truncates_a_long_fact() {
        assert_eq!(truncate_fact(&"é".repeat(FACT_CHARS_MAX)), quote_untrusted(&"é".repeat(FACT_CHARS_MAX)));
        let long = truncate_fact(&"x".repeat(50_000));
        assert!(long.len() < 2100 && long.ends_with("x [48000 characters more, with --json]"), "{}", long.len());
    }
}
