//! What the doctor says about token and privileges, in worlds that lack them and in worlds that do not.

use converger_adapters::proxmox::doctor::{Finding, Level, Part};
use converger_lab::{Act, Flavour, GuestSetting, Kind};

use crate::bench::{Bench, FLAVOURS, TOKEN, Visit, WORLD, granted, levels, lines, one, setting, visit};

/// A world in which nothing is missing.
fn well(flavour: Flavour) -> Bench {
    Bench::new(&granted(flavour, &[("/", "Administrator")]))
}

#[test]
fn where_nothing_is_missing_nothing_is_said_to_be() {
    for flavour in FLAVOURS {
        let found = visit(&well(flavour), &Visit { entries: vec!["pve1", "pve2"], ..Visit::default() });
        let bad: Vec<&Finding> = found.iter().filter(|finding| finding.level != Level::Ok).collect();
        assert!(bad.is_empty(), "{flavour:?} {bad:#?}");
        assert!(found.iter().filter(|finding| finding.check.starts_with("may-")).count() == 14, "{found:#?}");
        assert_eq!(levels(&found, "endpoint"), [Level::Ok; 2]);
    }
}

#[test]
fn tags_that_the_datacenter_keeps_to_itself_are_told_before_they_are_written() {
    let declared = "  - { vmid: 100, kind: qemu, name: web, config: { tags: [Web, db] } }\n";
    for flavour in FLAVOURS {
        let found = |role: &str, options: &[(&str, &str)]| {
            let mut setting = granted(flavour, &[("/", "PVEAuditor"), ("/", role)]);
            setting.options = options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            let bench = Bench::new(&setting);
            let found = visit(&bench, &Visit { declared: Some(declared), scope: Some(vec![100]), ..Visit::default() });
            let tags = found.into_iter().filter(|finding| finding.check == "tags");
            tags.map(|finding| (finding.level, finding.found)).collect::<Vec<_>>()
        };
        let kept = ("tag-style", "case-sensitive=1");
        let list = ("user-tag-access", "user-allow=list,user-allow-list=db");
        let may = vec![(Level::Ok, "the token may set the declared tags".to_owned())];
        assert_eq!(found("PVEVMAdmin", &[kept]), may, "{flavour:?}");
        assert_eq!(found("Administrator", &[kept, list]), may, "{flavour:?}");
        let denied = "the datacenter lets only `Sys.Modify` on `/` add or remove these tags: `Web`; Proxmox answers others with 403";
        assert_eq!(found("PVEVMAdmin", &[kept, list]), [(Level::Warn, denied.to_owned())], "{flavour:?}");
        let lowered = "the datacenter stores tags in lower case, also these: `Web`";
        assert_eq!(found("PVEVMAdmin", &[]), [(Level::Warn, lowered.to_owned())], "{flavour:?}");
    }
}

#[test]
fn a_wrong_secret_is_one_finding_and_nothing_else_is_guessed() {
    for flavour in FLAVOURS {
        let bench = well(flavour);
        let found = visit(&bench, &Visit { secret: "wrong", ..Visit::default() });
        let token = one(&found, "token");
        assert_eq!(token.level, Level::Fail);
        assert_eq!(lines(token), ["pveum user token list 'svc@pve'", "pveum user list"]);
        assert_eq!(one(&found, "rest").level, Level::Unknown);
        assert!(!found.iter().any(|finding| finding.check.starts_with("may-")), "{found:#?}");
        assert_eq!(levels(&found, "endpoint"), [Level::Ok], "it is there, and says no");
        assert_eq!(bench.requests().len(), 1, "one attempt");
    }
}

#[test]
fn a_token_or_user_that_has_ended_is_not_accepted() {
    let start_s = setting(Flavour::V9, WORLD).start_ms / 1000;
    let changes = ["token expired", "user expired", "user disabled"];
    for (flavour, change) in FLAVOURS.into_iter().flat_map(|flavour| changes.map(|change| (flavour, change))) {
        let mut setting = granted(flavour, &[("/", "Administrator")]);
        match change {
            "token expired" => setting.tokens.values_mut().for_each(|token| token.expire_s = start_s),
            "user expired" => setting.users.values_mut().for_each(|user| user.expire_s = start_s),
            _ => setting.users.values_mut().for_each(|user| user.disabled = true),
        }
        let found = visit(&Bench::new(&setting), &Visit::default());
        assert_eq!(one(&found, "token").level, Level::Fail, "{change}");
        assert!(one(&found, "token").remedy.as_ref().is_some_and(|remedy| remedy.text.contains("expired")), "{change}");
    }
}

#[test]
fn a_token_that_ends_soon_is_worth_a_word() {
    let start_s = setting(Flavour::V9, WORLD).start_ms / 1000;
    let expiring = |days: u64| {
        let mut setting = granted(Flavour::V9, &[("/", "PVEAuditor")]);
        setting.tokens.values_mut().for_each(|token| token.expire_s = start_s + days * 86_400);
        visit(&Bench::new(&setting), &Visit::default())
    };
    let soon = expiring(3);
    let finding = one(&soon, "token-expiry");
    assert!(finding.level == Level::Warn && finding.found.contains("2026-11-18"), "{finding:?}");
    assert_eq!(lines(finding), ["pveum user token modify 'svc@pve' 'probe' --expire 0"]);
    assert_eq!(one(&expiring(300), "token-expiry").level, Level::Ok);
}

#[test]
fn privilege_separation_without_an_entry_is_named_as_such() {
    for flavour in FLAVOURS {
        let mut setting = setting(flavour, WORLD);
        let nothing = visit(&Bench::new(&setting), &Visit::default());
        assert_eq!(one(&nothing, "token-separation").level, Level::Fail);
        assert_eq!(one(&nothing, "may-read").level, Level::Fail);
        assert_eq!(one(&nothing, "token").level, Level::Ok, "it is accepted, and may do nothing");
        let role = "pveum role add ConvergerRead --privs \"Sys.Audit VM.Audit\"";
        let entries = [
            "pveum acl modify / --tokens 'svc@pve!probe' --roles ConvergerRead",
            "pveum acl modify / --users 'svc@pve' --roles ConvergerRead",
        ];
        assert_eq!(lines(one(&nothing, "may-read")), [role, entries[0], entries[1]], "who has what cannot be read, so both are granted");
        setting.tokens.values_mut().for_each(|token| token.full = true);
        let whole = visit(&Bench::new(&setting), &Visit::default());
        assert_eq!(one(&whole, "token-separation").level, Level::Fail);
    }
}

#[test]
fn what_the_user_has_already_is_granted_to_the_token_alone() {
    let mut setting = granted(Flavour::V9, &[("/", "PVEAuditor")]);
    let found = visit(&Bench::new(&setting), &Visit::default());
    assert!(one(&found, "token-separation").found.contains("within what `svc@pve` has"));
    assert_eq!(lines(one(&found, "may-start")).len(), 3, "role, token, user");
    for entry in setting.acl.iter_mut().filter(|entry| entry.user.is_some()) {
        entry.role = "Administrator".into();
    }
    let found = visit(&Bench::new(&setting), &Visit::default());
    assert_eq!(lines(one(&found, "may-start"))[1..], ["pveum acl modify / --tokens 'svc@pve!probe' --roles ConvergerPower"]);
    setting.tokens.values_mut().for_each(|token| token.full = true);
    for entry in setting.acl.iter_mut().filter(|entry| entry.user.is_some()) {
        entry.role = "PVEAuditor".into();
    }
    let found = visit(&Bench::new(&setting), &Visit::default());
    let expected = ["pveum acl modify / --users 'svc@pve' --roles ConvergerPower"];
    assert_eq!(lines(one(&found, "may-start"))[1..], expected, "without separation an entry of the token counts for nothing");
}

#[test]
fn reading_is_needed_and_every_other_verb_may_be_kept_back() {
    for flavour in FLAVOURS {
        let found = visit(&Bench::new(&granted(flavour, &[("/", "PVEAuditor")])), &Visit::default());
        assert_eq!(one(&found, "may-read").level, Level::Ok);
        let others: Vec<&Finding> = found.iter().filter(|own| own.check.starts_with("may-") && own.check != "may-read").collect();
        assert_eq!(others.len(), 13);
        assert!(others.iter().all(|own| !lines(own).is_empty()), "{flavour:?} {others:#?}");
        let (planned, requested): (Vec<&Finding>, Vec<&Finding>) = others.into_iter().partition(|own| own.part == Some(Part::Apply));
        assert!(planned.len() == 7 && planned.iter().all(|own| own.level == Level::Warn), "{flavour:?} {planned:#?}");
        assert!(requested.iter().all(|own| own.level == Level::Unneeded), "no plan asks for them: {flavour:?} {requested:#?}");
        assert!(found.ends_with(&requested.iter().map(|own| (*own).clone()).collect::<Vec<_>>()), "they stand below everything else");
        let has_bridge = lines(one(&found, "may-clone"))[0].contains("SDN.Use");
        assert_eq!(has_bridge, flavour != Flavour::V7, "7 has no such privilege, and would refuse the role");
    }
}

#[test]
fn what_is_not_known_of_a_verb_that_nothing_asks_for_is_no_matter() {
    // More guests that no list shows than are asked for one by one.
    let hidden: Vec<u64> = (1000..1040).collect();
    let found = visit(&well(Flavour::V9), &Visit { scope: Some(hidden), ..Visit::default() });
    let level = |check: &str| one(&found, check).level;
    assert_eq!((level("may-start"), level("may-delete")), (Level::Unknown, Level::Unneeded), "{found:#?}");
}

#[test]
fn a_declared_state_asks_for_its_own_guests_and_fields_alone() {
    let bench = Bench::new(&granted(Flavour::V9, &[("/", "PVEAuditor")]));
    let of = |declared| {
        let found = visit(&bench, &Visit { declared: Some(declared), ..Visit::default() });
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
    assert_eq!(nothing, is(&[("may-read", "")]), "who only looks needs no more");
}

#[test]
fn guests_that_lack_something_are_named() {
    let found = visit(&Bench::new(&granted(Flavour::V9, &[("/", "PVEAuditor"), ("/vms/100", "PVEVMUser")])), &Visit::default());
    let start = one(&found, "may-start");
    assert!(start.level == Level::Warn && start.found.contains("1 guest (101)"), "{start:?}");
    assert_eq!(one(&found, "may-read").level, Level::Ok);
}

#[test]
fn a_guest_that_is_kept_from_the_token_is_found_though_no_list_shows_it() {
    for flavour in FLAVOURS {
        let bench = Bench::new(&granted(flavour, &[("/", "Administrator"), ("/vms/101", "NoAccess")]));
        let found = visit(&bench, &Visit::default());
        let read = one(&found, "may-read");
        assert!(read.level == Level::Fail && read.found.contains("VM.Audit is missing on 1 guest (101)"), "{read:?}");
        assert!(lines(read).iter().any(|line| line.starts_with("pveum acl modify /vms/101 ")), "{read:?}");
        assert!(one(&found, "may-start").found.contains("(101)"));
        assert!(found.iter().any(|own| own.check == "guests" && own.level == Level::Warn && own.found.contains("101")), "{found:#?}");
    }
}

#[test]
fn a_guest_seen_through_a_pool_has_what_the_pool_gives() {
    for flavour in FLAVOURS {
        let mut setting = granted(flavour, &[("/pool/p", "PVEVMUser")]);
        setting.pools = converger_lab::Setting::from_yaml("pools: { p: { guests: [100] } }").expect("pools").pools;
        let found = visit(&Bench::new(&setting), &Visit::default());
        let start = one(&found, "may-start");
        assert!(start.found.contains("1 guest (101)"), "{flavour:?} {start:?}");
        assert!(one(&found, "may-read").found.contains("Sys.Audit on / is missing"), "{flavour:?}");
    }
}

#[test]
fn storages_to_which_a_token_is_confined_are_named() {
    let entries = [("/", "PVEAuditor"), ("/vms", "PVEVMAdmin"), ("/storage/tank", "PVEDatastoreUser")];
    let found = visit(&Bench::new(&granted(Flavour::V9, &entries)), &Visit::default());
    let grow = one(&found, "may-grow");
    assert!(grow.level == Level::Ok && grow.found.contains("only on `/storage/tank`"), "{grow:?}");
    assert!(one(&found, "may-clone").found.contains("SDN.Use is missing on /sdn/zones"));
}

#[test]
fn an_entry_that_does_not_spread_reaches_no_guest() {
    let mut setting = granted(Flavour::V9, &[("/", "Administrator")]);
    setting.acl.iter_mut().for_each(|entry| entry.here_only = true);
    let found = visit(&Bench::new(&setting), &Visit::default());
    let read = one(&found, "may-read");
    assert!(read.level == Level::Fail && read.found.contains("2 guests (100, 101)") && !read.found.contains("Sys.Audit"), "{read:?}");
}

#[test]
fn containers_need_less_for_their_order_of_start() {
    let privileges = "roles: { own: [Sys.Audit, VM.Audit, VM.Config.Options] }\n";
    let mut setting = granted(Flavour::V9, &[("/", "own")]);
    setting.roles = converger_lab::Setting::from_yaml(privileges).expect("roles").roles;
    let both = visit(&Bench::new(&setting), &Visit::default());
    assert!(one(&both, "may-set-startup").found.contains("Sys.Modify on / is missing"));
    let container = visit(&Bench::new(&setting), &Visit { scope: Some(vec![101]), ..Visit::default() });
    assert_eq!(one(&container, "may-set-startup").level, Level::Ok);
    assert!(levels(&container, "may-set-boot").is_empty(), "containers have no such key");
}

#[test]
fn privileges_that_are_taken_away_are_missing_from_then_on() {
    let bench = well(Flavour::V8);
    assert_eq!(one(&visit(&bench, &Visit::default()), "may-read").level, Level::Ok);
    let bench = bench.act(Act::Revoke("/".into()));
    assert_eq!(one(&visit(&bench, &Visit::default()), "may-read").level, Level::Fail);
}

#[test]
fn many_guests_are_counted_and_asked_for_a_few_times_only() {
    let mut setting = granted(Flavour::V9, &[("/", "PVEAuditor")]);
    setting.guests.extend((1000..1400).map(|vmid| GuestSetting::new(vmid, Kind::Lxc, "pve2")));
    let bench = Bench::new(&setting);
    let found = visit(&bench, &Visit { scope: Some((1000..1400).collect()), ..Visit::default() });
    assert!(bench.requests().len() < 25, "{:#?}", bench.requests());
    let start = one(&found, "may-start");
    assert!(start.found.contains("400 guests") && start.found.contains("more"), "{start:?}");
    assert_eq!(lines(start).len(), 3, "one entry at the root reaches them all: {start:?}");
    assert!(start.remedy.as_ref().is_some_and(|remedy| remedy.text.contains("pool") && !remedy.text.contains("written out")), "{start:?}");
    assert_eq!(one(&found, "pending").level, Level::Unknown);
}

#[test]
fn of_many_guests_with_entries_of_their_own_only_some_are_written_out() {
    let mut setting = granted(Flavour::V9, &[("/", "PVEAuditor")]);
    setting.guests.extend((1000..1040).map(|vmid| GuestSetting::new(vmid, Kind::Lxc, "pve2")));
    let own: Vec<String> = (1000..1040).map(|vmid| format!("/vms/{vmid}")).collect();
    let entries: Vec<(&str, &str)> = own.iter().map(|path| (path.as_str(), "PVETemplateUser")).collect();
    setting.acl.extend(granted(Flavour::V9, &entries).acl);
    let found = visit(&Bench::new(&setting), &Visit { scope: Some((1000..1040).collect()), ..Visit::default() });
    let start = one(&found, "may-start");
    assert_eq!(lines(start).len(), 1 + 2 * 16);
    assert!(start.remedy.as_ref().is_some_and(|remedy| remedy.text.contains("written out")), "{start:?}");
}

#[test]
fn the_id_of_a_token_is_quoted_where_it_is_typed() {
    let found = visit(&Bench::new(&setting(Flavour::V9, WORLD)), &Visit::default());
    let read = one(&found, "may-read");
    assert!(lines(read).iter().any(|line| line.contains(&format!("'{TOKEN}'"))), "a `!` means something to a shell: {read:?}");
}
