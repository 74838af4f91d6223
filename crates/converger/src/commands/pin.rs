//! `pin`: reads the declared guests and writes their birth marks into the declared state. The core decides which marks are written, and where
//! in the text.

use std::fmt::Write as _;
use std::fs;
use std::io::Write;
use std::path::Path;

use converger_core::adopt::{self, GuestPin, PinOutcome, PinRequest, PinResult, PinSelection};
use converger_core::desired::{Desired, Scope};
use converger_core::failure;
use converger_core::guest::{GuestIdentity, Vmid};
use converger_core::refusal::RefusalCode;
use converger_runtime::ConfigSource;
use serde_json::{Value as Json, json};

use super::{CommandError, finish_output, inputs};
use crate::cli::{PinArgs, select_guests};
use crate::exit_status::ExitStatus;
use crate::files::InputText;
use crate::render::{self, apply_style, count_with_noun, quote_untrusted};
use crate::{diagnostics, files, output};

pub(super) async fn pin(arguments: &PinArgs) -> Result<ExitStatus, CommandError> {
    let path = &arguments.source.desired;
    let (text, desired) = inputs::read_declared(path)?;
    let request = pin_request(arguments, &desired)?;
    if !arguments.check {
        check_writable(path)?;
    }
    let scope = match &request.selection {
        PinSelection::All => desired.scope(),
        PinSelection::Only(scope) => scope.clone(),
    };
    let observation_arguments = &arguments.source.observation;
    let config = inputs::environment_config(&ConfigSource::read(observation_arguments.config.as_deref()), desired.environment())?;
    let observation = inputs::observe(observation_arguments, config, desired.environment(), &scope.into()).await?.observation;
    let pinned = adopt::pin(&text.bytes, files::detect_notation(path), &observation, &request)
        .map_err(|faults| CommandError::diagnostics_error(diagnostics::render_diagnostics(&text.name, &text.bytes, &faults)))?;
    let changes = pinned.text.as_bytes() != text.bytes;
    let is_written = changes && !arguments.check;
    if is_written {
        write_pins(path, &text, &pinned)?;
    }
    let written = if arguments.json {
        output::print_json(|out| writeln!(out, "{}", report_json(&desired, &pinned, is_written)))
    } else {
        write!(anstream::stdout(), "{}", render_report(arguments, &desired, &pinned, changes))
    };
    finish_output(written, pin_status(&pinned, changes && arguments.check))
}

fn pin_status(pinned: &PinResult, would_change: bool) -> ExitStatus {
    let is_refused = pinned.guests.iter().any(|guest| matches!(guest.outcome, PinOutcome::Refused(_)));
    match (is_refused, would_change) {
        (true, _) => ExitStatus::Refused,
        (false, true) => ExitStatus::ChangesPending,
        (false, false) => ExitStatus::Done,
    }
}

/// The guests to pin: with `--repin` alone only those that it names.
fn pin_request(arguments: &PinArgs, desired: &Desired) -> Result<PinRequest, CommandError> {
    let selected = inputs::resolve_declared(desired, &select_guests(&arguments.vmid), "--vmid")?;
    let named: Vec<Vmid> = selected.ids().iter().chain(&arguments.repin).copied().collect();
    if let Some(vmid) = named.iter().find(|vmid| desired.find(**vmid).is_none()) {
        let path = files::display_path(&arguments.source.desired);
        let stop = CommandError::input_error(format!("guest {vmid} is not declared in {path}"));
        return Err(stop.with_help("declare it first, or correct the id"));
    }
    let chosen = if named.is_empty() { PinSelection::All } else { PinSelection::Only(Scope::new(named)) };
    Ok(PinRequest { selection: chosen, repin: Scope::new(arguments.repin.clone()) })
}

/// A read-only file is not replaced, although its directory would allow it.
fn check_writable(path: &Path) -> Result<(), CommandError> {
    let is_read_only = fs::metadata(path).is_ok_and(|metadata| metadata.permissions().readonly());
    if !is_read_only {
        return Ok(());
    }
    let name = files::display_path(path);
    let help = format!("`chmod u+w {name}` if it may be changed, or --check to see what would be written");
    Err(CommandError::failure(format!("cannot write {name}: it is read-only"))
        .with_code(failure::FailureCode::FileUnwritable)
        .with_help(help))
}

/// Replaces the file if it has not changed since it was read.
fn write_pins(path: &Path, text: &InputText, pinned: &PinResult) -> Result<(), CommandError> {
    let written = files::replace_if_unchanged(path, &text.bytes, pinned.text.as_bytes());
    written.map_err(|error| super::write_error(path, &error))?;
    let message = match fs::canonicalize(path) {
        Ok(target) if path.is_symlink() => {
            let note = format!(" ({} is a link to it)", files::display_path(path));
            render::render_written_file(&target, None) + &apply_style(render::DIM, note)
        }
        _ => render::render_written_file(path, None),
    };
    output::print_notice(&message);
    Ok(())
}

fn render_report(arguments: &PinArgs, desired: &Desired, pinned: &PinResult, changes: bool) -> String {
    let count = u64::try_from(pinned.guests.len()).unwrap_or(u64::MAX);
    let head = apply_style(render::DIM, format!("· {} looked at", count_with_noun(count, "guest")));
    let mut text = format!("{} {head}\n\n", apply_style(render::BOLD, desired.environment()));
    let mut shown_remedies = render::ShownRemedies::default();
    pinned.guests.iter().for_each(|guest| text.push_str(&render_guest(guest, arguments.check, &mut shown_remedies)));
    for cause in &pinned.refusals {
        let _ = write!(text, "\n{}", render::render_refusal(cause));
    }
    let _ = write!(text, "\n{}\n{}", render_summary(pinned, arguments.check), render_next_steps(arguments, pinned, changes));
    text
}

fn render_guest(guest: &GuestPin, is_check: bool, shown_remedies: &mut render::ShownRemedies) -> String {
    let name = guest.name.as_deref().map_or("(no name)".to_owned(), quote_untrusted);
    let title = format!("{} {} {}", guest.vmid, guest.kind, apply_style(render::BOLD, name));
    let would = |done: &str, would: &str| if is_check { would.to_owned() } else { done.to_owned() };
    let (sign, note) = match &guest.outcome {
        PinOutcome::Pinned(marks) => {
            (apply_style(render::GREEN, "+"), format!("{}: {}", would("pinned", "would be pinned"), describe_marks(marks)))
        }
        PinOutcome::Completed(marks) => {
            (apply_style(render::GREEN, "+"), format!("{}: {}", would("pin completed", "pin would be completed"), describe_marks(marks)))
        }
        PinOutcome::Replaced(marks, _) => {
            (apply_style(render::YELLOW, "~"), format!("{}: {}", would("pin replaced", "pin would be replaced"), describe_marks(marks)))
        }
        PinOutcome::Unchanged => (apply_style(render::GREEN, "="), "pinned already".to_owned()),
        PinOutcome::NotMade => (apply_style(render::YELLOW, "-"), "does not exist yet; pin it after `converger apply` made it".to_owned()),
        PinOutcome::NoMarks => (apply_style(render::YELLOW, "-"), "has no birth marks; only its name identifies it".to_owned()),
        PinOutcome::Refused(refusals) => {
            (apply_style(render::RED, "!"), render::render_guest_refusals(refusals, shown_remedies).trim_end().to_owned())
        }
    };
    let mut text = format!("{sign} {title} {note}\n");
    if let PinOutcome::Replaced(_, differences) = &guest.outcome {
        differences.iter().for_each(|difference| text.push_str(&format!("    {}\n", difference.escape_debug())));
    }
    if !guest.absent.is_empty() && guest.outcome != PinOutcome::NoMarks {
        let _ =
            writeln!(text, "    {}", apply_style(render::DIM, format!("it never had {}, which is left out", guest.absent.join(" and "))));
    }
    text
}

fn describe_marks(marks: &GuestIdentity) -> String {
    let marks = marks.marks().into_iter().filter_map(|(key, mark)| Some(format!("{key} {}", quote_untrusted(&mark?))));
    marks.collect::<Vec<_>>().join(", ")
}

fn render_summary(pinned: &PinResult, is_check: bool) -> String {
    let count = |is: fn(&PinOutcome) -> bool| pinned.guests.iter().filter(|guest| is(&guest.outcome)).count();
    let written = count(|outcome| outcome.written_marks().is_some());
    let mut parts = vec![
        format!("{written} {}", if is_check { "to pin" } else { "pinned" }),
        format!("{} pinned already", count(|outcome| *outcome == PinOutcome::Unchanged)),
        format!("{} without marks", count(|outcome| *outcome == PinOutcome::NoMarks)),
        format!("{} refused", count(|outcome| matches!(outcome, PinOutcome::Refused(_)))),
    ];
    let unmade = count(|outcome| *outcome == PinOutcome::NotMade);
    parts.extend((unmade > 0).then(|| format!("{unmade} not made yet")));
    apply_style(render::BOLD, parts.join(", "))
}

/// The commands to run next.
fn render_next_steps(arguments: &PinArgs, pinned: &PinResult, changes: bool) -> String {
    let path = files::display_path(&arguments.source.desired);
    let source = format!("{path}{}", render::observation_options(&arguments.source.observation));
    let line = |command: String| format!("{} {command}\n", apply_style(render::CYAN, "next:"));
    let is_mismatch = |guest: &&GuestPin| match &guest.outcome {
        PinOutcome::Refused(refusals) => refusals.iter().all(|refusal| refusal.code() == RefusalCode::IdentityMismatch),
        _ => false,
    };
    let mismatched: Vec<String> = pinned
        .guests
        .iter()
        .filter(is_mismatch)
        .filter(|guest| !arguments.repin.contains(&guest.vmid))
        .map(|guest| guest.vmid.to_string())
        .collect();
    let mut text = String::new();
    if !mismatched.is_empty() {
        let ids = mismatched.join(",");
        text.push_str(&line(format!("converger pin {source} --repin {ids}   (only if these are the right guests)")));
    }
    text.push_str(&match (arguments.check, changes) {
        _ if !pinned.refusals.is_empty() => line("run the same command again after resolving this".into()),
        (true, true) => line("run the same command without --check to write it".into()),
        _ => line(format!("converger audit {source}")),
    });
    text
}

fn report_json(desired: &Desired, pinned: &PinResult, is_written: bool) -> Json {
    json!({
        "schema": "converger.pin/1", "environment": desired.environment(), "written": is_written, "refusals": pinned.refusals,
        "guests": pinned.guests.iter().map(guest_json).collect::<Vec<_>>(),
    })
}

fn guest_json(guest: &GuestPin) -> Json {
    let mut row = json!({ "vmid": guest.vmid, "kind": guest.kind, "name": guest.name, "absent": guest.absent });
    let (outcome, extra) = match &guest.outcome {
        PinOutcome::Pinned(marks) => ("pinned", json!({ "identity": marks })),
        PinOutcome::Completed(marks) => ("completed", json!({ "identity": marks })),
        PinOutcome::Replaced(marks, differences) => ("replaced", json!({ "identity": marks, "differences": differences })),
        PinOutcome::Unchanged => ("unchanged", json!({})),
        PinOutcome::NoMarks => ("unmarked", json!({})),
        PinOutcome::NotMade => ("not-made", json!({})),
        PinOutcome::Refused(refusals) => ("refused", json!({ "refusals": refusals })),
    };
    row["outcome"] = outcome.into();
    if let (Some(row), Json::Object(extra)) = (row.as_object_mut(), extra) {
        row.extend(extra);
    }
    row
}
