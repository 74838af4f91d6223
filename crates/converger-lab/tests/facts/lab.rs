//! A lab to ask: a world, its clock, and requests in short.
//!
//! What never enters here: expectations.

use std::cell::Cell;

use converger_lab::{Act, Answer, Flavour, Request, Setting, World, verify_answer};
use serde_json::Value;

/// A world under way.
pub(crate) struct Lab {
    pub(crate) world: World,
    pub(crate) now_ms: u64,
    token: String,
}

thread_local! {
    static RELEASE: Cell<u8> = const { Cell::new(9) };
}

/// Says which release it was if something panics.
struct Release(u8);

impl Drop for Release {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("release {}", self.0);
        }
    }
}

/// A fact that holds in 7, 8 and 9: labs from files that name no release play each of them in turn.
pub(crate) fn in_every_release(test: impl Fn()) {
    for release in [7, 8, 9] {
        let _release = Release(release);
        RELEASE.set(release);
        test();
    }
}

/// The release of the turn.
pub(crate) fn release() -> u8 {
    RELEASE.get()
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

impl Lab {
    pub(crate) fn new(yaml: &str) -> Self {
        let mut setting = Setting::from_yaml(yaml).unwrap_or_else(|error| panic!("{error}"));
        if !yaml.contains("flavour:") {
            setting.flavour = Flavour::try_from(release()).unwrap_or_else(|error| panic!("{error}"));
        }
        Self::of(&setting)
    }

    pub(crate) fn of(setting: &Setting) -> Self {
        let world = World::new(setting).unwrap_or_else(|error| panic!("{error}"));
        let token = setting.tokens.iter().next().map(|(id, token)| format!("{id}={}", token.secret)).unwrap_or_default();
        // A first round has been told.
        Self { world, now_ms: setting.start_ms + 20_000, token }
    }

    /// The same lab, asked by another token.
    pub(crate) fn by(mut self, token: &str) -> Self {
        token.clone_into(&mut self.token);
        self
    }

    pub(crate) fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
    }

    pub(crate) fn act(&mut self, act: Act) {
        self.world.act(self.now_ms, act);
    }

    pub(crate) fn ask(&mut self, method: &str, path: &str, form: &str) -> Answer {
        let mut request = Request::new(method, &format!("/api2/json{path}")).token(&self.token);
        if !form.is_empty() {
            request = request.form(form);
        }
        let answer = self.world.answer(self.now_ms, &request);
        self.verified(&request, answer)
    }

    /// Whatever the lab says, it says in the form that its release has.
    fn verified(&self, request: &Request, answer: Answer) -> Answer {
        verify_answer(self.world.flavour(), request, &answer).unwrap_or_else(|error| panic!("{error}"));
        answer
    }

    /// The same in the shape that the client asks for: the whole body.
    pub(crate) fn ask_extjs(&mut self, method: &str, path: &str, form: &str) -> (Answer, Value) {
        let request = Request::new(method, &format!("/api2/extjs{path}")).token(&self.token).form(form);
        let request = if form.is_empty() { Request { body: Vec::new(), ..request } } else { request };
        let answer = self.world.answer(self.now_ms, &request);
        let answer = self.verified(&request, answer);
        let body = serde_json::from_slice(&answer.body).unwrap_or_default();
        (answer, body)
    }

    pub(crate) fn ask_at(&mut self, entry: &str, path: &str) -> Answer {
        let request = Request::new("GET", &format!("/api2/json{path}")).token(&self.token);
        let answer = self.world.answer_at(self.now_ms, entry, &request);
        self.verified(&request, answer)
    }

    /// The data of an answer that must be a 200.
    pub(crate) fn get(&mut self, path: &str) -> Value {
        let answer = self.ask("GET", path, "");
        assert_eq!(answer.status, 200, "{path}: {}", answer.reason);
        data(&answer)
    }

    /// The reason of an answer that must be an error.
    pub(crate) fn error(&mut self, method: &str, path: &str, form: &str) -> String {
        let answer = self.ask(method, path, form);
        assert!(answer.status >= 400, "{method} {path} {form} must fail");
        format!("{} {}", answer.status, answer.reason)
    }

    /// Carry a call out whose task ends well.
    pub(crate) fn done(&mut self, method: &str, path: &str, form: &str) -> Value {
        let answer = self.ask(method, path, form);
        assert_eq!(answer.status, 200, "{method} {path} {form}: {}", answer.reason);
        let data = data(&answer);
        if let Some(upid) = data.as_str().filter(|text| text.starts_with("UPID:")) {
            assert_eq!(self.wait(upid), "OK", "{method} {path} {form}");
        }
        data
    }

    /// The exit status of a call's task.
    pub(crate) fn task(&mut self, method: &str, path: &str, form: &str) -> String {
        let answer = self.ask(method, path, form);
        assert_eq!(answer.status, 200, "{method} {path} {form}: {}", answer.reason);
        let upid = data(&answer).as_str().map(str::to_owned).unwrap_or_else(|| panic!("{path} starts no task"));
        self.wait(&upid)
    }

    /// Let time pass until a task is over.
    pub(crate) fn wait(&mut self, upid: &str) -> String {
        let node = upid.split(':').nth(1).unwrap_or_default();
        let path = format!("/nodes/{node}/tasks/{upid}/status");
        for _ in 0..5_000 {
            let status = self.get(&path);
            if status["status"] == "stopped" {
                return status["exitstatus"].as_str().unwrap_or_default().to_owned();
            }
            self.pass(100);
        }
        panic!("{upid} does not end")
    }

    /// The row of a guest in `cluster/resources`.
    pub(crate) fn row(&mut self, vmid: u32) -> Value {
        let rows = self.get("/cluster/resources?type=vm");
        rows.as_array().into_iter().flatten().find(|row| row["vmid"] == vmid).cloned().unwrap_or_default()
    }
}

pub(crate) fn data(answer: &Answer) -> Value {
    let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    body["data"].clone()
}
