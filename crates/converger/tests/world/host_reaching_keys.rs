//! Keys that let a guest reach its host, and other pending changes that were not planned: in every release and for every such key, nothing
//! is planned and nothing can be written, because a write would apply them.

use std::collections::BTreeSet;

use converger_adapters::proxmox::codec::{ConfigSet, ProxmoxEvent, ProxmoxRead, UnwritableChange, WriteBasis};
use converger_core::action::FieldChange;
use converger_core::guest::GuestKind;
use converger_core::normalize::{ChangeEffect, Field, FieldValue, HOST_REACHING, reaches_host};
use converger_core::plan::Verdict;
use converger_lab::{Flavour, LabRequest, WorldEvent, verify_request};

use crate::changes::{ClientChange, prepare_lab};
use crate::client::{call_read, guest_path, parse_desired, plan_verdict};
use crate::lab_transport::LabTransport;

const FLAVOURS: [Flavour; 3] = [Flavour::V7, Flavour::V8, Flavour::V9];

/// Whether the config of this kind has such a key in a release, whatever its values.
fn has_key(flavour: Flavour, kind: GuestKind, key: &str) -> bool {
    let path = format!("/api2/json/nodes/pve1/{}/100/config", kind.word());
    let request = LabRequest { body: format!("{key}=x").into_bytes(), ..LabRequest::new("PUT", &path) };
    !verify_request(flavour, &request).err().is_some_and(|error| error.contains("property is not defined in schema"))
}

/// The keys of a kind in a release with this prefix, in the order of their numbers.
fn known_keys(flavour: Flavour, kind: GuestKind, prefix: &str) -> Vec<String> {
    let numbered = (0..=300).map(|number| format!("{prefix}{number}"));
    std::iter::once(prefix.to_owned()).chain(numbered).filter(|key| has_key(flavour, kind, key)).collect()
}

/// The verdict on a guest with a new description, and the result of writing it.
fn plan_and_write(transport: &LabTransport<()>, kind: GuestKind) -> (Verdict, Result<ConfigSet, UnwritableChange>) {
    let desired = format!(
        r#"{{"version":1,"environment":"lab","guests":[{{"vmid":100,"kind":"{}","name":"web","config":{{"description":"new"}}}}]}}"#,
        kind.word()
    );
    let guest = guest_path("pve1", kind, 100);
    let Ok(ProxmoxEvent::Config(read)) = call_read(transport, ProxmoxRead::GuestPending(guest.clone())) else { panic!("no config") };
    let after = Some(FieldValue::Text("new".into()));
    let change = FieldChange { field: Field::Description, before: None, after, pending: None, effect: ChangeEffect::Recorded };
    let basis = WriteBasis::from_config(&read).unwrap_or_else(|| panic!("no digest"));
    (plan_verdict(transport, &parse_desired(&desired)), ConfigSet::new(guest, &[change], &basis))
}

fn is_refused(verdict: &Verdict, key: &str) -> bool {
    let Verdict::Refused(refusals) = verdict else { return false };
    refusals.iter().any(|refusal| refusal.code().word() == "config-pending" && format!("{:?}", refusal.evidence()).contains(key))
}

#[test]
fn no_write_applies_a_host_reaching_key_in_any_release() {
    let mut known = BTreeSet::new();
    for (flavour, kind) in FLAVOURS.into_iter().flat_map(|flavour| GuestKind::ALL.map(|kind| (flavour, kind))) {
        for prefix in HOST_REACHING {
            let all = known_keys(flavour, kind, prefix);
            // `lxc.` keys occur only in the file of a container, and no call writes them; they may be pending nevertheless.
            let tried: Vec<String> = if prefix == "lxc." { vec!["lxc.mount.entry".to_owned()] } else { all.clone() };
            for key in tried.iter().take(1).chain(tried.last()) {
                let transport = prepare_lab(flavour, kind, ClientChange::ConfigSet);
                assert!(
                    matches!(plan_and_write(&transport, kind), (Verdict::Steps(_), Ok(_))),
                    "{flavour:?} {kind} {key}: nothing is pending yet"
                );
                transport.lock_lab().inject_event(WorldEvent::SetPending(100, key.clone(), "x".to_owned()));
                let (verdict, set) = plan_and_write(&transport, kind);
                assert!(reaches_host(key) && is_refused(&verdict, key), "{flavour:?} {kind} {key}: {verdict:?}");
                assert_eq!(set, Err(UnwritableChange::ReachesHost(key.as_str().into())), "{flavour:?} {kind}");
            }
            known.extend((!all.is_empty()).then(|| format!("{flavour:?} {kind} {prefix} {}", all.len())));
        }
    }
    assert_eq!(known, expected_key_counts());
}

/// The number of keys per prefix in each release.
fn expected_key_counts() -> BTreeSet<String> {
    let always =
        ["lxc hookscript 1", "lxc mp 256", "qemu args 1", "qemu cicustom 1", "qemu hookscript 1", "qemu hostpci 16", "qemu ivshmem 1"];
    let all = always.into_iter().chain(["qemu parallel 3", "qemu serial 4", "qemu usb 14"]);
    let in_each = all.flat_map(|own| FLAVOURS.map(|flavour| format!("{flavour:?} {own}")));
    let since_eight =
        ["lxc dev 256", "qemu virtiofs 10"].into_iter().flat_map(|own| ["V8", "V9"].map(|flavour| format!("{flavour} {own}")));
    in_each.chain(since_eight).collect()
}

#[test]
fn unplanned_pending_values_block_a_write() {
    for (flavour, kind) in FLAVOURS.into_iter().flat_map(|flavour| GuestKind::ALL.map(|kind| (flavour, kind))) {
        let transport = prepare_lab(flavour, kind, ClientChange::ConfigSet);
        transport.lock_lab().inject_event(WorldEvent::SetPending(100, "net0".to_owned(), "name=eth0".to_owned()));
        assert_eq!(plan_and_write(&transport, kind).1, Err(UnwritableChange::ForeignPending("net0".into())), "{flavour:?} {kind}");
        let transport = prepare_lab(flavour, kind, ClientChange::ConfigSet);
        transport.lock_lab().inject_event(WorldEvent::SetPending(100, "description".to_owned(), "theirs".to_owned()));
        let (verdict, set) = plan_and_write(&transport, kind);
        assert_eq!(
            set,
            Err(UnwritableChange::PendingDiffers(Field::Description)),
            "{flavour:?} {kind}: the plan did not include this pending value"
        );
        assert!(matches!(verdict, Verdict::Steps(_)), "{flavour:?} {kind}: the plan shows the pending value that it replaces: {verdict:?}");
    }
}
