//! `converger doctor`: what an environment lacks, for people with what to type about it, and for machines as one line of canonical
//! JSON. It reads, and changes nothing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};

use anstyle::Style;
use converger_adapters::proxmox::doctor::{Examined, Finding, Level, Line, Part, Remedy, Where};
use converger_adapters::proxmox::{Proxmox, ProxmoxError};
use converger_core::desired::Desired;
use converger_core::failure::Code;
use converger_core::guest::EnvironmentName;
use converger_runtime::reader::{configuration_example, unconfigured_error};
use converger_runtime::{RuntimeError, state_dir};
use serde::Serialize;

use super::{Stop, inputs, ops, shown};
use crate::cli::Doctor as Visit;
use crate::config::{self, Connection, ONE_NAME, Survey};
use crate::exit::End;
use crate::render::{self, BOLD, CYAN, DIM, GREEN, RED, YELLOW, styled};
use crate::{files, output, progress};

/// The form of the JSON.
const SCHEMA: &str = "converger.doctor/1";

/// Examines the environments that were asked for, one after the other. What is wrong with one does not keep the others from being seen.
pub(super) async fn visit(visit: &Visit) -> Result<End, Stop> {
    let desired = visit.desired.as_deref().map(inputs::read_desired).transpose()?;
    let survey = config::survey(visit.config.as_deref()).map_err(RuntimeError::from)?;
    let wanted = match (&visit.environment, &desired) {
        (Some(name), _) => Some(inputs::parse_environment(name)?),
        (None, Some(desired)) => Some(desired.environment().clone()),
        (None, None) => None,
    };
    let names: Vec<EnvironmentName> = match wanted {
        Some(name) => vec![name],
        None => survey.connections.keys().cloned().collect(),
    };
    if names.is_empty() {
        let stop = Stop::input(format!("{} leads to no environment", survey.origin)).code(Code::EnvironmentUnconfigured);
        return Err(stop.help(configuration_example("lab")));
    }
    let mut ended = End::Done;
    for name in names {
        let connection = survey.connections.get(&name).ok_or_else(|| Stop::from(unconfigured_error(&name)))?;
        let extra = [outside(&name, connection, &survey), said_by_people(visit, &name)].concat();
        let examined = match connection.open(&name) {
            Ok(environment) => {
                let spinner = progress::spinner(&format!("examining {name}"));
                let found = inside(Proxmox::new(environment), desired.as_ref(), &|what| spinner.say(what)).await;
                spinner.end();
                found
            }
            Err(fault) => nobody(unready("secret", fault, Connection::REMEDY)),
        };
        let examined = Examined { findings: [extra, examined.findings].concat(), ..examined };
        let end = show(&name, visit.json, &examined)?;
        ended = if ended == End::Done { end } else { ended };
    }
    Ok(ended)
}

/// What converger.toml itself shows.
fn outside(name: &EnvironmentName, connection: &Connection, survey: &Survey) -> Vec<Finding> {
    let mut findings = Vec::new();
    match survey.same_secret(name) {
        Some(other) => findings.push(
            Finding::new(
                "secret-shared",
                Level::Fail,
                format!("its secret is that of the environment `{other}` too, so that nothing is read"),
            )
            .remedy("make a token of its own for each: a slip in a name must not reach the other cluster"),
        ),
        None => findings.push(Finding::new("secret-shared", Level::Ok, "no other environment has its secret")),
    }
    if let Some((other, shared)) = survey.same_cluster(name) {
        let found = format!("it has {shared}, and so has the environment `{other}`: they may be one cluster");
        let remedy = format!("if they are, keep one of them: {ONE_NAME}, and an apply under the second name is refused");
        findings.push(Finding::new("cluster-named-twice", Level::Warn, found).remedy(remedy));
    }
    if let Some(path) = connection.exposed_file() {
        let path = path.display().to_string();
        let found = format!("others on this machine may read the secret in `{}`", path.escape_debug());
        findings.push(
            Finding::new("secret-file", Level::Warn, found)
                .remedy("let nobody but its owner read it; make a new secret if somebody else may have")
                .line(Where::Here, format!("chmod 600 '{}'", path.replace('\'', "'\\''"))),
        );
    }
    if connection.mode.is_none() {
        let found = "nothing says whether one person decides here (solo) or two (shared); an apply will need to know";
        findings.push(Finding::new("mode", Level::Warn, found).line(Where::Config, "mode = \"solo\""));
    }
    findings
}

/// What people said that keeps an apply from acting. What cannot be read is told too: nothing is planned then.
fn said_by_people(visit: &Visit, name: &EnvironmentName) -> Vec<Finding> {
    let Ok(config) = inputs::load_config(visit.config.as_deref(), name) else { return Vec::new() };
    let remembered = match state_dir::peek_conditions(&config, name) {
        Ok(remembered) => remembered,
        Err(error) => return vec![Finding::new("state", Level::Fail, error.to_string()).code(Code::JournalUnreadable)],
    };
    let here = |check, found: String, line: String| Finding::new(check, Level::Warn, found).line(Where::Here, line);
    let frozen = remembered.freeze.iter().map(|freeze| {
        let found = format!("nothing is changed: frozen {}", ops::word_of(&freeze.by, &freeze.reason, freeze.at_ms));
        here("frozen", found, format!("converger thaw {name}"))
    });
    let written = config.circumstances.freeze.as_ref().map(|reason| {
        let found = format!("nothing is changed: frozen by converger.toml: {}", render::theirs(reason));
        Finding::new("frozen", Level::Warn, found).line(Where::Config, "on = false")
    });
    let held = remembered.holds.iter().map(|hold| {
        let found = format!("guest {} is left alone: held {}", hold.vmid, ops::word_of(&hold.by, &hold.reason, hold.at_ms));
        here("held", found, format!("converger release {name} {}", hold.vmid))
    });
    let unsettled = remembered.unsettled.iter().map(|history| {
        let (vmid, id) = (history.operation.guest.vmid, history.id().as_str());
        let why = if history.progress().is_open() {
            format!("operation {id} is under way, or was left when its run was killed; the next apply finds out")
        } else {
            format!("it is not known what became of operation {id}")
        };
        let found = format!("guest {vmid} is left alone: {why}");
        here("held", found, format!("converger ops show {name} {id}"))
    });
    frozen.chain(written).chain(held).chain(unsettled).collect()
}

/// What is found in an environment. `say` is told what is being asked now.
async fn inside(proxmox: Result<Proxmox, ProxmoxError>, desired: Option<&Desired>, say: &dyn Fn(&str)) -> Examined {
    match proxmox {
        Ok(proxmox) => proxmox.examine(desired, say).await,
        Err(error) => {
            let code = error.code().unwrap_or(Code::ClientSetup);
            let found = Finding::new("setup", Level::Fail, files::plain(&error.to_string()));
            nobody(found.code(code).remedy(code.entry().remedy.trim_end_matches('.')))
        }
    }
}

/// Something on this side that keeps the environment from being asked.
fn unready(check: &'static str, found: String, remedy: &str) -> Finding {
    Finding::new(check, Level::Fail, found).code(Code::ClientSetup).remedy(remedy.trim_end_matches('.'))
}

/// Where nobody can be asked, one line says so for all the rest.
fn nobody(why: Finding) -> Examined {
    let found = "endpoints, privileges, cluster and guests were not asked for, because nobody can be asked yet";
    let rest = Finding::new("rest", Level::Unknown, found).remedy("mend what is said above, and ask again");
    Examined { findings: vec![why, rest], grant: None }
}

/// A doctor that finds a failure has failed.
fn show(name: &EnvironmentName, json: bool, examined: &Examined) -> Result<End, Stop> {
    let written = if json { output::json(|out| write_json(out, name, examined)) } else { write_text(name, examined) };
    shown(written, end(&examined.findings))
}

fn end(findings: &[Finding]) -> End {
    if findings.iter().any(is_failure) { End::Failed } else { End::Done }
}

/// What reading needs and cannot be told is as bad as what is missing: whoever relies on it would not be able to read.
fn is_failure(finding: &Finding) -> bool {
    let is_needed = matches!(finding.check, "may-read" | "guests");
    finding.level == Level::Fail || finding.level == Level::Unknown && is_needed
}

/// How many findings there are of each level.
fn summary(findings: &[Finding]) -> BTreeMap<&'static str, usize> {
    let count = |level: Level| findings.iter().filter(|finding| finding.level == level).count();
    Level::ALL.into_iter().map(|level| (level.word(), count(level))).collect()
}

/// Members in the order of their names, as in every artifact.
#[derive(Serialize)]
struct Document<'d> {
    environment: &'d EnvironmentName,
    findings: &'d [Finding],
    #[serde(skip_serializing_if = "Option::is_none")]
    grant: Option<&'d Remedy>,
    schema: &'static str,
    summary: BTreeMap<&'static str, usize>,
}

fn write_json(out: &mut impl Write, environment: &EnvironmentName, examined: &Examined) -> io::Result<()> {
    let Examined { findings, grant } = examined;
    let summary = summary(findings);
    serde_json::to_writer(&mut *out, &Document { environment, findings, grant: grant.as_ref(), schema: SCHEMA, summary })?;
    writeln!(out)
}

fn write_text(environment: &EnvironmentName, examined: &Examined) -> io::Result<()> {
    write!(anstream::stdout(), "{}", text(environment, examined))
}

fn text(environment: &EnvironmentName, examined: &Examined) -> String {
    let findings = &examined.findings;
    let width = findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
    let mut text = format!("{}\n", styled(BOLD, environment));
    let before = std::iter::once(None).chain(findings.iter().map(Some));
    for (finding, before) in findings.iter().zip(before) {
        if finding.part == Some(Part::Request) && before.is_none_or(|before| before.part != Some(Part::Request)) {
            let _ = writeln!(text, "\n{}", styled(BOLD, REQUESTED));
        }
        text.push_str(&finding_text(finding, before.and_then(|before| before.remedy.as_ref()), width));
    }
    examined.grant.iter().for_each(|grant| text.push_str(&grant_text(grant)));
    text.push_str(&requests_text(findings));
    let _ = writeln!(text, "\n{}", conclusion(findings));
    text
}

/// What stands above what no plan asks for.
const REQUESTED: &str = "For requested actions, which no plan asks for";

/// The lines for what no plan asks for, each verb by itself: whoever wants one of them does not want the others.
fn requests_text(findings: &[Finding]) -> String {
    let lacking = findings.iter().filter(|finding| finding.part == Some(Part::Request));
    let lacking = lacking.filter_map(|finding| Some((finding.check, finding.remedy.as_ref().filter(|remedy| !remedy.lines.is_empty())?)));
    let mut text = String::new();
    for (check, remedy) in lacking {
        if text.is_empty() {
            let _ = writeln!(text, "\n{}", styled(BOLD, "To grant a requested action, type its lines on a node:"));
        }
        let _ = writeln!(text, "  {}", styled(DIM, check));
        for Line { text: line, .. } in &remedy.lines {
            let _ = writeln!(text, "    {line}");
        }
    }
    text
}

/// One block with all that apply needs, to be pasted as it stands.
fn grant_text(grant: &Remedy) -> String {
    let mut text = format!("\n{}\n", styled(BOLD, "To grant everything that apply needs, type on a node:"));
    for Line { text: line, .. } in &grant.lines {
        let _ = writeln!(text, "  {}", styled(BOLD, line));
    }
    let _ = writeln!(text, "{} {}", styled(YELLOW.bold(), "note:"), grant.text);
    text
}

/// A sign that tells levels apart without colour too.
fn sign(level: Level) -> (&'static str, Style) {
    match level {
        Level::Ok => ("✓", GREEN),
        Level::Warn => ("!", YELLOW),
        Level::Fail => ("✗", RED),
        Level::Unknown => ("?", CYAN),
        Level::Unneeded => ("-", DIM),
    }
}

/// One finding. What to do about it is not said twice in a row.
fn finding_text(finding: &Finding, before: Option<&Remedy>, width: usize) -> String {
    let (sign, style) = sign(finding.level);
    let about = finding.about.as_ref().map(|about| format!("{about}: ")).unwrap_or_default();
    let check = format!("{:<width$}", finding.check);
    let check = if finding.level == Level::Ok { styled(DIM, check) } else { styled(style, check) };
    let mut text = format!("{} {check}  {about}{}\n", styled(style, sign), finding.found);
    // What is missing of privileges is granted by one block at the end.
    let remedy = finding.remedy.as_ref().filter(|remedy| finding.part.is_none() || remedy.lines.is_empty());
    let Some(remedy) = remedy else { return text };
    // Below the sentence, so that the column of checks stays free.
    let margin = " ".repeat(width + 4);
    if before == Some(remedy) {
        let _ = writeln!(text, "{margin}{} the same", styled(CYAN, "remedy:"));
        return text;
    }
    let more = finding.code.map(|code| format!(" (`converger explain {code}` says more)")).unwrap_or_default();
    if !remedy.text.is_empty() {
        let _ = writeln!(text, "{margin}{} {}{more}", styled(CYAN, "remedy:"), remedy.text);
    }
    for line in &remedy.lines {
        let place = match line.r#where {
            Where::Node => "on a node:",
            Where::Config => "converger.toml:",
            Where::Here => "here:",
        };
        let _ = writeln!(text, "{margin}  {} {}", styled(DIM, format!("{place:<15}")), styled(BOLD, &line.text));
    }
    text
}

fn conclusion(findings: &[Finding]) -> String {
    let counts = summary(findings);
    let of = |level: Level| counts.get(level.word()).copied().unwrap_or(0);
    let list = format!("{} ok, {} to look at, {} failed, {} unknown", of(Level::Ok), of(Level::Warn), of(Level::Fail), of(Level::Unknown));
    match (findings.iter().filter(|finding| is_failure(finding)).count(), of(Level::Warn) + of(Level::Unknown)) {
        (0, 0) => styled(GREEN.bold(), format!("All is well: {list}")),
        (0, _) => styled(YELLOW.bold(), format!("It works: {list}")),
        _ => styled(RED.bold(), format!("Something does not work: {list}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::net::{IpAddr, Ipv4Addr, SocketAddr};

    use converger_adapters::proxmox::Environment;
    use converger_adapters::proxmox::client::{Bounds, Endpoint, Fingerprint, Secret, Token, TokenId, Trust};
    use converger_lab::server::{Clock, Identity, Options, Server};
    use converger_lab::{Flavour, Scale, Setting};

    const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    /// Serves a lab for as long as `visit` takes, which is given its environment with the fingerprint to pin.
    fn beside_a_lab(visit: impl FnOnce(Environment, Fingerprint)) {
        let setting = Setting::seeded(7, Scale { nodes: 1, guests: 2 }, Flavour::V9);
        let identity = Identity::new(setting.nodes.keys().map(String::as_str), LOOPBACK).expect("a certificate");
        let pin = Fingerprint::new(&identity.fingerprint()).expect("a fingerprint");
        let (id, token) = setting.tokens.first_key_value().expect("a token");
        let token = Token { id: TokenId::new(id).expect("an id"), secret: Secret::new(&token.secret).expect("a secret") };
        let (bound, address) = std::sync::mpsc::channel();
        let (over, end) = tokio::sync::oneshot::channel::<()>();
        let lab = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let options = Options { listen: SocketAddr::new(LOOPBACK, 0), clock: Clock::Real { speed: 1 }, identity, watcher: None };
                let server = Server::bind(&setting, options).await.expect("a server");
                bound.send(server.places().next().expect("a node").address).expect("somebody waits");
                server.run(async { end.await.unwrap_or(()) }).await;
            });
        });
        let url = format!("https://{}", address.recv().expect("an address"));
        let endpoint = Endpoint::new(&url, Trust::Fingerprints(Box::new([pin]))).expect("an address");
        visit(Environment { name: lab_name(), cluster: None, endpoints: vec![endpoint], token, bounds: Bounds::default() }, pin);
        over.send(()).expect("the lab waits");
        lab.join().expect("the lab ends");
    }

    #[test]
    fn a_lab_is_examined_over_https() {
        beside_a_lab(|environment, _| {
            let said = std::cell::RefCell::new(Vec::new());
            let found = examined(environment.clone(), Vec::new(), &|what| said.borrow_mut().push(what.to_owned()));
            assert_eq!(end(&found), End::Done, "a name that is not pinned is no failure");
            assert!(said.borrow().len() >= 4, "{said:?}");
            let shared = Finding::new("secret-shared", Level::Fail, "the secret is that of another environment too");
            assert_eq!(end(&examined(environment, vec![shared], &|_| {})), End::Failed, "found outside counts as well");
        });
    }

    #[test]
    fn a_certificate_that_is_not_pinned_fails() {
        beside_a_lab(|environment, pin| {
            let other = Trust::Fingerprints(Box::new([Fingerprint::of(b"another")]));
            let url = format!("https://{}", environment.endpoints[0].place());
            let environment = Environment { endpoints: vec![Endpoint::new(&url, other).expect("an address")], ..environment };
            let findings = examined(environment, Vec::new(), &|_| {});
            let shown = plain(findings.clone());
            assert!(shown.contains(&format!("converger.toml: fingerprints = [\"{pin}\"]")), "{shown}");
            assert_eq!(end(&findings), End::Failed);
        });
    }

    fn examined(environment: Environment, extra: Vec<Finding>, say: &dyn Fn(&str)) -> Vec<Finding> {
        [extra, find_inside(Proxmox::new(environment), say)].concat()
    }

    fn find_inside(proxmox: Result<Proxmox, ProxmoxError>, say: &dyn Fn(&str)) -> Vec<Finding> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(inside(proxmox, None, say)).findings
    }

    fn plain(findings: Vec<Finding>) -> String {
        anstream::adapter::strip_str(&text(&lab_name(), &Examined { findings, grant: None })).to_string()
    }

    #[test]
    fn what_cannot_be_made_ready_has_a_code_and_a_remedy_and_ends_no_visit() {
        let (error, code, remedy) = (ProxmoxError::NoEndpoint, "environment-unconfigured", "Write `[environments.");
        let words = error.to_string();
        let found = find_inside(Err(error), &|_| {});
        assert_eq!(end(&found), End::Failed);
        assert_eq!((found[0].check, found[0].code, found[0].found.as_str()), ("setup", Some(code), words.as_str()));
        let shown = plain(found);
        assert!(shown.contains(&format!("remedy: {remedy}")) && shown.contains(&format!("`converger explain {code}`")), "{shown}");
        assert!(shown.contains("? rest   endpoints, privileges, cluster and guests were not asked for"), "{shown}");
    }

    fn lab_name() -> EnvironmentName {
        EnvironmentName::new("lab").expect("a name")
    }

    fn findings() -> Vec<Finding> {
        vec![
            Finding::new("endpoint", Level::Ok, "it answers").about("pve1:8006"),
            Finding::new("cluster", Level::Warn, "its name is not pinned").remedy("pin it").line(Where::Config, "cluster = \"house\""),
            Finding::new("may-read", Level::Fail, "it may not").remedy("grant it").line(Where::Node, "pveum role add X"),
            Finding::new("ha", Level::Unknown, "not told"),
        ]
    }

    #[test]
    fn only_a_failure_is_a_failure() {
        let all = findings();
        assert_eq!(end(&all), End::Failed);
        assert_eq!(end(&all[..2]), End::Done);
        assert_eq!(end(&all[3..]), End::Done, "what could not be told is not a failure");
        assert_eq!(end(&[]), End::Done);
        let unknown = [Finding::new("may-read", Level::Unknown, "not told")];
        assert_eq!(end(&unknown), End::Failed, "reading needs it");
        assert!(conclusion(&unknown).contains("Something does not work"));
    }

    #[test]
    fn people_see_one_line_for_each_and_lines_to_type() {
        let plain = plain(findings());
        let expected = "\
lab
✓ endpoint  pve1:8006: it answers
! cluster   its name is not pinned
            remedy: pin it
              converger.toml: cluster = \"house\"
✗ may-read  it may not
            remedy: grant it
              on a node:      pveum role add X
? ha        not told

Something does not work: 1 ok, 1 to look at, 1 failed, 1 unknown
";
        assert_eq!(plain, expected);
    }

    #[test]
    fn what_no_plan_asks_for_has_its_lines_below_each_verb_by_itself() {
        let verb = |check, line| {
            let finding = Finding { part: Some(Part::Request), ..Finding::new(check, Level::Unneeded, "it may not") };
            finding.remedy("if it is to, grant it").line(Where::Node, line)
        };
        let plain = plain(vec![verb("may-clone", "pveum x"), verb("may-grow", "pveum y")]);
        let expected =
            "\nTo grant a requested action, type its lines on a node:\n  may-clone\n    pveum x\n  may-grow\n    pveum y\n\nAll is well";
        assert!(plain.contains(expected), "{plain}");
        assert!(!plain.contains("--json"), "{plain}");
    }

    #[test]
    fn what_to_do_is_not_said_twice_in_a_row() {
        let twice = |check| Finding::new(check, Level::Warn, "no").remedy("grant it").line(Where::Node, "pveum x");
        let plain = plain(vec![twice("a"), twice("b")]);
        assert_eq!(plain.matches("pveum x").count(), 1, "{plain}");
        assert!(plain.contains("! b  no\n     remedy: the same\n"), "{plain}");
    }

    #[test]
    fn machines_see_one_line_of_canonical_json() {
        let mut out = Vec::new();
        write_json(&mut out, &lab_name(), &Examined { findings: findings(), grant: None }).expect("written");
        let text = String::from_utf8(out).expect("text");
        let expected = concat!(
            r#"{"environment":"lab","findings":[{"about":"pve1:8006","check":"endpoint","found":"it answers","level":"ok"},"#,
            r#"{"check":"cluster","found":"its name is not pinned","level":"warn","#,
            r#""remedy":{"lines":[{"text":"cluster = \"house\"","where":"config"}],"text":"pin it"}},"#,
            r#"{"check":"may-read","found":"it may not","level":"fail","#,
            r#""remedy":{"lines":[{"text":"pveum role add X","where":"node"}],"text":"grant it"}},"#,
            r#"{"check":"ha","found":"not told","level":"unknown"}],"schema":"converger.doctor/1","#,
            r#""summary":{"fail":1,"ok":1,"unknown":1,"unneeded":0,"warn":1}}"#,
            "\n"
        );
        assert_eq!(text, expected);
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(format!("{value}\n"), text, "members are sorted, as in every artifact");
    }
}
