//! Somebody who interferes while the client reads: machines fail, people work, guests move, and each change is seen by a witness.
//!
//! What never enters: the client's own requests.

use converger_core::guest::Kind;
use converger_core::normalize::{Field, rule_of};
use converger_core::testing::Rng;
use converger_lab::{Act, Part, Request, World};

use crate::days::OTHER;
use crate::forms::forms;
use crate::way::Bystander;
use crate::witness::Witness;

/// The troublemaker and the witness in one.
pub(crate) struct Trouble {
    pub(crate) rng: Rng,
    /// Of a thousand moments, in how many something is done.
    pub(crate) restless: u64,
    pub(crate) witness: Witness,
    nodes: Vec<String>,
}

impl Trouble {
    pub(crate) fn new(rng: Rng, restless: u64, nodes: Vec<String>) -> Self {
        Self { rng, restless, witness: Witness::default(), nodes }
    }

    fn node(&mut self) -> String {
        self.rng.pick(&self.nodes).cloned().unwrap_or_default()
    }

    fn vmid(&mut self) -> u32 {
        100 + u32::try_from(self.rng.below(5)).unwrap_or(0)
    }

    fn machine(&mut self) -> Act {
        let node = self.node();
        let part = self.rng.pick(&[Part::Proxy, Part::Daemon, Part::Files, Part::Statd, Part::Statd]).copied().unwrap_or(Part::Daemon);
        match self.rng.below(12) {
            0 => Act::NodeDown(node),
            1 => Act::NodeUp(node),
            2 => Act::Isolate(vec![node]),
            3 => Act::Heal,
            4 => Act::ServiceDown(node, part),
            5 => Act::ServiceHung(node, Part::Daemon),
            6 => Act::ServiceUp(node, part),
            7 => Act::Slow(node, self.rng.below(70_000)),
            8 => Act::Blind(node),
            9 => Act::Seeing(node),
            10 => Act::ClockJump(i64::try_from(self.rng.below(7200)).unwrap_or(0) - 3600),
            _ => Act::Revoke(self.rng.word(&["/", "/vms/100", "/vms/101", "/vms/102"]).to_owned()),
        }
    }

    fn guest(&mut self) -> Act {
        let (vmid, node) = (self.vmid(), self.node());
        match self.rng.below(18) {
            0 => Act::Vanish(vmid),
            1 => Act::Reappear(vmid),
            2 => Act::Unlist(vmid),
            3 => Act::Relist(vmid),
            4 => Act::Recycle(vmid),
            5 => Act::Lock(vmid, self.rng.word(&["backup", "migrate", "snapshot"]).to_owned()),
            6 => Act::Unlock(vmid),
            7 => Act::Start(vmid),
            8 => Act::Stop(vmid),
            9 => Act::Say(vmid, self.rng.word(&["paused", "io-error", "running", "suspended", "prelaunch"]).to_owned()),
            10 | 11 => Act::Move(vmid, node),
            12 => Act::PrepareSnapshot(vmid, "half".to_owned()),
            13 => Act::KillTask(vmid),
            14 | 15 => Act::Replace(vmid),
            _ => Act::Set(vmid, self.rng.word(&["name", "hostname", "protection", "template"]).to_owned(), "1".to_owned()),
        }
    }

    fn config(&mut self, world: &World) -> Option<Act> {
        let vmid = self.vmid();
        let kind = match world.truth(vmid)?.kind {
            converger_lab::Kind::Qemu => Kind::Qemu,
            converger_lab::Kind::Lxc => Kind::Lxc,
        };
        let fields: Vec<Field> = Field::ALL.into_iter().filter(|field| rule_of(kind, *field).is_some()).collect();
        let field = self.rng.pick(&fields).copied()?;
        let form = self.rng.pick(&forms(kind, field)).map(|(form, _)| (*form).to_owned())?;
        let key = field.word().to_owned();
        Some(if self.rng.one_in(3) { Act::SetPending(vmid, key, form) } else { Act::Set(vmid, key, form) })
    }

    /// Somebody else's request, by the same API.
    fn request(&mut self, world: &World) -> Option<Request> {
        let vmid = self.vmid();
        let Some(truth) = world.truth(vmid) else { return Some(self.create(vmid)) };
        let kind = if truth.kind == converger_lab::Kind::Qemu { "qemu" } else { "lxc" };
        let guest = format!("/api2/json/nodes/{}/{kind}/{vmid}", truth.node);
        let target = self.node();
        let (method, path, form) = match self.rng.below(14) {
            0 => ("POST", "/status/start", String::new()),
            1 => ("POST", "/status/stop", String::new()),
            2 => ("POST", "/status/shutdown", String::new()),
            3 => ("POST", "/status/reboot", String::new()),
            4 => ("POST", "/snapshot", "snapname=s1".to_owned()),
            5 => ("POST", "/clone", format!("newid={}", self.vmid())),
            6 => ("POST", "/migrate", format!("target={target}&online=1")),
            7 => ("POST", "/template", String::new()),
            8 | 9 => ("DELETE", "", String::new()),
            10 => ("PUT", "/config", "cores=3&description=two%0Alines&onboot=1".to_owned()),
            11 => ("PUT", "/config", "delete=onboot,net0".to_owned()),
            _ => return Some(self.manage(kind, vmid)),
        };
        let request = Request::new(method, &format!("{guest}{path}")).token(OTHER);
        Some(if form.is_empty() { request } else { request.form(&form) })
    }

    fn create(&mut self, vmid: u32) -> Request {
        let node = self.node();
        let (kind, form) = match self.rng.one_in(2) {
            true => ("qemu", format!("vmid={vmid}&name=made&memory=512")),
            false => ("lxc", format!("vmid={vmid}&hostname=made&ostemplate=local%3Avztmpl%2Fdebian.tar.zst")),
        };
        Request::new("POST", &format!("/api2/json/nodes/{node}/{kind}")).token(OTHER).form(&form)
    }

    fn manage(&mut self, kind: &str, vmid: u32) -> Request {
        let service = if kind == "qemu" { "vm" } else { "ct" };
        let resources = "/api2/json/cluster/ha/resources";
        match self.rng.one_in(2) {
            true => Request::new("POST", resources).token(OTHER).form(&format!("sid={service}%3A{vmid}")),
            false => Request::new("DELETE", &format!("{resources}/{service}%3A{vmid}")).token(OTHER),
        }
    }
}

impl Bystander for Trouble {
    fn act(&mut self, world: &mut World, now_ms: u64) -> bool {
        if self.rng.below(1000) >= self.restless {
            return false;
        }
        match self.rng.below(10) {
            0 | 1 => world.act(now_ms, self.machine()),
            2..=5 => world.act(now_ms, self.guest()),
            6 | 7 => {
                if let Some(act) = self.config(world) {
                    world.act(now_ms, act);
                }
            }
            _ => {
                if let Some(request) = self.request(world) {
                    let entry = self.node();
                    drop(world.answer_at(now_ms, &entry, &request));
                }
            }
        }
        true
    }

    fn see(&mut self, world: &World, entry: &str) {
        self.witness.see(world, entry);
    }
}
