//! Seeded bad days: a series of faults that is repaired at its end.
//!
//! Must not depend on anything but the seed and the world spec.

use serde::Deserialize;

use super::{FaultPlan, NodeService, RandomFaults, TaskFault, TaskFaultEffect, TimedWorldEvent, WorldEvent};
use crate::random::SeededRandom;
use crate::world_spec::WorldSpec;

/// The severity of a seeded bad day.
#[derive(Clone, Copy, Debug)]
pub struct BadDay {
    /// How long it lasts; afterwards everything works again.
    pub span_ms: u64,
    /// How many events happen.
    pub events: u32,
    /// How many of 1,000 requests are affected.
    pub per_thousand: u64,
}

/// A bad day and its seed, as a world file contains them.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SeededBadDay {
    /// The seed.
    pub seed: u64,
    /// How long it lasts; afterwards everything works again. Default: ten minutes.
    pub span_ms: u64,
    /// How many events happen; default 20.
    pub events: u32,
    /// How many of 1,000 requests are affected; default 20.
    pub per_thousand: u64,
}

impl Default for SeededBadDay {
    fn default() -> Self {
        Self { seed: 1, span_ms: 600_000, events: 20, per_thousand: 20 }
    }
}

impl FaultPlan {
    /// The plan with its seeded bad day expanded into single faults. Random faults that the plan itself sets win over those of the day.
    pub(crate) fn expand_bad_day(&self, spec: &WorldSpec) -> Self {
        let Some(SeededBadDay { seed, span_ms, events, per_thousand }) = self.bad_day else { return self.clone() };
        let day = Self::from_seed(seed, spec, BadDay { span_ms, events, per_thousand });
        let moments = self.moments.iter().cloned().chain(day.moments).collect();
        let tasks = self.tasks.iter().cloned().chain(day.tasks).collect();
        Self { moments, tasks, chance: self.chance.or(day.chance), bad_day: None, ..self.clone() }
    }

    /// A bad day for a world spec. The same seed gives the same day, and everything that can be repaired is repaired at its end.
    #[must_use]
    pub fn from_seed(seed: u64, spec: &WorldSpec, day: BadDay) -> Self {
        let mut random = SeededRandom::new(seed);
        let nodes: Vec<String> = spec.nodes.keys().cloned().collect();
        let guests: Vec<u32> = spec.guests.iter().map(|guest| guest.vmid).collect();
        let mut moments = Vec::new();
        for _ in 0..day.events {
            let at_ms = random.number_below(day.span_ms);
            let healed_ms = at_ms + random.number_below(day.span_ms.saturating_sub(at_ms));
            let (event, healing) = random_event(&mut random, &nodes, &guests);
            moments.push(TimedWorldEvent { at_ms, event });
            moments.extend(healing.map(|event| TimedWorldEvent { at_ms: healed_ms, event }));
        }
        let chance = Some(RandomFaults { seed: random.next_number(), per_thousand: day.per_thousand });
        let paths: Vec<String> = spec.acl.iter().map(|entry| entry.path.clone()).collect();
        moments.extend(revoke_events(&mut random, &paths, day));
        let tasks = task_faults(&mut random, day.events);
        if tasks.iter().any(|fault| fault.effect == Some(TaskFaultEffect::Hang)) {
            // Kill hung tasks, as an administrator would; their locks are removed with all others.
            moments.extend(guests.iter().map(|vmid| TimedWorldEvent { at_ms: day.span_ms, event: WorldEvent::KillTask(*vmid) }));
        }
        moments.extend(repair_events(&nodes, &guests).map(|event| TimedWorldEvent { at_ms: day.span_ms, event }));
        moments.extend(paths.into_iter().map(|path| TimedWorldEvent { at_ms: day.span_ms, event: WorldEvent::Regrant(path) }));
        Self { moments, tasks, chance, ..Self::default() }
    }
}

/// Revokes a permission for a while: once per ten events.
fn revoke_events(random: &mut SeededRandom, paths: &[String], day: BadDay) -> Vec<TimedWorldEvent> {
    let mut moments = Vec::new();
    for _ in 0..day.events / 10 {
        let Some(path) = random.pick_item(paths).cloned() else { break };
        let at_ms = random.number_below(day.span_ms);
        let back_ms = at_ms + random.number_below(day.span_ms.saturating_sub(at_ms));
        moments.push(TimedWorldEvent { at_ms, event: WorldEvent::Revoke(path.clone()) });
        moments.push(TimedWorldEvent { at_ms: back_ms, event: WorldEvent::Regrant(path) });
    }
    moments
}

/// Makes some of the first tasks fail, hang or warn: one per five events.
fn task_faults(random: &mut SeededRandom, events: u32) -> Vec<TaskFault> {
    let twists =
        [TaskFaultEffect::Fail("start failed: QEMU exited with code 1".to_owned()), TaskFaultEffect::Hang, TaskFaultEffect::Warnings(1)];
    let fault = |random: &mut SeededRandom| TaskFault {
        nth: Some(1 + random.number_below(40)),
        effect: random.pick_item(&twists).cloned(),
        ..TaskFault::default()
    };
    (0..events / 5).map(|_| fault(random)).collect()
}

/// A random event, and the event that repairs it.
fn random_event(random: &mut SeededRandom, nodes: &[String], guests: &[u32]) -> (WorldEvent, Option<WorldEvent>) {
    let node = random.pick_item(nodes).cloned().unwrap_or_default();
    let vmid = random.pick_item(guests).copied().unwrap_or(0);
    let part = random
        .pick_item(&[NodeService::Proxy, NodeService::Daemon, NodeService::Files, NodeService::Statd])
        .copied()
        .unwrap_or(NodeService::Daemon);
    match random.number_below(14) {
        0 => (WorldEvent::NodeDown(node.clone()), Some(WorldEvent::NodeUp(node))),
        1 => (WorldEvent::Isolate(vec![node]), Some(WorldEvent::Heal)),
        2 => (WorldEvent::ServiceDown(node.clone(), part), Some(WorldEvent::ServiceUp(node, part))),
        3 => (WorldEvent::ServiceHung(node.clone(), NodeService::Daemon), Some(WorldEvent::ServiceUp(node, NodeService::Daemon))),
        4 => (WorldEvent::Slow(node.clone(), random.number_below(60_000)), Some(WorldEvent::Slow(node, 0))),
        5 => (WorldEvent::Vanish(vmid), Some(WorldEvent::Reappear(vmid))),
        6 => (WorldEvent::Unlist(vmid), Some(WorldEvent::Relist(vmid))),
        7 => (WorldEvent::Blind(node.clone()), Some(WorldEvent::Seeing(node))),
        8 => (WorldEvent::Recycle(vmid), None),
        9 => (WorldEvent::Lock(vmid, "backup".to_owned()), Some(WorldEvent::Unlock(vmid))),
        10 => (WorldEvent::Start(vmid), None),
        11 => (WorldEvent::Stop(vmid), None),
        12 => (WorldEvent::ClockJump(i64::try_from(random.number_below(7_200)).unwrap_or(0) - 3_600), None),
        _ => (WorldEvent::Move(vmid, node), None),
    }
}

/// Every repairing event, each once.
fn repair_events<'a>(nodes: &'a [String], guests: &'a [u32]) -> impl Iterator<Item = WorldEvent> + 'a {
    let of_node = |node: &String| {
        let up = [NodeService::Files, NodeService::Proxy, NodeService::Daemon, NodeService::Statd]
            .map(|part| WorldEvent::ServiceUp(node.clone(), part));
        [WorldEvent::NodeUp(node.clone()), WorldEvent::Slow(node.clone(), 0), WorldEvent::Seeing(node.clone())].into_iter().chain(up)
    };
    let of_guest = |vmid: &u32| [WorldEvent::Reappear(*vmid), WorldEvent::Relist(*vmid), WorldEvent::Unlock(*vmid)];
    std::iter::once(WorldEvent::Heal).chain(nodes.iter().flat_map(of_node)).chain(guests.iter().flat_map(of_guest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world_spec::WorldSpec;

    const WORLD: &str = "nodes: { pve1: {} }\nusers: { ops@pve: {} }\nacl: [{ path: /vms, role: PVEAuditor, user: ops@pve }]\n\
        guests: [{ vmid: 100, kind: qemu, node: pve1 }]\n";

    #[test]
    fn bad_days_revoke_and_regrant_permissions_and_make_tasks_fail() {
        let spec = WorldSpec::from_yaml(WORLD).expect("a world");
        let (mut revoked, mut twists) = (0, Vec::new());
        for seed in 0..20 {
            let plan = FaultPlan::from_seed(seed, &spec, BadDay { span_ms: 600_000, events: 20, per_thousand: 0 });
            for (index, moment) in plan.moments.iter().enumerate() {
                let WorldEvent::Revoke(path) = &moment.event else { continue };
                revoked += 1;
                let back = |later: &TimedWorldEvent| {
                    matches!(&later.event, WorldEvent::Regrant(other) if other == path) && later.at_ms >= moment.at_ms
                };
                assert!(plan.moments[index..].iter().any(back), "seed {seed}: {path} stays away");
            }
            let hangs = plan.tasks.iter().any(|fault| fault.effect == Some(TaskFaultEffect::Hang));
            assert_eq!(plan.moments.iter().any(|moment| matches!(moment.event, WorldEvent::KillTask(100))), hangs, "seed {seed}");
            twists.extend(plan.tasks.into_iter().filter_map(|fault| fault.effect));
        }
        assert!(revoked > 0);
        for effect in
            [TaskFaultEffect::Fail("start failed: QEMU exited with code 1".to_owned()), TaskFaultEffect::Hang, TaskFaultEffect::Warnings(1)]
        {
            assert!(twists.contains(&effect), "{effect:?} never comes up");
        }
    }
}
