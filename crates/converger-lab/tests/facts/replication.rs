//! Replication jobs and what they forbid.

use crate::lab::{FactsLab, in_every_release};

const REPLICATED: &str = "
cluster: lab
nodes: { a: {}, b: {}, c: {} }
storages: { local: { type: zfspool } }
tokens: { root@pam!t: { secret: s, full: true } }
guests:
  - { vmid: 101, kind: qemu, node: a, name: web, state: running, config: { scsi0: 'local:vm-101-disk-0,size=1G' } }
  - { vmid: 102, kind: qemu, node: a, name: free, config: { scsi0: 'local:vm-102-disk-0,size=1G' } }
replication: [{ guest: 101, target: b, schedule: '*/30' }]
";

#[test]
fn replication_jobs_are_listed_for_the_cluster_and_for_the_node_of_their_guest() {
    in_every_release(|| {
        let mut lab = FactsLab::new(REPLICATED);
        let jobs = lab.get("/cluster/replication");
        assert_eq!(jobs.as_array().map(Vec::len), Some(1));
        assert_eq!((&jobs[0]["id"], &jobs[0]["guest"], &jobs[0]["target"]), (&"101-0".into(), &101.into(), &"b".into()));
        assert_eq!(lab.get("/cluster/replication/101-0")["schedule"], "*/30");
        assert_eq!(lab.request_error("GET", "/cluster/replication/9-9", ""), "500 no such replication job '9-9'");
        assert_eq!(lab.get("/nodes/a/replication?guest=101")[0]["fail_count"], 0);
        assert_eq!(lab.get("/nodes/a/replication?guest=102"), serde_json::json!([]));
        assert_eq!(lab.get("/nodes/b/replication"), serde_json::json!([]));
    });
}

#[test]
fn a_replicated_guest_migrates_live_only_to_the_target_of_its_job() {
    in_every_release(|| {
        let mut lab = FactsLab::new(REPLICATED);
        let migrate = "/nodes/a/qemu/101/migrate";
        let refused = lab.request_error("POST", migrate, "target=c&online=1&with-local-disks=1");
        assert_eq!(refused, "500 Cannot live-migrate replicated VM to node 'c' - not a replication target. Use 'force' to override.");
        lab.run_ok("POST", migrate, "target=b&online=1&with-local-disks=1");
        let job = lab.get("/cluster/replication/101-0");
        assert_eq!((&job["source"], &job["target"]), (&"b".into(), &"a".into()), "the job turns around");
    });
}

#[test]
fn a_guest_with_a_replication_job_is_deleted_only_with_purge() {
    in_every_release(|| {
        let mut lab = FactsLab::new(REPLICATED);
        lab.run_ok("POST", "/nodes/a/qemu/101/status/stop", "");
        let refused = lab.request_error("DELETE", "/nodes/a/qemu/101", "");
        assert_eq!(refused, "500 There is a replication job '101-0' for guest '101' - Please remove that first.");
        lab.run_ok("DELETE", "/nodes/a/qemu/101?purge=1", "");
        assert_eq!(lab.get("/cluster/replication"), serde_json::json!([]));
    });
}

#[test]
fn only_jobs_of_visible_guests_are_listed() {
    in_every_release(|| {
        let limited = REPLICATED.replace("tokens: {", "tokens: { root@pam!n: { secret: s },");
        let mut lab = FactsLab::new(&limited).with_token("root@pam!n=s");
        assert_eq!(lab.get("/cluster/replication"), serde_json::json!([]));
        assert_eq!(lab.request_error("GET", "/cluster/replication/101-0", ""), "403 Permission check failed");
    });
}
