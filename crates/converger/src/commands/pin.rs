//! `pin`: reads the declared guests, writes their birth marks into the declared state, and says what was done for each.
//!
//! What never enters: which marks are written and where in the text. The core decides both.

use std::fmt::Write as _;
use std::fs;
use std::io::Write;
use std::path::Path;

use converger_core::adopt::{self, Chosen, GuestPin, Outcome, Pinned, Wish};
use converger_core::desired::{Desired, Scope};
use converger_core::failure;
use converger_core::guest::{Identity, Vmid};
use converger_core::refusal::Code;
use serde_json::{Value as Json, json};

use super::{Stop, inputs, shown};
use crate::cli::Pinning;
use crate::exit::End;
use crate::files::Text;
use crate::render::{self, counted, styled, theirs};
use crate::{diagnose, files, output};

pub(super) async fn pin(pinning: &Pinning) -> Result<End, Stop> {
    let path = &pinning.source.desired;
    let (text, desired) = inputs::read_declared(path)?;
    let wish = wish(pinning, &desired)?;
    if !pinning.check {
        writable(path)?;
    }
    let scope = match &wish.chosen {
        Chosen::All => desired.scope(),
        Chosen::Only(scope) => scope.clone(),
    };
    let look = &pinning.source.look;
    let config = inputs::load_config(look.config.as_deref(), desired.environment())?;
    let observation = inputs::observe(look, config, desired.environment(), &scope).await?.observation;
    let pinned = adopt::pin(&text.bytes, files::notation(path), &observation, &wish)
        .map_err(|faults| Stop::faults(diagnose::render(&text.name, &text.bytes, &faults)))?;
    let changes = pinned.text.as_bytes() != text.bytes;
    let is_written = changes && !pinning.check;
    if is_written {
        write(path, &text, &pinned)?;
    }
    let written = if pinning.json {
        output::json(|out| writeln!(out, "{}", report_json(&desired, &pinned, is_written)))
    } else {
        write!(anstream::stdout(), "{}", report(pinning, &desired, &pinned, changes))
    };
    shown(written, end(&pinned, changes && pinning.check))
}

fn end(pinned: &Pinned, would_change: bool) -> End {
    let is_refused = pinned.guests.iter().any(|guest| matches!(guest.outcome, Outcome::Refused(_)));
    match (is_refused, would_change) {
        (true, _) => End::Refused,
        (false, true) => End::ChangesPending,
        (false, false) => End::Done,
    }
}

/// Whoever names a guest means that one: with `--repin` alone no other is looked at.
fn wish(pinning: &Pinning, desired: &Desired) -> Result<Wish, Stop> {
    let named: Vec<Vmid> = pinning.vmid.iter().chain(&pinning.repin).copied().collect();
    if let Some(vmid) = named.iter().find(|vmid| desired.find(**vmid).is_none()) {
        let path = files::shown(&pinning.source.desired);
        let stop = Stop::input(format!("guest {vmid} is not declared in {path}"));
        return Err(stop.help("declare it first, or correct the id"));
    }
    let chosen = if named.is_empty() { Chosen::All } else { Chosen::Only(Scope::new(named)) };
    Ok(Wish { chosen, again: Scope::new(pinning.repin.clone()) })
}

/// A file that somebody made read-only is not replaced behind their back, though its directory would allow it.
fn writable(path: &Path) -> Result<(), Stop> {
    let is_read_only = fs::metadata(path).is_ok_and(|metadata| metadata.permissions().readonly());
    if !is_read_only {
        return Ok(());
    }
    let name = files::shown(path);
    let help = format!("`chmod u+w {name}` if it may be changed, or --check to see what would be written");
    Err(Stop::failed(format!("{name} is read-only, so that nothing is written into it")).code(failure::Code::FileUnwritable).help(help))
}

/// Replaces the file if it still is what was read.
fn write(path: &Path, text: &Text, pinned: &Pinned) -> Result<(), Stop> {
    let written = files::exchange(path, &text.bytes, pinned.text.as_bytes());
    written.map_err(|error| super::unwritten(path, &error))?;
    let said = match fs::canonicalize(path) {
        Ok(target) if path.is_symlink() => {
            let note = format!(" ({} is a link to it)", files::shown(path));
            render::wrote(&target, None) + &styled(render::DIM, note)
        }
        _ => render::wrote(path, None),
    };
    let _ = writeln!(anstream::stderr(), "{said}");
    Ok(())
}

fn report(pinning: &Pinning, desired: &Desired, pinned: &Pinned, changes: bool) -> String {
    let count = u64::try_from(pinned.guests.len()).unwrap_or(u64::MAX);
    let head = styled(render::DIM, format!("· {} looked at", counted(count, "guest")));
    let mut text = format!("{} {head}\n\n", styled(render::BOLD, desired.environment()));
    let mut told = render::Told::default();
    pinned.guests.iter().for_each(|guest| text.push_str(&guest_text(guest, pinning.check, &mut told)));
    for cause in &pinned.refusals {
        let _ = write!(text, "\n{}", render::refusal(cause));
    }
    let _ = write!(text, "\n{}\n{}", summary(pinned, pinning.check), next(pinning, pinned, changes));
    text
}

fn guest_text(guest: &GuestPin, is_check: bool, told: &mut render::Told) -> String {
    let name = guest.name.as_deref().map_or("(no name)".to_owned(), theirs);
    let title = format!("{} {} {}", guest.vmid, guest.kind, styled(render::BOLD, name));
    let would = |done: &str, would: &str| if is_check { would.to_owned() } else { done.to_owned() };
    let (sign, note) = match &guest.outcome {
        Outcome::Pinned(marks) => (styled(render::GREEN, "+"), format!("{}: {}", would("pinned", "would be pinned"), marks_text(marks))),
        Outcome::Completed(marks) => {
            (styled(render::GREEN, "+"), format!("{}: {}", would("pin completed", "pin would be completed"), marks_text(marks)))
        }
        Outcome::Replaced(marks, _) => {
            (styled(render::YELLOW, "~"), format!("{}: {}", would("pin replaced", "pin would be replaced"), marks_text(marks)))
        }
        Outcome::Unchanged => (styled(render::GREEN, "="), "pinned already".to_owned()),
        Outcome::Unmarked => (styled(render::YELLOW, "-"), "has no birth marks; only its name tells it apart".to_owned()),
        Outcome::Refused(refusals) => (styled(render::RED, "!"), render::refused(refusals, told).trim_end().to_owned()),
    };
    let mut text = format!("{sign} {title} {note}\n");
    if let Outcome::Replaced(_, differences) = &guest.outcome {
        differences.iter().for_each(|difference| text.push_str(&format!("    {}\n", difference.escape_debug())));
    }
    if !guest.absent.is_empty() && guest.outcome != Outcome::Unmarked {
        let _ = writeln!(text, "    {}", styled(render::DIM, format!("it never had {}, which is left out", guest.absent.join(" and "))));
    }
    text
}

fn marks_text(marks: &Identity) -> String {
    let marks = marks.marks().into_iter().filter_map(|(key, mark)| Some(format!("{key} {}", theirs(&mark?))));
    marks.collect::<Vec<_>>().join(", ")
}

fn summary(pinned: &Pinned, is_check: bool) -> String {
    let count = |is: fn(&Outcome) -> bool| pinned.guests.iter().filter(|guest| is(&guest.outcome)).count();
    let written = count(|outcome| outcome.written().is_some());
    let parts = [
        format!("{written} {}", if is_check { "to pin" } else { "pinned" }),
        format!("{} pinned already", count(|outcome| *outcome == Outcome::Unchanged)),
        format!("{} without marks", count(|outcome| *outcome == Outcome::Unmarked)),
        format!("{} refused", count(|outcome| matches!(outcome, Outcome::Refused(_)))),
    ];
    styled(render::BOLD, parts.join(", "))
}

/// The commands that follow from what was done.
fn next(pinning: &Pinning, pinned: &Pinned, changes: bool) -> String {
    let path = files::shown(&pinning.source.desired);
    let source = format!("{path}{}", render::look(&pinning.source.look));
    let line = |command: String| format!("{} {command}\n", styled(render::CYAN, "next:"));
    let is_mismatch = |guest: &&GuestPin| match &guest.outcome {
        Outcome::Refused(refusals) => refusals.iter().all(|refusal| refusal.code() == Code::IdentityMismatch),
        _ => false,
    };
    let mismatched: Vec<String> = pinned
        .guests
        .iter()
        .filter(is_mismatch)
        .filter(|guest| !pinning.repin.contains(&guest.vmid))
        .map(|guest| guest.vmid.to_string())
        .collect();
    let mut text = String::new();
    if !mismatched.is_empty() {
        let ids = mismatched.join(",");
        text.push_str(&line(format!("converger pin {source} --repin {ids}   (only if these are the guests that are meant)")));
    }
    text.push_str(&match (pinning.check, changes) {
        _ if !pinned.refusals.is_empty() => line("the same command, once this is resolved".into()),
        (true, true) => line("the same command without --check writes it".into()),
        _ => line(format!("converger audit {source}")),
    });
    text
}

fn report_json(desired: &Desired, pinned: &Pinned, is_written: bool) -> Json {
    json!({
        "schema": "converger.pin/1", "environment": desired.environment(), "written": is_written, "refusals": pinned.refusals,
        "guests": pinned.guests.iter().map(guest_json).collect::<Vec<_>>(),
    })
}

fn guest_json(guest: &GuestPin) -> Json {
    let mut row = json!({ "vmid": guest.vmid, "kind": guest.kind, "name": guest.name, "absent": guest.absent });
    let (word, extra) = match &guest.outcome {
        Outcome::Pinned(marks) => ("pinned", json!({ "identity": marks })),
        Outcome::Completed(marks) => ("completed", json!({ "identity": marks })),
        Outcome::Replaced(marks, differences) => ("replaced", json!({ "identity": marks, "differences": differences })),
        Outcome::Unchanged => ("unchanged", json!({})),
        Outcome::Unmarked => ("unmarked", json!({})),
        Outcome::Refused(refusals) => ("refused", json!({ "refusals": refusals })),
    };
    row["outcome"] = word.into();
    if let (Some(row), Json::Object(extra)) = (row.as_object_mut(), extra) {
        row.extend(extra);
    }
    row
}
