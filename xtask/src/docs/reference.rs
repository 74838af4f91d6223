//! The texts of the generated pages, taken from the program itself, so that no page can contradict
//! it.
//!
//! Must not know codes, fields or options; it runs the built `converger` to get them.

use std::fmt::Write as _;

use serde_json::Value;

use crate::shell::{self, TaskError};
use crate::tidy;

const NOTE: &str = "<!-- Written by `cargo xtask gen-docs` from the program itself; edits here are lost. -->\n\n";

const COMMANDS: [&str; 35] = [
    "demo",
    "doctor",
    "guests",
    "init",
    "pin",
    "observe",
    "audit",
    "plan",
    "apply",
    "ops",
    "ops list",
    "ops show",
    "ops resolve",
    "freeze",
    "thaw",
    "hold",
    "release",
    "lab",
    "ledger",
    "ledger tail",
    "ledger show",
    "ledger export",
    "ledger prove",
    "ledger checkpoint",
    "ledger key",
    "ledger prune",
    "ledger resync",
    "verify",
    "reproduce",
    "diff",
    "backtest",
    "explain",
    "contract",
    "schema",
    "completions",
];

/// Builds the program like `ci` does, so that nothing is built twice. Called for each page, because the first page is embedded in the
/// program.
fn build_converger() -> Result<(), TaskError> {
    let build = ["build", "--quiet", "--workspace", "--all-features", "--profile", "ci", "--bin", "converger"];
    shell::capture_stdout(&mut shell::cargo_command(&build)).map(drop)
}

/// The output of the program for these arguments.
fn run_converger(arguments: &[&str]) -> Result<String, TaskError> {
    // A fixed width; otherwise the help would use that of the terminal.
    shell::capture_stdout(shell::built_command("converger", arguments).env("COLUMNS", "100"))
}

fn read_rows(arguments: &[&str]) -> Result<Vec<Value>, TaskError> {
    build_converger()?;
    let text = run_converger(arguments)?;
    let parsed: Result<Vec<Value>, _> = serde_json::from_str(&text);
    parsed.map_err(|error| TaskError::new(format!("`converger {}` did not print a list of JSON: {error}", arguments.join(" "))))
}

/// A member of a row as text; other values are shown as JSON.
fn cell_text(row: &Value, key: &str) -> String {
    let value = row.get(key).unwrap_or(&Value::Null);
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// docs/reference/cli.md
pub(super) fn cli_page() -> Result<String, TaskError> {
    build_converger()?;
    let mut page = format!("# Command line\n\n{NOTE}```text\n{}```\n", run_converger(&["--help"])?);
    for command in COMMANDS {
        let arguments: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        let help = run_converger(&arguments)?;
        let _ = write!(page, "\n## converger {command}\n\n```text\n{help}```\n");
    }
    Ok(page)
}

/// docs/reference/refusals.md
pub(super) fn refusals_page() -> Result<String, TaskError> {
    let rows = read_rows(&["explain", "--json"])?;
    let mut page = format!(
        "# Refusal codes\n\n{NOTE}A refusal is a decision: stable code, evidence, remedy. `converger explain <code>` prints the same.\n"
    );
    for row in rows.iter().filter(|row| cell_text(row, "kind") == "refusal") {
        let [code, title, meaning, remedy, stage, reach] =
            ["code", "title", "meaning", "remedy", "stage", "reach"].map(|key| cell_text(row, key));
        let _ = write!(
            page,
            "\n## {code}\n\n*{title}* · stage {stage} · reaches the {reach} · {}\n\n{meaning}\n\n**Remedy.** {remedy}\n",
            end_text(row)
        );
    }
    page.push_str(
        "\n# Failure codes\n\nA failure is an inability, not a decision. The codes of steps that were held or not run are listed here too.\n",
    );
    for row in rows.iter().filter(|row| cell_text(row, "kind") == "failure") {
        let [code, title, meaning, remedy] = ["code", "title", "meaning", "remedy"].map(|key| cell_text(row, key));
        let _ = write!(page, "\n## {code}\n\n*{title}* · {}\n\n{meaning}\n\n**Remedy.** {remedy}\n", end_text(row));
    }
    Ok(page)
}

/// The exit status and the HTTP status of a code.
fn end_text(row: &Value) -> String {
    format!("exit status {}, HTTP {}", row["exit"], row["http"])
}

/// docs/reference/fields.md
pub(super) fn fields_page() -> Result<String, TaskError> {
    let rows = read_rows(&["explain", "fields", "--json"])?;
    let mut page =
        format!("# Config keys\n\n{NOTE}What can be declared under `config`, what an absent key means, and when a change takes effect.\n");
    page.push_str("\n| kind | key | value | absent means | on a running guest | `null` removes it |\n|---|---|---|---|---|---|\n");
    for row in rows.iter().filter(|row| row["declarable"] == true) {
        let [kind, field, value, absent, running] = ["kind", "field", "value", "absent", "running"].map(|key| cell_text(row, key));
        let removes = if row["null_removes"] == true { "yes" } else { "no" };
        let _ = writeln!(page, "| {kind} | `{field}` | {value} | {absent} | {running} | {removes} |");
    }
    Ok(page)
}

/// A page under docs/reference/schemas.
pub(super) fn schema_page(name: &str) -> Result<String, TaskError> {
    run_converger(&["schema", name])
}

/// crates/converger-core/contract/tests.txt
pub(super) fn contract_tests_page() -> Result<String, TaskError> {
    let mut page = String::new();
    for (number, path, name) in tidy::list_guarantee_tests()? {
        let _ = writeln!(page, "G{number} {path}: {name}");
    }
    Ok(page)
}
