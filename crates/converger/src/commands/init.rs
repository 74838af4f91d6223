//! `init`: reads the named guests and writes a declared state for them that plans nothing.
//!
//! What never enters: what is declared of a guest and what is left out. The core decides that.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use converger_core::adopt::{Adopted, LeftOut, Scaffold, Unadopted, scaffold};
use converger_core::desired::Scope;
use converger_core::document::Notation;
use converger_core::failure::Code;
use converger_core::guest::EnvironmentName;
use converger_core::refusal::Refusal;
use converger_runtime::RuntimeError;
use converger_runtime::reader::configuration_example;
use serde_json::{Value as Json, json};

use super::{Stop, inputs, shown};
use crate::cli::Adoption;
use crate::exit::End;
use crate::files::Replaces;
use crate::render::{self, counted, styled, theirs};
use crate::{config, files, output};

pub(super) async fn init(adoption: &Adoption) -> Result<End, Stop> {
    let environment = environment(adoption)?;
    let out = out(adoption)?;
    let scope = Scope::new(adoption.vmid.clone());
    let config = inputs::load_config(adoption.look.config.as_deref(), &environment)?;
    let observation = inputs::observe(&adoption.look, config, &environment, &scope).await?.observation;
    let scaffold = scaffold(&observation, &scope);
    if let (Scaffold::Declared { text, .. }, Some(path)) = (&scaffold, &out) {
        let write = |file: &mut File| file.write_all(text.as_bytes());
        let written =
            if adoption.overwrite.overwrite { files::replace(path, Replaces::Anything, write) } else { files::create(path, write) };
        written.map_err(|error| unwritten(path, &error))?;
        let _ = writeln!(anstream::stderr(), "{}", render::wrote(path, None));
    }
    let end = if matches!(scaffold, Scaffold::Declared { .. }) { End::Done } else { End::Refused };
    let written = match (&scaffold, adoption.json) {
        (_, true) => output::json(|out| writeln!(out, "{}", report_json(&environment, &scaffold))),
        (Scaffold::Declared { text, .. }, false) if adoption.dry_run => io::stdout().write_all(text.as_bytes()),
        (_, false) => write!(anstream::stdout(), "{}", report(adoption, &environment, &scaffold, out.as_deref())),
    };
    shown(written, end)
}

/// The environment that is named, or else the only one that there is, which is then told.
fn environment(adoption: &Adoption) -> Result<EnvironmentName, Stop> {
    if let Some(name) = &adoption.environment {
        return inputs::parse_environment(name);
    }
    if config::path(adoption.look.config.as_deref()).is_none() {
        let stop = Stop::input("nothing says which environment the guests are in: there is no converger.toml here");
        return Err(stop.code(Code::EnvironmentUnconfigured).help("name it with `--environment <NAME>`, or converger.toml with --config"));
    }
    let survey = config::survey(adoption.look.config.as_deref()).map_err(RuntimeError::from)?;
    let mut names = survey.connections.into_keys();
    match (names.next(), names.next()) {
        (Some(only), None) => {
            let _ = writeln!(anstream::stderr(), "in `{only}`, the only environment of {}", survey.origin);
            Ok(only)
        }
        (Some(first), Some(second)) => {
            let all: Vec<String> = [first, second].into_iter().chain(names).map(|name| name.to_string()).collect();
            let stop = Stop::input(format!("{} leads to {} environments: {}", survey.origin, all.len(), all.join(", ")));
            Err(stop.help("name the one that the guests are in with --environment"))
        }
        (None, _) => {
            let stop = Stop::input(format!("{} leads to no environment", survey.origin)).code(Code::EnvironmentUnconfigured);
            Err(stop.help(configuration_example("lab")))
        }
    }
}

/// The file to write, if one is. It must not be there: what somebody declared is replaced only where they say `--overwrite`.
fn out(adoption: &Adoption) -> Result<Option<PathBuf>, Stop> {
    let path = match &adoption.out {
        Some(named) => named.clone(),
        None if adoption.json || adoption.dry_run => return Ok(None),
        None => "desired.yaml".into(),
    };
    let name = files::shown(&path);
    if path == Path::new("-") {
        let stop = Stop::input("`-` is not a file");
        return Err(stop.help("--dry-run prints the declared state on standard output"));
    }
    super::not_kept(&path, adoption.look.config.as_deref())?;
    if files::notation(&path) == Notation::Json {
        let stop = Stop::input(format!("{name} would be read as JSON, and YAML is written"));
        return Err(stop.help("name a file that ends in .yaml"));
    }
    if path.symlink_metadata().is_ok() && !adoption.overwrite.overwrite {
        return Err(there(&name));
    }
    Ok(Some(path))
}

fn there(name: &str) -> Stop {
    Stop::input(format!("{name} is there already, and is not written over"))
        .code(Code::FileTaken)
        .help("name another file with --out, print with --dry-run and take over what you need, or add `--overwrite` to replace it")
}

/// Somebody may have made the file since it was looked for.
fn unwritten(path: &Path, error: &io::Error) -> Stop {
    match error.kind() {
        io::ErrorKind::AlreadyExists => there(&files::shown(path)),
        _ => super::unwritten(path, error),
    }
}

fn report(adoption: &Adoption, environment: &EnvironmentName, scaffold: &Scaffold, out: Option<&Path>) -> String {
    let environment = styled(render::BOLD, environment);
    match scaffold {
        Scaffold::Declared { guests, .. } => {
            let count = u64::try_from(guests.len()).unwrap_or(u64::MAX);
            let mut text = format!("{environment} {}\n\n", styled(render::DIM, format!("· {} adopted", counted(count, "guest"))));
            guests.iter().for_each(|guest| text.push_str(&adopted_text(guest)));
            let path = out.map(files::shown).unwrap_or_default();
            let look = render::look(&adoption.look);
            let _ = writeln!(text, "\n{} converger audit {path}{look}   (plans nothing)", styled(render::CYAN, "next:"));
            text
        }
        Scaffold::Refused { refusals, guests } => {
            let mut text = format!("{environment} {}\n\n", styled(render::DIM, "· nothing is written"));
            let mut told = render::Told::default();
            guests.iter().for_each(|guest| text.push_str(&unadopted_text(guest, &mut told)));
            refusals.iter().for_each(|cause| text.push_str(&render::refusal(cause)));
            let _ = writeln!(text, "\n{} the same command, once this is resolved or without these guests", styled(render::CYAN, "next:"));
            text
        }
    }
}

fn adopted_text(guest: &Adopted) -> String {
    let name = styled(render::BOLD, theirs(&guest.name));
    let mut text = format!("{} {} {} {name}\n", styled(render::GREEN, "+"), guest.vmid, guest.kind);
    for LeftOut { key, why } in &guest.left_out {
        let _ = writeln!(text, "    {} is left out: {why}", theirs(key));
    }
    if !guest.absent.is_empty() {
        let _ = writeln!(text, "    {}", styled(render::DIM, format!("it never had {}", guest.absent.join(" and "))));
    }
    text
}

fn unadopted_text(guest: &Unadopted, told: &mut render::Told) -> String {
    format!("{} {} {}", styled(render::RED, "!"), guest.vmid, render::refused(&guest.refusals, told))
}

fn report_json(environment: &EnvironmentName, scaffold: &Scaffold) -> Json {
    let no_refusals: &[Refusal] = &[];
    let (guests, refusals, text): (Vec<Json>, _, _) = match scaffold {
        Scaffold::Declared { text, guests } => (guests.iter().map(adopted_json).collect(), no_refusals, Some(text)),
        Scaffold::Refused { refusals, guests } => (guests.iter().map(unadopted_json).collect(), &refusals[..], None),
    };
    json!({ "schema": "converger.init/1", "environment": environment, "guests": guests, "refusals": refusals, "text": text })
}

fn adopted_json(guest: &Adopted) -> Json {
    let left_out: Vec<Json> = guest.left_out.iter().map(|left| json!({ "key": left.key, "why": left.why })).collect();
    json!({ "vmid": guest.vmid, "kind": guest.kind, "name": guest.name, "left_out": left_out, "absent": guest.absent })
}

fn unadopted_json(guest: &Unadopted) -> Json {
    json!({ "vmid": guest.vmid, "refusals": guest.refusals })
}
