//! The world: everything that the lab knows, and the one function that answers a request.
//!
//! What never enters here: a clock, entropy, sockets. Time is an argument, chance comes from the
//! seed; the same requests at the same times get the same answers.

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
use crate::route;
use crate::schema::split_list;
use crate::sections::SectionFile;
use crate::storage::LabStorages;
use crate::task::LabTasks;
#[cfg(feature = "server")]
use crate::wire::TlsIdentity;
use crate::wire::{LabRequest, LabResponse};
use crate::world_spec::{GuestSpec, TaskDurations, WorldSpec};

/// So many requests are remembered; older ones are only counted.
const RECORDS_MAX: usize = 1 << 20;

/// And so many bytes of paths and names: a caller can make them long.
const RECORD_BYTES_MAX: usize = 256 << 20;

/// One request as the world saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRecord {
    /// When it arrived.
    pub at_ms: u64,
    /// The node that it came to.
    pub entry: String,
    /// The method in capitals.
    pub method: String,
    /// Path and query, still encoded.
    pub path: String,
    /// The caller, token included; empty where nobody could be told.
    pub user: String,
    /// The status of the answer; zero where the wire delivered none.
    pub status: u16,
}

impl RequestRecord {
    fn text_bytes(&self) -> usize {
        self.entry.len() + self.method.len() + self.path.len() + self.user.len()
    }
}

/// The root CA that a cluster makes once and keeps: what it is known by, whatever it is called and wherever it answers.
#[derive(Clone, Default)]
pub(crate) struct RootCa {
    /// The SHA-256 fingerprint of its certificate.
    pub(crate) fingerprint: String,
    /// The UUID in its subject.
    pub(crate) unit: String,
    /// When it was made.
    pub(crate) since_s: u64,
}

/// A Proxmox VE host or cluster that exists only here.
#[derive(Clone)]
pub struct World {
    pub(crate) flavour: Flavour,
    /// The cluster's name; `None`: one node that never joined one.
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
    pub(crate) options: DatacenterOptions,
    pub(crate) tasks: LabTasks,
    pub(crate) views: NodeViews,
    /// No node has anything to tell before, unless something goes wrong with one, or right again.
    pub(crate) no_broadcast_until_ms: u64,
    pub(crate) events: BTreeMap<(u64, u64), ScheduledEvent>,
    pub(crate) events_scheduled: u64,
    pub(crate) random: SeededRandom,
    pub(crate) task_durations: TaskDurations,
    /// How guests behave that are made here.
    pub(crate) new_guest_behaviour: GuestBehaviour,
    pub(crate) now_ms: u64,
    /// How far the clocks of all nodes are off.
    pub(crate) clock_skew_ms: i64,
    /// Guests that a fault has hidden from every list and every path.
    pub(crate) hidden: BTreeSet<u32>,
    /// Guests that a fault has taken out of lists only.
    pub(crate) unlisted: BTreeSet<u32>,
    /// What goes wrong, and when.
    pub(crate) faults: ActiveFaults,
    /// What was last said of the cluster, and what it was made of.
    pub(crate) status: Option<CachedClusterStatus>,
    /// None are kept where nobody asks for them.
    records: Option<VecDeque<RequestRecord>>,
    records_bytes: usize,
    requests: u64,
}

impl World {
    /// A world as a setting describes it.
    ///
    /// # Errors
    /// The first thing in the setting that cannot be: a guest on an unknown node, a grant of an unknown role.
    pub fn new(setting: &WorldSpec) -> Result<Self, String> {
        crate::world_spec::build_world(setting)
    }

    /// An empty world; `setting::build` fills it.
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
            options: DatacenterOptions::default(),
            tasks: LabTasks::default(),
            views: NodeViews::default(),
            no_broadcast_until_ms: 0,
            events: BTreeMap::new(),
            events_scheduled: 0,
            random: SeededRandom::new(seed),
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

    /// Answer a request that arrives at `now_ms` (milliseconds since 1970) at the first node.
    ///
    /// Time never goes back: an earlier `now_ms` than the last one counts as the last one.
    pub fn answer(&mut self, now_ms: u64, request: &LabRequest) -> LabResponse {
        let entry = self.nodes.keys().next().cloned().unwrap_or_default();
        self.answer_at(now_ms, &entry, request)
    }

    /// Answer a request that arrives at a certain node.
    pub fn answer_at(&mut self, now_ms: u64, entry: &str, request: &LabRequest) -> LabResponse {
        self.advance(now_ms);
        self.requests += 1;
        let (who, answer) = route::answer_request(self, entry, request);
        if let Some(records) = &mut self.records {
            let record = RequestRecord {
                at_ms: now_ms,
                entry: entry.to_owned(),
                method: request.method.clone(),
                path: request.path.clone(),
                user: who.map(|who| who.id()).unwrap_or_default(),
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

    /// From now on requests are counted and not remembered: for whoever tells many stories and asks none of them.
    pub fn disable_records(&mut self) {
        (self.records, self.records_bytes) = (None, 0);
    }

    /// Every request so far, in order.
    pub fn records(&self) -> impl DoubleEndedIterator<Item = &RequestRecord> {
        self.records.iter().flatten()
    }

    /// How many requests there were, also those that are no longer remembered.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Forget the requests so far, for a test that counts from here on.
    pub fn clear_records(&mut self) {
        if let Some(records) = &mut self.records {
            records.clear();
        }
        (self.records_bytes, self.requests) = (0, 0);
    }

    /// Let time pass without a request.
    pub fn advance_to(&mut self, now_ms: u64) {
        self.advance(now_ms);
    }

    /// When something happens next by itself: a task ends, a fault strikes. For whoever drives the clock.
    #[must_use]
    pub fn next_event_ms(&self) -> Option<u64> {
        self.events.keys().next().map(|(at_ms, _)| *at_ms)
    }

    /// Let something happen, at `now_ms` and by somebody else's hand.
    pub fn apply_event(&mut self, now_ms: u64, act: WorldEvent) {
        self.advance(now_ms);
        fault::apply_world_event(self, act);
    }

    /// Put a guest into a world that is under way.
    ///
    /// # Errors
    /// The guest is on an unknown node, or its number is taken.
    pub fn add_guest(&mut self, now_ms: u64, guest: &GuestSpec) -> Result<(), String> {
        self.advance(now_ms);
        crate::world_spec::add_guest(self, guest)
    }

    /// From now on this happens to requests that fit.
    pub fn add_request_fault(&mut self, fault: RequestFault) {
        self.faults.add_request(fault);
    }

    /// From now on this happens to tasks that fit.
    pub fn add_task_fault(&mut self, fault: TaskFault) {
        self.faults.add_task(fault);
    }

    /// Nothing more goes wrong with requests and tasks: what waits for its moment is forgotten.
    pub fn clear_faults(&mut self) {
        self.faults = crate::fault::ActiveFaults::default();
    }

    /// A ticket and its companion, as a login would give them.
    #[must_use]
    pub fn ticket(&self, user: &str) -> (String, String) {
        let now_s = self.cluster_clock_s();
        (self.tickets.make_ticket(user, now_s), self.tickets.make_csrf_token(user, now_s))
    }

    /// The names of the nodes, each of which can be an entry.
    pub fn node_names(&self) -> impl Iterator<Item = &str> {
        self.nodes.keys().map(String::as_str)
    }

    /// The release that this world plays.
    #[must_use]
    pub fn flavour(&self) -> Flavour {
        self.flavour
    }

    /// The moment that this world has come to, in milliseconds since 1970, whatever its clocks show.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Seconds on the clock that nodes have in common, which may be off.
    #[must_use]
    pub fn cluster_clock_s(&self) -> u64 {
        self.now_ms.saturating_add_signed(self.clock_skew_ms) / 1_000
    }

    /// Seconds on the clock of a node: it may be off from those of the others too.
    #[must_use]
    pub fn node_clock_s(&self, node: &str) -> u64 {
        self.node_clock_s_at(node, self.now_ms)
    }

    /// What the clock of a node shows at a moment.
    pub(crate) fn node_clock_s_at(&self, node: &str, now_ms: u64) -> u64 {
        let own_ms = self.nodes.get(node).map_or(0, |node| node.clock_off_ms);
        now_ms.saturating_add_signed(self.clock_skew_ms.saturating_add(own_ms)) / 1_000
    }

    /// A node that is off, or whose proxy is, takes no requests.
    pub(crate) fn is_listening(&self, node: &str) -> bool {
        self.nodes.get(node).is_some_and(|node| node.online && node.proxy == ServiceState::Up)
    }

    /// The nodes whose port is open. A proxy that hangs still has its port.
    #[cfg(feature = "server")]
    pub(crate) fn open_ports(&self) -> BTreeSet<String> {
        let open = self.nodes.values().filter(|node| node.online && node.proxy != ServiceState::Down);
        open.map(|node| node.name.clone()).collect()
    }

    /// What a node shows to those who begin TLS.
    #[cfg(feature = "server")]
    pub(crate) fn tls_identity_of(&self, node: &str) -> TlsIdentity {
        self.nodes.get(node).map_or(TlsIdentity::Own, |node| node.tls_identity)
    }

    /// A guest, if it is on that node, of that kind, and not hidden.
    pub(crate) fn guest_on(&self, node: &str, kind: LabGuestKind, vmid: u32) -> Option<&LabGuest> {
        let here = |guest: &&LabGuest| guest.node == node && guest.kind == kind && !self.hidden.contains(&vmid);
        self.guests.get(&vmid).filter(here)
    }

    /// The tags of all guests that a caller may audit.
    pub(crate) fn tags_seen_by(&self, who: &ApiCaller) -> BTreeSet<&str> {
        let may_audit = self.access.guest_privilege_check(who, "VM.Audit");
        let seen = self.visible_guests().filter(|guest| may_audit(guest.vmid));
        seen.filter_map(|guest| guest.get("tags")).flat_map(split_list).collect()
    }

    /// Guests that can be seen at all.
    pub(crate) fn visible_guests(&self) -> impl Iterator<Item = &LabGuest> {
        self.guests.values().filter(|guest| !self.hidden.contains(&guest.vmid))
    }

    /// Whether a node's list of all guests has this one. The list can lie; the guest's own path does not.
    pub(crate) fn is_listed(&self, entry: &str, vmid: u32) -> bool {
        let blind = self.nodes.get(entry).is_some_and(|node| node.lists_no_guests);
        !blind && !self.unlisted.contains(&vmid) && !self.hidden.contains(&vmid) && self.guests.contains_key(&vmid)
    }

    /// Whether the nodes that `entry` reaches are more than half of the cluster.
    pub(crate) fn is_quorate(&self, entry: &str) -> bool {
        let reached = || self.reachability_from(entry).filter(|is_reached| *is_reached).count();
        self.cluster.is_none() || reached() * 2 > self.nodes.len()
    }

    /// Of each node whether `entry` sees it, as [`Self::reaches`] says.
    pub(crate) fn reachability_from(&self, entry: &str) -> impl Iterator<Item = bool> {
        let island = self.nodes.get(entry).filter(|node| node.online).map(|node| node.network_partition);
        self.nodes.values().map(move |node| node.online && Some(node.network_partition) == island)
    }

    /// Whether one node sees another: both on, on one island.
    pub(crate) fn is_reachable(&self, from: &str, to: &str) -> bool {
        let island = |name: &str| self.nodes.get(name).filter(|node| node.online).map(|node| node.network_partition);
        island(from).is_some_and(|own| from == to || island(to) == Some(own))
    }
}
