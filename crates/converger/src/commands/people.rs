//! What people say to the program beside a plan: freeze and thaw an environment, hold and release a guest.
//!
//! What they say is in the store before the command ends, and a running apply finds it before its next intent.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use converger_core::apply::{Freeze, Hold, is_remark};
use converger_core::guest::EnvironmentName;
use converger_runtime::reader::unconfigured_error;
use converger_runtime::state_dir::WriteOutcome;
use converger_store::{Batch, Write};

use super::{Stop, identity, inputs, shown};
use crate::cli::{Freezing, Holding, Place, Releasing};
use crate::config::Connection;
use crate::exit::End;
use crate::{files, host};

pub(super) async fn freeze(freezing: &Freezing) -> Result<End, Stop> {
    let (environment, connection) = known(&freezing.place)?;
    let reason = remark(&freezing.reason, "why: others will ask")?;
    let freeze = Freeze { environment: environment.clone(), by: host::actor().into(), reason, at_ms: host::now_ms() };
    let said =
        format!("{environment} is frozen: nothing new is begun there until `converger thaw {environment}`; what was sent before goes on");
    let checked = identity::check(freezing.place.config.as_deref(), &environment, &connection, None, freezing.offline).await?;
    let directory = write(&freezing.place, checked.batch(Write::Freeze(freeze))).await?;
    told(&format!("{said}\n{}", reach(&directory)))
}

pub(super) async fn thaw(place: &Place) -> Result<End, Stop> {
    let (environment, _) = known(place)?;
    let thaw = Write::Thaw { environment: environment.clone(), by: host::actor().into(), at_ms: host::now_ms() };
    write(place, thaw).await?;
    told(&format!("{environment} is thawed"))
}

pub(super) async fn hold(holding: &Holding) -> Result<End, Stop> {
    let (environment, connection) = known(&holding.place)?;
    let reason = remark(&holding.reason, "why: others will ask")?;
    let hold = Hold { environment: environment.clone(), vmid: holding.vmid, by: host::actor().into(), reason, at_ms: host::now_ms() };
    let said = format!(
        "guest {} of {environment} is held: it is left alone until `converger release {environment} {}`",
        holding.vmid, holding.vmid
    );
    let checked = identity::check(holding.place.config.as_deref(), &environment, &connection, Some(holding.vmid), holding.offline).await?;
    let directory = write(&holding.place, checked.batch(Write::Hold(hold))).await?;
    told(&format!("{said}\n{}", reach(&directory)))
}

pub(super) async fn release(holding: &Releasing) -> Result<End, Stop> {
    let (environment, _) = known(&holding.place)?;
    let (by, at_ms) = (host::actor().into(), host::now_ms());
    let release = Write::Release { environment: environment.clone(), vmid: holding.vmid, by, at_ms };
    write(&holding.place, release).await?;
    told(&format!("guest {} of {environment} is released", holding.vmid))
}

/// An environment that converger.toml knows: a slip in its name would freeze nothing, and nobody would notice.
fn known(place: &Place) -> Result<(EnvironmentName, Connection), Stop> {
    let environment = inputs::parse_environment(&place.environment)?;
    let config = inputs::load_config(place.config.as_deref(), &environment)?;
    let connection = config.connection.ok_or_else(|| unconfigured_error(&environment))?;
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
async fn write(place: &Place, batch: impl Into<Batch>) -> Result<PathBuf, Stop> {
    let environment = inputs::parse_environment(&place.environment)?;
    let state = inputs::open_state(place.config.as_deref(), &environment).await?;
    if let WriteOutcome::Refused(refusal) = state.write(batch.into()).await? {
        return Err(Stop::refused(&refusal));
    }
    state.attest_ledger().await?;
    Ok(state.path().to_owned())
}

/// Whom it binds: another user, or another machine, keeps another state unless it is named.
fn reach(directory: &Path) -> String {
    format!("this binds whoever uses the state directory {}, and nobody else", files::shown(directory))
}

fn told(said: &str) -> Result<End, Stop> {
    shown(writeln!(anstream::stdout(), "{said}"), End::Done)
}
