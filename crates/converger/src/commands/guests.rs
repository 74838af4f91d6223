//! `guests`: lists the guests that the token can see. It declares nothing and writes nothing: no file, no state directory, no ledger.
//!
//! The observer decides what is known of a guest; what it does not know is printed as unknown.

use std::fmt::Write as _;
use std::io::Write as _;

use converger_core::guest::EnvironmentName;
use converger_core::normalize::WordSet;
use converger_core::observe::{self, Observation, ObservedGuest, ObservedStatus, Reading};
use converger_runtime::ConfigSource;
use converger_runtime::reader::unconfigured_error;
use serde_json::{Value as Json, json};

use super::display::Display;
use super::inputs::{self, TargetEnvironment};
use super::{CommandError, finish_output};
use crate::cli::GuestsArgs;
use crate::exit_status::ExitStatus;
use crate::render::{self, apply_style, count_with_noun, truncate_untrusted};
use crate::{files, line_wrap, output};

/// The most characters of a name or a tag in the table. JSON has all of them.
const WORD_CHARS_MAX: usize = 63;

/// The most ids in a sentence.
const IDS_SHOWN_MAX: usize = 10;

/// The most tags of a guest in the table.
const TAGS_SHOWN_MAX: usize = 10;

pub(super) async fn list_guests(arguments: &GuestsArgs) -> Result<ExitStatus, CommandError> {
    let TargetEnvironment { name: environment, config } =
        inputs::select_environment(arguments.environment.as_deref(), &ConfigSource::read(arguments.config.as_deref()), false)?;
    let token = config.connection.as_ref().map(|connection| connection.token_id().to_owned()).unwrap_or_default();
    let reader = inputs::open_reader(environment.clone(), config, &Display::new());
    let config_path = arguments.config.as_deref();
    if reader.config().connection.is_none() {
        return Err(
            CommandError::from(unconfigured_error(&environment)).with_help(inputs::example_in_config(config_path, environment.as_str()))
        );
    }
    let report = reader.list_guests().await.map_err(|error| inputs::observe_error(error, config_path))?;
    let listing = GuestListing::filter(&report.reading, arguments)?;
    let written = if arguments.json {
        output::print_json(|out| writeln!(out, "{}", listing.to_json()))
    } else {
        write!(anstream::stdout(), "{}", line_wrap::wrap_for_stdout(&listing.render(&environment, &token)))
    };
    finish_output(written, ExitStatus::Done)
}

/// Whether a guest passes the filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Match {
    No,
    /// What a filter asks for is not known of it.
    Undecided,
    Yes,
}

impl From<bool> for Match {
    fn from(is_match: bool) -> Self {
        if is_match { Self::Yes } else { Self::No }
    }
}

/// The listed guests that pass the filters.
struct GuestListing<'o> {
    observation: &'o Observation,
    guests: Vec<&'o ObservedGuest>,
    /// Guests of which it is not known whether they pass.
    undecided: Vec<&'o ObservedGuest>,
}

impl<'o> GuestListing<'o> {
    fn filter(observation: &'o Observation, arguments: &GuestsArgs) -> Result<Self, CommandError> {
        let names = || observation.nodes.iter().map(|node| node.name.as_str());
        if let Some(node) = arguments.node.as_deref().filter(|node| !names().any(|name| name == *node)) {
            let stop = CommandError::input_error(format!("the cluster has no node `{}`", node.escape_debug()));
            return Err(stop.with_help(format!("name one of its nodes: {}", names().collect::<Vec<_>>().join(", "))));
        }
        let (mut guests, mut undecided) = (Vec::new(), Vec::new());
        for guest in &observation.guests {
            match match_guest(observation, guest, arguments) {
                Match::Yes => guests.push(guest),
                Match::Undecided => undecided.push(guest),
                Match::No => {}
            }
        }
        Ok(Self { observation, guests, undecided })
    }

    fn to_json(&self) -> Json {
        let Observation { environment, taken_at, quorate, notes, unlisted, .. } = self.observation;
        let guests: Vec<Json> = self.guests.iter().map(|guest| guest_json(self.observation, guest)).collect();
        let nodes = self.observation.nodes.iter().map(|node| json!({ "name": node.name.as_str(), "online": node.online }));
        let unlisted = unlisted.iter().map(|guest| json!({ "cause": guest.cause, "vmid": guest.vmid }));
        json!({
            "schema": "converger.guests/1", "environment": environment, "taken_at": taken_at, "quorate": quorate,
            "nodes": nodes.collect::<Vec<_>>(), "guests": guests, "unlisted": unlisted.collect::<Vec<_>>(), "notes": notes,
            "undecided": self.undecided.iter().map(|guest| guest.vmid).collect::<Vec<_>>(),
        })
    }

    fn render(&self, environment: &EnvironmentName, token: &str) -> String {
        let Observation { guests: all, taken_at, quorate, unlisted, .. } = self.observation;
        let time = taken_at.as_deref().map(|time| format!(" · read at {time}")).unwrap_or_default();
        let visible = count_with_noun((all.len() + unlisted.len()) as u64, "guest");
        let head = format!("· {visible} visible to {}{time}", files::escape_hidden(token));
        let mut text = format!("{} {}\n", apply_style(render::BOLD, environment), apply_style(render::DIM, head));
        if !quorate {
            let label = apply_style(render::YELLOW.bold(), "no quorum:");
            let _ = writeln!(text, "{label} the list is what this side of the cluster last knew");
        }
        if all.is_empty() && unlisted.is_empty() {
            text.push_str(&render_nothing_visible(environment));
            return text;
        }
        if !self.guests.is_empty() || !unlisted.is_empty() {
            text.push('\n');
        }
        text.push_str(&self.render_rows());
        for guest in unlisted {
            let _ = writeln!(text, "{} {} unknown ({})", apply_style(render::YELLOW, "?"), guest.vmid, guest.cause);
        }
        let _ = writeln!(text, "\n{}", self.render_summary());
        text
    }

    fn render_rows(&self) -> String {
        let width = |cell: fn(&Observation, &ObservedGuest) -> String| {
            self.guests.iter().map(|guest| cell(self.observation, guest).chars().count()).max().unwrap_or_default()
        };
        let (ids, nodes) = (width(|_, guest| guest.vmid.to_string()), width(node_cell));
        let names = width(|_, guest| name_cell(guest));
        let mut text = String::new();
        for guest in &self.guests {
            let is_known = matches!(guest.status, ObservedStatus::Known(_));
            let sign = if is_known { " ".to_owned() } else { apply_style(render::YELLOW, "?") };
            let (name, node) = (name_cell(guest), node_cell(self.observation, guest));
            let (vmid, kind, status) = (guest.vmid.to_string(), guest.kind.word(), status_word(guest));
            let details = describe_details(guest);
            let end = match details.as_str() {
                "" => apply_style(render::BOLD, name),
                details => format!("{} {}", apply_style(render::BOLD, format!("{name:<names$}")), apply_style(render::DIM, details)),
            };
            let _ = writeln!(text, "{sign} {vmid:>ids$} {kind:<4} {status:<7} {node:<nodes$} {end}");
        }
        text
    }

    fn render_summary(&self) -> String {
        let count = |word: &str| self.guests.iter().filter(|guest| status_word(guest) == word).count();
        let total = count_with_noun(self.guests.len() as u64, "guest");
        let mut text = match self.guests.len() {
            0 => "no guest matches".to_owned(),
            _ => format!("{total}: {} running, {} stopped, {} unknown", count("running"), count("stopped"), count("unknown")),
        };
        if !self.undecided.is_empty() {
            let mut ids: Vec<String> = self.undecided.iter().take(IDS_SHOWN_MAX).map(|guest| guest.vmid.to_string()).collect();
            let more = self.undecided.len().saturating_sub(IDS_SHOWN_MAX);
            ids.extend((more > 0).then(|| format!("{more} more, with --json")));
            let _ = write!(text, "; not known whether the filters match: {}", ids.join(", "));
        }
        text
    }
}

/// An empty list does not show that there are no guests: Proxmox leaves out those that the token may not see.
fn render_nothing_visible(environment: &EnvironmentName) -> String {
    let help = format!(
        "the token lacks VM.Audit on every guest, or there is no guest; `converger doctor --environment {environment}` shows what the token \
         lacks and how to grant it"
    );
    format!("\nNo guest is visible to this token.\n{}", render::render_help(&help))
}

fn match_guest(observation: &Observation, guest: &ObservedGuest, arguments: &GuestsArgs) -> Match {
    let status = status_word(guest);
    let state = match arguments.state.as_deref() {
        None => Match::Yes,
        Some(wanted) if wanted != status && status == "unknown" => Match::Undecided,
        Some(wanted) => (wanted == status).into(),
    };
    let tags = match guest.tags.as_ref() {
        _ if arguments.tag.is_empty() => Match::Yes,
        Reading::Unread => Match::Undecided,
        Reading::Read(tags) => arguments.tag.iter().all(|tag| tags.iter().any(|own| own == tag)).into(),
    };
    let node = arguments.node.as_deref().is_none_or(|node| node == node_cell(observation, guest));
    let kind = arguments.kind.as_deref().is_none_or(|kind| kind == guest.kind.word());
    [state, tags, node.into(), kind.into()].into_iter().min().unwrap_or(Match::No)
}

fn guest_json(observation: &Observation, guest: &ObservedGuest) -> Json {
    let tags = guest.tags.as_ref().into_option().map(|tags| tags.iter().collect::<Vec<_>>());
    json!({
        "vmid": guest.vmid, "kind": guest.kind, "name": guest.name, "node": node_cell(observation, guest), "status": status_word(guest),
        "cause": unknown_cause(guest), "run_state": current_run_state(guest), "tags": tags, "template": guest.template.into_option(),
    })
}

fn status_word(guest: &ObservedGuest) -> &'static str {
    match guest.status {
        ObservedStatus::Known(state) => state.word(),
        ObservedStatus::Unknown(_) => "unknown",
    }
}

fn unknown_cause(guest: &ObservedGuest) -> Option<&str> {
    match &guest.status {
        ObservedStatus::Known(_) => None,
        ObservedStatus::Unknown(cause) => Some(cause.as_deref().unwrap_or(observe::CAUSE_NOT_GIVEN)),
    }
}

/// The platform's own word, such as `paused`. Of a guest that is unknown for another cause it may be an old report, and is not shown.
fn current_run_state(guest: &ObservedGuest) -> Option<&str> {
    let is_current = unknown_cause(guest).is_none_or(|cause| cause == observe::CAUSE_RUN_STATE_UNCLEAR);
    guest.run_state.as_deref().filter(|_| is_current)
}

fn node_cell(observation: &Observation, guest: &ObservedGuest) -> String {
    observation.nodes.get(guest.node).map(|node| node.name.as_str().to_owned()).unwrap_or_default()
}

fn name_cell(guest: &ObservedGuest) -> String {
    guest.name.as_deref().map_or_else(|| "(no name)".to_owned(), |name| truncate_untrusted(name, WORD_CHARS_MAX))
}

/// Tags, and what else a person should know of the guest.
fn describe_details(guest: &ObservedGuest) -> String {
    let cause = unknown_cause(guest).map(|cause| match current_run_state(guest) {
        Some(word) => format!("{cause}: {}", truncate_untrusted(word, WORD_CHARS_MAX)),
        None => cause.to_owned(),
    });
    let template = matches!(guest.template, Reading::Read(true)).then(|| "template".to_owned());
    let tags = match guest.tags.as_ref() {
        Reading::Unread => Some("tags unknown".to_owned()),
        Reading::Read(tags) => (!tags.is_empty()).then(|| format!("tags: {}", list_tags(tags))),
    };
    [cause, template, tags].into_iter().flatten().collect::<Vec<_>>().join(" · ")
}

fn list_tags(tags: &WordSet) -> String {
    let mut words: Vec<String> = tags.iter().take(TAGS_SHOWN_MAX).map(|tag| truncate_untrusted(tag, WORD_CHARS_MAX)).collect();
    let more = tags.iter().count().saturating_sub(TAGS_SHOWN_MAX);
    words.extend((more > 0).then(|| format!("{more} more, with --json")));
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, CliCommand};

    fn observation(guests: &str) -> Observation {
        let text = format!(
            r#"{{"schema":"converger.observation/1","environment":"lab","complete":true,"quorate":true,"nodes":[{{"name":"pve1","online":true}}],"guests":[{guests}]}}"#
        );
        observe::parse(text.as_bytes()).unwrap_or_else(|faults| panic!("{faults:?}"))
    }

    fn parse_arguments(values: &[&str]) -> GuestsArgs {
        let CliCommand::Guests(arguments) = Cli::parse_from([&["converger", "guests"], values].concat()).command else { panic!("guests") };
        arguments
    }

    fn render(observation: &Observation, values: &[&str]) -> String {
        let listing = GuestListing::filter(observation, &parse_arguments(values)).unwrap_or_else(|_| panic!("a listing"));
        anstream::adapter::strip_str(&listing.render(&observation.environment, "a@pve!b")).to_string()
    }

    #[test]
    fn names_and_tags_of_others_are_escaped_and_cut() {
        let hostile = r#""web\u001b[2J\n101 qemu running""#;
        let tags = format!(r#"["{}"]"#, "t".repeat(5_000));
        let row = format!(r#"{{"vmid":100,"kind":"qemu","node":"pve1","status":"running","name":{hostile},"tags":{tags}}}"#);
        let long = format!(r#"{{"vmid":101,"kind":"lxc","node":"pve1","status":"stopped","name":"{}","tags":[]}}"#, "n".repeat(9_000));
        let text = render(&observation(&format!("{row},{long}")), &[]);
        assert!(!text.contains('\u{1b}') && text.contains(r#""web\u{1b}[2J\n101 qemu running""#), "{text}");
        assert!(text.contains("[5000 characters; --json shows all]") && text.contains("[9000 characters; --json shows all]"), "{text}");
        assert!(text.lines().count() == 6 && text.len() < 1_000, "{text}");
    }

    #[test]
    fn unknown_guests_match_no_filter_for_certain() {
        let known = r#"{"vmid":100,"kind":"qemu","node":"pve1","status":"running","name":"web","tags":["web"]}"#;
        let unknown =
            r#"{"vmid":101,"kind":"qemu","node":"pve1","status":"unknown","cause":"node-offline","name":"old","run_state":"running"}"#;
        let observation = observation(&format!("{known},{unknown}"));
        let ids = |guests: &[&ObservedGuest]| guests.iter().map(|guest| guest.vmid.get()).collect::<Vec<_>>();
        for (values, listed, undecided) in [
            (&[][..], &[100, 101][..], &[][..]),
            (&["--tag", "web"], &[100], &[101]),
            (&["--state", "running"], &[100], &[101]),
            (&["--state", "stopped"], &[], &[101]),
            (&["--state", "unknown"], &[101], &[]),
            (&["--kind", "lxc"], &[], &[]),
            (&["--kind", "lxc", "--tag", "web"], &[], &[]),
        ] {
            let listing = GuestListing::filter(&observation, &parse_arguments(values)).unwrap_or_else(|_| panic!("a listing"));
            assert_eq!((ids(&listing.guests), ids(&listing.undecided)), (listed.to_vec(), undecided.to_vec()), "{values:?}");
        }
        let text = render(&observation, &[]);
        assert!(text.contains("? 101 qemu unknown pve1 old node-offline · tags unknown"), "the old word is not shown: {text}");
    }

    #[test]
    fn an_empty_list_says_that_the_token_may_see_nothing() {
        let text = render(&observation(""), &[]);
        assert!(text.contains("No guest is visible to this token.") && text.contains("VM.Audit"), "{text}");
        assert!(render(&observation(""), &["--kind", "lxc"]).contains("No guest is visible"), "a filter changes nothing about that");
    }
}
