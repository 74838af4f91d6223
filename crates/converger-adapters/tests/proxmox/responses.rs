//! The decoding of responses: one event each, in both formats of the API and with the types of all releases.

use converger_adapters::proxmox::codec::{
    AcceptedChange, ConfigDigest, Delivery, Expiry, FailureCause, GuestPath, HaService, HttpResponse, IdAvailability, ProxmoxCommand,
    ProxmoxEvent, ProxmoxFailure, ProxmoxRead, ProxmoxTaskState, ProxmoxWrite, SnapshotName, SpreadFilter, TokenState, Upid, UserId,
    decode,
};
use converger_core::guest::{ClusterIdentity, GuestKind, NodeName, Vmid};

use crate::scripted_proxmox::{failure_response, raw_response, success_response};

const UPID: &str = "UPID:n1:000043FD:0009433D:6AFA0639:qmstart:100:svc@pve!probe:";

fn guest_path(kind: GuestKind) -> GuestPath {
    GuestPath { node: NodeName::new("n1").expect("a name"), kind, vmid: Vmid::new(100).expect("an id") }
}

fn decode_read(read: ProxmoxRead, answer: &HttpResponse) -> Result<ProxmoxEvent, ProxmoxFailure> {
    decode(&ProxmoxCommand::Read(read), answer)
}

fn decode_start(answer: &HttpResponse) -> Result<ProxmoxEvent, ProxmoxFailure> {
    decode(&ProxmoxCommand::Write(ProxmoxWrite::Start(guest_path(GuestKind::Qemu))), answer)
}

fn json_response(data: &str) -> HttpResponse {
    HttpResponse { status: 200, reason: "OK".into(), body: format!(r#"{{"data":{data},"total":3}}"#).into() }
}

#[test]
fn decodes_done_and_task_responses() {
    assert_eq!(decode_start(&success_response("null")), Ok(ProxmoxEvent::Accepted(AcceptedChange::Done)));
    let upid = Upid::new(UPID).expect("an id");
    for answer in [success_response(&format!("\"{UPID}\"")), json_response(&format!("\"{UPID}\""))] {
        assert_eq!(decode_start(&answer), Ok(ProxmoxEvent::Accepted(AcceptedChange::Task(upid.clone()))));
    }
    let odd = decode_start(&success_response("\"done\"")).expect_err("not a task");
    assert_eq!((odd.cause, odd.delivery), (FailureCause::Malformed, Delivery::MayHaveRun));
}

#[test]
fn decodes_task_ends() {
    let task_state = |row: &str| {
        let Ok(ProxmoxEvent::Task(state)) = decode_read(ProxmoxRead::TaskStatus(Upid::new(UPID).expect("an id")), &success_response(row))
        else {
            panic!("{row}")
        };
        state
    };
    let failed = |cause, text: &str| ProxmoxTaskState::Failed { cause, text: text.into() };
    assert_eq!(task_state(r#"{"status":"running","pid":5}"#), ProxmoxTaskState::Running);
    assert_eq!(task_state(r#"{"status":"stopped","exitstatus":"OK"}"#), ProxmoxTaskState::Ended { warnings: 0 });
    assert_eq!(task_state(r#"{"status":"stopped","exitstatus":"WARNINGS: 3"}"#), ProxmoxTaskState::Ended { warnings: 3 });
    let already = "VM 100 already running";
    assert_eq!(task_state(&format!(r#"{{"status":"stopped","exitstatus":"{already}"}}"#)), failed(FailureCause::AlreadyRunning, already));
    assert_eq!(
        task_state(r#"{"status":"stopped","exitstatus":"unexpected status"}"#),
        failed(FailureCause::TaskKilled, "unexpected status")
    );
    assert_eq!(task_state(r#"{"status":"stopped"}"#), failed(FailureCause::TaskKilled, "no exit status"));
}

#[test]
fn unknown_task_is_a_rejection() {
    let body = r#"{"success":0,"status":"400","message":"Parameter verification failed.\n","errors":{"upid":"no such task"},"data":null}"#;
    let answer = HttpResponse { body: body.into(), ..success_response("") };
    let failure = decode_read(ProxmoxRead::TaskStatus(Upid::new(UPID).expect("an id")), &answer).expect_err("gone");
    assert_eq!((failure.cause, failure.delivery), (FailureCause::NoSuchTask, Delivery::Rejected));
}

#[test]
fn task_lists_do_not_show_whether_a_task_runs() {
    let rows =
        format!(r#"[{{"upid":"{UPID}","status":"RUNNING","saved":"0"}},{{"upid":"{UPID}","status":"OK","endtime":5}},{{"upid":"odd"}}]"#);
    let node = NodeName::new("n1").expect("a name");
    let Ok(ProxmoxEvent::Tasks(tasks)) =
        decode_read(ProxmoxRead::Tasks { node, vmid: Vmid::new(100).expect("an id") }, &json_response(&rows))
    else {
        panic!("tasks")
    };
    assert_eq!(tasks.iter().map(|task| task.end.as_deref()).collect::<Vec<_>>(), [None, Some("OK")]);
}

#[test]
fn decodes_free_taken_and_unknown_ids() {
    let next = |answer: &HttpResponse| decode_read(ProxmoxRead::NextId(Vmid::new(100).expect("an id")), answer);
    for answer in [success_response("\"100\""), success_response("100"), json_response("\"100\"")] {
        assert_eq!(next(&answer), Ok(ProxmoxEvent::NextId(IdAvailability::Free)));
    }
    let errors = r#""message":"Parameter verification failed.\n","errors":{"vmid":"VM 100 already exists"},"data":null}"#;
    let extjs = HttpResponse { body: format!(r#"{{"success":0,"status":"400",{errors}"#).into(), ..success_response("") };
    let json = HttpResponse { status: 400, reason: "Parameter verification failed.".into(), body: format!("{{{errors}").into() };
    for answer in [extjs, json] {
        assert_eq!(next(&answer), Ok(ProxmoxEvent::NextId(IdAvailability::Taken)));
    }
    let low = r#"{"success":0,"status":"400","message":"x","errors":{"vmid":"invalid format - value does not look like a valid VM ID\n"}}"#;
    assert_eq!(next(&HttpResponse { body: low.into(), ..success_response("") }).expect_err("neither").cause, FailureCause::BadParameter);
    assert!(next(&raw_response(596, "Connection timed out")).is_err());
    for other in ["\"999\"", "{}", "[100]", "\"\"", "true"] {
        assert_eq!(next(&success_response(other)).expect_err(other).cause, FailureCause::Malformed, "{other}");
    }
}

#[test]
fn decodes_a_cluster_and_a_standalone_node() {
    let cluster = |rows: &str| match decode_read(ProxmoxRead::ClusterStatus, &success_response(rows)) {
        Ok(ProxmoxEvent::Cluster(cluster)) => cluster,
        other => panic!("{other:?}"),
    };
    let rows = r#"[{"type":"cluster","name":"lab","quorate":"1","nodes":2},{"type":"node","name":"n1","online":1,"local":1},{"type":"node","name":"n2","online":"0","local":0}]"#;
    let both = cluster(rows);
    assert_eq!((both.name.as_deref(), both.quorate), (Some("lab"), true));
    assert_eq!(both.nodes.values().collect::<Vec<_>>(), [&true, &false]);
    assert_eq!(both.local.as_ref().map(NodeName::as_str), Some("n1"));
    assert!(!cluster(&rows.replace(r#""quorate":"1""#, r#""quorate":0"#)).quorate);
    assert!(!cluster(&rows.replace(r#""quorate":"1","#, "")).quorate, "a missing flag counts as false");
    let alone = cluster(r#"[{"type":"node","name":"n1","online":1,"local":1,"nodeid":0}]"#);
    assert!(alone.quorate && alone.name.is_none());
}

#[test]
fn g2_contradicting_cluster_rows_are_malformed() {
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
        let failure = decode_read(ProxmoxRead::ClusterStatus, &success_response(&format!("[{rows}]"))).expect_err(&rows);
        assert_eq!(failure.cause, FailureCause::Malformed, "{rows}");
    }
}

#[test]
fn g2_missing_guest_must_be_the_requested_one() {
    let text = |vmid: u32| failure_response("500", &format!("Configuration file 'nodes/n100/qemu-server/{vmid}.conf' does not exist"));
    let cause =
        |answer: &HttpResponse| decode_read(ProxmoxRead::GuestStatus(guest_path(GuestKind::Qemu)), answer).expect_err("a rejection").cause;
    assert_eq!(
        (cause(&text(100)), cause(&text(999)), cause(&text(1100))),
        (FailureCause::NoSuchGuest, FailureCause::Malformed, FailureCause::Malformed)
    );
    assert_eq!(cause(&failure_response("500", "unable to find configuration file for VM 100 on node 'n1'")), FailureCause::NoSuchGuest);
}

#[test]
fn decodes_permissions_by_path() {
    let answer = success_response(r#"{"/vms/100":{"VM.Audit":0,"VM.PowerMgmt":1},"/vms/101":{}}"#);
    let Ok(ProxmoxEvent::Permissions(granted)) = decode_read(ProxmoxRead::Permissions, &answer) else { panic!("permissions") };
    assert!(granted.has("/vms/100", "VM.Audit") && !granted.has("/vms/101", "VM.Audit") && !granted.has("/", "VM.Audit"));
}

#[test]
fn decodes_privilege_propagation() {
    let answer = success_response(r#"{"/vms":{"VM.Audit":"0","VM.PowerMgmt":1}}"#);
    let Ok(ProxmoxEvent::Permissions(granted)) = decode_read(ProxmoxRead::Permissions, &answer) else { panic!("permissions") };
    assert_eq!(granted.privileges_on("/vms", SpreadFilter::Any).collect::<Vec<_>>(), ["VM.Audit", "VM.PowerMgmt"]);
    assert_eq!(granted.privileges_on("/vms", SpreadFilter::Below).collect::<Vec<_>>(), ["VM.PowerMgmt"]);
    assert_eq!(granted.privileges_on("/", SpreadFilter::Any).count(), 0);
}

#[test]
fn decodes_a_user_with_tokens() {
    let user = |row: &str| match decode_read(ProxmoxRead::User(UserId::new("svc@pve").expect("an id")), &success_response(row)) {
        Ok(ProxmoxEvent::User(user)) => user,
        other => panic!("{other:?}"),
    };
    let own = user(r#"{"enable":"0","expire":5,"tokens":{"a":{"privsep":0,"expire":"7"},"b":{"expire":0}},"email":"x"}"#);
    assert_eq!((own.enabled, own.expiry), (false, Expiry::At(5)));
    assert_eq!(own.tokens.get("a"), Some(&TokenState { separated: false, expiry: Expiry::At(7) }));
    assert_eq!(own.tokens.get("b"), Some(&TokenState { separated: true, expiry: Expiry::Never }), "separation is on by default");
    let bare = user("{}");
    assert_eq!((bare.enabled, bare.expiry, bare.tokens.len()), (true, Expiry::Never, 0));
    for odd in [r#""soon""#, "[]", "null", "-5"] {
        assert_eq!(user(&format!(r#"{{"expire":{odd}}}"#)).expiry, Expiry::Unclear, "{odd}");
    }
}

#[test]
fn decodes_roles() {
    let rows = r#"[{"roleid":"A","privs":"VM.Audit,Sys.Audit"},{"roleid":"NoAccess","privs":""},{"roleid":"B"},{"privs":"x"}]"#;
    let Ok(ProxmoxEvent::Roles(roles)) = decode_read(ProxmoxRead::Roles, &success_response(rows)) else { panic!("roles") };
    let of = |role: &str| roles.get(role).map(|own| own.iter().map(|privilege| &**privilege).collect::<Vec<_>>());
    assert_eq!(of("A"), Some(vec!["Sys.Audit", "VM.Audit"]));
    assert_eq!((of("NoAccess"), of("B"), roles.len()), (Some(vec![]), Some(vec![]), 3));
}

#[test]
fn decodes_ha_status() {
    let rows = r#"[{"type":"quorum","status":"OK","quorate":1},{"type":"fencing","status":"armed"},{"type":"lrm","status":"n1 (idle)"},
        {"type":"service","sid":"vm:100","state":"error","status":"vm:100 (n1, error)"},{"type":"service"}]"#;
    let Ok(ProxmoxEvent::Ha(ha)) = decode_read(ProxmoxRead::HaStatus, &success_response(rows)) else { panic!("a status") };
    assert_eq!((ha.fencing.as_deref(), ha.manager), (Some("armed"), None));
    assert_eq!(ha.services, [HaService { sid: "vm:100".into(), state: Some("error".into()) }]);
}

#[test]
fn decodes_node_time() {
    let time = |row: &str| decode_read(ProxmoxRead::NodeTime(NodeName::new("n1").expect("a name")), &success_response(row));
    assert_eq!(time(r#"{"time":"1794770489","localtime":1,"timezone":"UTC"}"#), Ok(ProxmoxEvent::NodeTime(1_794_770_489)));
    assert_eq!(time(r#"{"localtime":1}"#).expect_err("no time").cause, FailureCause::Malformed);
}

#[test]
fn decodes_guest_status() {
    let status = |row: &str| match decode_read(ProxmoxRead::GuestStatus(guest_path(GuestKind::Qemu)), &success_response(row)) {
        Ok(ProxmoxEvent::GuestStatus(status)) => status,
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
        let failure = decode_read(ProxmoxRead::GuestStatus(guest_path(GuestKind::Qemu)), &success_response(row)).expect_err(row);
        assert_eq!(failure.cause, FailureCause::Malformed, "{row}");
    }
}

#[test]
fn decodes_snapshots_without_current() {
    let rows = r#"[{"name":"s2","snapstate":"prepare","vmstate":"1","parent":"s1"},{"name":"s1","snaptime":5,"vmstate":0},{"name":"current","parent":"s1","running":0,"digest":"0fe8"}]"#;
    let Ok(ProxmoxEvent::Snapshots(snapshots)) = decode_read(ProxmoxRead::Snapshots(guest_path(GuestKind::Lxc)), &success_response(rows))
    else {
        panic!("snapshots")
    };
    let tree = &snapshots.tree;
    assert_eq!(tree.list.iter().map(|snapshot| (&*snapshot.name, snapshot.ram)).collect::<Vec<_>>(), [("s1", false), ("s2", true)]);
    assert_eq!((tree.current.as_deref(), tree.list[1].state.as_deref()), (Some("s1"), Some("prepare")));
    assert_eq!((tree.list[0].made_at, tree.list[1].parent.as_deref()), (Some(5), Some("s1")));
    assert_eq!(snapshots.digest, ConfigDigest::new("0fe8"));
}

#[test]
fn g2_incomplete_list_of_snapshots_is_malformed() {
    let current = r#"{"name":"current","digest":"0fe8"}"#;
    for rows in [
        String::new(),
        r#"{"name":"s1"}"#.to_owned(),
        format!("{current},{current}"),
        format!(r#"{current},{{"name":"s1"}},{{"name":"s1"}}"#),
        format!(r#"{current},{{"snaptime":5}}"#),
        format!(r#"{current},{{"name":["s1"]}}"#),
        format!(r#"{current},{{"name":"s1","vmstate":"perhaps"}}"#),
        format!(r#"{current},{{"name":"s1","snaptime":-1}}"#),
        format!(r#"{current},{{"name":"s1","snaptime":9007199254740992}}"#),
        format!(r#"{current},{{"name":"s1","snapstate":null}}"#),
        format!(r#"{current},{{"name":"s1","parent":{{}}}}"#),
        r#"{"name":"current","parent":[]}"#.to_owned(),
    ] {
        let read = ProxmoxRead::Snapshots(guest_path(GuestKind::Qemu));
        let failure = decode_read(read, &success_response(&format!("[{rows}]"))).expect_err(&rows);
        assert_eq!(failure.cause, FailureCause::Malformed, "{rows}");
    }
}

#[test]
fn decodes_the_config_of_a_snapshot() {
    let read = || ProxmoxRead::SnapshotConfig { guest: guest_path(GuestKind::Qemu), name: SnapshotName::new("s1").expect("a name") };
    let decoded = |row: &str| match decode_read(read(), &success_response(row)) {
        Ok(ProxmoxEvent::SnapshotConfig(config)) => config,
        other => panic!("{other:?}"),
    };
    let recorded = decoded(
        r#"{"meta":"creation-qemu=10.0.2,ctime=1794770489","boot":"order=scsi0","memory":"256","snaptime":1794770662,"digest":"4321b21d61d97c704e12ca5eb07f7d335af1f88b"}"#,
    );
    assert_eq!((recorded.running_cpu, recorded.digest), (None, ConfigDigest::new("4321b21d61d97c704e12ca5eb07f7d335af1f88b")));
    let with_memory = decoded(r#"{"runningcpu":"host,+aes","runningmachine":"pc-i440fx-9.0","digest":"0fe8"}"#);
    assert_eq!(with_memory.running_cpu.as_deref(), Some("host,+aes"));
    assert!(decode_read(read(), &success_response(r#"{"runningcpu":["host"]}"#)).is_err());
}

#[test]
fn decodes_the_capacity_of_a_node() {
    let read = || ProxmoxRead::NodeStatus(NodeName::new("n1").expect("a name"));
    let decoded = |row: &str| match decode_read(read(), &success_response(row)) {
        Ok(ProxmoxEvent::NodeCapacity(capacity)) => capacity,
        other => panic!("{other:?}"),
    };
    let recorded = decoded(
        r#"{"pveversion":"pve-manager/9.2.11/14a22df35955d97d","cpu":0,"cpuinfo":{"model":"AMD EPYC","cpus":2,"hvm":"","mhz":"2445.424"},"memory":{"used":1139191808,"total":25274793984,"available":24135602176,"free":22316777472},"loadavg":["0.16"]}"#,
    );
    assert_eq!((recorded.cpus, recorded.cpu_model.as_deref()), (2, Some("AMD EPYC")));
    assert_eq!((recorded.memory_available, recorded.memory_total), (24_135_602_176, 25_274_793_984));
    let of_version_7 = decoded(r#"{"cpuinfo":{"cpus":"4"},"memory":{"total":"100","used":40,"free":60}}"#);
    assert_eq!((of_version_7.cpus, of_version_7.cpu_model, of_version_7.memory_available), (4, None, 60));
    for row in [
        "{}",
        "[]",
        r#"{"cpuinfo":{"cpus":4}}"#,
        r#"{"cpuinfo":{},"memory":{"total":1,"free":1}}"#,
        r#"{"cpuinfo":{"cpus":4},"memory":{"total":1}}"#,
        r#"{"cpuinfo":{"cpus":4},"memory":{"free":1}}"#,
        r#"{"cpuinfo":{"cpus":4},"memory":{"total":1,"free":1,"available":null}}"#,
        r#"{"cpuinfo":{"cpus":4},"memory":[1,1]}"#,
        r#"{"cpuinfo":{"cpus":4,"model":[]},"memory":{"total":1,"free":1}}"#,
        r#"{"cpuinfo":{"cpus":4},"memory":{"total":9007199254740992,"free":1}}"#,
    ] {
        assert_eq!(decode_read(read(), &success_response(row)).expect_err(row).cause, FailureCause::Malformed, "{row}");
    }
}

#[test]
fn decodes_the_storages_of_a_node() {
    let read = || ProxmoxRead::NodeStorages(NodeName::new("n1").expect("a name"));
    let decoded = |rows: &str| match decode_read(read(), &success_response(rows)) {
        Ok(ProxmoxEvent::Storages(storages)) => storages,
        other => panic!("{other:?}"),
    };
    let recorded = decoded(
        r#"[{"used_fraction":0.09,"type":"dir","enabled":1,"content":"vztmpl,rootdir,images","used":26724356096,"total":270553174016,"shared":0,"avail":70848393216,"storage":"local","active":1},{"content":"images","type":"nfs","storage":"far","active":0,"avail":0,"shared":"1","total":0,"enabled":1}]"#,
    );
    assert_eq!(recorded.iter().map(|storage| storage.name.as_str()).collect::<Vec<_>>(), ["far", "local"]);
    let (far, local) = (&recorded[0], &recorded[1]);
    assert_eq!((local.active, local.shared, &*local.kind), (true, false, "dir"));
    assert_eq!((local.available, local.total), (Some(70_848_393_216), Some(270_553_174_016)));
    assert_eq!(local.content.iter().collect::<Vec<_>>(), ["images", "rootdir", "vztmpl"]);
    assert_eq!((far.active, far.shared, far.available, far.total), (false, true, None, None), "unreachable is not full");
    let good = r#"{"storage":"dir1","type":"dir","content":"images","active":1}"#;
    assert_eq!(decoded(&format!("[{good}]")).len(), 1);
    for rows in [
        format!("[{good},{good}]"),
        format!("[{}]", good.replace("dir1", "1 x")),
        format!("[{}]", good.replace(r#""type":"dir","#, "")),
        format!("[{}]", good.replace(r#""images""#, "[]")),
        format!("[{}]", good.replace(r#""active":1"#, r#""active":"yes""#)),
        format!("[{}]", good.replace(r#""active":1"#, r#""active":1,"avail":"much""#)),
        "{}".to_owned(),
    ] {
        assert_eq!(decode_read(read(), &success_response(&rows)).expect_err(&rows).cause, FailureCause::Malformed, "{rows}");
    }
}

#[test]
fn decodes_the_guests_with_replication_jobs() {
    let jobs = |rows: &str| decode_read(ProxmoxRead::ReplicationJobs, &success_response(rows));
    let rows = r#"[{"id":"100-0","guest":100,"jobnum":0,"type":"local","target":"n2"},{"id":"100-1","guest":"100","disable":1},{"id":"101-0","guest":101}]"#;
    let expected = [100, 101].into_iter().filter_map(Vmid::new).collect();
    assert_eq!(jobs(rows), Ok(ProxmoxEvent::ReplicatedGuests(expected)));
    assert_eq!(jobs("[]"), Ok(ProxmoxEvent::ReplicatedGuests([].into())));
    for rows in [r#"[{"id":"100-0"}]"#, r#"[{"guest":"web"}]"#, "null", "{}"] {
        assert_eq!(jobs(rows).expect_err(rows).cause, FailureCause::Malformed, "{rows}");
    }
}

#[test]
fn decodes_version_and_resources() {
    let Ok(ProxmoxEvent::Version(version)) = decode_read(ProxmoxRead::Version, &json_response(r#"{"version":"7.4-16","release":"7.4"}"#))
    else {
        panic!("version")
    };
    assert_eq!((version.major, &*version.version), (7, "7.4-16"));
    assert!(decode_read(ProxmoxRead::Version, &success_response(r#"{"version":"unheard of"}"#)).is_err());
    assert!(decode_read(ProxmoxRead::Resources, &success_response("null")).is_err(), "a list is never null");
}

#[test]
fn maps_write_failures_to_cause_and_delivery() {
    let cases = [
        (failure_response("500", "CT 100 already running"), FailureCause::AlreadyRunning, Delivery::Rejected),
        (failure_response("500", "cluster not ready - no quorum?"), FailureCause::NoQuorum, Delivery::Rejected),
        (failure_response("\"403\"", "Permission check failed (/vms/100, VM.PowerMgmt)"), FailureCause::Forbidden, Delivery::Rejected),
        (raw_response(595, "Connection refused"), FailureCause::NodeUnreachable, Delivery::NotDelivered),
        (raw_response(596, "Connection timed out"), FailureCause::Interrupted, Delivery::MayHaveRun),
        (raw_response(401, "No ticket"), FailureCause::Unauthenticated, Delivery::NotDelivered),
        (raw_response(501, "Unexpected content for method 'DELETE'"), FailureCause::NotImplemented, Delivery::Rejected),
    ];
    for (answer, cause, delivery) in cases {
        let failure = decode_start(&answer).expect_err("a rejection");
        assert_eq!((failure.cause, failure.delivery), (cause, delivery), "{failure}");
    }
}

/// Several clusters may share another certificate, and an invalid fingerprint would be the same for all clusters that return it.
#[test]
fn only_the_root_ca_identifies_a_cluster() {
    let identity = |rows: &str| decode_read(ProxmoxRead::Certificates(NodeName::new("n1").expect("a name")), &success_response(rows));
    let (own, leaf) = (["AB"; 32].join(":"), r#"{"filename":"pve-ssl.pem","fingerprint":"CD"}"#);
    for (name, fingerprint) in [("/etc/pve/pve-root-ca.pem", own.clone()), ("pve-root-ca.pem", own.to_lowercase())] {
        let rows = format!(r#"[{{"filename":"{name}","fingerprint":"{fingerprint}"}},{leaf}]"#);
        assert_eq!(identity(&rows), Ok(ProxmoxEvent::Identity(ClusterIdentity::parse(&own).expect("a fingerprint"))));
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
        assert!(failure.cause == FailureCause::Malformed && failure.text.contains(part), "{rows}: {failure}");
    }
}
