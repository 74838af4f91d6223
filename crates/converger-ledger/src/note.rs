//! Signed notes (C2SP signed-note) with Ed25519 keys: a text, followed by signature lines.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use sha2::{Digest as _, Sha256};

/// The key type of Ed25519 signatures.
const ED25519: u8 = 1;
/// The maximum size of a note. Notes are short.
const NOTE_BYTES_MAX: usize = 1 << 20;
/// The maximum number of signatures of a note.
const SIGNATURES_MAX: usize = 100;
/// The prefix of a stored signing key.
const PRIVATE_KEY_PREFIX: &str = "PRIVATE+KEY+";
/// The prefix of a signature line.
pub(crate) const SIGNATURE_PREFIX: &str = "\u{2014} ";

/// Why something is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Empty, or contains a blank or a `+`.
    #[error("the name of a key must be one word without `+`")]
    InvalidName,
    /// Not of the form `name+hash+key`.
    #[error("a key has the form `name+hash+key`, with the prefix `PRIVATE+KEY+` if it signs")]
    Malformed,
    /// The hash does not match name and key: one of them was changed.
    #[error("the hash in the key does not match its name and bytes")]
    HashMismatch,
    /// Not an Ed25519 key.
    #[error("the key is not an Ed25519 key")]
    NotEd25519,
}

/// Why a note is invalid, or not signed with the expected key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoteError {
    /// Not a text with signatures below it.
    #[error("this is not a signed note")]
    Malformed,
    /// Lines end with CR LF.
    #[error("its line endings were changed to CR LF, which breaks the signature: its lines must end with LF")]
    LineEndings,
    /// None of the signatures is of this key.
    #[error("the note is not signed with this key")]
    NotSigned,
    /// The signature of this key is invalid.
    #[error("the signature is invalid: the note or its signature was changed")]
    BadSignature,
}

fn is_key_name(name: &str) -> bool {
    !name.is_empty() && !name.chars().any(|letter| letter.is_whitespace() || letter.is_control() || letter == '+')
}

/// Distinguishes keys with the same name.
fn key_hash(name: &str, key: &[u8; 32]) -> [u8; 4] {
    let digest = Sha256::new().chain_update(name).chain_update([b'\n', ED25519]).chain_update(key).finalize();
    [digest[0], digest[1], digest[2], digest[3]]
}

/// Decodes the bytes of a key, which are preceded by the key type.
fn decode_key(text: &str) -> Result<[u8; 32], KeyError> {
    let bytes = STANDARD.decode(text).map_err(|_| KeyError::Malformed)?;
    let [ED25519, key @ ..] = &bytes[..] else { return Err(KeyError::NotEd25519) };
    key.try_into().map_err(|_| KeyError::NotEd25519)
}

/// Signs notes.
pub struct NoteSigner {
    name: String,
    key: SigningKey,
    hash: [u8; 4],
}

impl NoteSigner {
    /// The key with this name and 32 secret bytes, which the caller must take from a good random source.
    ///
    /// # Errors
    /// The name is invalid.
    pub fn new(name: &str, secret: &[u8; 32]) -> Result<Self, KeyError> {
        if !is_key_name(name) {
            return Err(KeyError::InvalidName);
        }
        let key = SigningKey::from_bytes(secret);
        Ok(Self { hash: key_hash(name, key.verifying_key().as_bytes()), name: name.to_owned(), key })
    }

    /// Parses a stored signing key: `PRIVATE+KEY+name+hash+key`. Anyone who has it can sign.
    ///
    /// # Errors
    /// It is not a signing key.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let mut parts = text.trim_end().strip_prefix(PRIVATE_KEY_PREFIX).ok_or(KeyError::Malformed)?.splitn(3, '+');
        let (Some(name), Some(hash), Some(key)) = (parts.next(), parts.next(), parts.next()) else { return Err(KeyError::Malformed) };
        let signer = Self::new(name, &decode_key(key)?)?;
        if format_key_hash(signer.hash) == hash { Ok(signer) } else { Err(KeyError::HashMismatch) }
    }

    /// The key in that form. It is a secret: store it only in a file that nobody else can read.
    #[must_use]
    pub fn to_secret_text(&self) -> String {
        let key = [&[ED25519][..], self.key.as_bytes()].concat();
        format!("{PRIVATE_KEY_PREFIX}{}+{}+{}", self.name, format_key_hash(self.hash), STANDARD.encode(key))
    }

    /// The verifier for its signatures.
    #[must_use]
    pub fn verifier(&self) -> NoteVerifier {
        NoteVerifier { name: self.name.clone(), key: self.key.verifying_key(), hash: self.hash }
    }

    /// Signs a text, which must end with a newline.
    #[must_use]
    pub fn sign(&self, text: &str) -> String {
        let signature = [&self.hash[..], &self.key.sign(text.as_bytes()).to_bytes()].concat();
        format!("{text}\n{SIGNATURE_PREFIX}{} {}\n", self.name, STANDARD.encode(signature))
    }
}

impl fmt::Debug for NoteSigner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Signer").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Verifies notes. It contains no secret and can be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoteVerifier {
    name: String,
    key: VerifyingKey,
    hash: [u8; 4],
}

impl NoteVerifier {
    /// Parses a verifier key in its published form.
    ///
    /// # Errors
    /// It is not a verifier key.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let mut parts = text.trim_end().splitn(3, '+');
        let (Some(name), Some(hash), Some(key)) = (parts.next(), parts.next(), parts.next()) else { return Err(KeyError::Malformed) };
        if !is_key_name(name) {
            return Err(KeyError::InvalidName);
        }
        let key = decode_key(key)?;
        let own = key_hash(name, &key);
        if hash != format_key_hash(own) {
            return Err(KeyError::HashMismatch);
        }
        let key = VerifyingKey::from_bytes(&key).map_err(|_| KeyError::NotEd25519)?;
        Ok(Self { name: name.to_owned(), key, hash: own })
    }

    /// The name of the key.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for NoteVerifier {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = [&[ED25519][..], self.key.as_bytes()].concat();
        write!(out, "{}+{}+{}", self.name, format_key_hash(self.hash), STANDARD.encode(key))
    }
}

fn format_key_hash(hash: [u8; 4]) -> String {
    format!("{:08x}", u32::from_be_bytes(hash))
}

/// A parsed note. Nothing in it can be trusted before it is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedNote<'n> {
    text: &'n str,
    signatures: Vec<(&'n str, Vec<u8>)>,
}

impl<'n> SignedNote<'n> {
    /// Parses a note.
    ///
    /// # Errors
    /// It is not a signed note.
    pub fn parse(bytes: &'n [u8]) -> Result<Self, NoteError> {
        let note = std::str::from_utf8(bytes).map_err(|_| NoteError::Malformed)?;
        if note.contains('\r') {
            return Err(NoteError::LineEndings);
        }
        let is_odd = note.len() > NOTE_BYTES_MAX || note.chars().any(|letter| letter.is_control() && letter != '\n');
        let split = note.rfind("\n\n").filter(|_| !is_odd).ok_or(NoteError::Malformed)?;
        let (text, below) = (&note[..=split], &note[split + 2..]);
        let lines = below.strip_suffix('\n').ok_or(NoteError::Malformed)?;
        let signatures: Option<Vec<_>> = lines.split('\n').map(parse_signature).collect();
        let signatures = signatures.filter(|found| found.len() <= SIGNATURES_MAX).ok_or(NoteError::Malformed)?;
        Ok(Self { text, signatures })
    }

    /// The text, if it is signed with this key.
    ///
    /// # Errors
    /// It is not signed with this key, or the signature is invalid.
    pub fn verify(&self, verifier: &NoteVerifier) -> Result<&'n str, NoteError> {
        let own = |(name, bytes): &&(&str, Vec<u8>)| *name == verifier.name && bytes.starts_with(&verifier.hash);
        let (_, bytes) = self.signatures.iter().find(own).ok_or(NoteError::NotSigned)?;
        let signature = Signature::from_slice(bytes.get(4..).unwrap_or_default()).map_err(|_| NoteError::BadSignature)?;
        verifier.key.verify_strict(self.text.as_bytes(), &signature).map(|()| self.text).map_err(|_| NoteError::BadSignature)
    }

    /// The text without verification, for showing the content of a note that cannot be trusted.
    #[must_use]
    pub fn unverified_text(&self) -> &'n str {
        self.text
    }
}

fn parse_signature(line: &str) -> Option<(&str, Vec<u8>)> {
    let (name, signature) = line.strip_prefix(SIGNATURE_PREFIX)?.split_once(' ')?;
    let bytes = STANDARD.decode(signature).ok()?;
    (is_key_name(name) && bytes.len() > 4).then_some((name, bytes))
}
