//! How an operation ends: done, failed, refused, held or not run. Each operation has exactly one of these ends.

use std::collections::BTreeMap;

use super::id::Slug;
use crate::failure::FailureCode;
use crate::refusal::{self, Datum, Refusal};

/// How an operation ended, with the supporting facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The promise was read and holds.
    Done(Findings),
    /// The change was sent, and the environment did not carry it out.
    Failed {
        /// The cause.
        code: Slug,
        /// The supporting facts.
        findings: Findings,
    },
    /// This program or the environment decided against the change, and nothing changed.
    Refused {
        /// The cause, a code of the refusal table.
        code: Slug,
        /// The supporting facts.
        findings: Findings,
    },
    /// The result is unknown. The guest is not changed until it is known.
    Held {
        /// The cause.
        code: Slug,
        /// What releases it.
        release: ReleaseCondition,
        /// The supporting facts.
        findings: Findings,
    },
    /// The operation never started; nothing was sent.
    NotRun {
        /// The cause.
        code: Slug,
        /// The supporting facts.
        findings: Findings,
    },
}

/// The kind of end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum OperationEnd {
    Done,
    Failed,
    Refused,
    Held,
    NotRun,
}

impl OperationEnd {
    /// All ends.
    pub const ALL: [Self; 5] = [Self::Done, Self::Failed, Self::Refused, Self::Held, Self::NotRun];
    /// Their words, in the order of [`OperationEnd::ALL`].
    pub const WORDS: [&'static str; 5] = ["done", "failed", "refused", "held", "not-run"];

    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::Held => "held",
            Self::NotRun => "not-run",
        }
    }
}

/// What releases a held operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseCondition {
    /// A later reading that shows the result.
    Reading,
    /// A person who checked.
    Person,
}

impl ReleaseCondition {
    /// Both conditions.
    pub const ALL: [Self; 2] = [Self::Reading, Self::Person];
    /// Their words, in the order of [`ReleaseCondition::ALL`].
    pub const WORDS: [&'static str; 2] = ["reading", "person"];

    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Reading => "reading",
            Self::Person => "person",
        }
    }
}

/// How a held operation ended, as found out later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// It took effect.
    Done,
    /// It was tried and did not take effect.
    Failed,
    /// It never reached the environment.
    NotRun,
}

impl Resolution {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Done, Self::Failed, Self::NotRun];
    /// Their words, in the order of [`Resolution::ALL`].
    pub const WORDS: [&'static str; 3] = ["done", "failed", "not-run"];

    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::NotRun => "not-run",
        }
    }
}

/// The facts behind an outcome, by key. No sentences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Why the operation ended so.
    pub evidence: Evidence,
    /// What was read afterwards.
    pub observed: Evidence,
}

/// Facts, in the order of their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence(BTreeMap<Slug, Fact>);

/// One fact. Text from outside is data and is escaped when it is displayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// A number, at most [`crate::artifact::INTEGER_MAX`]; a larger one is stored as text.
    Number(u64),
    /// A text.
    Text(Box<str>),
    /// A list of texts.
    Words(Box<[Box<str>]>),
}

impl From<&str> for Fact {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<u64> for Fact {
    fn from(number: u64) -> Self {
        if number <= crate::artifact::INTEGER_MAX { Self::Number(number) } else { Self::Text(number.to_string().into()) }
    }
}

impl From<&Datum> for Fact {
    fn from(datum: &Datum) -> Self {
        match datum {
            Datum::Number(number) => Self::Number(*number),
            Datum::Text(text) => Self::Text(text.as_str().into()),
            Datum::Ids(ids) => Self::Words(ids.iter().map(|id| id.to_string().into()).collect()),
            Datum::Words(words) => Self::Words(words.iter().map(|word| word.as_str().into()).collect()),
        }
    }
}

/// Shortens a fact to the size that evidence may have.
fn shorten_fact(fact: Fact) -> Fact {
    let brief = |text: Box<str>| refusal::shorten(text.into()).into_boxed_str();
    match fact {
        Fact::Text(text) => Fact::Text(brief(text)),
        Fact::Words(words) => Fact::Words(refusal::shorten_list(words.into_vec(), brief, String::into_boxed_str).into()),
        fact @ Fact::Number(_) => fact,
    }
}

/// The maximal encoded size of one [`Evidence`]. It ensures that both parts of [`Findings`] fit into one ledger entry, whatever the
/// environment responded.
const EVIDENCE_BYTES_MAX: usize = 24 << 10;

/// The upper bound of the encoded length of a fact.
fn encoded_len(fact: &Fact) -> usize {
    let escaped = |byte: u8| match byte {
        b'"' | b'\\' => 2,
        0..0x20 => 6,
        _ => 1,
    };
    let text = |text: &str| text.bytes().map(escaped).sum::<usize>() + 3;
    match fact {
        Fact::Number(_) => 20,
        Fact::Text(own) => text(own),
        Fact::Words(words) => words.iter().map(|word| text(word)).sum::<usize>() + 2,
    }
}

impl Evidence {
    /// Adds a fact. A key that is not a [`Slug`] is invalid in a record, and the fact is dropped; a fact that exceeds the remaining space
    /// is replaced with its length.
    #[must_use]
    pub fn with(mut self, key: &str, fact: impl Into<Fact>) -> Self {
        let Some(key) = Slug::new(key) else { return self };
        let (fact, before) = (shorten_fact(fact.into()), self.0.values().map(encoded_len).sum::<usize>());
        let bytes = encoded_len(&fact);
        let fact = if before + bytes > EVIDENCE_BYTES_MAX { Fact::Text(format!("… {bytes} bytes left out").into()) } else { fact };
        self.0.insert(key, fact);
        self
    }

    /// A fact.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Fact> {
        self.0.iter().find(|(own, _)| own.as_str() == key).map(|(_, fact)| fact)
    }

    /// The facts, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&Slug, &Fact)> {
        self.0.iter()
    }

    /// Whether there are no facts.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn insert(&mut self, key: Slug, fact: Fact) -> Option<Fact> {
        self.0.insert(key, fact)
    }

    /// Whether all numbers fit into an artifact.
    pub(super) fn is_storable(&self) -> bool {
        self.0.values().all(|fact| !matches!(fact, Fact::Number(number) if *number > crate::artifact::INTEGER_MAX))
    }
}

impl Outcome {
    /// The end of a step that was refused.
    #[must_use]
    pub fn from_refusal(refusal: &Refusal) -> Self {
        let facts = refusal.evidence().iter();
        let evidence = facts.fold(Evidence::default(), |evidence, (key, datum)| evidence.with(key, datum));
        // INVARIANT: codes of the refusal table are valid slugs; the test `every_code_is_a_word` checks it.
        let code = Slug::new(refusal.code().word()).unwrap_or_else(Slug::placeholder);
        Self::Refused { code, findings: Findings { evidence, ..Findings::default() } }
    }

    /// The end of a step that was sent and not carried out.
    #[must_use]
    pub fn new_failed(code: FailureCode, findings: Findings) -> Self {
        Self::Failed { code: failure_slug(code), findings }
    }

    /// The end of a step whose result is unknown.
    #[must_use]
    pub fn new_held(code: FailureCode, release: ReleaseCondition, findings: Findings) -> Self {
        Self::Held { code: failure_slug(code), release, findings }
    }

    /// The end of a step that never started.
    #[must_use]
    pub fn new_not_run(code: FailureCode, evidence: Evidence) -> Self {
        Self::NotRun { code: failure_slug(code), findings: Findings { evidence, ..Findings::default() } }
    }

    /// Replaces the facts that were read afterwards.
    #[must_use]
    pub fn with_observed(mut self, observed: Evidence) -> Self {
        match &mut self {
            Self::Done(findings)
            | Self::Failed { findings, .. }
            | Self::Refused { findings, .. }
            | Self::Held { findings, .. }
            | Self::NotRun { findings, .. } => findings.observed = observed,
        }
        self
    }

    /// The kind of end.
    #[must_use]
    pub fn end(&self) -> OperationEnd {
        match self {
            Self::Done(_) => OperationEnd::Done,
            Self::Failed { .. } => OperationEnd::Failed,
            Self::Refused { .. } => OperationEnd::Refused,
            Self::Held { .. } => OperationEnd::Held,
            Self::NotRun { .. } => OperationEnd::NotRun,
        }
    }

    /// The cause; `None` if the operation was done.
    #[must_use]
    pub fn code(&self) -> Option<&Slug> {
        match self {
            Self::Done(_) => None,
            Self::Failed { code, .. } | Self::Refused { code, .. } | Self::Held { code, .. } | Self::NotRun { code, .. } => Some(code),
        }
    }

    /// The supporting facts.
    #[must_use]
    pub fn findings(&self) -> &Findings {
        match self {
            Self::Done(findings)
            | Self::Failed { findings, .. }
            | Self::Refused { findings, .. }
            | Self::Held { findings, .. }
            | Self::NotRun { findings, .. } => findings,
        }
    }

    /// Whether it reads back unchanged.
    #[must_use]
    pub fn is_storable(&self) -> bool {
        let Findings { evidence, observed } = self.findings();
        evidence.is_storable() && observed.is_storable()
    }
}

/// The code of a failure as a slug.
fn failure_slug(code: FailureCode) -> Slug {
    // INVARIANT: codes of the failure table are valid slugs; the test `every_code_is_a_word` checks it.
    Slug::new(code.word()).unwrap_or_else(Slug::placeholder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure;
    use crate::refusal::TABLE;

    /// A response of many megabytes is cut, and the evidence says how much is missing (S23).
    #[test]
    fn evidence_is_bounded_and_reports_omissions() {
        let long = "é".repeat(40_000_000);
        let many: Vec<String> = (0..100_000).map(|number| format!("key{number}")).collect();
        let refusal = Refusal::config_pending(many.clone());
        let evidence =
            Evidence::default().with("said", &*long).with("keys", Fact::Words(many.iter().map(|word| word.as_str().into()).collect()));
        let Some(Fact::Text(shortened)) = evidence.get("said") else { panic!("no text") };
        assert!(
            shortened.chars().count() <= refusal::EVIDENCE_CHARS_MAX && shortened.ends_with("… and 39999550 more characters"),
            "{shortened}"
        );
        let Some(Fact::Words(keys)) = evidence.get("keys") else { panic!("no list") };
        assert_eq!((keys.len(), &*keys[98], &*keys[99]), (refusal::EVIDENCE_WORDS_MAX, "key98", "… and 99901 more"));
        let (_, Datum::Words(refusal_keys)) = &refusal.evidence()[0] else { panic!("no list") };
        assert_eq!((refusal_keys.len(), refusal_keys[99].as_str()), (refusal::EVIDENCE_WORDS_MAX, "… and 99901 more"));
        // Text that is short enough already is not cut again.
        let again = Evidence::default().with("said", &**shortened).with("keys", Fact::Words(keys.clone()));
        assert_eq!(again, evidence);
        let locked = Refusal::guest_locked(&long);
        assert!(matches!(&locked.evidence()[0].1, Datum::Text(text) if text.len() < 2_000));
    }

    #[test]
    fn every_code_is_a_word() {
        assert!(TABLE.iter().all(|entry| Slug::new(entry.word).is_some()));
        assert!(failure::TABLE.iter().all(|entry| Slug::new(entry.word).is_some()));
        let Outcome::Refused { code, findings } = Outcome::from_refusal(&Refusal::limit_stops(6, 5)) else { panic!("refused") };
        assert_eq!(code.as_str(), "limit-stops");
        assert_eq!(findings.evidence.get("max"), Some(&Fact::Number(5)));
    }

    #[test]
    fn words_match_enum_order() {
        assert!(OperationEnd::ALL.iter().zip(OperationEnd::WORDS).all(|(end, word)| end.word() == word));
        assert!(ReleaseCondition::ALL.iter().zip(ReleaseCondition::WORDS).all(|(release, word)| release.word() == word));
        assert!(Resolution::ALL.iter().zip(Resolution::WORDS).all(|(resolution, word)| resolution.word() == word));
    }

    #[test]
    fn a_number_that_an_artifact_cannot_hold_becomes_text() {
        assert_eq!(Fact::from(u64::MAX), Fact::Text("18446744073709551615".into()));
        assert_eq!(Evidence::default().with("Not a word", 1).get("Not a word"), None);
    }
}
