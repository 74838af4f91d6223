//! The doctor's findings about token and privileges, in worlds that lack them and in worlds that do not.

use converger_adapters::proxmox::doctor::{DoctorFinding, FindingLevel, PrivilegeUse};
use converger_lab::{Flavour, GuestSpec, LabGuestKind, WorldEvent};

use crate::doctor_lab::{
    DoctorLab, DoctorVisit, FLAVOURS, TOKEN, WORLD, lab_setting, levels_of, only_finding, remedy_lines, setting_with_roles, visit_findings,
};

/// A world in which nothing is missing.
fn healthy_lab(flavour: Flavour) -> DoctorLab {
    DoctorLab::new(&setting_with_roles(flavour, &[("/", "Administrator")]))
}

#[test]
fn reports_nothing_missing_in_a_healthy_lab() {
    for flavour in FLAVOURS {
        let found = visit_findings(&healthy_lab(flavour), &DoctorVisit { entries: vec!["pve1", "pve2"], ..DoctorVisit::default() });
        let problems: Vec<&DoctorFinding> = found.iter().filter(|finding| finding.level != FindingLevel::Ok).collect();
        assert!(problems.is_empty(), "{flavour:?} {problems:#?}");
        assert!(found.iter().filter(|finding| finding.check.starts_with("may-")).count() == 15, "{found:#?}");
        assert_eq!(levels_of(&found, "endpoint"), [FindingLevel::Ok; 2]);
    }
}

#[test]
fn reports_restricted_tags_before_they_are_written() {
    let declared = "  - { vmid: 100, kind: qemu, name: web, config: { tags: [Web, db] } }\n";
    for flavour in FLAVOURS {
        let found = |role: &str, options: &[(&str, &str)]| {
            let mut spec = setting_with_roles(flavour, &[("/", "PVEAuditor"), ("/", role)]);
            spec.options = options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            let bench = DoctorLab::new(&spec);
            let found = visit_findings(&bench, &DoctorVisit { declared: Some(declared), scope: Some(vec![100]), ..DoctorVisit::default() });
            let tags = found.into_iter().filter(|finding| finding.check == "tags");
            tags.map(|finding| (finding.level, finding.found)).collect::<Vec<_>>()
        };
        let tag_style = ("tag-style", "case-sensitive=1");
        let list = ("user-tag-access", "user-allow=list,user-allow-list=db");
        let may = vec![(FindingLevel::Ok, "the token may set the declared tags".to_owned())];
        assert_eq!(found("PVEVMAdmin", &[tag_style]), may, "{flavour:?}");
        assert_eq!(found("Administrator", &[tag_style, list]), may, "{flavour:?}");
        let denied = "the datacenter requires `Sys.Modify` on `/` to add or remove these tags: `Web`; otherwise Proxmox responds with 403";
        assert_eq!(found("PVEVMAdmin", &[tag_style, list]), [(FindingLevel::Warn, denied.to_owned())], "{flavour:?}");
        let lowered = "the datacenter stores these tags in lower case: `Web`";
        assert_eq!(found("PVEVMAdmin", &[]), [(FindingLevel::Warn, lowered.to_owned())], "{flavour:?}");
    }
}

#[test]
fn wrong_secret_gives_one_finding_and_no_guesses() {
    for flavour in FLAVOURS {
        let bench = healthy_lab(flavour);
        let found = visit_findings(&bench, &DoctorVisit { secret: "wrong", ..DoctorVisit::default() });
        let token = only_finding(&found, "token");
        assert_eq!(token.level, FindingLevel::Fail);
        assert_eq!(remedy_lines(token), ["pveum user token list 'svc@pve'", "pveum user list"]);
        let rest = only_finding(&found, "rest");
        assert!(rest.level == FindingLevel::Unknown && rest.found.ends_with("because no endpoint accepts the token"), "{rest:?}");
        assert!(!found.iter().any(|finding| finding.check.starts_with("may-")), "{found:#?}");
        assert_eq!(levels_of(&found, "endpoint"), [FindingLevel::Ok], "it responds and rejects the token");
        assert_eq!(bench.requests().len(), 1, "one attempt");
    }
}

#[test]
fn rejects_expired_or_disabled_token_and_user() {
    let start_s = lab_setting(Flavour::V9, WORLD).start_ms / 1000;
    let changes = ["token expired", "user expired", "user disabled"];
    for (flavour, change) in FLAVOURS.into_iter().flat_map(|flavour| changes.map(|change| (flavour, change))) {
        let mut spec = setting_with_roles(flavour, &[("/", "Administrator")]);
        match change {
            "token expired" => spec.tokens.values_mut().for_each(|token| token.expire_s = start_s),
            "user expired" => spec.users.values_mut().for_each(|user| user.expire_s = start_s),
            _ => spec.users.values_mut().for_each(|user| user.disabled = true),
        }
        let found = visit_findings(&DoctorLab::new(&spec), &DoctorVisit::default());
        assert_eq!(only_finding(&found, "token").level, FindingLevel::Fail, "{change}");
        assert!(only_finding(&found, "token").remedy.as_ref().is_some_and(|remedy| remedy.text.contains("expired")), "{change}");
    }
}

#[test]
fn warns_of_a_token_that_expires_soon() {
    let start_s = lab_setting(Flavour::V9, WORLD).start_ms / 1000;
    let expiring = |days: u64| {
        let mut spec = setting_with_roles(Flavour::V9, &[("/", "PVEAuditor")]);
        spec.tokens.values_mut().for_each(|token| token.expire_s = start_s + days * 86_400);
        visit_findings(&DoctorLab::new(&spec), &DoctorVisit::default())
    };
    let soon = expiring(3);
    let finding = only_finding(&soon, "token-expiry");
    assert!(finding.level == FindingLevel::Warn && finding.found.contains("2026-11-18"), "{finding:?}");
    assert_eq!(remedy_lines(finding), ["pveum user token modify 'svc@pve' 'probe' --expire 0"]);
    assert_eq!(only_finding(&expiring(300), "token-expiry").level, FindingLevel::Ok);
}

#[test]
fn reports_privilege_separation_without_entries() {
    for flavour in FLAVOURS {
        let mut spec = lab_setting(flavour, WORLD);
        let nothing = visit_findings(&DoctorLab::new(&spec), &DoctorVisit::default());
        assert_eq!(only_finding(&nothing, "token-separation").level, FindingLevel::Fail);
        assert_eq!(only_finding(&nothing, "may-read").level, FindingLevel::Fail);
        assert_eq!(only_finding(&nothing, "token").level, FindingLevel::Ok, "it is accepted without any privilege");
        let role = "pveum role add ConvergerRead --privs \"Sys.Audit VM.Audit\"";
        let entries = [
            "pveum acl modify / --tokens 'svc@pve!probe' --roles ConvergerRead",
            "pveum acl modify / --users 'svc@pve' --roles ConvergerRead",
        ];
        assert_eq!(
            remedy_lines(only_finding(&nothing, "may-read")),
            [role, entries[0], entries[1]],
            "the privileges of the user cannot be read, so both are granted"
        );
        spec.tokens.values_mut().for_each(|token| token.full = true);
        let whole = visit_findings(&DoctorLab::new(&spec), &DoctorVisit::default());
        assert_eq!(only_finding(&whole, "token-separation").level, FindingLevel::Fail);
    }
}

#[test]
fn grants_to_the_token_only_what_the_user_already_has() {
    let mut spec = setting_with_roles(Flavour::V9, &[("/", "PVEAuditor")]);
    let found = visit_findings(&DoctorLab::new(&spec), &DoctorVisit::default());
    assert!(only_finding(&found, "token-separation").found.contains("limited by those of `svc@pve`"));
    assert_eq!(remedy_lines(only_finding(&found, "may-start")).len(), 3, "role, token, user");
    for entry in spec.acl.iter_mut().filter(|entry| entry.user.is_some()) {
        entry.role = "Administrator".into();
    }
    let found = visit_findings(&DoctorLab::new(&spec), &DoctorVisit::default());
    assert_eq!(
        remedy_lines(only_finding(&found, "may-start"))[1..],
        ["pveum acl modify / --tokens 'svc@pve!probe' --roles ConvergerPower"]
    );
    spec.tokens.values_mut().for_each(|token| token.full = true);
    for entry in spec.acl.iter_mut().filter(|entry| entry.user.is_some()) {
        entry.role = "PVEAuditor".into();
    }
    let found = visit_findings(&DoctorLab::new(&spec), &DoctorVisit::default());
    let expected = ["pveum acl modify / --users 'svc@pve' --roles ConvergerPower"];
    assert_eq!(remedy_lines(only_finding(&found, "may-start"))[1..], expected, "without separation, an entry of the token has no effect");
}

#[test]
fn requires_reading_and_warns_of_other_verbs() {
    for flavour in FLAVOURS {
        let found = visit_findings(&DoctorLab::new(&setting_with_roles(flavour, &[("/", "PVEAuditor")])), &DoctorVisit::default());
        assert_eq!(only_finding(&found, "may-read").level, FindingLevel::Ok);
        let others: Vec<&DoctorFinding> = found.iter().filter(|own| own.check.starts_with("may-") && own.check != "may-read").collect();
        assert_eq!(others.len(), 14);
        assert!(others.iter().all(|own| !remedy_lines(own).is_empty()), "{flavour:?} {others:#?}");
        let (planned, requested): (Vec<&DoctorFinding>, Vec<&DoctorFinding>) =
            others.into_iter().partition(|own| own.part == Some(PrivilegeUse::Apply));
        assert!(planned.len() == 7 && planned.iter().all(|own| own.level == FindingLevel::Warn), "{flavour:?} {planned:#?}");
        assert!(requested.iter().all(|own| own.level == FindingLevel::Unneeded), "no plan needs them: {flavour:?} {requested:#?}");
        assert!(found.ends_with(&requested.iter().map(|own| (*own).clone()).collect::<Vec<_>>()), "they are listed last");
        let has_bridge = remedy_lines(only_finding(&found, "may-clone"))[0].contains("SDN.Use");
        assert_eq!(has_bridge, flavour != Flavour::V7, "release 7 has no such privilege and rejects the role");
    }
}

#[test]
fn unknown_privilege_of_an_unplanned_verb_is_unneeded() {
    // More unlisted guests than are queried one by one.
    let hidden: Vec<u64> = (1000..1040).collect();
    let found = visit_findings(&healthy_lab(Flavour::V9), &DoctorVisit { scope: Some(hidden), ..DoctorVisit::default() });
    let level = |check: &str| only_finding(&found, check).level;
    assert_eq!((level("may-start"), level("may-clone")), (FindingLevel::Unknown, FindingLevel::Unneeded), "{found:#?}");
}

#[test]
fn declared_state_needs_only_its_guests_and_fields() {
    let bench = DoctorLab::new(&setting_with_roles(Flavour::V9, &[("/", "PVEAuditor")]));
    let of = |declared| {
        let found = visit_findings(&bench, &DoctorVisit { declared: Some(declared), ..DoctorVisit::default() });
        let verbs = found.iter().filter(|own| own.check.starts_with("may-"));
        verbs.map(|own| (own.check, own.found.split_once("missing on ").map_or("", |(_, guests)| guests).to_owned())).collect::<Vec<_>>()
    };
    let is = |rows: &[(&'static str, &str)]| rows.iter().map(|(check, guests)| (*check, (*guests).to_owned())).collect::<Vec<_>>();
    let (web, dns) = ("1 guest (100)", "1 guest (101)");
    let both = of("  - { vmid: 100, kind: qemu, name: web, state: running }\n  - { vmid: 101, kind: lxc, name: dns, state: stopped }");
    assert_eq!(both, is(&[("may-read", ""), ("may-start", web), ("may-stop", dns)]));
    let fields =
        of("  - { vmid: 100, kind: qemu, name: web, config: { cores: 2 } }\n  - { vmid: 101, kind: lxc, name: dns, config: { tags: [] } }");
    assert_eq!(fields, is(&[("may-read", ""), ("may-set-cpu", web), ("may-set-options", dns)]), "no run-state is declared");
    let restart = of("  - { vmid: 100, kind: qemu, name: web, config: { memory: 512MiB }, restart: when-needed }");
    assert_eq!(restart, is(&[("may-read", ""), ("may-stop", web), ("may-set-memory", web)]));
    let nothing = of("  - { vmid: 100, kind: qemu, name: web }");
    assert_eq!(nothing, is(&[("may-read", "")]), "a guest without declared state only needs reading");
}

#[test]
fn names_guests_with_missing_privileges() {
    let found = visit_findings(
        &DoctorLab::new(&setting_with_roles(Flavour::V9, &[("/", "PVEAuditor"), ("/vms/100", "PVEVMUser")])),
        &DoctorVisit::default(),
    );
    let start = only_finding(&found, "may-start");
    assert!(start.level == FindingLevel::Warn && start.found.contains("1 guest (101)"), "{start:?}");
    assert_eq!(only_finding(&found, "may-read").level, FindingLevel::Ok);
}

#[test]
fn finds_a_guest_hidden_from_the_token() {
    for flavour in FLAVOURS {
        let bench = DoctorLab::new(&setting_with_roles(flavour, &[("/", "Administrator"), ("/vms/101", "NoAccess")]));
        let found = visit_findings(&bench, &DoctorVisit::default());
        let read = only_finding(&found, "may-read");
        assert!(read.level == FindingLevel::Fail && read.found.contains("VM.Audit is missing on 1 guest (101)"), "{read:?}");
        assert!(remedy_lines(read).iter().any(|line| line.starts_with("pveum acl modify /vms/101 ")), "{read:?}");
        assert!(only_finding(&found, "may-start").found.contains("(101)"));
        assert!(
            found.iter().any(|own| own.check == "guests" && own.level == FindingLevel::Warn && own.found.contains("101")),
            "{found:#?}"
        );
    }
}

#[test]
fn guest_in_a_pool_has_the_privileges_of_the_pool() {
    for flavour in FLAVOURS {
        let mut spec = setting_with_roles(flavour, &[("/pool/p", "PVEVMUser")]);
        spec.pools = converger_lab::WorldSpec::from_yaml("pools: { p: { guests: [100] } }").expect("pools").pools;
        let found = visit_findings(&DoctorLab::new(&spec), &DoctorVisit::default());
        let start = only_finding(&found, "may-start");
        assert!(start.found.contains("1 guest (101)"), "{flavour:?} {start:?}");
        assert!(only_finding(&found, "may-read").found.contains("Sys.Audit is missing on /"), "{flavour:?}");
    }
}

#[test]
fn names_storages_that_confine_a_token() {
    let entries = [("/", "PVEAuditor"), ("/vms", "PVEVMAdmin"), ("/storage/tank", "PVEDatastoreUser")];
    let found = visit_findings(&DoctorLab::new(&setting_with_roles(Flavour::V9, &entries)), &DoctorVisit::default());
    let grow = only_finding(&found, "may-grow");
    assert!(grow.level == FindingLevel::Ok && grow.found.contains("only on `/storage/tank`"), "{grow:?}");
    assert!(only_finding(&found, "may-clone").found.contains("SDN.Use is missing on /sdn/zones"));
}

#[test]
fn non_propagating_entry_reaches_no_guest() {
    let mut spec = setting_with_roles(Flavour::V9, &[("/", "Administrator")]);
    spec.acl.iter_mut().for_each(|entry| entry.here_only = true);
    let found = visit_findings(&DoctorLab::new(&spec), &DoctorVisit::default());
    let read = only_finding(&found, "may-read");
    assert!(
        read.level == FindingLevel::Fail && read.found.contains("2 guests (100, 101)") && !read.found.contains("Sys.Audit"),
        "{read:?}"
    );
}

#[test]
fn containers_need_fewer_privileges_for_startup_order() {
    let privileges = "roles: { own: [Sys.Audit, VM.Audit, VM.Config.Options] }\n";
    let mut spec = setting_with_roles(Flavour::V9, &[("/", "own")]);
    spec.roles = converger_lab::WorldSpec::from_yaml(privileges).expect("roles").roles;
    let both = visit_findings(&DoctorLab::new(&spec), &DoctorVisit::default());
    assert!(only_finding(&both, "may-set-startup").found.contains("Sys.Modify is missing on /"));
    let container = visit_findings(&DoctorLab::new(&spec), &DoctorVisit { scope: Some(vec![101]), ..DoctorVisit::default() });
    assert_eq!(only_finding(&container, "may-set-startup").level, FindingLevel::Ok);
    assert!(levels_of(&container, "may-set-boot").is_empty(), "containers have no such key");
}

#[test]
fn revoked_privileges_are_reported_missing() {
    let bench = healthy_lab(Flavour::V8);
    assert_eq!(only_finding(&visit_findings(&bench, &DoctorVisit::default()), "may-read").level, FindingLevel::Ok);
    let bench = bench.apply_event(WorldEvent::Revoke("/".into()));
    assert_eq!(only_finding(&visit_findings(&bench, &DoctorVisit::default()), "may-read").level, FindingLevel::Fail);
}

#[test]
fn many_guests_need_few_requests() {
    let mut spec = setting_with_roles(Flavour::V9, &[("/", "PVEAuditor")]);
    spec.guests.extend((1000..1400).map(|vmid| GuestSpec::new(vmid, LabGuestKind::Lxc, "pve2")));
    let bench = DoctorLab::new(&spec);
    let found = visit_findings(&bench, &DoctorVisit { scope: Some((1000..1400).collect()), ..DoctorVisit::default() });
    assert!(bench.requests().len() < 25, "{:#?}", bench.requests());
    let start = only_finding(&found, "may-start");
    assert!(start.found.contains("400 guests") && start.found.contains("more"), "{start:?}");
    assert_eq!(remedy_lines(start).len(), 3, "one entry at the root covers them all: {start:?}");
    assert!(
        start.remedy.as_ref().is_some_and(|remedy| remedy.text.contains("pool") && !remedy.text.contains("than are listed here")),
        "{start:?}"
    );
    assert_eq!(only_finding(&found, "pending").level, FindingLevel::Unknown);
}

#[test]
fn cuts_the_lines_for_many_guests_with_own_entries() {
    let mut spec = setting_with_roles(Flavour::V9, &[("/", "PVEAuditor")]);
    spec.guests.extend((1000..1040).map(|vmid| GuestSpec::new(vmid, LabGuestKind::Lxc, "pve2")));
    let own: Vec<String> = (1000..1040).map(|vmid| format!("/vms/{vmid}")).collect();
    let entries: Vec<(&str, &str)> = own.iter().map(|path| (path.as_str(), "PVETemplateUser")).collect();
    spec.acl.extend(setting_with_roles(Flavour::V9, &entries).acl);
    let found = visit_findings(&DoctorLab::new(&spec), &DoctorVisit { scope: Some((1000..1040).collect()), ..DoctorVisit::default() });
    let start = only_finding(&found, "may-start");
    assert_eq!(remedy_lines(start).len(), 1 + 2 * 16);
    assert!(start.remedy.as_ref().is_some_and(|remedy| remedy.text.contains("than are listed here")), "{start:?}");
}

#[test]
fn quotes_the_token_id_in_lines() {
    let found = visit_findings(&DoctorLab::new(&lab_setting(Flavour::V9, WORLD)), &DoctorVisit::default());
    let read = only_finding(&found, "may-read");
    assert!(remedy_lines(read).iter().any(|line| line.contains(&format!("'{TOKEN}'"))), "a `!` means something to a shell: {read:?}");
}
