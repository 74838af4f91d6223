//! `converger action list`: the actions that can be requested, as `intent::ACTIONS` and `action::CATALOGUE` have them.

use std::fmt::Write as _;
use std::io::Write as _;

use converger_core::action::{Action, CATALOGUE};
use converger_core::approve::NeededApproval;
use converger_core::guest::GuestKind;
use converger_core::intent::{ACTIONS, ActionParameter, ActionSpec, find_action, unknown_action};
use converger_core::normalize::{FieldRole, TABLE};
use serde_json::{Value as Json, json};

use super::super::{CommandError, finish_output};
use super::request::faults_error;
use crate::cli::ActionListArgs;
use crate::exit_status::ExitStatus;
use crate::render::{self, apply_style};
use crate::{line_wrap, output};

/// Schema id of the list.
pub(crate) const SCHEMA: &str = "converger.actions/1";

pub(super) fn list_actions(arguments: &ActionListArgs) -> Result<ExitStatus, CommandError> {
    let named = match &arguments.name {
        Some(name) => Some(find_action(name).ok_or_else(|| faults_error(&[unknown_action(name)]))?),
        None => None,
    };
    let shown: Vec<&ActionSpec> = ACTIONS.iter().filter(|spec| named.is_none_or(|named| named.name == spec.name)).collect();
    let written = if arguments.json {
        let document = json!({ "schema": SCHEMA, "actions": shown.iter().map(|spec| action_json(spec)).collect::<Vec<_>>() });
        output::print_json(|out| writeln!(out, "{document}"))
    } else {
        let text = named.map_or_else(|| render_list(&shown), render_action);
        write!(anstream::stdout(), "{}", line_wrap::wrap_for_stdout(&text))
    };
    finish_output(written, ExitStatus::Done)
}

fn action_json(spec: &ActionSpec) -> Json {
    let parameter = |parameter: &ActionParameter| {
        let ActionParameter { name, value, choices, is_required, help } = parameter;
        json!({ "name": name, "value": value, "choices": choices, "required": is_required, "help": help })
    };
    let mut action = json!({
        "action": spec.name, "help": spec.help,
        "parameters": spec.parameters.iter().map(parameter).collect::<Vec<_>>(),
    });
    if let Some(row @ Action { approvals, class, impact, risk, .. }) = find_row(spec) {
        action["approvals"] = json!(approvals);
        action["class"] = json!(class);
        action["impact"] = json!(impact);
        action["risk"] = json!(risk);
        action["undo"] = json!(row.undo());
        action["needs"] = json!(NeededApproval::of(row, *class, *impact).word());
    }
    if spec.takes_fields() {
        action["fields"] = GuestKind::ALL.into_iter().map(|kind| (kind.word().to_owned(), json!(field_names(kind)))).collect();
    }
    action
}

/// The row of an action in the catalogue, which a test of the core proves to exist.
fn find_row(spec: &ActionSpec) -> Option<&'static Action> {
    CATALOGUE.iter().find(|row| row.action == spec.name)
}

/// The names of the fields that `vm.config.set` can write.
fn field_names(kind: GuestKind) -> Vec<&'static str> {
    TABLE.iter().filter(|rule| rule.kind == kind && rule.role == FieldRole::Managed).map(|rule| rule.field.word()).collect()
}

/// Each action with its parameters in one line, and how it is classified in another.
fn render_list(shown: &[&ActionSpec]) -> String {
    let mut text = String::new();
    for spec in shown {
        let _ = writeln!(text, "{}{}", apply_style(render::BOLD, spec.name), render_usage(spec));
        let _ = writeln!(text, "    {}", spec.help);
        let _ = writeln!(text, "    {}", apply_style(render::DIM, describe_row(spec)));
    }
    let _ = writeln!(text, "\n{}", apply_style(render::DIM, "converger action list ACTION shows what its parameters mean"));
    text
}

/// The parameters as they are typed, required ones first.
fn render_usage(spec: &ActionSpec) -> String {
    let (required, optional): (Vec<&ActionParameter>, Vec<&ActionParameter>) =
        spec.parameters.iter().partition(|parameter| parameter.is_required);
    let mut text: String = required.iter().map(|parameter| format!(" {}={}", parameter.name, describe_value(parameter))).collect();
    text.push_str(if spec.takes_fields() { " KEY=VALUE..." } else { "" });
    text.extend(optional.iter().map(|parameter| format!(" [{}={}]", parameter.name, describe_value(parameter))));
    text
}

fn describe_value(parameter: &ActionParameter) -> String {
    if parameter.choices.is_empty() { parameter.value.to_owned() } else { parameter.choices.join("|") }
}

/// Impact, risk, class and approvals, which a plan can only raise, and the undo.
fn describe_row(spec: &ActionSpec) -> String {
    let Some(row) = find_row(spec) else { return String::new() };
    let classified = render::describe_classification(row.impact, row.risk, row.class);
    let undo = row.undo().unwrap_or("none");
    let needed = NeededApproval::of(row, row.class, row.impact).text();
    let own = format!("at least {}; needs {needed}; undo: {undo}", classified.trim_matches(['(', ')']));
    match CATALOGUE.iter().find(|more| more.action == "vm.clone.provision").filter(|_| spec.name == "vm.clone") {
        Some(more) => {
            let needed = NeededApproval::of(more, more.class, more.impact).text();
            format!("{own}\n    with a first configuration or a larger disk: needs {needed}")
        }
        None => own,
    }
}

/// One action with all its parameters.
fn render_action(spec: &ActionSpec) -> String {
    let mut text = format!("{}{}\n    {}\n", apply_style(render::BOLD, spec.name), render_usage(spec), spec.help);
    let _ = writeln!(text, "    {}", apply_style(render::DIM, describe_row(spec)));
    if !spec.parameters.is_empty() {
        text.push_str("\nParameters:\n");
    }
    let width = spec.parameters.iter().map(|parameter| parameter.name.len()).max().unwrap_or_default();
    for parameter in spec.parameters {
        let required = if parameter.is_required { " (required)" } else { "" };
        let _ = writeln!(text, "  {:width$}  {}{required}", parameter.name, parameter.help);
    }
    if spec.takes_fields() {
        text.push_str("\nKeys, as in desired.yaml:\n");
        for kind in GuestKind::ALL {
            let _ = writeln!(text, "  {}  {}", kind.word(), field_names(kind).join(", "));
        }
    }
    text
}
