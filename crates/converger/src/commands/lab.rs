//! `converger lab`: a world from a file or a seed, served until Ctrl-C.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;

use converger_lab::server::{Clock, Identity, Options, Place, ServeError, Server, Watcher};
use converger_lab::{Flavour, Record, Scale, Setting};
use futures_util::future::select;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use super::{Stop, shown};
use crate::cli::Lab;
use crate::exit::End;
use crate::files;
use crate::render::{self, styled};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

const WORLD_BYTES_MAX: usize = 64 << 20;

/// What `--into` leaves behind.
const CERTIFICATE: &str = "lab.pem";
const CONFIG: &str = "converger.toml";
const SECRET: &str = "secret";

pub(super) fn lab(arguments: &Lab) -> Result<End, Stop> {
    let setting = setting(arguments)?;
    let identity = identity(arguments.into.as_deref(), &setting)?;
    let invitation = Invitation { fingerprint: identity.fingerprint(), token: token(&setting) };
    let clock = arguments.clock.map_or(Clock::Real { speed: 1 }, |step_ms| Clock::Virtual { step_ms });
    let watcher = (!arguments.quiet).then(|| Arc::new(log) as Watcher);
    let options = Options { listen: SocketAddr::new(LOOPBACK, arguments.port), clock, identity, watcher };
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| Stop::failed(format!("cannot start: {error}")))?;
    runtime.block_on(async {
        let server = Server::bind(&setting, options).await.map_err(|error| unserved(&error))?;
        let places: Vec<Place> = server.places().cloned().collect();
        if let Some(room) = &arguments.into {
            invitation.leave(room, &places)?;
        }
        let world = server.world();
        shown(io::stdout().write_all(invitation.text(&setting, &places).as_bytes()).and_then(|()| io::stdout().flush()), End::Done)?;
        server.run(ended()).await;
        let requests = world.lock().requests();
        let _ = writeln!(anstream::stderr(), "\n{}", styled(render::DIM, format!("the lab is gone; it answered {requests} requests")));
        Ok(End::Done)
    })
}

/// Until Ctrl-C, or until a service manager asks it to end.
async fn ended() {
    let interrupt = pin!(tokio::signal::ctrl_c());
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        let _ = interrupt.await;
        return;
    };
    let terminate = pin!(terminate.recv());
    select(interrupt, terminate).await;
}

fn setting(arguments: &Lab) -> Result<Setting, Stop> {
    let Some(path) = &arguments.world else {
        let flavour = Flavour::try_from(arguments.flavour).map_err(Stop::input)?;
        return Ok(Setting::seeded(arguments.seed, Scale { nodes: arguments.nodes, guests: arguments.guests }, flavour));
    };
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

/// The first token and its secret, for people who try things. A world without one can be reached with tickets only.
fn token(setting: &Setting) -> Option<(String, String)> {
    setting.tokens.iter().next().map(|(id, token)| (id.clone(), token.secret.clone()))
}

struct Invitation {
    fingerprint: String,
    token: Option<(String, String)>,
}

impl Invitation {
    /// How to reach the lab, for people.
    fn text(&self, setting: &Setting, places: &[Place]) -> String {
        let mut text = format!("lab: Proxmox VE {} with {} guests\n", setting.flavour.major(), setting.guests.len());
        for place in places {
            let _ = writeln!(text, "  {:<12} https://{}", place.node, place.address);
        }
        let _ = writeln!(text, "  {:<12} {}", "fingerprint", self.fingerprint);
        if let Some((id, secret)) = &self.token {
            let _ = writeln!(text, "  {:<12} {id}={secret}", "token");
        }
        text.push_str("Ctrl-C ends it.\n");
        text
    }

    /// A converger.toml that leads here, and the secret beside it.
    fn leave(&self, room: &Path, places: &[Place]) -> Result<(), Stop> {
        let Some((id, secret)) = &self.token else { return Ok(()) };
        private(&room.join(SECRET), &format!("{secret}\n"))?;
        let pin = &self.fingerprint;
        let endpoints: Vec<String> =
            places.iter().map(|place| format!("  {{ url = \"https://{}\", fingerprints = [\"{pin}\"] }},\n", place.address)).collect();
        let text = format!(
            "# Leads to the lab that was started with `converger lab --into`.\n[environments.lab]\nmode = \"solo\"\ntoken = \"{id}\"\n\
             secret = {{ file = \"{SECRET}\" }}\nendpoints = [\n{}]\n",
            endpoints.concat()
        );
        private(&room.join(CONFIG), &text)
    }
}

fn log(record: &Record) {
    let status = if record.status == 0 { "lost".to_owned() } else { record.status.to_string() };
    let line = format!("{} {:<6} {} {status} {}", record.entry, record.method, record.path.escape_debug(), record.user.escape_debug());
    let _ = writeln!(anstream::stderr(), "{}", styled(render::DIM, line));
}

fn unserved(error: &ServeError) -> Stop {
    match error {
        ServeError::Setting(_) => Stop::input(error.to_string()),
        ServeError::Port(..) => Stop::failed(error.to_string()).help("another program may use it; `--port 0` takes any that is free"),
        ServeError::Certificate(_) => Stop::failed(error.to_string()),
    }
}
