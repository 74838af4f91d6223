//! The commands of the actuator and its interpretation of responses, above all of responses that do not fit the request.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use converger_core::action::{Change, FieldChange};
use converger_core::apply::{ConfigRevision, EnvFaultKind, EnvRequest, EnvResponse, GuestAddress, SendResult, TaskId, TaskState};
use converger_core::guest::{GuestIdentity, GuestKind, NodeName, Vmid};
use converger_core::normalize::{ChangeEffect, Field, FieldValue};
use converger_core::observe::ObservedStatus;

use super::{CallerIdentity, ProxmoxActuator, command_for, interpret_response};
use crate::proxmox::client::{ProxmoxSession, ProxmoxTransport, TokenId};
use crate::proxmox::codec::{self, Delivery, FailureCause, HttpRequest, HttpResponse, ProxmoxCommand, ProxmoxFailure};

const TOKEN: &str = "root@pam!bot";
const DIGEST: &str = "90c9867238def2fe4d646be13e412474af227aee";
const UPID: &str = "UPID:pve1:000043FD:0009433D:6AFA0639:qmstart:100:root@pam!bot:";

fn test_caller() -> CallerIdentity {
    CallerIdentity { token: TokenId::new(TOKEN).expect("a token"), cluster: None }
}

fn test_address() -> GuestAddress {
    GuestAddress { node: NodeName::new("pve1").expect("a node"), kind: GuestKind::Qemu, vmid: Vmid::new(100).expect("an id") }
}

fn send_request(change: Change) -> EnvRequest {
    EnvRequest::Send { address: test_address(), change, revision: ConfigRevision::new(DIGEST) }
}

fn set_cores(after: u32) -> Change {
    let (before, after) = (Some(FieldValue::Count(2)), Some(FieldValue::Count(after)));
    Change::ConfigSet(Box::new([FieldChange { field: Field::Cores, before, after, pending: None, effect: ChangeEffect::Live }]))
}

fn task_request() -> EnvRequest {
    EnvRequest::Task(TaskId::new(UPID).expect("an id"))
}

/// The time on the node's clock.
const NOW_SECS: u64 = 250;

fn tasks_request(age_secs_max: u64) -> EnvRequest {
    EnvRequest::Tasks { address: test_address(), change: Change::Start, age_secs_max }
}

fn every_request() -> [EnvRequest; 8] {
    [
        EnvRequest::Cluster,
        EnvRequest::Status(test_address()),
        EnvRequest::Config(test_address()),
        EnvRequest::Locate(test_address().vmid),
        send_request(Change::Start),
        send_request(set_cores(4)),
        task_request(),
        tasks_request(0),
    ]
}

/// Interprets this HTTP response to a request.
fn interpret_http(request: &EnvRequest, status: u16, reason: &str, body: &str) -> EnvResponse {
    let command = command_for(request).expect("a request");
    let result = codec::decode(&command, &HttpResponse { status, reason: reason.into(), body: body.into() });
    let time = super::clock_command(request, &result).map(|_| Ok(codec::ProxmoxEvent::NodeTime(NOW_SECS)));
    interpret_response(&test_caller(), request, result, time)
}

fn interpret_success(request: &EnvRequest, data: &str) -> EnvResponse {
    interpret_http(request, 200, "OK", &format!(r#"{{"success":1,"data":{data}}}"#))
}

fn interpret_failure(request: &EnvRequest, status: &str, message: &str) -> EnvResponse {
    interpret_http(request, 200, "OK", &format!(r#"{{"success":0,"status":{status},"message":"{message}\n","data":null}}"#))
}

/// A response in a word or two.
fn response_word(answer: &EnvResponse) -> String {
    let of = |kind: &str, cause: &converger_core::apply::EnvFault| format!("{kind} {}", cause.word);
    match answer {
        EnvResponse::Unreadable(cause) => of("unread", cause),
        EnvResponse::GuestNotFound(cause) => of("not there", cause),
        EnvResponse::Sent(SendResult::Rejected(cause)) => of("no", cause),
        EnvResponse::Sent(SendResult::NotDelivered(cause)) => of("not delivered", cause),
        EnvResponse::Sent(SendResult::MaybeExecuted(cause)) => of("may have run", cause),
        EnvResponse::Sent(SendResult::Task(_)) => "task".into(),
        EnvResponse::Sent(SendResult::Done) => "done".into(),
        EnvResponse::Task(TaskState::Lost(cause)) => of("lost", cause),
        EnvResponse::Task(TaskState::Failed { cause, .. }) => of("failed", cause),
        EnvResponse::Task(TaskState::Ended { warnings, .. }) => format!("ended {{ warnings: {warnings} }}"),
        EnvResponse::Task(TaskState::Running) => "running".into(),
        EnvResponse::Located(found) => found.as_ref().map_or("nowhere".into(), |address| format!("on {}", address.node.as_str())),
        other => format!("{other:?}"),
    }
}

#[track_caller]
fn check_response(answer: &EnvResponse, expected: &str) {
    assert_eq!(response_word(answer), expected);
}

#[test]
fn foreign_response_leaves_reads_unread_and_changes_unclear() {
    let bodies = ["<html><body>502</body></html>", "", "{\"data\":", "hello", r#"{"success":1,"data":[{"strange":[1]},5]}"#];
    for request in every_request() {
        for body in bodies {
            let expected = match &request {
                // A list in place of a task id is neither a task nor an empty response.
                EnvRequest::Send { .. } => "may have run malformed",
                _ => "unread answer-malformed",
            };
            assert_eq!(response_word(&interpret_http(&request, 200, "OK", body)), expected, "{request:?} {body}");
        }
    }
}

#[test]
fn proxy_timeout_means_may_have_run() {
    for status in [502, 503, 504, 596, 597, 598, 599] {
        for change in [Change::Start, Change::Stop, Change::Shutdown { timeout_secs: 5 }, Change::Reboot { timeout_secs: 5 }, set_cores(4)]
        {
            check_response(&interpret_http(&send_request(change), status, "Connection timed out", ""), "may have run interrupted");
        }
        for request in every_request().iter().filter(|request| !request.is_mutation()) {
            check_response(&interpret_http(request, status, "Connection timed out", ""), "unread no-answer");
        }
    }
    check_response(&interpret_http(&send_request(Change::Start), 595, "No route to host", ""), "not delivered node-unreachable");
    check_response(&interpret_http(&send_request(set_cores(4)), 401, "Authentication failed!", ""), "not delivered unauthenticated");
    check_response(&interpret_http(&send_request(set_cores(4)), 301, "Moved", ""), "not delivered redirected");
}

#[test]
fn broken_connection_keeps_the_delivery_of_the_client() {
    for (delivery, expected) in [(Delivery::MayHaveRun, "may have run interrupted"), (Delivery::NotDelivered, "not delivered interrupted")]
    {
        let failure = ProxmoxFailure::without_response(delivery, FailureCause::Interrupted, "the connection broke");
        check_response(&interpret_response(&test_caller(), &send_request(Change::Start), Err(failure), None), expected);
    }
    let failure = ProxmoxFailure::without_response(Delivery::NotDelivered, FailureCause::TooSlow, "no complete response");
    check_response(&interpret_response(&test_caller(), &EnvRequest::Status(test_address()), Err(failure), None), "unread no-answer");
}

#[test]
fn rejects_the_event_of_another_command() {
    for request in every_request() {
        let other = if matches!(request, EnvRequest::Cluster) {
            codec::ProxmoxEvent::NodeTime(1)
        } else {
            codec::ProxmoxEvent::NextId(codec::IdAvailability::Free)
        };
        let answer = interpret_response(&test_caller(), &request, Ok(other), None);
        let expected = if request.is_mutation() { "may have run malformed" } else { "unread answer-malformed" };
        assert_eq!(response_word(&answer), expected, "{request:?}");
    }
}

#[test]
fn rejects_the_status_of_another_guest() {
    let status = EnvRequest::Status(test_address());
    for vmid in ["101", "\"101\"", "\"x\"", "0", "-100"] {
        check_response(
            &interpret_success(&status, &format!(r#"{{"status":"stopped","vmid":{vmid},"ha":{{"managed":0}}}}"#)),
            "unread answer-malformed",
        );
    }
    check_response(&interpret_success(&status, r#"{"qmpstatus":"running","vmid":100}"#), "unread answer-malformed");
    for vmid in ["100", "\"100\"", "null"] {
        let EnvResponse::Status(live) =
            interpret_success(&status, &format!(r#"{{"status":"stopped","vmid":{vmid},"ha":{{"managed":0}}}}"#))
        else {
            panic!("a status: {vmid}")
        };
        assert!(matches!(live.status, ObservedStatus::Known(_)), "{vmid}");
    }
}

#[test]
fn unclear_run_state_is_unknown() {
    for monitor_state in ["paused", "suspended", "prelaunch", "io-error", "internal-error", "shutdown", "Running", "unheard-of"] {
        let body = format!(r#"{{"status":"running","qmpstatus":"{monitor_state}","vmid":100,"uptime":5,"ha":{{"managed":0}}}}"#);
        let EnvResponse::Status(live) = interpret_success(&EnvRequest::Status(test_address()), &body) else { panic!("a status") };
        assert_eq!(live.status, ObservedStatus::Unknown(Some("run-state-unclear".into())), "{monitor_state}");
        assert_eq!((&*live.word, live.uptime_secs), (monitor_state, Some(5)));
    }
}

/// A guest whose process state contradicts its monitor state can neither be started nor shut down.
#[test]
fn contradicting_process_and_monitor_states_are_unknown() {
    for (status, monitor_state) in [("running", "stopped"), ("stopped", "running"), ("suspended", "running"), ("stopped", "paused")] {
        let body = format!(r#"{{"status":"{status}","qmpstatus":"{monitor_state}","vmid":100,"ha":{{"managed":0}}}}"#);
        let EnvResponse::Status(live) = interpret_success(&EnvRequest::Status(test_address()), &body) else { panic!("a status") };
        assert_eq!(live.status, ObservedStatus::Unknown(Some("run-state-unclear".into())), "{status} {monitor_state}");
        assert_eq!(*live.word, format!("{status}/{monitor_state}"));
    }
}

#[test]
fn truncated_or_unknown_config_is_unread() {
    let config = EnvRequest::Config(test_address());
    check_response(&interpret_success(&config, "[]"), "unread answer-malformed");
    check_response(&interpret_success(&config, r#"[{"key":"cores","value":2}]"#), "unread answer-malformed");
    let invalid = format!(r#"[{{"key":"tags","value":"prod;#1"}},{{"key":"digest","value":"{DIGEST}"}}]"#);
    check_response(&interpret_success(&config, &invalid), "unread config-not-understood");
    check_response(&interpret_failure(&config, "\"403\"", "Permission check failed (/vms/100, VM.Audit)"), "unread not-permitted");
}

#[test]
fn only_the_node_itself_reports_a_guest_as_missing() {
    let missing = "Configuration file 'nodes/pve1/qemu-server/100.conf' does not exist";
    for request in [EnvRequest::Status(test_address()), EnvRequest::Config(test_address())] {
        check_response(&interpret_failure(&request, "500", missing), "not there no-such-guest");
        check_response(&interpret_http(&request, 404, "Not Found", "<html>"), "unread unreadable");
        check_response(&interpret_http(&request, 595, "No route to host", ""), "unread node-silent");
    }
    check_response(&interpret_failure(&send_request(Change::Stop), "500", missing), "no no-such-guest");
    check_response(&interpret_failure(&task_request(), "500", missing), "unread unreadable");
    check_response(&interpret_failure(&EnvRequest::Locate(test_address().vmid), "500", missing), "unread unreadable");
}

#[test]
fn rejects_another_cluster() {
    let pinned = CallerIdentity { cluster: Some("lab".into()), ..test_caller() };
    let row = |name: &str| format!(r#"{{"type":"cluster","name":"{name}","quorate":1}}"#);
    let node = r#"{"type":"node","name":"pve1","online":1,"local":1}"#;
    let decode_rows = |data: &str| {
        let command = command_for(&EnvRequest::Cluster).expect("a request");
        let body = format!(r#"{{"success":1,"data":[{data}]}}"#);
        codec::decode(&command, &HttpResponse { status: 200, reason: "OK".into(), body: body.into() })
    };
    check_response(
        &interpret_response(&pinned, &EnvRequest::Cluster, decode_rows(&format!("{},{node}", row("other"))), None),
        "unread other-cluster",
    );
    check_response(&interpret_response(&pinned, &EnvRequest::Cluster, decode_rows(node), None), "unread other-cluster");
    check_response(&interpret_response(&test_caller(), &EnvRequest::Cluster, decode_rows(""), None), "unread answer-malformed");
    check_response(&interpret_response(&test_caller(), &EnvRequest::Cluster, decode_rows(&row("lab")), None), "unread answer-malformed");
    let EnvResponse::Cluster(membership) =
        interpret_response(&pinned, &EnvRequest::Cluster, decode_rows(&format!("{},{node}", row("lab"))), None)
    else {
        panic!("ours")
    };
    assert!(membership.quorate && membership.nodes.len() == 1);
}

#[test]
fn rejects_the_task_of_another_user_or_change() {
    let upid = |node: &str, kind: &str, vmid: &str, user: &str| format!("\"UPID:{node}:000043FD:0009433D:6AFA0639:{kind}:{vmid}:{user}:\"");
    check_response(&interpret_success(&send_request(Change::Start), &upid("pve1", "qmstart", "100", TOKEN)), "task");
    check_response(&interpret_success(&send_request(Change::Start), &upid("pve1", "hastart", "100", TOKEN)), "task");
    for (node, kind, vmid, user) in [
        ("pve2", "qmstart", "100", TOKEN),
        ("pve1", "qmstop", "100", TOKEN),
        ("pve1", "vzstart", "100", TOKEN),
        ("pve1", "qmstart", "101", TOKEN),
        ("pve1", "qmstart", "", TOKEN),
        ("pve1", "qmstart", "100", "root@pam"),
        ("pve1", "qmstart", "100", "root@pam!other"),
    ] {
        check_response(&interpret_success(&send_request(Change::Start), &upid(node, kind, vmid, user)), "may have run other-task");
    }
    check_response(&interpret_success(&send_request(Change::Start), "null"), "may have run no-task");
    check_response(&interpret_success(&send_request(Change::Start), "\"UPID:half\""), "may have run malformed");
    check_response(&interpret_success(&send_request(set_cores(4)), "null"), "done");
    check_response(&interpret_success(&send_request(set_cores(4)), &upid("pve1", "qmconfig", "100", TOKEN)), "may have run other-task");
}

#[test]
fn distinguishes_task_ends_from_lost_tasks() {
    for (data, expected) in [
        (r#"{"status":"running"}"#, "running"),
        (r#"{"status":"stopped","exitstatus":"OK"}"#, "ended { warnings: 0 }"),
        (r#"{"status":"stopped","exitstatus":"WARNINGS: 2"}"#, "ended { warnings: 2 }"),
        (r#"{"status":"stopped","exitstatus":"WARNINGS: many"}"#, "failed other"),
        (r#"{"status":"stopped","exitstatus":"VM quit/powerdown failed - got timeout"}"#, "failed shutdown-timeout"),
        (r#"{"status":"stopped","exitstatus":"VM is locked (backup)"}"#, "failed locked"),
        (r#"{"status":"stopped","exitstatus":"unexpected status"}"#, "lost task-killed"),
        (r#"{"status":"stopped"}"#, "lost task-killed"),
        (r#"{"exitstatus":"OK"}"#, "unread answer-malformed"),
    ] {
        check_response(&interpret_success(&task_request(), data), expected);
    }
    check_response(
        &interpret_http(&task_request(), 200, "OK", r#"{"success":0,"status":400,"message":"x","errors":{"upid":"no such task"}}"#),
        "lost no-such-task",
    );
    let other = UPID.replace("100", "101");
    check_response(
        &interpret_success(&task_request(), &format!(r#"{{"status":"stopped","exitstatus":"OK","upid":"{other}"}}"#)),
        "unread answer-malformed",
    );
    let Err(unsent) = command_for(&EnvRequest::Task(TaskId::new("not-a-upid").expect("an id"))) else { panic!("a request") };
    check_response(&unsent, "unread not-a-task");
}

#[test]
fn lists_only_tasks_of_the_change_with_their_owner() {
    let row = |worker: &str, started: u32, user: &str, end: &str| {
        format!(r#"{{"upid":"UPID:pve1:000043FD:0009433D:{started:08X}:{worker}:100:{user}:","status":"{end}"}}"#)
    };
    let listed = |rows: &[String], age| match interpret_success(&tasks_request(age), &format!("[{}]", rows.join(","))) {
        EnvResponse::Tasks(seen) => seen.iter().map(|seen| (seen.ended_age_secs, seen.is_ours)).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    let rows = [
        row("qmstart", 90, TOKEN, "RUNNING"),
        row("qmstart", 150, TOKEN, "OK"),
        row("qmstart", 99, TOKEN, "OK"),
        row("qmstop", 160, TOKEN, "OK"),
        row("qmstart", 160, "root@pam", "OK"),
        row("qmstart", 91, "svc@pve!other", "RUNNING"),
        row("qmstop", 160, "root@pam", "RUNNING"),
        row("qmstart", 98, "root@pam", "OK"),
        r#"{"upid":"nonsense"}"#.to_owned(),
    ];
    let expected = [(None, true), (Some(100), true), (Some(151), true), (Some(90), false), (None, false), (Some(152), false)];
    assert_eq!(listed(&rows, 150), expected, "the age of a running task does not matter");
    let full = |first: u32| (first..first + 50).map(|started| row("qmshutdown", started, TOKEN, "OK")).collect::<Vec<_>>();
    check_response(&interpret_success(&tasks_request(150), &format!("[{}]", full(200).join(","))), "unread list-full");
    check_response(&interpret_success(&tasks_request(20), &format!("[{}]", full(200).join(","))), "unread list-full");
    assert_eq!(listed(&full(100), 20), [], "the list reaches further back than the age limit plus the time of a slow response");
}

#[test]
fn task_age_without_node_clock_is_unread() {
    let row =
        |worker: &str, end: &str| format!(r#"{{"upid":"UPID:pve1:000043FD:0009433D:00000090:{worker}:100:{TOKEN}:","status":"{end}"}}"#);
    let node_unreachable =
        || Some(Err(ProxmoxFailure::without_response(Delivery::NotDelivered, FailureCause::NodeUnreachable, "no route")));
    let interpret = |rows: &[String], time: Option<Result<codec::ProxmoxEvent, ProxmoxFailure>>| {
        let body = format!(r#"{{"success":1,"data":[{}]}}"#, rows.join(","));
        let result = codec::decode(
            &command_for(&tasks_request(9)).expect("a request"),
            &HttpResponse { status: 200, reason: "OK".into(), body: body.into() },
        );
        (
            super::clock_command(&tasks_request(9), &result).is_some(),
            response_word(&interpret_response(&test_caller(), &tasks_request(9), result, time)),
        )
    };
    for time in [None, node_unreachable(), Some(Ok(codec::ProxmoxEvent::NextId(codec::IdAvailability::Free)))] {
        let (is_needed, shown) = interpret(&[row("qmstart", "OK")], time);
        assert!(is_needed && shown.starts_with("unread "), "{shown}");
    }
    for rows in [&[][..], &[row("qmstart", "RUNNING")], &[row("qmstop", "OK")]] {
        let (is_needed, shown) = interpret(rows, None);
        assert!(!is_needed && !shown.starts_with("unread"), "{shown}");
    }
    let reboot = EnvRequest::Task(TaskId::new(&UPID.replace("qmstart", "qmreboot")).expect("an id"));
    let over = || Ok(codec::ProxmoxEvent::Task(codec::ProxmoxTaskState::Ended { warnings: 0 }));
    assert_eq!(super::clock_command(&reboot, &over()), Some(ProxmoxCommand::Read(codec::ProxmoxRead::NodeTime(test_address().node))));
    assert_eq!(super::clock_command(&task_request(), &over()), None, "a start is proven by the guest");
    let response = interpret_response(&test_caller(), &reboot, over(), node_unreachable());
    assert_eq!(response, EnvResponse::Task(TaskState::Ended { warnings: 0, age_secs: None }), "the result is known even without the clock");
}

#[test]
fn locates_a_guest_by_a_unique_list_row() {
    let row = |node: &str, vmid: u32, kind: &str| format!(r#"{{"vmid":{vmid},"type":"{kind}","node":"{node}","status":"stopped"}}"#);
    let request = EnvRequest::Locate(test_address().vmid);
    check_response(&interpret_success(&request, "[]"), "nowhere");
    check_response(&interpret_success(&request, &format!("[{},{}]", row("pve1", 101, "qemu"), row("pve2", 100, "qemu"))), "on pve2");
    check_response(
        &interpret_success(&request, &format!("[{},{}]", row("pve1", 100, "qemu"), row("pve2", 100, "qemu"))),
        "unread moved-while-read",
    );
}

#[test]
fn does_not_send_unsupported_changes() {
    let container = GuestAddress { kind: GuestKind::Lxc, ..test_address() };
    let reboot = EnvRequest::Send { address: container, change: Change::Reboot { timeout_secs: 5 }, revision: None };
    let unbound = EnvRequest::Send { address: test_address(), change: set_cores(4), revision: None };
    let foreign = EnvRequest::Send { address: test_address(), change: set_cores(4), revision: ConfigRevision::new("not a digest") };
    let mut numa = set_cores(4);
    if let Change::ConfigSet(fields) = &mut numa {
        (fields[0].field, fields[0].after) = (Field::Numa, Some(FieldValue::Flag(true)));
    }
    let nothing = Change::ConfigSet(Box::new([]));
    for (request, code) in [
        (reboot, "reboot-kills"),
        (unbound, "no-digest"),
        (foreign, "no-digest"),
        (send_request(numa), "unwritable"),
        (send_request(nothing), "unwritable"),
    ] {
        let Err(unsent) = command_for(&request) else { panic!("{request:?} became a request") };
        let EnvResponse::Sent(SendResult::Rejected(cause)) = *unsent else { panic!("{unsent:?}") };
        assert_eq!((cause.kind, cause.word.as_str()), (EnvFaultKind::Unsupported, code));
    }
}

#[test]
fn write_carries_the_basis_of_its_config() {
    let data = format!(
        r#"[{{"key":"agent","value":"1,type=isa"}},{{"key":"name","value":"web"}},{{"key":"digest","value":"{DIGEST}"}},{{"key":"cores","value":2}}]"#
    );
    let EnvResponse::Config(config) = interpret_success(&EnvRequest::Config(test_address()), &data) else { panic!("a config") };
    assert_eq!((&*config.name, &config.identity), ("web", &GuestIdentity::Qemu { uuid: None, ctime: None }));
    let agent = FieldChange {
        field: Field::Agent,
        after: Some(FieldValue::Flag(false)),
        before: None,
        pending: None,
        effect: ChangeEffect::AtRestart,
    };
    let env_request =
        EnvRequest::Send { address: test_address(), change: Change::ConfigSet(Box::new([agent])), revision: config.revision.clone() };
    let request = codec::encode(&command_for(&env_request).expect("a request"));
    assert_eq!(request.form(), Some(format!("agent=enabled%3D0%2Ctype%3Disa&digest={DIGEST}").as_str()));
    let unnamed = format!(r#"[{{"key":"digest","value":"{DIGEST}"}}]"#);
    let EnvResponse::Config(config) = interpret_success(&EnvRequest::Config(test_address()), &unnamed) else { panic!("a config") };
    assert_eq!((&*config.name, config.revision.as_ref().map(ConfigRevision::as_str)), ("VM 100", Some(DIGEST)));
}

#[test]
fn each_request_is_one_command_and_only_changes_write() {
    for request in every_request() {
        let command = command_for(&request).expect("a request");
        assert_eq!(matches!(command, ProxmoxCommand::Write(_)), request.is_mutation(), "{request:?}");
    }
}

#[test]
fn rejection_maps_to_its_kind() {
    for (message, fault_kind) in [
        ("VM is locked (backup)", EnvFaultKind::Locked),
        ("can't lock file '/var/lock/qemu-server/lock-100.conf' - got timeout", EnvFaultKind::LockFile),
        ("checksum mismatch (file change by other user?)", EnvFaultKind::ConfigChanged),
        ("cluster not ready - no quorum?", EnvFaultKind::NotQuorate),
        ("you can't start a vm if it's a template", EnvFaultKind::Template),
        ("service 'vm:100' in error state, must be disabled and fixed first", EnvFaultKind::HaOwned),
    ] {
        let EnvResponse::Sent(SendResult::Rejected(cause)) = interpret_failure(&send_request(Change::Start), "500", message) else {
            panic!("{message}")
        };
        assert_eq!((cause.kind, cause.text.contains(message)), (fault_kind, true), "{message}");
    }
    let EnvResponse::Sent(SendResult::MaybeExecuted(cause)) = interpret_failure(&send_request(Change::Start), "500", "something else")
    else {
        panic!("an unknown rejection may have run")
    };
    assert_eq!((cause.kind, &*cause.text), (EnvFaultKind::Other, "500 something else"));
}

/// A transport that gives every request the same response.
struct FixedResponseTransport(HttpResponse);

impl ProxmoxTransport for FixedResponseTransport {
    async fn exchange(&self, _: &HttpRequest) -> Result<HttpResponse, ProxmoxFailure> {
        Ok(self.0.clone())
    }

    fn endpoint_name(&self) -> &str {
        "pve1:8006"
    }
}

#[test]
fn sends_each_request_once_and_never_an_unsupported_one() {
    let timeout_response = HttpResponse { status: 596, reason: "Connection timed out".into(), body: Vec::new() };
    let actuator = ProxmoxActuator::new(ProxmoxSession::new(FixedResponseTransport(timeout_response)), test_caller());
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    for (request, expected, requests) in [
        (send_request(Change::Start), "may have run interrupted", 1),
        (EnvRequest::Status(test_address()), "unread no-answer", 2),
        (EnvRequest::Send { address: test_address(), change: set_cores(4), revision: None }, "no no-digest", 2),
    ] {
        check_response(&runtime.block_on(actuator.request(&request)), expected);
        assert_eq!(actuator.request_count(), requests, "{request:?}");
    }
}

fn set_password(reference: &str) -> EnvRequest {
    let password = converger_core::guest::SecretReference::new(reference);
    assert!(password.is_some(), "{reference}");
    let (attributes, fields) = (converger_core::guest::DayOne::default(), Box::default());
    let provisioning = converger_core::action::Provisioning { attributes, fields, kind: GuestKind::Qemu, password };
    let revision = ConfigRevision::new("0fe8dcaad38c42e5626b836ae80a400e0792ac21");
    EnvRequest::Send { address: test_address(), change: Change::Provision(Box::new(provisioning)), revision }
}

#[test]
fn sends_nothing_without_the_password_and_shows_none_that_a_server_repeats() {
    let directory = std::env::temp_dir().join(format!("converger-password-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let (good, empty) = (directory.join("good"), directory.join("empty"));
    std::fs::write(&good, "hunter2 & more\n").expect("a file");
    std::fs::write(&empty, "\n").expect("a file");
    let said = "cipassword hunter2 & more and hunter2%20%26%20more are not allowed";
    let response = HttpResponse { status: 400, reason: said.into(), body: Vec::new() };
    let actuator = ProxmoxActuator::new(ProxmoxSession::new(FixedResponseTransport(response)), test_caller());
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    for missing in
        [format!("file:{}", directory.join("none").display()), format!("file:{}", empty.display()), "env:CONVERGER_NOT_SET".into()]
    {
        check_response(&runtime.block_on(actuator.request(&set_password(&missing))), "no no-password");
    }
    assert_eq!(actuator.request_count(), 0);
    let refused = runtime.block_on(actuator.request(&set_password(&format!("file:{}", good.display()))));
    let shown = format!("{refused:?}");
    assert!(shown.contains("(secret)") && !shown.contains("hunter2"), "{shown}");
    assert_eq!(actuator.request_count(), 1);
    std::fs::remove_dir_all(&directory).expect("removed");
}

/// Counts concurrent requests.
#[derive(Default)]
struct ConcurrencyTransport {
    now: AtomicUsize,
    concurrent_max: Arc<AtomicUsize>,
}

impl ProxmoxTransport for ConcurrencyTransport {
    async fn exchange(&self, request: &HttpRequest) -> Result<HttpResponse, ProxmoxFailure> {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.concurrent_max.fetch_max(now, Ordering::SeqCst);
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
        self.now.fetch_sub(1, Ordering::SeqCst);
        let is_cluster = request.path().ends_with("cluster/status");
        let data = if is_cluster { r#"[{"type":"node","name":"pve1","online":1,"local":1}]"# } else { "[]" };
        Ok(HttpResponse { status: 200, reason: "OK".into(), body: format!(r#"{{"success":1,"data":{data}}}"#).into() })
    }

    fn endpoint_name(&self) -> &'static str {
        "crowd"
    }
}

#[test]
fn entry_node_has_at_most_two_concurrent_requests() {
    let crowd = ConcurrencyTransport::default();
    let most = crowd.concurrent_max.clone();
    let actuator = ProxmoxActuator::new(ProxmoxSession::new(crowd), test_caller());
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        actuator.request(&EnvRequest::Cluster).await;
        let requests = [
            EnvRequest::Locate(test_address().vmid),
            EnvRequest::Locate(test_address().vmid),
            EnvRequest::Status(test_address()),
            EnvRequest::Config(test_address()),
        ];
        futures_util::future::join_all(requests.iter().map(|request| actuator.request(request))).await;
    });
    assert_eq!((actuator.request_count(), most.load(Ordering::SeqCst)), (5, 2));
}
