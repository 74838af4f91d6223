//! `config` and `pending`: reading, and handing updates on.
//!
//! What never enters here: how an update is written (see `update`).

use serde_json::{Value, json};

use crate::api::Call;
use crate::engine::Fork;
use crate::guest::Kind;
use crate::respond::{Data, Fail};
use crate::task::State;
use crate::update;
use crate::work::Work;
use crate::world::World;

pub(super) fn read(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let guest = call.guest(world)?;
    let snapshot = call.text("snapshot");
    if call.flag("current") && snapshot.is_some() {
        let text = "cannot use 'snapshot' parameter with 'current'".to_owned();
        return Err(Fail::Params([("current".to_owned(), text.clone()), ("snapshot".to_owned(), text)].into(), 0));
    }
    let section = match snapshot {
        Some(name) => guest.snapshots.get(name).cloned().ok_or_else(|| Fail::died(format!("snapshot '{name}' does not exist")))?,
        None if call.flag("current") => guest.main.clone(),
        None => guest.merged(),
    };
    let mut fields = guest.section_json(&section, world.flavour);
    fields.insert("digest".to_owned(), json!(guest.digest()));
    Ok(Value::Object(fields).into())
}

pub(super) fn pending(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let vmid = call.guest(world)?.vmid;
    Ok(Data::text(world.guests.pending_text(vmid, world.flavour).to_vec()))
}

/// Synchronous: waits for whoever holds the guest, then writes.
pub(super) fn put(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let update = update::prepare(world, call)?;
    update::guard(world, &call.node, &update)?;
    let lock_file = call.kind.lock_file(update.vmid);
    let waited_ms = world.wait_for(update.vmid, &lock_file).map_err(|(text, delay_ms)| Fail::Died(text, delay_ms))?;
    let took_ms = update::write(world, &call.node, &update)?;
    Ok(Data::null().after(waited_ms + took_ms))
}

/// The same for keys that only go.
pub(super) fn unlink(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let renamed = |name: &str| if name == "idlist" { "delete" } else { name }.to_owned();
    let values: Vec<_> = call.values.iter().map(|(name, value)| (renamed(name), value.clone())).collect();
    let (who, entry, node) = (call.who.clone(), call.entry.clone(), call.node.clone());
    put(world, &Call { method: call.method, values: values.into(), who, entry, node, kind: call.kind })
}

/// A task does it; with a delay given, the call waits that long and returns nothing if the task ended well.
pub(super) fn post(world: &mut World, call: &Call) -> Result<Data, Fail> {
    debug_assert!(call.kind == Kind::Qemu, "containers have no such method");
    let update = update::prepare(world, call)?;
    update::guard(world, &call.node, &update)?;
    let vmid = update.vmid;
    let upid = world.fork(Fork::holding(&call.node, &call.who, "qmconfig", vmid, Work::Config(Box::new(update))));
    let Some(patience_s) = call.number("background_delay") else { return Ok(upid.into()) };
    let began_ms = world.now_ms;
    let ends_ms = world.tasks.find(&upid).and_then(|(_, task)| match task.state {
        State::Running { ends_ms } => ends_ms,
        _ => None,
    });
    match ends_ms.filter(|ends_ms| *ends_ms <= began_ms + patience_s * 1_000) {
        Some(ends_ms) => {
            world.advance(ends_ms);
            let status = world.tasks.find(&upid).and_then(|(_, task)| task.status());
            let data = if status == Some("OK") { Data::null() } else { upid.into() };
            Ok(data.after(ends_ms - began_ms))
        }
        None => Ok(Data::from(upid).after(patience_s * 1_000)),
    }
}
