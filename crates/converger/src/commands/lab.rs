//! `converger lab`: a world from a file or a seed, served until Ctrl-C.

mod invitation;
mod record;
mod room;

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;

use converger_core::failure::Code;
use converger_lab::server::{Clock, Identity, Options, Passed, Place, ServeError, Server, Watcher};
use converger_lab::{Flavour, Record, Scale, SeededDay, Setting};

use super::signals::Endings;
use super::{Stop, shown};
use crate::cli::Lab;
use crate::exit::End;
use crate::files;
use crate::render::{self, styled};
use invitation::Invitation;
use record::{Form, Recorder};
use room::Room;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

const WORLD_BYTES_MAX: usize = 64 << 20;

pub(super) async fn lab(arguments: &Lab) -> Result<End, Stop> {
    let setting = setting(arguments)?;
    let clock = arguments.clock.map_or(Clock::Real { speed: arguments.speed }, |step_ms| Clock::Virtual { step_ms });
    // Made before anything is written or listened on: what cannot be is said first.
    let world = Server::world_of(&setting, clock).map_err(|error| no_world(arguments, &error))?;
    let room = arguments.into.as_deref().map(|into| Room::claim(into, arguments.overwrite.overwrite)).transpose()?;
    let new = || identity(&setting);
    let identity = room.as_ref().map_or_else(new, |room| room.identity(new))?;
    let invitation = Invitation::new(&setting, &identity, clock);
    let recorder = arguments.record.as_deref().map(|path| Recorder::open(path, arguments.overwrite.overwrite)).transpose()?;
    let watcher = watcher(setting.flavour, !arguments.quiet, recorder.clone());
    let options = Options { listen: SocketAddr::new(LOOPBACK, arguments.port), clock, identity, watcher };
    let server = Server::bind_world(world, options).await.map_err(|error| unserved(&error))?;
    let places: Vec<Place> = server.places().cloned().collect();
    if let Some(room) = &room {
        invitation.leave(room, &places)?;
    }
    let (world, mut endings) = (server.world(), Endings::listen()?);
    let text = invitation.text(&places, room.as_ref());
    shown(io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()), End::Done)?;
    server.run(over(&mut endings, recorder.as_deref())).await;
    if let Some(room) = &room {
        room.is_over();
    }
    let requests = world.lock().requests();
    let _ = writeln!(anstream::stderr(), "\n{}", styled(render::DIM, format!("the lab is gone; it answered {requests} requests")));
    recorder.and_then(|recorder| recorder.fault()).map_or(Ok(End::Done), Err)
}

fn setting(arguments: &Lab) -> Result<Setting, Stop> {
    let flavour = arguments.flavour.map(Flavour::try_from).transpose().map_err(Stop::input)?;
    let bad_day = arguments.bad_day.map(|seed| SeededDay { seed, ..SeededDay::default() });
    let Some(path) = &arguments.world else {
        let scale = Scale { nodes: arguments.nodes, guests: arguments.guests };
        let mut setting = Setting::seeded(arguments.seed, scale, flavour.unwrap_or_default());
        setting.faults.bad_day = bad_day;
        return Ok(setting);
    };
    let mut setting = Setting::from_yaml(&read(path)?).map_err(|fault| no_world_in(path, &fault))?;
    setting.flavour = flavour.unwrap_or(setting.flavour);
    setting.faults.bad_day = bad_day.or(setting.faults.bad_day);
    Ok(setting)
}

fn no_world(arguments: &Lab, error: &ServeError) -> Stop {
    match (&arguments.world, error) {
        (Some(path), ServeError::Setting(fault)) => no_world_in(path, fault),
        _ => unserved(error),
    }
}

fn no_world_in(path: &Path, fault: &str) -> Stop {
    unfit(format!("{} is no world: {fault}", files::shown(path)))
}

fn read(path: &Path) -> Result<String, Stop> {
    let name = files::shown(path);
    let text = files::read_at_most(path, WORLD_BYTES_MAX).map_err(|error| {
        let stop = Stop::input(format!("cannot read {name}: {error}")).code(Code::FileUnreadable);
        stop.help("name a file that describes a world, or none for one from a seed")
    })?;
    if text.bytes.len() > WORLD_BYTES_MAX {
        return Err(unfit(format!("{name} is larger than 64 MiB")));
    }
    String::from_utf8(text.bytes).map_err(|_| unfit(format!("{name} is not UTF-8")))
}

fn identity(setting: &Setting) -> Result<Identity, Stop> {
    Identity::new(setting.nodes.keys().map(String::as_str), LOOPBACK)
        .map_err(|error| unfit(format!("no certificate can be made for the names of the nodes: {error}")))
}

/// What was named is not a world.
fn unfit(text: String) -> Stop {
    Stop::input(text).code(Code::WorldInvalid).help("docs/lab.md shows how one is written")
}

/// Who looks at every request: a person at the terminal, a file, both or nobody.
fn watcher(flavour: Flavour, is_shown: bool, recorder: Option<Arc<Recorder>>) -> Option<Watcher> {
    if !is_shown && recorder.is_none() {
        return None;
    }
    Some(Arc::new(move |passed: &Passed<'_>| {
        if is_shown {
            log(passed.record);
        }
        if let Some(recorder) = &recorder {
            recorder.keep(passed.record, &Form::of(flavour, passed.request, passed.answer));
        }
    }))
}

/// Until somebody ends it, or its record cannot be kept.
async fn over(endings: &mut Endings, recorder: Option<&Recorder>) {
    let Some(recorder) = recorder else { return endings.next().await };
    futures_util::future::select(pin!(endings.next()), pin!(recorder.failed())).await;
}

fn log(record: &Record) {
    let status = if record.status == 0 { "lost".to_owned() } else { record.status.to_string() };
    // Whoever calls chooses these words, and they are not to act on a terminal.
    let path = record::without_secrets(&record.path);
    let [method, path, user] = [&record.method, &path, &record.user].map(|word| word.escape_debug().to_string());
    let line = format!("{} {method:<6} {path} {status} {user}", record.entry);
    let _ = writeln!(anstream::stderr(), "{}", styled(render::DIM, line));
}

fn unserved(error: &ServeError) -> Stop {
    match error {
        ServeError::Setting(_) => unfit(error.to_string()),
        ServeError::Ports(..) => {
            let stop = Stop::input(error.to_string());
            stop.help("`--port` names the first of them; `--port 0` takes any that are free")
        }
        ServeError::Port(..) => {
            let stop = Stop::failed(error.to_string()).code(Code::LabUnserved);
            stop.help("another program may use it, perhaps another lab; `--port 0` takes any that are free")
        }
        ServeError::Certificate(_) => Stop::failed(error.to_string()).code(Code::LabUnserved).help("remove lab.pem to have a new one made"),
    }
}
