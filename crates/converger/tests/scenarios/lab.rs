//! A lab for the duration of one scenario: a world, served on this machine, with a clock that only requests advance.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};

use converger_lab::server::{
    ClockMode, LabCertificates, LabServer, RequestWatcher, ServedExchange, ServedNode, ServerOptions, SharedWorld,
};
use converger_lab::{Flavour, RequestRecord, WorldEvent, WorldSpec, verify_request, verify_response};
use tokio::sync::oneshot;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// By default, each request advances the clock by this much. An event between the first two requests of a scenario is scheduled at 150 ms.
const STEP_MS: u64 = 100;

/// Parses the clock of a scenario: milliseconds per request, or `real` for scenarios that compare clocks.
pub(crate) fn parse_clock(text: Option<&str>) -> Result<ClockMode, String> {
    match text {
        None => Ok(ClockMode::Virtual { step_ms: STEP_MS }),
        Some("real") => Ok(ClockMode::Real { speed: 1 }),
        Some(step) => step.parse().map(|step_ms| ClockMode::Virtual { step_ms }).map_err(|error| format!("commands: @clock: {error}")),
    }
}

/// A world that is served until it is dropped.
pub(crate) struct ScenarioLab {
    /// The prefix of its placeholders: empty, or `other:`.
    prefix: &'static str,
    served_nodes: Vec<ServedNode>,
    fingerprint: String,
    authority: String,
    secrets: Vec<String>,
    world: SharedWorld,
    /// Exchanges that violate the API table.
    violations: ApiViolations,
    /// The time of the last event in the world.
    now_ms: u64,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ScenarioLab {
    /// Serves the world that `text` describes. `watcher` sees every request.
    pub(crate) fn start(prefix: &'static str, text: &str, clock: ClockMode, watcher: Option<RequestWatcher>) -> Result<Self, String> {
        let spec = WorldSpec::from_yaml(text)?;
        let violations = ApiViolations::default();
        let watcher = Some(verifying_watcher(spec.flavour, watcher, Arc::clone(&violations)));
        let names = spec.nodes.keys().map(String::as_str);
        let identity = LabCertificates::new(names, LOOPBACK).map_err(|error| error.to_string())?;
        let (fingerprint, authority) = (identity.fingerprint(), identity.authority_pem().to_owned());
        let (secrets, now_ms) = (spec.tokens.values().map(|token| token.secret.clone()).collect(), spec.start_ms);
        let (end, end_receiver) = oneshot::channel();
        let (lab_sender, lab_receiver) = mpsc::channel();
        let options = ServerOptions { listen: SocketAddr::new(LOOPBACK, 0), clock, identity, watcher };
        let thread = thread::spawn(move || serve_lab(&spec, options, &lab_sender, end_receiver));
        let (served_nodes, world) = lab_receiver.recv().map_err(|error| error.to_string())??;
        Ok(Self { prefix, served_nodes, fingerprint, authority, secrets, world, violations, now_ms, end: Some(end), thread: Some(thread) })
    }

    /// The served world.
    pub(crate) fn world(&self) -> &SharedWorld {
        &self.world
    }

    /// Applies an event to the world.
    pub(crate) fn inject_event(&mut self, event: WorldEvent) {
        self.world.lock().apply_event(self.now_ms, event);
        self.wait_for_ports();
    }

    /// The true state of a guest, in one line.
    pub(crate) fn describe_guest(&self, vmid: u32) -> String {
        let truth = self.world.lock().guest_truth(vmid);
        let Some(truth) = truth else { return format!("{vmid}: there is no such guest") };
        let is_shown = |key: &&String| !["meta", "smbios1", "vmgenid", "digest"].contains(&key.as_str());
        // Every guest without disk and network card has one blank there.
        let is_shown = |key: &&String| is_shown(key) && (*key != "boot" || truth.config[*key] != " ");
        let config: Vec<String> = truth.config.keys().filter(is_shown).map(|key| format!("{key}: {}", truth.config[key])).collect();
        let pending: Vec<String> = truth.pending.iter().map(|(key, value)| format!("; pending {key}: {value}")).collect();
        let state = truth.process.as_deref().unwrap_or("stopped");
        let snapshots: Vec<String> = self.world.lock().snapshot_truths(vmid).map(|snapshot| snapshot.name).collect();
        let snapshots = if snapshots.is_empty() { String::new() } else { format!("; snapshots: {}", snapshots.join(", ")) };
        format!("{vmid} on {} is {state} ({}{}{snapshots})", truth.node, config.join("; "), pending.concat())
    }

    /// Lets time pass in the world.
    pub(crate) fn advance_time(&mut self, milliseconds: u64) {
        self.now_ms += milliseconds;
        self.world.lock().advance_to(self.now_ms);
        self.wait_for_ports();
    }

    /// Waits until the ports are as the world requires, before the next command runs.
    fn wait_for_ports(&self) {
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(self.world.wait_for_ports());
    }

    /// The requests since the last call. They arrive concurrently, so their order means nothing.
    pub(crate) fn requests(&mut self) -> Vec<RequestRecord> {
        let mut world = self.world.lock();
        let named = |record: &RequestRecord| RequestRecord { entry: format!("{}{}", self.prefix, record.entry), ..record.clone() };
        let records: Vec<RequestRecord> = world.records().map(named).collect();
        world.clear_records();
        self.now_ms = records.iter().map(|record| record.at_ms).fold(self.now_ms, u64::max);
        records
    }

    /// The placeholders in the files of a scenario, with their values.
    pub(crate) fn placeholders(&self) -> BTreeMap<String, String> {
        let key = |name: &str| format!("{{{}{name}}}", self.prefix);
        let mut all = BTreeMap::from([(key("fingerprint"), self.fingerprint.clone()), (key("ca"), self.authority_file())]);
        // The first node last, because it is also available without a name.
        for served_node in self.served_nodes.iter().rev() {
            let (url, port) = (format!("https://{}", served_node.address), served_node.address.port().to_string());
            for (name, value) in [("url", url), ("port", port)] {
                all.insert(key(&format!("{name}:{}", served_node.node)), value.clone());
                all.insert(key(name), value);
            }
        }
        all
    }

    /// Values that differ from run to run, with their names in the transcript.
    pub(crate) fn volatile_values(&self) -> Vec<(String, String)> {
        let ports =
            self.served_nodes.iter().map(|served_node| (served_node.address.port(), format!("{}{}", self.prefix, served_node.node)));
        let addresses = ports.flat_map(|(port, name)| {
            [(format!("{LOOPBACK}:{port}"), format!("<{name}>")), (format!(":{port}"), format!(":<port of {name}>"))]
        });
        addresses.chain([(self.fingerprint.clone(), format!("<{}fingerprint>", self.prefix))]).collect()
    }

    /// The file name and the certificate of its authority.
    pub(crate) fn authority(&self) -> (String, &str) {
        (self.authority_file(), &self.authority)
    }

    fn authority_file(&self) -> String {
        format!("{}ca.pem", self.prefix.replace(':', "-"))
    }

    /// The secrets of its tokens, in the order of the token ids.
    pub(crate) fn secrets(&self) -> &[String] {
        &self.secrets
    }
}

impl Drop for ScenarioLab {
    fn drop(&mut self) {
        drop(self.end.take());
        let thread_result = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || matches!(thread_result, Some(Ok(()))), "the lab did not end well");
        let violations = std::mem::take(&mut *self.violations.lock().expect("nobody panicked"));
        assert!(thread::panicking() || violations.is_empty(), "not as the table of the API says: {violations:#?}");
    }
}

type ApiViolations = Arc<Mutex<Vec<String>>>;

/// Checks every request and response against the API table, then calls the other watcher.
fn verifying_watcher(flavour: Flavour, watcher: Option<RequestWatcher>, violations: ApiViolations) -> RequestWatcher {
    Arc::new(move |passed: &ServedExchange<'_>| {
        let ServedExchange { request, answer, .. } = passed;
        let faults = [verify_request(flavour, request).err(), verify_response(flavour, request, answer).err()];
        violations.lock().expect("nobody panicked").extend(faults.into_iter().flatten());
        watcher.iter().for_each(|watcher| watcher(passed));
    })
}

type BoundScenarioLab = Result<(Vec<ServedNode>, SharedWorld), String>;

/// Serves until the other side of `ended` is dropped.
fn serve_lab(spec: &WorldSpec, options: ServerOptions, lab_sender: &mpsc::Sender<BoundScenarioLab>, end_receiver: oneshot::Receiver<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let server = match LabServer::bind(spec, options).await {
            Ok(server) => server,
            Err(error) => return lab_sender.send(Err(error.to_string())).expect("somebody waits"),
        };
        lab_sender.send(Ok((server.served_nodes().cloned().collect(), server.world()))).expect("somebody waits");
        let end = async { drop(end_receiver.await) };
        server.run(end).await;
    });
}
