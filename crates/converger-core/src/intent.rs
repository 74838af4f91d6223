//! What a run is asked for: a desired state, or one requested action on one guest. Both lead to the same kind of plan.
//!
//! Each intent has a canonical form, which is stored and hashed. A desired state is derived again from every observation; a request is
//! executed at most once.
//!
//! Must not depend on observations, plans or how a request arrives.

mod needs;
mod parameter;
mod parse;

use std::io;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::action::{ClonedDisks, MigrationMode, Provisioning};
use crate::artifact::Digest;
use crate::desired::{self, Desired, DesiredSetting, Scope, SettingsRow};
use crate::guest::{DiskKey, DiskSize, EnvironmentName, GuestKind, GuestName, NodeName, SnapshotName, StorageName, Vmid};
use crate::observe::ReadSet;

pub use parameter::{ACTIONS, ActionParameter, ActionSpec, find_action};
pub(crate) use parse::parse_clone;
pub use parse::{ParameterFault, unknown_action};

/// Schema id of a stored request.
pub const REQUEST_SCHEMA: &str = "converger.request/1";

/// What a run is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Guests are to be as declared.
    Desired(Arc<Desired>),
    /// One action is to be executed, once.
    Request(Arc<ActionRequest>),
}

/// One action on one guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActionRequest {
    environment: EnvironmentName,
    target: ActionTarget,
    action: RequestedAction,
    /// The guest that gets the steps, with what the action declares of it.
    guests: Arc<Desired>,
}

/// The guest that an action is requested for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ActionTarget {
    /// Its kind.
    pub kind: GuestKind,
    /// Its id.
    pub vmid: Vmid,
}

/// An action with its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestedAction {
    /// `vm.start`.
    Start,
    /// `vm.shutdown`.
    Shutdown {
        /// Maximal duration in seconds.
        timeout_secs: u32,
    },
    /// `vm.stop`.
    Stop,
    /// `vm.reboot`.
    Reboot {
        /// Maximal duration of the shutdown in seconds.
        timeout_secs: u32,
    },
    /// `vm.config.set`, in field order.
    ConfigSet(Box<[DesiredSetting]>),
    /// `vm.snapshot.create`.
    SnapshotCreate {
        /// The name of the snapshot.
        name: SnapshotName,
        /// Whether memory is saved too.
        ram: bool,
        /// Its description.
        description: Option<Box<str>>,
    },
    /// `vm.snapshot.delete`.
    SnapshotDelete {
        /// The name of the snapshot.
        name: SnapshotName,
    },
    /// `vm.snapshot.rollback`.
    SnapshotRollback {
        /// The name of the snapshot.
        name: SnapshotName,
    },
    /// `vm.disk.grow`.
    DiskGrow {
        /// The disk.
        disk: DiskKey,
        /// Its new size.
        size: DiskSize,
    },
    /// `vm.migrate`.
    Migrate(MigrationRequest),
    /// `vm.clone`.
    Clone(Box<CloneRequest>),
}

/// The parameters of `vm.migrate`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationRequest {
    /// The node to move to.
    pub node: NodeName,
    /// How; by the run-state of the guest if it is not given.
    pub mode: Option<MigrationMode>,
    /// Whether disks on local storage are copied to the other node.
    pub local_disks: bool,
    /// The storage for them.
    pub storage: Option<StorageName>,
}

/// The parameters of `vm.clone`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloneRequest {
    /// The id of the new guest.
    pub vmid: Vmid,
    /// Its name.
    pub name: GuestName,
    /// How its disks are made; linked for a template and full otherwise if it is not given.
    pub disks: Option<ClonedDisks>,
    /// The node; that of the source if it is not given.
    pub node: Option<NodeName>,
    /// The storage of its disks.
    pub storage: Option<StorageName>,
    /// The pool that it becomes a member of.
    pub pool: Option<Box<str>>,
    /// What it gets in its first config write.
    pub provisioning: Provisioning,
    /// The disk that grows; the one that it boots from if it is not given.
    pub disk: Option<DiskKey>,
    /// The size of that disk; that of the source if it is not given.
    pub disk_size: Option<DiskSize>,
    /// Whether it is started at the end.
    pub start: bool,
}

impl RequestedAction {
    /// The name of the action.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Start => "vm.start",
            Self::Shutdown { .. } => "vm.shutdown",
            Self::Stop => "vm.stop",
            Self::Reboot { .. } => "vm.reboot",
            Self::ConfigSet(_) => "vm.config.set",
            Self::SnapshotCreate { .. } => "vm.snapshot.create",
            Self::SnapshotDelete { .. } => "vm.snapshot.delete",
            Self::SnapshotRollback { .. } => "vm.snapshot.rollback",
            Self::DiskGrow { .. } => "vm.disk.grow",
            Self::Migrate(_) => "vm.migrate",
            Self::Clone(_) => "vm.clone",
        }
    }
}

impl ActionRequest {
    /// Parses a request as a person writes it: the name of an action, and its parameters as text.
    ///
    /// # Errors
    /// All faults of the request.
    pub fn parse<'p>(
        environment: EnvironmentName,
        action: &str,
        target: ActionTarget,
        parameters: impl IntoIterator<Item = (&'p str, &'p str)>,
    ) -> Result<Self, Vec<ParameterFault>> {
        let parameters: Vec<(&str, &str)> = parameters.into_iter().collect();
        parse::parse_action(action, target, &parameters).map(|action| Self::new(environment, target, action))
    }

    fn new(environment: EnvironmentName, target: ActionTarget, action: RequestedAction) -> Self {
        let guests = Arc::new(Desired::for_guest(environment.clone(), parse::declare_guest(target, &action)));
        Self { environment, target, action, guests }
    }

    /// The guest that the action is requested for.
    #[must_use]
    pub fn target(&self) -> ActionTarget {
        self.target
    }

    /// The action.
    #[must_use]
    pub fn action(&self) -> &RequestedAction {
        &self.action
    }
}

impl Intent {
    /// The environment.
    #[must_use]
    pub fn environment(&self) -> &EnvironmentName {
        match self {
            Self::Desired(desired) => desired.environment(),
            Self::Request(request) => &request.environment,
        }
    }

    /// The guests that may get steps, with what is declared of them.
    #[must_use]
    pub fn guests(&self) -> &Arc<Desired> {
        match self {
            Self::Desired(desired) => desired,
            Self::Request(request) => &request.guests,
        }
    }

    /// The guests that are read: those that may get steps, and those that a step depends on.
    #[must_use]
    pub fn scope(&self) -> Scope {
        let scope = self.guests().scope();
        match self {
            Self::Desired(desired) => desired.templates().fold(scope, |scope, template| scope.with_ids([template])),
            Self::Request(request) => scope.with_ids([request.target.vmid]),
        }
    }

    /// What must be read of them.
    #[must_use]
    pub fn read_set(&self) -> ReadSet {
        match self {
            Self::Desired(desired) => needs::declared_read_set(desired),
            Self::Request(request) => needs::read_set(request),
        }
    }

    /// The request, if it is one.
    #[must_use]
    pub fn request(&self) -> Option<&ActionRequest> {
        match self {
            Self::Desired(_) => None,
            Self::Request(request) => Some(request),
        }
    }

    /// The word for its kind.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Desired(_) => "desired",
            Self::Request(_) => "request",
        }
    }

    /// The digest of its canonical form.
    ///
    /// # Errors
    /// See [`Digest::of_value`].
    pub fn digest(&self) -> io::Result<Digest> {
        Digest::of_value(self)
    }

    /// Parses an intent in its canonical form.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn parse_normal(bytes: &[u8]) -> Result<Self, String> {
        if parse::is_request(bytes) {
            return parse::parse_normal(bytes).map(|request| Self::Request(Arc::new(request)));
        }
        let first = |faults: crate::document::Diagnostics| faults.list().first().map(|fault| fault.message.clone()).unwrap_or_default();
        desired::parse_normal(bytes).map(|desired| Self::Desired(Arc::new(desired))).map_err(first)
    }
}

impl From<Arc<Desired>> for Intent {
    fn from(desired: Arc<Desired>) -> Self {
        Self::Desired(desired)
    }
}

impl From<Desired> for Intent {
    fn from(desired: Desired) -> Self {
        Self::Desired(Arc::new(desired))
    }
}

impl From<ActionRequest> for Intent {
    fn from(request: ActionRequest) -> Self {
        Self::Request(Arc::new(request))
    }
}

impl Serialize for Intent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Desired(desired) => desired.serialize(serializer),
            Self::Request(request) => request.serialize(serializer),
        }
    }
}

impl Serialize for ActionRequest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap as _;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("action", self.action.name())?;
        map.serialize_entry("environment", &self.environment)?;
        map.serialize_entry("params", &RequestParams(&self.action))?;
        map.serialize_entry("schema", REQUEST_SCHEMA)?;
        map.serialize_entry("target", &self.target)?;
        map.end()
    }
}

/// The parameters in canonical form: those with a value, sorted by name.
struct RequestParams<'r>(&'r RequestedAction);

impl Serialize for RequestParams<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let settings = match self.0 {
            RequestedAction::ConfigSet(settings) => Some(&**settings),
            RequestedAction::Clone(clone) if !clone.provisioning.fields.is_empty() => Some(&*clone.provisioning.fields),
            _ => None,
        };
        let mut params: Vec<(&str, ParamRow<'_>)> =
            parameter_texts(self.0).into_iter().map(|(name, text)| (name, ParamRow::Text(text))).collect();
        params.extend(settings.map(|settings| ("config", ParamRow::Settings(SettingsRow(settings)))));
        params.sort_by_key(|(name, _)| *name);
        serializer.collect_map(params)
    }
}

/// A parameter in canonical form.
#[derive(Serialize)]
#[serde(untagged)]
enum ParamRow<'r> {
    Text(String),
    /// All managed fields that are given.
    Settings(SettingsRow<'r>),
}

/// The parameters as text. Parsing them gives the same action.
fn parameter_texts(action: &RequestedAction) -> Vec<(&'static str, String)> {
    fn entry<T>(name: &'static str, value: Option<&T>, text: impl FnOnce(&T) -> String) -> Option<(&'static str, String)> {
        value.map(|value| (name, text(value)))
    }
    match action {
        RequestedAction::Start | RequestedAction::Stop | RequestedAction::ConfigSet(_) => Vec::new(),
        RequestedAction::Shutdown { timeout_secs } | RequestedAction::Reboot { timeout_secs } => {
            vec![("timeout", timeout_secs.to_string())]
        }
        RequestedAction::SnapshotCreate { name, ram, description } => entry("description", description.as_ref(), |text| text.to_string())
            .into_iter()
            .chain([("name", name.as_str().to_owned()), ("ram", ram.to_string())])
            .collect(),
        RequestedAction::SnapshotDelete { name } | RequestedAction::SnapshotRollback { name } => vec![("name", name.as_str().to_owned())],
        RequestedAction::DiskGrow { disk, size } => vec![("disk", disk.as_str().to_owned()), ("size", size.to_string())],
        RequestedAction::Migrate(MigrationRequest { node, mode, local_disks, storage }) => [
            Some(("local-disks", local_disks.to_string())),
            entry("mode", mode.as_ref(), |mode| mode.word().to_owned()),
            Some(("node", node.as_str().to_owned())),
            entry("storage", storage.as_ref(), |storage| storage.as_str().to_owned()),
        ]
        .into_iter()
        .flatten()
        .collect(),
        RequestedAction::Clone(clone) => {
            let own = [
                Some(("name", clone.name.as_str().to_owned())),
                Some(("newid", clone.vmid.to_string())),
                clone.start.then(|| ("start", "true".to_owned())),
            ];
            own.into_iter().flatten().chain(origin_texts(clone)).collect()
        }
    }
}

/// The parameters of a clone that desired.yaml writes below `from`, in no order.
pub(crate) fn origin_texts(clone: &CloneRequest) -> impl Iterator<Item = (&'static str, String)> + use<> {
    let CloneRequest { disks, node, storage, pool, provisioning, disk, disk_size, .. } = clone;
    let own = [
        disk.as_ref().map(|disk| ("disk", disk.as_str().to_owned())),
        disk_size.as_ref().map(|size| ("disk-size", size.to_string())),
        disks.as_ref().map(|disks| ("disks", disks.word().to_owned())),
        node.as_ref().map(|node| ("node", node.as_str().to_owned())),
        provisioning.password.as_ref().map(|password| ("password", password.to_string())),
        pool.as_ref().map(|pool| ("pool", pool.to_string())),
        storage.as_ref().map(|storage| ("storage", storage.as_str().to_owned())),
    ];
    own.into_iter().flatten().chain(provisioning.attributes.entries())
}

#[cfg(test)]
mod tests;
