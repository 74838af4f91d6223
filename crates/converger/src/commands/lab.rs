//! `converger lab`: a world from a file or a seed, served until Ctrl-C.

mod invitation;

use std::fs::{self, File};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use converger_lab::server::{Clock, Identity, Options, Place, ServeError, Server, Watcher};
use converger_lab::{Flavour, Record, Scale, Setting};
use futures_util::future::select;
use serde_json::json;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use super::{Stop, shown};
use crate::cli::Lab;
use crate::exit::End;
use crate::files;
use crate::render::{self, styled};
use invitation::Invitation;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

const WORLD_BYTES_MAX: usize = 64 << 20;

/// What `--into` keeps for the next time.
const CERTIFICATE: &str = "lab.pem";

pub(super) fn lab(arguments: &Lab) -> Result<End, Stop> {
    let setting = setting(arguments)?;
    let identity = identity(arguments.into.as_deref(), &setting)?;
    let invitation = Invitation::new(&setting, &identity);
    let clock = arguments.clock.map_or(Clock::Real { speed: 1 }, |step_ms| Clock::Virtual { step_ms });
    let watcher = watcher(arguments)?;
    let options = Options { listen: SocketAddr::new(LOOPBACK, arguments.port), clock, identity, watcher };
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| Stop::failed(format!("cannot start: {error}")))?;
    runtime.block_on(async {
        let server = Server::bind(&setting, options).await.map_err(|error| unserved(&error))?;
        let places: Vec<Place> = server.places().cloned().collect();
        if let Some(room) = &arguments.into {
            invitation.leave(room, &places)?;
        }
        let world = server.world();
        shown(io::stdout().write_all(invitation.text(&places).as_bytes()).and_then(|()| io::stdout().flush()), End::Done)?;
        server.run(ended()).await;
        let requests = world.lock().requests();
        let _ = writeln!(anstream::stderr(), "\n{}", styled(render::DIM, format!("the lab is gone; it answered {requests} requests")));
        Ok(End::Done)
    })
}

/// Until Ctrl-C, or until a service manager asks it to end.
pub(super) async fn ended() {
    let interrupt = pin!(tokio::signal::ctrl_c());
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        let _ = interrupt.await;
        return;
    };
    let terminate = pin!(terminate.recv());
    select(interrupt, terminate).await;
}

fn setting(arguments: &Lab) -> Result<Setting, Stop> {
    let flavour = arguments.flavour.map(Flavour::try_from).transpose().map_err(Stop::input)?;
    let Some(path) = &arguments.world else {
        let scale = Scale { nodes: arguments.nodes, guests: arguments.guests };
        return Ok(Setting::seeded(arguments.seed, scale, flavour.unwrap_or_default()));
    };
    let mut setting = from_file(path)?;
    setting.flavour = flavour.unwrap_or(setting.flavour);
    Ok(setting)
}

fn from_file(path: &Path) -> Result<Setting, Stop> {
    let name = files::shown(path);
    let text = files::read_at_most(path, WORLD_BYTES_MAX).map_err(|error| Stop::input(format!("cannot read {name}: {error}")))?;
    if text.bytes.len() > WORLD_BYTES_MAX {
        return Err(Stop::input(format!("{name} is larger than 64 MiB")));
    }
    let text = String::from_utf8(text.bytes).map_err(|_| Stop::input(format!("{name} is not UTF-8")))?;
    Setting::from_yaml(&text)
        .map_err(|fault| Stop::input(format!("{name} is no world: {fault}")).help("docs/lab.md shows how one is written"))
}

/// A certificate that is kept stays the same, so that a pin of it goes on to hold.
fn identity(room: Option<&Path>, setting: &Setting) -> Result<Identity, Stop> {
    let new = || {
        let names = setting.nodes.keys().map(String::as_str);
        Identity::new(names, LOOPBACK).map_err(|error| Stop::failed(format!("no certificate can be made: {error}")))
    };
    let Some(room) = room else { return new() };
    let path = room.join(CERTIFICATE);
    let name = files::shown(&path);
    match fs::read_to_string(&path) {
        Ok(pem) => {
            Identity::from_pem(&pem).map_err(|error| Stop::input(format!("{name}: {error}")).help("remove it to have a new one made"))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let identity = new()?;
            fs::create_dir_all(room).map_err(|error| Stop::failed(format!("cannot make {}: {error}", files::shown(room))))?;
            private(&path, identity.pem())?;
            Ok(identity)
        }
        Err(error) => Err(Stop::input(format!("cannot read {name}: {error}"))),
    }
}

/// A file that nobody else may read.
fn private(path: &Path, text: &str) -> Result<(), Stop> {
    files::replace_private(path, |file| file.write_all(text.as_bytes()))
        .map_err(|error| Stop::failed(format!("cannot write {}: {error}", files::shown(path))))
}

/// Who looks at every request: a person at the terminal, a file, both or nobody.
fn watcher(arguments: &Lab) -> Result<Option<Watcher>, Stop> {
    let shown = !arguments.quiet;
    let Some(path) = &arguments.record else { return Ok(shown.then(|| Arc::new(log) as Watcher)) };
    let file = File::create(path).map_err(|error| Stop::failed(format!("cannot write {}: {error}", files::shown(path))))?;
    let file = Mutex::new(file);
    Ok(Some(Arc::new(move |record: &Record| {
        if shown {
            log(record);
        }
        keep(&mut file.lock().unwrap_or_else(PoisonError::into_inner), record);
    })))
}

/// One line in one write, so that whoever reads along never sees half of one. A disk that is full must not end the lab.
fn keep(file: &mut File, record: &Record) {
    let Record { at_ms, entry, method, path, user, status } = record;
    let line = json!({ "at_ms": at_ms, "node": entry, "method": method, "path": path, "user": user, "status": status });
    let _ = file.write_all(format!("{line}\n").as_bytes());
}

fn log(record: &Record) {
    let status = if record.status == 0 { "lost".to_owned() } else { record.status.to_string() };
    let line = format!("{} {:<6} {} {status} {}", record.entry, record.method, record.path.escape_debug(), record.user.escape_debug());
    let _ = writeln!(anstream::stderr(), "{}", styled(render::DIM, line));
}

fn unserved(error: &ServeError) -> Stop {
    match error {
        ServeError::Setting(_) => Stop::input(error.to_string()),
        ServeError::Ports(..) => {
            Stop::input(error.to_string()).help("`--port` names the first of them; `--port 0` takes any that are free")
        }
        ServeError::Port(..) => Stop::failed(error.to_string()).help("another program may use it; `--port 0` takes any that is free"),
        ServeError::Certificate(_) => Stop::failed(error.to_string()),
    }
}
