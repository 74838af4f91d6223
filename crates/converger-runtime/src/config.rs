//! converger.toml: environments, protection, limits, concurrency, timeouts and freeze. The file is read strictly: an unknown key is an error,
//! because a misspelt limit would limit nothing.

mod config_file;
mod connection;
mod fault;
mod snapshot;
mod table_reader;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use converger_core::document::{Diagnostic, Diagnostics};
use converger_core::failure::FailureCode;
use converger_core::guest::EnvironmentName;
use converger_core::policy::{Circumstances, Limits, Rules};
use converger_engine::operation::Patience;
use converger_engine::schedule::ConcurrencyLimits as AtOnce;

use crate::files;

use config_file::ConfigFile;
pub use snapshot::parse_config_snapshot;

pub use connection::{ClockSetting, ConnectionConfig, ONE_NAME_PER_CLUSTER};
pub use fault::{ConfigError, ConfigFaults};

/// The file that is read where none is named.
const DEFAULT_FILE_NAME: &str = "converger.toml";

const CONFIG_BYTES_MAX: usize = 1 << 20;

/// The configuration that applies to one environment.
pub struct Config {
    /// Where the limits come from, for people.
    pub origin: String,
    /// The protection rules.
    pub rules: Rules,
    /// The limits of one run.
    pub limits: Limits,
    /// How many operations may be in flight at once.
    pub at_once: AtOnce,
    /// How long an apply waits for what it started.
    pub patience: Patience,
    /// The freeze that the file sets.
    pub circumstances: Circumstances,
    /// How the environment is reached, if the file says so.
    pub connection: Option<ConnectionConfig>,
    /// Another environment of the file that may be the same cluster, and the address or cluster name that they share. It is no proof: two clusters may
    /// share both.
    pub same_cluster: Option<(EnvironmentName, String)>,
    /// The state directory, if the file names one.
    pub state: Option<PathBuf>,
    /// The file on other storage that keeps the last checkpoint of the ledger, if the file names one.
    pub witness: Option<PathBuf>,
    /// The decoded configuration in JSON, without comments. It has no secret in it.
    pub snapshot: Vec<u8>,
}

/// Reads the named file; or converger.toml, if it exists; or takes the built-in rules and limits.
///
/// # Errors
/// The file cannot be read, has faults, or has no section for the environment.
pub fn load(named: Option<&Path>, environment: &EnvironmentName) -> Result<Config, ConfigError> {
    ConfigSource::read(named).config(environment)
}

/// The file with the configuration, read once: everything that a command takes from it comes from the same text. A file that cannot be read or has
/// faults is an error when something is taken from it.
pub struct ConfigSource {
    /// The file and what it says; `None` where there is no file.
    file: Option<(PathBuf, Result<ParsedConfigText, ConfigError>)>,
}

/// The text of a file, and what it says.
struct ParsedConfigText {
    text: String,
    file: ConfigFile,
}

impl ConfigSource {
    /// Reads the named file, or converger.toml if it exists.
    #[must_use]
    pub fn read(named: Option<&Path>) -> Self {
        Self { file: find_config_path(named).map(|path| (path.clone(), read_config_file(&path))) }
    }

    /// The file, if there is one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|(path, _)| path.as_path())
    }

    fn contents(&self) -> Result<Option<(&Path, &ParsedConfigText)>, ConfigError> {
        let Some((path, contents)) = &self.file else { return Ok(None) };
        Ok(Some((path, contents.as_ref().map_err(Clone::clone)?)))
    }

    /// The names of all environments of the file; none where there is no file.
    ///
    /// # Errors
    /// The file cannot be read, or has faults.
    pub fn environment_names(&self) -> Result<Vec<&EnvironmentName>, ConfigError> {
        Ok(self.contents()?.into_iter().flat_map(|(_, read)| read.file.environments.keys()).collect())
    }

    /// The configuration of one environment; the built-in rules and limits where there is no file.
    ///
    /// # Errors
    /// The file cannot be read, has faults, or has no section for the environment.
    pub fn config(&self, environment: &EnvironmentName) -> Result<Config, ConfigError> {
        let Some((path, ParsedConfigText { text, file })) = self.contents()? else { return Ok(built_in_config()) };
        if !file.environments.is_empty() && !file.environments.contains_key(environment) {
            return Err(environment_missing(path, environment, file));
        }
        parse_config(text, file.clone(), environment, path).map_err(|fault| invalid_config(path, text, fault.into()))
    }

    /// All environments of the file that can be reached.
    ///
    /// # Errors
    /// The file does not exist, cannot be read, or has faults.
    pub fn environments(&self) -> Result<ConfiguredEnvironments, ConfigError> {
        let Some((path, ParsedConfigText { file, .. })) = self.contents()? else {
            let text = "there is no converger.toml in this directory, and --config names no other file";
            return Err(ConfigError::new(FailureCode::EnvironmentUnconfigured, text));
        };
        let (state, witness) = (file.state.clone(), file.witness.clone());
        Ok(ConfiguredEnvironments { origin: files::display_path(path), connections: file.clone().into_connections(), state, witness })
    }

    /// The files and directories that the file names. A file with faults names none: they end the command later.
    #[must_use]
    pub fn referenced_paths(&self) -> ReferencedPaths {
        let Ok(environments) = self.environments() else { return ReferencedPaths::default() };
        let files = environments.connections.into_values().flat_map(|connection| connection.files).collect();
        ReferencedPaths { files, state: environments.state, witness: environments.witness }
    }
}

/// All environments of a file that can be reached.
pub struct ConfiguredEnvironments {
    /// The name of the file, for people.
    pub origin: String,
    /// How each environment is reached.
    pub connections: BTreeMap<EnvironmentName, ConnectionConfig>,
    /// The state directory, if the file names one.
    pub state: Option<PathBuf>,
    /// The witness of its ledger, if the file names one.
    pub witness: Option<PathBuf>,
}

impl ConfiguredEnvironments {
    /// Another environment with the same secret.
    pub fn find_same_secret(&self, own: &EnvironmentName) -> Option<&EnvironmentName> {
        connection::find_same_secret(own, &self.connections)
    }

    /// Whether the secret of this environment and those of all others can be read. There is nothing to compare for a single environment.
    #[must_use]
    pub fn can_compare_secrets(&self) -> bool {
        self.connections.len() < 2 || self.connections.values().all(ConnectionConfig::has_readable_secret)
    }

    /// Another environment that may be the same cluster, and what they share.
    pub fn find_same_cluster(&self, own: &EnvironmentName) -> Option<(&EnvironmentName, String)> {
        connection::find_same_cluster(own, &self.connections)
    }
}

/// The files and directories that a configuration names.
#[derive(Default)]
pub struct ReferencedPaths {
    /// Certificates and secrets.
    pub files: Vec<PathBuf>,
    /// The state directory, if one is named.
    pub state: Option<PathBuf>,
    /// The witness, if one is named.
    pub witness: Option<PathBuf>,
}

fn read_config_file(path: &Path) -> Result<ParsedConfigText, ConfigError> {
    let unread = |error| ConfigError::new(FailureCode::FileUnreadable, format!("cannot read {}: {error}", files::display_path(path)));
    let text = read_config_text(path).map_err(unread)?;
    match ConfigFile::parse(&text, config_directory(path)) {
        Ok(file) => Ok(ParsedConfigText { text, file }),
        Err(faults) => Err(invalid_config(path, &text, faults)),
    }
}

fn invalid_config(path: &Path, text: &str, faults: Diagnostics) -> ConfigError {
    ConfigError::invalid(&files::display_path(path), text, faults)
}

fn environment_missing(path: &Path, environment: &EnvironmentName, file: &ConfigFile) -> ConfigError {
    let known: Vec<&str> = file.environments.keys().map(EnvironmentName::as_str).collect();
    let text = format!("{} has no environment `{environment}`; it has: {}", files::display_path(path), known.join(", "));
    ConfigError::new(FailureCode::EnvironmentUnconfigured, text)
}

/// The directory of the file; paths in the file are relative to it.
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

/// The file that is read. A dangling link is not the same as no file: what that file was to protect would not be protected.
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
        same_cluster: None,
        state: None,
        witness: None,
        snapshot: serde_json::json!({ "limits": limits_json(Limits::default()) }).to_string().into_bytes(),
    }
}

/// The configuration of one environment, out of the file that has it.
fn parse_config(text: &str, file: ConfigFile, environment: &EnvironmentName, path: &Path) -> Result<Config, Diagnostic> {
    let own = file.environments.get(environment).map(|section| (section.span, section.rules.clone()));
    let origin = file.limits.map_or("built-in limits".into(), |_| files::display_path(path));
    let limits = file.limits.unwrap_or_default();
    let (at_once, task_ms, state, witness) = (file.at_once, file.task_ms, file.state.clone(), file.witness.clone());
    let circumstances = Circumstances { freeze: file.freeze.clone(), ..Circumstances::default() };
    let mut connections = file.into_connections();
    if let (Some((span, _)), Some(other)) = (&own, connection::find_same_secret(environment, &connections)) {
        let fault = Diagnostic::new(*span, format!("the environments `{environment}` and `{other}` have the same secret"));
        return Err(fault.with_help("create a token for each: a wrong environment name must not reach the other cluster"));
    }
    let default = Patience::default();
    let patience = Patience { task_ms: task_ms.unwrap_or(default.task_ms), ..default };
    let same_cluster = connection::find_same_cluster(environment, &connections).map(|(other, shared)| (other.clone(), shared));
    let connection = connections.remove(environment);
    Ok(Config {
        origin,
        rules: own.map(|(_, rules)| rules).unwrap_or_default(),
        limits,
        at_once,
        patience: connection.iter().fold(patience, |patience, connection| patience.with_response_timeout(connection.response_ms_max())),
        circumstances,
        connection,
        same_cluster,
        state,
        witness,
        snapshot: snapshot_json(text, environment, limits)?,
    })
}

/// Limits as they are recorded, also where they are the built-in ones, which another version may change.
fn limits_json(limits: Limits) -> serde_json::Value {
    serde_json::json!({ "guests": limits.guests, "percent": limits.percent, "stops": limits.stops })
}

/// The decoded text as far as it concerns an environment, in the order of names. Comments are not part of it, because a secret may have been
/// noted there; nor are other environments, on which no decision about this one rests.
fn snapshot_json(text: &str, environment: &EnvironmentName, limits: Limits) -> Result<Vec<u8>, Diagnostic> {
    let unrecorded =
        |error: String| Diagnostic::new(converger_core::document::Span::at(0), format!("the file cannot be recorded: {error}"));
    let mut understood: serde_json::Map<String, serde_json::Value> =
        toml::from_str(text).map_err(|error| unrecorded(error.message().to_owned()))?;
    understood.insert("limits".into(), limits_json(limits));
    if let Some(environments) = understood.get_mut("environments").and_then(serde_json::Value::as_object_mut) {
        environments.retain(|name, _| name == environment.as_str());
    }
    serde_json::to_vec(&understood).map_err(|error| unrecorded(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lab_name() -> EnvironmentName {
        EnvironmentName::new("lab").expect("a name")
    }

    /// Every fault with its line and column; help behind a semicolon.
    fn list_faults(text: &str, faults: &Diagnostics) -> Vec<String> {
        let list = faults.list().iter().map(|fault| {
            let position = converger_core::document::LineColumn::at_offset(text, fault.span.start);
            let help = fault.help.as_ref().map(|help| format!("; {help}")).unwrap_or_default();
            format!("{}:{}: {}{help}", position.line, position.column, fault.message)
        });
        list.collect()
    }

    fn check(text: &str) -> Result<Config, String> {
        let faults = |faults: Diagnostics| list_faults(text, &faults).join("\n");
        let file = ConfigFile::parse(text, Path::new("room")).map_err(faults)?;
        parse_config(text, file, &lab_name(), Path::new("room/converger.toml")).map_err(|fault| faults(fault.into()))
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
            let shared = check(&text).unwrap_or_else(|faults| panic!("{text}: {faults}")).same_cluster;
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
        let uuid = "12345678-1234-1234-1234-123456789abc";
        for (text, part) in [
            ("[limit]\nguests = 1", "1:2: unknown key `limit` in the file; did you mean `limits`?"),
            ("[limits]\nguest = 1", "2:1: unknown key `guest` in `[limits]`; did you mean `guests`?"),
            ("[limits]\nmax = 1", "2:1: unknown key `max` in `[limits]`; known keys: guests, percent, stops"),
            ("limits = 1", "1:10: `limits` in the file must be a table"),
            ("[environments]\nlab = 1", "2:7: `[environments.lab]` must be a table"),
            ("[environments.lab]\nendpoints = [\"https://pve1:8006\"]", "must be a table, such as `{ url ="),
            ("[environments.lab]\nendpoints = [{ ca = \"x\" }]", "an endpoint lacks the key `url`"),
            ("[limits]\nguests = -1", "2:10: `guests` in `[limits]` must be a whole number that is not negative"),
            ("[limits]\nguests = \"10\"", "`guests` in `[limits]` must be a whole number"),
            ("[environments.lab]\nsecret = \"hunter2\"", "2:10: `secret` in `[environments.lab]` must be a table that says where"),
            ("[environments.lab]\npassword = \"hunter2\"", "2:1: unknown key `password` in `[environments.lab]`; known keys: url, ca"),
            ("[environments.lab]\ntoken = \"root@pam!x=hunter2\"", "2:9: `token` is not the id of an API token; write it as"),
            ("[environments.lab]\ntoken = \"root@pam!x\"", "does not accept; the part after `!` has at least two characters"),
            ("\n[environments.lab]\nurl = \"https://pve1\"", "2:1: `[environments.lab]` lacks the key `token`"),
            ("[environments.lab]\nurl = \"https://pve1\"\ntoken = \"a@pve!me\"", "lacks the key `secret`"),
            ("[environments.lab]\nurl = \"12345678:8006\"", "2:7: `url` must begin with https://; write it as https://name:8006"),
            ("[environments.lab]\nurl = \"http://hunter2\"", "`url` must begin with https://"),
            ("[environments.lab]\nurl = \"https://a:hunter2@pve1\"", "`url` must not contain a user or a password"),
            ("[environments.lab]\nurl = \"https://pve1:8006/hunter2\"", "`url` must end after the port, without a path"),
            ("[environments.lab]\nurl = \"https://pve1:hunter2\"", "`url` has no valid host and port"),
            ("[environments.lab]\nurl = \"https://\"", "`url` lacks the name of the host"),
            ("[environments.lab.protect]\nnames = [\"core-*\"]", "2:10: this is not the beginning of a guest's name"),
            ("[limits]\npercent = 101", "`percent` in `[limits]` must be between 0 and 100, not 101"),
            ("[freeze]\non = true", "2:6: `on = true` in `[freeze]` needs a `reason`"),
            ("[freeze]\non = \"yes\"", "`on` in `[freeze]` must be true or false, without quotes"),
            ("[apply]\nat_once = 0", "`at_once` in `[apply]` must be between 1 and 1000 operations, not 0"),
            ("[apply]\nat_once_per_node = 1001", "`at_once_per_node` in `[apply]` must be between 1 and 1000"),
            ("[apply]\ntask_timeout = 9", "`task_timeout` in `[apply]` must be between 10 and 86400 seconds, not 9"),
            ("[ledger]\nwitness = \"\"", "`witness` in `[ledger]` is empty"),
            ("[environments.lab.protect]\nids = [5]", "2:8: this is not the id of a guest"),
            ("[environments.lab.protect]\ntags = [\"\"]", "2:9: this is not a tag"),
            ("[environments.\"a b\"]", "1:15: this is not a valid environment name"),
            (&lab_config("secret = { env = \"S\" }\nclock = \"requests\""), "5:9: `clock = \"requests\"` is for a lab on this machine"),
            ("limits = ", "1:"),
            (&lab_config("secret = { env = \"12345678-hunter2\" }"), "4:18: `env` is not the name of an environment variable"),
            (&lab_config(&format!("secret = {{ file = \"{uuid}\" }}")), "`file` is not the path of a file that holds the secret"),
            (&lab_config(&format!("secret = {{ credential = \"{uuid}\" }}")), "`credential` is not the name of a systemd credential"),
            (&lab_config("secret = { env = \"S\" }\nfingerprints = [\"hunter2\"]"), "5:17: this is not a SHA-256 fingerprint"),
            (&lab_config("mode = \"hunter2\""), "4:8: `mode` in `[environments.lab]` must be `\"solo\"` or `\"shared\"`"),
            (&lab_config("mode = \"sole\""), "did you mean `solo`?"),
            ("[environments.lab]\nhunter2 = 1", "2:1: unknown key in `[environments.lab]`; known keys: url, ca"),
            ("\"\\u001b[31m\" = 1", "1:1: unknown key in the file"),
            ("[environments.\"hunter2!\"]", "not a valid environment name"),
            ("secret = hunter2", "1:10: "),
        ] {
            let fault = check(text).err().unwrap_or_else(|| panic!("accepted: {text}"));
            let is_secret = fault.contains("hunter2") || fault.contains("12345678") || fault.contains('\u{1b}');
            assert!(fault.contains(part) && !is_secret, "{text}: {fault}");
        }
    }

    #[test]
    fn reports_all_faults_of_a_file_at_once() {
        let text = "[limits]\nguests = \"10\"\npercnt = 20\n\n[freeze]\non = true\n\n[environments.lab]\nurl = \"pve1\"\nmode = \"sole\"\n\n\
                    [environments.other.protect]\nids = [5, \"x\"]\n\n[enviroments.prod]\n";
        let faults = check(text).err().expect("faults");
        let places: Vec<&str> = faults.lines().filter_map(|fault| fault.split(": ").next()).collect();
        assert_eq!(places, ["2:10", "3:1", "6:6", "8:1", "8:1", "9:7", "10:8", "13:8", "13:11", "15:2"], "{faults}");
    }

    #[test]
    fn reports_all_faults_of_syntax_at_once() {
        let faults = check("limits = \n[freeze\non = true\n").err().expect("faults");
        assert!(faults.starts_with("1:10: ") && faults.contains("\n2:8: unclosed table"), "{faults}");
    }

    #[test]
    fn an_unknown_environment_lists_the_known_ones() {
        let file = ConfigFile::parse("[environments.prod.protect]\nids = [100]\n[environments.site-b]", Path::new("")).unwrap_or_default();
        let error = environment_missing(Path::new("converger.toml"), &lab_name(), &file);
        assert_eq!(error.text, "converger.toml has no environment `lab`; it has: prod, site-b");
        assert_eq!(error.code, FailureCode::EnvironmentUnconfigured);
    }

    #[test]
    fn everything_comes_from_the_text_that_was_read_first() {
        let directory = tempfile::TempDir::new().expect("a directory");
        let path = directory.path().join("converger.toml");
        let write = |text: &str| std::fs::write(&path, text).expect("written");
        write("[limits]\nstops = 0\n[environments.lab]");
        let source = ConfigSource::read(Some(&path));
        write("[limits]\nstops = 1\n[environments.other]");
        assert_eq!(source.environment_names().expect("names"), [&lab_name()]);
        assert_eq!(source.config(&lab_name()).expect("accepted").limits.stops, 0);
        write("limits = ");
        let faulty = ConfigSource::read(Some(&path));
        write("");
        assert_eq!(faulty.config(&lab_name()).err().map(|error| error.code), Some(FailureCode::ConfigInvalid));
        assert!(faulty.environment_names().is_err() && faulty.referenced_paths().state.is_none() && faulty.path() == Some(&path));
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
