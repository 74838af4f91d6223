//! API tokens. A secret is configured by reference only: an environment variable, a file or a systemd credential.
//!
//! The copies that are made here are wiped from memory on drop. Not wiped are the header of the HTTP client, which lives as long as the
//! client, and the buffers of TLS.
//!
//! A secret must never appear as text in a configuration, a log or an error.

use std::fmt;
use std::path::{Path, PathBuf};

use converger_core::guest::SecretReference;
use reqwest::header::HeaderValue;
use thiserror::Error;
use zeroize::Zeroizing;

use super::redact;
use crate::proxmox::codec::percent_encode;

/// Proxmox secrets have 36 characters, far below this limit.
const SECRET_BYTES_MAX: u64 = 1024;

/// The id of an API token: `user@realm!name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenId(Box<str>);

impl TokenId {
    /// Parses a well-formed id.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let (user, token) = text.split_once('!')?;
        let (name, realm) = user.rsplit_once('@')?;
        let is_name = !name.is_empty() && !name.contains(|own: char| own.is_whitespace() || own.is_control() || matches!(own, ':' | '/'));
        (is_name && is_word(realm) && is_word(token) && text.len() <= 256).then(|| Self(text.into()))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The user that owns the token.
    #[must_use]
    pub fn user(&self) -> &str {
        self.0.split_once('!').map_or("", |(user, _)| user)
    }
}

fn is_word(text: &str) -> bool {
    let fits = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'));
    text.len() >= 2 && fits && text.starts_with(|first: char| first.is_ascii_alphabetic())
}

/// Where a secret is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// An environment variable.
    Environment(String),
    /// A file. A newline at its end is ignored.
    File(PathBuf),
    /// A systemd credential.
    Credential(String),
}

impl From<&SecretReference> for SecretSource {
    fn from(reference: &SecretReference) -> Self {
        match reference {
            SecretReference::Environment(name) => Self::Environment(name.to_string()),
            SecretReference::File(path) => Self::File(PathBuf::from(&**path)),
            SecretReference::Credential(name) => Self::Credential(name.to_string()),
        }
    }
}

impl fmt::Display for SecretSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // A user may have pasted the secret itself in place of the variable's name.
            Self::Environment(name) if !is_conventional_variable_name(name) => {
                formatter.write_str("the environment variable that `secret.env` names")
            }
            Self::Environment(name) => write!(formatter, "the environment variable `{name}`"),
            Self::File(path) => write!(formatter, "the file `{}`", path.display()),
            Self::Credential(name) => write!(formatter, "the systemd credential `{}`", name.escape_debug()),
        }
    }
}

/// Whether a name consists of the characters that are customary for variables, and is therefore unlikely to be a pasted secret.
fn is_conventional_variable_name(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
}

/// Why there is no secret. Errors never contain what was found.
#[derive(Debug, Error)]
pub enum SecretError {
    /// The variable or the credentials directory is not set.
    #[error("{0} is not set; set it to the secret of the API token")]
    Missing(SecretSource),
    /// The file cannot be read.
    #[error("{source_of} cannot be read ({source}); check that it exists and that this user may read it")]
    Unreadable {
        /// Where the secret was expected.
        source_of: SecretSource,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The content is not a Proxmox secret.
    #[error(
        "{0} does not hold the secret of an API token; the secret is the value that Proxmox showed once when the token was created, without the token id and the `=` before it"
    )]
    Malformed(SecretSource),
    /// The variable or the credentials directory of a password is not set.
    #[error("{0} is not set; set it to the password")]
    MissingPassword(SecretSource),
    /// The content cannot be a password.
    #[error("{0} does not hold a password; it must be one line of at most 1024 bytes without control characters")]
    NotPassword(SecretSource),
}

impl SecretSource {
    /// Reads the secret; `environment` looks up variables.
    ///
    /// # Errors
    /// There is no secret, or the content is not one.
    pub fn read(&self, environment: impl Fn(&str) -> Option<String>) -> Result<TokenSecret, SecretError> {
        let text = self.read_source(environment)?;
        TokenSecret::new(&text).ok_or_else(|| SecretError::Malformed(self.clone()))
    }

    /// Reads a password; `environment` looks up variables. A newline at its end is ignored.
    ///
    /// # Errors
    /// There is no password, or the content is not one line.
    pub fn read_password(&self, environment: impl Fn(&str) -> Option<String>) -> Result<Zeroizing<String>, SecretError> {
        // A pipe could keep this waiting for ever, in the middle of a run.
        if let Self::File(path) = self
            && std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file())
        {
            let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is not a regular file");
            return Err(SecretError::Unreadable { source_of: self.clone(), source });
        }
        let mut text = self.read_source(environment).map_err(|error| match error {
            SecretError::Missing(source) => SecretError::MissingPassword(source),
            SecretError::Malformed(source) => SecretError::NotPassword(source),
            other => other,
        })?;
        let whole = text.trim_end_matches(['\r', '\n']).len();
        text.truncate(whole);
        let is_line =
            !text.is_empty() && text.len() < usize::try_from(SECRET_BYTES_MAX).unwrap_or(0) && !text.chars().any(char::is_control);
        if is_line { Ok(text) } else { Err(SecretError::NotPassword(self.clone())) }
    }

    fn read_source(&self, environment: impl Fn(&str) -> Option<String>) -> Result<Zeroizing<String>, SecretError> {
        Ok(match self {
            Self::Environment(name) => Zeroizing::new(environment(name).ok_or_else(|| SecretError::Missing(self.clone()))?),
            Self::File(path) => self.read_file(path)?,
            Self::Credential(name) => {
                let directory = environment("CREDENTIALS_DIRECTORY").ok_or_else(|| SecretError::Missing(self.clone()))?;
                let is_plain = !name.is_empty() && !name.contains('/') && name != "." && name != "..";
                let name = is_plain.then_some(name).ok_or_else(|| SecretError::Malformed(self.clone()))?;
                self.read_file(&Path::new(&directory).join(name))?
            }
        })
    }

    fn read_file(&self, path: &Path) -> Result<Zeroizing<String>, SecretError> {
        use std::io::Read;
        let unreadable = |source| SecretError::Unreadable { source_of: self.clone(), source };
        // Enough capacity for all of it: a string that grows would leave unwiped copies behind.
        let mut text = Zeroizing::new(String::with_capacity(2 * usize::try_from(SECRET_BYTES_MAX).unwrap_or(0)));
        let file = std::fs::File::open(path).map_err(unreadable)?;
        file.take(SECRET_BYTES_MAX).read_to_string(&mut text).map_err(unreadable)?;
        Ok(text)
    }
}

/// The secret of an API token.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenSecret(Zeroizing<String>);

impl TokenSecret {
    /// Parses a secret, without a newline at its end. Only plain characters are allowed, because Proxmox decodes the header.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim_end_matches(['\r', '\n']);
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
        ((1..=256).contains(&text.len()) && text.bytes().all(is_plain)).then(|| Self(Zeroizing::new(text.to_owned())))
    }
}

impl TokenSecret {
    /// Proxmox secrets have 36 characters. A much shorter one may occur in a response by chance, and redacting it would alter the response.
    pub const REDACTED_BYTES_MIN: usize = 12;

    /// Whether the secret is long enough to be redacted from responses. A shorter secret must not be sent.
    #[must_use]
    pub fn can_be_redacted(&self) -> bool {
        self.0.len() >= Self::REDACTED_BYTES_MIN
    }

    /// Removes this secret from received bytes, in every encoding. A server that echoes a request must not bring it into messages and
    /// files.
    pub(super) fn redact(&self, bytes: Vec<u8>) -> Vec<u8> {
        if !self.can_be_redacted() {
            return bytes;
        }
        let text = String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        redact::redact_word(text, &self.0).into_bytes()
    }

    /// Like [`Self::redact`], for a text.
    pub(super) fn redact_text(&self, text: &[u8]) -> String {
        String::from_utf8_lossy(&self.redact(text.to_vec())).into_owned()
    }
}

/// Never shows any part of the secret.
impl fmt::Debug for TokenSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(..)")
    }
}

/// A token with its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiToken {
    /// The token id.
    pub id: TokenId,
    /// The secret.
    pub secret: TokenSecret,
}

impl ApiToken {
    /// The authorization header, marked as sensitive so that nothing prints it.
    ///
    /// Proxmox decodes the header and takes the part after the last `=` as the secret.
    pub(super) fn authorization_header(&self) -> Option<HeaderValue> {
        // Enough capacity for all of it, even if every byte of the user name is encoded.
        let mut text = Zeroizing::new(String::with_capacity(64 + 3 * self.id.0.len() + self.secret.0.len()));
        text.push_str("PVEAPIToken=");
        for part in self.id.0.split_inclusive(['@', '!']) {
            let (plain, mark) = part.split_at(part.len() - usize::from(part.ends_with(['@', '!'])));
            percent_encode(plain, &mut text);
            text.push_str(mark);
        }
        text.push('=');
        text.push_str(&self.secret.0);
        let mut header = HeaderValue::from_str(&text).ok()?;
        header.set_sensitive(true);
        Some(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "f3b1c8de-0000-4000-8000-123456789abc";

    #[test]
    fn parses_token_ids() {
        for good in ["root@pam!probe", "a@b@pve!t1", "svc-x@my.realm!a_b"] {
            assert!(TokenId::new(good).is_some(), "{good}");
        }
        for bad in ["", "root@pam", "root!x", "@pam!xy", "root@pam!1x", "ro ot@pam!xy", "root@pam!x=y", "a/b@pam!xy"] {
            assert!(TokenId::new(bad).is_none(), "{bad}");
        }
        assert_eq!(TokenId::new("root@pam!probe").expect("an id").user(), "root@pam");
    }

    #[test]
    fn secret_shows_nothing_of_itself() {
        let token = ApiToken { id: TokenId::new("root@pam!probe").expect("an id"), secret: TokenSecret::new(SECRET).expect("a secret") };
        let header = token.authorization_header().expect("a header");
        assert_eq!(header.to_str().expect("text"), format!("PVEAPIToken=root@pam!probe={SECRET}"));
        for shown in [format!("{token:?}"), format!("{:#?}", token.secret), format!("{header:?}")] {
            assert!(!shown.contains("f3b1c8de"), "{shown}");
        }
    }

    #[test]
    fn encodes_unusual_user_names() {
        let token = ApiToken { id: TokenId::new("jö%=x@pam!probe").expect("an id"), secret: TokenSecret::new("abc").expect("a secret") };
        let header = token.authorization_header().expect("a header");
        assert_eq!(header.to_str().expect("text"), "PVEAPIToken=j%C3%B6%25%3Dx@pam!probe=abc");
    }

    #[test]
    fn reads_secrets_from_every_source() {
        let temp_directory = tempfile::tempdir().expect("a directory");
        let path = temp_directory.path().join("token");
        std::fs::write(&path, format!("{SECRET}\n")).expect("written");
        let directory = temp_directory.path().to_str().expect("text").to_owned();
        let environment = move |name: &str| match name {
            "PVE_SECRET" => Some(SECRET.to_owned()),
            "CREDENTIALS_DIRECTORY" => Some(directory.clone()),
            _ => None,
        };
        let expected = TokenSecret::new(SECRET).expect("a secret");
        let sources = [SecretSource::Environment("PVE_SECRET".into()), SecretSource::File(path), SecretSource::Credential("token".into())];
        for source in sources {
            assert_eq!(source.read(&environment).expect("read"), expected, "{source}");
        }
        let missing = SecretSource::Environment("NOT_SET".into()).read(&environment).expect_err("missing").to_string();
        assert_eq!(missing, "the environment variable `NOT_SET` is not set; set it to the secret of the API token");
        let pasted = SecretSource::Environment("CanarySecret123".into()).read(&environment).expect_err("missing").to_string();
        assert_eq!(pasted, "the environment variable that `secret.env` names is not set; set it to the secret of the API token");
        assert!(SecretSource::Credential("../token".into()).read(&environment).is_err());
        assert!(SecretSource::Credential("none".into()).read(&environment).is_err());
    }

    #[test]
    fn error_never_shows_the_secret() {
        let source = SecretSource::Environment("X".into());
        let error = source.read(|_| Some("not a secret: hunter2".into())).expect_err("malformed");
        assert!(!format!("{error} {error:?}").contains("hunter2"));
    }
}
