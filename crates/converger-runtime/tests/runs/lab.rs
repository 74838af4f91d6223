//! A lab on this machine, and a directory with a configuration that leads to it.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use converger_core::desired::{self, Desired};
use converger_core::document::Notation;
use converger_core::guest::EnvironmentName;
use converger_lab::WorldSpec;
use converger_lab::server::{ClockMode, LabCertificates, LabServer, ServerOptions, SharedWorld};
use converger_runtime::{Config, Environment, EnvironmentReader, EventBus, EventSink, Host, Opened, StateDirectory, StateLocation, config};
use converger_store::StoreSettings;
use tempfile::TempDir;
use tokio::sync::oneshot;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

const WORLD: &str = "\
flavour: 9
cluster: lab
nodes: { pve1: {} }
tokens: { 'root@pam!lab': { secret: s3cret, full: true } }
pace: { start_ms: 100000 }
guests:
  - { vmid: 101, kind: qemu, node: pve1, name: web-1 }
  - { vmid: 102, kind: qemu, node: pve1, name: web-2 }
";

/// A lab whose guests 101 and 102 are stopped, and everything that an environment needs.
pub(crate) struct Stage {
    directory: TempDir,
    pub(crate) events: Arc<EventBus>,
    world: SharedWorld,
    start_ms: u64,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Stage {
    /// A lab whose clock each request moves by this much. Where none does, runs wait in real time for what the test lets happen.
    pub(crate) fn start(step_ms: u64) -> Self {
        let spec = WorldSpec::from_yaml(WORLD).expect("a world");
        let start_ms = spec.start_ms;
        let identity = LabCertificates::new(["pve1"].into_iter(), LOOPBACK).expect("an identity");
        let fingerprint = identity.fingerprint();
        let options =
            ServerOptions { listen: SocketAddr::new(LOOPBACK, 0), clock: ClockMode::Virtual { step_ms }, identity, watcher: None };
        let (end, end_receiver) = oneshot::channel::<()>();
        let (address_sender, address_receiver) = mpsc::channel();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let server = LabServer::bind(&spec, options).await.expect("a server");
                let address = server.served_nodes().next().expect("a node").address;
                address_sender.send((address, server.world())).expect("the test waits");
                server.run(async { drop(end_receiver.await) }).await;
            });
        });
        let (address, world) = address_receiver.recv().expect("it listens");
        let directory = TempDir::new().expect("a directory");
        let clock = if step_ms > 0 { "clock = \"requests\"\n" } else { "" };
        let config = format!(
            "[environments.lab]\nmode = \"solo\"\nurl = \"https://{address}\"\nfingerprints = [\"{fingerprint}\"]\ntoken = \"root@pam!lab\"\n\
             secret = {{ file = \"secret\" }}\n{clock}"
        );
        for (name, text) in [("converger.toml", config.as_str()), ("secret", "s3cret\n")] {
            let path = directory.path().join(name);
            fs::write(&path, text).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("set");
        }
        Self { directory, events: Arc::default(), world, start_ms, end: Some(end), thread: Some(thread) }
    }

    /// Lets this much time pass in the lab since its start.
    pub(crate) async fn pass(&self, ms: u64) {
        self.world.lock().advance_to(self.start_ms + ms);
        self.world.wait_for_ports().await;
    }

    pub(crate) async fn state(&self) -> StateDirectory {
        self.state_with_room(StoreSettings::BYTES_MAX).await
    }

    /// A state directory whose disk has room for this many bytes.
    pub(crate) async fn state_with_room(&self, bytes_max: u64) -> StateDirectory {
        let location = StateLocation { directory: self.directory.path().join("state"), witness: None };
        let settings = StoreSettings::new(|fatal| panic!("{fatal}")).with_bytes_max(bytes_max);
        StateDirectory::open_with(&location, settings).await.expect("a state directory")
    }

    /// A state directory with a witness.
    pub(crate) async fn state_with_witness(&self) -> StateDirectory {
        let location = StateLocation { directory: self.directory.path().join("state"), witness: Some(self.witness()) };
        StateDirectory::open_with(&location, StoreSettings::new(|fatal| panic!("{fatal}"))).await.expect("a state directory")
    }

    pub(crate) fn witness(&self) -> PathBuf {
        self.directory.path().join("witness")
    }

    /// The configuration of the lab, as it is or after these replacements in its text.
    pub(crate) fn config(&self, replacements: &[(&str, &str)]) -> Arc<Config> {
        let own = fs::read_to_string(self.directory.path().join("converger.toml")).expect("written at the start");
        let text = replacements.iter().fold(own, |text, (old, new)| text.replace(old, new));
        let path = self.directory.path().join("changed.toml");
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("set");
        Arc::new(config::load(Some(&path), &lab_name()).unwrap_or_else(|error| panic!("{error:?}")))
    }

    pub(crate) fn open(&self, state: &StateDirectory) -> Opened {
        self.open_on(state, Host::system(), Arc::clone(&self.events) as Arc<dyn EventSink>)
    }

    /// The environment on another host, or with another receiver of its events.
    pub(crate) fn open_on(&self, state: &StateDirectory, host: Host, events: Arc<dyn EventSink>) -> Opened {
        let reader = EnvironmentReader::new(lab_name(), self.config(&[]), host, events);
        Environment::open(state.clone(), reader).expect("it can be opened")
    }

    pub(crate) fn open_ready(&self, state: &StateDirectory) -> Environment {
        match self.open(state) {
            Opened::Ready(environment) => environment,
            Opened::Refused(refusal) => panic!("{refusal:?}"),
        }
    }
}

pub(crate) fn lab_name() -> EnvironmentName {
    EnvironmentName::new("lab").expect("a name")
}

impl Drop for Stage {
    fn drop(&mut self) {
        drop(self.end.take());
        let thread_result = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || matches!(thread_result, Some(Ok(()))), "the lab did not end well");
    }
}

/// A declared state of these guests.
pub(crate) fn declared(guests: &str) -> Desired {
    let text = format!("version: 1\nenvironment: lab\nguests:\n{guests}");
    desired::parse(text.as_bytes(), Notation::Yaml).unwrap_or_else(|faults| panic!("{faults:?}"))
}
