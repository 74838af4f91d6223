//! `[environments.<name>]`: the address of an environment, whom to trust there, and where the secret of its token is.
//!
//! A secret is in an environment variable, a file or a systemd credential, and never in converger.toml. No connection is opened here.

use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use converger_adapters::proxmox::ConnectionSettings;
use converger_adapters::proxmox::client::{
    ApiToken, Endpoint, Fingerprint, RequestLimits, SecretError, SecretSource, TokenId, TokenSecret, Trust,
};
use converger_core::document::{Diagnostic, Span, nearest_word};
use converger_core::guest::EnvironmentName;
use toml::Spanned;
use toml::de::DeValue;

use super::table_reader::{FaultList, TableReader, as_text, fault_at, read_as, to_span};
use crate::files;

/// The keys of `[environments.<name>]`.
pub(super) const KEYS: [&str; 13] = [
    "url",
    "ca",
    "fingerprints",
    "endpoints",
    "token",
    "secret",
    "cluster",
    "mode",
    "timeout",
    "reading_timeout",
    "reading_mib",
    "clock",
    "protect",
];
/// The keys of one of the `endpoints`.
const ENDPOINT_KEYS: [&str; 3] = ["url", "ca", "fingerprints"];
/// The keys of `secret`.
const SECRET_KEYS: [&str; 3] = ["env", "file", "credential"];

/// Every word that a section may use as a key.
pub(super) fn known_keys() -> impl Iterator<Item = &'static str> {
    KEYS.into_iter().chain(SECRET_KEYS)
}

/// Who decides in an environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModeSetting {
    /// One person.
    Solo,
    /// Two people: one asks, another approves.
    Shared,
}

/// What moves the time of an environment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClockSetting {
    /// Real time.
    #[default]
    Real,
    /// Requests only (`converger lab --clock`): time does not pass while nothing is requested, so waiting would never end.
    Requests,
}

impl From<ModeSetting> for converger_core::approve::ApprovalMode {
    fn from(mode: ModeSetting) -> Self {
        match mode {
            ModeSetting::Solo => Self::Solo,
            ModeSetting::Shared => Self::Shared,
        }
    }
}

/// How an environment is reached. The secret itself is not read yet.
#[derive(Clone, Debug)]
pub struct ConnectionConfig {
    endpoints: Vec<Endpoint>,
    token: TokenId,
    secret: SecretSource,
    cluster: Option<String>,
    bounds: RequestLimits,
    /// The files that are read to reach it: certificate authorities and the secret.
    pub files: Vec<PathBuf>,
    /// Who decides; an apply needs to know.
    pub mode: Option<ModeSetting>,
    /// The clock by which an apply waits.
    pub clock: ClockSetting,
}

impl ConnectionConfig {
    /// The id of the token, which is no secret.
    #[must_use]
    pub fn token_id(&self) -> &str {
        self.token.as_str()
    }

    /// The longest time that a response may take, in milliseconds.
    pub fn response_ms_max(&self) -> u64 {
        u64::try_from(self.bounds.deadline.as_millis()).unwrap_or(u64::MAX)
    }
}

/// A response may take a second at least and ten minutes at most.
const TIMEOUT_SECS_RANGE: RangeInclusive<u64> = 1..=600;

/// An observation that is a day old is worthless.
const READING_SECS_RANGE: RangeInclusive<u64> = 1..=86_400;

/// The same bound as that of a recording.
const READING_MIB_RANGE: RangeInclusive<u64> = 1..=1024;

/// The connection of a section, if it has one: protection alone needs none. Paths are relative to `directory`.
pub(super) fn decode_connection(
    section: &TableReader<'_>,
    header: Span,
    directory: &Path,
    faults: &mut FaultList,
) -> Option<ConnectionConfig> {
    let [own @ .., _protect] = KEYS;
    if !section.has_any(&own) {
        return None;
    }
    let missing = |key: &str, help: &str, faults: &mut FaultList| {
        faults.push(Diagnostic::new(header, format!("{} lacks the key `{key}`", section.name())).with_help(help));
    };
    if !section.has_any(&["token"]) {
        missing("token", "write the id of the API token, such as `token = \"converger@pve!main\"`", faults);
    }
    if !section.has_any(&["secret"]) {
        missing("secret", "say where it is, such as `secret = { env = \"PVE_SECRET\" }`", faults);
    }
    if !section.has_any(&["url", "endpoints"]) {
        missing("url", "write the address of a node, such as `url = \"https://pve1.example:8006\"`", faults);
    }
    let token = section.text("token", "\"converger@pve!main\"", faults).and_then(|token| faults.keep(parse_token_id(&token)));
    let secret = decode_secret(section, directory, faults);
    let endpoints = decode_endpoints(section, directory, faults);
    let (cluster, bounds) = (decode_cluster(section, faults), decode_limits(section, faults));
    let mode = decode_word(section, "mode", &[("solo", ModeSetting::Solo), ("shared", ModeSetting::Shared)], faults);
    let clock = decode_clock(section, endpoints.as_ref().map(|(endpoints, _)| endpoints.as_slice()), faults);
    let (token, secret, (endpoints, authorities)) = (token?, secret?, endpoints?);
    let files = authorities.into_iter().chain(secret_file(&secret)).collect();
    Some(ConnectionConfig { endpoints, token, secret, cluster, bounds, files, mode: mode.map(Spanned::into_inner), clock })
}

/// The id of a token. It is never quoted: the secret may have been pasted behind it.
fn parse_token_id(token: &Spanned<String>) -> Result<TokenId, Diagnostic> {
    TokenId::new(token.get_ref()).ok_or_else(|| match token.get_ref().rsplit_once('!') {
        Some((_, name)) if name.len() < 2 => fault_at(token, "`token` ends in a name that Proxmox does not accept")
            .with_help("the part after `!` has at least two characters"),
        _ => fault_at(token, "`token` is not the id of an API token").with_help("write it as user@realm!name, without the secret"),
    })
}

/// The file that a secret is read from, if it is in one.
fn secret_file(secret: &SecretSource) -> Option<PathBuf> {
    match secret {
        SecretSource::File(path) => Some(path.clone()),
        SecretSource::Credential(name) => std::env::var_os("CREDENTIALS_DIRECTORY").map(|directory| Path::new(&directory).join(name)),
        SecretSource::Environment(_) => None,
    }
}

fn decode_limits(section: &TableReader<'_>, faults: &mut FaultList) -> RequestLimits {
    let mut bounds = RequestLimits::default();
    if let Some(seconds) = section.number_in("timeout", " seconds", &TIMEOUT_SECS_RANGE, faults) {
        bounds.deadline = Duration::from_secs(seconds);
    }
    if let Some(seconds) = section.number_in("reading_timeout", " seconds", &READING_SECS_RANGE, faults) {
        bounds.reading = Duration::from_secs(seconds);
    }
    if let Some(mib) = section.number_in("reading_mib", " MiB", &READING_MIB_RANGE, faults) {
        bounds.reading_bytes_max = mib << 20;
    }
    bounds
}

/// One of a closed set of words.
fn decode_word<T: Copy>(section: &TableReader<'_>, key: &str, words: &[(&str, T)], faults: &mut FaultList) -> Option<Spanned<T>> {
    let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    let wanted = format!("`\"{}\"`", known.join("\"` or `\""));
    let word = section.read(key, &wanted, faults, as_text)?;
    let found = words.iter().find(|(known, _)| known == word.get_ref());
    if found.is_none() {
        let fault = fault_at(&word, format!("`{key}` in {} must be {wanted}", section.name()));
        faults.push(match nearest_word(word.get_ref(), &known) {
            Some(near) => fault.with_help(format!("did you mean `{near}`?")),
            None => fault,
        });
    }
    found.map(|(_, value)| Spanned::new(word.span(), *value))
}

/// Waiting is what distinguishes a slow cluster from one that did nothing; only a lab may do without.
fn decode_clock(section: &TableReader<'_>, endpoints: Option<&[Endpoint]>, faults: &mut FaultList) -> ClockSetting {
    let words = [("real", ClockSetting::Real), ("requests", ClockSetting::Requests)];
    let Some(clock) = decode_word(section, "clock", &words, faults) else { return ClockSetting::Real };
    let is_lab = endpoints.is_none_or(|endpoints| endpoints.iter().all(Endpoint::is_loopback));
    if *clock.get_ref() == ClockSetting::Requests && !is_lab {
        let fault =
            fault_at(&clock, "`clock = \"requests\"` is for a lab on this machine (`converger lab --clock`), whose address is 127.0.0.1");
        faults.push(fault.with_help("remove the key"));
    }
    clock.into_inner()
}

fn decode_cluster(section: &TableReader<'_>, faults: &mut FaultList) -> Option<String> {
    let cluster = section.text("cluster", "\"home\"", faults)?;
    if cluster.get_ref().is_empty() {
        let help = "write the name of the cluster, or the name of the node if there is no cluster; or remove the key";
        faults.push(fault_at(&cluster, "`cluster` is empty").with_help(help));
    }
    Some(cluster.into_inner())
}

const ENDPOINT_EXAMPLE: &str = "`{ url = \"https://pve1:8006\", fingerprints = [\"AB:CD:...\"] }`";

/// The endpoints, and the files with the authorities that vouch for them.
fn decode_endpoints(section: &TableReader<'_>, directory: &Path, faults: &mut FaultList) -> Option<(Vec<Endpoint>, Vec<PathBuf>)> {
    if !section.has_any(&["endpoints"]) {
        return decode_endpoint(section, directory, faults).map(|(endpoint, ca)| (vec![endpoint], ca.into_iter().collect()));
    }
    let list = section.array("endpoints", &format!("[{ENDPOINT_EXAMPLE}]"), faults)?;
    if section.has_any(&["url"]) {
        faults.push(fault_at(&list, "`url` and `endpoints` exclude each other").with_help("write one of them"));
    }
    if section.has_any(&["ca", "fingerprints"]) {
        let fault = fault_at(&list, "`ca` and `fingerprints` do not apply to a list of `endpoints`");
        faults.push(fault.with_help(format!("write them into each of the `endpoints`, such as {ENDPOINT_EXAMPLE}")));
    }
    if list.get_ref().is_empty() {
        faults.push(fault_at(&list, "`endpoints` is empty").with_help(format!("write at least one, such as {ENDPOINT_EXAMPLE}")));
    }
    let what = format!("each of the `endpoints` in {}", section.name());
    let endpoints: Vec<(Endpoint, Option<PathBuf>)> = list
        .get_ref()
        .iter()
        .filter_map(|entry| {
            let table = faults.keep(read_as(entry, &what, &format!("a table, such as {ENDPOINT_EXAMPLE}"), DeValue::as_table))?;
            let span = to_span(table.span());
            let reader = TableReader::new("an endpoint", table.into_inner(), &ENDPOINT_KEYS, faults);
            if !reader.has_any(&["url"]) {
                faults.push(Diagnostic::new(span, "an endpoint lacks the key `url`").with_help(format!("such as {ENDPOINT_EXAMPLE}")));
            }
            decode_endpoint(&reader, directory, faults)
        })
        .collect();
    let (endpoints, authorities): (Vec<_>, Vec<_>) = endpoints.into_iter().unzip();
    Some((endpoints, authorities.into_iter().flatten().collect()))
}

/// An endpoint, and the file with its authority.
fn decode_endpoint(table: &TableReader<'_>, directory: &Path, faults: &mut FaultList) -> Option<(Endpoint, Option<PathBuf>)> {
    let ca = table.text("ca", "\"pve-root-ca.pem\"", faults).map(|path| directory.join(path.into_inner()));
    let pins = table.texts("fingerprints", "[\"AB:CD:...\"]", faults);
    if let (Some(_), Some(pins)) = (&ca, &pins) {
        let fault = fault_at(pins, "`ca` and `fingerprints` exclude each other");
        faults.push(fault.with_help("write one of them: a pinned certificate needs no authority"));
    }
    if let Some(pins) = pins.as_ref().filter(|pins| pins.get_ref().is_empty()) {
        faults.push(fault_at(pins, "`fingerprints` is empty").with_help("`pvenode cert info` on the node shows the fingerprint"));
    }
    let pins = pins.map(|pins| pins.into_inner().iter().filter_map(|pin| faults.keep(parse_fingerprint(pin))).collect::<Vec<_>>());
    let trust = match (&ca, pins) {
        (Some(path), _) => Trust::CaFile(path.clone()),
        (None, Some(pins)) => Trust::Fingerprints(pins.into()),
        (None, None) => Trust::System,
    };
    let url = table.text("url", "\"https://pve1.example:8006\"", faults)?;
    // The address is not quoted: it may have a password in it.
    let endpoint = Endpoint::new(url.get_ref(), trust).map_err(|_| {
        fault_at(&url, describe_address_fault(url.get_ref())).with_help("write it as https://name:8006, with nothing before or after that")
    });
    faults.keep(endpoint).map(|endpoint| (endpoint, ca))
}

/// What is wrong with an address, without any part of it.
fn describe_address_fault(address: &str) -> &'static str {
    let Some(rest) = address.strip_prefix("https://") else { return "`url` must begin with https://" };
    if rest.contains('@') {
        return "`url` must not contain a user or a password";
    }
    match rest.split_once(['/', '?', '#']) {
        Some(("", _)) => "`url` lacks the name of the host",
        Some(_) if rest.strip_suffix('/').is_none_or(|host| host.contains(['/', '?', '#'])) => {
            "`url` must end after the port, without a path"
        }
        _ if rest.is_empty() => "`url` lacks the name of the host",
        _ => "`url` has no valid host and port",
    }
}

fn parse_fingerprint(text: &Spanned<String>) -> Result<Fingerprint, Diagnostic> {
    let help = "`pvenode cert info` on the node shows it as 32 pairs of hexadecimal digits, separated by colons";
    Fingerprint::new(text.get_ref()).ok_or_else(|| fault_at(text, "this is not a SHA-256 fingerprint").with_help(help))
}

fn is_variable_name(name: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    !name.is_empty() && !name.starts_with(|first: char| first.is_ascii_digit()) && name.bytes().all(is_word)
}

/// Hexadecimal digits of a UUID.
const UUID_DIGITS: usize = 32;

/// Whether somebody wrote a secret in place of its location. Secrets of Proxmox are UUIDs; a token may be pasted with its id (`user@realm!name=`).
pub(super) fn looks_like_secret(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut runs = name.split(|character: char| !character.is_ascii_hexdigit() && character != '-');
    let has_uuid = runs.any(|run| run.bytes().filter(u8::is_ascii_hexdigit).count() >= UUID_DIGITS);
    let has_token_id = name.split_once('!').is_some_and(|(_, rest)| rest.contains('='));
    has_uuid || has_token_id
}

const SECRET_EXAMPLE: &str = "say where the secret is, such as `{ env = \"PVE_SECRET\" }`; the secret itself never stands in this file";

fn decode_secret(section: &TableReader<'_>, directory: &Path, faults: &mut FaultList) -> Option<SecretSource> {
    let value =
        section.read("secret", "a table that says where the secret is, such as `{ env = \"PVE_SECRET\" }`", faults, DeValue::as_table)?;
    let span = value.span();
    let reader = TableReader::new("`secret`", value.into_inner(), &SECRET_KEYS, faults);
    let env = reader.text("env", "\"PVE_SECRET\"", faults);
    let file = reader.text("file", "\"/etc/converger/secret\"", faults);
    let credential = reader.text("credential", "\"pve-secret\"", faults);
    let is_plain = |text: &Spanned<String>| !looks_like_secret(Path::new(text.get_ref()));
    let source = match (env, file, credential) {
        (Some(name), None, None) if is_variable_name(name.get_ref()) => Ok(SecretSource::Environment(name.into_inner())),
        (Some(name), None, None) => Err(fault_at(&name, "`env` is not the name of an environment variable")),
        (None, Some(path), None) if is_plain(&path) => Ok(SecretSource::File(directory.join(path.into_inner()))),
        (None, Some(path), None) => Err(fault_at(&path, "`file` is not the path of a file that holds the secret")),
        (None, None, Some(name)) if is_plain(&name) => Ok(SecretSource::Credential(name.into_inner())),
        (None, None, Some(name)) => Err(fault_at(&name, "`credential` is not the name of a systemd credential")),
        _ => Err(Diagnostic::new(to_span(span), "`secret` needs exactly one of `env`, `file` and `credential`")),
    };
    faults.keep(source.map_err(|fault| fault.with_help(SECRET_EXAMPLE)))
}

impl ConnectionConfig {
    /// What to do where it cannot be opened.
    pub const REMEDY: &str = "check `secret` and `ca` in converger.toml, and the files and variables that they name";

    /// The settings of the connection, with its secret.
    ///
    /// # Errors
    /// A sentence that says which file or secret cannot be used, and why.
    pub fn resolve_settings(&self, name: &EnvironmentName) -> Result<ConnectionSettings, String> {
        for path in &self.files {
            // Opening a pipe would block without a message. A missing file is reported where it is read.
            files::check_readable(path)
                .or_else(|error| if error.kind() == io::ErrorKind::Other { Err(error) } else { Ok(()) })
                .map_err(|error| format!("cannot read {}: {error}", files::display_path(path)))?;
        }
        let secret = read_secret(&self.secret).map_err(|error| files::escape_hidden(&error.to_string()))?;
        if !secret.can_be_redacted() && !self.endpoints.iter().all(Endpoint::is_loopback) {
            let secret_source = files::escape_hidden(&self.secret.to_string());
            return Err(format!(
                "{secret_source} holds a secret of less than {} characters, too short to be redacted in messages; secrets of Proxmox have 36, and only a \
                 lab on this machine (127.0.0.1) may have a shorter one",
                TokenSecret::REDACTED_BYTES_MIN
            ));
        }
        Ok(ConnectionSettings {
            name: name.clone(),
            cluster: self.cluster.as_deref().map(Into::into),
            endpoints: self.endpoints.clone(),
            token: ApiToken { id: self.token.clone(), secret },
            bounds: self.bounds,
        })
    }
}

impl ConnectionConfig {
    /// Whether the secret can be read now.
    pub(super) fn has_readable_secret(&self) -> bool {
        read_secret(&self.secret).is_ok()
    }

    /// The file with the secret, if others on this machine may read or write it.
    pub fn exposed_secret_file(&self) -> Option<&Path> {
        let SecretSource::File(path) = &self.secret else { return None };
        let mode = std::fs::metadata(path).ok()?.permissions().mode();
        (mode & 0o077 != 0).then_some(path)
    }
}

fn read_secret(source: &SecretSource) -> Result<TokenSecret, SecretError> {
    if let SecretSource::File(path) = source {
        files::check_readable(path).map_err(|error| SecretError::Unreadable { source_of: source.clone(), source: error })?;
    }
    // A variable that is not UTF-8 is set, but is no valid secret.
    source.read(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
}

/// Another environment that may be the cluster of `own` under a second name, and what indicates that.
///
/// Holds, freezes and operations in flight are kept by environment name, so a second name would bypass them (G12). Two addresses of one
/// cluster are recognised only by its pinned name.
pub(super) fn find_same_cluster<'c>(
    own: &EnvironmentName,
    connections: &'c BTreeMap<EnvironmentName, ConnectionConfig>,
) -> Option<(&'c EnvironmentName, String)> {
    let own_connection = connections.get(own)?;
    connections.iter().filter(|(name, _)| *name != own).find_map(|(name, other)| Some((name, own_connection.describe_overlap(other)?)))
}

impl ConnectionConfig {
    /// What two environments that may be one cluster share, in words.
    fn describe_overlap(&self, other: &Self) -> Option<String> {
        let is_theirs = |endpoint: &&Endpoint| other.endpoints.iter().any(|their| their.name() == endpoint.name());
        let shared_address = self.endpoints.iter().find(is_theirs).map(|endpoint| format!("the address {}", endpoint.name()));
        shared_address.or_else(|| {
            self.cluster.as_ref().filter(|name| other.cluster.as_ref() == Some(name)).map(|name| format!("`cluster = {name:?}`"))
        })
    }
}

/// Why one cluster must not have two names.
pub const ONE_NAME_PER_CLUSTER: &str = "holds, freezes and operations in flight apply to one name only";

/// Another environment whose secret is the same as that of `own`.
///
/// Secrets are compared by location, and by value where both can be read. With one token for two clusters, a wrong environment name would
/// reach the wrong cluster.
pub(super) fn find_same_secret<'c>(
    own: &EnvironmentName,
    connections: &'c BTreeMap<EnvironmentName, ConnectionConfig>,
) -> Option<&'c EnvironmentName> {
    let source = &connections.get(own)?.secret;
    let secret = read_secret(source).ok();
    let is_same = |other: &ConnectionConfig| other.secret == *source || secret.is_some() && read_secret(&other.secret).ok() == secret;
    connections.iter().find(|(name, other)| *name != own && is_same(other)).map(|(name, _)| name)
}
