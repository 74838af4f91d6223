//! The walk: declared state, reading, plan, judgement. Every command that plans takes this one way.

use std::io;
use std::path::Path;
use std::sync::Arc;

use converger_adapters::replay::Replay;
use converger_adapters::{ObserveError, Observer};
use converger_core::artifact::Provenance;
use converger_core::desired::{self, Desired};
use converger_core::document::TEXT_BYTES_MAX;
use converger_core::observe::Scoped;
use converger_core::plan;
use converger_core::safety::{self, Judged};

use super::Stop;
use crate::cli::{Reading, Source};
use crate::{config, diagnose, files};

/// A judged plan, and where the rules that it was held to come from.
pub(super) struct Outcome {
    pub(super) judged: Judged,
    pub(super) origin: String,
    pub(super) provenance: Provenance,
}

pub(super) fn judge(reading: &Reading) -> Result<Outcome, Stop> {
    let desired = desired(&reading.source.desired)?;
    let config = config::load(reading.config.as_deref(), desired.environment()).map_err(Stop::input)?;
    let observation = observe(&reading.source, &desired)?;
    let plan = plan::plan(Arc::new(desired), Arc::new(observation), Arc::new(config.rules));
    let judged = safety::judge(plan, config.limits, config.circumstances);
    Ok(Outcome { judged, origin: config.origin, provenance: Provenance::Replay })
}

pub(super) fn desired(path: &Path) -> Result<Desired, Stop> {
    let text = files::read(path).map_err(|error| unreadable(&files::shown(path), &error))?;
    if text.bytes.len() > TEXT_BYTES_MAX {
        return Err(Stop::input(format!("{} is larger than 1 GiB", text.name)));
    }
    desired::parse(&text.bytes, files::notation(path)).map_err(|faults| Stop::faults(diagnose::render(&text.name, &text.bytes, &faults)))
}

pub(super) fn observe(source: &Source, desired: &Desired) -> Result<Scoped, Stop> {
    let replay = if source.replay == Path::new("-") { Replay::Stdin } else { Replay::File(source.replay.clone()) };
    replay.observe(desired.environment(), &desired.scope()).map_err(|error| unobserved(&error))
}

fn unobserved(error: &ObserveError) -> Stop {
    match error {
        ObserveError::Unreadable { place, source } => unreadable(&files::shown(Path::new(place)), source),
        ObserveError::Malformed { place, bytes, diagnostics } => {
            Stop::faults(diagnose::render(&files::shown(Path::new(place)), bytes, diagnostics))
        }
        ObserveError::OtherEnvironment { .. } => {
            Stop::input(error.to_string()).help("name a reading of the same environment as the declared state")
        }
        ObserveError::TooLarge { .. } | ObserveError::Proxmox(_) => Stop::input(error.to_string()),
    }
}

fn unreadable(place: &str, error: &io::Error) -> Stop {
    let stop = Stop::input(format!("cannot read {place}: {error}"));
    match error.kind() {
        io::ErrorKind::NotFound => stop.help("check the path; it is relative to the directory that you are in"),
        io::ErrorKind::PermissionDenied => stop.help("check who may read it with `ls -l`"),
        _ => stop,
    }
}
