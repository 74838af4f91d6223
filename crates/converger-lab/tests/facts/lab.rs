//! A test lab: a world, its clock, and short forms of requests.
//!
//! Must not contain expectations of single tests.

use std::cell::Cell;

use converger_lab::{Flavour, LabRequest, LabResponse, World, WorldEvent, WorldSpec, verify_response};
use serde_json::Value;

/// A running world.
pub(crate) struct FactsLab {
    pub(crate) world: World,
    pub(crate) now_ms: u64,
    token: String,
}

thread_local! {
    static CURRENT_RELEASE: Cell<u8> = const { Cell::new(9) };
}

/// Prints the release if the test panics.
struct ReleaseOnPanic(u8);

impl Drop for ReleaseOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("release {}", self.0);
        }
    }
}

/// Runs a test for releases 7, 8 and 9; labs from files without `flavour` simulate the current one.
pub(crate) fn in_every_release(test: impl Fn()) {
    for release in [7, 8, 9] {
        let _release = ReleaseOnPanic(release);
        CURRENT_RELEASE.set(release);
        test();
    }
}

/// The release of the current iteration.
pub(crate) fn current_release() -> u8 {
    CURRENT_RELEASE.get()
}

/// One node with a stopped virtual machine 100 and a stopped container 200.
pub(crate) const SMALL: &str = "
nodes: { pve1: {} }
storages:
  local: { path: /var/lib/vz }
  tank: { type: rbd, shared: true }
tokens: { root@pam!t: { secret: s, full: true } }
guests:
  - { vmid: 100, kind: qemu, node: pve1, name: web, config: { cores: 2, memory: 1024, scsi0: 'tank:vm-100-disk-0,size=8G', net0: 'virtio,bridge=vmbr0' } }
  - { vmid: 200, kind: lxc, node: pve1, name: dns, config: { cores: 1, memory: 512, rootfs: 'tank:vm-200-disk-0,size=4G' } }
";

/// Three nodes, a virtual machine on each.
pub(crate) const CLUSTER: &str = "
cluster: lab
nodes: { a: {}, b: {}, c: {} }
storages: { tank: { type: rbd, shared: true } }
tokens: { root@pam!t: { secret: s, full: true } }
guests:
  - { vmid: 101, kind: qemu, node: a, name: one, state: running }
  - { vmid: 102, kind: qemu, node: b, name: two, state: running }
  - { vmid: 103, kind: qemu, node: c, name: three, state: running }
";

impl FactsLab {
    pub(crate) fn new(yaml: &str) -> Self {
        let mut spec = WorldSpec::from_yaml(yaml).unwrap_or_else(|error| panic!("{error}"));
        if !yaml.contains("flavour:") {
            spec.flavour = Flavour::try_from(current_release()).unwrap_or_else(|error| panic!("{error}"));
        }
        Self::from_spec(&spec)
    }

    pub(crate) fn from_spec(spec: &WorldSpec) -> Self {
        let world = World::new(spec).unwrap_or_else(|error| panic!("{error}"));
        let token = spec.tokens.iter().next().map(|(id, token)| format!("{id}={}", token.secret)).unwrap_or_default();
        // The nodes have broadcast at least once by then.
        Self { world, now_ms: spec.start_ms + 20_000, token }
    }

    /// The same lab with another token.
    pub(crate) fn with_token(mut self, token: &str) -> Self {
        token.clone_into(&mut self.token);
        self
    }

    pub(crate) fn advance_ms(&mut self, ms: u64) {
        self.now_ms += ms;
    }

    pub(crate) fn apply_event(&mut self, event: WorldEvent) {
        self.world.apply_event(self.now_ms, event);
    }

    pub(crate) fn request(&mut self, method: &str, path: &str, form: &str) -> LabResponse {
        let mut request = LabRequest::new(method, &format!("/api2/json{path}")).with_token(&self.token);
        if !form.is_empty() {
            request = request.with_form(form);
        }
        let answer = self.world.answer(self.now_ms, &request);
        self.check_response_form(&request, answer)
    }

    /// Checks that the response has the form of its release.
    fn check_response_form(&self, request: &LabRequest, answer: LabResponse) -> LabResponse {
        verify_response(self.world.flavour(), request, &answer).unwrap_or_else(|error| panic!("{error}"));
        answer
    }

    /// Sends the request with the extjs format; returns the response and its body.
    pub(crate) fn request_extjs(&mut self, method: &str, path: &str, form: &str) -> (LabResponse, Value) {
        let request = LabRequest::new(method, &format!("/api2/extjs{path}")).with_token(&self.token).with_form(form);
        let request = if form.is_empty() { LabRequest { body: Vec::new(), ..request } } else { request };
        let answer = self.world.answer(self.now_ms, &request);
        let answer = self.check_response_form(&request, answer);
        let body = serde_json::from_slice(&answer.body).unwrap_or_default();
        (answer, body)
    }

    pub(crate) fn request_at(&mut self, entry: &str, path: &str) -> LabResponse {
        let request = LabRequest::new("GET", &format!("/api2/json{path}")).with_token(&self.token);
        let answer = self.world.answer_at(self.now_ms, entry, &request);
        self.check_response_form(&request, answer)
    }

    /// The data of a response that must be a 200.
    pub(crate) fn get(&mut self, path: &str) -> Value {
        let answer = self.request("GET", path, "");
        assert_eq!(answer.status, 200, "{path}: {}", answer.reason);
        response_data(&answer)
    }

    /// Status and reason of a response that must be an error.
    pub(crate) fn request_error(&mut self, method: &str, path: &str, form: &str) -> String {
        let answer = self.request(method, path, form);
        assert!(answer.status >= 400, "{method} {path} {form} must fail");
        format!("{} {}", answer.status, answer.reason)
    }

    /// Executes a call whose task must succeed.
    pub(crate) fn run_ok(&mut self, method: &str, path: &str, form: &str) -> Value {
        let answer = self.request(method, path, form);
        assert_eq!(answer.status, 200, "{method} {path} {form}: {}", answer.reason);
        let data = response_data(&answer);
        if let Some(upid) = data.as_str().filter(|text| text.starts_with("UPID:")) {
            assert_eq!(self.wait_for_task(upid), "OK", "{method} {path} {form}");
        }
        data
    }

    /// The exit status of the task of a call.
    pub(crate) fn run_task(&mut self, method: &str, path: &str, form: &str) -> String {
        let answer = self.request(method, path, form);
        assert_eq!(answer.status, 200, "{method} {path} {form}: {}", answer.reason);
        let upid = response_data(&answer).as_str().map(str::to_owned).unwrap_or_else(|| panic!("{path} starts no task"));
        self.wait_for_task(&upid)
    }

    /// Advances time until a task ends.
    pub(crate) fn wait_for_task(&mut self, upid: &str) -> String {
        let node = upid.split(':').nth(1).unwrap_or_default();
        let path = format!("/nodes/{node}/tasks/{upid}/status");
        for _ in 0..5_000 {
            let status = self.get(&path);
            if status["status"] == "stopped" {
                return status["exitstatus"].as_str().unwrap_or_default().to_owned();
            }
            self.advance_ms(100);
        }
        panic!("{upid} does not end")
    }

    /// The row of a guest in `cluster/resources`.
    pub(crate) fn resource_row(&mut self, vmid: u32) -> Value {
        let rows = self.get("/cluster/resources?type=vm");
        rows.as_array().into_iter().flatten().find(|row| row["vmid"] == vmid).cloned().unwrap_or_default()
    }
}

pub(crate) fn response_data(answer: &LabResponse) -> Value {
    let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    body["data"].clone()
}
