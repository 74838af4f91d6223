//! What the hand asks, and what it makes of answers: first of those that are not what was asked for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use converger_core::action::{Change, FieldChange};
use converger_core::apply::{Answer, Ask, Place, Revision, Sent, TaskId, TaskState, Trouble};
use converger_core::guest::{Identity, Kind, NodeName, Vmid};
use converger_core::normalize::{Effect, Field, Value};
use converger_core::observe::Status;

use super::{Caller, Hand, answer, command};
use crate::proxmox::client::{Exchange, Session, TokenId};
use crate::proxmox::codec::{self, Cause, Command, Delivery, Failure, HttpAnswer, HttpRequest};

const TOKEN: &str = "root@pam!bot";
const DIGEST: &str = "90c9867238def2fe4d646be13e412474af227aee";
const UPID: &str = "UPID:pve1:000043FD:0009433D:6AFA0639:qmstart:100:root@pam!bot:";

fn caller() -> Caller {
    Caller { token: TokenId::new(TOKEN).expect("a token"), cluster: None }
}

fn place() -> Place {
    Place { node: NodeName::new("pve1").expect("a node"), kind: Kind::Qemu, vmid: Vmid::new(100).expect("an id") }
}

fn send(change: Change) -> Ask {
    Ask::Send { place: place(), change, revision: Revision::new(DIGEST) }
}

fn cores(after: u32) -> Change {
    let (before, after) = (Some(Value::Count(2)), Some(Value::Count(after)));
    Change::ConfigSet(Box::new([FieldChange { field: Field::Cores, before, after, pending: None, effect: Effect::Live }]))
}

fn task() -> Ask {
    Ask::Task(TaskId::new(UPID).expect("an id"))
}

/// What the clock of the node says.
const NOW_SECS: u64 = 250;

fn tasks(age_secs_max: u64) -> Ask {
    Ask::Tasks { place: place(), change: Change::Start, age_secs_max }
}

fn every_ask() -> [Ask; 8] {
    [
        Ask::Cluster,
        Ask::Status(place()),
        Ask::Config(place()),
        Ask::Where(place().vmid),
        send(Change::Start),
        send(cores(4)),
        task(),
        tasks(0),
    ]
}

/// What this answer on the wire means to who asked.
fn told(ask: &Ask, status: u16, reason: &str, body: &str) -> Answer {
    let command = command(ask).expect("a request");
    let came = codec::decode(&command, &HttpAnswer { status, reason: reason.into(), body: body.into() });
    let time = super::clock(ask, &came).map(|_| Ok(codec::Event::NodeTime(NOW_SECS)));
    answer(&caller(), ask, came, time)
}

fn yes(ask: &Ask, data: &str) -> Answer {
    told(ask, 200, "OK", &format!(r#"{{"success":1,"data":{data}}}"#))
}

fn no(ask: &Ask, status: &str, message: &str) -> Answer {
    told(ask, 200, "OK", &format!(r#"{{"success":0,"status":{status},"message":"{message}\n","data":null}}"#))
}

/// What an answer amounts to, in a word or two.
fn shown(answer: &Answer) -> String {
    let of = |kind: &str, cause: &converger_core::apply::Cause| format!("{kind} {}", cause.word);
    match answer {
        Answer::Unread(cause) => of("unread", cause),
        Answer::NotThere(cause) => of("not there", cause),
        Answer::Sent(Sent::No(cause)) => of("no", cause),
        Answer::Sent(Sent::NotDelivered(cause)) => of("not delivered", cause),
        Answer::Sent(Sent::MayHaveRun(cause)) => of("may have run", cause),
        Answer::Sent(Sent::Task(_)) => "task".into(),
        Answer::Sent(Sent::Done) => "done".into(),
        Answer::Task(TaskState::Lost(cause)) => of("lost", cause),
        Answer::Task(TaskState::Failed { cause, .. }) => of("failed", cause),
        Answer::Task(TaskState::Ended { warnings, .. }) => format!("ended {{ warnings: {warnings} }}"),
        Answer::Task(TaskState::Running) => "running".into(),
        Answer::Where(found) => found.as_ref().map_or("nowhere".into(), |place| format!("on {}", place.node.as_str())),
        other => format!("{other:?}"),
    }
}

#[track_caller]
fn check(answer: &Answer, expected: &str) {
    assert_eq!(shown(answer), expected);
}

#[test]
fn what_is_no_answer_of_the_api_tells_nothing_and_a_change_may_have_run() {
    let bodies = ["<html><body>502</body></html>", "", "{\"data\":", "hello", r#"{"success":1,"data":[{"strange":[1]},5]}"#];
    for ask in every_ask() {
        for body in bodies {
            let expected = match &ask {
                // A list in the place of a task's id is neither a task nor nothing.
                Ask::Send { .. } => "may have run malformed",
                _ => "unread answer-malformed",
            };
            assert_eq!(shown(&told(&ask, 200, "OK", body)), expected, "{ask:?} {body}");
        }
    }
}

#[test]
fn a_proxy_that_gives_up_after_the_effect_says_may_have_run() {
    for status in [502, 503, 504, 596, 597, 598, 599] {
        for change in [Change::Start, Change::Stop, Change::Shutdown { timeout_secs: 5 }, Change::Reboot { timeout_secs: 5 }, cores(4)] {
            check(&told(&send(change), status, "Connection timed out", ""), "may have run interrupted");
        }
        for ask in every_ask().iter().filter(|ask| !ask.is_mutation()) {
            check(&told(ask, status, "Connection timed out", ""), "unread no-answer");
        }
    }
    check(&told(&send(Change::Start), 595, "No route to host", ""), "not delivered node-unreachable");
    check(&told(&send(cores(4)), 401, "Authentication failed!", ""), "not delivered unauthenticated");
    check(&told(&send(cores(4)), 301, "Moved", ""), "not delivered redirected");
}

#[test]
fn a_connection_that_broke_is_as_lost_as_the_client_says() {
    for (delivery, expected) in [(Delivery::MayHaveRun, "may have run interrupted"), (Delivery::NotDelivered, "not delivered interrupted")]
    {
        let failure = Failure::lost(delivery, Cause::Interrupted, "the connection broke");
        check(&answer(&caller(), &send(Change::Start), Err(failure), None), expected);
    }
    let failure = Failure::lost(Delivery::NotDelivered, Cause::TooSlow, "no whole answer");
    check(&answer(&caller(), &Ask::Status(place()), Err(failure), None), "unread no-answer");
}

#[test]
fn an_event_of_another_command_is_never_taken_for_an_answer() {
    for ask in every_ask() {
        let other = if matches!(ask, Ask::Cluster) { codec::Event::NodeTime(1) } else { codec::Event::NextId(codec::NextId::Free) };
        let answer = answer(&caller(), &ask, Ok(other), None);
        let expected = if ask.is_mutation() { "may have run malformed" } else { "unread answer-malformed" };
        assert_eq!(shown(&answer), expected, "{ask:?}");
    }
}

#[test]
fn the_status_of_another_guest_is_no_status() {
    let status = Ask::Status(place());
    for vmid in ["101", "\"101\"", "\"x\"", "0", "-100"] {
        check(&yes(&status, &format!(r#"{{"status":"stopped","vmid":{vmid},"ha":{{"managed":0}}}}"#)), "unread answer-malformed");
    }
    check(&yes(&status, r#"{"qmpstatus":"running","vmid":100}"#), "unread answer-malformed");
    for vmid in ["100", "\"100\"", "null"] {
        let Answer::Status(live) = yes(&status, &format!(r#"{{"status":"stopped","vmid":{vmid},"ha":{{"managed":0}}}}"#)) else {
            panic!("a status: {vmid}")
        };
        assert!(matches!(live.status, Status::Known(_)), "{vmid}");
    }
}

#[test]
fn a_guest_that_is_neither_running_nor_stopped_is_unknown() {
    for word in ["paused", "suspended", "prelaunch", "io-error", "internal-error", "shutdown", "Running", "unheard-of"] {
        let body = format!(r#"{{"status":"running","qmpstatus":"{word}","vmid":100,"uptime":5,"ha":{{"managed":0}}}}"#);
        let Answer::Status(live) = yes(&Ask::Status(place()), &body) else { panic!("a status") };
        assert_eq!(live.status, Status::Unknown(Some("run-state-unclear".into())), "{word}");
        assert_eq!((&*live.word, live.uptime_secs), (word, Some(5)));
    }
}

/// A process that is there and is not cannot be started, nor shut down.
#[test]
fn a_guest_of_which_process_and_monitor_say_what_cannot_both_be_is_unknown() {
    for (status, finer) in [("running", "stopped"), ("stopped", "running"), ("suspended", "running"), ("stopped", "paused")] {
        let body = format!(r#"{{"status":"{status}","qmpstatus":"{finer}","vmid":100,"ha":{{"managed":0}}}}"#);
        let Answer::Status(live) = yes(&Ask::Status(place()), &body) else { panic!("a status") };
        assert_eq!(live.status, Status::Unknown(Some("run-state-unclear".into())), "{status} {finer}");
        assert_eq!(*live.word, format!("{status}/{finer}"));
    }
}

#[test]
fn a_config_that_is_cut_off_or_not_understood_is_unread() {
    let config = Ask::Config(place());
    check(&yes(&config, "[]"), "unread answer-malformed");
    check(&yes(&config, r#"[{"key":"cores","value":2}]"#), "unread answer-malformed");
    let strange = format!(r#"[{{"key":"tags","value":"prod;#1"}},{{"key":"digest","value":"{DIGEST}"}}]"#);
    check(&yes(&config, &strange), "unread config-not-understood");
    check(&no(&config, "\"403\"", "Permission check failed (/vms/100, VM.Audit)"), "unread not-permitted");
}

#[test]
fn only_the_node_itself_says_that_a_guest_is_not_there() {
    let missing = "Configuration file 'nodes/pve1/qemu-server/100.conf' does not exist";
    for ask in [Ask::Status(place()), Ask::Config(place())] {
        check(&no(&ask, "500", missing), "not there no-such-guest");
        check(&told(&ask, 404, "Not Found", "<html>"), "unread unreadable");
        check(&told(&ask, 595, "No route to host", ""), "unread node-silent");
    }
    check(&no(&send(Change::Stop), "500", missing), "no no-such-guest");
    check(&no(&task(), "500", missing), "unread unreadable");
    check(&no(&Ask::Where(place().vmid), "500", missing), "unread unreadable");
}

#[test]
fn another_cluster_or_none_is_not_ours() {
    let pinned = Caller { cluster: Some("lab".into()), ..caller() };
    let row = |name: &str| format!(r#"{{"type":"cluster","name":"{name}","quorate":1}}"#);
    let node = r#"{"type":"node","name":"pve1","online":1,"local":1}"#;
    let came = |data: &str| {
        let command = command(&Ask::Cluster).expect("a request");
        let body = format!(r#"{{"success":1,"data":[{data}]}}"#);
        codec::decode(&command, &HttpAnswer { status: 200, reason: "OK".into(), body: body.into() })
    };
    check(&answer(&pinned, &Ask::Cluster, came(&format!("{},{node}", row("other"))), None), "unread other-cluster");
    check(&answer(&pinned, &Ask::Cluster, came(node), None), "unread other-cluster");
    check(&answer(&caller(), &Ask::Cluster, came(""), None), "unread answer-malformed");
    check(&answer(&caller(), &Ask::Cluster, came(&row("lab")), None), "unread answer-malformed");
    let Answer::Cluster(membership) = answer(&pinned, &Ask::Cluster, came(&format!("{},{node}", row("lab"))), None) else { panic!("ours") };
    assert!(membership.quorate && membership.nodes.len() == 1);
}

#[test]
fn a_task_of_somebody_else_or_of_something_else_is_not_what_was_sent() {
    let upid = |node: &str, kind: &str, vmid: &str, user: &str| format!("\"UPID:{node}:000043FD:0009433D:6AFA0639:{kind}:{vmid}:{user}:\"");
    check(&yes(&send(Change::Start), &upid("pve1", "qmstart", "100", TOKEN)), "task");
    check(&yes(&send(Change::Start), &upid("pve1", "hastart", "100", TOKEN)), "task");
    for (node, kind, vmid, user) in [
        ("pve2", "qmstart", "100", TOKEN),
        ("pve1", "qmstop", "100", TOKEN),
        ("pve1", "vzstart", "100", TOKEN),
        ("pve1", "qmstart", "101", TOKEN),
        ("pve1", "qmstart", "", TOKEN),
        ("pve1", "qmstart", "100", "root@pam"),
        ("pve1", "qmstart", "100", "root@pam!other"),
    ] {
        check(&yes(&send(Change::Start), &upid(node, kind, vmid, user)), "may have run other-task");
    }
    check(&yes(&send(Change::Start), "null"), "may have run no-task");
    check(&yes(&send(Change::Start), "\"UPID:half\""), "may have run malformed");
    check(&yes(&send(cores(4)), "null"), "done");
    check(&yes(&send(cores(4)), &upid("pve1", "qmconfig", "100", TOKEN)), "may have run other-task");
}

#[test]
fn how_a_task_ended_is_told_apart_from_not_knowing_it() {
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
        check(&yes(&task(), data), expected);
    }
    check(&told(&task(), 200, "OK", r#"{"success":0,"status":400,"message":"x","errors":{"upid":"no such task"}}"#), "lost no-such-task");
    let other = UPID.replace("100", "101");
    check(&yes(&task(), &format!(r#"{{"status":"stopped","exitstatus":"OK","upid":"{other}"}}"#)), "unread answer-malformed");
    let Err(unsent) = command(&Ask::Task(TaskId::new("not-a-upid").expect("an id"))) else { panic!("a request") };
    check(&unsent, "unread not-a-task");
}

#[test]
fn of_the_tasks_in_a_list_those_of_the_change_count_and_say_whose_they_are() {
    let row = |worker: &str, started: u32, user: &str, end: &str| {
        format!(r#"{{"upid":"UPID:pve1:000043FD:0009433D:{started:08X}:{worker}:100:{user}:","status":"{end}"}}"#)
    };
    let listed = |rows: &[String], age| match yes(&tasks(age), &format!("[{}]", rows.join(","))) {
        Answer::Tasks(seen) => seen.iter().map(|seen| (seen.ended_age_secs, seen.is_ours)).collect::<Vec<_>>(),
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
    assert_eq!(listed(&rows, 150), expected, "what runs has no age that counts");
    let full = |first: u32| (first..first + 50).map(|started| row("qmshutdown", started, TOKEN, "OK")).collect::<Vec<_>>();
    check(&yes(&tasks(150), &format!("[{}]", full(200).join(","))), "unread list-full");
    check(&yes(&tasks(20), &format!("[{}]", full(200).join(","))), "unread list-full");
    assert_eq!(listed(&full(100), 20), [], "the list goes back further than asked, however slowly it came");
}

#[test]
fn where_the_age_of_a_task_decides_and_its_clock_is_not_heard_nothing_is_told() {
    let row =
        |worker: &str, end: &str| format!(r#"{{"upid":"UPID:pve1:000043FD:0009433D:00000090:{worker}:100:{TOKEN}:","status":"{end}"}}"#);
    let silent = || Some(Err(Failure::lost(Delivery::NotDelivered, Cause::NodeUnreachable, "no route")));
    let told = |rows: &[String], time: Option<Result<codec::Event, Failure>>| {
        let body = format!(r#"{{"success":1,"data":[{}]}}"#, rows.join(","));
        let came =
            codec::decode(&command(&tasks(9)).expect("a request"), &HttpAnswer { status: 200, reason: "OK".into(), body: body.into() });
        (super::clock(&tasks(9), &came).is_some(), shown(&answer(&caller(), &tasks(9), came, time)))
    };
    for time in [None, silent(), Some(Ok(codec::Event::NextId(codec::NextId::Free)))] {
        let (is_needed, shown) = told(&[row("qmstart", "OK")], time);
        assert!(is_needed && shown.starts_with("unread "), "{shown}");
    }
    for rows in [&[][..], &[row("qmstart", "RUNNING")], &[row("qmstop", "OK")]] {
        let (is_needed, shown) = told(rows, None);
        assert!(!is_needed && !shown.starts_with("unread"), "{shown}");
    }
    let reboot = Ask::Task(TaskId::new(&UPID.replace("qmstart", "qmreboot")).expect("an id"));
    let over = || Ok(codec::Event::Task(codec::TaskState::Ended { warnings: 0 }));
    assert_eq!(super::clock(&reboot, &over()), Some(Command::Read(codec::Read::NodeTime(place().node))));
    assert_eq!(super::clock(&task(), &over()), None, "a start is proven by the guest");
    let unheard = answer(&caller(), &reboot, over(), silent());
    assert_eq!(unheard, Answer::Task(TaskState::Ended { warnings: 0, age_secs: None }), "how it ended is known all the same");
}

#[test]
fn where_a_guest_is_comes_from_the_list_and_only_once() {
    let row = |node: &str, vmid: u32, kind: &str| format!(r#"{{"vmid":{vmid},"type":"{kind}","node":"{node}","status":"stopped"}}"#);
    let ask = Ask::Where(place().vmid);
    check(&yes(&ask, "[]"), "nowhere");
    check(&yes(&ask, &format!("[{},{}]", row("pve1", 101, "qemu"), row("pve2", 100, "qemu"))), "on pve2");
    check(&yes(&ask, &format!("[{},{}]", row("pve1", 100, "qemu"), row("pve2", 100, "qemu"))), "unread moved-while-read");
}

#[test]
fn what_cannot_be_put_into_a_request_is_not_sent() {
    let container = Place { kind: Kind::Lxc, ..place() };
    let reboot = Ask::Send { place: container, change: Change::Reboot { timeout_secs: 5 }, revision: None };
    let unbound = Ask::Send { place: place(), change: cores(4), revision: None };
    let foreign = Ask::Send { place: place(), change: cores(4), revision: Revision::new("not a digest") };
    let mut numa = cores(4);
    if let Change::ConfigSet(fields) = &mut numa {
        (fields[0].field, fields[0].after) = (Field::Numa, Some(Value::Flag(true)));
    }
    let nothing = Change::ConfigSet(Box::new([]));
    for (ask, word) in [
        (reboot, "reboot-kills"),
        (unbound, "no-digest"),
        (foreign, "no-digest"),
        (send(numa), "unwritable"),
        (send(nothing), "unwritable"),
    ] {
        let Err(unsent) = command(&ask) else { panic!("{ask:?} became a request") };
        let Answer::Sent(Sent::No(cause)) = *unsent else { panic!("{unsent:?}") };
        assert_eq!((cause.trouble, cause.word.as_str()), (Trouble::Unsupported, word));
    }
}

#[test]
fn a_write_carries_what_the_reading_was_bound_to() {
    let data = format!(
        r#"[{{"key":"agent","value":"1,type=isa"}},{{"key":"name","value":"web"}},{{"key":"digest","value":"{DIGEST}"}},{{"key":"cores","value":2}}]"#
    );
    let Answer::Config(config) = yes(&Ask::Config(place()), &data) else { panic!("a config") };
    assert_eq!((&*config.name, &config.identity), ("web", &Identity::Qemu { uuid: None, ctime: None }));
    let agent =
        FieldChange { field: Field::Agent, after: Some(Value::Flag(false)), before: None, pending: None, effect: Effect::AtRestart };
    let ask = Ask::Send { place: place(), change: Change::ConfigSet(Box::new([agent])), revision: config.revision.clone() };
    let request = codec::encode(&command(&ask).expect("a request"));
    assert_eq!(request.form(), Some(format!("agent=enabled%3D0%2Ctype%3Disa&digest={DIGEST}").as_str()));
    let unnamed = format!(r#"[{{"key":"digest","value":"{DIGEST}"}}]"#);
    let Answer::Config(config) = yes(&Ask::Config(place()), &unnamed) else { panic!("a config") };
    assert_eq!((&*config.name, config.revision.as_ref().map(Revision::as_str)), ("VM 100", Some(DIGEST)));
}

#[test]
fn each_ask_is_one_request_and_only_a_change_is_no_reading() {
    for ask in every_ask() {
        let command = command(&ask).expect("a request");
        assert_eq!(matches!(command, Command::Write(_)), ask.is_mutation(), "{ask:?}");
    }
}

#[test]
fn a_no_says_what_it_amounts_to() {
    for (message, trouble) in [
        ("VM is locked (backup)", Trouble::Locked),
        ("can't lock file '/var/lock/qemu-server/lock-100.conf' - got timeout", Trouble::LockFile),
        ("checksum mismatch (file change by other user?)", Trouble::Changed),
        ("cluster not ready - no quorum?", Trouble::NotQuorate),
        ("you can't start a vm if it's a template", Trouble::Template),
        ("service 'vm:100' in error state, must be disabled and fixed first", Trouble::HaOwned),
    ] {
        let Answer::Sent(Sent::No(cause)) = no(&send(Change::Start), "500", message) else { panic!("{message}") };
        assert_eq!((cause.trouble, cause.text.contains(message)), (trouble, true), "{message}");
    }
    let Answer::Sent(Sent::MayHaveRun(cause)) = no(&send(Change::Start), "500", "something else") else { panic!("not a no that is known") };
    assert_eq!((cause.trouble, &*cause.text), (Trouble::Other, "500 something else"));
}

/// A way on which every request gets the same answer.
struct Same(HttpAnswer);

impl Exchange for Same {
    async fn exchange(&self, _: &HttpRequest) -> Result<HttpAnswer, Failure> {
        Ok(self.0.clone())
    }

    fn place(&self) -> &str {
        "pve1:8006"
    }
}

#[test]
fn the_carrier_sends_once_and_never_what_cannot_be_sent() {
    let lost = HttpAnswer { status: 596, reason: "Connection timed out".into(), body: Vec::new() };
    let hand = Hand::new(Session::new(Same(lost)), caller());
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    for (ask, expected, requests) in [
        (send(Change::Start), "may have run interrupted", 1),
        (Ask::Status(place()), "unread no-answer", 2),
        (Ask::Send { place: place(), change: cores(4), revision: None }, "no no-digest", 2),
    ] {
        check(&runtime.block_on(hand.ask(&ask)), expected);
        assert_eq!(hand.requests(), requests, "{ask:?}");
    }
}

/// Counts how many are asked for at once.
#[derive(Default)]
struct Crowd {
    now: AtomicUsize,
    most: Arc<AtomicUsize>,
}

impl Exchange for Crowd {
    async fn exchange(&self, request: &HttpRequest) -> Result<HttpAnswer, Failure> {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
        self.now.fetch_sub(1, Ordering::SeqCst);
        let is_cluster = request.path().ends_with("cluster/status");
        let data = if is_cluster { r#"[{"type":"node","name":"pve1","online":1,"local":1}]"# } else { "[]" };
        Ok(HttpAnswer { status: 200, reason: "OK".into(), body: format!(r#"{{"success":1,"data":{data}}}"#).into() })
    }

    fn place(&self) -> &'static str {
        "crowd"
    }
}

#[test]
fn the_entry_node_has_two_requests_at_once_at_most_whoever_they_are_for() {
    let crowd = Crowd::default();
    let most = crowd.most.clone();
    let hand = Hand::new(Session::new(crowd), caller());
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        hand.ask(&Ask::Cluster).await;
        let asks = [Ask::Where(place().vmid), Ask::Where(place().vmid), Ask::Status(place()), Ask::Config(place())];
        futures_util::future::join_all(asks.iter().map(|ask| hand.ask(ask))).await;
    });
    assert_eq!((hand.requests(), most.load(Ordering::SeqCst)), (5, 2));
}
