//! `converger doctor`: shows what an environment lacks and the commands that fix it, or one line of canonical JSON. It only reads.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::Path;

use anstyle::Style;
use converger_adapters::proxmox::doctor::{DoctorFinding, DoctorReport, FindingLevel, PrivilegeUse, Remedy, RemedyLine, RemedyTarget};
use converger_adapters::proxmox::{ProxmoxError, ProxmoxObserver};
use converger_core::desired::Desired;
use converger_core::failure::FailureCode;
use converger_core::guest::EnvironmentName;
use converger_runtime::reader::unconfigured_error;
use converger_runtime::{RuntimeError, state_dir};
use serde::Serialize;

use super::{CommandError, finish_output, inputs, ops};
use crate::cli::DoctorArgs as Visit;
use crate::config::{ConfigSource, ConfiguredEnvironments, ConnectionConfig, ONE_NAME_PER_CLUSTER};
use crate::exit_status::ExitStatus;
use crate::render::{self, BOLD, CYAN, DIM, GREEN, RED, YELLOW, apply_style};
use crate::{files, output, progress, verbosity};

/// The schema of the JSON.
const SCHEMA: &str = "converger.doctor/1";

/// Examines the environments one after the other. A failure in one does not keep the others from being examined.
pub(super) async fn run_doctor(arguments: &Visit) -> Result<ExitStatus, CommandError> {
    let desired = arguments.desired.as_deref().map(inputs::read_desired).transpose()?;
    let source = ConfigSource::read(arguments.config.as_deref());
    let environments = source.environments().map_err(RuntimeError::from)?;
    let wanted = match (&arguments.environment, &desired) {
        (Some(name), _) => Some(inputs::parse_environment(name)?),
        (None, Some(desired)) => Some(desired.environment().clone()),
        (None, None) => None,
    };
    let names: Vec<EnvironmentName> = match wanted {
        Some(name) => vec![name],
        None => environments.connections.keys().cloned().collect(),
    };
    if names.is_empty() {
        let stop = CommandError::input_error(format!("{} has no environment that can be reached", environments.origin))
            .with_code(FailureCode::EnvironmentUnconfigured);
        return Err(stop.with_help(inputs::example_in_config(arguments.config.as_deref(), "lab")));
    }
    let mut exit_status = ExitStatus::Done;
    for name in names {
        let connection = environments.connections.get(&name).ok_or_else(|| {
            CommandError::from(unconfigured_error(&name)).with_help(inputs::example_in_config(arguments.config.as_deref(), name.as_str()))
        })?;
        let extra = [check_config(&name, connection, &environments), check_holds(&source, &name)].concat();
        let examined = match connection.resolve_settings(&name) {
            Ok(environment) => {
                let spinner = progress::start_spinner(&format!("examining {name}"));
                let found =
                    examine_environment(ProxmoxObserver::new(environment), desired.as_ref(), &|what| spinner.set_message(what)).await;
                spinner.clear();
                found
            }
            Err(fault) => unreachable_report(setup_finding("secret", fault, ConnectionConfig::REMEDY)),
        };
        let mut examined = DoctorReport { findings: [extra, examined.findings].concat(), ..examined };
        adapt_remedies(&mut examined.findings, arguments.config.as_deref());
        let end = show_report(&name, arguments, &examined)?;
        exit_status = if exit_status == ExitStatus::Done { end } else { exit_status };
    }
    Ok(exit_status)
}

/// Remedies name the file that `--config` names, and ask whether the lab runs if its endpoints are closed.
fn adapt_remedies(findings: &mut [DoctorFinding], config: Option<&Path>) {
    let hint = inputs::lab_hint(config);
    for finding in findings {
        match (&hint, &mut finding.remedy) {
            (Some(hint), Some(remedy)) if finding.code == Some(FailureCode::EndpointUnreachable.word()) => {
                *remedy = Remedy { text: hint.clone(), lines: Vec::new() };
            }
            (_, Some(remedy)) => remedy.text = remedy.text.replace("converger.toml", &config_name(config)),
            (_, None) => {}
        }
    }
}

/// The file with the environments, as it is named on the command line.
fn config_name(config: Option<&Path>) -> String {
    config.map_or("converger.toml".to_owned(), files::display_path)
}

/// Findings about converger.toml.
fn check_config(name: &EnvironmentName, connection: &ConnectionConfig, environments: &ConfiguredEnvironments) -> Vec<DoctorFinding> {
    let mut findings = Vec::new();
    match environments.find_same_secret(name) {
        Some(other) => findings.push(
            DoctorFinding::new(
                "secret-shared",
                FindingLevel::Fail,
                format!("the environment `{other}` has the same secret, so commands refuse to read either"),
            )
            .with_remedy("create a token for each: a wrong environment name must not reach the other cluster"),
        ),
        None if environments.can_compare_secrets() => {
            findings.push(DoctorFinding::new("secret-shared", FindingLevel::Ok, "no other environment has its secret"));
        }
        None => findings.push(
            DoctorFinding::new("secret-shared", FindingLevel::Unknown, "not every secret can be read, so they cannot be compared")
                .with_remedy("make the secrets of all environments readable, then run `converger doctor` again"),
        ),
    }
    if let Some((other, shared)) = environments.find_same_cluster(name) {
        let found = format!("the environment `{other}` has {shared} too: they may be the same cluster");
        let remedy = format!("if they are, keep one of them: {ONE_NAME_PER_CLUSTER}, and an apply under the second name is refused");
        findings.push(DoctorFinding::new("cluster-named-twice", FindingLevel::Warn, found).with_remedy(remedy));
    }
    if let Some(path) = connection.exposed_secret_file() {
        let path = path.display().to_string();
        let found = format!("other users of this machine may read the secret in `{}`", path.escape_debug());
        findings.push(
            DoctorFinding::new("secret-file", FindingLevel::Warn, found)
                .with_remedy("let only its owner read it; create a new secret if another user may have read it")
                .with_line(RemedyTarget::Here, format!("chmod 600 '{}'", path.replace('\'', "'\\''"))),
        );
    }
    if connection.mode.is_none() {
        let found = "`mode` is missing: an apply needs to know who approves plans: you alone (`solo`), or a second person (`shared`, with which nothing can be applied yet)";
        findings.push(DoctorFinding::new("mode", FindingLevel::Warn, found).with_line(RemedyTarget::Config, "mode = \"solo\""));
    }
    findings
}

/// Freezes and holds, which keep an apply from acting; or that they cannot be read, so nothing is planned.
fn check_holds(source: &ConfigSource, name: &EnvironmentName) -> Vec<DoctorFinding> {
    let Ok(config) = source.config(name) else { return Vec::new() };
    let remembered = match state_dir::peek_conditions(&config, name) {
        Ok(remembered) => remembered,
        Err(error) => {
            return vec![DoctorFinding::new("state", FindingLevel::Fail, error.to_string()).with_code(FailureCode::JournalUnreadable)];
        }
    };
    let warning =
        |check, found: String, line: String| DoctorFinding::new(check, FindingLevel::Warn, found).with_line(RemedyTarget::Here, line);
    let frozen = remembered.freeze.iter().map(|freeze| {
        let found = format!("the environment is frozen {}", ops::describe_author(&freeze.by, &freeze.reason, freeze.at_ms));
        warning("frozen", found, format!("converger thaw {name}"))
    });
    let written = config.circumstances.freeze.as_ref().map(|reason| {
        let found = format!("the environment is frozen by {}: {}", config_name(source.path()), render::quote_untrusted(reason));
        DoctorFinding::new("frozen", FindingLevel::Warn, found).with_line(RemedyTarget::Config, "on = false")
    });
    let held = remembered.holds.iter().map(|hold| {
        let found = format!("guest {} is held {}", hold.vmid, ops::describe_author(&hold.by, &hold.reason, hold.at_ms));
        warning("held", found, format!("converger release {name} {}", hold.vmid))
    });
    let unsettled = remembered.unsettled.iter().map(|history| {
        let (vmid, id) = (history.operation.guest.vmid, history.id().as_str());
        let why = if history.progress().is_open() {
            format!("operation {id} is in flight, or was left open by a killed run; the next apply recovers it")
        } else {
            format!("the outcome of operation {id} is unknown")
        };
        let found = format!("guest {vmid} is held: {why}");
        warning("held", found, format!("converger ops show {name} {id}"))
    });
    frozen.chain(written).chain(held).chain(unsettled).collect()
}

/// Examines an environment. `report_progress` is called with the current check.
async fn examine_environment(
    proxmox: Result<ProxmoxObserver, ProxmoxError>,
    desired: Option<&Desired>,
    report_progress: &dyn Fn(&str),
) -> DoctorReport {
    match proxmox {
        Ok(proxmox) => proxmox.examine(desired, report_progress).await,
        Err(error) => {
            let code = error.code().unwrap_or(FailureCode::ClientSetup);
            let found = DoctorFinding::new("setup", FindingLevel::Fail, files::escape_hidden(&error.to_string()));
            unreachable_report(found.with_code(code).with_remedy(code.entry().remedy.trim_end_matches('.')))
        }
    }
}

/// A fault on this machine that keeps the environment from being examined.
fn setup_finding(check: &'static str, found: String, remedy: &str) -> DoctorFinding {
    DoctorFinding::new(check, FindingLevel::Fail, found).with_code(FailureCode::ClientSetup).with_remedy(remedy.trim_end_matches('.'))
}

/// If no connection can be set up, one finding stands for all remaining checks.
fn unreachable_report(why: DoctorFinding) -> DoctorReport {
    let found = "endpoints, privileges, cluster and guests were not checked, because no connection can be set up";
    let rest =
        DoctorFinding::new("rest", FindingLevel::Unknown, found).with_remedy("fix what failed above, then run `converger doctor` again");
    DoctorReport { findings: vec![why, rest], grant: None }
}

/// Prints the report. The exit status is that of a failure if any check failed.
fn show_report(name: &EnvironmentName, arguments: &Visit, examined: &DoctorReport) -> Result<ExitStatus, CommandError> {
    let written = if arguments.json {
        output::print_json(|out| write_json(out, name, examined))
    } else {
        let text = render_report(name, examined, &config_name(arguments.config.as_deref()), verbosity::is_quiet());
        write!(anstream::stdout(), "{text}")
    };
    finish_output(written, doctor_status(&examined.findings))
}

fn doctor_status(findings: &[DoctorFinding]) -> ExitStatus {
    if findings.iter().any(is_failure) { ExitStatus::Failed } else { ExitStatus::Done }
}

/// Whether a finding counts as a failure: a check that reading needs must not be unknown either.
fn is_failure(finding: &DoctorFinding) -> bool {
    let is_needed = matches!(finding.check, "may-read" | "guests");
    finding.level == FindingLevel::Fail || finding.level == FindingLevel::Unknown && is_needed
}

/// How many findings there are of each level.
fn count_levels(findings: &[DoctorFinding]) -> BTreeMap<&'static str, usize> {
    let count = |level: FindingLevel| findings.iter().filter(|finding| finding.level == level).count();
    FindingLevel::ALL.into_iter().map(|level| (level.word(), count(level))).collect()
}

/// Members in the order of their names, as in every artifact.
#[derive(Serialize)]
struct DoctorDocument<'d> {
    environment: &'d EnvironmentName,
    findings: &'d [DoctorFinding],
    #[serde(skip_serializing_if = "Option::is_none")]
    grant: Option<&'d Remedy>,
    schema: &'static str,
    summary: BTreeMap<&'static str, usize>,
}

fn write_json(out: &mut impl Write, environment: &EnvironmentName, examined: &DoctorReport) -> io::Result<()> {
    let DoctorReport { findings, grant } = examined;
    let summary = count_levels(findings);
    serde_json::to_writer(&mut *out, &DoctorDocument { environment, findings, grant: grant.as_ref(), schema: SCHEMA, summary })?;
    writeln!(out)
}

/// The report. A quiet one has only the warnings, failures and unknowns, and the summary of all.
fn render_report(environment: &EnvironmentName, examined: &DoctorReport, config_name: &str, is_quiet: bool) -> String {
    let is_shown =
        |finding: &&DoctorFinding| !is_quiet || matches!(finding.level, FindingLevel::Warn | FindingLevel::Fail | FindingLevel::Unknown);
    let findings: Vec<&DoctorFinding> = examined.findings.iter().filter(is_shown).collect();
    let width = findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
    let mut text = format!("{}\n", apply_style(BOLD, environment));
    let before = std::iter::once(None).chain(findings.iter().copied().map(Some));
    for (finding, before) in findings.iter().copied().zip(before) {
        if finding.part == Some(PrivilegeUse::Request) && before.is_none_or(|before| before.part != Some(PrivilegeUse::Request)) {
            let _ = writeln!(text, "\n{}", apply_style(BOLD, REQUESTED_HEADING));
        }
        text.push_str(&render_finding(finding, before.and_then(|before| before.remedy.as_ref()), width, config_name));
    }
    examined.grant.iter().for_each(|grant| text.push_str(&render_grant(grant)));
    text.push_str(&render_request_grants(&findings));
    let _ = writeln!(text, "\n{}", render_conclusion(&examined.findings));
    text
}

/// The heading of actions that no declared state leads to.
const REQUESTED_HEADING: &str = "For actions on request";

/// The commands that grant actions on request, separately for each action, because each is granted on its own.
fn render_request_grants(findings: &[&DoctorFinding]) -> String {
    let missing_privileges = findings.iter().filter(|finding| finding.part == Some(PrivilegeUse::Request));
    let missing_privileges =
        missing_privileges.filter_map(|finding| Some((finding.check, finding.remedy.as_ref().filter(|remedy| !remedy.lines.is_empty())?)));
    let mut text = String::new();
    for (check, remedy) in missing_privileges {
        if text.is_empty() {
            let _ = writeln!(text, "\n{}", apply_style(BOLD, "To grant an action on request, run its commands on a node:"));
        }
        let _ = writeln!(text, "  {}", apply_style(DIM, check));
        for RemedyLine { text: line, .. } in &remedy.lines {
            let _ = writeln!(text, "    {line}");
        }
    }
    text
}

/// One block of commands that grants everything that apply needs.
fn render_grant(grant: &Remedy) -> String {
    let mut text = format!("\n{}\n", apply_style(BOLD, "To grant everything that apply needs, run on a node:"));
    for RemedyLine { text: line, .. } in &grant.lines {
        let _ = writeln!(text, "  {}", apply_style(BOLD, line));
    }
    let _ = writeln!(text, "{} {}", apply_style(YELLOW.bold(), "note:"), grant.text);
    text
}

/// A sign that distinguishes levels without colour.
fn level_sign(level: FindingLevel) -> (&'static str, Style) {
    match level {
        FindingLevel::Ok => ("✓", GREEN),
        FindingLevel::Warn => ("!", YELLOW),
        FindingLevel::Fail => ("✗", RED),
        FindingLevel::Unknown => ("?", CYAN),
        FindingLevel::Unneeded => ("-", DIM),
    }
}

/// One finding. A remedy that repeats the one above is shortened.
fn render_finding(finding: &DoctorFinding, before: Option<&Remedy>, width: usize, config_name: &str) -> String {
    let (sign, style) = level_sign(finding.level);
    let about = finding.about.as_ref().map(|about| format!("{about}: ")).unwrap_or_default();
    let check = format!("{:<width$}", finding.check);
    let check = if finding.level == FindingLevel::Ok { apply_style(DIM, check) } else { apply_style(style, check) };
    let mut text = format!("{} {check}  {about}{}\n", apply_style(style, sign), finding.found);
    // Missing privileges are granted by one block at the end.
    let remedy = finding.remedy.as_ref().filter(|remedy| finding.part.is_none() || remedy.lines.is_empty());
    let Some(remedy) = remedy else { return text };
    // Below the text, so that the column of checks stays free.
    let margin = " ".repeat(width + 4);
    if before == Some(remedy) {
        let _ = writeln!(text, "{margin}{} as above", apply_style(CYAN, "remedy:"));
        return text;
    }
    let more = finding.code.map(|code| format!(" (see `converger explain {code}`)")).unwrap_or_default();
    if !remedy.text.is_empty() {
        let _ = writeln!(text, "{margin}{} {}{more}", apply_style(CYAN, "remedy:"), remedy.text);
    }
    for line in &remedy.lines {
        let label = match line.r#where {
            RemedyTarget::Node => "on a node:",
            RemedyTarget::Config => &format!("{config_name}:"),
            RemedyTarget::Here => "here:",
        };
        let _ = writeln!(text, "{margin}  {} {}", apply_style(DIM, format!("{label:<15}")), apply_style(BOLD, &line.text));
    }
    text
}

fn render_conclusion(findings: &[DoctorFinding]) -> String {
    let counts = count_levels(findings);
    let of = |level: FindingLevel| counts.get(level.word()).copied().unwrap_or(0);
    let list = format!(
        "{} ok, {}, {} failed, {} unknown",
        of(FindingLevel::Ok),
        render::count_with_noun(of(FindingLevel::Warn) as u64, "warning"),
        of(FindingLevel::Fail),
        of(FindingLevel::Unknown)
    );
    match (findings.iter().filter(|finding| is_failure(finding)).count(), of(FindingLevel::Warn) + of(FindingLevel::Unknown)) {
        (0, 0) => apply_style(GREEN.bold(), format!("All checks passed: {list}")),
        (0, _) => apply_style(YELLOW.bold(), format!("No check failed: {list}")),
        _ => apply_style(RED.bold(), format!("Some checks failed: {list}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::net::{IpAddr, Ipv4Addr, SocketAddr};

    use converger_adapters::proxmox::ConnectionSettings;
    use converger_adapters::proxmox::client::{ApiToken, Endpoint, Fingerprint, RequestLimits, TokenId, TokenSecret, Trust};
    use converger_lab::server::{ClockMode, LabCertificates, LabServer, ServerOptions};
    use converger_lab::{Flavour, WorldSize, WorldSpec};

    const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    /// Serves a lab while `test_body` runs, which gets its environment and the fingerprint to pin.
    fn with_lab(test_body: impl FnOnce(ConnectionSettings, Fingerprint)) {
        let spec = WorldSpec::from_seed(7, WorldSize { nodes: 1, guests: 2 }, Flavour::V9);
        let identity = LabCertificates::new(spec.nodes.keys().map(String::as_str), LOOPBACK).expect("a certificate");
        let pin = Fingerprint::new(&identity.fingerprint()).expect("a fingerprint");
        let (id, token) = spec.tokens.first_key_value().expect("a token");
        let token = ApiToken { id: TokenId::new(id).expect("an id"), secret: TokenSecret::new(&token.secret).expect("a secret") };
        let (address_sender, address) = std::sync::mpsc::channel();
        let (over, end) = tokio::sync::oneshot::channel::<()>();
        let lab = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let options =
                    ServerOptions { listen: SocketAddr::new(LOOPBACK, 0), clock: ClockMode::Real { speed: 1 }, identity, watcher: None };
                let server = LabServer::bind(&spec, options).await.expect("a server");
                address_sender.send(server.served_nodes().next().expect("a node").address).expect("somebody waits");
                server.run(async { end.await.unwrap_or(()) }).await;
            });
        });
        let url = format!("https://{}", address.recv().expect("an address"));
        let endpoint = Endpoint::new(&url, Trust::Fingerprints(Box::new([pin]))).expect("an address");
        test_body(
            ConnectionSettings { name: lab_name(), cluster: None, endpoints: vec![endpoint], token, bounds: RequestLimits::default() },
            pin,
        );
        over.send(()).expect("the lab waits");
        lab.join().expect("the lab ends");
    }

    #[test]
    fn examines_a_lab_over_https() {
        with_lab(|environment, _| {
            let messages = std::cell::RefCell::new(Vec::new());
            let found = examine_lab(environment.clone(), Vec::new(), &|what| messages.borrow_mut().push(what.to_owned()));
            assert_eq!(doctor_status(&found), ExitStatus::Done, "a name that is not pinned is no failure");
            assert!(messages.borrow().len() >= 4, "{messages:?}");
            let shared = DoctorFinding::new("secret-shared", FindingLevel::Fail, "the secret is that of another environment too");
            assert_eq!(
                doctor_status(&examine_lab(environment, vec![shared], &|_| {})),
                ExitStatus::Failed,
                "findings about converger.toml count too"
            );
        });
    }

    #[test]
    fn unpinned_certificate_fails() {
        with_lab(|environment, pin| {
            let other = Trust::Fingerprints(Box::new([Fingerprint::of_certificate(b"another")]));
            let url = format!("https://{}", environment.endpoints[0].name());
            let environment = ConnectionSettings { endpoints: vec![Endpoint::new(&url, other).expect("an address")], ..environment };
            let findings = examine_lab(environment, Vec::new(), &|_| {});
            let shown = render_plain(findings.clone());
            assert!(shown.contains(&format!("converger.toml: fingerprints = [\"{pin}\"]")), "{shown}");
            assert_eq!(doctor_status(&findings), ExitStatus::Failed);
        });
    }

    fn examine_lab(environment: ConnectionSettings, extra: Vec<DoctorFinding>, report_progress: &dyn Fn(&str)) -> Vec<DoctorFinding> {
        [extra, find_inside(ProxmoxObserver::new(environment), report_progress)].concat()
    }

    fn find_inside(proxmox: Result<ProxmoxObserver, ProxmoxError>, report_progress: &dyn Fn(&str)) -> Vec<DoctorFinding> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(examine_environment(proxmox, None, report_progress)).findings
    }

    fn render_plain(findings: Vec<DoctorFinding>) -> String {
        render_with(findings, false)
    }

    fn render_with(findings: Vec<DoctorFinding>, is_quiet: bool) -> String {
        anstream::adapter::strip_str(&render_report(&lab_name(), &DoctorReport { findings, grant: None }, "converger.toml", is_quiet))
            .to_string()
    }

    #[test]
    fn quiet_shows_only_what_did_not_pass_and_the_summary() {
        let plain = render_with(sample_findings(), true);
        assert!(!plain.contains('✓') && plain.starts_with("lab\n! cluster "), "{plain}");
        assert!(plain.contains("✗ may-read") && plain.contains("? ha "), "{plain}");
        assert!(plain.ends_with("\nSome checks failed: 1 ok, 1 warning, 1 failed, 1 unknown\n"), "{plain}");
    }

    #[test]
    fn setup_fault_has_code_and_remedy_and_does_not_end_the_command() {
        let (error, code, remedy) = (ProxmoxError::NoEndpoint, "environment-unconfigured", "Write `[environments.");
        let message = error.to_string();
        let found = find_inside(Err(error), &|_| {});
        assert_eq!(doctor_status(&found), ExitStatus::Failed);
        assert_eq!((found[0].check, found[0].code, found[0].found.as_str()), ("setup", Some(code), message.as_str()));
        let shown = render_plain(found);
        assert!(shown.contains(&format!("remedy: {remedy}")) && shown.contains(&format!("`converger explain {code}`")), "{shown}");
        assert!(shown.contains("? rest   endpoints, privileges, cluster and guests were not checked"), "{shown}");
    }

    fn lab_name() -> EnvironmentName {
        EnvironmentName::new("lab").expect("a name")
    }

    fn sample_findings() -> Vec<DoctorFinding> {
        vec![
            DoctorFinding::new("endpoint", FindingLevel::Ok, "it answers").with_subject("pve1:8006"),
            DoctorFinding::new("cluster", FindingLevel::Warn, "its name is not pinned")
                .with_remedy("pin it")
                .with_line(RemedyTarget::Config, "cluster = \"house\""),
            DoctorFinding::new("may-read", FindingLevel::Fail, "the token cannot")
                .with_remedy("grant it")
                .with_line(RemedyTarget::Node, "pveum role add X"),
            DoctorFinding::new("ha", FindingLevel::Unknown, "not reported"),
        ]
    }

    #[test]
    fn only_failures_set_the_exit_status() {
        let all = sample_findings();
        assert_eq!(doctor_status(&all), ExitStatus::Failed);
        assert_eq!(doctor_status(&all[..2]), ExitStatus::Done);
        assert_eq!(doctor_status(&all[3..]), ExitStatus::Done, "what could not be determined is not a failure");
        assert_eq!(doctor_status(&[]), ExitStatus::Done);
        let unknown = [DoctorFinding::new("may-read", FindingLevel::Unknown, "not reported")];
        assert_eq!(doctor_status(&unknown), ExitStatus::Failed, "reading needs it");
        assert!(render_conclusion(&unknown).contains("Some checks failed"));
    }

    #[test]
    fn renders_one_line_per_finding_with_lines_to_type() {
        let plain = render_plain(sample_findings());
        let expected = "\
lab
✓ endpoint  pve1:8006: it answers
! cluster   its name is not pinned
            remedy: pin it
              converger.toml: cluster = \"house\"
✗ may-read  the token cannot
            remedy: grant it
              on a node:      pveum role add X
? ha        not reported

Some checks failed: 1 ok, 1 warning, 1 failed, 1 unknown
";
        assert_eq!(plain, expected);
    }

    #[test]
    fn renders_requested_actions_below_one_verb_at_a_time() {
        let verb = |check, line| {
            let finding = DoctorFinding {
                part: Some(PrivilegeUse::Request),
                ..DoctorFinding::new(check, FindingLevel::Unneeded, "the token cannot")
            };
            finding.with_remedy("if it should, grant it").with_line(RemedyTarget::Node, line)
        };
        let plain = render_plain(vec![verb("may-clone", "pveum x"), verb("may-grow", "pveum y")]);
        let expected = "\nTo grant an action on request, run its commands on a node:\n  may-clone\n    pveum x\n  may-grow\n    pveum y\n\nAll checks passed";
        assert!(plain.contains(expected), "{plain}");
        assert!(!plain.contains("--json"), "{plain}");
    }

    #[test]
    fn repeated_remedy_is_printed_once() {
        let finding_with_remedy =
            |check| DoctorFinding::new(check, FindingLevel::Warn, "no").with_remedy("grant it").with_line(RemedyTarget::Node, "pveum x");
        let plain = render_plain(vec![finding_with_remedy("a"), finding_with_remedy("b")]);
        assert_eq!(plain.matches("pveum x").count(), 1, "{plain}");
        assert!(plain.contains("! b  no\n     remedy: as above\n"), "{plain}");
    }

    #[test]
    fn writes_one_line_of_canonical_json() {
        let mut out = Vec::new();
        write_json(&mut out, &lab_name(), &DoctorReport { findings: sample_findings(), grant: None }).expect("written");
        let text = String::from_utf8(out).expect("text");
        let expected = concat!(
            r#"{"environment":"lab","findings":[{"about":"pve1:8006","check":"endpoint","found":"it answers","level":"ok"},"#,
            r#"{"check":"cluster","found":"its name is not pinned","level":"warn","#,
            r#""remedy":{"lines":[{"text":"cluster = \"house\"","where":"config"}],"text":"pin it"}},"#,
            r#"{"check":"may-read","found":"the token cannot","level":"fail","#,
            r#""remedy":{"lines":[{"text":"pveum role add X","where":"node"}],"text":"grant it"}},"#,
            r#"{"check":"ha","found":"not reported","level":"unknown"}],"schema":"converger.doctor/1","#,
            r#""summary":{"fail":1,"ok":1,"unknown":1,"unneeded":0,"warn":1}}"#,
            "\n"
        );
        assert_eq!(text, expected);
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(format!("{value}\n"), text, "members are sorted, as in every artifact");
    }
}
