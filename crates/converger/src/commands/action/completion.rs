//! Completion of requests: the actions, their parameters and the values that these can have.
//!
//! A completion script is fixed when it is made, so it knows neither the guests nor the environments of a configuration.

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command};
use converger_core::intent::{ACTIONS, ActionParameter, ActionSpec};
use converger_core::normalize::{FieldRole, TABLE};

/// The command line with a subcommand for each action. The parser itself reads actions as arguments, so that it can report all faults of a request.
pub(in crate::commands) fn add_actions(program: Command) -> Command {
    program.mut_subcommand("action", |action| {
        let options: Vec<Arg> = action.get_arguments().filter(|argument| !argument.is_positional()).cloned().collect();
        ACTIONS.iter().fold(action, |action, spec| action.subcommand(describe_action(spec, &options)))
    })
}

fn describe_action(spec: &ActionSpec, options: &[Arg]) -> Command {
    let target = Arg::new("target").value_parser(["vm/", "ct/"]);
    let command = Command::new(spec.name).about(spec.help).args(options).arg(target);
    let words = parameter_words(spec);
    if words.is_empty() {
        return command;
    }
    // The parser wants words that live as long as the program, which ends after it has printed the script.
    let words: Vec<&'static str> = words.into_iter().map(|word| &*word.leak()).collect();
    command.arg(Arg::new("parameters").num_args(0..).value_parser(PossibleValuesParser::new(words)))
}

/// `name=` for each parameter, or the whole word for each value if these are few.
fn parameter_words(spec: &ActionSpec) -> Vec<String> {
    let words_of = |parameter: &ActionParameter| match parameter.choices {
        [] => vec![format!("{}=", parameter.name)],
        choices => choices.iter().map(|choice| format!("{}={choice}", parameter.name)).collect(),
    };
    let mut words: Vec<String> = spec.parameters.iter().flat_map(words_of).collect();
    if spec.takes_fields() {
        let managed = TABLE.iter().filter(|rule| rule.role == FieldRole::Managed);
        words.extend(managed.map(|rule| format!("{}=", rule.field.word())));
        words.sort();
        words.dedup();
    }
    words
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use clap_complete::{Shell, generate};

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn every_shell_completes_actions_with_parameters_and_choices() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            generate(shell, &mut add_actions(Cli::command()), "converger", &mut script);
            let script = String::from_utf8(script).expect("text");
            for spec in &ACTIONS {
                assert!(script.contains(spec.name), "{shell} does not know {}", spec.name);
            }
            // Fish scripts have no values of positional arguments.
            for word in ["disks=linked", "newid=", "memory="].iter().filter(|_| shell != Shell::Fish) {
                assert!(script.contains(word), "{shell} does not know {word}");
            }
        }
    }
}
