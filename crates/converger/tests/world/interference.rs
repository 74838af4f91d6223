//! Random interference while the client reads: machines fail, people work, guests move. The history records each change.

use converger_core::guest::GuestKind;
use converger_core::normalize::{Field, rule_of};
use converger_core::testing::Rng;
use converger_lab::{LabRequest, NodeService, World, WorldEvent};

use crate::config_forms::known_forms;
use crate::lab_transport::LabBystander;
use crate::random_labs::OTHER_TOKEN;
use crate::truth_history::TruthHistory;

/// Interferes and records the history.
pub(crate) struct RandomInterference {
    pub(crate) rng: Rng,
    /// The probability of interference per opportunity, in thousandths.
    pub(crate) per_mille: u64,
    pub(crate) history: TruthHistory,
    nodes: Vec<String>,
}

impl RandomInterference {
    pub(crate) fn new(rng: Rng, restless: u64, nodes: Vec<String>) -> Self {
        Self { rng, per_mille: restless, history: TruthHistory::default(), nodes }
    }

    fn draw_node(&mut self) -> String {
        self.rng.pick(&self.nodes).cloned().unwrap_or_default()
    }

    fn draw_vmid(&mut self) -> u32 {
        100 + u32::try_from(self.rng.below(5)).unwrap_or(0)
    }

    fn machine_event(&mut self) -> WorldEvent {
        let node = self.draw_node();
        let part = self
            .rng
            .pick(&[NodeService::Proxy, NodeService::Daemon, NodeService::Files, NodeService::Statd, NodeService::Statd])
            .copied()
            .unwrap_or(NodeService::Daemon);
        match self.rng.below(12) {
            0 => WorldEvent::NodeDown(node),
            1 => WorldEvent::NodeUp(node),
            2 => WorldEvent::Isolate(vec![node]),
            3 => WorldEvent::Heal,
            4 => WorldEvent::ServiceDown(node, part),
            5 => WorldEvent::ServiceHung(node, NodeService::Daemon),
            6 => WorldEvent::ServiceUp(node, part),
            7 => WorldEvent::Slow(node, self.rng.below(70_000)),
            8 => WorldEvent::Blind(node),
            9 => WorldEvent::Seeing(node),
            10 => WorldEvent::ClockJump(i64::try_from(self.rng.below(7200)).unwrap_or(0) - 3600),
            _ => WorldEvent::Revoke(self.rng.pick_word(&["/", "/vms/100", "/vms/101", "/vms/102"]).to_owned()),
        }
    }

    fn guest_event(&mut self) -> WorldEvent {
        let (vmid, node) = (self.draw_vmid(), self.draw_node());
        match self.rng.below(18) {
            0 => WorldEvent::Vanish(vmid),
            1 => WorldEvent::Reappear(vmid),
            2 => WorldEvent::Unlist(vmid),
            3 => WorldEvent::Relist(vmid),
            4 => WorldEvent::Recycle(vmid),
            5 => WorldEvent::Lock(vmid, self.rng.pick_word(&["backup", "migrate", "snapshot"]).to_owned()),
            6 => WorldEvent::Unlock(vmid),
            7 => WorldEvent::Start(vmid),
            8 => WorldEvent::Stop(vmid),
            9 => WorldEvent::Say(vmid, self.rng.pick_word(&["paused", "io-error", "running", "suspended", "prelaunch"]).to_owned()),
            10 | 11 => WorldEvent::Move(vmid, node),
            12 => WorldEvent::PrepareSnapshot(vmid, "half".to_owned()),
            13 => WorldEvent::KillTask(vmid),
            14 | 15 => WorldEvent::Replace(vmid),
            _ => WorldEvent::Set(vmid, self.rng.pick_word(&["name", "hostname", "protection", "template"]).to_owned(), "1".to_owned()),
        }
    }

    fn config_event(&mut self, world: &World) -> Option<WorldEvent> {
        let vmid = self.draw_vmid();
        let kind = match world.guest_truth(vmid)?.kind {
            converger_lab::LabGuestKind::Qemu => GuestKind::Qemu,
            converger_lab::LabGuestKind::Lxc => GuestKind::Lxc,
        };
        let fields: Vec<Field> = Field::ALL.into_iter().filter(|field| rule_of(kind, *field).is_some()).collect();
        let field = self.rng.pick(&fields).copied()?;
        let form = self.rng.pick(&known_forms(kind, field)).map(|(form, _)| (*form).to_owned())?;
        let key = field.word().to_owned();
        Some(if self.rng.one_in(3) { WorldEvent::SetPending(vmid, key, form) } else { WorldEvent::Set(vmid, key, form) })
    }

    /// A request of another user, through the same API.
    fn foreign_request(&mut self, world: &World) -> Option<LabRequest> {
        let vmid = self.draw_vmid();
        let Some(truth) = world.guest_truth(vmid) else { return Some(self.create_request(vmid)) };
        let kind = if truth.kind == converger_lab::LabGuestKind::Qemu { "qemu" } else { "lxc" };
        let guest = format!("/api2/json/nodes/{}/{kind}/{vmid}", truth.node);
        let target = self.draw_node();
        let (method, path, form) = match self.rng.below(14) {
            0 => ("POST", "/status/start", String::new()),
            1 => ("POST", "/status/stop", String::new()),
            2 => ("POST", "/status/shutdown", String::new()),
            3 => ("POST", "/status/reboot", String::new()),
            4 => ("POST", "/snapshot", "snapname=s1".to_owned()),
            5 => ("POST", "/clone", format!("newid={}", self.draw_vmid())),
            6 => ("POST", "/migrate", format!("target={target}&online=1")),
            7 => ("POST", "/template", String::new()),
            8 | 9 => ("DELETE", "", String::new()),
            10 => ("PUT", "/config", "cores=3&description=two%0Alines&onboot=1".to_owned()),
            11 => ("PUT", "/config", "delete=onboot,net0".to_owned()),
            _ => return Some(self.ha_request(kind, vmid)),
        };
        let request = LabRequest::new(method, &format!("{guest}{path}")).with_token(OTHER_TOKEN);
        Some(if form.is_empty() { request } else { request.with_form(&form) })
    }

    fn create_request(&mut self, vmid: u32) -> LabRequest {
        let node = self.draw_node();
        let (kind, form) = match self.rng.one_in(2) {
            true => ("qemu", format!("vmid={vmid}&name=made&memory=512")),
            false => ("lxc", format!("vmid={vmid}&hostname=made&ostemplate=local%3Avztmpl%2Fdebian.tar.zst")),
        };
        LabRequest::new("POST", &format!("/api2/json/nodes/{node}/{kind}")).with_token(OTHER_TOKEN).with_form(&form)
    }

    fn ha_request(&mut self, kind: &str, vmid: u32) -> LabRequest {
        let service = if kind == "qemu" { "vm" } else { "ct" };
        let resources = "/api2/json/cluster/ha/resources";
        match self.rng.one_in(2) {
            true => LabRequest::new("POST", resources).with_token(OTHER_TOKEN).with_form(&format!("sid={service}%3A{vmid}")),
            false => LabRequest::new("DELETE", &format!("{resources}/{service}%3A{vmid}")).with_token(OTHER_TOKEN),
        }
    }
}

impl LabBystander for RandomInterference {
    fn interfere(&mut self, world: &mut World, now_ms: u64) -> bool {
        if self.rng.below(1000) >= self.per_mille {
            return false;
        }
        match self.rng.below(10) {
            0 | 1 => world.apply_event(now_ms, self.machine_event()),
            2..=5 => world.apply_event(now_ms, self.guest_event()),
            6 | 7 => {
                if let Some(event) = self.config_event(world) {
                    world.apply_event(now_ms, event);
                }
            }
            _ => {
                if let Some(request) = self.foreign_request(world) {
                    let entry = self.draw_node();
                    drop(world.answer_at(now_ms, &entry, &request));
                }
            }
        }
        true
    }

    fn observe_state(&mut self, world: &World, entry: &str) {
        self.history.record(world, entry);
    }
}
