//! When a declared guest is made from a template, when its making continues, and when it is never made.

use serde_json::json;

use super::*;
use crate::guest::{GuestIdentity, GuestKind, Vmid};
use crate::policy::{Birth, Circumstances, Limits};
use crate::refusal::Datum;
use crate::safety::{Judged, judge};
use crate::testing::RequestWorld;

const TEMPLATE_UUID: &str = "0000000900-0000-4000-8000-000000000000";
const OWN_UUID: &str = "0000000120-0000-4000-8000-000000000000";

/// desired.yaml with guest 120, made from the template 900; `more` are lines of the guest, `from` lines of its `from`.
fn declare(more: &str, from: &str) -> String {
    format!(
        "version: 1\nenvironment: lab\nguests:\n  - vmid: 120\n    kind: qemu\n    name: web-7\n{more}    from:\n      template: 900\n\
         {from}"
    )
}

const PIN: &str = "      identity: { uuid: 0000000900-0000-4000-8000-000000000000, ctime: 1700000900 }\n";
const GROW: &str = "      disk-size: 40GiB\n";
const RUNNING: &str = "    state: running\n    config: { cores: 4 }\n";

fn declare_full() -> String {
    declare(RUNNING, &format!("{PIN}{GROW}      bridge: vmbr1\n"))
}

/// What is planned for guest 120: changes, or codes of refusals.
fn outcome(world: &RequestWorld, yaml: &str) -> Vec<&'static str> {
    let plan = world.plan_desired(yaml);
    let (_, verdict) = plan.guests().find(|(guest, _)| guest.vmid.get() == 120).expect("it is declared");
    match verdict {
        Verdict::Steps(steps) => steps.iter().map(|step| step.change.word()).collect(),
        Verdict::Refused(refusals) => refusals.iter().map(|refusal| refusal.code().word()).collect(),
        Verdict::Converged { .. } => vec!["converged"],
    }
}

fn check(yaml: &str, change: impl FnOnce(&mut RequestWorld), expected: &[&str]) {
    let mut world = RequestWorld::default();
    change(&mut world);
    assert_eq!(outcome(&world, yaml), expected, "{yaml}");
}

fn own_marks() -> GuestIdentity {
    GuestIdentity::Qemu { uuid: Some(OWN_UUID.into()), ctime: Some(1_763_000_500) }
}

fn birth() -> Birth {
    Birth {
        grown: true,
        identity: Some(own_marks()),
        provisioned: true,
        request: None,
        started: false,
        vmid: Vmid::new(120).expect("an id"),
    }
}

/// Remembers a birth of guest 120.
fn remember(world: &mut RequestWorld, birth: Birth) {
    world.rules = world.rules.clone().with_births(vec![birth]);
}

/// A stopped guest 120 as the clone left it.
fn add_own_guest(world: &mut RequestWorld) {
    let mut born = world.guest_mut(101).clone();
    (born["vmid"], born["name"]) = (json!(120), json!("web-7"));
    born["identity"] = json!({ "ctime": 1_763_000_500, "uuid": OWN_UUID });
    world.observation["guests"].as_array_mut().expect("rows").insert(3, born);
}

#[test]
fn makes_a_declared_guest_that_never_existed() {
    check(&declare_full(), |_| (), &["clone", "provision", "disk.grow", "start"]);
    check(&declare("    state: stopped\n", PIN), |_| (), &["clone"]);
    check(&declare("", PIN), |_| (), &["clone"]);
    let plan = RequestWorld::default().plan_desired(&declare_full());
    let Verdict::Steps(steps) = &plan.verdicts()[0] else { panic!("no steps") };
    assert!(steps.iter().all(|step| step.reason == StepReason::MadeFromTemplate));
    assert_eq!(steps[0].class(), ChangeClass::Disruptive, "nothing makes a guest without a person");
    let Change::Clone(clone) = &steps[0].change else { panic!("no clone") };
    assert!(clone.provisions && clone.grows);
    let judged = judge(plan, Limits::default(), Circumstances::default());
    assert!(matches!(judged, Judged::Safe(_)), "{:?}", judged.judgement().refusals());
}

/// A guest that is lost comes back from its backup, not as an empty guest under its name.
#[test]
fn g2_never_makes_a_guest_again() {
    let yaml = declare_full();
    check(&yaml, |world| remember(world, birth()), &["guest-missing"]);
    for left in [Birth { provisioned: false, ..birth() }, Birth { identity: None, ..birth() }, Birth { grown: false, ..birth() }] {
        check(&yaml, |world| remember(world, left), &["guest-missing"]);
    }
    let pinned = declare("    identity: { uuid: 0000000120-0000-4000-8000-000000000000 }\n", PIN);
    check(&pinned, |_| (), &["guest-missing"]);
    let mut world = RequestWorld::default();
    remember(&mut world, birth());
    let plan = world.plan_desired(&yaml);
    let Verdict::Refused(refusals) = &plan.verdicts()[0] else { panic!("a refusal") };
    assert!(format!("{:?}", refusals[0].evidence()).contains("made before"), "{:?}", refusals[0].evidence());
}

#[test]
fn g1_makes_no_guest_that_may_exist() {
    let unlisted = json!([{ "vmid": 120, "cause": "node-offline" }]);
    check(
        &declare_full(),
        |world| {
            world.observation["complete"] = json!(false);
            world.observation["unlisted"] = unlisted;
        },
        &["observation-incomplete", "guest-unknown"],
    );
}

#[test]
fn refuses_a_template_that_is_not_pinned_and_shows_its_marks() {
    let plan = RequestWorld::default().plan_desired(&declare(RUNNING, ""));
    let Verdict::Refused(refusals) = &plan.verdicts()[0] else { panic!("a refusal") };
    assert_eq!(refusals[0].code().word(), "template-unpinned");
    let evidence = format!("{:?}", refusals[0].evidence());
    assert!(evidence.contains(TEMPLATE_UUID) && evidence.contains("1700000900"), "{evidence}");
    assert!(refusals[0].evidence().iter().any(|(_, datum)| matches!(datum, Datum::Text(_))), "{evidence}");
}

#[test]
fn refuses_a_template_that_is_not_the_declared_one() {
    let yaml = declare_full();
    check(&yaml, |world| world.guest_mut(900)["identity"]["ctime"] = json!(1_700_000_901), &["template-mismatch"]);
    check(&yaml, |world| world.guest_mut(900)["template"] = json!(false), &["template-unusable"]);
    check(&yaml, |world| world.guest_mut(900)["status"] = json!("unknown"), &["template-unusable"]);
    check(&yaml, |world| drop(world.guest_mut(900).as_object_mut().expect("a row").remove("identity")), &["template-unusable"]);
    check(&yaml.replace("template: 900", "template: 901"), |_| (), &["template-unusable"]);
    let container = declare("", "      identity: { uuid: u }\n").replace("template: 900", "template: 102");
    check(&container, |_| (), &["template-unusable"]);
}

/// The checks of the action `vm.clone` are the same here.
#[test]
fn refuses_what_the_clone_action_refuses() {
    let yaml = declare_full();
    check(&yaml, |world| world.guest_mut(900)["lock"] = json!("backup"), &["guest-locked"]);
    check(&yaml, |world| world.guest_mut(900)["protection"] = json!(true), &["protection-copied"]);
    check(&yaml, |world| world.observation["nodes"][0]["online"] = json!(false), &["node-offline"]);
    check(&declare("", &format!("{PIN}      disk-size: 8GiB\n")), |_| (), &["disk-shrink"]);
    check(&declare("", &format!("{PIN}      disk-size: 2TiB\n")), |_| (), &["storage-full"]);
}

#[test]
fn g13_continues_with_its_own_guest_only() {
    let yaml = declare_full();
    let left = |birth: Birth| {
        let mut world = RequestWorld::default();
        add_own_guest(&mut world);
        remember(&mut world, birth);
        outcome(&world, &yaml)
    };
    assert_eq!(left(Birth { provisioned: false, grown: false, ..birth() }), ["provision", "disk.grow", "start"]);
    assert_eq!(left(Birth { grown: false, ..birth() }), ["disk.grow", "config.set", "start"]);
    assert_eq!(left(birth()), ["config.set", "start"], "it is made, and compared like every other guest");
    // The id was recycled, or this program did not make the guest: it is an ordinary guest, which is not provisioned.
    let other_marks = GuestIdentity::Qemu { uuid: Some(OWN_UUID.into()), ctime: Some(1_763_000_501) };
    let other = Birth { identity: Some(other_marks), provisioned: false, grown: false, ..birth() };
    assert_eq!(left(other), ["config.set", "start"]);
    let mut unknown = RequestWorld::default();
    add_own_guest(&mut unknown);
    assert_eq!(outcome(&unknown, &yaml), ["config.set", "start"]);
}

#[test]
fn does_not_provision_a_guest_that_others_started() {
    let mut world = RequestWorld::default();
    add_own_guest(&mut world);
    world.guest_mut(120)["status"] = json!("running");
    remember(&mut world, Birth { provisioned: false, grown: false, ..birth() });
    assert_eq!(outcome(&world, &declare_full()), ["run-state-unsuitable"]);
    remember(&mut world, Birth { grown: false, ..birth() });
    assert_eq!(outcome(&world, &declare_full()), ["disk.grow", "config.set"], "a disk grows while the guest runs");
}

/// A guest that a request began to make is continued by this request, not by the declared state.
#[test]
fn leaves_the_guest_of_an_unfinished_request_alone() {
    let mut world = RequestWorld::default();
    add_own_guest(&mut world);
    let request = world.plan_action("vm.clone", GuestKind::Qemu, 900, &[("newid", "120"), ("name", "web-7")]).intent().digest();
    remember(&mut world, Birth { provisioned: false, request: request.ok(), ..birth() });
    assert_eq!(outcome(&world, &declare_full()), ["provisioning-unfinished"]);
}

/// It starts after the guests that it depends on, and they are checked where the plan makes them.
#[test]
fn a_new_guest_may_depend_on_a_new_guest() {
    let second = declare("    after: [120]\n    state: running\n", PIN).replace("vmid: 120", "vmid: 121").replace("web-7", "web-8");
    let second = second.split("guests:\n").nth(1).expect("its lines");
    let plan = RequestWorld::default().plan_desired(&format!("{}{second}", declare_full()));
    let words: Vec<Vec<&str>> = plan
        .verdicts()
        .iter()
        .map(|verdict| match verdict {
            Verdict::Steps(steps) => steps.iter().map(|step| step.change.word()).collect(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(words, [vec!["clone", "provision", "disk.grow", "start"], vec!["clone", "start"]]);
    // If the guest that it depends on cannot be made, it is made as well, but not started.
    let unpinned = format!("{}{second}", declare(RUNNING, ""));
    let plan = RequestWorld::default().plan_desired(&unpinned);
    assert!(matches!(&plan.verdicts()[1], Verdict::Refused(_)), "{:?}", plan.verdicts()[1]);
}
