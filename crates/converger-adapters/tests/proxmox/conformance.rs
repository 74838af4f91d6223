//! The observer passes what any observer must pass, over HTTPS and against worlds whose truth is known.
//!
//! Worlds that Proxmox cannot be in (a lock that may not be read where the guest may) are shown as far as it can: the guest is hidden.

use std::collections::BTreeSet;

use converger_adapters::conformance::{Stage, check};
use converger_adapters::proxmox::client::Endpoint;
use converger_adapters::proxmox::observe::Needs;
use converger_adapters::proxmox::{Environment, Proxmox};
use converger_core::guest::{EnvironmentName, Identity, Kind};
use converger_core::normalize::{Boot, Value};
use converger_core::observe::{Observation, ObservedGuest, Reading, Status};
use serde_json::json;

use crate::desk::{Desk, Guest, cluster_of};
use crate::server::{Reply, Server, block_on, bounds, start, token};

#[derive(Default)]
struct Rack {
    server: Option<Server>,
}

impl Stage for Rack {
    type Observer = Proxmox;

    fn set_up(&mut self, truth: &Observation) -> Proxmox {
        let desk = desk(truth);
        let server = start(move |seen| Reply::Answer(desk.answer(&seen.method, &seen.path)));
        let endpoint = Endpoint::new(&server.url(), server.pinned()).expect("an address");
        self.server = Some(server);
        let name = EnvironmentName::new("stage").expect("a name");
        let environment = Environment { name, cluster: None, endpoints: vec![endpoint], token: token(), bounds: bounds() };
        let observer = Proxmox::new(environment).expect("an observer");
        // Proxmox has no way to read what waits without reading the config.
        let has_config = truth.guests.iter().any(|row| row.config.is_read());
        if has_config { observer } else { observer.with_needs(Needs::Declared([].into())) }
    }

    fn changes(&self) -> u64 {
        let requests = self.server.as_ref().map(Server::requests).unwrap_or_default();
        requests.iter().filter(|seen| seen.method != "GET").count() as u64
    }
}

#[test]
fn g4_the_proxmox_observer_reads_once_and_claims_no_more_than_the_truth() {
    assert_eq!(block_on(check(&mut Rack::default())), []);
}

#[test]
fn g9_nothing_but_the_words_of_the_core_comes_out() {
    for world in converger_adapters::conformance::worlds() {
        let mut rack = Rack::default();
        let report = block_on(rack.set_up(&world.truth).report(&world.scope)).expect("a reading");
        let mut bytes = Vec::new();
        converger_core::artifact::write_observation(&mut bytes, &report.reading).expect("written");
        let again = converger_core::observe::parse(&bytes).unwrap_or_else(|faults| panic!("{}: {faults:?}", world.name));
        assert_eq!(again.guests, report.reading.guests, "{}", world.name);
    }
}

fn desk(truth: &Observation) -> Desk {
    let nodes: Vec<(&str, u8)> = truth.nodes.iter().map(|node| (node.name.as_str(), u8::from(node.online))).collect();
    let cluster = cluster_of("stage", u8::from(truth.quorate), &nodes);
    let guests = truth.guests.iter().map(|row| (row.vmid.get(), guest(truth, row)));
    let mut desk = Desk::with(&cluster, guests);
    desk.forbidden = truth.guests.iter().filter(|row| is_hidden(row)).map(|row| row.vmid.get()).collect::<BTreeSet<_>>();
    if !truth.complete {
        // Somebody is there whom the list does not show.
        let hidden = Guest { kind: "qemu", node: "n1".into(), listed: None, own: None, current: "{}".into(), pending: "[]".into() };
        desk.guests.insert(101, hidden);
        desk.forbidden.insert(101);
    }
    desk
}

fn is_hidden(row: &ObservedGuest) -> bool {
    let is_known = matches!(row.status, Status::Known(_));
    let has_no_word = matches!(&row.ha, Reading::Read(Some(ha)) if ha.state.is_none());
    has_no_word || is_known && (!row.lock.is_read() || !row.tags.is_read() || !row.template.is_read())
}

fn guest(truth: &Observation, row: &ObservedGuest) -> Guest {
    let node = truth.node_of(row).map_or("n1", |node| node.name.as_str()).to_owned();
    let raw = row.run_state.as_deref().unwrap_or(match &row.status {
        Status::Known(state) => state.word(),
        Status::Unknown(_) => "unknown",
    });
    let tags = row.tags.as_ref().read().map(|tags| tags.iter().collect::<Vec<_>>().join(";"));
    let ha = row.ha.as_ref().read().and_then(|ha| ha.as_ref()).and_then(|ha| ha.state.clone());
    let mut listed = json!({"vmid": row.vmid.get(), "type": row.kind.word(), "node": node, "status": raw});
    let optional = [
        ("name", row.name.as_deref().map(|name| json!(name))),
        ("lock", row.lock.as_ref().read().and_then(|lock| lock.as_ref()).map(|lock| json!(lock))),
        ("tags", tags.as_ref().map(|tags| json!(tags))),
        ("hastate", ha.as_ref().map(|ha| json!(ha))),
        ("template", row.template.read().map(|template| json!(u8::from(template)))),
    ];
    for (key, value) in optional {
        if let Some(value) = value {
            listed[key] = value;
        }
    }
    let status = json!({"status": raw, "name": row.name, "ha": {"managed": u8::from(ha.is_some()), "state": ha}});
    Guest {
        kind: row.kind.word(),
        node,
        listed: Some(listed.to_string()),
        own: None,
        current: status.to_string(),
        pending: items(row, tags),
    }
}

/// The config as `/pending` lists it.
fn items(row: &ObservedGuest, tags: Option<String>) -> String {
    let name = if row.kind == Kind::Qemu { "name" } else { "hostname" };
    let mut items = vec![json!({"key": name, "value": row.name}), json!({"key": "tags", "value": tags.unwrap_or_default()})];
    for (field, value) in row.config.as_ref().read().map(|config| config.values()).unwrap_or_default() {
        items.push(json!({"key": field.word(), "value": kept(value)}));
    }
    let identity = row.identity.as_ref().read();
    match identity.map(|identity| &**identity) {
        Some(Identity::Qemu { uuid, ctime }) => {
            items.extend(uuid.as_ref().map(|uuid| json!({"key": "smbios1", "value": format!("uuid={uuid}")})));
            items.extend(ctime.map(|ctime| json!({"key": "meta", "value": format!("creation-qemu=9,ctime={ctime}")})));
        }
        Some(Identity::Lxc { rootfs, .. }) => {
            items.extend(rootfs.as_ref().map(|volume| json!({"key": "rootfs", "value": format!("{volume},size=1G")})))
        }
        None => {}
    }
    items.push(json!({"key": "digest", "value": "0fe8"}));
    serde_json::Value::Array(items).to_string()
}

fn kept(value: &Value) -> serde_json::Value {
    match value {
        Value::Flag(flag) => json!(u8::from(*flag)),
        Value::Count(number) | Value::Mib(number) => json!(number.to_string()),
        Value::Thousandths(number) => json!(format!("{}.{:03}", number / 1000, number % 1000)),
        Value::Text(text) => json!(format!("{text}\n")),
        Value::Startup(startup) => json!(format!("order={}", startup.order.expect("an order"))),
        Value::Boot(Boot::Devices(devices)) => json!(format!("order={}", devices.join(";"))),
        other => panic!("no world has {other:?}"),
    }
}
