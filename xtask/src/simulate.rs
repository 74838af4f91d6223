//! Runs the simulation: the run library, the state machines and the actuator against the lab, with
//! seeded faults of every kind.
//!
//! What goes wrong and what must hold is in the program that runs the schedules, an example of the
//! crate `converger` that is not shipped.

use crate::shell::{self, TaskResult};

/// The options of `simulate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SimulateOptions {
    /// This many schedules, starting with this seed; only counted.
    Many { schedules: u64, first: u64 },
    /// The schedule of one seed, line by line.
    One(u64),
    /// The first seed that shows each planted bug.
    Bugs,
    /// Every request of every kind of operation, with every fault and with a crash.
    Sagas,
}

impl SimulateOptions {
    /// The number of schedules of the declared state alone in CI.
    const CI_SCHEDULES: u64 = 100_000;
    /// The first seed of schedules without requested actions.
    const DECLARED_ONLY_FIRST: u64 = 1 << 40;
    /// The number of schedules with requested actions in CI, among them those that make and configure a guest.
    const CI_REQUEST_SCHEDULES: u64 = 100_000;
    const MILLION_SCHEDULES: u64 = 1_000_000;
    /// Every planted bug must be found within this many seeds.
    const BUG_SEEDS: u64 = 10_000;

    /// Parses the arguments after `simulate`.
    pub(crate) fn parse(arguments: &[&str]) -> Option<Self> {
        match arguments {
            ["--bugs"] => return Some(Self::Bugs),
            ["--sagas"] => return Some(Self::Sagas),
            ["--seed", seed] => return seed.parse().ok().map(Self::One),
            _ => {}
        }
        let (mut schedules, mut first) = (Self::CI_SCHEDULES, 0);
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match *argument {
                "--million" => schedules = Self::MILLION_SCHEDULES,
                "--schedules" => schedules = arguments.next()?.parse().ok().filter(|count| *count > 0)?,
                "--from" => first = arguments.next()?.parse().ok()?,
                _ => return None,
            }
        }
        Some(Self::Many { schedules, first })
    }

    fn to_arguments(self) -> Vec<String> {
        let numbers: &[(&str, u64)] = match self {
            Self::Many { schedules, first } => &[("--schedules", schedules), ("--from", first)],
            Self::One(seed) => &[("--seed", seed)],
            Self::Bugs => &[("--bugs", Self::BUG_SEEDS)],
            Self::Sagas => return vec!["--sagas".to_owned()],
        };
        numbers.iter().flat_map(|(name, number)| [(*name).to_owned(), number.to_string()]).collect()
    }
}

/// The stage of CI.
pub(crate) fn run_ci_stage() -> TaskResult {
    run_simulation(SimulateOptions::Many { schedules: SimulateOptions::CI_SCHEDULES, first: SimulateOptions::DECLARED_ONLY_FIRST })?;
    run_simulation(SimulateOptions::Many { schedules: SimulateOptions::CI_REQUEST_SCHEDULES, first: 0 })
}

/// Runs the schedules; a violated invariant, or an event that never happened, is an error.
pub(crate) fn run_simulation(options: SimulateOptions) -> TaskResult {
    shell::run_visibly(&mut shell::cargo_command(&["build", "--workspace", "--all-features", "--profile", "ci", "--example", "simulate"]))?;
    let arguments = options.to_arguments();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    shell::run_visibly(&mut shell::built_command("examples/simulate", &arguments))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_parsed_completely_or_refused() {
        assert_eq!(SimulateOptions::parse(&[]), Some(SimulateOptions::Many { schedules: 100_000, first: 0 }));
        assert_eq!(SimulateOptions::parse(&["--schedules", "5", "--from", "7"]), Some(SimulateOptions::Many { schedules: 5, first: 7 }));
        assert_eq!(SimulateOptions::parse(&["--million"]), Some(SimulateOptions::Many { schedules: 1_000_000, first: 0 }));
        assert_eq!(SimulateOptions::parse(&["--seed", "7"]), Some(SimulateOptions::One(7)));
        for wrong in [&["--schedules"][..], &["--schedules", "0"], &["--seed", "x"], &["--fast"], &["--seed", "1", "--million"]] {
            assert_eq!(SimulateOptions::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn options_become_program_arguments() {
        assert_eq!(SimulateOptions::One(7).to_arguments(), ["--seed", "7"]);
        assert_eq!(SimulateOptions::Many { schedules: 5, first: 7 }.to_arguments(), ["--schedules", "5", "--from", "7"]);
        assert_eq!(SimulateOptions::Sagas.to_arguments(), ["--sagas"]);
    }
}
