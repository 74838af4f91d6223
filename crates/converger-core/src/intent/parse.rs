//! Parses requests: as people write them, with all faults at once, and in the stored form.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::parameter::{ACTIONS, ActionSpec, find_action};
use super::{ActionRequest, ActionTarget, CloneRequest, MigrationRequest, REQUEST_SCHEMA, RequestedAction};
use crate::action::{ClonedDisks, MigrationMode, Provisioning};
use crate::desired::{self, DesiredGuest, DesiredSetting, RestartPolicy, StopMethod};
use crate::document::{nearest_word, quote};
use crate::guest::{
    DayOne, DiskKey, DiskSize, EnvironmentName, GuestKind, GuestName, NodeName, RunState, SecretReference, SnapshotName, StorageName, Vmid,
};
use crate::normalize::{Field, FieldRole, TABLE, ValueShape, reaches_host};

/// A fault of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterFault {
    /// What is wrong, without a full stop.
    pub message: String,
    /// What to do about it.
    pub help: Option<String>,
    /// The parameter, if one is at fault.
    pub parameter: Option<Box<str>>,
}

impl ParameterFault {
    /// A fault of the request as a whole.
    #[must_use]
    pub fn with_help(message: String, help: String) -> Self {
        Self { message, help: Some(help), parameter: None }
    }

    fn of(parameter: &str, message: String) -> Self {
        Self { message, help: None, parameter: Some(parameter.into()) }
    }

    fn and_help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }
}

/// The longest description of a snapshot.
const DESCRIPTION_CHARS_MAX: usize = 8192;
/// The longest shutdown that can be asked for.
const TIMEOUT_SECS_MAX: u32 = 86_400;

const DISK_WANTED: &str = "a disk that this kind of guest can have, such as scsi0 or rootfs";
const SIZE_WANTED: &str = "an absolute size with its unit, such as 40GiB";

/// The attributes of a new guest outside the table of fields, with what each must be.
const ATTRIBUTES: [(&str, &str); 10] = [
    ("addresses", "`dhcp`, `dhcp6`, `auto` or addresses with prefix such as 10.0.0.5/24, at most one per family"),
    ("bridge", "the name of a bridge or virtual network, such as vmbr0"),
    ("ci-user", "the name of a user"),
    ("cpu", "a CPU type without flags, such as host or x86-64-v2-AES"),
    ("dns", "addresses of DNS servers, separated by commas"),
    ("gateway", "the address of a gateway, at most one per family"),
    ("mac", "the address of a network device, such as BC:24:11:00:00:01, and not a group address"),
    ("search-domain", "a domain name"),
    ("ssh-keys", "public SSH keys without options, one per line"),
    ("vlan", "a number from 1 to 4094"),
];

/// Those of them that only virtual machines have.
const VM_ATTRIBUTES: [&str; 3] = ["ci-user", "cpu", "ssh-keys"];

/// Parses the parameters of `vm.clone` for a guest whose managed fields were read already.
pub(crate) fn parse_clone(
    target: ActionTarget,
    parameters: &[(&str, &str)],
    settings: Box<[DesiredSetting]>,
) -> Result<CloneRequest, Vec<ParameterFault>> {
    let Some(spec) = find_action("vm.clone") else { return Err(vec![unknown_action("vm.clone")]) };
    match parse_parameters(spec, target, parameters, Some(settings))? {
        RequestedAction::Clone(clone) => Ok(*clone),
        _ => Err(Vec::new()),
    }
}

pub(super) fn parse_action(name: &str, target: ActionTarget, parameters: &[(&str, &str)]) -> Result<RequestedAction, Vec<ParameterFault>> {
    let Some(spec) = find_action(name) else { return Err(vec![unknown_action(name)]) };
    parse_parameters(spec, target, parameters, None)
}

/// Parses the parameters of an action. `settings` are the managed fields, if they were read already.
fn parse_parameters(
    spec: &'static ActionSpec,
    target: ActionTarget,
    parameters: &[(&str, &str)],
    settings: Option<Box<[DesiredSetting]>>,
) -> Result<RequestedAction, Vec<ParameterFault>> {
    let mut reader = ParameterReader { spec, target, parameters, settings, faults: Vec::new() };
    reader.check_names();
    let action = reader.read_action();
    match (action, reader.faults.is_empty()) {
        (Some(action), true) => Ok(action),
        _ => Err(reader.faults),
    }
}

/// The fault of a name that is no action.
#[must_use]
pub fn unknown_action(name: &str) -> ParameterFault {
    let names: Vec<&str> = ACTIONS.iter().map(|action| action.name).collect();
    // A part of a name is what people type first: `start`, `vm.snapshot`. A similar name is suggested only if no name contains the text.
    let containing: Vec<&str> = names.iter().copied().filter(|own| name.len() >= 4 && own.contains(name)).collect();
    let similar = if containing.is_empty() { nearest_word(name, &names).into_iter().collect() } else { containing };
    let help = match similar[..] {
        [] => "`converger action list` shows all actions".to_owned(),
        _ => format!("did you mean {}? `converger action list` shows all actions", join_names(&similar)),
    };
    ParameterFault::with_help(format!("{} is not an action", quote(name)), help)
}

fn join_names(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" or ")
}

struct ParameterReader<'p> {
    spec: &'static ActionSpec,
    target: ActionTarget,
    parameters: &'p [(&'p str, &'p str)],
    settings: Option<Box<[DesiredSetting]>>,
    faults: Vec<ParameterFault>,
}

impl<'p> ParameterReader<'p> {
    /// Reports names that the action does not have, names that are given twice, and required ones that are missing.
    fn check_names(&mut self) {
        let mut accepted: Vec<&str> = self.spec.parameters.iter().map(|parameter| parameter.name).collect();
        if self.spec.takes_fields() {
            accepted.extend(managed_fields(self.target.kind).map(Field::word));
        }
        let mut seen = BTreeSet::new();
        for (name, _) in self.parameters {
            if !accepted.contains(name) {
                let fault = self.unknown_parameter(name, &accepted);
                self.faults.push(fault);
            } else if !seen.insert(*name) {
                self.faults.push(ParameterFault::of(name, format!("parameter `{name}` is given twice")));
            }
        }
        for parameter in self.spec.parameters.iter().filter(|parameter| parameter.is_required && !seen.contains(parameter.name)) {
            let (name, value) = (parameter.name, parameter.value);
            let help = format!("add `{name}={value}`: {}", parameter.help);
            self.faults.push(ParameterFault::of(name, format!("`{}` needs parameter `{name}`", self.spec.name)).and_help(help));
        }
    }

    fn unknown_parameter(&self, name: &str, accepted: &[&str]) -> ParameterFault {
        if self.spec.takes_fields() && reaches_host(name) {
            let message = format!("{} reaches the host and cannot be written", quote(name));
            return ParameterFault::of(name, message).and_help("remove it; the administrator of the node sets such keys");
        }
        let message = format!("`{}` has no parameter {}", self.spec.name, quote(name));
        let help = match nearest_word(name, accepted) {
            Some(nearest) => format!("did you mean `{nearest}`?"),
            None if accepted.is_empty() => "it takes none".to_owned(),
            None => format!("it takes: {}", accepted.join(", ")),
        };
        ParameterFault::of(name, message).and_help(help)
    }

    fn find(&self, name: &str) -> Option<&'p str> {
        self.parameters.iter().find(|(own, _)| *own == name).map(|(_, value)| *value)
    }

    /// A parameter that must parse if it is given; a missing required one is reported by `check_names`.
    fn read<T>(&mut self, name: &str, wanted: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let text = self.find(name)?;
        let value = parse(text);
        if value.is_none() {
            self.faults.push(ParameterFault::of(name, format!("parameter `{name}` is {}, but must be {wanted}", quote(text))));
        }
        value
    }

    fn read_flag(&mut self, name: &str) -> bool {
        let parse = |text: &str| match text {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        };
        self.read(name, "`true` or `false`", parse).unwrap_or(false)
    }

    fn read_timeout(&mut self) -> u32 {
        let parse = |text: &str| text.parse().ok().filter(|secs| (1..=TIMEOUT_SECS_MAX).contains(secs));
        self.read("timeout", "a number of seconds from 1 to 86400", parse).unwrap_or(DesiredGuest::STOP_TIMEOUT_SECS)
    }

    fn read_node(&mut self) -> Option<NodeName> {
        self.read("node", "the name of a node", NodeName::new)
    }

    fn read_storage(&mut self) -> Option<StorageName> {
        self.read("storage", "the name of a storage", StorageName::new)
    }

    fn read_snapshot_name(&mut self) -> Option<SnapshotName> {
        let wanted = "a snapshot name: a letter, then letters, digits, `_` and `-`, 2 to 40 in total, and not a word that Proxmox reserves";
        self.read("name", wanted, SnapshotName::new)
    }

    fn read_action(&mut self) -> Option<RequestedAction> {
        Some(match self.spec.name {
            "vm.start" => RequestedAction::Start,
            "vm.stop" => RequestedAction::Stop,
            "vm.shutdown" => RequestedAction::Shutdown { timeout_secs: self.read_timeout() },
            "vm.reboot" => RequestedAction::Reboot { timeout_secs: self.read_timeout() },
            "vm.config.set" => RequestedAction::ConfigSet(self.read_written_settings()?),
            "vm.snapshot.create" => self.read_snapshot_create()?,
            "vm.snapshot.delete" => RequestedAction::SnapshotDelete { name: self.read_snapshot_name()? },
            "vm.snapshot.rollback" => RequestedAction::SnapshotRollback { name: self.read_snapshot_name()? },
            "vm.disk.grow" => self.read_disk_grow()?,
            "vm.migrate" => self.read_migrate()?,
            "vm.clone" => self.read_clone()?,
            _ => return None,
        })
    }

    fn read_snapshot_create(&mut self) -> Option<RequestedAction> {
        let (name, ram) = (self.read_snapshot_name(), self.read_flag("ram"));
        let is_plain = |text: &str| text.chars().count() <= DESCRIPTION_CHARS_MAX && !text.contains('\0');
        let parse = |text: &str| (is_plain(text) && text.trim_end() == text && !text.is_empty()).then(|| text.into());
        let description = self.read("description", "text of at most 8192 characters that does not end in a blank", parse);
        Some(RequestedAction::SnapshotCreate { name: name?, ram, description })
    }

    fn read_disk_grow(&mut self) -> Option<RequestedAction> {
        let kind = self.target.kind;
        let disk = self.read("disk", DISK_WANTED, |text| DiskKey::new(kind, text));
        let size = self.read("size", SIZE_WANTED, parse_size);
        Some(RequestedAction::DiskGrow { disk: disk?, size: size? })
    }

    fn read_migrate(&mut self) -> Option<RequestedAction> {
        let modes = [MigrationMode::Online, MigrationMode::Offline, MigrationMode::Restart];
        let find_mode = |text: &str| modes.into_iter().find(|mode| mode.word() == text);
        let mode = self.read("mode", "`online`, `offline` or `restart`", find_mode);
        let is_possible = match (self.target.kind, mode) {
            (GuestKind::Qemu, Some(MigrationMode::Restart)) => Err("a virtual machine is moved `online` or `offline`"),
            (GuestKind::Lxc, Some(MigrationMode::Online)) => Err("a container cannot be moved while it runs; `mode=restart` restarts it"),
            _ => Ok(()),
        };
        if let Err(why) = is_possible {
            self.faults.push(ParameterFault::of("mode", format!("parameter `mode` does not fit: {why}")));
        }
        let (local_disks, storage, node) = (self.read_flag("local-disks"), self.read_storage(), self.read_node());
        if storage.is_some() && !local_disks {
            let help = "add `local-disks=true` if disks on local storage are to be copied";
            self.faults.push(ParameterFault::of("storage", "parameter `storage` is for copied disks only".to_owned()).and_help(help));
        }
        Some(RequestedAction::Migrate(MigrationRequest { node: node?, mode, local_disks, storage }))
    }

    fn read_clone(&mut self) -> Option<RequestedAction> {
        let vmid = self.read("newid", "the id of a guest, from 100 to 999999999", |text| text.parse().ok().and_then(Vmid::new));
        if vmid == Some(self.target.vmid) {
            self.faults
                .push(ParameterFault::of("newid", format!("parameter `newid` is {}, which is the guest to be cloned", self.target.vmid)));
        }
        let name = self.read("name", "the name of a guest: letters, digits and `-`, in parts joined by dots", GuestName::new);
        let find_disks = |text: &str| [ClonedDisks::Full, ClonedDisks::Linked].into_iter().find(|disks| disks.word() == text);
        let disks = self.read("disks", "`full` or `linked`", find_disks);
        let (node, storage) = (self.read_node(), self.read_storage());
        if disks == Some(ClonedDisks::Linked) && storage.is_some() {
            let message = "parameter `storage` does not fit `disks=linked`: linked disks stay on the storage of the template";
            self.faults.push(ParameterFault::of("storage", message.to_owned()));
        }
        let pool = self.read("pool", "the name of a pool", |text| is_pool_name(text).then(|| text.into()));
        let (disk, disk_size) = (self.read_clone_disk(), self.read("disk-size", SIZE_WANTED, parse_size));
        let provisioning = self.read_provisioning();
        let start = self.read_flag("start");
        let (vmid, name, provisioning) = (vmid?, name?, provisioning?);
        let clone = CloneRequest { vmid, name, disks, node, storage, pool, provisioning, disk, disk_size, start };
        Some(RequestedAction::Clone(Box::new(clone)))
    }

    fn read_clone_disk(&mut self) -> Option<DiskKey> {
        let kind = self.target.kind;
        let disk = self.read("disk", DISK_WANTED, |text| DiskKey::new(kind, text));
        if disk.is_some() && self.find("disk-size").is_none() {
            let help = "add `disk-size=SIZE`";
            self.faults.push(ParameterFault::of("disk", "parameter `disk` is given without a size".to_owned()).and_help(help));
        }
        disk
    }

    /// What the new guest gets in its first config write.
    fn read_provisioning(&mut self) -> Option<Provisioning> {
        let kind = self.target.kind;
        let mut attributes = DayOne::default();
        for (name, wanted) in ATTRIBUTES {
            let Some(text) = self.find(name) else { continue };
            if kind == GuestKind::Lxc && VM_ATTRIBUTES.contains(&name) {
                self.faults.push(ParameterFault::of(name, format!("parameter `{name}` does not exist for containers")));
                continue;
            }
            if kind == GuestKind::Lxc && name == "mac" {
                let help = "Proxmox gives every container an address of its own, by which this program recognises it";
                self.faults.push(ParameterFault::of(name, "parameter `mac` cannot be given for containers".to_owned()).and_help(help));
                continue;
            }
            match attributes.clone().with(name, text) {
                Some(with) => attributes = with,
                None => self.faults.push(ParameterFault::of(name, format!("parameter `{name}` is {}, but must be {wanted}", quote(text)))),
            }
        }
        self.check_gateways(&attributes);
        let password = self.read_password();
        let fields = self.read_settings()?;
        Some(Provisioning { attributes, fields, kind, password })
    }

    fn check_gateways(&mut self, attributes: &DayOne) {
        let Some(gateways) = &attributes.gateway else { return };
        let fits = |gateway| attributes.addresses.as_ref().is_some_and(|addresses| addresses.fits_gateway(gateway));
        if let Some(gateway) = gateways.iter().find(|gateway| !fits(*gateway)) {
            let help = "add a fixed address of the same family to `addresses`, such as 10.0.0.5/24";
            self.faults.push(
                ParameterFault::of("gateway", format!("parameter `gateway` has {gateway}, but no fixed address uses it")).and_help(help),
            );
        }
    }

    /// A password by reference. The given text may be the password itself, so no message repeats it.
    fn read_password(&mut self) -> Option<SecretReference> {
        let text = self.find("password")?;
        if self.target.kind == GuestKind::Lxc {
            self.faults.push(ParameterFault::of("password", "parameter `password` does not exist for containers".to_owned()));
            return None;
        }
        let reference = SecretReference::new(text);
        if reference.is_none() {
            let message = "parameter `password` must name where the password is stored: `env:NAME`, `file:/PATH` or `credential:NAME`";
            let help = "put the password into a file that only this user can read, and give its absolute path";
            self.faults.push(ParameterFault::of("password", message.to_owned()).and_help(help));
        }
        reference
    }

    /// The fields to write; at least one.
    fn read_written_settings(&mut self) -> Option<Box<[DesiredSetting]>> {
        let settings = self.read_settings()?;
        if settings.is_empty() {
            let help = format!("add `KEY=VALUE` or `unset=KEY`; keys: {}", field_names(self.target.kind));
            self.faults.push(ParameterFault::with_help("`vm.config.set` is given nothing to write".to_owned(), help));
            return None;
        }
        Some(settings)
    }

    /// Adds the keys of `unset=`. A key that is also given a value would get one of both silently.
    fn read_unset_keys(&mut self, config: &mut Map<String, Value>) {
        let Some(text) = self.find("unset").filter(|_| self.spec.name == "vm.config.set") else { return };
        for key in text.split(',').map(str::trim) {
            if key.is_empty() {
                let help = format!("name the keys to remove, joined by commas; keys: {}", field_names(self.target.kind));
                self.faults.push(ParameterFault::of("unset", "parameter `unset` names no key".to_owned()).and_help(&help));
            } else if config.insert(key.to_owned(), Value::Null).is_some() {
                self.faults.push(ParameterFault::of("unset", format!("{} is given a value and in `unset`", quote(key))));
            }
        }
    }

    /// The managed fields that are given, through the parser of desired.yaml, so that both accept the same values.
    fn read_settings(&mut self) -> Option<Box<[DesiredSetting]>> {
        if let Some(settings) = self.settings.take() {
            return Some(settings);
        }
        let kind = self.target.kind;
        let mut config = Map::new();
        for (name, text) in self.parameters {
            if let Some(field) = Field::from_word(name).filter(|field| managed_fields(kind).any(|own| own == *field)) {
                config.insert((*name).to_owned(), declared_value(field, text));
            }
        }
        self.read_unset_keys(&mut config);
        if config.is_empty() {
            return Some(Box::default());
        }
        match desired::parse_settings(kind, config) {
            Ok(settings) => Some(settings),
            Err(faults) => {
                let told = |fault: &crate::document::Diagnostic| ParameterFault {
                    message: fault.message.clone(),
                    help: fault.help.clone(),
                    parameter: None,
                };
                self.faults.extend(faults.list().iter().map(told));
                None
            }
        }
    }
}

fn managed_fields(kind: GuestKind) -> impl Iterator<Item = Field> {
    TABLE.iter().filter(move |rule| rule.kind == kind && rule.role == FieldRole::Managed).map(|rule| rule.field)
}

fn field_names(kind: GuestKind) -> String {
    managed_fields(kind).map(Field::word).collect::<Vec<_>>().join(", ")
}

/// A value of `KEY=VALUE` as desired.json writes it.
fn declared_value(field: Field, text: &str) -> Value {
    let number = |text: &str| text.parse::<u64>().map_or_else(|_| Value::from(text), Value::from);
    let words = |text: &str| text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(Value::from).collect::<Value>();
    match field.shape() {
        ValueShape::Flag => text.parse::<bool>().map_or_else(|_| Value::from(text), Value::from),
        ValueShape::Count => number(text),
        ValueShape::Tags | ValueShape::Boot => words(text),
        ValueShape::Startup => {
            let parts = text.split(',').filter_map(|part| part.split_once('='));
            let parts: Map<String, Value> = parts.map(|(key, value)| (key.trim().to_owned(), number(value.trim()))).collect();
            Value::Object(parts)
        }
        ValueShape::Mib | ValueShape::Thousandths | ValueShape::Text | ValueShape::Features => Value::from(text),
    }
}

/// A size with a unit: `40GiB` or `40G`.
fn parse_size(text: &str) -> Option<DiskSize> {
    let short = text.strip_suffix("iB").unwrap_or(text);
    short.ends_with(|last: char| last.is_ascii_alphabetic()).then(|| DiskSize::parse(short))?
}

fn is_pool_name(text: &str) -> bool {
    let is_part = |part: &str| {
        let fits = part.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
        !part.is_empty() && fits && part != "." && part != ".."
    };
    text.len() <= 200 && text.split('/').all(is_part)
}

/// What an action declares of the guest that gets the steps. The planner compares it with the observation as it does for desired.yaml.
pub(super) fn declare_guest(target: ActionTarget, action: &RequestedAction) -> DesiredGuest {
    let mut guest = DesiredGuest {
        vmid: target.vmid,
        kind: target.kind,
        name: None,
        state: None,
        config: Box::new([]),
        restart: RestartPolicy::Never,
        after: Box::new([]),
        stop: StopMethod::Shutdown,
        stop_timeout_secs: DesiredGuest::STOP_TIMEOUT_SECS,
        identity: None,
        from: None,
    };
    match action {
        RequestedAction::Start => guest.state = Some(RunState::Running),
        RequestedAction::Shutdown { timeout_secs } => {
            (guest.state, guest.stop_timeout_secs) = (Some(RunState::Stopped), *timeout_secs);
        }
        RequestedAction::Stop => (guest.state, guest.stop) = (Some(RunState::Stopped), StopMethod::Hard),
        RequestedAction::ConfigSet(settings) => guest.config = settings.clone(),
        RequestedAction::Clone(clone) => (guest.vmid, guest.name) = (clone.vmid, Some(clone.name.clone())),
        RequestedAction::Reboot { .. }
        | RequestedAction::SnapshotCreate { .. }
        | RequestedAction::SnapshotDelete { .. }
        | RequestedAction::SnapshotRollback { .. }
        | RequestedAction::DiskGrow { .. }
        | RequestedAction::Migrate(_) => {}
    }
    guest
}

/// Whether these bytes claim to be a request. A desired state has no `schema`.
pub(super) fn is_request(bytes: &[u8]) -> bool {
    serde_json::from_slice::<Value>(bytes).is_ok_and(|value| value.get("schema").is_some())
}

/// Parses a request in its canonical form.
pub(super) fn parse_normal(bytes: &[u8]) -> Result<ActionRequest, String> {
    let value: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let text = |key: &str| value.get(key).and_then(Value::as_str).ok_or_else(|| format!("it has no `{key}`"));
    if text("schema")? != REQUEST_SCHEMA {
        return Err(format!("its schema is not {REQUEST_SCHEMA}"));
    }
    let environment = EnvironmentName::new(text("environment")?).ok_or("its environment is not a name")?;
    let kind = value.pointer("/target/kind").and_then(Value::as_str);
    let kind = GuestKind::ALL.into_iter().find(|own| Some(own.word()) == kind).ok_or("its target has no kind")?;
    let vmid = value.pointer("/target/vmid").and_then(Value::as_u64).and_then(Vmid::new).ok_or("its target has no id")?;
    let target = ActionTarget { kind, vmid };
    let params = value.get("params").and_then(Value::as_object).ok_or("it has no parameters")?;
    let name = text("action")?;
    let spec = find_action(name).ok_or("it has an unknown action")?;
    let takes_config = matches!(name, "vm.clone" | "vm.config.set");
    let config = params.get("config").and_then(Value::as_object).filter(|_| takes_config);
    let settings = config.map(|config| desired::parse_normal_settings(kind, config)).transpose()?;
    let texts = params.iter().filter(|(key, _)| settings.is_none() || *key != "config");
    let pairs = texts.map(|(key, value)| Some((key.as_str(), value.as_str()?))).collect::<Option<Vec<_>>>();
    let pairs = pairs.ok_or("a parameter is not text")?;
    let first = |faults: Vec<ParameterFault>| faults.into_iter().next().map(|fault| fault.message).unwrap_or_default();
    let action = parse_parameters(spec, target, &pairs, settings).map_err(first)?;
    let request = ActionRequest::new(environment, target, action);
    match serde_json::to_vec(&request) {
        Ok(written) if written == bytes => Ok(request),
        _ => Err("it is not in canonical form".to_owned()),
    }
}
