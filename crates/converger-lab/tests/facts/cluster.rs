//! Nodes, quorum, stale lists, migration, high availability.

use converger_lab::{NodeService, WorldEvent};

use crate::lab::{CLUSTER, FactsLab, in_every_release, response_data};

#[test]
fn resources_lag_behind_by_up_to_one_round() {
    in_every_release(|| {
        let mut lab = FactsLab::new(CLUSTER);
        lab.run_ok("POST", "/nodes/a/qemu/101/status/stop", "");
        assert_eq!(lab.resource_row(101)["status"], "running");
        assert_eq!(lab.get("/nodes/a/qemu/101/status/current")["status"], "stopped");
        lab.advance_ms(10_000);
        assert_eq!(lab.resource_row(101)["status"], "stopped");
    });
}

#[test]
fn guests_of_a_silent_node_keep_their_status_for_five_minutes_then_become_unknown() {
    in_every_release(|| {
        let mut lab = FactsLab::new(CLUSTER);
        lab.apply_event(WorldEvent::NodeDown("c".to_owned()));
        lab.advance_ms(200_000);
        assert_eq!(lab.resource_row(103)["status"], "running");
        let nodes = lab.get("/nodes");
        let status =
            |name: &str| nodes.as_array().into_iter().flatten().find(|node| node["node"] == name).map(|node| node["status"].clone());
        assert_eq!((status("a"), status("c")), (Some("online".into()), Some("offline".into())));
        lab.advance_ms(150_000);
        let row = lab.resource_row(103);
        assert_eq!((&row["status"], row.get("name")), (&"unknown".into(), None));
        let answer = lab.request("GET", "/nodes/c/qemu/103/status/current", "");
        assert_eq!((answer.status, answer.reason.as_str(), answer.body.len()), (595, "No route to host", 0));
    });
}

/// Observed on 9.2: the last report stays visible for five minutes, whether pvestatd is down or hung, while the node's own lists are live.
#[test]
fn without_pvestatd_the_cluster_list_is_frozen_for_five_minutes_and_the_lists_of_the_node_are_live() {
    in_every_release(|| {
        for stop in [WorldEvent::ServiceDown, WorldEvent::ServiceHung] {
            let mut lab = FactsLab::new(CLUSTER);
            lab.apply_event(stop("a".to_owned(), NodeService::Statd));
            lab.apply_event(WorldEvent::Stop(101));
            let storage = |lab: &mut FactsLab| {
                let rows = lab.get("/cluster/resources?type=storage");
                rows.as_array().into_iter().flatten().find(|row| row["node"] == "a").map(|row| row["status"].clone())
            };
            for _ in 0..4 {
                lab.advance_ms(70_000);
                assert_eq!((&lab.resource_row(101)["status"], storage(&mut lab)), (&"running".into(), Some("available".into())));
                let own = lab.get("/nodes/a/qemu");
                let own = own.as_array().into_iter().flatten().find(|row| row["vmid"] == 101).map(|row| row["status"].clone());
                assert_eq!(own, Some("stopped".into()));
            }
            lab.advance_ms(30_000);
            let row = lab.resource_row(101);
            assert_eq!((&row["status"], row.get("name"), storage(&mut lab)), (&"unknown".into(), None, Some("unknown".into())));
            assert_eq!(lab.resource_row(103)["status"], "running", "other nodes keep reporting");
            lab.apply_event(WorldEvent::ServiceUp("a".to_owned(), NodeService::Statd));
            assert_eq!(lab.resource_row(101)["status"], "stopped");
        }
    });
}

#[test]
fn both_lists_show_the_uptime_of_running_guests() {
    in_every_release(|| {
        let mut lab = FactsLab::new(CLUSTER);
        let own = |lab: &mut FactsLab| {
            let rows = lab.get("/nodes/a/qemu");
            rows.as_array().into_iter().flatten().find(|row| row["vmid"] == 101).and_then(|row| row["uptime"].as_u64())
        };
        lab.advance_ms(10_000);
        let (then, now) = (lab.resource_row(101)["uptime"].as_u64(), own(&mut lab));
        assert!(then.zip(now).is_some_and(|(then, now)| (0..=10).contains(&(now - then))), "{then:?} {now:?}");
        lab.apply_event(WorldEvent::ServiceDown("a".to_owned(), NodeService::Statd));
        lab.advance_ms(100_000);
        let (frozen, now) = (lab.resource_row(101)["uptime"].as_u64(), own(&mut lab));
        assert!(frozen == then && now.zip(then).is_some_and(|(now, then)| (100..=111).contains(&(now - then))), "{frozen:?} {now:?}");
    });
}

#[test]
fn nodes_start_onboot_guests_when_they_come_back() {
    in_every_release(|| {
        let mut lab = FactsLab::new(&CLUSTER.replace("name: three,", "name: three, config: { onboot: 1 },"));
        lab.apply_event(WorldEvent::NodeDown("c".to_owned()));
        lab.apply_event(WorldEvent::NodeDown("b".to_owned()));
        lab.advance_ms(30_000);
        lab.apply_event(WorldEvent::NodeUp("c".to_owned()));
        lab.apply_event(WorldEvent::NodeUp("b".to_owned()));
        lab.advance_ms(20_000);
        assert_eq!((&lab.resource_row(103)["status"], &lab.resource_row(102)["status"]), (&"running".into(), &"stopped".into()));
    });
}

#[test]
fn the_minority_partition_has_no_quorum_and_cannot_write() {
    in_every_release(|| {
        let mut lab = FactsLab::new(CLUSTER);
        lab.apply_event(WorldEvent::Isolate(vec!["a".to_owned()]));
        let quorate = |lab: &mut FactsLab, entry: &str| {
            let status = response_data(&lab.request_at(entry, "/cluster/status"));
            status.as_array().into_iter().flatten().find(|item| item["type"] == "cluster").map(|item| item["quorate"].clone())
        };
        assert_eq!((quorate(&mut lab, "a"), quorate(&mut lab, "b")), (Some(0.into()), Some(1.into())));
        let error = lab.request_error("PUT", "/nodes/a/qemu/101/config", "cores=2");
        assert!(error.starts_with("500 unable to open file '/etc/pve/nodes/a/qemu-server/101.conf.tmp."), "{error}");
        assert_eq!(lab.request_error("POST", "/nodes/a/qemu/101/status/start", ""), "500 cluster not ready - no quorum?");
        assert_eq!(lab.run_task("POST", "/nodes/a/qemu/101/status/stop", ""), "OK");
        lab.apply_event(WorldEvent::Heal);
        lab.run_ok("PUT", "/nodes/a/qemu/101/config", "cores=2");
    });
}

#[test]
fn migrated_guests_do_not_exist_on_their_old_node() {
    in_every_release(|| {
        let mut lab = FactsLab::new(CLUSTER);
        assert_eq!(lab.request_error("POST", "/nodes/a/qemu/101/migrate", "target=b"), "500 can't migrate running VM without --online");
        assert_eq!(lab.request_error("POST", "/nodes/a/qemu/101/migrate", "target=zz&online=1"), "500 no such cluster node 'zz'");
        let upid = response_data(&lab.request("POST", "/nodes/a/qemu/101/migrate", "target=b&online=1"));
        lab.advance_ms(500);
        assert_eq!(lab.resource_row(101)["lock"], "migrate");
        assert_eq!(lab.wait_for_task(upid.as_str().unwrap_or_default()), "OK");
        assert_eq!(lab.resource_row(101)["node"], "b");
        let error = lab.request_error("GET", "/nodes/a/qemu/101/config", "");
        assert_eq!(error, "500 Configuration file 'nodes/a/qemu-server/101.conf' does not exist");
        assert_eq!(lab.get("/nodes/b/qemu/101/status/current")["status"], "running");
    });
}

#[test]
fn slow_nodes_time_out_at_the_proxy_and_run_the_call_later() {
    in_every_release(|| {
        let mut lab = FactsLab::new(CLUSTER);
        lab.apply_event(WorldEvent::Slow("b".to_owned(), 40_000));
        let answer = lab.request("PUT", "/nodes/b/qemu/102/config", "description=late");
        assert_eq!((answer.status, answer.reason.as_str(), answer.delay_ms), (596, "Connection timed out", 30_000));
        lab.apply_event(WorldEvent::Slow("b".to_owned(), 0));
        assert!(lab.get("/nodes/b/qemu/102/config").get("description").is_none());
        lab.advance_ms(40_000);
        assert_eq!(lab.get("/nodes/b/qemu/102/config")["description"], "late");
    });
}

#[test]
fn a_refused_call_was_not_delivered() {
    in_every_release(|| {
        let mut lab = FactsLab::new(CLUSTER);
        lab.apply_event(WorldEvent::ServiceDown("b".to_owned(), NodeService::Daemon));
        let answer = lab.request("PUT", "/nodes/b/qemu/102/config", "description=x");
        assert_eq!((answer.status, answer.reason.as_str()), (595, "Connection refused"));
        lab.apply_event(WorldEvent::ServiceUp("b".to_owned(), NodeService::Daemon));
        assert!(lab.get("/nodes/b/qemu/102/config").get("description").is_none());
    });
}

#[test]
fn a_managed_guest_is_started_and_stopped_by_the_manager() {
    in_every_release(|| {
        let mut lab = FactsLab::new(&format!("{CLUSTER}ha: {{ 'vm:101': {{}} }}\n"));
        let answer = response_data(&lab.request("POST", "/nodes/a/qemu/101/status/stop", ""));
        let upid = answer.as_str().unwrap_or_default().to_owned();
        assert!(upid.contains(":hastop:101:"), "{upid}");
        assert_eq!(lab.wait_for_task(&upid), "OK");
        assert_eq!(lab.get("/nodes/a/qemu/101/status/current")["status"], "running", "the task only queues the request");
        lab.advance_ms(30_000);
        let status = lab.get("/nodes/a/qemu/101/status/current");
        assert_eq!((&status["status"], &status["ha"]["state"]), (&"stopped".into(), &"stopped".into()));
        assert_eq!(lab.get("/cluster/ha/resources/vm:101")["state"], "stopped");
        lab.run_ok("PUT", "/cluster/ha/resources/vm:101", "state=started");
        lab.advance_ms(30_000);
        assert_eq!(lab.get("/nodes/a/qemu/101/status/current")["status"], "running");
        let list = lab.get("/nodes/a/tasks?source=all&typefilter=qmstart");
        assert_eq!(list[0]["user"], "root@pam");
    });
}

#[test]
fn a_service_in_error_must_be_disabled_first() {
    in_every_release(|| {
        let mut lab = FactsLab::new(&format!("{CLUSTER}ha: {{ 'vm:101': {{ believed: error }} }}\n"));
        let error = lab.request_error("PUT", "/cluster/ha/resources/vm:101", "state=started");
        assert_eq!(error, "500 service 'vm:101' in error state, must be disabled and fixed first");
        assert_eq!(lab.resource_row(101)["hastate"], "error");
    });
}

#[test]
fn reused_ids_show_the_old_name_until_the_next_broadcast() {
    in_every_release(|| {
        let mut lab = FactsLab::new(CLUSTER);
        lab.run_ok("POST", "/nodes/a/qemu/101/status/stop", "");
        lab.advance_ms(10_000);
        lab.run_ok("DELETE", "/nodes/a/qemu/101", "");
        lab.run_ok("POST", "/nodes/b/qemu", "vmid=101&name=new");
        assert_eq!(lab.resource_row(101)["name"], "one");
        lab.advance_ms(10_000);
        let row = lab.resource_row(101);
        assert_eq!((&row["name"], &row["node"]), (&"new".into(), &"b".into()));
    });
}

#[test]
fn upgraded_nodes_broadcast_without_memhost_at_first() {
    let mut lab = FactsLab::new(&CLUSTER.replace("b: {}", "b: { old_rounds: 1 }"));
    let has = |lab: &mut FactsLab, vmid: u32| lab.resource_row(vmid).get("memhost").is_some();
    assert_eq!([has(&mut lab, 101), has(&mut lab, 102)], [true, false], "one broadcast has happened at the start of this lab");
    lab.advance_ms(10_000);
    assert_eq!([has(&mut lab, 101), has(&mut lab, 102)], [true, true]);
}

#[test]
fn all_nodes_of_a_cluster_share_a_root_ca_that_every_user_may_read() {
    in_every_release(|| {
        let root = |lab: &mut FactsLab, node: &str| {
            let rows = lab.get(&format!("/nodes/{node}/certificates/info"));
            assert_eq!(rows[0]["filename"], "/etc/pve/pve-root-ca.pem");
            assert_eq!(rows[1]["filename"], format!("/etc/pve/nodes/{node}/pve-ssl.pem").as_str());
            rows[0]["fingerprint"].as_str().unwrap_or_default().to_owned()
        };
        let mut lab = FactsLab::new(CLUSTER);
        let own = root(&mut lab, "a");
        assert_eq!(
            (own.len(), root(&mut lab, "b"), root(&mut FactsLab::new(CLUSTER), "a")),
            (95, own.clone(), own.clone()),
            "a restart does not change it"
        );
        assert_ne!(root(&mut FactsLab::new(&format!("seed: 2\n{CLUSTER}")), "a"), own, "another seed is another cluster");
        assert_ne!(root(&mut FactsLab::new(&CLUSTER.replace("cluster: lab", "cluster: two")), "a"), own);
        let yaml = CLUSTER.replace("cluster: lab", "cluster: lab\nroot_ca: 'AB:CD'");
        assert_eq!(root(&mut FactsLab::new(&yaml), "a"), "AB:CD");
    });
}
