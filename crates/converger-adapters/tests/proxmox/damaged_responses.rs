//! Damaged and hostile responses: nothing panics, nothing incomplete is taken for complete, and no foreign text leaves its field.

use converger_adapters::proxmox::codec::{
    GuestPath, HttpResponse, ProxmoxCommand, ProxmoxRead, ProxmoxWrite, SnapshotName, Upid, UserId, decode,
};
use converger_adapters::proxmox::observe::ReadSet;
use converger_core::guest::{GuestKind, NodeName, Vmid};
use converger_core::observe::ObservedStatus;
use converger_core::testing::{HOSTILE_TEXTS, Rng, mutate};

use crate::scripted_proxmox::{
    STANDALONE_NODE, ScriptedGuest, ScriptedProxmox, cluster_rows, stopped_guest, success_response, take_reading,
};

const SEED: u64 = 0xc0de;

fn sample_commands() -> Vec<ProxmoxCommand> {
    let guest = |kind| GuestPath { node: NodeName::new("n1").expect("a name"), kind, vmid: Vmid::new(100).expect("an id") };
    let upid = Upid::new("UPID:n1:000043FD:0009433D:6AFA0639:qmstart:100:svc@pve!probe:").expect("an id");
    let reads = [
        ProxmoxRead::Version,
        ProxmoxRead::ClusterStatus,
        ProxmoxRead::Resources,
        ProxmoxRead::NodeGuests { node: NodeName::new("n1").expect("a name"), kind: GuestKind::Lxc },
        ProxmoxRead::NodeGuestsInFull(NodeName::new("n1").expect("a name")),
        ProxmoxRead::Permissions,
        ProxmoxRead::User(UserId::new("svc@pve").expect("an id")),
        ProxmoxRead::Roles,
        ProxmoxRead::HaStatus,
        ProxmoxRead::TagOptions,
        ProxmoxRead::NodeTime(NodeName::new("n1").expect("a name")),
        ProxmoxRead::NextId(Vmid::new(100).expect("an id")),
        ProxmoxRead::TaskStatus(upid),
        ProxmoxRead::GuestStatus(guest(GuestKind::Qemu)),
        ProxmoxRead::GuestPending(guest(GuestKind::Lxc)),
        ProxmoxRead::GuestPending(guest(GuestKind::Qemu)),
        ProxmoxRead::Snapshots(guest(GuestKind::Qemu)),
        ProxmoxRead::SnapshotConfig { guest: guest(GuestKind::Qemu), name: SnapshotName::new("s1").expect("a name") },
        ProxmoxRead::ReplicationJobs,
        ProxmoxRead::NodeStatus(NodeName::new("n1").expect("a name")),
        ProxmoxRead::NodeStorages(NodeName::new("n1").expect("a name")),
    ];
    reads.into_iter().map(ProxmoxCommand::Read).chain([ProxmoxCommand::Write(ProxmoxWrite::Start(guest(GuestKind::Qemu)))]).collect()
}

fn sample_bodies() -> Vec<String> {
    let plain = stopped_guest(100, "n1");
    let data = [
        STANDALONE_NODE.to_owned(),
        cluster_rows("lab", 1, &[("n1", 1), ("n2", 0)]),
        format!("[{}]", plain.listed.clone().unwrap_or_default()),
        plain.current,
        plain.pending,
        r#"{"/vms/100":{"VM.Audit":1}}"#.to_owned(),
        r#"{"enable":1,"expire":0,"tokens":{"probe":{"privsep":1,"expire":"1800000000"}}}"#.to_owned(),
        r#"[{"roleid":"PVEAuditor","privs":"VM.Audit,Sys.Audit","special":1}]"#.to_owned(),
        r#"[{"type":"fencing","status":"armed"},{"type":"service","sid":"vm:100","state":"started"}]"#.to_owned(),
        r#"{"time":1794770489,"localtime":1794770489,"timezone":"UTC"}"#.to_owned(),
        r#"[{"name":"s1","snaptime":5,"vmstate":1,"parent":"s0"},{"name":"current","digest":"0fe8"}]"#.to_owned(),
        r#"{"runningcpu":"host","digest":"0fe8","snaptime":5}"#.to_owned(),
        r#"[{"id":"100-0","guest":100,"target":"n2"}]"#.to_owned(),
        r#"{"cpuinfo":{"cpus":4,"model":"x"},"memory":{"total":9,"free":5,"available":6}}"#.to_owned(),
        r#"[{"storage":"dir1","type":"dir","content":"images,iso","active":1,"shared":0,"avail":5,"total":9}]"#.to_owned(),
        r#"[{"key":"scsi0","value":"dir1:x,size=1G"},{"key":"hostpci0","pending":"01:00"},{"key":"digest","value":"0fe8"}]"#.to_owned(),
        r#"{"status":"stopped","exitstatus":"WARNINGS: 4294967296"}"#.to_owned(),
        "\"UPID:n1:000043FD:0009433D:6AFA0639:qmstart:100:svc@pve!probe:\"".to_owned(),
    ];
    let failed = r#"{"success":0,"status":"400","message":"x","errors":{"vmid":"VM 100 already exists"},"data":null}"#;
    data.iter().map(|data| format!(r#"{{"success":1,"data":{data}}}"#)).chain([failed.to_owned()]).collect()
}

#[test]
fn damaged_responses_never_panic() {
    let mut rng = Rng::new(SEED);
    let (commands, bodies) = (sample_commands(), sample_bodies());
    for case in 0..20_000 {
        let body = mutate(&bodies[rng.index(bodies.len())], &mut rng);
        let status = *rng.pick(&[200, 200, 200, 400, 401, 403, 500, 595, 596, 0, 999]).expect("a status");
        let answer = HttpResponse { status, reason: rng.pick_word(HOSTILE_TEXTS).to_owned(), body };
        let command = &commands[rng.index(commands.len())];
        let decoded = std::panic::catch_unwind(|| decode(command, &answer).map_err(|failure| failure.to_string()));
        let decoded = decoded.unwrap_or_else(|_| panic!("seed {SEED} case {case}: {command:?} {answer:?}"));
        if let Err(text) = decoded {
            assert!(!text.contains(|own: char| own.is_control()), "seed {SEED} case {case}: {text:?}");
        }
    }
}

#[test]
fn damaged_list_never_makes_a_guest_run_or_vanish() {
    let mut rng = Rng::new(SEED);
    let rows = format!("[{}]", (100..104).filter_map(|vmid| stopped_guest(vmid, "n1").listed).collect::<Vec<_>>().join(","));
    for case in 0..2_000 {
        let proxmox = ScriptedProxmox::with_guests(STANDALONE_NODE, (100..104).map(|vmid| (vmid, stopped_guest(vmid, "n1"))));
        let whole = format!(r#"{{"success":1,"data":{rows}}}"#);
        let damaged = HttpResponse { body: mutate(&whole, &mut rng), ..success_response("") };
        let text = String::from_utf8_lossy(&damaged.body).into_owned();
        let proxmox = proxmox.with_override("resources?type=vm", vec![damaged]);
        let Ok(reading) = take_reading(&proxmox, &[100, 101, 102, 103], &ReadSet::Declared([].into()), None) else { continue };
        for vmid in 100..104 {
            let row = reading.observation.find(Vmid::new(vmid).expect("an id"));
            assert!(row.is_some() || !reading.observation.complete, "seed {SEED} case {case}: guest {vmid} vanished in {text}");
            // Damage can turn a state into another one, but only if its word occurs in the text.
            let is_running = row.is_some_and(|row| matches!(&row.status, ObservedStatus::Known(state) if state.word() == "running"));
            assert!(!is_running || text.contains("running"), "{text}");
        }
    }
}

#[test]
fn g16_foreign_text_stays_in_its_field() {
    for hostile in HOSTILE_TEXTS {
        let name = serde_json::to_string(hostile).expect("JSON");
        // With invalid tags the guest is already unknown and is not read; with valid ones the rule for tags is read.
        for (tags, requests) in [(name.as_str(), 3..8), ("\"\"", 6..7)] {
            let row = format!(
                r#"{{"vmid":100,"type":"qemu","node":"n1","status":"stopped","name":{name},"template":0,"lock":{name},"tags":{tags}}}"#
            );
            let pending = format!(
                r#"[{{"key":"name","value":{name}}},{{"key":"description","value":{name}}},{{"key":{name},"pending":{name}}},{{"key":"digest","value":"0fe8"}}]"#
            );
            let current = format!(r#"{{"status":"stopped","name":{name},"ha":{{"managed":0}}}}"#);
            let proxmox = ScriptedProxmox::with_guests(
                STANDALONE_NODE,
                [(100, ScriptedGuest { listed: Some(row), pending, current, ..stopped_guest(100, "n1") })],
            );
            let reading = take_reading(&proxmox, &[100], &ReadSet::Everything, None).expect("a reading");
            let row = reading.observation.find(Vmid::new(100).expect("an id")).expect("listed");
            assert_eq!(row.name.as_deref(), Some(*hostile));
            let paths: Vec<String> = proxmox.requests();
            assert!(paths.iter().all(|path| path.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ')), "{paths:?}");
            assert!(requests.contains(&paths.len()), "no text causes further requests: {paths:?}");
        }
    }
}
