//! Names of recorded plans on a command line: the id of a run, the digest of a plan or of its proposal, or the first digits of one.

use converger_core::apply::RunId;
use converger_core::artifact::Digest;

use super::super::CommandError;
use super::{DecisionIndex, RunDecision};
use crate::render;

/// Fewer digits are refused: they would be ambiguous soon.
const PREFIX_DIGITS_MIN: usize = 6;

/// Hexadecimal digits of a full digest.
const DIGEST_DIGITS: usize = 64;

/// Plans that an error names at most.
const CANDIDATES_MAX: usize = 10;

/// The first digits of a digest, or all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct DigestPrefix(String);

impl DigestPrefix {
    /// Six to 64 hexadecimal digits, with or without `sha256:`.
    pub(in super::super) fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix("sha256:").unwrap_or(text);
        let is_hex = digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        (is_hex && (PREFIX_DIGITS_MIN..=DIGEST_DIGITS).contains(&digits.len())).then(|| Self(digits.to_owned()))
    }

    /// Whether digits are missing.
    pub(in super::super) fn is_partial(&self) -> bool {
        self.0.len() < DIGEST_DIGITS
    }

    /// Whether a decision has this digest: that of its plan, or of its proposal, which is the one that commands show.
    fn names(&self, run_decision: &RunDecision) -> bool {
        self.matches(run_decision.decision.plan) || self.matches(run_decision.proposal)
    }

    /// Whether it stands for both decisions at once: they have the same plan, or the named proposal.
    fn names_both(&self, one: &RunDecision, other: &RunDecision) -> bool {
        one.decision.plan == other.decision.plan || (one.proposal == other.proposal && self.matches(one.proposal))
    }

    fn matches(&self, digest: Digest) -> bool {
        digest.to_string().strip_prefix("sha256:").is_some_and(|digits| digits.starts_with(&self.0))
    }
}

impl DecisionIndex {
    /// The decision of this run.
    pub(super) fn find_run(&self, run: &RunId) -> Option<&RunDecision> {
        self.decisions.iter().rfind(|run_decision| run_decision.run.id == *run)
    }

    /// The decision of the run, or the last one with the plan, that this name stands for.
    ///
    /// # Errors
    /// Several plans start with these digits.
    pub(super) fn find_decision(&self, name: &str) -> Result<Option<&RunDecision>, CommandError> {
        if let Some(run_decision) = RunId::new(name).and_then(|run| self.find_run(&run)) {
            return Ok(Some(run_decision));
        }
        let Some(prefix) = DigestPrefix::parse(name) else { return Ok(None) };
        let is_meant = |run_decision: &&RunDecision| prefix.names(run_decision);
        let Some(last) = self.decisions.iter().rfind(is_meant) else { return Ok(None) };
        if self.decisions.iter().filter(is_meant).all(|run_decision| prefix.names_both(run_decision, last)) {
            return Ok(Some(last));
        }
        let candidates = self.recent_plans(|run_decision| prefix.names(run_decision));
        let count = candidates.len();
        let listed = list_candidates(&candidates, |digest| digest.to_string());
        Err(CommandError::input_error(format!("`{name}` is the start of {count} recorded plans"))
            .with_help(format!("give more digits, or name a run:{listed}")))
    }

    /// The decision that this name stands for.
    ///
    /// # Errors
    /// There is none, or there are several.
    pub(super) fn require_decision(&self, name: &str) -> Result<&RunDecision, CommandError> {
        self.find_decision(name)?.ok_or_else(|| self.unknown_plan_error(name))
    }

    /// The error for a name that no recorded plan and no run has.
    pub(super) fn unknown_plan_error(&self, name: &str) -> CommandError {
        let error = CommandError::input_error(format!("the ledger has no plan and no run `{}`", name.escape_debug()));
        let recent = self.recent_plans(|_| true);
        let recorded = match recent.len() {
            0 => "; no plan is recorded yet".to_owned(),
            _ => format!("; the last ones are:{}", list_candidates(&recent, render::short_digest)),
        };
        error.with_help(format!(
            "name a plan by its digest or at least {PREFIX_DIGITS_MIN} of its first digits, or a run by its id (`converger ledger tail` \
             lists both, with --from those of an export){recorded}"
        ))
    }

    /// The other runs that made the same plan, if the name is one of a plan and not of a run.
    pub(super) fn other_runs(&self, name: &str, selected: &RunDecision) -> Vec<RunId> {
        if name == selected.run.id.as_str() {
            return Vec::new();
        }
        let Some(prefix) = DigestPrefix::parse(name) else { return Vec::new() };
        let is_other = |run_decision: &&RunDecision| prefix.names_both(run_decision, selected) && run_decision.run.id != selected.run.id;
        self.decisions.iter().filter(is_other).map(|run_decision| run_decision.run.id.clone()).collect()
    }

    /// Each plan once, the newest first, with the last run that made it.
    fn recent_plans(&self, is_meant: impl Fn(&RunDecision) -> bool) -> Vec<(Digest, &RunId)> {
        let mut plans: Vec<(Digest, &RunId)> = Vec::new();
        for run_decision in self.decisions.iter().rev().filter(|run_decision| is_meant(run_decision)) {
            if !plans.iter().any(|(plan, _)| *plan == run_decision.decision.plan) {
                plans.push((run_decision.decision.plan, &run_decision.run.id));
            }
        }
        plans
    }
}

fn list_candidates(candidates: &[(Digest, &RunId)], name: impl Fn(Digest) -> String) -> String {
    let shown = candidates.iter().take(CANDIDATES_MAX);
    let mut text: String = shown.map(|(plan, run)| format!("\n  {} of run {}", name(*plan), run.as_str())).collect();
    let more = candidates.len().saturating_sub(CANDIDATES_MAX);
    if more > 0 {
        text.push_str(&format!("\n  and {more} more"));
    }
    text
}

#[cfg(test)]
mod tests {
    use converger_core::apply::RunStart;
    use converger_core::evidence::{Decision, DecisionInputs};
    use converger_core::guest::EnvironmentName;

    use super::*;

    /// A digest that starts with these digits.
    fn digest(start: &str) -> Digest {
        Digest::parse(&format!("sha256:{start:0<64}")).expect("a digest")
    }

    /// Decisions of these runs, with the starts of their plans and proposals.
    fn index(decisions: &[(&str, &str, &str)]) -> DecisionIndex {
        let made = decisions.iter().map(|(run, start, proposal)| {
            let any = digest("0");
            let inputs =
                DecisionInputs { program: "1".into(), planner: 1, config: any, intent: any, observation: any, rules: any, catalogue: any };
            let (id, environment) = (RunId::new(run).expect("a run"), EnvironmentName::new("lab").expect("a name"));
            let run = RunStart { id, environment, plan: digest(start), by: "ann".into(), at_ms: 0, boot: None };
            let decision = Decision { inputs, plan: digest(start), judgement: any };
            RunDecision { run, decision, proposal: digest(proposal), index: 0, admissions: Vec::new(), run_refusals: Vec::new() }
        });
        DecisionIndex { decisions: made.collect(), ..DecisionIndex::default() }
    }

    fn found(index: &DecisionIndex, name: &str) -> Option<String> {
        let found = index.find_decision(name).map_err(|error| error.message_text()).expect("not ambiguous");
        found.map(|run_decision| run_decision.run.id.as_str().to_owned())
    }

    #[test]
    fn a_plan_is_found_by_six_digits_or_more_with_or_without_sha256() {
        let index = index(&[
            ("6afb4282-98434845", "abcdef01", "aaaaaa01"),
            ("6afb4282-98434846", "abcdef01", "aaaaaa01"),
            ("6afb4282-98434847", "123456", "aaaaaa02"),
        ]);
        let last = Some("6afb4282-98434846".to_owned());
        for name in ["abcdef", "sha256:abcdef", "abcdef01", &digest("abcdef01").to_string(), &digest("abcdef01").to_string()[7..]] {
            assert_eq!(found(&index, name), last, "{name}");
        }
        assert_eq!(found(&index, "6afb4282-98434845"), Some("6afb4282-98434845".to_owned()));
        for name in ["abcde", "sha256:", "abcdeg", "ABCDEF", "abcdef02", ""] {
            assert_eq!(found(&index, name), None, "{name}");
        }
        assert_eq!(index.other_runs("abcdef", &index.decisions[1]), [RunId::new("6afb4282-98434845").expect("a run")]);
        assert!(index.other_runs("6afb4282-98434846", &index.decisions[1]).is_empty());
    }

    /// Commands show the digest of the proposal, which plans on different observations share.
    #[test]
    fn a_plan_is_found_by_its_proposal() {
        let index = index(&[
            ("6afb4282-98434845", "abcdef01", "aaaaaa01"),
            ("6afb4282-98434846", "abcdef02", "aaaaaa01"),
            ("6afb4282-98434847", "123456", "aaaaaa02"),
        ]);
        assert_eq!(found(&index, "aaaaaa01"), Some("6afb4282-98434846".to_owned()));
        assert_eq!(index.other_runs("aaaaaa01", &index.decisions[1]), [RunId::new("6afb4282-98434845").expect("a run")]);
        assert!(index.other_runs("abcdef02", &index.decisions[1]).is_empty());
        assert!(index.find_decision("aaaaaa").is_err());
    }

    #[test]
    fn an_ambiguous_prefix_is_refused_with_the_candidates() {
        let index = index(&[("6afb4282-98434845", "abcdef01", "aaaaaa01"), ("6afb4282-98434846", "abcdef02", "aaaaaa02")]);
        let error = index.find_decision("abcdef").err().expect("refused");
        assert_eq!(error.message_text(), "`abcdef` is the start of 2 recorded plans");
        let help = error.remedy().expect("help");
        for start in ["abcdef01", "abcdef02"] {
            assert!(help.contains(&digest(start).to_string()), "{help}");
        }
        assert!(help.contains("6afb4282-98434846"), "{help}");
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_last_plans() {
        let error = index(&[("6afb4282-98434845", "abcdef01", "aaaaaa01")]).require_decision("feed01").err().expect("refused");
        assert_eq!(error.message_text(), "the ledger has no plan and no run `feed01`");
        assert!(error.remedy().is_some_and(|help| help.contains("sha256:abcdef010000 of run 6afb4282-98434845")));
        let error = DecisionIndex::default().require_decision("feed01").err().expect("refused");
        assert!(error.remedy().is_some_and(|help| help.ends_with("no plan is recorded yet")));
    }
}
