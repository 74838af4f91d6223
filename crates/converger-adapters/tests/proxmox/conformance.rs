//! The observer passes the conformance checks over HTTPS, in worlds whose truth is known.
//!
//! Worlds that are impossible in Proxmox (an unreadable lock of a readable guest) are approximated by hiding the guest.

use std::collections::BTreeSet;

use converger_adapters::conformance::{ObserverFixture, check_observer};
use converger_adapters::proxmox::client::Endpoint;
use converger_adapters::proxmox::observe::ReadSet;
use converger_adapters::proxmox::{ConnectionSettings, ProxmoxObserver};
use converger_core::guest::{EnvironmentName, GuestIdentity, GuestKind};
use converger_core::normalize::{BootOrder, FieldValue};
use converger_core::observe::{Observation, ObservedGuest, ObservedStatus, Reading};
use serde_json::json;

use crate::https_server::{ServerReply, TestHttpsServer, block_on, start_server, test_limits, test_token};
use crate::scripted_proxmox::{ScriptedGuest, ScriptedProxmox, cluster_rows};

#[derive(Default)]
struct ProxmoxFixture {
    server: Option<TestHttpsServer>,
}

impl ObserverFixture for ProxmoxFixture {
    type Observer = ProxmoxObserver;

    fn set_up_world(&mut self, truth: &Observation) -> ProxmoxObserver {
        let proxmox = scripted_proxmox(truth);
        let server = start_server(move |seen| ServerReply::Answer(proxmox.respond(&seen.method, &seen.path)));
        let endpoint = Endpoint::new(&server.url(), server.pinned_trust()).expect("an address");
        self.server = Some(server);
        let name = EnvironmentName::new("stage").expect("a name");
        let environment = ConnectionSettings { name, cluster: None, endpoints: vec![endpoint], token: test_token(), bounds: test_limits() };
        let observer = ProxmoxObserver::new(environment).expect("an observer");
        // Proxmox cannot return pending changes without the config.
        let has_config = truth.guests.iter().any(|row| row.config.is_read());
        if has_config { observer } else { observer.with_needs(ReadSet::Declared([].into())) }
    }

    fn change_count(&self) -> u64 {
        let requests = self.server.as_ref().map(TestHttpsServer::requests).unwrap_or_default();
        requests.iter().filter(|seen| seen.method != "GET").count() as u64
    }
}

#[test]
fn g4_proxmox_observer_reads_once_and_claims_no_more_than_the_truth() {
    assert_eq!(block_on(check_observer(&mut ProxmoxFixture::default())), []);
}

#[test]
fn g9_readings_contain_only_core_values() {
    for world in converger_adapters::conformance::known_worlds() {
        let mut rack = ProxmoxFixture::default();
        let report = block_on(rack.set_up_world(&world.observation).take_report(&world.scope)).expect("a reading");
        let mut bytes = Vec::new();
        converger_core::artifact::write_observation(&mut bytes, &report.reading).expect("written");
        let again = converger_core::observe::parse(&bytes).unwrap_or_else(|faults| panic!("{}: {faults:?}", world.name));
        assert_eq!(again.guests, report.reading.guests, "{}", world.name);
    }
}

fn scripted_proxmox(truth: &Observation) -> ScriptedProxmox {
    let nodes: Vec<(&str, u8)> = truth.nodes.iter().map(|node| (node.name.as_str(), u8::from(node.online))).collect();
    let cluster = cluster_rows("stage", u8::from(truth.quorate), &nodes);
    let guests = truth.guests.iter().map(|row| (row.vmid.get(), scripted_guest(truth, row)));
    let mut proxmox = ScriptedProxmox::with_guests(&cluster, guests);
    proxmox.forbidden = truth.guests.iter().filter(|row| is_hidden(row)).map(|row| row.vmid.get()).collect::<BTreeSet<_>>();
    if !truth.complete {
        // A guest exists that the list does not show.
        let hidden = ScriptedGuest { kind: "qemu", node: "n1".into(), listed: None, own: None, current: "{}".into(), pending: "[]".into() };
        proxmox.guests.insert(101, hidden);
        proxmox.forbidden.insert(101);
    }
    proxmox
}

fn is_hidden(row: &ObservedGuest) -> bool {
    let is_known = matches!(row.status, ObservedStatus::Known(_));
    let has_no_word = matches!(&row.ha, Reading::Read(Some(ha)) if ha.state.is_none());
    has_no_word || is_known && (!row.lock.is_read() || !row.tags.is_read() || !row.template.is_read())
}

fn scripted_guest(truth: &Observation, row: &ObservedGuest) -> ScriptedGuest {
    let node = truth.node_of(row).map_or("n1", |node| node.name.as_str()).to_owned();
    let raw = row.run_state.as_deref().unwrap_or(match &row.status {
        ObservedStatus::Known(state) => state.word(),
        ObservedStatus::Unknown(_) => "unknown",
    });
    let tags = row.tags.as_ref().into_option().map(|tags| tags.iter().collect::<Vec<_>>().join(";"));
    let ha = row.ha.as_ref().into_option().and_then(|ha| ha.as_ref()).and_then(|ha| ha.state.clone());
    let mut listed = json!({"vmid": row.vmid.get(), "type": row.kind.word(), "node": node, "status": raw});
    let optional = [
        ("name", row.name.as_deref().map(|name| json!(name))),
        ("lock", row.lock.as_ref().into_option().and_then(|lock| lock.as_ref()).map(|lock| json!(lock))),
        ("tags", tags.as_ref().map(|tags| json!(tags))),
        ("hastate", ha.as_ref().map(|ha| json!(ha))),
        ("template", row.template.into_option().map(|template| json!(u8::from(template)))),
    ];
    for (key, value) in optional {
        if let Some(value) = value {
            listed[key] = value;
        }
    }
    let status = json!({"status": raw, "name": row.name, "ha": {"managed": u8::from(ha.is_some()), "state": ha}});
    ScriptedGuest {
        kind: row.kind.word(),
        node,
        listed: Some(listed.to_string()),
        own: None,
        current: status.to_string(),
        pending: pending_items(row, tags),
    }
}

/// The config as `/pending` lists it.
fn pending_items(row: &ObservedGuest, tags: Option<String>) -> String {
    let name = if row.kind == GuestKind::Qemu { "name" } else { "hostname" };
    let mut items = vec![json!({"key": name, "value": row.name}), json!({"key": "tags", "value": tags.unwrap_or_default()})];
    for (field, value) in row.config.as_ref().into_option().map(|config| config.values()).unwrap_or_default() {
        items.push(json!({"key": field.word(), "value": stored_value(value)}));
    }
    let identity = row.identity.as_ref().into_option();
    match identity.map(|identity| &**identity) {
        Some(GuestIdentity::Qemu { uuid, ctime }) => {
            items.extend(uuid.as_ref().map(|uuid| json!({"key": "smbios1", "value": format!("uuid={uuid}")})));
            items.extend(ctime.map(|ctime| json!({"key": "meta", "value": format!("creation-qemu=9,ctime={ctime}")})));
        }
        Some(GuestIdentity::Lxc { rootfs, .. }) => {
            items.extend(rootfs.as_ref().map(|volume| json!({"key": "rootfs", "value": format!("{volume},size=1G")})))
        }
        None => {}
    }
    items.push(json!({"key": "digest", "value": "0fe8"}));
    serde_json::Value::Array(items).to_string()
}

fn stored_value(value: &FieldValue) -> serde_json::Value {
    match value {
        FieldValue::Flag(flag) => json!(u8::from(*flag)),
        FieldValue::Count(number) | FieldValue::Mib(number) => json!(number.to_string()),
        FieldValue::Thousandths(number) => json!(format!("{}.{:03}", number / 1000, number % 1000)),
        FieldValue::Text(text) => json!(format!("{text}\n")),
        FieldValue::Startup(startup) => json!(format!("order={}", startup.order.expect("an order"))),
        FieldValue::Boot(BootOrder::Devices(devices)) => json!(format!("order={}", devices.join(";"))),
        other => panic!("no world has {other:?}"),
    }
}
