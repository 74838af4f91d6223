//! Applies the doctor's commands to the lab: afterwards nothing is missing, and no privilege was lost.

use std::collections::BTreeSet;

use converger_adapters::proxmox::doctor::{DoctorFinding, FindingLevel, PrivilegeUse};
use converger_lab::{AclSpec, Flavour, WorldSpec};

use crate::doctor_lab::{
    DoctorLab, DoctorVisit, FLAVOURS, WORLD, examine_lab, lab_setting, only_finding, remedy_lines, setting_with_roles, visit_findings,
};

/// Splits a line into words as a shell does.
fn shell_words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    for own in line.chars() {
        match (quote, own) {
            (None, '\'' | '"') => quote = Some(own),
            (Some(open), _) if open == own => quote = None,
            (None, ' ') => words.push(String::new()),
            _ => words.last_mut().expect("a word").push(own),
        }
    }
    words
}

/// Applies a `pveum` command to a setting.
fn apply_pveum_line(spec: &mut WorldSpec, line: &str) {
    let words = shell_words(line);
    let option = |name: &str| words.iter().position(|word| word == name).map(|index| words[index + 1].clone());
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["pveum", "role", verb @ ("add" | "modify"), role, ..] => {
            assert_eq!(*verb == "add", !spec.roles.contains_key(*role), "{line}");
            let own = spec.roles.entry((*role).to_owned()).or_default();
            own.extend(option("--privs").expect("privileges").split(' ').map(str::to_owned));
        }
        ["pveum", "acl", "modify", path, ..] => {
            for role in option("--roles").expect("roles").split(',') {
                let here_only = option("--propagate").as_deref() == Some("0");
                let (user, token) = (option("--users"), option("--tokens"));
                spec.acl.push(AclSpec { path: (*path).to_owned(), role: role.to_owned(), user, group: None, token, here_only });
            }
        }
        _ => panic!("not a line for pveum: {line}"),
    }
}

fn apply_remedy(mut spec: WorldSpec, finding: &DoctorFinding) -> WorldSpec {
    for line in remedy_lines(finding) {
        apply_pveum_line(&mut spec, line);
    }
    spec
}

/// The checks that passed.
fn passed_checks(found: &[DoctorFinding]) -> BTreeSet<&'static str> {
    found
        .iter()
        .filter(|finding| finding.level == FindingLevel::Ok && finding.check.starts_with("may-"))
        .map(|finding| finding.check)
        .collect()
}

/// Applies the remedies of the privilege findings one by one until all pass; returns the number of rounds.
fn apply_all_remedies(mut spec: WorldSpec, visit: &DoctorVisit, name: &str) -> usize {
    let mut before = BTreeSet::new();
    for round in 0..20 {
        let found = visit_findings(&DoctorLab::new(&spec), visit);
        let now = passed_checks(&found);
        assert!(now.is_superset(&before), "{name}, round {round}: {:?} is gone", before.difference(&now));
        let Some(open) = found.iter().find(|finding| finding.check.starts_with("may-") && finding.level != FindingLevel::Ok) else {
            assert_eq!(now.len(), 15, "{name}: {now:?}");
            return round;
        };
        assert!(open.level != FindingLevel::Unknown && !remedy_lines(open).is_empty(), "{name}: {open:#?}");
        before = now;
        spec = apply_remedy(spec, open);
        let after = visit_findings(&DoctorLab::new(&spec), visit);
        assert_eq!(only_finding(&after, open.check).level, FindingLevel::Ok, "{name}: {open:#?} {:#?}", only_finding(&after, open.check));
    }
    panic!("{name}: the remedies do not converge");
}

/// Initial settings from which a token can get all privileges, each with different existing entries.
fn initial_settings(flavour: Flavour) -> Vec<(&'static str, WorldSpec)> {
    let nothing = lab_setting(flavour, WORLD);
    let mut whole = nothing.clone();
    whole.tokens.values_mut().for_each(|token| token.full = true);
    let mut of_owner = nothing.clone();
    apply_pveum_line(&mut of_owner, "pveum acl modify / --users svc@pve --roles Administrator");
    let mut in_pool = setting_with_roles(flavour, &[("/", "PVEAuditor"), ("/pool/p", "PVEVMUser")]);
    in_pool.pools = WorldSpec::from_yaml("pools: { p: { guests: [100] } }").expect("pools").pools;
    let mut here_only = nothing.clone();
    for own in ["--tokens svc@pve!probe", "--users svc@pve"] {
        apply_pveum_line(&mut here_only, &format!("pveum acl modify / {own} --roles PVEAdmin --propagate 0"));
    }
    vec![
        ("nothing", nothing),
        ("without separation", whole),
        ("the user has everything", of_owner),
        ("auditor at the root", setting_with_roles(flavour, &[("/", "PVEAuditor")])),
        ("entries on /vms", setting_with_roles(flavour, &[("/", "PVEAuditor"), ("/vms", "PVEVMUser")])),
        ("entries on a guest", setting_with_roles(flavour, &[("/", "PVEAuditor"), ("/vms/100", "PVEVMUser")])),
        ("less on a guest", setting_with_roles(flavour, &[("/", "PVEAuditor"), ("/vms/100", "PVETemplateUser")])),
        ("a pool", in_pool),
        ("not spread", here_only),
    ]
}

#[test]
fn remedy_lines_grant_the_rest_and_revoke_nothing() {
    for flavour in FLAVOURS {
        for (name, spec) in initial_settings(flavour) {
            let rounds = apply_all_remedies(spec, &DoctorVisit::default(), &format!("{flavour:?} {name}"));
            // Some remedies meet several needs: starting and stopping need the same privilege, and options and disk space are shared too.
            assert!((1..=13).contains(&rounds), "{flavour:?} {name}: {rounds}");
        }
    }
}

/// One block of commands grants everything that plans may need, and nothing else.
#[test]
fn one_block_grants_all_that_plans_need_and_no_more() {
    let only = "  - { vmid: 100, kind: qemu, name: web, state: running, config: { cores: 2 } }";
    for (flavour, declared) in FLAVOURS.into_iter().flat_map(|flavour| [None, Some(only)].map(|declared| (flavour, declared))) {
        for (name, mut spec) in initial_settings(flavour) {
            let visit = DoctorVisit { declared, ..DoctorVisit::default() };
            let before = examine_lab(&DoctorLab::new(&spec), &visit);
            let open = before.findings.iter().any(|own| own.part == Some(PrivilegeUse::Apply) && own.level != FindingLevel::Ok);
            assert_eq!(before.grant.is_some(), open, "{flavour:?} {name}");
            let lines: Vec<String> = before.grant.iter().flat_map(|grant| &grant.lines).map(|line| line.text.clone()).collect();
            lines.iter().for_each(|line| apply_pveum_line(&mut spec, line));
            let after = examine_lab(&DoctorLab::new(&spec), &visit);
            let open: Vec<&DoctorFinding> =
                after.findings.iter().filter(|own| own.part == Some(PrivilegeUse::Apply) && own.level != FindingLevel::Ok).collect();
            assert!(open.is_empty() && after.grant.is_none(), "{flavour:?} {name}: {open:#?} after {lines:#?}");
            let is_planned = |line: &&String| !["Snapshot", "Rollback", "Clone", "Migrate", "Grow"].iter().any(|verb| line.contains(verb));
            assert!(lines.iter().all(|line| is_planned(&line)), "{flavour:?} {name}: {lines:#?}");
            let is_narrow = |line: &&String| !["Memory", "Options", "Startup", "Boot"].iter().any(|verb| line.contains(verb));
            assert!(declared.is_none() || lines.iter().all(|line| is_narrow(&line)), "{flavour:?} {name}: {lines:#?}");
        }
    }
}

#[test]
fn remedy_lines_work_without_a_scope() {
    for (name, spec) in initial_settings(Flavour::V9) {
        let rounds = apply_all_remedies(spec, &DoctorVisit { scope: None, ..DoctorVisit::default() }, name);
        assert!((1..=13).contains(&rounds), "{name}: {rounds}");
    }
}

#[test]
fn remedy_lines_grant_no_more_than_needed() {
    let mut spec = lab_setting(Flavour::V9, WORLD);
    let found = visit_findings(&DoctorLab::new(&spec), &DoctorVisit::default());
    spec = apply_remedy(spec, only_finding(&found, "may-read"));
    assert_eq!(spec.roles.get("ConvergerRead").map(Vec::as_slice), Some(["Sys.Audit".to_owned(), "VM.Audit".to_owned()].as_slice()));
    let found = visit_findings(&DoctorLab::new(&spec), &DoctorVisit::default());
    assert_eq!(passed_checks(&found), BTreeSet::from(["may-read"]), "the role for reading only permits reading");
    spec = apply_remedy(spec, only_finding(&found, "may-set-startup"));
    let startup: Vec<(&str, bool)> =
        spec.acl.iter().filter(|entry| entry.role == "ConvergerStartup").map(|entry| (entry.path.as_str(), entry.here_only)).collect();
    assert_eq!(startup, [("/", true), ("/", true)], "Sys.Modify is granted on / and does not propagate");
}

#[test]
fn completes_or_reuses_an_existing_role() {
    let mut spec = lab_setting(Flavour::V8, WORLD);
    spec.roles.insert("ConvergerRead".into(), vec!["VM.Audit".into()]);
    let found = visit_findings(&DoctorLab::new(&spec), &DoctorVisit::default());
    assert_eq!(
        remedy_lines(only_finding(&found, "may-read"))[0],
        "pveum role modify ConvergerRead --append 1 --privs \"Sys.Audit VM.Audit\""
    );
    spec.roles.insert("ConvergerRead".into(), vec!["VM.Audit".into(), "Sys.Audit".into(), "Pool.Audit".into()]);
    let found = visit_findings(&DoctorLab::new(&spec), &DoctorVisit::default());
    let expected =
        ["pveum acl modify / --tokens 'svc@pve!probe' --roles ConvergerRead", "pveum acl modify / --users 'svc@pve' --roles ConvergerRead"];
    assert_eq!(remedy_lines(only_finding(&found, "may-read")), expected);
}
