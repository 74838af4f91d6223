//! Bad days from a seed: a story of faults that heals at its end.
//!
//! What never enters here: anything that the seed and the setting do not decide.

use serde::Deserialize;

use super::{Act, Chance, FaultPlan, Moment, Part, TaskFault, TaskTwist};
use crate::random::Random;
use crate::setting::Setting;

/// How bad a seeded day is.
#[derive(Clone, Copy, Debug)]
pub struct BadDay {
    /// How long it lasts; after that everything works again.
    pub span_ms: u64,
    /// How many things happen.
    pub events: u32,
    /// How many of a thousand requests are hit on the wire.
    pub per_thousand: u64,
}

/// A bad day and the seed that decides it, as a file writes them.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SeededDay {
    /// Where chance comes from.
    pub seed: u64,
    /// How long it lasts; after that everything works again. Ten minutes where nothing is said.
    pub span_ms: u64,
    /// How many things happen; 20 where nothing is said.
    pub events: u32,
    /// How many of a thousand requests are hit on the wire; 20 where nothing is said.
    pub per_thousand: u64,
}

impl Default for SeededDay {
    fn default() -> Self {
        Self { seed: 1, span_ms: 600_000, events: 20, per_thousand: 20 }
    }
}

impl FaultPlan {
    /// The plan with what its seeded day comes to in this setting. Chance that is written wins over that of the day.
    pub(crate) fn spelled_out(&self, setting: &Setting) -> Self {
        let Some(SeededDay { seed, span_ms, events, per_thousand }) = self.bad_day else { return self.clone() };
        let day = Self::seeded(seed, setting, BadDay { span_ms, events, per_thousand });
        let moments = self.moments.iter().cloned().chain(day.moments).collect();
        let tasks = self.tasks.iter().cloned().chain(day.tasks).collect();
        Self { moments, tasks, chance: self.chance.or(day.chance), bad_day: None, ..self.clone() }
    }

    /// A bad day for a setting: the same seed gives the same day. Whatever can be made good again is made good at its end.
    #[must_use]
    pub fn seeded(seed: u64, setting: &Setting, day: BadDay) -> Self {
        let mut random = Random::new(seed);
        let nodes: Vec<String> = setting.nodes.keys().cloned().collect();
        let guests: Vec<u32> = setting.guests.iter().map(|guest| guest.vmid).collect();
        let mut moments = Vec::new();
        for _ in 0..day.events {
            let at_ms = random.below(day.span_ms);
            let healed_ms = at_ms + random.below(day.span_ms.saturating_sub(at_ms));
            let (act, healing) = event(&mut random, &nodes, &guests);
            moments.push(Moment { at_ms, act });
            moments.extend(healing.map(|act| Moment { at_ms: healed_ms, act }));
        }
        let chance = Some(Chance { seed: random.next(), per_thousand: day.per_thousand });
        let paths: Vec<String> = setting.acl.iter().map(|entry| entry.path.clone()).collect();
        moments.extend(revoked(&mut random, &paths, day));
        let tasks = tasks(&mut random, day.events);
        if tasks.iter().any(|fault| fault.twist == Some(TaskTwist::Hang)) {
            // What hangs is killed, as somebody would in the end; the locks that it leaves go with all others.
            moments.extend(guests.iter().map(|vmid| Moment { at_ms: day.span_ms, act: Act::KillTask(*vmid) }));
        }
        moments.extend(end(&nodes, &guests).map(|act| Moment { at_ms: day.span_ms, act }));
        moments.extend(paths.into_iter().map(|path| Moment { at_ms: day.span_ms, act: Act::Regrant(path) }));
        Self { moments, tasks, chance, ..Self::default() }
    }
}

/// Now and then a permission is taken away for a while: once for every ten things that happen.
fn revoked(random: &mut Random, paths: &[String], day: BadDay) -> Vec<Moment> {
    let mut moments = Vec::new();
    for _ in 0..day.events / 10 {
        let Some(path) = random.pick(paths).cloned() else { break };
        let at_ms = random.below(day.span_ms);
        let back_ms = at_ms + random.below(day.span_ms.saturating_sub(at_ms));
        moments.push(Moment { at_ms, act: Act::Revoke(path.clone()) });
        moments.push(Moment { at_ms: back_ms, act: Act::Regrant(path) });
    }
    moments
}

/// Some of the first tasks fail, hang or warn: one for every five things that happen.
fn tasks(random: &mut Random, events: u32) -> Vec<TaskFault> {
    let twists = [TaskTwist::Fail("start failed: QEMU exited with code 1".to_owned()), TaskTwist::Hang, TaskTwist::Warnings(1)];
    let fault =
        |random: &mut Random| TaskFault { nth: Some(1 + random.below(40)), twist: random.pick(&twists).cloned(), ..TaskFault::default() };
    (0..events / 5).map(|_| fault(random)).collect()
}

/// Something bad, and what makes it good again.
fn event(random: &mut Random, nodes: &[String], guests: &[u32]) -> (Act, Option<Act>) {
    let node = random.pick(nodes).cloned().unwrap_or_default();
    let vmid = random.pick(guests).copied().unwrap_or(0);
    let part = random.pick(&[Part::Proxy, Part::Daemon, Part::Files, Part::Statd]).copied().unwrap_or(Part::Daemon);
    match random.below(14) {
        0 => (Act::NodeDown(node.clone()), Some(Act::NodeUp(node))),
        1 => (Act::Isolate(vec![node]), Some(Act::Heal)),
        2 => (Act::ServiceDown(node.clone(), part), Some(Act::ServiceUp(node, part))),
        3 => (Act::ServiceHung(node.clone(), Part::Daemon), Some(Act::ServiceUp(node, Part::Daemon))),
        4 => (Act::Slow(node.clone(), random.below(60_000)), Some(Act::Slow(node, 0))),
        5 => (Act::Vanish(vmid), Some(Act::Reappear(vmid))),
        6 => (Act::Unlist(vmid), Some(Act::Relist(vmid))),
        7 => (Act::Blind(node.clone()), Some(Act::Seeing(node))),
        8 => (Act::Recycle(vmid), None),
        9 => (Act::Lock(vmid, "backup".to_owned()), Some(Act::Unlock(vmid))),
        10 => (Act::Start(vmid), None),
        11 => (Act::Stop(vmid), None),
        12 => (Act::ClockJump(i64::try_from(random.below(7_200)).unwrap_or(0) - 3_600), None),
        _ => (Act::Move(vmid, node), None),
    }
}

/// Everything that makes something good again, once for all.
fn end<'a>(nodes: &'a [String], guests: &'a [u32]) -> impl Iterator<Item = Act> + 'a {
    let of_node = |node: &String| {
        let up = [Part::Files, Part::Proxy, Part::Daemon, Part::Statd].map(|part| Act::ServiceUp(node.clone(), part));
        [Act::NodeUp(node.clone()), Act::Slow(node.clone(), 0), Act::Seeing(node.clone())].into_iter().chain(up)
    };
    let of_guest = |vmid: &u32| [Act::Reappear(*vmid), Act::Relist(*vmid), Act::Unlock(*vmid)];
    std::iter::once(Act::Heal).chain(nodes.iter().flat_map(of_node)).chain(guests.iter().flat_map(of_guest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setting::Setting;

    const WORLD: &str = "nodes: { pve1: {} }\nusers: { ops@pve: {} }\nacl: [{ path: /vms, role: PVEAuditor, user: ops@pve }]\n\
        guests: [{ vmid: 100, kind: qemu, node: pve1 }]\n";

    #[test]
    fn permissions_are_taken_away_and_given_back_and_tasks_fail_hang_and_warn() {
        let setting = Setting::from_yaml(WORLD).expect("a world");
        let (mut revoked, mut twists) = (0, Vec::new());
        for seed in 0..20 {
            let plan = FaultPlan::seeded(seed, &setting, BadDay { span_ms: 600_000, events: 20, per_thousand: 0 });
            for (place, moment) in plan.moments.iter().enumerate() {
                let Act::Revoke(path) = &moment.act else { continue };
                revoked += 1;
                let back = |later: &Moment| matches!(&later.act, Act::Regrant(other) if other == path) && later.at_ms >= moment.at_ms;
                assert!(plan.moments[place..].iter().any(back), "seed {seed}: {path} stays away");
            }
            let hangs = plan.tasks.iter().any(|fault| fault.twist == Some(TaskTwist::Hang));
            assert_eq!(plan.moments.iter().any(|moment| matches!(moment.act, Act::KillTask(100))), hangs, "seed {seed}");
            twists.extend(plan.tasks.into_iter().filter_map(|fault| fault.twist));
        }
        assert!(revoked > 0);
        for twist in [TaskTwist::Fail("start failed: QEMU exited with code 1".to_owned()), TaskTwist::Hang, TaskTwist::Warnings(1)] {
            assert!(twists.contains(&twist), "{twist:?} never comes up");
        }
    }
}
