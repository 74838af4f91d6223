//! What answers mean: one event each, in both shapes of the API and in the types that the releases give.

use converger_adapters::proxmox::codec::{
    Accepted, Cause, Command, Delivery, Event, Expiry, Failure, GuestPath, HaResource, HttpAnswer, NextId, Read, Spread, TaskState,
    TokenState, Upid, UserId, Write, decode,
};
use converger_core::guest::{ClusterIdentity, Kind, NodeName, Vmid};

use crate::desk::{failure, raw, success};

const UPID: &str = "UPID:n1:000043FD:0009433D:6AFA0639:qmstart:100:svc@pve!probe:";

fn guest(kind: Kind) -> GuestPath {
    GuestPath { node: NodeName::new("n1").expect("a name"), kind, vmid: Vmid::new(100).expect("an id") }
}

fn read(read: Read, answer: &HttpAnswer) -> Result<Event, Failure> {
    decode(&Command::Read(read), answer)
}

fn start(answer: &HttpAnswer) -> Result<Event, Failure> {
    decode(&Command::Write(Write::Start(guest(Kind::Qemu))), answer)
}

fn json_shape(data: &str) -> HttpAnswer {
    HttpAnswer { status: 200, reason: "OK".into(), body: format!(r#"{{"data":{data},"total":3}}"#).into() }
}

#[test]
fn a_write_is_done_or_a_task_does_it() {
    assert_eq!(start(&success("null")), Ok(Event::Accepted(Accepted::Done)));
    let upid = Upid::new(UPID).expect("an id");
    for answer in [success(&format!("\"{UPID}\"")), json_shape(&format!("\"{UPID}\""))] {
        assert_eq!(start(&answer), Ok(Event::Accepted(Accepted::Task(upid.clone()))));
    }
    let odd = start(&success("\"done\"")).expect_err("not a task");
    assert_eq!((odd.cause, odd.delivery), (Cause::Malformed, Delivery::MayHaveRun));
}

#[test]
fn how_a_task_ended() {
    let ended = |row: &str| {
        let Ok(Event::Task(state)) = read(Read::TaskStatus(Upid::new(UPID).expect("an id")), &success(row)) else { panic!("{row}") };
        state
    };
    let failed = |cause, text: &str| TaskState::Failed { cause, text: text.into() };
    assert_eq!(ended(r#"{"status":"running","pid":5}"#), TaskState::Running);
    assert_eq!(ended(r#"{"status":"stopped","exitstatus":"OK"}"#), TaskState::Ended { warnings: 0 });
    assert_eq!(ended(r#"{"status":"stopped","exitstatus":"WARNINGS: 3"}"#), TaskState::Ended { warnings: 3 });
    let already = "VM 100 already running";
    assert_eq!(ended(&format!(r#"{{"status":"stopped","exitstatus":"{already}"}}"#)), failed(Cause::AlreadyRunning, already));
    assert_eq!(ended(r#"{"status":"stopped","exitstatus":"unexpected status"}"#), failed(Cause::TaskKilled, "unexpected status"));
    assert_eq!(ended(r#"{"status":"stopped"}"#), failed(Cause::TaskKilled, "no end is known"));
}

#[test]
fn a_task_that_is_not_known_any_more() {
    let body = r#"{"success":0,"status":"400","message":"Parameter verification failed.\n","errors":{"upid":"no such task"},"data":null}"#;
    let answer = HttpAnswer { body: body.into(), ..success("") };
    let gone = read(Read::TaskStatus(Upid::new(UPID).expect("an id")), &answer).expect_err("gone");
    assert_eq!((gone.cause, gone.delivery), (Cause::NoSuchTask, Delivery::No));
}

#[test]
fn lists_of_tasks_do_not_tell_whether_one_runs() {
    let rows =
        format!(r#"[{{"upid":"{UPID}","status":"RUNNING","saved":"0"}},{{"upid":"{UPID}","status":"OK","endtime":5}},{{"upid":"odd"}}]"#);
    let node = NodeName::new("n1").expect("a name");
    let Ok(Event::Tasks(tasks)) = read(Read::Tasks { node, vmid: Vmid::new(100).expect("an id") }, &json_shape(&rows)) else {
        panic!("tasks")
    };
    assert_eq!(tasks.iter().map(|task| task.end.as_deref()).collect::<Vec<_>>(), [None, Some("OK")]);
}

#[test]
fn an_id_is_free_or_taken_or_nobody_knows() {
    let next = |answer: &HttpAnswer| read(Read::NextId(Vmid::new(100).expect("an id")), answer);
    for answer in [success("\"100\""), success("100"), json_shape("\"100\"")] {
        assert_eq!(next(&answer), Ok(Event::NextId(NextId::Free)));
    }
    let errors = r#""message":"Parameter verification failed.\n","errors":{"vmid":"VM 100 already exists"},"data":null}"#;
    let extjs = HttpAnswer { body: format!(r#"{{"success":0,"status":"400",{errors}"#).into(), ..success("") };
    let json = HttpAnswer { status: 400, reason: "Parameter verification failed.".into(), body: format!("{{{errors}").into() };
    for answer in [extjs, json] {
        assert_eq!(next(&answer), Ok(Event::NextId(NextId::Taken)));
    }
    let low = r#"{"success":0,"status":"400","message":"x","errors":{"vmid":"invalid format - value does not look like a valid VM ID\n"}}"#;
    assert_eq!(next(&HttpAnswer { body: low.into(), ..success("") }).expect_err("neither").cause, Cause::BadParameter);
    assert!(next(&raw(596, "Connection timed out")).is_err());
    for other in ["\"999\"", "{}", "[100]", "\"\"", "true"] {
        assert_eq!(next(&success(other)).expect_err(other).cause, Cause::Malformed, "{other}");
    }
}

#[test]
fn a_cluster_and_a_node_in_none() {
    let cluster = |rows: &str| match read(Read::ClusterStatus, &success(rows)) {
        Ok(Event::Cluster(cluster)) => cluster,
        other => panic!("{other:?}"),
    };
    let rows = r#"[{"type":"cluster","name":"lab","quorate":"1","nodes":2},{"type":"node","name":"n1","online":1,"local":1},{"type":"node","name":"n2","online":"0","local":0}]"#;
    let both = cluster(rows);
    assert_eq!((both.name.as_deref(), both.quorate), (Some("lab"), true));
    assert_eq!(both.nodes.values().collect::<Vec<_>>(), [&true, &false]);
    assert_eq!(both.local.as_ref().map(NodeName::as_str), Some("n1"));
    assert!(!cluster(&rows.replace(r#""quorate":"1""#, r#""quorate":0"#)).quorate);
    assert!(!cluster(&rows.replace(r#""quorate":"1","#, "")).quorate, "not said is not so");
    let alone = cluster(r#"[{"type":"node","name":"n1","online":1,"local":1,"nodeid":0}]"#);
    assert!(alone.quorate && alone.name.is_none());
}

#[test]
fn g2_rows_of_a_cluster_that_contradict_each_other_say_nothing() {
    let whole = r#"{"type":"cluster","name":"lab","quorate":1}"#;
    let n1 = r#"{"type":"node","name":"n1","online":1,"local":1}"#;
    let odd = [
        String::new(),
        whole.to_owned(),
        format!("{whole},{n1},{}", n1.replace(r#""online":1"#, r#""online":0"#)),
        format!("{whole},{},{n1}", whole.replace(r#""quorate":1"#, r#""quorate":0"#)),
        format!("{whole},{n1},{}", n1.replace("n1", "n2")),
        format!(r#"{whole},{n1},{{"type":"node","name":["n2"],"online":1}}"#),
    ];
    for rows in odd {
        let failure = read(Read::ClusterStatus, &success(&format!("[{rows}]"))).expect_err(&rows);
        assert_eq!(failure.cause, Cause::Malformed, "{rows}");
    }
}

#[test]
fn g2_that_a_guest_is_not_there_is_said_of_the_guest_that_was_asked_for() {
    let text = |vmid: u32| failure("500", &format!("Configuration file 'nodes/n100/qemu-server/{vmid}.conf' does not exist"));
    let cause = |answer: &HttpAnswer| read(Read::GuestStatus(guest(Kind::Qemu)), answer).expect_err("a no").cause;
    assert_eq!((cause(&text(100)), cause(&text(999)), cause(&text(1100))), (Cause::NoSuchGuest, Cause::Malformed, Cause::Malformed));
    assert_eq!(cause(&failure("500", "unable to find configuration file for VM 100 on node 'n1'")), Cause::NoSuchGuest);
}

#[test]
fn permissions_are_granted_where_they_are_named() {
    let answer = success(r#"{"/vms/100":{"VM.Audit":0,"VM.PowerMgmt":1},"/vms/101":{}}"#);
    let Ok(Event::Permissions(granted)) = read(Read::Permissions, &answer) else { panic!("permissions") };
    assert!(granted.has("/vms/100", "VM.Audit") && !granted.has("/vms/101", "VM.Audit") && !granted.has("/", "VM.Audit"));
}

#[test]
fn a_privilege_says_whether_it_spreads() {
    let answer = success(r#"{"/vms":{"VM.Audit":"0","VM.PowerMgmt":1}}"#);
    let Ok(Event::Permissions(granted)) = read(Read::Permissions, &answer) else { panic!("permissions") };
    assert_eq!(granted.on("/vms", Spread::Any).collect::<Vec<_>>(), ["VM.Audit", "VM.PowerMgmt"]);
    assert_eq!(granted.on("/vms", Spread::Below).collect::<Vec<_>>(), ["VM.PowerMgmt"]);
    assert_eq!(granted.on("/", Spread::Any).count(), 0);
}

#[test]
fn a_user_and_its_tokens() {
    let user = |row: &str| match read(Read::User(UserId::new("svc@pve").expect("an id")), &success(row)) {
        Ok(Event::User(user)) => user,
        other => panic!("{other:?}"),
    };
    let own = user(r#"{"enable":"0","expire":5,"tokens":{"a":{"privsep":0,"expire":"7"},"b":{"expire":0}},"email":"x"}"#);
    assert_eq!((own.enabled, own.expiry), (false, Expiry::At(5)));
    assert_eq!(own.tokens.get("a"), Some(&TokenState { separated: false, expiry: Expiry::At(7) }));
    assert_eq!(own.tokens.get("b"), Some(&TokenState { separated: true, expiry: Expiry::Never }), "separation is on unless it is off");
    let bare = user("{}");
    assert_eq!((bare.enabled, bare.expiry, bare.tokens.len()), (true, Expiry::Never, 0));
    for odd in [r#""soon""#, "[]", "null", "-5"] {
        assert_eq!(user(&format!(r#"{{"expire":{odd}}}"#)).expiry, Expiry::Unclear, "{odd}");
    }
}

#[test]
fn roles_and_their_privileges() {
    let rows = r#"[{"roleid":"A","privs":"VM.Audit,Sys.Audit"},{"roleid":"NoAccess","privs":""},{"roleid":"B"},{"privs":"x"}]"#;
    let Ok(Event::Roles(roles)) = read(Read::Roles, &success(rows)) else { panic!("roles") };
    let of = |role: &str| roles.get(role).map(|own| own.iter().map(|word| &**word).collect::<Vec<_>>());
    assert_eq!(of("A"), Some(vec!["Sys.Audit", "VM.Audit"]));
    assert_eq!((of("NoAccess"), of("B"), roles.len()), (Some(vec![]), Some(vec![]), 3));
}

#[test]
fn what_high_availability_believes() {
    let rows = r#"[{"type":"quorum","status":"OK","quorate":1},{"type":"fencing","status":"armed"},{"type":"lrm","status":"n1 (idle)"},
        {"type":"service","sid":"vm:100","state":"error","status":"vm:100 (n1, error)"},{"type":"service"}]"#;
    let Ok(Event::Ha(ha)) = read(Read::HaStatus, &success(rows)) else { panic!("a status") };
    assert_eq!((ha.fencing.as_deref(), ha.manager), (Some("armed"), None));
    assert_eq!(ha.services, [HaResource { sid: "vm:100".into(), state: Some("error".into()) }]);
}

#[test]
fn the_clock_of_a_node() {
    let time = |row: &str| read(Read::NodeTime(NodeName::new("n1").expect("a name")), &success(row));
    assert_eq!(time(r#"{"time":"1794770489","localtime":1,"timezone":"UTC"}"#), Ok(Event::NodeTime(1_794_770_489)));
    assert_eq!(time(r#"{"localtime":1}"#).expect_err("no time").cause, Cause::Malformed);
}

#[test]
fn the_state_of_a_guest() {
    let status = |row: &str| match read(Read::GuestStatus(guest(Kind::Qemu)), &success(row)) {
        Ok(Event::GuestStatus(status)) => status,
        other => panic!("{other:?}"),
    };
    let full =
        status(r#"{"status":"running","qmpstatus":"paused","name":"a","lock":"backup","uptime":"7","ha":{"managed":1,"state":"started"}}"#);
    assert_eq!((full.qmp_status.as_deref(), full.lock.as_deref(), full.uptime_secs), (Some("paused"), Some("backup"), Some(7)));
    assert_eq!(full.ha, Some(Some("started".into())));
    assert_eq!(status(r#"{"status":"stopped","ha":{"managed":0}}"#).ha, None);
    assert_eq!(status(r#"{"status":"stopped","ha":{"managed":"1","state":null}}"#).ha, Some(None));
    for row in [
        "{}",
        r#"{"status":"stopped"}"#,
        r#"{"status":"stopped","ha":[]}"#,
        r#"{"status":"stopped","ha":{}}"#,
        r#"{"status":"stopped","ha":{"managed":"yes"}}"#,
        r#"{"status":"stopped","ha":{"managed":[1]}}"#,
        r#"{"status":"stopped","lock":["backup"],"ha":{"managed":0}}"#,
    ] {
        let failure = read(Read::GuestStatus(guest(Kind::Qemu)), &success(row)).expect_err(row);
        assert_eq!(failure.cause, Cause::Malformed, "{row}");
    }
}

#[test]
fn snapshots_without_the_guest_itself() {
    let rows =
        r#"[{"name":"s1","snaptime":5,"vmstate":0},{"name":"s2","snapstate":"prepare"},{"name":"current","parent":"s1","running":0}]"#;
    let Ok(Event::Snapshots(snapshots)) = read(Read::Snapshots(guest(Kind::Lxc)), &success(rows)) else { panic!("snapshots") };
    assert_eq!(snapshots.list.iter().map(|snapshot| &*snapshot.name).collect::<Vec<_>>(), ["s1", "s2"]);
    assert_eq!((snapshots.parent.as_deref(), snapshots.list[1].state.as_deref()), (Some("s1"), Some("prepare")));
}

#[test]
fn the_rest_of_what_is_read() {
    let Ok(Event::Version(version)) = read(Read::Version, &json_shape(r#"{"version":"7.4-16","release":"7.4"}"#)) else {
        panic!("version")
    };
    assert_eq!((version.major, &*version.version), (7, "7.4-16"));
    assert!(read(Read::Version, &success(r#"{"version":"unheard of"}"#)).is_err());
    assert!(read(Read::Resources, &success("null")).is_err(), "a list is never null");
}

#[test]
fn what_a_no_to_a_write_means() {
    let cases = [
        (failure("500", "CT 100 already running"), Cause::AlreadyRunning, Delivery::No),
        (failure("500", "cluster not ready - no quorum?"), Cause::NoQuorum, Delivery::No),
        (failure("\"403\"", "Permission check failed (/vms/100, VM.PowerMgmt)"), Cause::Forbidden, Delivery::No),
        (raw(595, "Connection refused"), Cause::NodeUnreachable, Delivery::NotDelivered),
        (raw(596, "Connection timed out"), Cause::Interrupted, Delivery::MayHaveRun),
        (raw(401, "No ticket"), Cause::Unauthenticated, Delivery::NotDelivered),
        (raw(501, "Unexpected content for method 'DELETE'"), Cause::NotImplemented, Delivery::No),
    ];
    for (answer, cause, delivery) in cases {
        let failure = start(&answer).expect_err("a no");
        assert_eq!((failure.cause, failure.delivery), (cause, delivery), "{failure}");
    }
}

/// Another certificate may be the same for several clusters, and a fingerprint that is none would be the same for all that give it.
#[test]
fn refuses_to_take_anything_but_the_root_ca_for_the_identity_of_a_cluster() {
    let identity = |rows: &str| read(Read::Certificates(NodeName::new("n1").expect("a name")), &success(rows));
    let (own, leaf) = (["AB"; 32].join(":"), r#"{"filename":"pve-ssl.pem","fingerprint":"CD"}"#);
    for (name, fingerprint) in [("/etc/pve/pve-root-ca.pem", own.clone()), ("pve-root-ca.pem", own.to_lowercase())] {
        let rows = format!(r#"[{{"filename":"{name}","fingerprint":"{fingerprint}"}},{leaf}]"#);
        assert_eq!(identity(&rows), Ok(Event::Identity(ClusterIdentity::parse(&own).expect("a fingerprint"))));
    }
    let root = format!(r#"{{"filename":"pve-root-ca.pem","fingerprint":"{own}"}}"#);
    let cases = [
        ("[]".to_owned(), "does not list"),
        (format!("[{leaf}]"), "does not list"),
        (format!("[{root},{root}]"), "twice"),
        (r#"[{"filename":"pve-root-ca.pem"}]"#.to_owned(), "is not the SHA-256"),
        (r#"[{"filename":"pve-root-ca.pem","fingerprint":"AB:CD"}]"#.to_owned(), "is not the SHA-256"),
        (format!(r#"[{{"filename":"my-pve-root-ca.pem","fingerprint":"{own}"}}]"#), "does not list"),
    ];
    for (rows, part) in cases {
        let failure = identity(&rows).expect_err("no identity");
        assert!(failure.cause == Cause::Malformed && failure.text.contains(part), "{rows}: {failure}");
    }
}
