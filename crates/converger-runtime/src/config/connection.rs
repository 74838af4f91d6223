//! `[environments.<name>]`: where an environment is, whom to trust there, and where the secret of its token is.
//!
//! A secret stands in an environment variable, a file or a systemd credential, and never in converger.toml. What never
//! enters here: a connection.

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
use converger_core::guest::EnvironmentName;
use serde::Deserialize;
use toml::Spanned;

use super::fault::ConfigFault;
use crate::files;

/// How an environment is written in converger.toml, besides its protection.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EnvironmentTable {
    url: Option<Spanned<String>>,
    ca: Option<Spanned<PathBuf>>,
    fingerprints: Option<FingerprintList>,
    endpoints: Option<Spanned<Vec<EndpointTable>>>,
    token: Option<Spanned<String>>,
    secret: Option<Spanned<SecretTable>>,
    cluster: Option<Spanned<String>>,
    mode: Option<ModeSetting>,
    timeout: Option<Spanned<u64>>,
    reading_timeout: Option<Spanned<u64>>,
    reading_mib: Option<Spanned<u64>>,
    clock: Option<Spanned<ClockSetting>>,
    #[serde(default)]
    pub(super) protect: super::ProtectTable,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "one endpoint, such as `{ url = \"https://pve1:8006\", fingerprints = [\"AB:CD:...\"] }`")]
struct EndpointTable {
    url: Spanned<String>,
    ca: Option<Spanned<PathBuf>>,
    fingerprints: Option<FingerprintList>,
}

type FingerprintList = Spanned<Vec<Spanned<String>>>;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "where the secret is, such as `{ env = \"PVE_SECRET\" }`; it never stands in this file")]
struct SecretTable {
    env: Option<String>,
    file: Option<PathBuf>,
    credential: Option<String>,
}

/// Who decides in an environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModeSetting {
    /// One person.
    Solo,
    /// Who asks and who approves are two.
    Shared,
}

/// What moves the time of an environment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClockSetting {
    /// It runs as it does.
    #[default]
    Real,
    /// Requests only (`converger lab --clock`): who waited for anything there would wait for nothing.
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

/// How an environment is reached. The secret is still where it is.
#[derive(Clone, Debug)]
pub struct ConnectionConfig {
    endpoints: Vec<Endpoint>,
    token: TokenId,
    secret: SecretSource,
    cluster: Option<String>,
    bounds: RequestLimits,
    /// The files that are read to reach it: authorities and the secret.
    pub files: Vec<PathBuf>,
    /// Who decides; an apply needs to know.
    pub mode: Option<ModeSetting>,
    /// What an apply waits by.
    pub clock: ClockSetting,
}

impl ConnectionConfig {
    /// The id of the token, which is no secret.
    #[must_use]
    pub fn token_id(&self) -> &str {
        self.token.as_str()
    }

    /// What an answer may take.
    pub fn response_ms_max(&self) -> u64 {
        u64::try_from(self.bounds.deadline.as_millis()).unwrap_or(u64::MAX)
    }
}

/// An answer takes at least a second, and nobody waits longer than ten minutes.
const TIMEOUT_SECS_RANGE: RangeInclusive<u64> = 1..=600;

/// A reading that is a day old says nothing about today.
const READING_SECS_RANGE: RangeInclusive<u64> = 1..=86_400;

/// A recording may not be larger either.
const READING_MIB_RANGE: RangeInclusive<u64> = 1..=1024;

/// The connection that is written, if one is. Paths are those of `room`, the directory of the file.
pub(super) fn parse_connection(environment: &Spanned<EnvironmentTable>, room: &Path) -> Result<Option<ConnectionConfig>, ConfigFault> {
    let written = environment.get_ref();
    if !written.has_connection_keys() {
        return Ok(None);
    }
    let missing = |text: &str| ConfigFault::at_value(environment, text);
    let token = written.token.as_ref();
    let token = token.ok_or_else(|| missing("`token` is missing: the id of the API token, such as `converger@pve!main`"))?;
    let token = TokenId::new(token.get_ref()).ok_or_else(|| {
        // Somebody may have pasted the secret behind it, so that it is not shown.
        let text = match token.get_ref().rsplit_once('!') {
            Some((_, name)) if name.len() < 2 => {
                "`token` ends in a name that Proxmox does not accept: the part after `!` has at least two characters"
            }
            _ => "`token` is not the id of an API token; write it as user@realm!name, without the secret",
        };
        ConfigFault::at_value(token, text)
    })?;
    let secret = written.secret.as_ref();
    let secret = secret.ok_or_else(|| missing("`secret` is missing: say where it is, such as `secret = { env = \"PVE_SECRET\" }`"))?;
    let endpoints = written.parse_endpoints(environment, room)?;
    let (secret, cluster, bounds) = (parse_secret_source(secret, room)?, written.parse_cluster()?, written.parse_limits()?);
    let clock = written.parse_clock(&endpoints)?;
    let files = written.referenced_files(room, &secret);
    Ok(Some(ConnectionConfig { endpoints, token, secret, cluster, bounds, files, mode: written.mode, clock }))
}

impl EnvironmentTable {
    /// Whether anything is written that only a connection needs.
    fn has_connection_keys(&self) -> bool {
        let trust = self.ca.is_some() || self.fingerprints.is_some();
        let place = self.url.is_some() || self.endpoints.is_some();
        let bounds = self.timeout.is_some() || self.reading_timeout.is_some() || self.reading_mib.is_some();
        let rest = self.token.is_some() || self.secret.is_some() || self.clock.is_some();
        trust || place || bounds || rest || self.cluster.is_some() || self.mode.is_some()
    }

    fn referenced_files(&self, room: &Path, secret: &SecretSource) -> Vec<PathBuf> {
        let endpoints = self.endpoints.iter().flat_map(|list| list.get_ref()).flat_map(|own| &own.ca);
        let authorities = self.ca.iter().chain(endpoints).map(|ca| room.join(ca.get_ref()));
        let secret = match secret {
            SecretSource::File(path) => Some(path.clone()),
            SecretSource::Credential(name) => std::env::var_os("CREDENTIALS_DIRECTORY").map(|room| Path::new(&room).join(name)),
            SecretSource::Environment(_) => None,
        };
        authorities.chain(secret).collect()
    }

    fn parse_limits(&self) -> Result<RequestLimits, ConfigFault> {
        let mut bounds = RequestLimits::default();
        if let Some(seconds) = check_range("timeout", "seconds", self.timeout.as_ref(), TIMEOUT_SECS_RANGE)? {
            bounds.deadline = Duration::from_secs(seconds);
        }
        if let Some(seconds) = check_range("reading_timeout", "seconds", self.reading_timeout.as_ref(), READING_SECS_RANGE)? {
            bounds.reading = Duration::from_secs(seconds);
        }
        if let Some(mib) = check_range("reading_mib", "MiB", self.reading_mib.as_ref(), READING_MIB_RANGE)? {
            bounds.reading_bytes_max = mib << 20;
        }
        Ok(bounds)
    }

    /// Waiting is what tells a slow cluster from one that did nothing: only a lab may do without.
    fn parse_clock(&self, endpoints: &[Endpoint]) -> Result<ClockSetting, ConfigFault> {
        match &self.clock {
            Some(clock) if *clock.get_ref() == ClockSetting::Requests && !endpoints.iter().all(Endpoint::is_loopback) => {
                Err(ConfigFault::at_value(
                    clock,
                    "`clock = \"requests\"` is for a lab on this machine (`converger lab --clock`), whose address is 127.0.0.1",
                ))
            }
            clock => Ok(clock.as_ref().map_or(ClockSetting::Real, |clock| *clock.get_ref())),
        }
    }

    fn parse_cluster(&self) -> Result<Option<String>, ConfigFault> {
        match &self.cluster {
            Some(cluster) if cluster.get_ref().is_empty() => {
                Err(ConfigFault::at_value(cluster, "`cluster` is empty; write the name of the cluster, or of the node where there is none"))
            }
            cluster => Ok(cluster.as_ref().map(|cluster| cluster.get_ref().clone())),
        }
    }

    fn parse_endpoints(&self, environment: &Spanned<Self>, room: &Path) -> Result<Vec<Endpoint>, ConfigFault> {
        let list = match (&self.url, &self.endpoints) {
            (Some(url), None) => return Ok(vec![parse_endpoint(url, self.ca.as_ref(), self.fingerprints.as_ref(), room)?]),
            (Some(_), Some(list)) => return Err(ConfigFault::at_value(list, "write either `url` or `endpoints`")),
            (None, None) => {
                return Err(ConfigFault::at_value(environment, "`url` is missing, such as `url = \"https://pve1.example:8006\"`"));
            }
            (None, Some(list)) => list,
        };
        let shared = "`ca` and `fingerprints` belong to each of the `endpoints`";
        match (&self.ca, &self.fingerprints) {
            (Some(ca), _) => return Err(ConfigFault::at_value(ca, shared)),
            (None, Some(pins)) => return Err(ConfigFault::at_value(pins, shared)),
            (None, None) if list.get_ref().is_empty() => {
                return Err(ConfigFault::at_value(list, "`endpoints` is empty; write at least one"));
            }
            (None, None) => {}
        }
        list.get_ref().iter().map(|own| parse_endpoint(&own.url, own.ca.as_ref(), own.fingerprints.as_ref(), room)).collect()
    }
}

/// A number that is written, if it is one that can be meant.
pub(super) fn check_range(
    key: &str,
    unit: &str,
    written: Option<&Spanned<u64>>,
    range: RangeInclusive<u64>,
) -> Result<Option<u64>, ConfigFault> {
    let Some(written) = written else { return Ok(None) };
    let number = *written.get_ref();
    if range.contains(&number) {
        return Ok(Some(number));
    }
    Err(ConfigFault::at_value(written, format!("`{key}` must be between {} and {} {unit}, not {number}", range.start(), range.end())))
}

fn parse_endpoint(
    url: &Spanned<String>,
    ca: Option<&Spanned<PathBuf>>,
    pins: Option<&FingerprintList>,
    room: &Path,
) -> Result<Endpoint, ConfigFault> {
    let trust = match (ca, pins) {
        (Some(_), Some(pins)) => {
            return Err(ConfigFault::at_value(pins, "write either `ca` or `fingerprints`: a pinned certificate needs no authority"));
        }
        (Some(path), None) => Trust::CaFile(room.join(path.get_ref())),
        (None, Some(pins)) if pins.get_ref().is_empty() => {
            return Err(ConfigFault::at_value(pins, "`fingerprints` is empty; `pvenode cert info` on the node shows the fingerprint"));
        }
        (None, Some(pins)) => Trust::Fingerprints(pins.get_ref().iter().map(parse_fingerprint).collect::<Result<_, _>>()?),
        (None, None) => Trust::System,
    };
    // What is written is not shown: there may be a password in it.
    let wrong = |_| {
        ConfigFault::at_value(url, "`url` is not the address of an API; write it as https://name:8006, with nothing before or behind that")
    };
    Endpoint::new(url.get_ref(), trust).map_err(wrong)
}

fn parse_fingerprint(text: &Spanned<String>) -> Result<Fingerprint, ConfigFault> {
    Fingerprint::new(text.get_ref()).ok_or_else(|| {
        let help = "`pvenode cert info` on the node shows it as 32 pairs of digits with colons";
        ConfigFault::at_value(text, format!("this is not a SHA-256 fingerprint; {help}"))
    })
}

const SECRET_NOT_IN_FILE: &str = "the secret itself never stands in this file";

fn is_variable_name(name: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    !name.is_empty() && !name.starts_with(|first: char| first.is_ascii_digit()) && name.bytes().all(is_word)
}

/// Whether somebody wrote a secret where its place belongs: secrets of Proxmox are UUIDs.
fn looks_like_secret(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let groups: Vec<&str> = name.split('-').collect();
    groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12])
        && groups.iter().all(|group| group.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn parse_secret_source(secret: &Spanned<SecretTable>, room: &Path) -> Result<SecretSource, ConfigFault> {
    let SecretTable { env, file, credential } = secret.get_ref();
    match (env, file, credential) {
        (Some(name), None, None) if is_variable_name(name) => Ok(SecretSource::Environment(name.clone())),
        (Some(_), None, None) => Err(ConfigFault::at_value(
            secret,
            format!("`env` is the name of an environment variable, such as `PVE_SECRET`; {SECRET_NOT_IN_FILE}"),
        )),
        (None, Some(path), None) if !looks_like_secret(path) => Ok(SecretSource::File(room.join(path))),
        (None, Some(_), None) => {
            Err(ConfigFault::at_value(secret, format!("`file` is the path of a file that holds the secret; {SECRET_NOT_IN_FILE}")))
        }
        (None, None, Some(name)) if !looks_like_secret(Path::new(name)) => Ok(SecretSource::Credential(name.clone())),
        (None, None, Some(_)) => {
            Err(ConfigFault::at_value(secret, format!("`credential` is the name of a systemd credential; {SECRET_NOT_IN_FILE}")))
        }
        _ => Err(ConfigFault::at_value(secret, "`secret` needs exactly one of `env`, `file` and `credential`")),
    }
}

impl ConnectionConfig {
    /// What to do where it cannot be opened.
    pub const REMEDY: &str = "compare what `secret` and `ca` say in converger.toml with what is there";

    /// The environment, with its secret.
    pub fn resolve_settings(&self, name: &EnvironmentName) -> Result<ConnectionSettings, String> {
        for path in &self.files {
            // A pipe would be waited for without a word. What is not there is said where it is read.
            files::check_readable(path)
                .or_else(|error| if error.kind() == io::ErrorKind::Other { Err(error) } else { Ok(()) })
                .map_err(|error| format!("cannot read {}: {error}", files::display_path(path)))?;
        }
        let secret = read_secret(&self.secret).map_err(|error| files::escape_hidden(&error.to_string()))?;
        if !secret.can_be_redacted() && !self.endpoints.iter().all(Endpoint::is_loopback) {
            let place = files::escape_hidden(&self.secret.to_string());
            return Err(format!(
                "{place} holds a secret of less than {} characters, which could not be kept out of messages; those of Proxmox have 36, and \
                 only a lab on this machine (127.0.0.1) may have a shorter one",
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
    // What is no text is there all the same, and is no secret.
    source.read(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
}

/// Another environment that is the cluster of `own` under a second name, and what shows it.
///
/// What is held, frozen or under way is kept by the name of the environment: under another name it would bind nobody (G12). Two addresses of one
/// cluster are known by its pinned name only.
pub(super) fn find_same_cluster<'c>(
    own: &EnvironmentName,
    connections: &'c BTreeMap<EnvironmentName, ConnectionConfig>,
) -> Option<(&'c EnvironmentName, String)> {
    let ours = connections.get(own)?;
    connections.iter().filter(|(name, _)| *name != own).find_map(|(name, other)| Some((name, ours.describe_overlap(other)?)))
}

impl ConnectionConfig {
    /// What two environments that may be one cluster have in common, in words.
    fn describe_overlap(&self, other: &Self) -> Option<String> {
        let is_theirs = |endpoint: &&Endpoint| other.endpoints.iter().any(|their| their.name() == endpoint.name());
        let place = self.endpoints.iter().find(is_theirs).map(|endpoint| format!("the address {}", endpoint.name()));
        place.or_else(|| {
            self.cluster.as_ref().filter(|name| other.cluster.as_ref() == Some(name)).map(|name| format!("`cluster = {name:?}`"))
        })
    }
}

/// What follows from one cluster with two names.
pub const ONE_NAME_PER_CLUSTER: &str = "a hold, a freeze and an operation under way bind one name only";

/// Another environment whose secret is the same as that of `own`.
///
/// By where it is, and by what it is where both can be read: whoever has one secret for two has one token for both, and a slip
/// in the name of an environment would reach the wrong one.
pub(super) fn find_same_secret<'c>(
    own: &EnvironmentName,
    connections: &'c BTreeMap<EnvironmentName, ConnectionConfig>,
) -> Option<&'c EnvironmentName> {
    let source = &connections.get(own)?.secret;
    let secret = read_secret(source).ok();
    let is_same = |other: &ConnectionConfig| other.secret == *source || secret.is_some() && read_secret(&other.secret).ok() == secret;
    connections.iter().find(|(name, other)| *name != own && is_same(other)).map(|(name, _)| name)
}
