//! Read access to one environment: observes and plans. It has no lock, no store writer and no actuator, so it cannot change anything (G5).
//!
//! Every command that plans uses it; `apply` continues in [`crate::environment`].

use std::sync::Arc;

use converger_adapters::ObserveError;
use converger_adapters::proxmox::observe::ReadSet;
use converger_adapters::proxmox::{ObservationReport, ProxmoxObserver};
use converger_adapters::replay::RecordingObserver;
use converger_core::apply::{OperationHistory, births, own_writes};
use converger_core::approve::ApprovalMode;
use converger_core::artifact::Provenance;
use converger_core::desired::{Desired, DesiredGuest, GuestSelection};
use converger_core::failure::FailureCode;
use converger_core::guest::{ClusterIdentity, EnvironmentName, RunState, Vmid};
use converger_core::intent::{Intent, RequestedAction};
use converger_core::observe::{ObservedStatus, Scoped};
use converger_core::plan;
use converger_core::policy::{BlockedBy, GuestBlock};
use converger_core::safety::{self, Judged};
use converger_store::StoreConditions;

use crate::config::{Config, ConnectionConfig};
use crate::error::RuntimeError;
use crate::event::{EventSink, RunEvent};
use crate::host::Host;
use crate::state_dir::run_blocking;
use crate::{cluster_identity, state_dir};

/// Where an observation comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObservationSource {
    /// The environment itself.
    Live,
    /// A recorded observation.
    Recording(RecordingObserver),
}

/// An observation in scope, and its source.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The observation.
    pub observation: Scoped,
    /// Live or recorded.
    pub provenance: Provenance,
    /// The cluster, if it was read and could be identified.
    pub cluster: Option<ClusterIdentity>,
}

/// A judged plan.
#[derive(Debug)]
pub struct Planned {
    /// The plan with its judgement.
    pub judged: Judged,
    /// Where the limits come from, as text for people.
    pub origin: String,
    /// Where the observation comes from.
    pub provenance: Provenance,
}

/// One environment for reading. Cheap to clone.
///
/// It can change nothing (G5). It does not give away its connection, which an actuator can be made of:
///
/// ```compile_fail,E0624
/// fn reach_actuator(reader: &converger_runtime::EnvironmentReader) {
///     let _ = reader.connect();
/// }
/// ```
///
/// It has no actuator:
///
/// ```compile_fail,E0599
/// fn reach_actuator(reader: &converger_runtime::EnvironmentReader) {
///     let _ = reader.actuator();
/// }
/// ```
///
/// It has no store, so nothing can be written through it. An [`Environment`](crate::Environment) has one:
///
/// ```compile_fail,E0599
/// fn reach_store(reader: &converger_runtime::EnvironmentReader) {
///     let _ = reader.state();
/// }
/// ```
///
/// ```
/// fn reach_store(environment: &converger_runtime::Environment) {
///     let _ = environment.state().store();
/// }
/// ```
#[derive(Clone)]
pub struct EnvironmentReader {
    name: EnvironmentName,
    config: Arc<Config>,
    host: Arc<Host>,
    events: Arc<dyn EventSink>,
}

impl EnvironmentReader {
    /// A reader of this environment with this configuration on this host. It reads nothing yet.
    #[must_use]
    pub fn new(name: EnvironmentName, config: Arc<Config>, host: Host, events: Arc<dyn EventSink>) -> Self {
        Self { name, config, host: Arc::new(host), events }
    }

    /// The same environment and events under another configuration.
    #[must_use]
    pub(crate) fn with_config(&self, config: Arc<Config>) -> Self {
        Self { config, ..self.clone() }
    }

    /// The same environment with another receiver of its events.
    #[must_use]
    pub(crate) fn with_events(self, events: Arc<dyn EventSink>) -> Self {
        Self { events, ..self }
    }

    /// The environment.
    #[must_use]
    pub fn name(&self) -> &EnvironmentName {
        &self.name
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn host(&self) -> &Arc<Host> {
        &self.host
    }

    pub(crate) fn events(&self) -> &Arc<dyn EventSink> {
        &self.events
    }

    /// Who approves plans of this environment.
    ///
    /// # Errors
    /// converger.toml does not say so; there is no default.
    pub fn approval_mode(&self) -> Result<ApprovalMode, RuntimeError> {
        let name = &self.name;
        let mode = self.connection()?.mode;
        mode.map(Into::into).ok_or_else(|| {
            RuntimeError::input(format!("environment `{name}` has no approval mode")).with_code(FailureCode::ConfigInvalid).with_help(
                format!(
                    "set `mode = \"solo\"` (you approve your own plans) or `mode = \"shared\"` (someone else approves) in \
                 `[environments.{name}]` of converger.toml"
                ),
            )
        })
    }

    pub(crate) fn connection(&self) -> Result<&ConnectionConfig, RuntimeError> {
        self.config.connection.as_ref().ok_or_else(|| unconfigured_error(&self.name))
    }

    /// Reads the selected guests once (G4). A guest that cannot be read is unknown with a cause, which is not an error (G1, G2).
    ///
    /// A recording is used as it is: `read_set` does not apply to it.
    ///
    /// # Errors
    /// There is no observation at all.
    pub async fn observe(
        &self,
        selection: &GuestSelection,
        read_set: ReadSet,
        source: &ObservationSource,
    ) -> Result<Observed, RuntimeError> {
        match source {
            ObservationSource::Live => {
                let report = self.observe_live(&self.connect()?.with_needs(read_set), selection).await?;
                Ok(Observed { observation: report.reading.clone(), provenance: Provenance::Live, cluster: None })
            }
            ObservationSource::Recording(replay) => {
                let observation = replay.observe_selected(&self.name, selection)?;
                Ok(Observed { observation, provenance: Provenance::Replay, cluster: None })
            }
        }
    }

    /// Lists every guest that the token can see, by the lists of the cluster and of its nodes: no request is about a single guest.
    ///
    /// # Errors
    /// There is no observation at all.
    pub async fn list_guests(&self) -> Result<Arc<ObservationReport>, RuntimeError> {
        self.observe_live(&self.connect()?.with_needs(ReadSet::Lists), &GuestSelection::all()).await
    }

    /// The observer of the environment. No request is sent yet.
    ///
    /// # Errors
    /// The environment is not configured, or its secret or certificate cannot be read.
    pub(crate) fn connect(&self) -> Result<ProxmoxObserver, RuntimeError> {
        let settings = self.connection()?.resolve_settings(&self.name).map_err(|fault| {
            let help = format!("{} (`converger explain {}` says more)", ConnectionConfig::REMEDY, FailureCode::ClientSetup.word());
            RuntimeError::input(fault).with_code(FailureCode::ClientSetup).with_help(help)
        })?;
        Ok(ProxmoxObserver::new(settings).map_err(|error| ObserveError::Proxmox(Box::new(error)))?)
    }

    pub(crate) async fn observe_live(
        &self,
        proxmox: &ProxmoxObserver,
        selection: &GuestSelection,
    ) -> Result<Arc<ObservationReport>, RuntimeError> {
        let endpoints = proxmox.endpoint_names().into_iter().map(str::to_owned).collect();
        self.events.publish(RunEvent::ObservationStarted { environment: self.name.clone(), endpoints });
        let advanced = |read: u64, total: u64| self.events.publish(RunEvent::ObservationAdvanced { read, total });
        match proxmox.take_report_with_progress(selection, &advanced).await {
            Ok(report) => {
                let report = Arc::new(report);
                self.events.publish(RunEvent::ObservationTaken(Arc::clone(&report)));
                Ok(report)
            }
            Err(error) => {
                self.events.publish(RunEvent::ObservationFailed);
                Err(ObserveError::Proxmox(Box::new(error)).into())
            }
        }
    }

    /// Plans and judges without recording anything.
    ///
    /// # Errors
    /// There is no observation at all, or the store cannot tell what is held and frozen.
    pub async fn plan(&self, intent: Intent, source: &ObservationSource) -> Result<Planned, RuntimeError> {
        let mut conditions = match source {
            ObservationSource::Live => {
                let (config, name) = (Arc::clone(&self.config), self.name.clone());
                run_blocking(move || state_dir::peek_conditions(&config, &name)).await?
            }
            // A recording gives the same plan on every machine, so the local state directory must not matter (G7).
            ObservationSource::Recording(_) => StoreConditions::default(),
        };
        // An apply settles open operations before it plans. The plan shown here is the one that it would make afterwards.
        let open: Vec<OperationHistory> = conditions.unsettled.extract_if(.., |history| history.progress().is_open()).collect();
        if !open.is_empty() {
            self.events.publish(RunEvent::OperationsOpen(open.into()));
        }
        let observed = match source {
            ObservationSource::Live => {
                let proxmox = self.connect()?.with_needs(intent.read_set());
                let report = self.observe_live(&proxmox, &intent.scope().into()).await?;
                // A proposal is bound to its cluster, so that an approval cannot be used elsewhere (G15).
                let identity = proxmox.identity(&report).await;
                if let Some(conflict) = cluster_identity::describe_conflict(&conditions.names, &self.name, &identity) {
                    self.events.publish(RunEvent::Note(conflict));
                }
                Observed { observation: report.reading.clone(), provenance: Provenance::Live, cluster: identity.ok() }
            }
            ObservationSource::Recording(_) => self.observe(&intent.scope().into(), intent.read_set(), source).await?,
        };
        let remembered = find_remembered_guests(&intent, &observed.observation);
        if observed.provenance == Provenance::Live && !remembered.is_empty() {
            let (config, name) = (Arc::clone(&self.config), self.name.clone());
            conditions.writes = run_blocking(move || state_dir::peek_operations(&config, &name, &remembered)).await?;
        }
        Ok(self.judge(intent, observed, &conditions))
    }

    /// Plans on an observation and judges the plan. Pure, if the host has a fixed machine identity.
    #[must_use]
    pub fn judge(&self, intent: Intent, observed: Observed, conditions: &StoreConditions) -> Planned {
        let config = &*self.config;
        let mut circumstances = config.circumstances.clone();
        circumstances.cluster = observed.cluster;
        if let Some(freeze) = &conditions.freeze {
            circumstances.freeze = Some(format!("{} (by {})", freeze.reason, freeze.by));
        }
        let rules = config.rules.clone();
        let rules = match observed.provenance {
            Provenance::Live => {
                circumstances.epoch = conditions.later_epoch;
                circumstances.holds = guest_blocks(conditions);
                let own_writes = own_writes(&conditions.writes, &observed.observation);
                let births = births(&conditions.writes);
                rules.with_machine(self.host.machine_identity()).with_own_writes(own_writes).with_births(births)
            }
            Provenance::Replay => rules,
        };
        let plan = plan::plan(intent, Arc::new(observed.observation), Arc::new(rules));
        let judged = safety::judge(plan, config.limits, circumstances);
        Planned { judged, origin: config.origin.clone(), provenance: observed.provenance }
    }
}

/// Guests whose plan depends on what the journal has about them: those with undeclared pending changes, which this program may have made,
/// those that would be started, which it may have
/// cloned and not provisioned yet, and those that it makes: the new guest of a clone, and guests that are declared with `from`.
pub(crate) fn find_remembered_guests(intent: &Intent, observation: &Scoped) -> Vec<Vmid> {
    let desired = intent.guests();
    let mut found = find_undeclared_pending(desired, observation);
    let is_stopped = |vmid| observation.find(vmid).is_some_and(|row| row.status == ObservedStatus::Known(RunState::Stopped));
    let is_started = |guest: &&DesiredGuest| guest.state == Some(RunState::Running) && is_stopped(guest.vmid);
    found.extend(desired.guests().iter().filter(is_started).map(|guest| guest.vmid));
    let is_made = |guest: &&DesiredGuest| guest.from.is_some();
    found.extend(desired.guests().iter().filter(is_made).map(|guest| guest.vmid));
    if intent.request().is_some_and(|request| matches!(request.action(), RequestedAction::Clone(_))) {
        found.extend(desired.guests().iter().map(|guest| guest.vmid));
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Guests with undeclared pending changes. The journal tells whether this program made them.
fn find_undeclared_pending(desired: &Desired, observation: &Scoped) -> Vec<Vmid> {
    let has_undeclared = |guest: &&DesiredGuest| {
        let pending = observation.find(guest.vmid).and_then(|row| row.pending.as_ref().into_option());
        let is_declared = |key: &str| guest.config.iter().any(|setting| setting.field.word() == key);
        pending.is_some_and(|pending| pending.iter().any(|entry| !is_declared(entry.key())))
    };
    desired.guests().iter().filter(has_undeclared).map(|guest| guest.vmid).collect()
}

/// Guests whose steps are refused: a person holds them, or an operation on them is in flight or unresolved.
fn guest_blocks(conditions: &StoreConditions) -> Vec<GuestBlock> {
    let held = conditions.holds.iter().map(|hold| {
        let by = BlockedBy::Person { by: hold.by.to_string(), reason: hold.reason.to_string() };
        GuestBlock { vmid: hold.vmid, by }
    });
    let unsettled = conditions.unsettled.iter().flat_map(|history| {
        let operation = &history.operation;
        let block = |vmid| GuestBlock { vmid, by: BlockedBy::Operation(operation.id.as_str().to_owned()) };
        operation.occupied_guests().map(block)
    });
    held.chain(unsettled).collect()
}

/// An example of how to configure an environment, as a remedy.
#[must_use]
pub fn configuration_example(environment: &str) -> String {
    format!(
        "configure it in converger.toml:\n  [environments.{environment}]\n  url = \"https://pve1.example:8006\"\n  \
         token = \"converger@pve!main\"\n  secret = {{ env = \"PVE_SECRET\" }}"
    )
}

/// The error of an environment without a connection in converger.toml.
#[must_use]
pub fn unconfigured_error(environment: &EnvironmentName) -> RuntimeError {
    RuntimeError::input(format!("environment `{environment}` has no connection configured"))
        .with_code(FailureCode::EnvironmentUnconfigured)
        .with_help(configuration_example(environment.as_str()))
}
