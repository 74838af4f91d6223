//! What goes wrong, from a seed: on the wire, in the world, in tasks, in our own process and in its store. Each harm waits for its
//! moment: the nth request, the moment before or after a change is sent, the nth command of the process.
//!
//! What never enters: what should come of it.

use converger_core::guest::RunState;
use converger_core::testing::Rng;
use converger_lab::{Act, Answer, Face, Fate, GuestSetting, Part, Request, RequestFault, TaskFault, TaskTwist, Twist};
use converger_store::Fault;

use super::scene::{OTHER, Scene};

/// Kinds of harm; each must have struck at least once in a long run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    LostBefore,
    LostAfter,
    Truncated,
    SlowAnswer,
    Refused595,
    GaveUp596,
    Garbled599,
    Redirected,
    Dripped,
    Page502,
    Busy503,
    SignInPage,
    Unauthorized,
    Forbidden,
    Died500,
    Empty200,
    Flooded,
    FloodedUnannounced,
    Compressed,
    NodeDown,
    Partition,
    ProxyDown,
    ProxyHung,
    DaemonDown,
    DaemonHung,
    FilesDown,
    FilesHung,
    StatdDown,
    StatdHung,
    SlowNode,
    VerySlowNode,
    Vanished,
    Unlisted,
    Blind,
    Recycled,
    Reborn,
    Locked,
    ChangedByHand,
    PendingByHand,
    TaggedProd,
    TaggedHold,
    Protected,
    Renamed,
    StartedByHand,
    StoppedByHand,
    Paused,
    Moved,
    HalfSnapshot,
    ClockJump,
    NodeClockJump,
    FewCpus,
    OtherFace,
    Revoked,
    HaTakesOver,
    OtherTask,
    TaskFails,
    TaskHangs,
    TaskWarns,
    TaskKilled,
    CrashBefore,
    CrashAfter,
    PowerLost,
    StoreFull,
    SyncLost,
    SyncLostWritten,
    OwnClockJump,
    Asleep,
    Drained,
    HeldByPerson,
    Frozen,
    NoRoom,
}

impl Kind {
    /// Those that strike one request on the wire.
    pub(crate) fn of_the_wire() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().take_while(|kind| *kind < Self::NodeDown)
    }

    /// Whether an answer shows that it was hit by this.
    pub(crate) fn is_seen_in(self, answer: &Answer) -> bool {
        let is = |status: u16| answer.status == status && answer.fate == Fate::Deliver;
        match self {
            Self::LostBefore => answer.fate == Fate::LostBefore,
            Self::LostAfter => answer.fate == Fate::LostAfter,
            Self::Truncated => matches!(answer.fate, Fate::Truncated(_)),
            Self::SlowAnswer => answer.delay_ms > 0,
            Self::Refused595 => is(595),
            Self::GaveUp596 => is(596),
            Self::Garbled599 => is(599),
            Self::Redirected => is(301),
            Self::Dripped => matches!(answer.fate, Fate::Drip { .. }),
            Self::Page502 => is(502),
            Self::Busy503 => is(503),
            Self::SignInPage => is(200) && answer.body.starts_with(b"<html>"),
            Self::Unauthorized => is(401),
            Self::Forbidden => is(403),
            Self::Died500 => is(500),
            Self::Empty200 => is(200) && answer.body == EMPTY.as_bytes(),
            Self::Flooded => matches!(answer.fate, Fate::Flood { announced: true, .. }),
            Self::FloodedUnannounced => matches!(answer.fate, Fate::Flood { announced: false, .. }),
            Self::Compressed => matches!(answer.fate, Fate::GzipBomb(_)),
            _ => false,
        }
    }

    /// All kinds.
    pub(crate) const ALL: [Self; 71] = [
        Self::LostBefore,
        Self::LostAfter,
        Self::Truncated,
        Self::SlowAnswer,
        Self::Refused595,
        Self::GaveUp596,
        Self::Garbled599,
        Self::Redirected,
        Self::Dripped,
        Self::Page502,
        Self::Busy503,
        Self::SignInPage,
        Self::Unauthorized,
        Self::Forbidden,
        Self::Died500,
        Self::Empty200,
        Self::Flooded,
        Self::FloodedUnannounced,
        Self::Compressed,
        Self::NodeDown,
        Self::Partition,
        Self::ProxyDown,
        Self::ProxyHung,
        Self::DaemonDown,
        Self::DaemonHung,
        Self::FilesDown,
        Self::FilesHung,
        Self::StatdDown,
        Self::StatdHung,
        Self::SlowNode,
        Self::VerySlowNode,
        Self::Vanished,
        Self::Unlisted,
        Self::Blind,
        Self::Recycled,
        Self::Reborn,
        Self::Locked,
        Self::ChangedByHand,
        Self::PendingByHand,
        Self::TaggedProd,
        Self::TaggedHold,
        Self::Protected,
        Self::Renamed,
        Self::StartedByHand,
        Self::StoppedByHand,
        Self::Paused,
        Self::Moved,
        Self::HalfSnapshot,
        Self::ClockJump,
        Self::NodeClockJump,
        Self::FewCpus,
        Self::OtherFace,
        Self::Revoked,
        Self::HaTakesOver,
        Self::OtherTask,
        Self::TaskFails,
        Self::TaskHangs,
        Self::TaskWarns,
        Self::TaskKilled,
        Self::CrashBefore,
        Self::CrashAfter,
        Self::PowerLost,
        Self::StoreFull,
        Self::SyncLost,
        Self::SyncLostWritten,
        Self::OwnClockJump,
        Self::Asleep,
        Self::Drained,
        Self::HeldByPerson,
        Self::Frozen,
        Self::NoRoom,
    ];
}

/// The processors of every node.
pub(crate) const CPUS: u64 = 8;

/// An answer that says yes and nothing else.
const EMPTY: &str = "{\"success\":1,\"data\":null}";

/// When a harm strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// Before the nth request that reaches for the world.
    Request(u64),
    /// Before a change is sent: after everything was found in order.
    BeforeSend,
    /// Once a change was sent, before its answer is there.
    AfterSend,
    /// At the nth thing that the process does to the world or to its store.
    Command(u64),
    /// At the thing that sends a change.
    Sending,
}

/// How the first life of a process goes where nothing strikes: what waits for a change waits in vain where there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undisturbed {
    /// It asks so often, and finds nothing that it may change.
    Reads(u64),
    Acts,
}

/// One harm that waits for its moment.
#[derive(Clone, Debug)]
pub(crate) struct Harm {
    pub(crate) kind: Kind,
    pub(crate) moment: Moment,
    pub(crate) vmid: u32,
    is_qemu: bool,
    pub(crate) node: String,
    /// What makes it good again comes so much later; none: it stays until everything heals.
    pub(crate) heals_ms: Option<u64>,
    pub(crate) number: u64,
}

/// What strikes the world.
pub(crate) enum Blow {
    /// The next request is hit.
    Wire(Twist),
    /// Something happens, and may be made good again.
    Act(Act, Option<Act>),
    /// The next task is hit.
    Task(TaskTwist),
    /// Somebody else asks the world for something, at the guest's own node.
    Other(Request),
}

/// The harms of a schedule, at least so many.
pub(crate) fn draw(rng: &mut Rng, scene: &Scene, least: usize, undisturbed: Undisturbed) -> Vec<Harm> {
    let count = *rng.pick(&[0, 1, 1, 2, 2, 2, 3, 3, 4, 6]).unwrap_or(&1);
    let nodes: Vec<&String> = scene.setting.nodes.keys().collect();
    let mut harms = Vec::new();
    for _ in 0..count.max(least) {
        let mut kind = *rng.pick(&Kind::ALL).unwrap_or(&Kind::LostAfter);
        while !is_possible(kind, scene, undisturbed) {
            kind = *rng.pick(&Kind::ALL).unwrap_or(&Kind::LostAfter);
        }
        let guest = rng.pick(&scene.setting.guests);
        harms.push(Harm {
            kind,
            moment: moment(rng, kind, undisturbed),
            vmid: guest.map_or(100, |guest| guest.vmid),
            is_qemu: guest.is_none_or(|guest| guest.kind == converger_lab::Kind::Qemu),
            node: rng.pick(&nodes).map_or_else(String::new, |node| (*node).clone()),
            heals_ms: rng.one_in(2).then(|| rng.below(90_000)),
            number: rng.next_u64(),
        });
    }
    if rng.one_in(50) {
        harms.extend(comes_late(rng, scene).into_iter().flatten());
    }
    if rng.one_in(20) {
        harms.extend(seldom(rng, scene).into_iter().flatten());
    }
    // Few worlds have a guest that is restarted.
    if rng.one_in(4) {
        harms.extend(cannot_start_again(scene));
    }
    harms
}

/// Whether it can strike at all.
fn is_possible(kind: Kind, scene: &Scene, undisturbed: Undisturbed) -> bool {
    let needs_change = kind >= Kind::CrashBefore || matches!(kind, Kind::TaskKilled | Kind::TaskFails | Kind::TaskHangs | Kind::TaskWarns);
    (kind != Kind::Revoked || scene.is_granted) && (undisturbed == Undisturbed::Acts || !needs_change)
}

/// A change that comes long after it was sent: a worker of its node is slow and the others soon answer again, and whoever sent it dies.
fn comes_late(rng: &mut Rng, scene: &Scene) -> Option<[Harm; 2]> {
    let guest = rng.pick(&scene.setting.guests)?;
    let slow = Harm {
        kind: Kind::VerySlowNode,
        moment: Moment::BeforeSend,
        vmid: guest.vmid,
        is_qemu: guest.kind == converger_lab::Kind::Qemu,
        node: guest.node.clone(),
        heals_ms: Some(rng.below(3_000)),
        number: rng.next_u64(),
    };
    let death = Harm { kind: Kind::CrashAfter, moment: Moment::Sending, ..slow.clone() };
    Some([slow, death])
}

/// What hardly ever comes about by itself: the node of a guest is gone between the plan and the check of its first step, a task of ours is killed, one is
/// still at work when the next process asks for it, our token loses its privileges, and a guest is protected between the plan and the check.
fn seldom(rng: &mut Rng, scene: &Scene) -> Option<Vec<Harm>> {
    let entry = scene.setting.nodes.keys().next()?;
    let guest = rng.pick(&scene.setting.guests)?;
    let of = |kind, moment| Harm { vmid: guest.vmid, node: guest.node.clone(), heals_ms: None, ..Harm::at(kind, moment) };
    match rng.below(6) {
        0 | 1 if guest.node != *entry => Some(vec![of(Kind::NodeDown, Moment::Request(6 + rng.below(4)))]),
        2 => Some(vec![of(Kind::TaskKilled, Moment::AfterSend)]),
        3 => Some(vec![of(Kind::TaskHangs, Moment::BeforeSend), of(Kind::CrashAfter, Moment::Command(8 + rng.below(3)))]),
        4 if scene.is_granted => Some(vec![of(Kind::Revoked, Moment::Request(1 + rng.below(10)))]),
        5 => Some(vec![of(Kind::TaggedProd, Moment::Request(6 + rng.below(4)))]),
        _ => None,
    }
}

/// A guest that is to be restarted goes down, and its node has too few processors to start it again.
fn cannot_start_again(scene: &Scene) -> Option<Harm> {
    let is_restarted = |guest: &&GuestSetting| {
        let restarts = scene.wanted.get(&guest.vmid).is_some_and(|wanted| wanted.restarts && wanted.state != Some(RunState::Stopped));
        restarts && guest.kind == converger_lab::Kind::Qemu && guest.state.is_some() && !guest.deaf
    };
    let guest = scene.setting.guests.iter().find(is_restarted)?;
    let few = Harm::at(Kind::FewCpus, Moment::BeforeSend);
    Some(Harm { vmid: guest.vmid, node: guest.node.clone(), heals_ms: None, ..few })
}

fn moment(rng: &mut Rng, kind: Kind, undisturbed: Undisturbed) -> Moment {
    if let Undisturbed::Reads(requests) = undisturbed {
        return Moment::Request(1 + rng.below(requests.max(1)));
    }
    if kind >= Kind::CrashBefore {
        if rng.one_in(4) {
            return Moment::Sending;
        }
        let within = *rng.pick(&[8, 16, 32]).unwrap_or(&8);
        return Moment::Command(1 + rng.below(within));
    }
    let within = *rng.pick(&[8, 16, 32]).unwrap_or(&8);
    match rng.below(5) {
        0 | 1 => Moment::BeforeSend,
        2 => Moment::AfterSend,
        _ => Moment::Request(1 + rng.below(within)),
    }
}

impl Harm {
    /// One harm to the first guest and the first node at this moment.
    pub(crate) fn at(kind: Kind, moment: Moment) -> Self {
        Self { kind, moment, vmid: 100, is_qemu: true, node: "pve1".to_owned(), heals_ms: Some(5_000), number: 0 }
    }

    /// What it does to the world; none: it is our own process or its store that is struck.
    pub(crate) fn blow(&self) -> Option<Blow> {
        self.wire().map(Blow::Wire).or_else(|| self.machine()).or_else(|| self.guest()).or_else(|| self.other())
    }

    fn wire(&self) -> Option<Twist> {
        let instead = |status: u16, reason: &str, body: &str| Twist::Instead {
            status,
            reason: reason.to_owned(),
            body: body.to_owned(),
            html: body.starts_with('<'),
        };
        let after = |status: u16, reason: &str| Twist::After { status, reason: reason.to_owned() };
        Some(match self.kind {
            Kind::LostBefore => Twist::LostBefore,
            Kind::LostAfter => Twist::LostAfter,
            Kind::Truncated => Twist::Truncated(usize::try_from(self.number % 40).unwrap_or(0)),
            Kind::SlowAnswer => Twist::Slow(self.number % 90_000),
            Kind::Refused595 => instead(595, "Connection refused", ""),
            Kind::GaveUp596 => after(596, "Connection timed out"),
            Kind::Garbled599 => after(599, "Garbled response"),
            Kind::Redirected => Twist::Redirect("https://elsewhere:8006/".to_owned()),
            Kind::Dripped => Twist::Drip { bytes: 7, every_ms: self.number % 200 },
            Kind::Page502 => instead(502, "Bad Gateway", "<html><body><h1>502 Bad Gateway</h1></body></html>"),
            Kind::Busy503 => instead(503, "Service Unavailable", ""),
            Kind::SignInPage => instead(200, "OK", "<html><body>Sign in to the guest network</body></html>"),
            Kind::Unauthorized => instead(401, "Authentication failed!", ""),
            Kind::Forbidden => instead(403, "Permission check failed", "{\"data\":null}"),
            Kind::Died500 => instead(500, "got no worker upid - start worker failed", "{\"data\":null}"),
            Kind::Empty200 => instead(200, "OK", EMPTY),
            Kind::Flooded => self.flood(false),
            Kind::FloodedUnannounced => self.flood(true),
            Kind::Compressed => Twist::GzipBomb(1 << 20),
            _ => return None,
        })
    }

    /// Blanks behind the answer, up to what is read or far beyond it.
    fn flood(&self, unannounced: bool) -> Twist {
        Twist::Flood { bytes: if self.number.is_multiple_of(2) { 1 << 12 } else { 1 << 30 }, unannounced }
    }

    fn machine(&self) -> Option<Blow> {
        let node = || self.node.clone();
        let service = |act: fn(String, Part) -> Act, part: Part| Blow::Act(act(node(), part), Some(Act::ServiceUp(node(), part)));
        Some(match self.kind {
            Kind::NodeDown => Blow::Act(Act::NodeDown(node()), Some(Act::NodeUp(node()))),
            Kind::Partition => Blow::Act(Act::Isolate(vec![node()]), Some(Act::Heal)),
            Kind::ProxyDown => service(Act::ServiceDown, Part::Proxy),
            Kind::ProxyHung => service(Act::ServiceHung, Part::Proxy),
            Kind::DaemonDown => service(Act::ServiceDown, Part::Daemon),
            Kind::DaemonHung => service(Act::ServiceHung, Part::Daemon),
            Kind::FilesDown => service(Act::ServiceDown, Part::Files),
            Kind::FilesHung => service(Act::ServiceHung, Part::Files),
            Kind::StatdDown => service(Act::ServiceDown, Part::Statd),
            Kind::StatdHung => service(Act::ServiceHung, Part::Statd),
            Kind::SlowNode => Blow::Act(Act::Slow(node(), self.slow_ms()), Some(Act::Slow(node(), 0))),
            // The proxy gives up after 30 s, and the node carries the request out all the same, within what is looked for.
            Kind::VerySlowNode => Blow::Act(Act::Slow(node(), self.slow_ms()), Some(Act::Slow(node(), 0))),
            Kind::Blind => Blow::Act(Act::Blind(node()), Some(Act::Seeing(node()))),
            Kind::ClockJump => Blow::Act(Act::ClockJump(self.jump_secs()), None),
            Kind::NodeClockJump => Blow::Act(Act::NodeClockJump(node(), self.jump_secs()), None),
            // No virtual machine starts there: neither one that is told to, nor one that is rebooted.
            Kind::FewCpus => Blow::Act(Act::Cpus(node(), 0), Some(Act::Cpus(node(), CPUS))),
            Kind::OtherFace => Blow::Act(Act::Show(node(), self.face()), Some(Act::Show(node(), Face::Own))),
            Kind::Revoked => Blow::Act(Act::Revoke("/".to_owned()), Some(Act::Regrant("/".to_owned()))),
            _ => return None,
        })
    }

    /// How much longer a slow node takes.
    fn slow_ms(&self) -> u64 {
        if self.kind == Kind::VerySlowNode { 30_000 + self.number % 25_000 } else { self.number % 29_000 }
    }

    /// Up to an hour ahead or back.
    fn jump_secs(&self) -> i64 {
        i64::try_from(self.number % 7_200).unwrap_or(0) - 3_600
    }

    fn face(&self) -> Face {
        match self.number % 4 {
            0 => Face::Expired,
            1 => Face::OtherName,
            2 => Face::OtherKey,
            _ => Face::Noise,
        }
    }

    fn guest(&self) -> Option<Blow> {
        let vmid = self.vmid;
        let act = |act: Act| Blow::Act(act, None);
        let set = |key: &str, value: &str| Blow::Act(Act::Set(vmid, key.to_owned(), value.to_owned()), None);
        Some(match self.kind {
            Kind::Vanished => Blow::Act(Act::Vanish(vmid), Some(Act::Reappear(vmid))),
            Kind::Unlisted => Blow::Act(Act::Unlist(vmid), Some(Act::Relist(vmid))),
            Kind::Recycled => act(Act::Recycle(vmid)),
            // The same name, and another guest all the same.
            Kind::Reborn if self.number % 2 == 1 => act(Act::Replace(vmid)),
            Kind::Reborn if self.is_qemu => set("smbios1", "uuid=00000000-1111-2222-3333-444455556666"),
            Kind::Reborn => set("rootfs", "local:999/vm-999-disk-0.raw,size=8G"),
            Kind::Locked => Blow::Act(Act::Lock(vmid, "backup".to_owned()), Some(Act::Unlock(vmid))),
            Kind::ChangedByHand => match self.number % 3 {
                0 => set("description", "by hand"),
                1 => set("cores", "3"),
                _ => set("balloon", "256"),
            },
            Kind::PendingByHand => {
                let (key, value) = self.waiting();
                act(Act::SetPending(vmid, key.to_owned(), value.to_owned()))
            }
            Kind::Renamed => set(if self.is_qemu { "name" } else { "hostname" }, "renamed"),
            Kind::TaggedProd => set("tags", "prod"),
            Kind::TaggedHold => set("tags", "converger-hold"),
            Kind::Protected => set("protection", "1"),
            Kind::StartedByHand => act(Act::Start(vmid)),
            Kind::StoppedByHand => act(Act::Stop(vmid)),
            Kind::Paused => {
                let word = if self.number.is_multiple_of(2) { "paused" } else { "io-error" };
                Blow::Act(Act::Say(vmid, word.to_owned()), Some(Act::Say(vmid, "running".to_owned())))
            }
            Kind::Moved => act(Act::Move(vmid, self.node.clone())),
            Kind::HalfSnapshot => Blow::Act(Act::PrepareSnapshot(vmid, "half".to_owned()), Some(Act::Unlock(vmid))),
            Kind::HaTakesOver if self.number.is_multiple_of(2) => act(Act::Manage(vmid, "started".to_owned())),
            Kind::TaskKilled => act(Act::KillTask(vmid)),
            Kind::TaskFails => Blow::Task(TaskTwist::Fail("start failed: QEMU exited with code 1".to_owned())),
            Kind::TaskHangs => Blow::Task(TaskTwist::Hang),
            Kind::TaskWarns => Blow::Task(TaskTwist::Warnings(2)),
            _ => return None,
        })
    }

    /// What somebody leaves waiting for the next start: keys that we never manage, and keys that may be declared with another value.
    fn waiting(&self) -> (&'static str, &'static str) {
        match (self.is_qemu, self.number % 4) {
            (true, 0) => ("bios", "ovmf"),
            (true, 1) => ("machine", "q35"),
            (false, 0 | 1) => ("features", "nesting=1"),
            (_, 2) => ("cores", "7"),
            (..) => ("memory", "4096"),
        }
    }

    /// Whether an answer to a request of this path shows what it did to the world. `entry` is the node that is asked for everything; what
    /// it cannot show of another node is not seen.
    pub(crate) fn is_seen_in(&self, entry: &str, path: &str, answer: &Answer) -> bool {
        let is_entry = self.node == entry;
        let is_there = is_entry || path.contains(&format!("/nodes/{}/", self.node));
        let is = |status: u16, reason: &str| answer.status == status && answer.fate == Fate::Deliver && answer.reason.contains(reason);
        let is_refused = is(595, "Connection refused");
        let is_lost = |hangs: bool| is_entry && answer.fate == Fate::LostBefore && (answer.delay_ms > 0) == hangs;
        let lists = |what: &str| String::from_utf8_lossy(&answer.body).contains(what);
        let is_list = is(200, "") && path.contains("/cluster/resources");
        match self.kind {
            Kind::ProxyDown => is_lost(false) || (is_there && !is_entry && is_refused),
            Kind::ProxyHung => is_lost(true) || (is_there && !is_entry && is_refused),
            Kind::DaemonDown => is_there && is_refused,
            Kind::DaemonHung => is_there && is(596, "Connection timed out"),
            Kind::FilesDown | Kind::FilesHung => is_entry && is(500, "RPCEnvironment init request failed"),
            // The cluster's list is too old to show pauses, and the node is asked for its list in full.
            Kind::StatdDown | Kind::StatdHung => path.contains(&format!("/nodes/{}/qemu?full=1", self.node)) && is(200, ""),
            Kind::SlowNode => is_there && self.slow_ms() > 0 && answer.delay_ms >= self.slow_ms(),
            Kind::VerySlowNode => is_there && (answer.delay_ms >= self.slow_ms() || is(596, "Connection timed out")),
            Kind::Blind => is_entry && is_list && !lists("\"vmid\":"),
            Kind::Unlisted => is_list && !lists(&format!("\"vmid\":{}", self.vmid)),
            Kind::FewCpus => is_there && lists("vcpus allowed per VM"),
            // The answer arrives well, and says inside of it how it is meant.
            Kind::Revoked => is(200, "") && lists("Permission check failed"),
            _ => false,
        }
    }

    /// What somebody else does over the API.
    fn other(&self) -> Option<Blow> {
        let verb = if self.number.is_multiple_of(2) { "start" } else { "stop" };
        let (kind, service) = if self.is_qemu { ("qemu", "vm") } else { ("lxc", "ct") };
        let (path, form) = match self.kind {
            Kind::HaTakesOver => ("/api2/json/cluster/ha/resources".to_owned(), format!("sid={service}:{}&state=started", self.vmid)),
            Kind::OtherTask => (format!("/api2/json/nodes/localhost/{kind}/{}/status/{verb}", self.vmid), String::new()),
            _ => return None,
        };
        Some(Blow::Other(Request::new("POST", &path).token(OTHER).header("Content-Length", &form.len().to_string()).form(&form)))
    }

    /// What it does to the store.
    pub(crate) fn store_fault(&self) -> Option<Fault> {
        match self.kind {
            Kind::StoreFull => Some(Fault::Full),
            Kind::SyncLost => Some(Fault::LostUnwritten),
            Kind::SyncLostWritten => Some(Fault::LostWritten),
            _ => None,
        }
    }
}

/// What the harms of all kinds are in the words of the lab and of the store, with the service and the face where there is one.
#[cfg(test)]
pub(crate) fn drawn() -> std::collections::BTreeSet<String> {
    let mut drawn = std::collections::BTreeSet::new();
    let mut add = |own: &str, shown: String| {
        let mut words = shown.split(|own: char| !own.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        let first = words.next().unwrap_or_default();
        drawn.insert(format!("{own} {first}"));
        if first.starts_with("Service") || first == "Show" {
            drawn.insert(format!("{first} {}", words.next_back().unwrap_or_default()));
        }
    };
    for (kind, number) in Kind::ALL.into_iter().flat_map(|kind| (0..12).map(move |number| (kind, number))) {
        let harm = Harm { number, ..Harm::at(kind, Moment::BeforeSend) };
        match harm.blow() {
            Some(Blow::Wire(twist)) => add("Twist", format!("{twist:?}")),
            Some(Blow::Task(twist)) => add("TaskTwist", format!("{twist:?}")),
            Some(Blow::Act(act, good)) => [Some(act), good].into_iter().flatten().for_each(|act| add("Act", format!("{act:?}"))),
            Some(Blow::Other(_)) | None => {}
        }
        harm.store_fault().into_iter().for_each(|fault| add("Fault", format!("{fault:?}")));
    }
    drawn
}

/// The next request that comes, and no other.
pub(crate) fn next_request(twist: Twist) -> RequestFault {
    RequestFault { nth: Some(1), twist: Some(twist), ..RequestFault::default() }
}

/// The next task about a guest, and no other.
pub(crate) fn next_task(vmid: u32, twist: TaskTwist) -> TaskFault {
    TaskFault { about: Some(vmid.to_string()), nth: Some(1), twist: Some(twist), ..TaskFault::default() }
}
