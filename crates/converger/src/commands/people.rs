//! What people say to the program beside a plan: freeze and thaw an environment, hold and release a guest.
//!
//! What they say is in the store before the command ends, and a running apply finds it before its next intent.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use converger_core::apply::{Freeze, Hold, is_remark};
use converger_core::guest::EnvironmentName;
use converger_store::{Batch, Write};

use super::{Stop, identity, memory, shown, spine};
use crate::cli::{Freezing, Holding, Place, Releasing};
use crate::config::Connection;
use crate::exit::End;
use crate::{files, state};

pub(super) fn freeze(freezing: &Freezing) -> Result<End, Stop> {
    let (environment, connection) = known(&freezing.place)?;
    let reason = remark(&freezing.reason, "why: others will ask")?;
    let freeze = Freeze { environment: environment.clone(), by: state::actor().into(), reason, at_ms: state::now_ms() };
    let said =
        format!("{environment} is frozen: nothing new is begun there until `converger thaw {environment}`; what was sent before goes on");
    let checked = identity::check(freezing.place.config.as_deref(), &environment, &connection, None, freezing.offline)?;
    let directory = write(&freezing.place, checked.batch(Write::Freeze(freeze)))?;
    told(&format!("{said}\n{}", reach(&directory)))
}

pub(super) fn thaw(place: &Place) -> Result<End, Stop> {
    let (environment, _) = known(place)?;
    let thaw = Write::Thaw { environment: environment.clone(), by: state::actor().into(), at_ms: state::now_ms() };
    write(place, thaw)?;
    told(&format!("{environment} is thawed"))
}

pub(super) fn hold(holding: &Holding) -> Result<End, Stop> {
    let (environment, connection) = known(&holding.place)?;
    let reason = remark(&holding.reason, "why: others will ask")?;
    let hold = Hold { environment: environment.clone(), vmid: holding.vmid, by: state::actor().into(), reason, at_ms: state::now_ms() };
    let said = format!(
        "guest {} of {environment} is held: it is left alone until `converger release {environment} {}`",
        holding.vmid, holding.vmid
    );
    let checked = identity::check(holding.place.config.as_deref(), &environment, &connection, Some(holding.vmid), holding.offline)?;
    let directory = write(&holding.place, checked.batch(Write::Hold(hold)))?;
    told(&format!("{said}\n{}", reach(&directory)))
}

pub(super) fn release(holding: &Releasing) -> Result<End, Stop> {
    let (environment, _) = known(&holding.place)?;
    let (by, at_ms) = (state::actor().into(), state::now_ms());
    let release = Write::Release { environment: environment.clone(), vmid: holding.vmid, by, at_ms };
    write(&holding.place, release)?;
    told(&format!("guest {} of {environment} is released", holding.vmid))
}

/// An environment that converger.toml knows: a slip in its name would freeze nothing, and nobody would notice.
fn known(place: &Place) -> Result<(EnvironmentName, Connection), Stop> {
    let environment = spine::environment(&place.environment)?;
    let config = spine::load(place.config.as_deref(), &environment)?;
    let connection = config.connection.ok_or_else(|| spine::unconfigured(&environment))?;
    Ok((environment, connection))
}

/// What somebody gives as a reason, to be kept.
pub(super) fn remark(reason: &str, what: &str) -> Result<Box<str>, Stop> {
    if is_remark(reason) {
        return Ok(reason.into());
    }
    Err(Stop::input("a reason is missing, or longer than 4096 bytes").help(format!("say with --reason {what}")))
}

/// Makes it durable; gives the state directory that it is kept in.
fn write(place: &Place, batch: impl Into<Batch>) -> Result<PathBuf, Stop> {
    let environment = spine::environment(&place.environment)?;
    let memory = memory::to_write(place.config.as_deref(), &environment)?;
    let _ = memory.commit(batch.into())?;
    memory.attest()?;
    Ok(memory.directory)
}

/// Whom it binds: another user, or another machine, keeps another state unless it is named.
fn reach(directory: &Path) -> String {
    format!("this binds whoever uses the state directory {}, and nobody else", files::shown(directory))
}

fn told(said: &str) -> Result<End, Stop> {
    shown(writeln!(anstream::stdout(), "{said}"), End::Done)
}
