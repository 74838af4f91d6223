//! `init`: reads the named guests and writes a declared state that plans no change. The core decides which fields are declared.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use converger_core::adopt::{AdoptedGuest, OmittedField, Scaffold, UnadoptableGuest, scaffold};
use converger_core::desired::{GuestSelection, Scope};
use converger_core::document::Notation;
use converger_core::failure::FailureCode;
use converger_core::guest::EnvironmentName;
use converger_core::refusal::{Refusal, RefusalCode};
use converger_runtime::ConfigSource;
use serde_json::{Value as Json, json};

use super::inputs::{self, TargetEnvironment};
use super::{CommandError, finish_output};
use crate::cli::{InitArgs, select_guests};
use crate::exit_status::ExitStatus;
use crate::files::Replaces;
use crate::render::{self, apply_style, count_with_noun, quote_untrusted};
use crate::{files, line_wrap, output};

pub(super) async fn init(arguments: &InitArgs) -> Result<ExitStatus, CommandError> {
    let source = ConfigSource::read(arguments.observation.config.as_deref());
    let (named, is_recorded) = (arguments.environment.as_deref(), arguments.observation.replay.is_some());
    let TargetEnvironment { name: environment, config } = inputs::select_environment(named, &source, is_recorded)?;
    let out = select_output(arguments, &source)?;
    let selection = select_guests(&arguments.vmid);
    let observation = inputs::observe(&arguments.observation, config, &environment, &selection).await?.observation;
    let scope = selection.resolve(observation.candidate_ids());
    if scope.ids().is_empty() {
        return Err(empty_selection_error(&selection, &environment));
    }
    let absent = describe_absent_ids(&selection, &scope);
    if !absent.is_empty() {
        let _ = write!(anstream::stderr(), "{}", line_wrap::wrap_for_stderr(&absent));
    }
    let scaffold = scaffold(&observation, &scope);
    if let (Scaffold::Declared { text, .. }, Some(path)) = (&scaffold, &out) {
        let write = |file: &mut File| file.write_all(text.as_bytes());
        let written =
            if arguments.overwrite.overwrite { files::replace(path, Replaces::Anything, write) } else { files::create(path, write) };
        written.map_err(|error| write_error(path, &error))?;
        output::print_notice(&render::render_written_file(path, None));
    }
    let end = if matches!(scaffold, Scaffold::Declared { .. }) { ExitStatus::Done } else { ExitStatus::Refused };
    let written = match (&scaffold, arguments.json) {
        (_, true) => output::print_json(|out| writeln!(out, "{}", report_json(&environment, &scaffold))),
        (Scaffold::Declared { text, .. }, false) if arguments.dry_run => io::stdout().write_all(text.as_bytes()),
        (_, false) => write!(anstream::stdout(), "{}", render_report(arguments, &environment, &scaffold, out.as_deref())),
    };
    finish_output(written, end)
}

/// The token sees no guest in the ranges.
fn empty_selection_error(selection: &GuestSelection, environment: &EnvironmentName) -> CommandError {
    let ranges: Vec<String> = selection.ranges().iter().map(ToString::to_string).collect();
    CommandError::uncoded_refusal_error(format!("nothing is written: no visible guest has an id in {}", ranges.join(", ")))
        .with_help(format!("`converger guests --environment {environment}` lists the guests that the token can see"))
}

/// One note for each range with ids that no visible guest has.
fn describe_absent_ids(selection: &GuestSelection, scope: &Scope) -> String {
    let notes = selection.ranges().iter().filter_map(|range| {
        let present = u32::try_from(scope.ids().iter().filter(|vmid| range.contains(**vmid)).count()).unwrap_or(u32::MAX);
        let absent = range.count().saturating_sub(present);
        (absent > 0).then(|| {
            let label = apply_style(render::YELLOW.bold(), "note:");
            format!(
                "{label} {range}: {} found; {} no visible guest\n",
                count_with_noun(present.into(), "guest"),
                if absent == 1 { "1 id has".to_owned() } else { format!("{absent} ids have") },
            )
        })
    });
    notes.collect()
}

/// The file to write, if any. An existing file is replaced only with `--overwrite`.
fn select_output(arguments: &InitArgs, source: &ConfigSource) -> Result<Option<PathBuf>, CommandError> {
    let path = match &arguments.out {
        Some(named) => named.clone(),
        None if arguments.json || arguments.dry_run => return Ok(None),
        None => "desired.yaml".into(),
    };
    let name = files::display_path(&path);
    if path == Path::new("-") {
        let stop = CommandError::input_error("`-` is not a file");
        return Err(stop.with_help("--dry-run prints the declared state on standard output"));
    }
    super::check_output_is_no_state(&path, source)?;
    if files::detect_notation(&path) == Notation::Json {
        let stop = CommandError::input_error(format!("{name} would be read as JSON, but init writes YAML"));
        return Err(stop.with_help("name a file that ends in .yaml"));
    }
    if path.symlink_metadata().is_ok() && !arguments.overwrite.overwrite {
        return Err(file_exists_error(&name));
    }
    Ok(Some(path))
}

fn file_exists_error(name: &str) -> CommandError {
    CommandError::input_error(format!("{name} exists already and is not replaced"))
        .with_code(FailureCode::FileTaken)
        .with_help("name another file with --out, print the declared state with --dry-run, or add `--overwrite` to replace it")
}

/// The file may have been created since it was checked.
fn write_error(path: &Path, error: &io::Error) -> CommandError {
    match error.kind() {
        io::ErrorKind::AlreadyExists => file_exists_error(&files::display_path(path)),
        _ => super::write_error(path, error),
    }
}

fn render_report(arguments: &InitArgs, environment: &EnvironmentName, scaffold: &Scaffold, out: Option<&Path>) -> String {
    let environment = apply_style(render::BOLD, environment);
    match scaffold {
        Scaffold::Declared { guests, .. } => {
            let count = u64::try_from(guests.len()).unwrap_or(u64::MAX);
            let mut text =
                format!("{environment} {}\n\n", apply_style(render::DIM, format!("· {} adopted", count_with_noun(count, "guest"))));
            guests.iter().for_each(|guest| text.push_str(&render_adopted(guest)));
            let path = out.map(files::display_path).unwrap_or_default();
            let observation_options = render::observation_options(&arguments.observation);
            let _ = writeln!(
                text,
                "\n{} converger audit {path}{observation_options}   (should show nothing to change)",
                apply_style(render::CYAN, "next:")
            );
            text
        }
        Scaffold::Refused { refusals, guests } => {
            let mut text = format!("{environment} {}\n\n", apply_style(render::DIM, "· nothing was written"));
            let mut shown_remedies = render::ShownRemedies::default();
            guests.iter().for_each(|guest| text.push_str(&render_unadoptable(guest, &mut shown_remedies)));
            refusals.iter().for_each(|cause| text.push_str(&render::render_refusal(cause)));
            let _ = writeln!(
                text,
                "\n{} run the same command again after resolving this, or without these guests",
                apply_style(render::CYAN, "next:")
            );
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

fn render_unadoptable(guest: &UnadoptableGuest, shown_remedies: &mut render::ShownRemedies) -> String {
    // There is no declared state yet that could be corrected.
    let remedy = |refusal: &Refusal| match refusal.code() {
        RefusalCode::GuestMissing => "Correct --vmid; `converger guests` lists the guests.",
        _ => refusal.remedy(),
    };
    let refusals = render::render_guest_refusals_with(&guest.refusals, shown_remedies, &remedy);
    format!("{} {} {refusals}", apply_style(render::RED, "!"), guest.vmid)
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
