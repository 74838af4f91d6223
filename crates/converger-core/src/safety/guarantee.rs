//! Checks the guarantees on a finished plan, independently of the planner's functions.
//!
//! A correct planner never violates them. These checks stop the plan of a faulty one.

use crate::action::{Change, ClonedDisks, FieldChange, MigrationMode};
use crate::desired::DesiredGuest;
use crate::guest::{NodeName, RunState, Vmid};
use crate::normalize::{Field, FieldValue};
use crate::observe::{Observation, ObservedGuest, ObservedStatus, PendingChange, Reading};
use crate::plan::{Plan, Step, Verdict};
use crate::policy::{Circumstances, HOLD_TAG, OwnGuest, OwnWrite, Rules};
use crate::refusal::Refusal;
use crate::safety::GuestJudgement;

/// Whether the steps of a guest break a guarantee.
type GuaranteeCheck = fn(&GuestCase<'_>) -> bool;

const CHECKS: [(&str, GuaranteeCheck); 4] = [
    ("G1", |case| if case.is_new() { !case.is_source_known() } else { !case.is_fully_known() }),
    ("G2", |case| if case.is_new() { !case.observation.complete || case.row.is_some() } else { case.row.is_none() }),
    ("G3", |case| case.interrupts_protected() || case.removes_protection()),
    ("G12", |case| case.is_blocked()),
];

/// One guest with steps.
struct GuestCase<'p> {
    guest: &'p DesiredGuest,
    steps: &'p [Step],
    row: Option<&'p ObservedGuest>,
    observation: &'p Observation,
    rules: &'p Rules,
    /// Whether the guest is held although the judgement leaves it its steps.
    is_held: bool,
}

/// The guarantees that the steps of a plan break. `refused` are the guests whose steps the judgement refuses because of holds.
pub(super) fn find_violations(plan: &Plan, circumstances: &Circumstances, refused: &[GuestJudgement]) -> Vec<Refusal> {
    let is_held = |vmid: Vmid| circumstances.holds_on(vmid).next().is_some() && refused.iter().all(|guest| guest.vmid != vmid);
    let found = CHECKS.iter().map(|(guarantee, check)| (*guarantee, guests_breaking(plan, &is_held, *check)));
    found.filter(|(_, guests)| !guests.is_empty()).map(|(guarantee, guests)| Refusal::guarantee_broken(guarantee, guests)).collect()
}

fn guests_breaking(plan: &Plan, is_held: &dyn Fn(Vmid) -> bool, is_broken: GuaranteeCheck) -> Vec<Vmid> {
    let cases = plan.desired().guests().iter().zip(plan.verdicts()).filter_map(|(guest, verdict)| match verdict {
        Verdict::Steps(steps) => {
            let observation = plan.observation();
            Some(GuestCase {
                guest,
                steps,
                row: observation.find(guest.vmid),
                observation,
                rules: plan.rules(),
                is_held: is_held(guest.vmid),
            })
        }
        _ => None,
    });
    cases.filter(|case| is_broken(case)).map(|case| case.guest.vmid).collect()
}

impl GuestCase<'_> {
    /// Whether the observation is complete, everything needed of the guest was read, and the guest is the declared one.
    fn is_fully_known(&self) -> bool {
        let Some(row) = self.row else { return false };
        let reading = self.observation.quorate && self.observation.complete;
        let online = self.observation.nodes.get(row.node).is_some_and(|node| node.online);
        let status = matches!(row.status, ObservedStatus::Known(state) if self.steps.first().is_some_and(|step| step.from == state));
        let guards = row.lock.is_read() && row.ha.is_read() && row.template.is_read() && row.protection.is_read();
        let values = row.tags.is_read() && row.pending.is_read() && (row.config.is_read() || !self.writes_config());
        let values = values && !self.writes_not_understood(row) && !self.writes_tags_of_unknown_case();
        reading && online && status && guards && values && self.is_declared_guest(row)
    }

    /// Whether the steps make the guest. Then it must be proven missing, and its first step must be the one that makes it.
    fn is_new(&self) -> bool {
        matches!(self.steps.first().map(|step| &step.change), Some(Change::Clone(_)))
    }

    /// Whether everything needed of the source of a new guest was read, and nobody else works on it.
    fn is_source_known(&self) -> bool {
        let Some(Change::Clone(clone)) = self.steps.first().map(|step| &step.change) else { return false };
        let Some(row) = self.observation.find(clone.source.vmid) else { return false };
        let reading = self.observation.quorate && self.observation.complete;
        let is_online = |name: &NodeName| self.observation.nodes.iter().any(|node| node.name == *name && node.online);
        let online = is_online(&clone.source.node) && is_online(&clone.node);
        let is_same =
            matches!(&row.identity, Reading::Read(identity) if **identity == clone.source.identity) && row.kind == clone.source.kind;
        let guards = matches!(row.lock, Reading::Read(None)) && row.protection.is_read() && row.tags.is_read();
        // A clone has the protection of its source, so it must be declared protected too.
        let source_protects =
            row.protection == Reading::Read(true) || row.current_and_pending_tags().any(|tag| self.rules.is_protecting_tag(tag));
        let guards = guards && (!source_protects || self.is_declared_protected());
        let is_linked_to_template = clone.disks == ClonedDisks::Full || row.template == Reading::Read(true);
        let is_known = matches!(row.status, ObservedStatus::Known(_));
        reading && online && is_same && guards && is_linked_to_template && is_known
    }

    fn is_declared_guest(&self, row: &ObservedGuest) -> bool {
        let named = row.name.as_ref().is_some_and(|seen| self.guest.name.as_ref().is_none_or(|name| name.as_str() == &**seen));
        let pinned = self.guest.identity.as_ref().is_none_or(|pinned| match &row.identity {
            Reading::Read(seen) => pinned
                .marks()
                .into_iter()
                .zip(seen.marks())
                .all(|(pinned_mark, seen_mark)| pinned_mark.1.is_none() || pinned_mark == seen_mark),
            Reading::Unread => false,
        });
        row.kind == self.guest.kind && named && pinned
    }

    /// Whether a step writes keys that are read with the config; tags are read with the guest.
    fn writes_config(&self) -> bool {
        let provisions = self.steps.iter().any(|step| matches!(step.change, Change::Provision(_)));
        provisions || self.config_writes().flatten().any(|field| field.field != Field::Tags)
    }

    /// Whether a step replaces a value that is not understood, so that the effect of the step is unknown.
    fn writes_not_understood(&self, row: &ObservedGuest) -> bool {
        let Reading::Read(config) = &row.config else { return false };
        self.config_writes().flatten().any(|change| config.not_understood(change.field).is_some())
    }

    /// Whether a step writes tags whose stored letter case is unknown.
    fn writes_tags_of_unknown_case(&self) -> bool {
        let is_open = |value: &Option<FieldValue>| matches!(value, Some(FieldValue::Tags(tags)) if tags.has_upper_case());
        self.observation.tag_case.is_none() && self.tag_writes().any(is_open)
    }

    fn config_writes(&self) -> impl Iterator<Item = &[FieldChange]> {
        self.steps.iter().filter_map(|step| match &step.change {
            Change::ConfigSet(fields) => Some(&**fields),
            _ => None,
        })
    }

    /// The tags that the steps write.
    fn tag_writes(&self) -> impl Iterator<Item = &Option<FieldValue>> {
        let written = self.config_writes().flatten().filter(|field| field.field == Field::Tags).map(|field| &field.after);
        let provisioned = self.steps.iter().filter_map(|step| match &step.change {
            Change::Provision(provisioning) => provisioning.fields.iter().find(|setting| setting.field == Field::Tags),
            _ => None,
        });
        written.chain(provisioned.map(|setting| &setting.wanted))
    }

    fn interrupts_protected(&self) -> bool {
        let goes_down = self.steps.iter().any(|step| match &step.change {
            Change::Shutdown { .. } | Change::Stop | Change::Reboot { .. } | Change::SnapshotRollback(_) => true,
            Change::Migrate(migration) => migration.mode != MigrationMode::Online,
            Change::ConfigSet(_)
            | Change::Start
            | Change::SnapshotCreate(_)
            | Change::SnapshotDelete(_)
            | Change::DiskGrow(_)
            | Change::Clone(_)
            | Change::Provision(_) => false,
        });
        goes_down && self.is_protected()
    }

    /// Whether the guest is protected. Evaluates the rules itself instead of calling [`Rules::protection_grounds`].
    fn is_protected(&self) -> bool {
        let rules = self.rules;
        let begins = |name: &str| {
            let name = name.trim_start().to_ascii_lowercase();
            rules.names().iter().any(|prefix| name.starts_with(&**prefix))
        };
        let declared = self.guest.name.as_ref().is_some_and(|name| begins(name.as_str()));
        let seen = self.row.is_some_and(|row| {
            let tagged = row.current_and_pending_tags().any(|tag| rules.is_protecting_tag(tag));
            // An unread identity may be that of the guest that this program runs in.
            let is_own_guest = rules.machine().is_some_and(|host| match &row.identity {
                Reading::Read(identity) => host.match_guest(identity, &row.macs) != OwnGuest::No,
                Reading::Unread => true,
            });
            row.name.as_deref().is_some_and(begins) || tagged || row.protection == Reading::Read(true) || is_own_guest
        });
        let wanted = |value: &Option<FieldValue>| matches!(value, Some(FieldValue::Tags(tags)) if rules.tags().iter().any(|tag| tags.contains_ignore_case(tag)));
        let tagged = self.guest.config.iter().any(|setting| wanted(&setting.wanted));
        declared || tagged || seen || rules.ids().contains(&self.guest.vmid)
    }

    /// Whether a new guest is declared to be protected, by its name, its id or the tags that it gets.
    fn is_declared_protected(&self) -> bool {
        let is_protecting = |value: &Option<FieldValue>| matches!(value, Some(FieldValue::Tags(tags)) if tags.iter().any(|tag| self.rules.is_protecting_tag(tag)));
        self.is_protected() || self.tag_writes().any(is_protecting)
    }

    /// Whether a step removes a protecting tag.
    fn removes_protection(&self) -> bool {
        let Some(row) = self.row else { return false };
        let written: Vec<&Option<FieldValue>> = self.tag_writes().collect();
        let waiting = match &row.pending {
            Reading::Read(pending) => pending.iter().find_map(|entry| match entry {
                PendingChange::Known(Field::Tags, value) => Some(value),
                _ => None,
            }),
            Reading::Unread => None,
        };
        // Written tags replace pending ones; if none are written, a step may apply the pending ones.
        let afters = if written.is_empty() { waiting.into_iter().collect() } else { written };
        let stays =
            |tag: &str| afters.iter().all(|after| matches!(after, Some(FieldValue::Tags(tags)) if tags.iter().any(|own| own == tag)));
        !afters.is_empty() && row.current_and_pending_tags().any(|tag| self.rules.is_protecting_tag(tag) && !stays(tag))
    }

    /// Whether others control the guest: it is locked, held, a template, owned by high availability, or has foreign pending changes.
    fn is_blocked(&self) -> bool {
        let Some(row) = self.row else { return false };
        let locked = matches!(row.lock, Reading::Read(Some(_)));
        let held = self.is_held || row.current_and_pending_tags().any(|tag| tag.eq_ignore_ascii_case(HOLD_TAG));
        locked || held || row.template == Reading::Read(true) || self.is_ha_owned(row) || self.has_foreign_pending(row)
    }

    fn is_ha_owned(&self, row: &ObservedGuest) -> bool {
        let Reading::Read(Some(ha)) = &row.ha else { return false };
        let power = self.steps.iter().any(|step| {
            !matches!(
                step.change,
                Change::ConfigSet(_)
                    | Change::SnapshotCreate(_)
                    | Change::SnapshotDelete(_)
                    | Change::DiskGrow(_)
                    | Change::Clone(_)
                    | Change::Provision(_)
            )
        });
        match ha.state.as_deref() {
            Some("ignored") => false,
            Some("started" | "enabled") => power || row.status != ObservedStatus::Known(RunState::Running),
            Some("stopped" | "disabled") => power || row.status != ObservedStatus::Known(RunState::Stopped),
            _ => true,
        }
    }

    fn has_foreign_pending(&self, row: &ObservedGuest) -> bool {
        let Reading::Read(pending) = &row.pending else { return false };
        let is_left_pending =
            |step: &Step| matches!(step.change, Change::SnapshotCreate(_) | Change::SnapshotDelete(_) | Change::DiskGrow(_));
        if self.steps.iter().all(is_left_pending) {
            return false;
        }
        let is_declared = |key: &str| self.guest.config.iter().any(|setting| setting.field.word() == key);
        let is_own = |entry: &PendingChange| match entry {
            PendingChange::Known(field, value) => self.rules.own_writes().contains(&OwnWrite::new(self.guest.vmid, *field, value.as_ref())),
            PendingChange::Other(_) => false,
        };
        pending.iter().any(|entry| !is_declared(entry.key()) && !is_own(entry))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::action::FieldChange;
    use crate::guest::RunState;
    use crate::normalize::{ChangeEffect, WordSet};
    use crate::plan::StepReason;
    use crate::policy::{BlockedBy, GuestBlock, MachineIdentity, MachineMark, Rules};
    use crate::refusal::{Datum, RefusalCode};
    use crate::testing::TestWorld;

    /// A world with one converged guest; each test changes one detail of it.
    fn sample_world() -> TestWorld {
        TestWorld {
            desired: json!({ "version": 1, "environment": "lab", "guests": [{ "vmid": 100, "kind": "qemu", "name": "web" }] }),
            observation: json!({ "schema": "converger.observation/1", "environment": "lab", "complete": true, "quorate": true,
                "nodes": [{ "name": "pve1", "online": true }],
                "guests": [{ "vmid": 100, "kind": "qemu", "name": "web", "node": "pve1", "status": "running", "lock": null, "ha": null,
                    "template": false, "protection": false, "tags": ["edge"], "pending": [], "config": {} }] }),
            rules: Rules::default(),
        }
    }

    fn world_with_row(key: &str, value: Json) -> TestWorld {
        let mut world = sample_world();
        world.observation["guests"][0][key] = value;
        world
    }

    fn world_without(key: &str) -> TestWorld {
        let mut world = sample_world();
        world.observation["guests"][0].as_object_mut().expect("a row").remove(key);
        world
    }

    fn world_named(name: &str) -> TestWorld {
        let mut world = world_with_row("name", json!(name));
        world.desired["guests"][0]["name"] = json!(name);
        world
    }

    fn world_with_observation(key: &str, value: Json) -> TestWorld {
        let mut world = sample_world();
        world.observation[key] = value;
        world
    }

    fn set_tags(after: &[&str]) -> Change {
        let tags = WordSet::new(after.iter().map(|tag| (*tag).into()).collect());
        let after = (!tags.is_empty()).then_some(FieldValue::Tags(tags));
        Change::ConfigSet(Box::new([FieldChange {
            field: Field::Tags,
            before: None,
            after,
            pending: None,
            effect: ChangeEffect::Recorded,
        }]))
    }

    fn set_cores() -> Change {
        let after = Some(FieldValue::Count(4));
        Change::ConfigSet(Box::new([FieldChange {
            field: Field::Cores,
            before: None,
            after,
            pending: None,
            effect: ChangeEffect::AtRestart,
        }]))
    }

    fn interruptions() -> [Change; 3] {
        [Change::Stop, Change::Shutdown { timeout_secs: 1 }, Change::Reboot { timeout_secs: 1 }]
    }

    /// The plan that a planner without any checks would make for this world.
    fn forged_plan(world: &TestWorld, changes: Vec<Change>) -> Plan {
        let step = |change| Step { change, reason: StepReason::StateDiffers, from: RunState::Running, wait: Box::new([]) };
        let steps = Verdict::Steps(changes.into_iter().map(step).collect());
        world.parse().expect("it parses").plan().with_verdicts(vec![steps])
    }

    fn find_violations_without_holds(plan: &Plan) -> Vec<Refusal> {
        find_violations(plan, &Circumstances::default(), &[])
    }

    #[track_caller]
    fn check(world: &TestWorld, change: Change, broken: &[&str]) {
        let plan = forged_plan(world, vec![change.clone()]);
        let found = find_violations_without_holds(&plan);
        let names: Vec<&str> = found.iter().map(guarantee_of).collect();
        assert_eq!(names, broken, "{change:?} on {}", world.observation);
    }

    fn guarantee_of(refusal: &Refusal) -> &str {
        assert_eq!(refusal.code(), RefusalCode::GuaranteeBroken);
        match refusal.evidence() {
            [("guarantee", Datum::Text(name)), ("guests", Datum::Ids(guests))] if guests.len() == 1 => name,
            other => panic!("the evidence does not name one guest: {other:?}"),
        }
    }

    #[test]
    fn accepts_steps_on_a_fully_known_guest() {
        for change in interruptions().into_iter().chain([Change::Start, set_cores(), set_tags(&[])]) {
            check(&sample_world(), change, &[]);
        }
    }

    #[test]
    fn g1_detects_a_step_on_an_incomplete_observation() {
        let worlds = [
            world_with_observation("quorate", json!(false)),
            world_with_observation("complete", json!(false)),
            world_with_observation("nodes", json!([{ "name": "pve1", "online": false }])),
            world_with_row("status", json!("unknown")),
            world_with_row("name", json!("other")),
            world_without("lock"),
            world_without("ha"),
            world_without("template"),
            world_without("protection"),
            world_without("tags"),
            world_without("pending"),
        ];
        for world in worlds {
            check(&world, Change::Start, &["G1"]);
            check(&world, set_cores(), &["G1"]);
        }
        let container = world_with_observation(
            "guests",
            json!([{ "vmid": 100, "kind": "lxc", "name": "web", "node": "pve1", "status": "running", "lock": null,
            "ha": null, "template": false, "protection": false, "tags": [], "pending": [] }]),
        );
        check(&container, Change::Start, &["G1"]);
    }

    #[test]
    fn g1_detects_a_write_over_a_value_that_is_not_understood() {
        check(&world_with_row("not_understood", json!({ "cores": "many" })), set_cores(), &["G1"]);
        check(&world_with_row("not_understood", json!({ "boot": " " })), set_cores(), &[]);
        check(&world_with_row("not_understood", json!({ "cores": "many" })), Change::Start, &[]);
    }

    #[test]
    fn g1_detects_a_write_of_tags_with_unknown_letter_case() {
        check(&sample_world(), set_tags(&["Edge"]), &["G1"]);
        check(&sample_world(), set_tags(&["edge"]), &[]);
        for case in ["kept", "lowered"] {
            check(&world_with_observation("tag_case", json!(case)), set_tags(&["Edge"]), &[]);
        }
    }

    #[test]
    fn g2_detects_a_step_on_a_missing_guest() {
        check(&world_with_observation("guests", json!([])), Change::Start, &["G1", "G2"]);
    }

    #[test]
    fn g3_detects_an_interruption_of_a_protected_guest() {
        let mut listed = sample_world();
        listed.rules = Rules::new(vec![Vmid::new(100).expect("an id")], vec![], vec![]);
        let mut by_rules = world_named("Core-switch");
        by_rules.rules = Rules::new(vec![], vec!["core-".into()], vec![]);
        let mut renamed = world_with_row("name", json!("PROD-db"));
        renamed.desired["guests"][0] = json!({ "vmid": 100, "kind": "qemu", "identity": { "uuid": "a" } });
        renamed.observation["guests"][0]["identity"] = json!({ "uuid": "a" });
        let host = MachineIdentity::new([], ["00112233-4455-6677-8899-aabbccddeeff".into()]);
        let mut own_world = world_with_row("identity", json!({ "uuid": "00112233-4455-6677-8899-aabbccddeeff" }));
        own_world.rules = Rules::default().with_machine(host.clone());
        let mut perhaps_ours = sample_world();
        perhaps_ours.rules = Rules::default().with_machine(host);
        let mut untold = world_with_row("identity", json!({ "uuid": "another" }));
        untold.rules = Rules::default().with_machine(MachineIdentity::default().with_unreadable([MachineMark::FirmwareUuid]));
        let mut linked = world_with_row("identity", json!({ "uuid": "another" }));
        linked.observation["guests"][0]["macs"] = json!(["bc:24:11:00:00:01"]);
        linked.rules = Rules::default().with_machine(MachineIdentity::new(["bc:24:11:00:00:01".into()], []));
        let mut to_be_tagged = sample_world();
        to_be_tagged.desired["guests"][0]["config"] = json!({ "tags": ["edge", "prod"] });
        let worlds = [
            world_named("PROD-db"),
            world_named("prod-1"),
            world_with_row("tags", json!(["PROD"])),
            world_with_row("protection", json!(true)),
            listed,
            by_rules,
            renamed,
            own_world,
            perhaps_ours,
            untold,
            linked,
            to_be_tagged,
        ];
        for world in worlds {
            for change in interruptions() {
                check(&world, change, &["G3"]);
            }
            check(&world, Change::Start, &[]);
            check(&world, set_cores(), &[]);
        }
        for name in ["preprod-web", "prod", "production"] {
            check(&world_named(name), Change::Stop, &[]);
        }
    }

    #[test]
    fn g3_detects_an_interruption_after_a_harmless_step() {
        let plan = forged_plan(&world_named("prod-db"), vec![set_cores(), Change::Start, Change::Stop]);
        assert_eq!(find_violations_without_holds(&plan).iter().map(guarantee_of).collect::<Vec<_>>(), ["G3"]);
    }

    #[test]
    fn g3_detects_a_step_that_removes_a_protecting_tag() {
        let protected = world_with_row("tags", json!(["prod", "web"]));
        check(&protected, set_tags(&["web"]), &["G3"]);
        check(&protected, set_tags(&[]), &["G3"]);
        check(&protected, set_tags(&["prod"]), &[]);
        check(&world_with_row("tags", json!(["Prod"])), set_tags(&["prod"]), &["G3"]);
        check(&world_with_row("tags", json!(["production"])), set_tags(&[]), &[]);
    }

    #[test]
    fn g12_detects_a_step_that_a_hold_should_have_refused() {
        let (plan, vmid) = (forged_plan(&sample_world(), vec![Change::Start]), Vmid::new(100).expect("an id"));
        let hold = GuestBlock { by: BlockedBy::Operation("run-0".into()), vmid };
        let held = Circumstances { cluster: None, epoch: None, freeze: None, holds: vec![hold.clone()] };
        assert_eq!(find_violations(&plan, &held, &[]).iter().map(guarantee_of).collect::<Vec<_>>(), ["G12"]);
        let refused = GuestJudgement { refusals: vec![hold.refusal()], vmid };
        assert_eq!(find_violations(&plan, &held, &[refused]), []);
    }

    #[test]
    fn g12_detects_a_step_on_a_blocked_guest() {
        for world in [
            world_with_row("lock", json!("backup")),
            world_with_row("lock", json!("")),
            world_with_row("ha", json!({ "state": "migrate" })),
            world_with_row("ha", json!({})),
        ] {
            check(&world, set_cores(), &["G12"]);
        }
        check(&world_with_row("ha", json!({ "state": "started" })), set_cores(), &[]);
        check(&world_with_row("ha", json!({ "state": "ignored" })), Change::Stop, &[]);
    }

    #[test]
    fn g1_detects_a_write_without_a_read_config() {
        check(&world_without("config"), set_cores(), &["G1"]);
        check(&world_with_row("config", json!({ "cores": 2 })), set_cores(), &[]);
        check(&world_without("config"), set_tags(&["edge", "web"]), &[]);
    }

    #[test]
    fn g1_detects_a_step_on_a_guest_with_other_birth_marks() {
        let pinned = |identity: Json| {
            let mut world = world_with_row("identity", identity);
            world.desired["guests"][0]["identity"] = json!({ "uuid": "a" });
            world
        };
        check(&pinned(json!({ "uuid": "a" })), Change::Start, &[]);
        check(&pinned(json!({ "uuid": "b" })), Change::Start, &["G1"]);
        check(&pinned(json!({})), Change::Start, &["G1"]);
        let mut unread = pinned(json!({}));
        unread.observation["guests"][0].as_object_mut().expect("a row").remove("identity");
        check(&unread, Change::Start, &["G1"]);
    }

    #[test]
    fn g3_detects_a_second_write_that_removes_a_protecting_tag() {
        let plan = forged_plan(&world_with_row("tags", json!(["prod"])), vec![set_tags(&["prod", "web"]), set_tags(&["web"])]);
        assert_eq!(find_violations_without_holds(&plan).iter().map(guarantee_of).collect::<Vec<_>>(), ["G3"]);
    }

    #[test]
    fn reports_every_broken_guarantee() {
        let mut world = world_with_row("tags", json!(["prod"]));
        world.observation["guests"][0]["lock"] = json!("backup");
        world.observation["quorate"] = json!(false);
        let names: Vec<String> = find_violations_without_holds(&forged_plan(&world, vec![set_tags(&[]), Change::Stop]))
            .iter()
            .map(|refusal| guarantee_of(refusal).to_owned())
            .collect();
        assert_eq!(names, ["G1", "G3", "G12"]);
    }
}
