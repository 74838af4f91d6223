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

/// Appended to the script for bash, which splits words at `=` and puts a blank after each completed word.
pub(in crate::commands) const BASH_PARAMETERS: &str = r#"
# Requests have parameters of the form NAME=VALUE. Bash splits words at `=`: the parts are joined for the completion, and
# what is typed already is removed from the words that are found. No blank follows a word that goes on.
_converger_parameters() {
    local -a words=()
    local word cur prefix="" joins=""
    local -i index position=0
    for index in "${!COMP_WORDS[@]}"; do
        word="${COMP_WORDS[index]}"
        if [[ -n $joins ]]; then
            words[-1]+="$word"
            joins=""
        elif [[ $word == "=" && ${#words[@]} -gt 0 && ${words[-1]} != -* ]]; then
            words[-1]+="="
            joins="yes"
        else
            words+=("$word")
        fi
        (( index == COMP_CWORD )) && position=$(( ${#words[@]} - 1 ))
    done
    cur="${words[position]}"
    [[ $cur == *=* && $cur != -* ]] && prefix="${cur%%=*}="
    COMP_WORDS=("${words[@]}")
    COMP_CWORD=$position
    _converger "$1" "$cur" "${words[position > 0 ? position - 1 : 0]}"
    [[ -n $prefix ]] && COMPREPLY=("${COMPREPLY[@]#"$prefix"}")
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=/] ]]; then
        compopt -o nospace 2>/dev/null
    fi
    return 0
}
complete -F _converger_parameters -o bashdefault -o default converger
"#;

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

    /// What bash offers for the words of a command line, as bash splits them.
    fn complete_in_bash(words: &[&str]) -> Vec<String> {
        let mut script = Vec::new();
        generate(Shell::Bash, &mut add_actions(Cli::command()), "converger", &mut script);
        script.extend(BASH_PARAMETERS.as_bytes());
        let call = r#"COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); _converger_parameters "$1" "${!#}" "${@: -2:1}"; printf '%s\n' "${COMPREPLY[@]}""#;
        script.extend(call.as_bytes());
        let script = String::from_utf8(script).expect("text");
        let output =
            std::process::Command::new("bash").args(["--norc", "-c", &script, "bash"]).args(words).output().expect("bash is installed");
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text").lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    #[test]
    fn bash_completes_values_after_the_equals_sign() {
        let clone = ["converger", "action", "vm.clone", "vm/103"];
        let after = |more: &[&str]| complete_in_bash(&[&clone[..], more].concat());
        assert_eq!(after(&["start", "=", "t"]), ["true"]);
        assert_eq!(after(&["start", "="]), ["false", "true"]);
        assert_eq!(after(&["newid", "=", "120", "disks", "=", "li"]), ["linked"]);
        assert_eq!(after(&["brid"]), ["bridge="]);
        assert_eq!(complete_in_bash(&["converger", "action", "vm.mi"]), ["vm.migrate"]);
        assert_eq!(complete_in_bash(&["converger", "action", "vm.migrate", "vm/103", "mode", "=", "of"]), ["offline"]);
    }

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
