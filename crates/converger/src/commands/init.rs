//! `init`: reads the named guests and writes a declared state for them that plans nothing.
//!
//! What never enters: what is declared of a guest and what is left out. The core decides that.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use converger_core::adopt::{AdoptedGuest, OmittedField, Scaffold, UnadoptableGuest, scaffold};
use converger_core::desired::Scope;
use converger_core::document::Notation;
use converger_core::failure::FailureCode;
use converger_core::guest::EnvironmentName;
use converger_core::refusal::Refusal;
use converger_runtime::RuntimeError;
use converger_runtime::reader::configuration_example;
use serde_json::{Value as Json, json};

use super::{CommandError, finish_output, inputs};
use crate::cli::InitArgs;
use crate::exit_status::ExitStatus;
use crate::files::Replaces;
use crate::render::{self, apply_style, count_with_noun, quote_untrusted};
use crate::{config, files, output};

pub(super) async fn init(adoption: &InitArgs) -> Result<ExitStatus, CommandError> {
    let environment = select_environment(adoption)?;
    let out = select_output(adoption)?;
    let scope = Scope::new(adoption.vmid.clone());
    let config = inputs::load_config(adoption.observation.config.as_deref(), &environment)?;
    let observation = inputs::observe(&adoption.observation, config, &environment, &scope).await?.observation;
    let scaffold = scaffold(&observation, &scope);
    if let (Scaffold::Declared { text, .. }, Some(path)) = (&scaffold, &out) {
        let write = |file: &mut File| file.write_all(text.as_bytes());
        let written =
            if adoption.overwrite.overwrite { files::replace(path, Replaces::Anything, write) } else { files::create(path, write) };
        written.map_err(|error| write_error(path, &error))?;
        output::print_notice(&render::render_written_file(path, None));
    }
    let end = if matches!(scaffold, Scaffold::Declared { .. }) { ExitStatus::Done } else { ExitStatus::Refused };
    let written = match (&scaffold, adoption.json) {
        (_, true) => output::print_json(|out| writeln!(out, "{}", report_json(&environment, &scaffold))),
        (Scaffold::Declared { text, .. }, false) if adoption.dry_run => io::stdout().write_all(text.as_bytes()),
        (_, false) => write!(anstream::stdout(), "{}", render_report(adoption, &environment, &scaffold, out.as_deref())),
    };
    finish_output(written, end)
}

/// The environment that is named, or else the only one that there is, which is then told.
fn select_environment(adoption: &InitArgs) -> Result<EnvironmentName, CommandError> {
    if let Some(name) = &adoption.environment {
        return inputs::parse_environment(name);
    }
    if config::find_config_path(adoption.observation.config.as_deref()).is_none() {
        let stop = CommandError::input_error("nothing says which environment the guests are in: there is no converger.toml here");
        return Err(stop
            .with_code(FailureCode::EnvironmentUnconfigured)
            .with_help("name it with `--environment <NAME>`, or converger.toml with --config"));
    }
    let survey = config::load_environments(adoption.observation.config.as_deref()).map_err(RuntimeError::from)?;
    let mut names = survey.connections.into_keys();
    match (names.next(), names.next()) {
        (Some(only), None) => {
            output::print_notice(&format!("in `{only}`, the only environment of {}", survey.origin));
            Ok(only)
        }
        (Some(first), Some(second)) => {
            let all: Vec<String> = [first, second].into_iter().chain(names).map(|name| name.to_string()).collect();
            let stop = CommandError::input_error(format!("{} leads to {} environments: {}", survey.origin, all.len(), all.join(", ")));
            Err(stop.with_help("name the one that the guests are in with --environment"))
        }
        (None, _) => {
            let stop = CommandError::input_error(format!("{} leads to no environment", survey.origin))
                .with_code(FailureCode::EnvironmentUnconfigured);
            Err(stop.with_help(configuration_example("lab")))
        }
    }
}

/// The file to write, if one is. It must not be there: what somebody declared is replaced only where they say `--overwrite`.
fn select_output(adoption: &InitArgs) -> Result<Option<PathBuf>, CommandError> {
    let path = match &adoption.out {
        Some(named) => named.clone(),
        None if adoption.json || adoption.dry_run => return Ok(None),
        None => "desired.yaml".into(),
    };
    let name = files::display_path(&path);
    if path == Path::new("-") {
        let stop = CommandError::input_error("`-` is not a file");
        return Err(stop.with_help("--dry-run prints the declared state on standard output"));
    }
    super::check_output_is_no_state(&path, adoption.observation.config.as_deref())?;
    if files::detect_notation(&path) == Notation::Json {
        let stop = CommandError::input_error(format!("{name} would be read as JSON, and YAML is written"));
        return Err(stop.with_help("name a file that ends in .yaml"));
    }
    if path.symlink_metadata().is_ok() && !adoption.overwrite.overwrite {
        return Err(file_exists_error(&name));
    }
    Ok(Some(path))
}

fn file_exists_error(name: &str) -> CommandError {
    CommandError::input_error(format!("{name} is there already, and is not written over"))
        .with_code(FailureCode::FileTaken)
        .with_help("name another file with --out, print with --dry-run and take over what you need, or add `--overwrite` to replace it")
}

/// Somebody may have made the file since it was looked for.
fn write_error(path: &Path, error: &io::Error) -> CommandError {
    match error.kind() {
        io::ErrorKind::AlreadyExists => file_exists_error(&files::display_path(path)),
        _ => super::write_error(path, error),
    }
}

fn render_report(adoption: &InitArgs, environment: &EnvironmentName, scaffold: &Scaffold, out: Option<&Path>) -> String {
    let environment = apply_style(render::BOLD, environment);
    match scaffold {
        Scaffold::Declared { guests, .. } => {
            let count = u64::try_from(guests.len()).unwrap_or(u64::MAX);
            let mut text =
                format!("{environment} {}\n\n", apply_style(render::DIM, format!("· {} adopted", count_with_noun(count, "guest"))));
            guests.iter().for_each(|guest| text.push_str(&render_adopted(guest)));
            let path = out.map(files::display_path).unwrap_or_default();
            let look = render::observation_options(&adoption.observation);
            let _ = writeln!(text, "\n{} converger audit {path}{look}   (plans nothing)", apply_style(render::CYAN, "next:"));
            text
        }
        Scaffold::Refused { refusals, guests } => {
            let mut text = format!("{environment} {}\n\n", apply_style(render::DIM, "· nothing is written"));
            let mut told = render::ShownRemedies::default();
            guests.iter().for_each(|guest| text.push_str(&render_unadoptable(guest, &mut told)));
            refusals.iter().for_each(|cause| text.push_str(&render::render_refusal(cause)));
            let _ =
                writeln!(text, "\n{} the same command, once this is resolved or without these guests", apply_style(render::CYAN, "next:"));
            text
        }
    }
}

fn render_adopted(guest: &AdoptedGuest) -> String {
    let name = apply_style(render::BOLD, quote_untrusted(&guest.name));
    let mut text = format!("{} {} {} {name}\n", apply_style(render::GREEN, "+"), guest.vmid, guest.kind);
    for OmittedField { key, reason: why } in &guest.left_out {
        let _ = writeln!(text, "    {} is left out: {why}", quote_untrusted(key));
    }
    if !guest.absent.is_empty() {
        let _ = writeln!(text, "    {}", apply_style(render::DIM, format!("it never had {}", guest.absent.join(" and "))));
    }
    text
}

fn render_unadoptable(guest: &UnadoptableGuest, told: &mut render::ShownRemedies) -> String {
    format!("{} {} {}", apply_style(render::RED, "!"), guest.vmid, render::render_guest_refusals(&guest.refusals, told))
}

fn report_json(environment: &EnvironmentName, scaffold: &Scaffold) -> Json {
    let no_refusals: &[Refusal] = &[];
    let (guests, refusals, text): (Vec<Json>, _, _) = match scaffold {
        Scaffold::Declared { text, guests } => (guests.iter().map(adopted_json).collect(), no_refusals, Some(text)),
        Scaffold::Refused { refusals, guests } => (guests.iter().map(unadoptable_json).collect(), &refusals[..], None),
    };
    json!({ "schema": "converger.init/1", "environment": environment, "guests": guests, "refusals": refusals, "text": text })
}

fn adopted_json(guest: &AdoptedGuest) -> Json {
    let left_out: Vec<Json> = guest.left_out.iter().map(|left| json!({ "key": left.key, "why": left.reason })).collect();
    json!({ "vmid": guest.vmid, "kind": guest.kind, "name": guest.name, "left_out": left_out, "absent": guest.absent })
}

fn unadoptable_json(guest: &UnadoptableGuest) -> Json {
    json!({ "vmid": guest.vmid, "refusals": guest.refusals })
}
