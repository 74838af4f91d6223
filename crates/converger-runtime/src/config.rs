//! converger.toml: environments, protection, limits, how much at once and for how long, and freeze. Strict: an unknown key is an error, because
//! a misspelt limit is none.

mod connection;
mod fault;
mod kept;

use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use converger_core::failure::Code;
use converger_core::guest::{EnvironmentName, Vmid, is_tag};
use converger_core::policy::{Circumstances, Limits, Rules};
use converger_engine::operation::Patience;
use converger_engine::schedule::Limits as AtOnce;
use serde::Deserialize;
use toml::Spanned;

use crate::files;

use fault::Fault;
pub use kept::understood;

pub use connection::{Clock, Connection, ONE_NAME};
pub use fault::Unusable;

/// The file that is read where none is named.
const DEFAULT: &str = "converger.toml";

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
    pub connection: Option<Connection>,
    /// Where what must survive the program is kept, where that is written.
    pub state: Option<PathBuf>,
    /// The file on other storage that keeps the last checkpoint of the ledger, where that is written.
    pub witness: Option<PathBuf>,
    /// All of it as it was understood, in JSON and without remarks: no secret stands in what is understood.
    pub snapshot: Vec<u8>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    environments: BTreeMap<String, Spanned<connection::Written>>,
    limits: Option<LimitsTable>,
    #[serde(default)]
    apply: ApplyTable,
    #[serde(default)]
    freeze: Freeze,
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
struct Protect {
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
struct Freeze {
    on: Option<Spanned<bool>>,
    reason: Option<String>,
}

/// Reads the named file, or converger.toml where there is one, or takes the built-in rules and limits.
///
/// # Errors
/// A sentence that says what is wrong with the file.
pub fn load(named: Option<&Path>, environment: &EnvironmentName) -> Result<Config, Unusable> {
    let Some(path) = path(named) else { return Ok(built_in()) };
    within(&path, |text| parse(text, environment, &path))
}

/// All environments of the file that can be reached, for whoever looks at them as such.
pub struct Survey {
    /// Where it comes from, for people.
    pub origin: String,
    /// How each environment is reached.
    pub connections: BTreeMap<EnvironmentName, Connection>,
    /// The state directory, where it is written.
    pub state: Option<PathBuf>,
    /// The witness of its ledger, where it is written.
    pub witness: Option<PathBuf>,
}

impl Survey {
    /// Another environment with the same secret.
    pub fn same_secret(&self, own: &EnvironmentName) -> Option<&EnvironmentName> {
        connection::same_secret(own, &self.connections)
    }

    /// Another environment that may be the same cluster, and what they share.
    pub fn same_cluster(&self, own: &EnvironmentName) -> Option<(&EnvironmentName, String)> {
        connection::same_cluster(own, &self.connections)
    }
}

/// Reads the environments of the named file, or of converger.toml.
///
/// # Errors
/// A sentence that says what is wrong with the file, or that there is none.
pub fn survey(named: Option<&Path>) -> Result<Survey, Unusable> {
    let none = || Unusable { code: Code::EnvironmentUnconfigured, text: "there is no converger.toml here; name one with --config".into() };
    let path = path(named).ok_or_else(none)?;
    within(&path, |text| {
        let file: File = toml::from_str(text).map_err(|error| Fault::of_toml(&error))?;
        let connections = connections(&file.environments, room(&path))?;
        let (state, witness) = (state(file.store, &path), witness(file.ledger, &path)?);
        Ok(Survey { origin: files::shown(&path), connections, state, witness })
    })
}

/// Where the named file, or converger.toml, leads. One that cannot be understood leads nowhere, and ends the command later.
#[derive(Default)]
pub struct LeadsTo {
    /// Certificates and secrets.
    pub files: Vec<PathBuf>,
    /// The state directory, where it is written.
    pub state: Option<PathBuf>,
    /// The witness, where one is named.
    pub witness: Option<PathBuf>,
}

/// Reads where a configuration leads.
#[must_use]
pub fn leads_to(named: Option<&Path>) -> LeadsTo {
    let Ok(survey) = survey(named) else { return LeadsTo::default() };
    let files = survey.connections.into_values().flat_map(|connection| connection.files).collect();
    LeadsTo { files, state: survey.state, witness: survey.witness }
}

/// Reads a file, and says its name where something is wrong in it.
fn within<T>(path: &Path, parse: impl FnOnce(&str) -> Result<T, Fault>) -> Result<T, Unusable> {
    let name = files::shown(path);
    let unread = |error| Unusable { code: Code::FileUnreadable, text: format!("cannot read {name}: {error}") };
    let text = read(path).map_err(unread)?;
    parse(&text).map_err(|fault| fault.unusable(&name, &text))
}

fn witness(ledger: LedgerTable, path: &Path) -> Result<Option<PathBuf>, Fault> {
    match ledger.witness {
        Some(witness) if witness.get_ref().as_os_str().is_empty() => {
            Err(Fault::at(&witness, "`ledger.witness` is empty; name a file on other storage, or take it out"))
        }
        witness => Ok(witness.map(|witness| room(path).join(witness.into_inner()))),
    }
}

fn state(store: StoreTable, path: &Path) -> Option<PathBuf> {
    store.directory.map(|directory| room(path).join(directory))
}

/// The directory of the file, from which what it names is looked for.
fn room(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

fn read(path: &Path) -> io::Result<String> {
    let text = files::read_at_most(path, CONFIG_BYTES_MAX)?;
    if text.bytes.len() > CONFIG_BYTES_MAX {
        return Err(io::Error::other("it is larger than 1 MiB"));
    }
    String::from_utf8(text.bytes).map_err(|_| io::Error::other("it is not UTF-8"))
}

/// The file that is read. A link that leads nowhere is not the same as no file: what it was to protect is not protected.
pub fn path(named: Option<&Path>) -> Option<PathBuf> {
    named.map(PathBuf::from).or_else(|| Path::new(DEFAULT).symlink_metadata().is_ok().then(|| DEFAULT.into()))
}

fn built_in() -> Config {
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
        snapshot: serde_json::json!({ "limits": in_force(Limits::default()) }).to_string().into_bytes(),
    }
}

fn parse(text: &str, environment: &EnvironmentName, path: &Path) -> Result<Config, Fault> {
    let file: File = toml::from_str(text).map_err(|error| Fault::of_toml(&error))?;
    let mut connections = connections(&file.environments, room(path))?;
    let own = file.environments.get(environment.as_str());
    if own.is_none() && !file.environments.is_empty() {
        let known: Vec<&str> = file.environments.keys().map(String::as_str).collect();
        return Err(Fault::unconfigured(format!(
            "the environment `{environment}` is not configured; configured are: {}",
            known.join(", ")
        )));
    }
    let protect = own.map(|own| own.get_ref().protect.clone()).unwrap_or_default();
    if let (Some(own), Some(other)) = (own, connection::same_secret(environment, &connections)) {
        let text = format!(
            "the environments `{environment}` and `{other}` have the same secret; make a token of its own for each: a slip in a name must \
             not reach the other cluster"
        );
        return Err(Fault::at(own, text));
    }
    let origin = file.limits.as_ref().map_or("built-in limits".into(), |_| files::shown(path));
    let limits = limits(&file.limits.unwrap_or_default())?;
    Ok(Config {
        origin,
        rules: rules(protect)?,
        limits,
        at_once: at_once(&file.apply)?,
        patience: patience(&file.apply, connections.get(environment))?,
        circumstances: Circumstances { freeze: freeze(file.freeze)? },
        connection: connections.remove(environment),
        state: state(file.store, path),
        witness: witness(file.ledger, path)?,
        snapshot: snapshot(text, environment, limits)?,
    })
}

/// Limits as they are kept, built in or not: what is built in may be another another day.
fn in_force(limits: Limits) -> serde_json::Value {
    serde_json::json!({ "guests": limits.guests, "percent": limits.percent, "stops": limits.stops })
}

/// What was understood of a text and concerns an environment, in the order of names. Remarks are not part of it: somebody may have noted a
/// secret there; nor are other environments, which no decision about this one rests on.
fn snapshot(text: &str, environment: &EnvironmentName, limits: Limits) -> Result<Vec<u8>, Fault> {
    let mut understood: serde_json::Map<String, serde_json::Value> = toml::from_str(text).map_err(|error| Fault::of_toml(&error))?;
    understood.insert("limits".into(), in_force(limits));
    if let Some(environments) = understood.get_mut("environments").and_then(serde_json::Value::as_object_mut) {
        environments.retain(|name, _| name == environment.as_str());
    }
    serde_json::to_vec(&understood).map_err(|error| Fault::nowhere(format!("it cannot be kept: {error}")))
}

/// The connections of all environments: what is wrong with one is found today, and not when it is needed.
fn connections(
    environments: &BTreeMap<String, Spanned<connection::Written>>,
    room: &Path,
) -> Result<BTreeMap<EnvironmentName, Connection>, Fault> {
    let mut connections = BTreeMap::new();
    for (name, written) in environments {
        let wrong =
            || Fault::at(written, "this is not the name of an environment; use lower-case letters, digits, `-` and `_`, at most 64");
        let environment = EnvironmentName::new(name).ok_or_else(wrong)?;
        let connection = connection::of(written, room).map_err(|fault| fault.under(&format!("environment `{name}`")))?;
        connections.extend(connection.map(|connection| (environment, connection)));
    }
    Ok(connections)
}

fn rules(protect: Protect) -> Result<Rules, Fault> {
    let id = |number: Spanned<u64>| {
        let wrong = || Fault::at(&number, format!("`{}` under `protect.ids` is not the id of a guest", number.get_ref()));
        Vmid::new(*number.get_ref()).ok_or_else(wrong)
    };
    let ids = protect.ids.into_iter().map(id).collect::<Result<Vec<Vmid>, Fault>>()?;
    // A rule that can never match protects nothing, and whoever wrote it believes that it does.
    let is_part = |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'));
    if let Some(name) = protect.names.iter().find(|name| !is_part(name.get_ref())) {
        let text = String::from("this name under `protect.names` begins no name: letters, digits, `-` and `.` only, and no pattern");
        return Err(Fault::at(name, text));
    }
    if let Some(tag) = protect.tags.iter().find(|tag| !is_tag(&tag.get_ref().to_ascii_lowercase())) {
        return Err(Fault::at(tag, "this word under `protect.tags` is not a tag"));
    }
    let words = |list: Vec<Spanned<String>>| list.into_iter().map(Spanned::into_inner).collect();
    Ok(Rules::new(ids, words(protect.names), words(protect.tags)))
}

fn limits(table: &LimitsTable) -> Result<Limits, Fault> {
    let default = Limits::default();
    let percent = table.percent.as_ref().map_or(default.percent, |percent| *percent.get_ref());
    if let Some(written) = table.percent.as_ref().filter(|_| percent > 100) {
        return Err(Fault::at(written, format!("`limits.percent` must be between 0 and 100, not {percent}")));
    }
    Ok(Limits { guests: table.guests.unwrap_or(default.guests), percent, stops: table.stops.unwrap_or(default.stops) })
}

/// A cluster whose nodes each start more guests than this does nothing else.
const AT_ONCE: RangeInclusive<u64> = 1..=1_000;

fn at_once(table: &ApplyTable) -> Result<AtOnce, Fault> {
    let own = |key: &str, written: &Option<Spanned<u64>>, default: u32| {
        let own = connection::within(key, "operations", written.as_ref(), AT_ONCE)?;
        Ok(own.and_then(|own| u32::try_from(own).ok()).unwrap_or(default))
    };
    let default = AtOnce::default();
    Ok(AtOnce {
        per_node: own("apply.at_once_per_node", &table.at_once_per_node, default.per_node)?,
        overall: own("apply.at_once", &table.at_once, default.overall)?,
    })
}

/// Seconds for one task: what is shorter ends while a guest comes up, and nobody watches anything for longer than a day.
const TASK_SECS: RangeInclusive<u64> = 10..=86_400;

fn patience(table: &ApplyTable, connection: Option<&Connection>) -> Result<Patience, Fault> {
    let default = Patience::default();
    let own = connection::within("apply.task_timeout", "seconds", table.task_timeout.as_ref(), TASK_SECS)?;
    let patience = Patience { task_ms: own.map_or(default.task_ms, |seconds| seconds * 1_000), ..default };
    Ok(connection.map_or(patience, |connection| patience.with_answers_of(connection.answer_ms_max())))
}

fn freeze(freeze: Freeze) -> Result<Option<String>, Fault> {
    let Some(on) = freeze.on.filter(|on| *on.get_ref()) else { return Ok(None) };
    match freeze.reason {
        Some(reason) if !reason.trim().is_empty() => Ok(Some(reason)),
        _ => Err(Fault::at(&on, "`freeze.on` needs a `freeze.reason`, so that others know why")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<Config, String> {
        parse(text, &EnvironmentName::new("lab").expect("a name"), Path::new("room/converger.toml")).map_err(|fault| fault.told(text))
    }

    fn lab(rest: &str) -> String {
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
            let file: File = toml::from_str(&text).expect("TOML");
            let connections = connections(&file.environments, Path::new("room")).map_err(|fault| fault.told(&text)).expect("connections");
            let shared = connection::same_cluster(&EnvironmentName::new("lab").expect("a name"), &connections);
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
    fn what_is_misspelt_or_senseless_is_refused() {
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
            (&lab("secret = { env = \"12345678-hunter2\" }"), "line 4, column 10: environment `lab`: `env` is the name of"),
            (&lab("secret = { file = \"12345678-1234-1234-1234-123456789abc\" }"), "`file` is the path of a file"),
            (&lab("secret = { credential = \"12345678-1234-1234-1234-123456789abc\" }"), "`credential` is the name of"),
            (&lab("secret = { env = \"S\" }\nfingerprints = [\"hunter2\"]"), "line 5, column 17: environment `lab`: this is not a SHA-256"),
            (&lab("mode = \"hunter2\""), "line 4, column 8: this value is wrong; expected is `solo` or `shared`"),
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
    fn limits_that_are_not_given_keep_their_defaults() {
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
    fn whoever_waits_longer_for_answers_gives_up_later_and_nobody_sooner_than_usual() {
        let late_ms = |timeout: &str| {
            let text = lab(&format!("secret = {{ env = \"X\" }}\n{timeout}"));
            check(&text).expect("accepted").patience.late_ms
        };
        let usual_ms = Patience::default().late_ms;
        assert_eq!((late_ms(""), late_ms("timeout = 5"), late_ms("timeout = 600")), (usual_ms, usual_ms, usual_ms + 540_000));
        let deadline = converger_adapters::proxmox::client::Bounds::default().deadline;
        assert_eq!(deadline.as_millis(), u128::from(converger_engine::operation::ANSWER_MS_MAX), "what the client waits for by itself");
    }
}
