//! The world: the whole state of the simulated cluster, and the function that answers a request.
//!
//! Must not depend on a clock, entropy or sockets. Time is an argument and randomness comes from
//! the seed, so the same requests at the same times get the same responses.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::access::{AccessControl, ApiCaller, TicketSigner};
use crate::api::CachedClusterStatus;
use crate::copy_on_write::CopyOnWrite;
use crate::events::ScheduledEvent;
use crate::fault::{self, ActiveFaults, RequestFault, TaskFault, WorldEvent};
use crate::firewall::Firewalls;
use crate::flavour::Flavour;
use crate::guest::{GuestBehaviour, LabGuest, LabGuestKind};
use crate::guests::LabGuests;
use crate::ha::HaResources;
use crate::node::{LabNode, ServiceState};
use crate::node_view::NodeViews;
use crate::options::DatacenterOptions;
use crate::random::SeededRandom;
use crate::replication::ReplicationJobs;
use crate::route;
use crate::schema::split_list;
use crate::sections::SectionFile;
use crate::storage::LabStorages;
use crate::task::LabTasks;
use crate::truth::GuestVerb;
#[cfg(feature = "server")]
use crate::wire::TlsIdentity;
use crate::wire::{LabRequest, LabResponse};
use crate::world_spec::{GuestSpec, TaskDurations, WorldSpec};

/// Maximum number of recorded requests; older ones are only counted.
const RECORDS_MAX: usize = 1 << 20;

/// Maximum total length of the recorded texts. The number of records alone is no bound, because callers choose the length of paths and
/// names.
const RECORD_BYTES_MAX: usize = 256 << 20;

/// One request that the world received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRecord {
    /// When it arrived.
    pub at_ms: u64,
    /// The node that received it.
    pub entry: String,
    /// The method, in upper case.
    pub method: String,
    /// Path and query, percent-encoded as received.
    pub path: String,
    /// The user or token id; empty if the request was not authenticated.
    pub user: String,
    /// The status of the response; 0 if the response was lost.
    pub status: u16,
}

impl RequestRecord {
    fn text_bytes(&self) -> usize {
        self.entry.len() + self.method.len() + self.path.len() + self.user.len()
    }
}

/// The root CA that a cluster creates once. It identifies the cluster even if its name or its addresses change.
#[derive(Clone, Default)]
pub(crate) struct RootCa {
    /// The SHA-256 fingerprint of its certificate.
    pub(crate) fingerprint: String,
    /// The UUID in its subject.
    pub(crate) unit: String,
    /// When it was created.
    pub(crate) since_s: u64,
}

/// A simulated Proxmox VE host or cluster.
#[derive(Clone)]
pub struct World {
    pub(crate) flavour: Flavour,
    /// The cluster's name; `None` for a single node that never joined a cluster.
    pub(crate) cluster: Option<String>,
    pub(crate) root_ca: RootCa,
    pub(crate) nodes: BTreeMap<String, LabNode>,
    pub(crate) guests: LabGuests,
    pub(crate) storages: CopyOnWrite<LabStorages>,
    pub(crate) access: CopyOnWrite<AccessControl>,
    pub(crate) tickets: TicketSigner,
    pub(crate) ha: HaResources,
    pub(crate) firewalls: Firewalls,
    pub(crate) backup_jobs: SectionFile,
    pub(crate) replication: ReplicationJobs,
    pub(crate) options: DatacenterOptions,
    pub(crate) tasks: LabTasks,
    pub(crate) views: NodeViews,
    /// No broadcast is due before this time. Reset to 0 when the state of a node changes.
    pub(crate) no_broadcast_until_ms: u64,
    pub(crate) events: BTreeMap<(u64, u64), ScheduledEvent>,
    pub(crate) events_scheduled: u64,
    pub(crate) random: SeededRandom,
    /// How often each kind of call took effect on each guest.
    pub(crate) executions: BTreeMap<(GuestVerb, u32), u64>,
    pub(crate) task_durations: TaskDurations,
    /// Behaviour of guests that are created through the API.
    pub(crate) new_guest_behaviour: GuestBehaviour,
    pub(crate) now_ms: u64,
    /// Offset of the clocks of all nodes from `now_ms`.
    pub(crate) clock_skew_ms: i64,
    /// Guests that a fault hides from every list and every path.
    pub(crate) hidden: BTreeSet<u32>,
    /// Guests that a fault removes from lists only.
    pub(crate) unlisted: BTreeSet<u32>,
    /// Faults that are still to come.
    pub(crate) faults: ActiveFaults,
    /// The last `cluster/status` response and the state that it was computed from.
    pub(crate) status: Option<CachedClusterStatus>,
    /// `None` while recording is disabled.
    records: Option<VecDeque<RequestRecord>>,
    records_bytes: usize,
    requests: u64,
}

impl World {
    /// Builds the world that a spec describes.
    ///
    /// # Errors
    /// The first inconsistency in the spec, such as a guest on an unknown node or an ACL entry with an unknown role.
    pub fn new(spec: &WorldSpec) -> Result<Self, String> {
        crate::world_spec::build_world(spec)
    }

    /// An empty world, which `world_spec::build_world` fills.
    pub(crate) fn empty(flavour: Flavour, seed: u64, start_ms: u64) -> Self {
        Self {
            flavour,
            cluster: None,
            root_ca: RootCa::default(),
            nodes: BTreeMap::new(),
            guests: LabGuests::default(),
            storages: CopyOnWrite::default(),
            access: CopyOnWrite::from(AccessControl::new(flavour)),
            tickets: TicketSigner::new(seed),
            ha: HaResources::default(),
            firewalls: Firewalls::default(),
            backup_jobs: SectionFile::default(),
            replication: ReplicationJobs::default(),
            options: DatacenterOptions::default(),
            tasks: LabTasks::default(),
            views: NodeViews::default(),
            no_broadcast_until_ms: 0,
            events: BTreeMap::new(),
            events_scheduled: 0,
            random: SeededRandom::new(seed),
            executions: BTreeMap::new(),
            task_durations: TaskDurations::default(),
            new_guest_behaviour: GuestBehaviour::default(),
            now_ms: start_ms,
            clock_skew_ms: 0,
            hidden: BTreeSet::new(),
            unlisted: BTreeSet::new(),
            faults: ActiveFaults::default(),
            status: None,
            records: Some(VecDeque::new()),
            records_bytes: 0,
            requests: 0,
        }
    }

    /// Answers a request that arrives at the first node at `now_ms` (milliseconds since 1970).
    ///
    /// Time never goes back: a `now_ms` before that of the last request counts as that one.
    pub fn answer(&mut self, now_ms: u64, request: &LabRequest) -> LabResponse {
        let entry = self.nodes.keys().next().cloned().unwrap_or_default();
        self.answer_at(now_ms, &entry, request)
    }

    /// Answers a request that arrives at the given node.
    pub fn answer_at(&mut self, now_ms: u64, entry: &str, request: &LabRequest) -> LabResponse {
        self.advance(now_ms);
        self.requests += 1;
        let (caller, answer) = route::answer_request(self, entry, request);
        if let Some(records) = &mut self.records {
            let record = RequestRecord {
                at_ms: now_ms,
                entry: entry.to_owned(),
                method: request.method.clone(),
                path: request.path.clone(),
                user: caller.map(|caller| caller.id()).unwrap_or_default(),
                status: answer.status,
            };
            self.records_bytes += record.text_bytes();
            records.push_back(record);
            while records.len() > RECORDS_MAX || self.records_bytes > RECORD_BYTES_MAX {
                let Some(oldest) = records.pop_front() else { break };
                self.records_bytes -= oldest.text_bytes();
            }
        }
        answer
    }

    /// Stops recording requests; they are only counted. Saves memory in long simulations that never read the records.
    pub fn disable_records(&mut self) {
        (self.records, self.records_bytes) = (None, 0);
    }

    /// All recorded requests, oldest first.
    pub fn records(&self) -> impl DoubleEndedIterator<Item = &RequestRecord> {
        self.records.iter().flatten()
    }

    /// The number of requests, including those whose records were dropped.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Drops the records and resets the counter, for a test that counts from here on.
    pub fn clear_records(&mut self) {
        if let Some(records) = &mut self.records {
            records.clear();
        }
        (self.records_bytes, self.requests) = (0, 0);
    }

    /// Advances time without a request.
    pub fn advance_to(&mut self, now_ms: u64) {
        self.advance(now_ms);
    }

    /// The time of the next scheduled event, such as the end of a task or a fault. For callers that drive the clock.
    #[must_use]
    pub fn next_event_ms(&self) -> Option<u64> {
        self.events.keys().next().map(|(at_ms, _)| *at_ms)
    }

    /// Applies an external event at `now_ms`.
    pub fn apply_event(&mut self, now_ms: u64, event: WorldEvent) {
        self.advance(now_ms);
        fault::apply_world_event(self, event);
    }

    /// Adds a guest to a running world.
    ///
    /// # Errors
    /// The node is unknown, or the VMID is taken.
    pub fn add_guest(&mut self, now_ms: u64, guest: &GuestSpec) -> Result<(), String> {
        self.advance(now_ms);
        crate::world_spec::add_guest(self, guest)
    }

    /// Applies this fault to matching requests from now on.
    pub fn add_request_fault(&mut self, fault: RequestFault) {
        self.faults.add_request(fault);
    }

    /// Applies this fault to matching tasks from now on.
    pub fn add_task_fault(&mut self, fault: TaskFault) {
        self.faults.add_task(fault);
    }

    /// Drops all faults on requests and tasks, including those that have not matched yet.
    pub fn clear_faults(&mut self) {
        self.faults = crate::fault::ActiveFaults::default();
    }

    /// A ticket and its CSRF token, as a login returns them.
    #[must_use]
    pub fn ticket(&self, user: &str) -> (String, String) {
        let now_s = self.cluster_clock_s();
        (self.tickets.make_ticket(user, now_s), self.tickets.make_csrf_token(user, now_s))
    }

    /// The names of all nodes; each accepts requests.
    pub fn node_names(&self) -> impl Iterator<Item = &str> {
        self.nodes.keys().map(String::as_str)
    }

    /// The Proxmox VE release that this world simulates.
    #[must_use]
    pub fn flavour(&self) -> Flavour {
        self.flavour
    }

    /// The true time in milliseconds since 1970, which node clocks may deviate from.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// The time of the cluster in seconds: the true time plus the common clock skew.
    #[must_use]
    pub fn cluster_clock_s(&self) -> u64 {
        self.now_ms.saturating_add_signed(self.clock_skew_ms) / 1_000
    }

    /// The time of a node in seconds: the cluster time plus the node's own clock offset.
    #[must_use]
    pub fn node_clock_s(&self, node: &str) -> u64 {
        self.node_clock_s_at(node, self.now_ms)
    }

    /// The time that a node's clock shows at the true time `now_ms`.
    pub(crate) fn node_clock_s_at(&self, node: &str, now_ms: u64) -> u64 {
        let own_ms = self.nodes.get(node).map_or(0, |node| node.clock_off_ms);
        now_ms.saturating_add_signed(self.clock_skew_ms.saturating_add(own_ms)) / 1_000
    }

    /// Whether a node accepts requests: it is online and its proxy is up.
    pub(crate) fn is_listening(&self, node: &str) -> bool {
        self.nodes.get(node).is_some_and(|node| node.online && node.proxy == ServiceState::Up)
    }

    /// The nodes whose port is open. A hung proxy still has an open port.
    #[cfg(feature = "server")]
    pub(crate) fn open_ports(&self) -> BTreeSet<String> {
        let open = self.nodes.values().filter(|node| node.online && node.proxy != ServiceState::Down);
        open.map(|node| node.name.clone()).collect()
    }

    /// The TLS identity that a node presents.
    #[cfg(feature = "server")]
    pub(crate) fn tls_identity_of(&self, node: &str) -> TlsIdentity {
        self.nodes.get(node).map_or(TlsIdentity::Own, |node| node.tls_identity)
    }

    /// The guest, if it is on that node, is of that kind and is not hidden.
    pub(crate) fn guest_on(&self, node: &str, kind: LabGuestKind, vmid: u32) -> Option<&LabGuest> {
        let is_here = |guest: &&LabGuest| guest.node == node && guest.kind == kind && !self.hidden.contains(&vmid);
        self.guests.get(&vmid).filter(is_here)
    }

    /// The tags of all guests that the caller may audit.
    pub(crate) fn tags_seen_by(&self, caller: &ApiCaller) -> BTreeSet<&str> {
        let may_audit = self.access.guest_privilege_check(caller, "VM.Audit");
        let seen = self.visible_guests().filter(|guest| may_audit(guest.vmid));
        seen.filter_map(|guest| guest.get("tags")).flat_map(split_list).collect()
    }

    /// All guests that no fault hides.
    pub(crate) fn visible_guests(&self) -> impl Iterator<Item = &LabGuest> {
        self.guests.values().filter(|guest| !self.hidden.contains(&guest.vmid))
    }

    /// Whether a node's list of all guests contains this guest. Faults can make the list wrong while the guest's own path still works.
    pub(crate) fn is_listed(&self, entry: &str, vmid: u32) -> bool {
        let blind = self.nodes.get(entry).is_some_and(|node| node.lists_no_guests);
        !blind && !self.unlisted.contains(&vmid) && !self.hidden.contains(&vmid) && self.guests.contains_key(&vmid)
    }

    /// Whether `entry` reaches more than half of the cluster's nodes.
    pub(crate) fn is_quorate(&self, entry: &str) -> bool {
        let reached = || self.reachability_from(entry).filter(|is_reached| *is_reached).count();
        self.cluster.is_none() || reached() * 2 > self.nodes.len()
    }

    /// For each node, whether `entry` reaches it; see [`Self::is_reachable`].
    pub(crate) fn reachability_from(&self, entry: &str) -> impl Iterator<Item = bool> {
        let partition = self.nodes.get(entry).filter(|node| node.online).map(|node| node.network_partition);
        self.nodes.values().map(move |node| node.online && Some(node.network_partition) == partition)
    }

    /// Whether one node reaches another: both are online and in the same network partition.
    pub(crate) fn is_reachable(&self, from: &str, to: &str) -> bool {
        let partition_of = |name: &str| self.nodes.get(name).filter(|node| node.online).map(|node| node.network_partition);
        partition_of(from).is_some_and(|own| from == to || partition_of(to) == Some(own))
    }
}
