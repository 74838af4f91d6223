//! converger.toml: environments, protection, limits, how much at once and for how long, and freeze. Strict: an unknown key is an error, because
//! a misspelt limit is none.

mod connection;
mod fault;
mod snapshot;

use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use converger_core::failure::FailureCode;
use converger_core::guest::{EnvironmentName, Vmid, is_tag};
use converger_core::policy::{Circumstances, Limits, Rules};
use converger_engine::operation::Patience;
use converger_engine::schedule::ConcurrencyLimits as AtOnce;
use serde::Deserialize;
use toml::Spanned;

use crate::files;

use fault::ConfigFault;
pub use snapshot::parse_config_snapshot;

pub use connection::{ClockSetting, ConnectionConfig, ONE_NAME_PER_CLUSTER};
pub use fault::ConfigError;

/// The file that is read where none is named.
const DEFAULT_FILE_NAME: &str = "converger.toml";

const CONFIG_BYTES_MAX: usize = 1 << 20;

/// What a run is held to.
pub struct Config {
    /// Where the limits come from, for people.
    pub origin: String,
    /// The protection rules.
    pub rules: Rules,
    /// The limits of one run.
    pub limits: Limits,
    /// How much is under way at once.
    pub at_once: AtOnce,
    /// How long is waited for what was begun.
    pub patience: Patience,
    /// The freeze that the file sets.
    pub circumstances: Circumstances,
    /// How the environment is reached, where that is written.
    pub connection: Option<ConnectionConfig>,
    /// Where what must survive the program is kept, where that is written.
    pub state: Option<PathBuf>,
    /// The file on other storage that keeps the last checkpoint of the ledger, where that is written.
    pub witness: Option<PathBuf>,
    /// All of it as it was understood, in JSON and without remarks: no secret stands in what is understood.
    pub snapshot: Vec<u8>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    #[serde(default)]
    environments: BTreeMap<String, Spanned<connection::EnvironmentTable>>,
    limits: Option<LimitsTable>,
    #[serde(default)]
    apply: ApplyTable,
    #[serde(default)]
    freeze: FreezeTable,
    #[serde(default)]
    store: StoreTable,
    #[serde(default)]
    ledger: LedgerTable,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoreTable {
    directory: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LedgerTable {
    witness: Option<Spanned<PathBuf>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProtectTable {
    #[serde(default)]
    ids: Vec<Spanned<u64>>,
    #[serde(default)]
    names: Vec<Spanned<String>>,
    #[serde(default)]
    tags: Vec<Spanned<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsTable {
    guests: Option<u32>,
    percent: Option<Spanned<u32>>,
    stops: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ApplyTable {
    at_once: Option<Spanned<u64>>,
    at_once_per_node: Option<Spanned<u64>>,
    task_timeout: Option<Spanned<u64>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FreezeTable {
    on: Option<Spanned<bool>>,
    reason: Option<String>,
}

/// Reads the named file, or converger.toml where there is one, or takes the built-in rules and limits.
///
/// # Errors
/// A sentence that says what is wrong with the file.
pub fn load(named: Option<&Path>, environment: &EnvironmentName) -> Result<Config, ConfigError> {
    let Some(path) = find_config_path(named) else { return Ok(built_in_config()) };
    read_and_parse(&path, |text| parse_config(text, environment, &path))
}

/// All environments of the file that can be reached, for whoever looks at them as such.
pub struct ConfiguredEnvironments {
    /// Where it comes from, for people.
    pub origin: String,
    /// How each environment is reached.
    pub connections: BTreeMap<EnvironmentName, ConnectionConfig>,
    /// The state directory, where it is written.
    pub state: Option<PathBuf>,
    /// The witness of its ledger, where it is written.
    pub witness: Option<PathBuf>,
}

impl ConfiguredEnvironments {
    /// Another environment with the same secret.
    pub fn find_same_secret(&self, own: &EnvironmentName) -> Option<&EnvironmentName> {
        connection::find_same_secret(own, &self.connections)
    }

    /// Another environment that may be the same cluster, and what they share.
    pub fn find_same_cluster(&self, own: &EnvironmentName) -> Option<(&EnvironmentName, String)> {
        connection::find_same_cluster(own, &self.connections)
    }
}

/// Reads the environments of the named file, or of converger.toml.
///
/// # Errors
/// A sentence that says what is wrong with the file, or that there is none.
pub fn load_environments(named: Option<&Path>) -> Result<ConfiguredEnvironments, ConfigError> {
    let none = || ConfigError {
        code: FailureCode::EnvironmentUnconfigured,
        text: "there is no converger.toml here; name one with --config".into(),
    };
    let path = find_config_path(named).ok_or_else(none)?;
    read_and_parse(&path, |text| {
        let file: ConfigFile = toml::from_str(text).map_err(|error| ConfigFault::from_toml(&error))?;
        let connections = parse_connections(&file.environments, config_directory(&path))?;
        let (state, witness) = (resolve_state_directory(file.store, &path), parse_witness(file.ledger, &path)?);
        Ok(ConfiguredEnvironments { origin: files::display_path(&path), connections, state, witness })
    })
}

/// Where the named file, or converger.toml, leads. One that cannot be understood leads nowhere, and ends the command later.
#[derive(Default)]
pub struct ReferencedPaths {
    /// Certificates and secrets.
    pub files: Vec<PathBuf>,
    /// The state directory, where it is written.
    pub state: Option<PathBuf>,
    /// The witness, where one is named.
    pub witness: Option<PathBuf>,
}

/// Reads where a configuration leads.
#[must_use]
pub fn referenced_paths(named: Option<&Path>) -> ReferencedPaths {
    let Ok(survey) = load_environments(named) else { return ReferencedPaths::default() };
    let files = survey.connections.into_values().flat_map(|connection| connection.files).collect();
    ReferencedPaths { files, state: survey.state, witness: survey.witness }
}

/// Reads a file, and says its name where something is wrong in it.
fn read_and_parse<T>(path: &Path, parse: impl FnOnce(&str) -> Result<T, ConfigFault>) -> Result<T, ConfigError> {
    let name = files::display_path(path);
    let unread = |error| ConfigError { code: FailureCode::FileUnreadable, text: format!("cannot read {name}: {error}") };
    let text = read_config_text(path).map_err(unread)?;
    parse(&text).map_err(|fault| fault.to_config_error(&name, &text))
}

fn parse_witness(ledger: LedgerTable, path: &Path) -> Result<Option<PathBuf>, ConfigFault> {
    match ledger.witness {
        Some(witness) if witness.get_ref().as_os_str().is_empty() => {
            Err(ConfigFault::at_value(&witness, "`ledger.witness` is empty; name a file on other storage, or take it out"))
        }
        witness => Ok(witness.map(|witness| config_directory(path).join(witness.into_inner()))),
    }
}

fn resolve_state_directory(store: StoreTable, path: &Path) -> Option<PathBuf> {
    store.directory.map(|directory| config_directory(path).join(directory))
}

/// The directory of the file, from which what it names is looked for.
fn config_directory(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

fn read_config_text(path: &Path) -> io::Result<String> {
    let text = files::read_at_most(path, CONFIG_BYTES_MAX)?;
    if text.bytes.len() > CONFIG_BYTES_MAX {
        return Err(io::Error::other("it is larger than 1 MiB"));
    }
    String::from_utf8(text.bytes).map_err(|_| io::Error::other("it is not UTF-8"))
}

/// The file that is read. A link that leads nowhere is not the same as no file: what it was to protect is not protected.
pub fn find_config_path(named: Option<&Path>) -> Option<PathBuf> {
    named.map(PathBuf::from).or_else(|| Path::new(DEFAULT_FILE_NAME).symlink_metadata().is_ok().then(|| DEFAULT_FILE_NAME.into()))
}

fn built_in_config() -> Config {
    Config {
        origin: "built-in rules".into(),
        rules: Rules::default(),
        limits: Limits::default(),
        at_once: AtOnce::default(),
        patience: Patience::default(),
        circumstances: Circumstances::default(),
        connection: None,
        state: None,
        witness: None,
        snapshot: serde_json::json!({ "limits": limits_json(Limits::default()) }).to_string().into_bytes(),
    }
}

fn parse_config(text: &str, environment: &EnvironmentName, path: &Path) -> Result<Config, ConfigFault> {
    let file: ConfigFile = toml::from_str(text).map_err(|error| ConfigFault::from_toml(&error))?;
    let mut connections = parse_connections(&file.environments, config_directory(path))?;
    let own = file.environments.get(environment.as_str());
    if own.is_none() && !file.environments.is_empty() {
        let known: Vec<&str> = file.environments.keys().map(String::as_str).collect();
        return Err(ConfigFault::environment_missing(format!(
            "the environment `{environment}` is not configured; configured are: {}",
            known.join(", ")
        )));
    }
    let protect = own.map(|own| own.get_ref().protect.clone()).unwrap_or_default();
    if let (Some(own), Some(other)) = (own, connection::find_same_secret(environment, &connections)) {
        let text = format!(
            "the environments `{environment}` and `{other}` have the same secret; make a token of its own for each: a slip in a name must \
             not reach the other cluster"
        );
        return Err(ConfigFault::at_value(own, text));
    }
    let origin = file.limits.as_ref().map_or("built-in limits".into(), |_| files::display_path(path));
    let limits = parse_limits(&file.limits.unwrap_or_default())?;
    Ok(Config {
        origin,
        rules: parse_rules(protect)?,
        limits,
        at_once: parse_concurrency(&file.apply)?,
        patience: parse_patience(&file.apply, connections.get(environment))?,
        circumstances: Circumstances { freeze: parse_freeze(file.freeze)? },
        connection: connections.remove(environment),
        state: resolve_state_directory(file.store, path),
        witness: parse_witness(file.ledger, path)?,
        snapshot: snapshot_json(text, environment, limits)?,
    })
}

/// Limits as they are kept, built in or not: what is built in may be another another day.
fn limits_json(limits: Limits) -> serde_json::Value {
    serde_json::json!({ "guests": limits.guests, "percent": limits.percent, "stops": limits.stops })
}

/// What was understood of a text and concerns an environment, in the order of names. Remarks are not part of it: somebody may have noted a
/// secret there; nor are other environments, which no decision about this one rests on.
fn snapshot_json(text: &str, environment: &EnvironmentName, limits: Limits) -> Result<Vec<u8>, ConfigFault> {
    let mut understood: serde_json::Map<String, serde_json::Value> =
        toml::from_str(text).map_err(|error| ConfigFault::from_toml(&error))?;
    understood.insert("limits".into(), limits_json(limits));
    if let Some(environments) = understood.get_mut("environments").and_then(serde_json::Value::as_object_mut) {
        environments.retain(|name, _| name == environment.as_str());
    }
    serde_json::to_vec(&understood).map_err(|error| ConfigFault::without_position(format!("it cannot be kept: {error}")))
}

/// The connections of all environments: what is wrong with one is found today, and not when it is needed.
fn parse_connections(
    environments: &BTreeMap<String, Spanned<connection::EnvironmentTable>>,
    room: &Path,
) -> Result<BTreeMap<EnvironmentName, ConnectionConfig>, ConfigFault> {
    let mut connections = BTreeMap::new();
    for (name, written) in environments {
        let wrong = || {
            ConfigFault::at_value(
                written,
                "this is not the name of an environment; use lower-case letters, digits, `-` and `_`, at most 64",
            )
        };
        let environment = EnvironmentName::new(name).ok_or_else(wrong)?;
        let connection = connection::parse_connection(written, room).map_err(|fault| fault.in_section(&format!("environment `{name}`")))?;
        connections.extend(connection.map(|connection| (environment, connection)));
    }
    Ok(connections)
}

fn parse_rules(protect: ProtectTable) -> Result<Rules, ConfigFault> {
    let id = |number: Spanned<u64>| {
        let wrong = || ConfigFault::at_value(&number, format!("`{}` under `protect.ids` is not the id of a guest", number.get_ref()));
        Vmid::new(*number.get_ref()).ok_or_else(wrong)
    };
    let ids = protect.ids.into_iter().map(id).collect::<Result<Vec<Vmid>, ConfigFault>>()?;
    // A rule that can never match protects nothing, and whoever wrote it believes that it does.
    let is_part = |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'));
    if let Some(name) = protect.names.iter().find(|name| !is_part(name.get_ref())) {
        let text = String::from("this name under `protect.names` begins no name: letters, digits, `-` and `.` only, and no pattern");
        return Err(ConfigFault::at_value(name, text));
    }
    if let Some(tag) = protect.tags.iter().find(|tag| !is_tag(&tag.get_ref().to_ascii_lowercase())) {
        return Err(ConfigFault::at_value(tag, "this word under `protect.tags` is not a tag"));
    }
    let words = |list: Vec<Spanned<String>>| list.into_iter().map(Spanned::into_inner).collect();
    Ok(Rules::new(ids, words(protect.names), words(protect.tags)))
}

fn parse_limits(table: &LimitsTable) -> Result<Limits, ConfigFault> {
    let default = Limits::default();
    let percent = table.percent.as_ref().map_or(default.percent, |percent| *percent.get_ref());
    if let Some(written) = table.percent.as_ref().filter(|_| percent > 100) {
        return Err(ConfigFault::at_value(written, format!("`limits.percent` must be between 0 and 100, not {percent}")));
    }
    Ok(Limits { guests: table.guests.unwrap_or(default.guests), percent, stops: table.stops.unwrap_or(default.stops) })
}

/// A cluster whose nodes each start more guests than this does nothing else.
const AT_ONCE_RANGE: RangeInclusive<u64> = 1..=1_000;

fn parse_concurrency(table: &ApplyTable) -> Result<AtOnce, ConfigFault> {
    let own = |key: &str, written: &Option<Spanned<u64>>, default: u32| {
        let own = connection::check_range(key, "operations", written.as_ref(), AT_ONCE_RANGE)?;
        Ok(own.and_then(|own| u32::try_from(own).ok()).unwrap_or(default))
    };
    let default = AtOnce::default();
    Ok(AtOnce {
        per_node: own("apply.at_once_per_node", &table.at_once_per_node, default.per_node)?,
        overall: own("apply.at_once", &table.at_once, default.overall)?,
    })
}

/// Seconds for one task: what is shorter ends while a guest comes up, and nobody watches anything for longer than a day.
const TASK_SECS_RANGE: RangeInclusive<u64> = 10..=86_400;

fn parse_patience(table: &ApplyTable, connection: Option<&ConnectionConfig>) -> Result<Patience, ConfigFault> {
    let default = Patience::default();
    let own = connection::check_range("apply.task_timeout", "seconds", table.task_timeout.as_ref(), TASK_SECS_RANGE)?;
    let patience = Patience { task_ms: own.map_or(default.task_ms, |seconds| seconds * 1_000), ..default };
    Ok(connection.map_or(patience, |connection| patience.with_response_timeout(connection.response_ms_max())))
}

fn parse_freeze(freeze: FreezeTable) -> Result<Option<String>, ConfigFault> {
    let Some(on) = freeze.on.filter(|on| *on.get_ref()) else { return Ok(None) };
    match freeze.reason {
        Some(reason) if !reason.trim().is_empty() => Ok(Some(reason)),
        _ => Err(ConfigFault::at_value(&on, "`freeze.on` needs a `freeze.reason`, so that others know why")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<Config, String> {
        parse_config(text, &EnvironmentName::new("lab").expect("a name"), Path::new("room/converger.toml"))
            .map_err(|fault| fault.describe(text))
    }

    fn lab_config(rest: &str) -> String {
        format!("[environments.lab]\nurl = \"https://pve1\"\ntoken = \"a@pve!me\"\n{rest}")
    }

    /// Addresses and cluster names are no proof: two clusters may share them. The cluster itself is compared before anything is sent.
    #[test]
    fn two_environments_at_one_address_are_noted_and_not_refused() {
        let two = |lab: &str, other: &str| {
            let table = |name, rest| {
                format!("[environments.{name}]\ntoken = \"a@pve!{name}\"\nsecret = {{ env = \"NO_{name}_SECRET\" }}\n{rest}\n")
            };
            let text = table("lab", lab) + &table("other", other);
            assert!(check(&text).is_ok(), "{text}");
            let file: ConfigFile = toml::from_str(&text).expect("TOML");
            let connections =
                parse_connections(&file.environments, Path::new("room")).map_err(|fault| fault.describe(&text)).expect("connections");
            let shared = connection::find_same_cluster(&EnvironmentName::new("lab").expect("a name"), &connections);
            shared.map(|(other, shared)| format!("{other} has {shared}"))
        };
        let (one, pinned) = ("url = \"https://pve1\"", "cluster = \"home\"");
        let listed = "endpoints = [{ url = \"https://pve2\" }, { url = \"https://PVE1:8006/\" }]";
        for other in [one, listed] {
            assert_eq!(two(one, other).as_deref(), Some("other has the address pve1:8006"));
        }
        let elsewhere = format!("url = \"https://pve2\"\n{pinned}");
        assert_eq!(two(&format!("{one}\n{pinned}"), &elsewhere).as_deref(), Some("other has `cluster = \"home\"`"));
        assert_eq!(two(one, &elsewhere), None);
        assert_eq!(two(one, "url = \"https://pve1:8007\""), None);
        assert_eq!(two(&format!("{one}\ncluster = \"work\""), &elsewhere), None);
    }

    #[test]
    fn refuses_misspelt_keys_and_invalid_values() {
        for (text, part) in [
            ("[limit]\nguests = 1", "unknown field `limit`"),
            ("[limits]\nguest = 1", "unknown field `guest`"),
            ("[environments.lab]\nendpoints = [\"https://pve1:8006\"]", "expected is one endpoint, such as `{ url ="),
            ("[limits]\nguests = -1", "this value is wrong; expected is a whole number"),
            ("[environments.lab]\nsecret = \"hunter2\"", "line 2, column 10: this value is wrong"),
            ("[environments.lab]\npassword = \"hunter2\"", "line 2, column 1: unknown field `password`"),
            ("[environments.lab]\ntoken = \"root@pam!x=hunter2\"", "line 2, column 9: environment `lab`: `token` is not the id"),
            (
                "[environments.lab]\ntoken = \"root@pam!x\"",
                "environment `lab`: `token` ends in a name that Proxmox does not accept: the part after `!` has at least two",
            ),
            ("\n[environments.lab]\nurl = \"https://pve1\"", "line 2, column 1: environment `lab`: `token` is missing"),
            ("[environments.lab]\nurl = \"https://pve1\"\ntoken = \"a@pve!me\"", "`secret` is missing"),
            ("[environments.lab.protect]\nnames = [\"core-*\"]", "begins no name"),
            ("[limits]\npercent = 101", "between 0 and 100"),
            ("[freeze]\non = true", "needs a `freeze.reason`"),
            ("[apply]\nat_once = 0", "`apply.at_once` must be between 1 and 1000 operations, not 0"),
            ("[apply]\nat_once_per_node = 1001", "`apply.at_once_per_node` must be between 1 and 1000"),
            ("[apply]\ntask_timeout = 9", "`apply.task_timeout` must be between 10 and 86400 seconds, not 9"),
            ("[environments.lab.protect]\nids = [5]", "not the id"),
            ("[environments.lab.protect]\ntags = [\"\"]", "is not a tag"),
            ("[environments.prod.protect]\nids = [100]", "`lab` is not configured"),
            ("[environments.\"a b\"]", "not the name"),
            (
                "[environments.lab]\nurl = \"https://pve1\"\ntoken = \"a@pve!me\"\nsecret = { env = \"S\" }\nclock = \"requests\"",
                "line 5, column 9: environment `lab`: `clock = \"requests\"` is for a lab on this machine",
            ),
            ("limits = ", "line 1, column"),
            (&lab_config("secret = { env = \"12345678-hunter2\" }"), "line 4, column 10: environment `lab`: `env` is the name of"),
            (&lab_config("secret = { file = \"12345678-1234-1234-1234-123456789abc\" }"), "`file` is the path of a file"),
            (&lab_config("secret = { credential = \"12345678-1234-1234-1234-123456789abc\" }"), "`credential` is the name of"),
            (
                &lab_config("secret = { env = \"S\" }\nfingerprints = [\"hunter2\"]"),
                "line 5, column 17: environment `lab`: this is not a SHA-256",
            ),
            (&lab_config("mode = \"hunter2\""), "line 4, column 8: this value is wrong; expected is `solo` or `shared`"),
            ("[environments.lab]\nhunter2 = 1", "line 2, column 1: this key is unknown, expected one of `url`"),
            ("\"\\u001b[31m\" = 1", "line 1, column 1: this key is unknown"),
            ("[environments.\"hunter2!\"]", "not the name of an environment"),
        ] {
            let fault = check(text).err().unwrap_or_else(|| panic!("accepted: {text}"));
            let is_secret = fault.contains("hunter2") || fault.contains("1234") || fault.contains('\u{1b}');
            assert!(fault.contains(part) && !is_secret, "{text}: {fault}");
        }
    }

    #[test]
    fn missing_limits_keep_their_defaults() {
        let config = check("[limits]\nstops = 0").expect("accepted");
        assert_eq!(config.limits, Limits { stops: 0, ..Limits::default() });
        assert_eq!((config.circumstances.freeze, config.origin.as_str()), (None, "room/converger.toml"));
        let own = check("[apply]\nat_once_per_node = 2").expect("accepted");
        assert_eq!((own.at_once, own.origin.as_str()), (AtOnce { per_node: 2, ..AtOnce::default() }, "built-in limits"));
        assert_eq!(own.patience, Patience::default());
        let patient = check("[apply]\ntask_timeout = 3600").expect("accepted").patience;
        assert_eq!(patient, Patience { task_ms: 3_600_000, ..Patience::default() });
    }

    /// Decision 0016: what was sent may come for as long as a living process would wait for its answer, which this file may change.
    #[test]
    fn longer_response_timeout_extends_patience_but_shorter_does_not_reduce_it() {
        let late_ms = |timeout: &str| {
            let text = lab_config(&format!("secret = {{ env = \"X\" }}\n{timeout}"));
            check(&text).expect("accepted").patience.late_arrival_ms
        };
        let usual_ms = Patience::default().late_arrival_ms;
        assert_eq!((late_ms(""), late_ms("timeout = 5"), late_ms("timeout = 600")), (usual_ms, usual_ms, usual_ms + 540_000));
        let deadline = converger_adapters::proxmox::client::RequestLimits::default().deadline;
        assert_eq!(deadline.as_millis(), u128::from(converger_engine::operation::RESPONSE_MS_MAX), "what the client waits for by itself");
    }
}
