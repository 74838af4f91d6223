//! The simulation: the spine, the machines and the hand against the lab, with everything going wrong that can, from a seed.
//!
//! What never enters here: what goes wrong and what must hold. The program that tells the stories knows that; it is an example of
//! the crate `converger`, and nothing of it ships.

use crate::shell::{self, TaskResult};

/// What is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SimulateOptions {
    /// So many stories, from this seed on: counted.
    Many { schedules: u64, first: u64 },
    /// The story of one seed, line by line.
    One(u64),
    /// For each planted bug, the first seed that shows it.
    Bugs,
    /// Every request of every kind of operation, failed in every way and crashed at.
    Sagas,
}

impl SimulateOptions {
    /// What CI asks for.
    const CI_SCHEDULES: u64 = 100_000;
    const MILLION_SCHEDULES: u64 = 1_000_000;
    /// A planted bug must be found by so many seeds.
    const BUG_SEEDS: u64 = 10_000;

    /// Read from the arguments after `simulate`.
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
    run_simulation(SimulateOptions::Many { schedules: SimulateOptions::CI_SCHEDULES, first: 0 })
}

/// Tell the stories; a rule that is broken, or something that never happened, is a failure.
pub(crate) fn run_simulation(wish: SimulateOptions) -> TaskResult {
    shell::run_visibly(&mut shell::cargo_command(&["build", "--workspace", "--all-features", "--profile", "ci", "--example", "simulate"]))?;
    let arguments = wish.to_arguments();
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
