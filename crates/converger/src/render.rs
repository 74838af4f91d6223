//! Text for people: plans, refusals with their remedies, notes about an observation.
//!
//! Text that others wrote (names, notes, tags) is escaped before it is shown. The stream strips styles if it is not a terminal, or if `NO_COLOR`
//! is set.

mod field_change;
mod plan_report;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anstyle::{AnsiColor, Style};
use converger_adapters::proxmox::ObservationReport;
use converger_core::apply::{Evidence, Fact, Findings, Operation, OperationHistory, Outcome, Slug, check};
use converger_core::artifact::Digest;
use converger_core::failure;
use converger_core::guest::{RunState, Vmid};
use converger_core::observe::{Observation, ObservedStatus};
use converger_core::refusal::{Datum, Refusal, RefusalCode, RefusalReach};
use converger_core::timestamp;

use crate::cli::ObservationArgs;
use crate::commands::ErrorMessage;
use crate::files;
use crate::verbosity::{self, Verbosity};

pub(crate) use plan_report::{ReportOptions, describe_classification, notable_words, render_report};

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const RED: Style = AnsiColor::Red.on_default();
pub(crate) const GREEN: Style = AnsiColor::Green.on_default();
pub(crate) const YELLOW: Style = AnsiColor::Yellow.on_default();
pub(crate) const CYAN: Style = AnsiColor::Cyan.on_default();

/// Puts a text in a style.
pub(crate) fn apply_style(style: Style, text: impl std::fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}

/// An error or a refusal that ends a command, with what to do.
pub(crate) fn render_error(label: &str, message: &ErrorMessage, code: Option<&str>, help: Option<&str>) -> String {
    let title = code.map_or(format!("{label}:"), |code| format!("{label}[{code}]:"));
    let mut text = match message {
        ErrorMessage::Preformatted(text) => text.clone(),
        ErrorMessage::Sentence(sentence) => format!("{} {}\n", apply_style(RED.bold(), title), sentence.trim_end()),
    };
    text.push_str(&help.map(self::render_help).unwrap_or_default());
    text
}

/// What to do about an error.
pub(crate) fn render_help(help: &str) -> String {
    format!("{} {help}\n", apply_style(CYAN.bold(), "help:"))
}

/// The notice that a file was written, with its digest if a person may confirm it.
pub(crate) fn render_written_file(path: &Path, digest: Option<&str>) -> String {
    let digest = digest.map(|digest| format!(" (digest {digest})")).unwrap_or_default();
    apply_style(DIM, format!("wrote {}{digest}", files::display_path(path)))
}

pub(crate) fn count_with_noun(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// The counts above zero, joined by commas; none where all are zero.
pub(crate) fn join_counts(counts: &[(u64, &str)]) -> Option<String> {
    let parts: Vec<String> = counts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Hexadecimal digits of a digest that are shown where nothing is confirmed with it.
const DIGEST_DIGITS_SHOWN: usize = 12;

/// A digest by its first digits, or whole with `--verbose`. `explain`, `diff` and `reproduce` accept both.
pub(crate) fn short_digest(digest: Digest) -> String {
    shorten_digest(digest, verbosity::is_verbose())
}

fn shorten_digest(digest: Digest, is_whole: bool) -> String {
    let mut text = digest.to_string();
    if !is_whole {
        text.truncate("sha256:".len() + DIGEST_DIGITS_SHOWN);
    }
    text
}

/// Ids that are named in one sentence.
const IDS_SHOWN_MAX: usize = 20;

/// Ids joined by commas; of many only the first, with the number of the others.
pub(crate) fn join_ids(ids: &[Vmid]) -> String {
    let shown: Vec<String> = ids.iter().take(IDS_SHOWN_MAX).map(ToString::to_string).collect();
    let more = ids.len().saturating_sub(IDS_SHOWN_MAX);
    if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") }
}

/// Codes whose remedy a report has already: it is the same for the next guest.
#[derive(Default)]
pub(crate) struct ShownRemedies(BTreeSet<RefusalCode>);

/// The refusals of a guest. Those of the whole run are only named: the report has them once.
pub(crate) fn render_guest_refusals(refusals: &[Refusal], shown: &mut ShownRemedies) -> String {
    render_guest_refusals_with(refusals, shown, &Refusal::remedy)
}

/// The same with these remedies, for a command in which others apply.
pub(crate) fn render_guest_refusals_with(
    refusals: &[Refusal],
    shown: &mut ShownRemedies,
    remedy: &dyn Fn(&Refusal) -> &'static str,
) -> String {
    let own = refusals.iter().filter(|refusal| refusal.code().entry().reach == RefusalReach::Guest);
    let causes = own.map(|cause| match shown.0.insert(cause.code()) {
        true => render_refusal_with(cause, remedy(cause)),
        false => render_refusal_cause(cause),
    });
    let causes: String = causes.flat_map(|cause| cause.lines().map(|line| format!("    {line}\n")).collect::<Vec<_>>()).collect();
    let of_run = refusals.iter().filter(|refusal| refusal.code().entry().reach == RefusalReach::Run).map(|refusal| refusal.code().word());
    let of_run: Vec<&str> = of_run.collect();
    let note = if of_run.is_empty() { String::new() } else { apply_style(DIM, format!(" with the whole run: {}", of_run.join(", "))) };
    format!("{}{note}\n{causes}", apply_style(RED, "refused"))
}

/// Text that others wrote: unchanged if it cannot be mistaken for ours, otherwise quoted and escaped.
pub(crate) fn quote_untrusted(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'+' | b':' | b'/' | b'@');
    if !text.is_empty() && text.bytes().all(is_plain) { text.to_owned() } else { collapse_blanks(&format!("{text:?}")) }
}

/// Longer runs of blanks are shown by their number.
const BLANKS_MAX: usize = 3;

/// Replaces long runs of blanks by their number. A terminal would wrap a padded line, and its rest would look like a line of ours.
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

/// The word that artifacts have for a value.
fn serialized_name(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// A refusal: code, what happened, evidence, remedy.
pub(crate) fn render_refusal(refusal: &Refusal) -> String {
    render_refusal_with(refusal, refusal.remedy())
}

fn render_refusal_with(refusal: &Refusal, remedy: &str) -> String {
    format!("{}  {} {remedy}\n", render_refusal_cause(refusal), apply_style(CYAN, "remedy:"))
}

/// A refusal without its remedy.
fn render_refusal_cause(refusal: &Refusal) -> String {
    format!("{}: {}\n", apply_style(RED.bold(), refusal.code().word()), describe_refusal(refusal))
}

/// The title of a refusal, with its evidence.
pub(crate) fn describe_refusal(refusal: &Refusal) -> String {
    let evidence: Vec<String> = refusal.evidence().iter().map(|(key, datum)| format!("{key}: {}", format_datum(key, datum))).collect();
    let evidence = if evidence.is_empty() { String::new() } else { format!(" ({})", evidence.join("; ")) };
    format!("{}{evidence}", refusal.title())
}

fn format_datum(key: &str, datum: &Datum) -> String {
    match datum {
        Datum::Number(seconds) if key.ends_with("_at") => timestamp::format_timestamp(*seconds),
        Datum::Number(number) => number.to_string(),
        Datum::Text(text) => truncate_fact(text),
        Datum::Ids(ids) => join_ids(ids),
        Datum::Words(words) => words.iter().map(|word| truncate_fact(word)).collect::<Vec<_>>().join(", "),
    }
}

/// Why an operation is not done: what happened, on what evidence, and what to do.
pub(crate) fn describe_outcome(outcome: &Outcome) -> String {
    let Findings { evidence, observed } = outcome.findings();
    describe_cause(outcome.code().map_or("", Slug::as_str), evidence, observed)
}

/// A recorded cause: its title, its evidence, what was observed then, and what to do.
pub(crate) fn describe_cause(cause_code: &str, evidence: &Evidence, observed: &Evidence) -> String {
    let has = |key: &str| evidence.get(key).is_some();
    let is_cause = |cause: &str| evidence.get("cause") == Some(&Fact::Text(cause.into()));
    let was_seen = |key: &str| has(key) || observed.get(key).is_some() || is_cause(key);
    let (title, remedy) = match (failure::FailureCode::from_word(cause_code), RefusalCode::from_word(cause_code)) {
        (Some(code), _) => (code.title(was_seen), code.remedy(was_seen)),
        (None, Some(code)) => (code.title(has), code.remedy(has)),
        (None, None) => ("a cause that this version does not know", "Use the version of the program that wrote it."),
    };
    // `other` is the word of an adapter for a cause that only the message names.
    let worded = describe_facts(evidence).into_iter().filter(|fact| fact != "cause: other");
    let read = describe_facts(observed).into_iter().map(|fact| format!("read {fact}"));
    let facts: Vec<String> = worded.chain(read).collect();
    let facts = if facts.is_empty() { String::new() } else { format!(" ({})", facts.join("; ")) };
    format!("{}: {title}{facts}\n  {} {remedy}\n", apply_style(RED.bold(), cause_code), apply_style(CYAN, "remedy:"))
}

/// Why an operation that is done sent nothing; none if it sent its change.
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

/// The facts of an operation as text.
pub(crate) fn describe_facts(evidence: &Evidence) -> Vec<String> {
    let text = |fact: &Fact| match fact {
        Fact::Number(number) => number.to_string(),
        Fact::Text(text) => truncate_fact(text),
        Fact::Words(words) => words.iter().map(|word| truncate_fact(word)).collect::<Vec<_>>().join(", "),
    };
    evidence.iter().map(|(key, fact)| format!("{}: {}", key.as_str(), text(fact))).collect()
}

/// Longer facts are cut: this is about a page.
const FACT_CHARS_MAX: usize = 2000;

/// Text that others wrote, up to a page. Stored facts and JSON have all of it.
fn truncate_fact(text: &str) -> String {
    truncate_untrusted(text, FACT_CHARS_MAX)
}

/// Words of others, quoted and cut after so many characters.
pub(crate) fn truncate_untrusted(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        None => quote_untrusted(text),
        Some((at, _)) => format!("{} [{} characters; --json shows all]", quote_untrusted(&text[..at]), text.chars().count()),
    }
}

/// The options of a command line that gives the same observation again.
pub(crate) fn observation_options(observation_arguments: &ObservationArgs) -> String {
    let option = |name: &str, path: &Option<PathBuf>| {
        path.as_ref().map(|path| format!(" --{name} {}", files::shell_argument(path))).unwrap_or_default()
    };
    option("replay", &observation_arguments.replay) + &option("config", &observation_arguments.config)
}

/// A note about an operation that is in flight or held, for commands that settle none.
pub(crate) fn render_unsettled_operation(history: &OperationHistory) -> String {
    let (id, guest) = (history.id().as_str(), &history.operation.guest);
    let what = format!("{} of {} {} ({id})", history.operation.step.change.word(), guest.vmid, quote_untrusted(&guest.name));
    let how = if history.progress().is_open() {
        "is in flight, or its run was killed; the next apply recovers it".to_owned()
    } else {
        format!("is held: its outcome is unknown; see `converger ops show {} {id}`", history.operation.environment)
    };
    format!("{} {what} {how}\n", apply_style(YELLOW, "note:"))
}

/// Notes about an observation that are shown without `--verbose`.
const NOTES_SHOWN_MAX: usize = 50;

/// Where a live observation comes from, and notes about what was not as it should be. Quiet: only endpoints that could not be used.
pub(crate) fn render_reading_source(report: &ObservationReport, verbosity: Verbosity) -> String {
    let requests = count_with_noun(report.requests, "request");
    let mut text = String::new();
    let notes_max = match verbosity {
        Verbosity::Quiet => report.passed_over,
        Verbosity::Normal => NOTES_SHOWN_MAX.max(report.passed_over),
        Verbosity::Verbose => usize::MAX,
    };
    if verbosity != Verbosity::Quiet {
        let _ = writeln!(text, "{}", apply_style(DIM, format!("read from {} in {requests}", report.endpoint)));
    }
    let mut notes = report.reading.notes.iter().take(notes_max).enumerate().peekable();
    while let Some((index, note)) = notes.next() {
        let label = if index < report.passed_over { "passed over:" } else { "note:" };
        let _ = writeln!(text, "{} {} ({})", apply_style(YELLOW.bold(), label), note.text, note.code);
        // A remedy that several notes share is shown once, after the last of them.
        if notes.peek().is_none_or(|(_, next)| next.remedy != note.remedy) {
            let _ = writeln!(text, "  {} {}", apply_style(CYAN, "remedy:"), note.remedy);
        }
    }
    let more = report.reading.notes.len().saturating_sub(notes_max);
    if more > 0 && verbosity != Verbosity::Quiet {
        let _ = writeln!(text, "{}", apply_style(DIM, format!("... and {more} more notes; --verbose shows all")));
    }
    text
}

/// What an observation has, in a few lines.
pub(crate) fn render_observation(observation: &Observation, scope: usize) -> String {
    let count = |is_known: bool| {
        observation.guests.iter().filter(|guest| matches!(guest.status, ObservedStatus::Known(_)) == is_known).count() as u64
    };
    let unlisted = scope.saturating_sub(observation.guests.len()) as u64;
    let unlisted_are = if observation.complete { "missing" } else { "unknown because the list is incomplete" };
    let counts = [(count(true), "seen"), (count(false), "unknown"), (unlisted, unlisted_are), (observation.unmanaged, "unmanaged")];
    let counts = join_counts(&counts).unwrap_or_else(|| "no guests".to_owned());
    let yes = |is: bool| if is { "yes" } else { "no" };
    let mut text = String::new();
    let _ = writeln!(text, "{} {}", apply_style(BOLD, &observation.environment), apply_style(DIM, format!("· {scope} in scope")));
    let _ = writeln!(text, "  quorate: {}   complete: {}", yes(observation.quorate), yes(observation.complete));
    let _ = writeln!(text, "  {counts}");
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
    fn a_digest_is_shown_by_twelve_digits_unless_everything_is_wanted() {
        let digest = Digest::of_bytes(b"plan");
        let short = shorten_digest(digest, false);
        assert_eq!(short.len(), "sha256:".len() + 12);
        assert!(digest.to_string().starts_with(&short));
        assert_eq!(shorten_digest(digest, true), digest.to_string());
    }

    #[test]
    fn a_long_list_of_ids_names_the_first_and_counts_the_others() {
        let ids: Vec<Vmid> = (100..1100).filter_map(Vmid::new).collect();
        assert_eq!(join_ids(&ids[..3]), "100, 101, 102");
        assert!(join_ids(&ids).ends_with("118, 119 and 980 more"), "{}", join_ids(&ids));
    }

    #[test]
    fn truncates_a_long_fact() {
        assert_eq!(truncate_fact(&"é".repeat(FACT_CHARS_MAX)), quote_untrusted(&"é".repeat(FACT_CHARS_MAX)));
        let long = truncate_fact(&"x".repeat(50_000));
        assert!(long.len() < 2100 && long.ends_with("x [50000 characters; --json shows all]"), "{}", long.len());
    }
}
