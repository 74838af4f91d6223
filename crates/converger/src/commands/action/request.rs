//! Parses a request from the command line, and writes the command line that repeats it.

use std::fmt::Write as _;
use std::path::Path;

use converger_core::failure::FailureCode;
use converger_core::guest::{EnvironmentName, GuestKind, Vmid};
use converger_core::intent::{ActionRequest, ActionTarget, ParameterFault};

use super::super::CommandError;
use crate::cli::RequestArgs;
use crate::{files, render};

const TARGET_HELP: &str = "name the guest: `vm/101` for a virtual machine, `ct/101` for a container";

/// A request without faults, whose environment is not known yet.
pub(super) struct CheckedRequest<'a> {
    action: &'a str,
    target: ActionTarget,
    parameters: Vec<(&'a str, &'a str)>,
}

impl CheckedRequest<'_> {
    /// The request in this environment.
    pub(super) fn in_environment(self, environment: &EnvironmentName) -> Result<ActionRequest, CommandError> {
        ActionRequest::parse(environment.clone(), self.action, self.target, self.parameters).map_err(|faults| faults_error(&faults))
    }
}

/// Checks action, target and parameters, and reports all faults of them at once.
pub(super) fn check_request(arguments: &RequestArgs) -> Result<CheckedRequest<'_>, CommandError> {
    let mut faults = Vec::new();
    let Some(action) = arguments.name.as_deref() else {
        let help = "`converger action list` shows all actions".to_owned();
        return Err(faults_error(&[ParameterFault::with_help("the request names no action".to_owned(), help)]));
    };
    let (target, first_parameter) = read_target(arguments.target.as_deref(), &mut faults);
    let mut parameters = Vec::new();
    for text in first_parameter.into_iter().chain(arguments.parameters.iter().map(String::as_str)) {
        match text.split_once('=') {
            Some(parameter) => parameters.push(parameter),
            None => faults.push(ParameterFault::with_help(
                format!("{} is not a parameter", quote_word(text)),
                "write parameters as NAME=VALUE, without blanks around `=`".to_owned(),
            )),
        }
    }
    let found = match target {
        Some(target) => find_faults(action, target, &parameters),
        None => faults_of_any_target(action, &parameters),
    };
    faults.extend(found);
    match target {
        Some(target) if faults.is_empty() => Ok(CheckedRequest { action, target, parameters }),
        _ => Err(faults_error(&faults)),
    }
}

/// The target, or else a fault. A parameter in its place is returned as one: the target was left out.
fn read_target<'t>(text: Option<&'t str>, faults: &mut Vec<ParameterFault>) -> (Option<ActionTarget>, Option<&'t str>) {
    let Some(text) = text else {
        faults.push(ParameterFault::with_help("the request names no guest".to_owned(), TARGET_HELP.to_owned()));
        return (None, None);
    };
    if text.contains('=') {
        faults.push(ParameterFault::with_help("the request names no guest".to_owned(), TARGET_HELP.to_owned()));
        return (None, Some(text));
    }
    let target = parse_target(text);
    if target.is_none() {
        let (message, help) = describe_bad_target(text);
        faults.push(ParameterFault::with_help(message, help));
    }
    (target, None)
}

fn quote_word(text: &str) -> String {
    format!("`{}`", text.escape_debug())
}

fn parse_target(text: &str) -> Option<ActionTarget> {
    let (kind, id) = text.split_once('/')?;
    let kind = match kind {
        "vm" | "qemu" => GuestKind::Qemu,
        "ct" | "lxc" => GuestKind::Lxc,
        _ => return None,
    };
    Some(ActionTarget { kind, vmid: parse_id(id)? })
}

fn parse_id(text: &str) -> Option<Vmid> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    is_plain.then(|| text.parse().ok().and_then(Vmid::new))?
}

fn describe_bad_target(text: &str) -> (String, String) {
    match parse_id(text) {
        // The kind decides which parameters exist and what is read, and two clusters may use one id for different kinds.
        Some(vmid) => (
            format!("target `{vmid}` does not say whether the guest is a virtual machine or a container"),
            format!("write `vm/{vmid}` or `ct/{vmid}`; `converger guests` shows its kind"),
        ),
        None => (format!("{} is not a guest", quote_word(text)), format!("{TARGET_HELP}; ids are 100 to 999999999")),
    }
}

fn find_faults(action: &str, target: ActionTarget, parameters: &[(&str, &str)]) -> Vec<ParameterFault> {
    // INVARIANT: the environment is in no fault; the request is parsed again once it is known.
    let Some(environment) = EnvironmentName::new("any") else { return Vec::new() };
    ActionRequest::parse(environment, action, target, parameters.iter().copied()).err().unwrap_or_default()
}

/// The faults that the request has whatever its target is.
fn faults_of_any_target(action: &str, parameters: &[(&str, &str)]) -> Vec<ParameterFault> {
    let of = |kind, vmid| Vmid::new(vmid).map(|vmid| find_faults(action, ActionTarget { kind, vmid }, parameters)).unwrap_or_default();
    let containers = of(GuestKind::Lxc, 101);
    of(GuestKind::Qemu, 100).into_iter().filter(|fault| containers.iter().any(|other| other.message == fault.message)).collect()
}

/// All faults of a request, each with its help.
pub(super) fn faults_error(faults: &[ParameterFault]) -> CommandError {
    let mut text = String::new();
    let title = format!("error[{}]:", FailureCode::UsageWrong.word());
    for fault in faults {
        let _ = writeln!(text, "{} {}", render::apply_style(render::RED.bold(), &title), fault.message);
        text.push_str(&fault.help.as_deref().map(render::render_help).unwrap_or_default());
    }
    CommandError::diagnostics_error(text).with_code(FailureCode::UsageWrong)
}

/// The command line of the request, without options that confirm or report it.
pub(super) fn repeat_command_line(arguments: &RequestArgs) -> String {
    let words = arguments.name.iter().chain(&arguments.target).chain(&arguments.parameters);
    let mut line = "converger action".to_owned();
    for word in words {
        let _ = write!(line, " {}", files::shell_argument(Path::new(word)));
    }
    let mut option = |name: &str, value: Option<String>| line.extend(value.map(|value| format!(" --{name} {value}")));
    option("environment", arguments.environment.clone());
    option("config", arguments.observation.config.as_deref().map(files::shell_argument));
    line
}

/// The same with every option but the confirmation.
pub(super) fn repeat_with_options(mut line: String, arguments: &RequestArgs) -> String {
    let mut option = |name: &str, value: Option<String>| line.extend(value.map(|value| format!(" --{name} {value}")));
    option("key", arguments.key.as_deref().map(|key| files::shell_argument(Path::new(key))));
    option("timeout", arguments.timeout.map(|seconds| seconds.to_string()));
    option("out", arguments.out.as_deref().map(files::shell_argument));
    line.push_str(if arguments.json { " --json" } else { "" });
    line
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, CliCommand};

    fn parse(words: &[&str]) -> RequestArgs {
        let line = ["converger", "action"].iter().chain(words);
        let CliCommand::Action(arguments) = Cli::parse_from(line).command else { panic!("an action") };
        arguments.request
    }

    fn faults(words: &[&str]) -> String {
        let arguments = parse(words);
        let text = check_request(&arguments).err().map(|error| error.message_text()).unwrap_or_default();
        anstream::adapter::strip_str(&text).to_string()
    }

    #[test]
    fn targets_name_the_kind_of_their_guest() {
        for (text, kind) in
            [("vm/101", GuestKind::Qemu), ("qemu/101", GuestKind::Qemu), ("ct/101", GuestKind::Lxc), ("lxc/101", GuestKind::Lxc)]
        {
            assert_eq!(parse_target(text).map(|target| (target.kind, target.vmid.get())), Some((kind, 101)), "{text}");
        }
        for text in ["101", "vm/99", "vm/0101", "vm/+101", "vm/", "VM/101", "node/pve1", "vm/101/", ""] {
            assert_eq!(parse_target(text), None, "{text}");
        }
    }

    #[test]
    fn reports_faults_of_target_action_and_parameters_together() {
        let text = faults(&["vm.snapshot.create", "101", "nam=x", "ram"]);
        for part in [
            "target `101` does not say",
            "`ram` is not a parameter",
            "no parameter `nam`",
            "did you mean `name`?",
            "needs parameter `name`",
        ] {
            assert!(text.contains(part), "`{part}` is not in:\n{text}");
        }
        assert!(faults(&["vm.start", "name=x"]).starts_with("error[usage-wrong]: the request names no guest\n"));
        assert!(faults(&["vm.strat", "vm/101"]).contains("did you mean `vm.start`?"));
    }

    /// Which fields exist depends on the kind: without one, nothing is said about them.
    #[test]
    fn faults_of_one_kind_are_not_reported_without_a_target() {
        let text = faults(&["vm.config.set", "101", "balloon=1GiB", "swap=1GiB"]);
        assert!(!text.contains("balloon") && !text.contains("swap"), "{text}");
    }

    #[test]
    fn suggested_command_repeats_the_request() {
        let arguments = parse(&[
            "vm.snapshot.create",
            "vm/101",
            "name=pre",
            "description=it's new",
            "--env",
            "lab",
            "--config",
            "c.toml",
            "--key",
            "a;b",
            "--timeout",
            "60",
            "--out",
            "r.json",
            "--json",
        ]);
        let line = repeat_command_line(&arguments);
        assert_eq!(
            line,
            r"converger action vm.snapshot.create vm/101 name=pre 'description=it'\''s new' --environment lab --config c.toml"
        );
        assert_eq!(repeat_with_options(line.clone(), &arguments), format!("{line} --key 'a;b' --timeout 60 --out r.json --json"));
    }
}
