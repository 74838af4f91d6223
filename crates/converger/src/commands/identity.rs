//! Which cluster an environment name stands for, as commands ask it: `apply` compares before it sends anything, `hold` and `freeze` before they
//! record anything, `plan` and `audit` only say what an apply would refuse.
//!
//! The store decides, in its transaction. What never enters: reading certificates (adapters), and the rules (core).

use std::io::Write as _;
use std::path::Path;

use converger_adapters::proxmox::identity::IdentityError;
use converger_adapters::proxmox::{Proxmox, Report};
use converger_core::apply::{EnvironmentBinding, EnvironmentNames, EnvironmentRename};
use converger_core::desired::Scope;
use converger_core::guest::{ClusterIdentity, EnvironmentName, Vmid};
use converger_core::observe::Seen;
use converger_core::refusal::Refusal;
use converger_store::{Batch, Write};

use super::ledger::Shelf;
use super::memory::{self, Memory};
use super::{Stop, people, shown, spine};
use crate::cli::{EnvironmentCommand, Renaming};
use crate::config::Connection;
use crate::exit::End;
use crate::{config, files, screen, state};

/// Compares the cluster that answers with the one that the environment stands for, or records it at first use. Nothing was sent before this, and
/// nothing is sent where it fails.
pub(super) fn bind(memory: &Memory, environment: &EnvironmentName, identity: Result<ClusterIdentity, IdentityError>) -> Result<(), Stop> {
    let cluster =
        identity.map_err(|error| Stop::refused(&Refusal::cluster_unidentified(environment, &files::plain(&error.to_string()))))?;
    memory.commit(Batch::from(binding(environment, cluster))).map(drop)
}

fn binding(environment: &EnvironmentName, cluster: ClusterIdentity) -> Write {
    Write::Bind(EnvironmentBinding { environment: environment.clone(), cluster, by: state::actor().into(), at_ms: state::now_ms() })
}

/// Says what an apply would refuse, where the state directory has a cluster recorded. Nothing is written (G5), and a state directory that has
/// none is compared with nothing.
pub(super) fn note(names: &EnvironmentNames, environment: &EnvironmentName, proxmox: &Proxmox, report: &Report) {
    if names.bindings().next().is_none() {
        return;
    }
    match proxmox.identity(report) {
        Ok(cluster) => {
            if let Some(conflict) = names.conflict(environment, &cluster) {
                say(&format!("an apply would be refused: {conflict}"));
            }
        }
        Err(error) => say(&format!("the identity of the cluster cannot be read, and an apply would be refused: {error}")),
    }
}

/// What a person says of an environment, and whether it could be checked.
pub(super) struct Checked {
    binding: Option<Write>,
    notes: Vec<String>,
}

impl Checked {
    /// What the person says, behind the binding that it rests on.
    pub(super) fn batch(self, word: Write) -> Batch {
        self.notes.iter().for_each(|note| say(note));
        self.binding.map_or_else(Batch::default, Batch::from).with(word)
    }
}

/// Takes a quick look at the cluster before a hold or a freeze is recorded. A guest that is proven absent is refused; a cluster that does not
/// answer, or a guest that cannot be read, is no reason to refuse: the person may know better, and it may be urgent.
pub(super) fn check(
    config: Option<&Path>,
    environment: &EnvironmentName,
    connection: &Connection,
    guest: Option<Vmid>,
    is_offline: bool,
) -> Result<Checked, Stop> {
    let looked = if is_offline { Err("--offline was given".to_owned()) } else { look(environment, connection, guest) };
    let what = guest.map_or_else(|| "the cluster".to_owned(), |vmid| format!("guest {vmid}"));
    let (report, identity) = match looked {
        Ok(looked) => looked,
        Err(cause) => {
            let mut notes = vec![format!("{what} of {environment} could not be checked: {cause}")];
            notes.extend(other_name(config, environment));
            return Ok(Checked { binding: None, notes });
        }
    };
    let mut notes = Vec::new();
    if let Some(vmid) = guest {
        match report.reading.seen(vmid, report.reading.find(vmid)) {
            Seen::Present(..) => {}
            Seen::Missing => return Err(Stop::refused(&Refusal::guest_missing_in(environment, vmid))),
            Seen::Unknown(cause) => notes.push(format!("{what} of {environment} could not be checked: {cause}")),
        }
    }
    let binding = identity.map(|cluster| binding(environment, cluster));
    let unread = binding.as_ref().err().map(|error| format!("the identity of the cluster could not be read: {error}"));
    notes.extend(unread.map(|text| files::plain(&text)));
    Ok(Checked { binding: binding.ok(), notes })
}

/// One short reading, with the identity of the cluster that it came from; or why there is none.
fn look(
    environment: &EnvironmentName,
    connection: &Connection,
    guest: Option<Vmid>,
) -> Result<(Report, Result<ClusterIdentity, IdentityError>), String> {
    let mut opened = connection.open(environment)?;
    opened.bounds = opened.bounds.brief();
    let plain = |error: &dyn std::fmt::Display| files::plain(&error.to_string());
    let proxmox = Proxmox::new(opened).map_err(|error| plain(&error))?.with_needs(spine::nothing_but_the_list());
    let report = proxmox.report(&Scope::new(guest.into_iter().collect())).map_err(|error| plain(&error))?;
    let identity = proxmox.identity(&report);
    Ok((report, identity))
}

/// Another environment of the same file with the same address or cluster name. It may be the same cluster, and two clusters may share both: it is
/// only worth a note.
fn other_name(config: Option<&Path>, environment: &EnvironmentName) -> Option<String> {
    let survey = config::survey(config).ok()?;
    let (other, shared) = survey.same_cluster(environment)?;
    Some(format!("`{other}` has {shared} too: if it is the same cluster, this does not bind whoever uses that name"))
}

fn say(note: &str) {
    let _ = writeln!(anstream::stderr(), "{}", screen::err(&format!("note: {note}")));
}

pub(super) fn environment(command: &EnvironmentCommand) -> Result<End, Stop> {
    match command {
        EnvironmentCommand::Rename(renaming) => rename(renaming),
    }
}

/// Renames an environment in the state directory, while no process drives it under either name.
fn rename(renaming: &Renaming) -> Result<End, Stop> {
    let (from, to) = (spine::environment(&renaming.from)?, spine::environment(&renaming.to)?);
    let reason = people::remark(&renaming.reason, "why: others will ask")?;
    // converger.toml may have the former name, the new one or both: it only says where the state directory is.
    let shelf = Shelf::of(renaming.config.as_deref())?;
    shelf.must_be_there()?;
    let memory = memory::on(&shelf.directory, shelf.witness.as_deref())?;
    if from == to {
        // Its own lock would be taken for that of another process.
        return Err(Stop::refused(&Refusal::name_in_use(&to)));
    }
    let _locks = [memory.lock(&from)?, memory.lock(&to)?];
    let rename = EnvironmentRename { from: from.clone(), to: to.clone(), by: state::actor().into(), reason, at_ms: state::now_ms() };
    let _ = memory.commit(Batch::from(Write::Rename(rename)))?;
    memory.attest()?;
    let said = format!(
        "{from} is {to} now in the state directory {}: holds, freezes and operations are kept under the new name\n\
         write the new name into converger.toml and the declared state; the former one is refused from now on",
        files::shown(&memory.directory)
    );
    shown(writeln!(anstream::stdout(), "{said}"), End::Done)
}
