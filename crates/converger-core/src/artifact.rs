//! Writes plan.json and current.json in canonical JSON (RFC 8785), and computes digests over it.
//!
//! The output is canonical by construction: members are written in the order of their names, numbers are integers below 2^53, and
//! serde_json escapes strings as the RFC requires. Tests compare with two independent implementations.
//!
//! Everything is streamed: a plan of 100,000 guests is hashed and written without a copy in memory.
//!
//! Must not open files or write text for people.

mod plan;
mod proposal;
mod recorded;
mod used_rows;

use std::fmt;
use std::io::{self, BufWriter, Write};

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::action::Action;
use crate::normalize::FieldRule;
use crate::observe::{Observation, PlanView, Scoped};
use crate::policy::Rules;

pub(crate) use plan::write_body_with;
pub use plan::{Provenance, SCHEMA as PLAN_SCHEMA, has_body_digest, write_body, write_judgement, write_plan};
pub use proposal::{PROPOSAL_SCHEMA, ProposalItemRef, proposal_digest, proposal_items};
pub use recorded::{DifferenceKind, GuestDifference, GuestOmission, RecordedPlan, StepDifference};
pub(crate) use used_rows::{DecisionTables, OWN_TABLES, UsedRows, has_rows};

/// The largest integer in any artifact: RFC 8785 numbers are doubles, which silently round larger integers.
pub const INTEGER_MAX: u64 = (1 << 53) - 1;

/// The SHA-256 of canonical bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of bytes.
    #[must_use]
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Parses `sha256:` followed by 64 lower-case hexadecimal digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix("sha256:")?;
        let plain = digits.len() == 64 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let mut bytes = [0; 32];
        for (index, byte) in bytes.iter_mut().enumerate().filter(|_| plain) {
            *byte = u8::from_str_radix(digits.get(index * 2..index * 2 + 2)?, 16).ok()?;
        }
        plain.then_some(Self(bytes))
    }

    /// The digest of a value's canonical form.
    ///
    /// # Errors
    /// The value cannot be written as JSON, which does not happen.
    pub fn of_value(value: &impl Serialize) -> io::Result<Self> {
        Ok(Self(hash_value(Sha256::new(), value)?.finalize().into()))
    }
}

/// The length of `sha256:` and two digits per byte.
const DIGEST_TEXT_BYTES: usize = 7 + 64;

impl Digest {
    /// Passes its text to `take` without allocating: every entry and every plan contains several digests.
    fn with_text<T>(&self, take: impl FnOnce(&str) -> T) -> T {
        let mut text = *b"sha256:0000000000000000000000000000000000000000000000000000000000000000";
        let (_, digits) = text.split_at_mut(DIGEST_TEXT_BYTES - 64);
        let digit = |half: u8| if half < 10 { b'0' + half } else { b'a' - 10 + half };
        for ([high, low], byte) in digits.as_chunks_mut::<2>().0.iter_mut().zip(self.0) {
            (*high, *low) = (digit(byte >> 4), digit(byte & 15));
        }
        // INVARIANT: the buffer contains only ASCII.
        take(std::str::from_utf8(&text).unwrap_or_default())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with_text(|text| formatter.write_str(text))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.with_text(|text| serializer.serialize_str(text))
    }
}

/// serde_json writes small pieces; writing each one separately would cost more than producing them.
const BUFFER_BYTES: usize = 64 * 1024;

/// Buffer for output that is only hashed: large enough for fast hashing, and most of that output is small.
const HASH_BUFFER_BYTES: usize = 4 * 1024;

struct HashWriter(Sha256);

/// Continues a hash with the canonical form of a value.
fn hash_value(hash: Sha256, value: &impl Serialize) -> io::Result<Sha256> {
    let mut hashing = BufWriter::with_capacity(HASH_BUFFER_BYTES, HashWriter(hash));
    write_json(&mut hashing, value)?;
    hashing.into_inner().map(|hashing| hashing.0).map_err(io::IntoInnerError::into_error)
}

impl Write for HashWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Hashes bytes and passes them on.
struct TeeHashWriter<W> {
    hash: Sha256,
    out: W,
}

impl<W: Write> Write for TeeHashWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write_all(bytes)?;
        self.hash.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn write_json(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(out, value).map_err(io::Error::from)
}

/// Writes current.json: one line of canonical JSON.
///
/// # Errors
/// An error of the writer.
pub fn write_observation(out: &mut impl Write, observation: &Observation) -> io::Result<()> {
    let mut buffered = BufWriter::with_capacity(BUFFER_BYTES, out);
    write_json(&mut buffered, observation)?;
    buffered.write_all(b"\n")?;
    buffered.flush()
}

/// The digest of an observation, over the rows in scope.
///
/// # Errors
/// See [`Digest::of_value`].
pub fn observation_digest(observation: &Scoped) -> io::Result<Digest> {
    Digest::of_value(&PlanView(observation))
}

/// The digest of the protection rules and the rows of the table of fields that a plan uses.
fn rules_digest(rules: &Rules, fields: &[&FieldRule]) -> io::Result<Digest> {
    #[derive(Serialize)]
    struct BoundRules<'r> {
        fields: &'r [&'r FieldRule],
        protect: &'r Rules,
    }
    Digest::of_value(&BoundRules { fields, protect: rules })
}

/// The digest of the rows of the catalogue that a plan uses.
fn catalogue_digest(rows: &[&Action]) -> io::Result<Digest> {
    Digest::of_value(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_parses_only_its_own_format() {
        let digest = Digest::of_bytes(b"x");
        let text = digest.to_string();
        assert_eq!(Digest::parse(&text), Some(digest));
        let upper = format!("sha256:{}", text.trim_start_matches("sha256:").to_uppercase());
        for bad in [&text[7..], &upper, &format!("{text}0"), &text[..70], "sha256:", "", &text.replace("sha256", "sha512")] {
            assert_eq!(Digest::parse(bad), None, "{bad}");
        }
    }
}
