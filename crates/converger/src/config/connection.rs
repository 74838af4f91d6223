//! `[environments.<name>]`: where an environment is, whom to trust there, and where the secret of its token is.
//!
//! A secret stands in an environment variable, a file or a systemd credential, and never in converger.toml. What never
//! enters here: a connection.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use converger_adapters::proxmox::Environment;
use converger_adapters::proxmox::client::{Bounds, Endpoint, Fingerprint, Secret, SecretSource, Token, TokenId, Trust};
use converger_core::guest::EnvironmentName;
use serde::Deserialize;

/// How an environment is written in converger.toml, besides its protection.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    url: Option<String>,
    ca: Option<PathBuf>,
    fingerprints: Option<Vec<String>>,
    endpoints: Option<Vec<WrittenEndpoint>>,
    token: Option<String>,
    secret: Option<WrittenSecret>,
    cluster: Option<String>,
    mode: Option<Mode>,
    timeout: Option<u64>,
    #[serde(default)]
    pub(super) protect: super::Protect,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenEndpoint {
    url: String,
    ca: Option<PathBuf>,
    fingerprints: Option<Vec<String>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenSecret {
    env: Option<String>,
    file: Option<PathBuf>,
    credential: Option<String>,
}

/// Who decides in an environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mode {
    /// One person.
    Solo,
    /// Who asks and who approves are two.
    Shared,
}

/// How an environment is reached. The secret is still where it is.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    endpoints: Vec<Endpoint>,
    token: TokenId,
    secret: SecretSource,
    cluster: Option<String>,
    bounds: Bounds,
    /// Who decides; an apply needs to know.
    pub(crate) mode: Option<Mode>,
}

/// An answer takes at least a second, and nobody waits longer than ten minutes.
const TIMEOUT_SECS: std::ops::RangeInclusive<u64> = 1..=600;

impl Written {
    /// The connection, where one is written. Paths are those of `room`, the directory of the file.
    pub(super) fn connection(&self, room: &Path) -> Result<Option<Connection>, String> {
        if !self.has_any() {
            return Ok(None);
        }
        let token = self.token.as_deref().ok_or("`token` is missing: the id of the API token, such as `converger@pve!main`")?;
        let token = TokenId::new(token).ok_or_else(|| {
            // Somebody may have pasted the secret behind it.
            "`token` is not the id of an API token; write it as user@realm!name, without the secret".to_owned()
        })?;
        let secret = self.secret.as_ref().ok_or("`secret` is missing: say where it is, such as `secret = { env = \"PVE_SECRET\" }`")?;
        let mut bounds = Bounds::default();
        if let Some(seconds) = self.timeout {
            if !TIMEOUT_SECS.contains(&seconds) {
                return Err(format!("`timeout` must be between 1 and 600 seconds, not {seconds}"));
            }
            bounds.deadline = Duration::from_secs(seconds);
            bounds.connect = bounds.connect.min(bounds.deadline);
        }
        let cluster = self.cluster.clone();
        if cluster.as_deref().is_some_and(str::is_empty) {
            return Err("`cluster` is empty; write the name of the cluster, or of the node where there is none".into());
        }
        Ok(Some(Connection { endpoints: self.endpoints(room)?, token, secret: secret.source(room)?, cluster, bounds, mode: self.mode }))
    }

    /// Whether anything is written that only a connection needs.
    fn has_any(&self) -> bool {
        let trust = self.ca.is_some() || self.fingerprints.is_some();
        let place = self.url.is_some() || self.endpoints.is_some();
        let rest = self.token.is_some() || self.secret.is_some() || self.timeout.is_some();
        trust || place || rest || self.cluster.is_some() || self.mode.is_some()
    }

    fn endpoints(&self, room: &Path) -> Result<Vec<Endpoint>, String> {
        match (&self.url, &self.endpoints) {
            (Some(url), None) => Ok(vec![endpoint(url, self.ca.as_deref(), self.fingerprints.as_deref(), room)?]),
            (None, Some(list)) if self.ca.is_none() && self.fingerprints.is_none() => {
                if list.is_empty() {
                    return Err("`endpoints` is empty; write at least one".into());
                }
                list.iter().map(|own| endpoint(&own.url, own.ca.as_deref(), own.fingerprints.as_deref(), room)).collect()
            }
            (None, Some(_)) => Err("`ca` and `fingerprints` belong to each of the `endpoints`".into()),
            (Some(_), Some(_)) => Err("write either `url` or `endpoints`".into()),
            (None, None) => Err("`url` is missing, such as `url = \"https://pve1.example:8006\"`".into()),
        }
    }
}

fn endpoint(url: &str, ca: Option<&Path>, fingerprints: Option<&[String]>, room: &Path) -> Result<Endpoint, String> {
    let trust = match (ca, fingerprints) {
        (Some(_), Some(_)) => return Err("write either `ca` or `fingerprints`: a pinned certificate needs no authority".into()),
        (Some(path), None) => Trust::CaFile(room.join(path)),
        (None, Some(pins)) => Trust::Fingerprints(pins.iter().map(|pin| fingerprint(pin)).collect::<Result<_, _>>()?),
        (None, None) => Trust::System,
    };
    Endpoint::new(url, trust).map_err(|error| error.to_string())
}

fn fingerprint(text: &str) -> Result<Fingerprint, String> {
    Fingerprint::new(text).ok_or_else(|| {
        let shown = text.escape_debug();
        format!("`{shown}` is not a SHA-256 fingerprint; `pvenode cert info` on the node shows it as 32 pairs of digits with colons")
    })
}

impl WrittenSecret {
    fn source(&self, room: &Path) -> Result<SecretSource, String> {
        match (&self.env, &self.file, &self.credential) {
            (Some(name), None, None) => Ok(SecretSource::Environment(name.clone())),
            (None, Some(path), None) => Ok(SecretSource::File(room.join(path))),
            (None, None, Some(name)) => Ok(SecretSource::Credential(name.clone())),
            _ => Err("`secret` needs exactly one of `env`, `file` and `credential`".into()),
        }
    }
}

impl Connection {
    /// The environment, with its secret.
    pub(crate) fn open(&self, name: &EnvironmentName) -> Result<Environment, String> {
        let secret = read(&self.secret).map_err(|error| error.to_string())?;
        Ok(Environment {
            name: name.clone(),
            cluster: self.cluster.as_deref().map(Into::into),
            endpoints: self.endpoints.clone(),
            token: Token { id: self.token.clone(), secret },
            bounds: self.bounds,
        })
    }
}

fn read(source: &SecretSource) -> Result<Secret, converger_adapters::proxmox::client::SecretError> {
    source.read(|name| std::env::var(name).ok())
}

/// Another environment whose secret is the same as that of `own`.
///
/// By where it is, and by what it is where both can be read: whoever has one secret for two has one token for both, and a slip
/// in the name of an environment would reach the wrong one.
pub(super) fn same_secret<'c>(
    own: &EnvironmentName,
    connections: &'c BTreeMap<EnvironmentName, Connection>,
) -> Option<&'c EnvironmentName> {
    let source = &connections.get(own)?.secret;
    let secret = read(source).ok();
    let is_same = |other: &Connection| other.secret == *source || secret.is_some() && read(&other.secret).ok() == secret;
    connections.iter().find(|(name, other)| *name != own && is_same(other)).map(|(name, _)| name)
}
