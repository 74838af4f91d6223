//! A lab on a virtual clock, queried without sockets.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use converger_adapters::proxmox::client::{EndpointMonitor, ProxmoxSession, ProxmoxTransport, TokenId, Trust};
use converger_adapters::proxmox::codec::{HttpRequest, HttpResponse, ProxmoxCommand, ProxmoxEvent, ProxmoxFailure};
use converger_adapters::proxmox::doctor::privilege_needs::RequiredVerbs;
use converger_adapters::proxmox::doctor::{
    DoctorFinding, DoctorReport, DoctorRequest, EndpointSession, FindingLevel, examine_answers, gather_answers,
};
use converger_core::desired::{self, Scope};
use converger_core::document::Notation;
use converger_core::guest::{EnvironmentName, Vmid};
use converger_lab::{Flavour, World, WorldEvent, WorldSpec};

use crate::wire;

pub(crate) const FLAVOURS: [Flavour; 3] = [Flavour::V7, Flavour::V8, Flavour::V9];

pub(crate) const TOKEN: &str = "svc@pve!probe";

/// Two nodes with a virtual machine and a container on shared storage, and a service user with a token.
pub(crate) const WORLD: &str = "
cluster: house
nodes: { pve1: {}, pve2: {} }
storages: { tank: { type: rbd, shared: true } }
users: { svc@pve: {} }
tokens: { 'svc@pve!probe': { secret: s } }
guests:
  - { vmid: 100, kind: qemu, node: pve1, name: web, config: { cores: 2, memory: 1024, scsi0: 'tank:vm-100-disk-0,size=8G', net0: 'virtio,bridge=vmbr0' }, snapshots: { s1: { cores: 2 } } }
  - { vmid: 101, kind: lxc, node: pve1, name: dns, config: { cores: 1, memory: 512, rootfs: 'tank:vm-101-disk-0,size=4G', net0: 'name=eth0,bridge=vmbr0' }, snapshots: { s1: { cores: 1 } } }
";

pub(crate) fn lab_setting(flavour: Flavour, yaml: &str) -> WorldSpec {
    let spec = WorldSpec::from_yaml(yaml).unwrap_or_else(|error| panic!("{error}\n{yaml}"));
    WorldSpec { flavour, ..spec }
}

/// The world above, in which token and user have these roles on these paths.
pub(crate) fn setting_with_roles(flavour: Flavour, entries: &[(&str, &str)]) -> WorldSpec {
    let mut spec = lab_setting(flavour, WORLD);
    for (path, role) in entries {
        for own in [("token", TOKEN), ("user", "svc@pve")] {
            let yaml = format!("acl: [{{ path: {path}, role: {role}, {}: '{}' }}]", own.0, own.1);
            spec.acl.extend(WorldSpec::from_yaml(&yaml).unwrap_or_else(|error| panic!("{error}")).acl);
        }
    }
    spec
}

struct DoctorLabState {
    world: World,
    now_ms: u64,
}

/// A running world.
#[derive(Clone)]
pub(crate) struct DoctorLab(Arc<Mutex<DoctorLabState>>);

impl DoctorLab {
    pub(crate) fn new(spec: &WorldSpec) -> Self {
        let world = World::new(spec).unwrap_or_else(|error| panic!("{error}"));
        // Let pvestatd report once.
        let bench = Self(Arc::new(Mutex::new(DoctorLabState { world, now_ms: spec.start_ms })));
        bench.advance_time(20_000);
        bench
    }

    fn lock_state(&self) -> MutexGuard<'_, DoctorLabState> {
        self.0.lock().expect("unpoisoned")
    }

    pub(crate) fn advance_time(&self, ms: u64) {
        let mut running = self.lock_state();
        running.now_ms += ms;
        let now_ms = running.now_ms;
        running.world.advance_to(now_ms);
    }

    pub(crate) fn apply_event(self, event: WorldEvent) -> Self {
        let mut running = self.lock_state();
        let now_ms = running.now_ms;
        running.world.apply_event(now_ms, event);
        drop(running);
        self
    }

    pub(crate) fn add_fault(self, fault: converger_lab::RequestFault) -> Self {
        self.lock_state().world.add_request_fault(fault);
        self
    }

    pub(crate) fn clock(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.lock_state().now_ms)
    }

    /// Method and path of all requests so far.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.lock_state().world.records().map(|record| format!("{} {}", record.method, record.path)).collect()
    }

    pub(crate) fn session(&self, node: &str) -> ProxmoxSession<DoctorLabNode> {
        self.session_with_secret(node, "s")
    }

    fn session_with_secret(&self, node: &str, secret: &str) -> ProxmoxSession<DoctorLabNode> {
        let (endpoint_name, token) = (format!("{node}:8006"), format!("{TOKEN}={secret}"));
        ProxmoxSession::new(DoctorLabNode {
            bench: self.clone(),
            node: node.to_owned(),
            endpoint: endpoint_name,
            token,
            watch: EndpointMonitor::default(),
        })
    }
}

/// One node as the endpoint of a world.
pub(crate) struct DoctorLabNode {
    bench: DoctorLab,
    node: String,
    endpoint: String,
    token: String,
    watch: EndpointMonitor,
}

impl ProxmoxTransport for DoctorLabNode {
    async fn exchange(&self, request: &HttpRequest) -> Result<HttpResponse, ProxmoxFailure> {
        let mut running = self.bench.lock_state();
        let now_ms = running.now_ms;
        let lab_request = wire::build_request(wire::request_template(&self.token), request);
        let answer = running.world.answer_at(now_ms, &self.node, &lab_request);
        wire::verify_exchange(running.world.flavour(), &lab_request, &answer);
        running.now_ms += answer.delay_ms.max(1);
        let received = wire::receive_response(&self.endpoint, request, answer, wire::deadline_ms())?;
        self.watch.record_date(&date_header(running.world.node_clock_s(&self.node)));
        Ok(received)
    }

    fn endpoint_name(&self) -> &str {
        &self.endpoint
    }

    fn monitor(&self) -> EndpointMonitor {
        self.watch.clone()
    }
}

/// A `Date` header. The day of the week does not matter here.
fn date_header(secs: u64) -> String {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (mut days, mut year) = (secs / 86_400, 1970);
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    let rest = secs % 86_400;
    format!("Sun, {:02} {} {year} {:02}:{:02}:{:02} GMT", days + 1, MONTHS[month], rest / 3600, rest / 60 % 60, rest % 60)
}

pub(crate) fn test_vmid(number: u64) -> Vmid {
    Vmid::new(number).expect("an id")
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

pub(crate) fn call_command(session: &ProxmoxSession<DoctorLabNode>, command: &ProxmoxCommand) -> Result<ProxmoxEvent, ProxmoxFailure> {
    block_on(session.call(command))
}

/// The parameters of an examination.
#[derive(Clone)]
pub(crate) struct DoctorVisit {
    pub(crate) entries: Vec<&'static str>,
    pub(crate) cluster: Option<&'static str>,
    pub(crate) scope: Option<Vec<u64>>,
    pub(crate) secret: &'static str,
    /// A declared state, which determines the required privileges. Only its guests are given; the rest is added.
    pub(crate) declared: Option<&'static str>,
}

impl Default for DoctorVisit {
    fn default() -> Self {
        Self { entries: vec!["pve1"], cluster: Some("house"), scope: Some(vec![100, 101]), secret: "s", declared: None }
    }
}

/// The findings in a world.
pub(crate) fn visit_findings(bench: &DoctorLab, visit: &DoctorVisit) -> Vec<DoctorFinding> {
    examine_lab(bench, visit).findings
}

/// Examines a world, and checks that the doctor only reads and that its texts are displayable.
pub(crate) fn examine_lab(bench: &DoctorLab, visit: &DoctorVisit) -> DoctorReport {
    let endpoint_sessions: Vec<EndpointSession<DoctorLabNode>> = visit
        .entries
        .iter()
        .map(|node| EndpointSession {
            endpoint: format!("{node}:8006"),
            trust: Trust::System,
            session: Ok(bench.session_with_secret(node, visit.secret)),
        })
        .collect();
    let environment = EnvironmentName::new("lab").expect("a name");
    let declared = visit.declared.map(|guests| {
        let text = format!("version: 1\nenvironment: lab\nguests:\n{guests}");
        desired::parse(text.as_bytes(), Notation::Yaml).unwrap_or_else(|faults| panic!("{faults:?}\n{text}"))
    });
    let required_verbs = declared.as_ref().map(RequiredVerbs::from_desired);
    let scope = visit.scope.as_ref().map(|ids| Scope::new(ids.iter().map(|id| test_vmid(*id)).collect()));
    let token = TokenId::new(TOKEN).expect("an id");
    let doctor_request = DoctorRequest {
        environment: &environment,
        cluster: visit.cluster,
        token: &token,
        scope: scope.as_ref(),
        wants: required_verbs.as_ref(),
    };
    let before = bench.requests().len();
    let examined = examine_answers(&block_on(gather_answers(&doctor_request, &endpoint_sessions, &|| bench.clock(), &|_| {})));
    let requests = &bench.requests()[before..];
    assert!(requests.iter().all(|request| request.starts_with("GET ")), "the doctor changes nothing (G5): {requests:#?}");
    check_texts(&examined.findings);
    examined
}

/// Every finding is displayable: a check name in kebab-case, a sentence, and no control characters.
fn check_texts(found: &[DoctorFinding]) {
    for finding in found {
        let is_kebab = finding.check.split('-').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_lowercase()));
        assert!(is_kebab, "{finding:?}");
        let remedy = finding.remedy.iter().flat_map(|remedy| remedy.lines.iter().map(|line| &line.text).chain([&remedy.text]));
        for text in remedy.chain([&finding.found]) {
            assert!(!text.trim().is_empty() && !text.chars().any(char::is_control) && !text.contains("<vmid>"), "{finding:?}");
        }
        assert!(
            finding.level != FindingLevel::Fail
                || finding.remedy.is_some()
                || finding.check.starts_with("tls")
                || finding.check == "endpoint"
        );
    }
}

/// The levels of a check, in order.
pub(crate) fn levels_of(found: &[DoctorFinding], check: &str) -> Vec<FindingLevel> {
    found.iter().filter(|finding| finding.check == check).map(|finding| finding.level).collect()
}

/// The only finding of a check.
pub(crate) fn only_finding<'f>(found: &'f [DoctorFinding], check: &str) -> &'f DoctorFinding {
    let own: Vec<&DoctorFinding> = found.iter().filter(|finding| finding.check == check).collect();
    assert_eq!(own.len(), 1, "{check} in {found:#?}");
    own[0]
}

/// The commands of a finding.
pub(crate) fn remedy_lines(finding: &DoctorFinding) -> Vec<&str> {
    finding.remedy.iter().flat_map(|remedy| &remedy.lines).map(|line| line.text.as_str()).collect()
}
