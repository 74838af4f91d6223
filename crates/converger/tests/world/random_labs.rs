//! Random labs on random days, from a seed: settings with odd guests, tokens with few privileges, and faults.

use converger_core::guest::GuestKind;
use converger_core::normalize::{Field, rule_of};
use converger_core::testing::Rng;
use converger_lab::{
    AclSpec, BadDay, FaultPlan, Flavour, GuestSpec, HaSpec, RequestFault, ResponseFault, ScalarSpec, TokenSpec, WorldSize, WorldSpec,
};

use crate::config_forms::known_forms;

/// The token of the client.
pub(crate) const TOKEN: &str = "root@pam!lab";

/// The token of another user, who may do everything.
pub(crate) const OTHER_TOKEN: &str = "root@pam!other=other";

/// A lab on a day.
pub(crate) struct LabDay {
    pub(crate) spec: WorldSpec,
    /// The time of the observation.
    pub(crate) at_ms: u64,
    /// The probability of interference around a request, in thousandths.
    pub(crate) interference_per_mille: u64,
}

/// Draws a day.
pub(crate) fn draw_day(rng: &mut Rng) -> LabDay {
    let flavour = rng.pick(&[Flavour::V7, Flavour::V8, Flavour::V9]).copied().unwrap_or_default();
    let nodes = rng.pick(&[1, 2, 2, 3, 3, 3, 4, 5]).copied().unwrap_or(1);
    let guests = 1 + u32::try_from(if rng.one_in(20) { rng.below(9) } else { rng.below(4) }).unwrap_or(0);
    let mut spec = WorldSpec::from_seed(rng.next_u64(), WorldSize { nodes, guests }, flavour);
    spec.tokens.insert(OTHER_TOKEN.trim_end_matches("=other").to_owned(), token("other", true));
    for index in 0..spec.guests.len() {
        vary_guest(rng, &mut spec, index);
    }
    restrict_token(rng, &mut spec);
    let span_ms = rng.pick(&[60_000, 60_000, 120_000, 600_000]).copied().unwrap_or(60_000);
    let (events, per_thousand) = *rng.pick(&[(0, 0), (2, 0), (6, 0), (3, 30), (10, 100)]).unwrap_or(&(0, 0));
    spec.faults = FaultPlan::from_seed(rng.next_u64(), &spec, BadDay { span_ms, events, per_thousand });
    spec.faults.requests = draw_strange_responses(rng);
    let at_ms = spec.start_ms + rng.below(span_ms);
    LabDay { spec, at_ms, interference_per_mille: *rng.pick(&[0, 0, 20, 100, 300]).unwrap_or(&0) }
}

fn token(secret: &str, full: bool) -> TokenSpec {
    TokenSpec { secret: secret.to_owned(), full, expire_s: 0 }
}

fn guest_kind(guest: &GuestSpec) -> GuestKind {
    match guest.kind {
        converger_lab::LabGuestKind::Qemu => GuestKind::Qemu,
        converger_lab::LabGuestKind::Lxc => GuestKind::Lxc,
    }
}

fn text_scalar(text: &str) -> ScalarSpec {
    ScalarSpec::Text(text.to_owned())
}

/// Makes a guest odd in random ways.
fn vary_guest(rng: &mut Rng, spec: &mut WorldSpec, index: usize) {
    let Some(guest) = spec.guests.get_mut(index) else { return };
    let kind = guest_kind(guest);
    if rng.one_in(12) {
        guest.name = None;
        guest.bare = rng.one_in(2);
    }
    if rng.one_in(15) {
        guest.config.insert("template".to_owned(), ScalarSpec::Flag(true));
        guest.state = None;
    }
    if rng.one_in(3) {
        for (key, form) in draw_forms(rng, kind) {
            guest.config.insert(key, text_scalar(form));
        }
    }
    if rng.one_in(8) {
        for (key, form) in draw_forms(rng, kind) {
            guest.pending.insert(key, text_scalar(form));
        }
        guest.pending_delete = draw_pending_removals(rng, guest);
    }
    if rng.one_in(8) {
        let service = if kind == GuestKind::Qemu { "vm" } else { "ct" };
        let id = format!("{service}:{}", guest.vmid);
        spec.ha.insert(id, draw_ha(rng));
    }
    let Some(guest) = spec.guests.get_mut(index).filter(|_| kind == GuestKind::Qemu && rng.one_in(40)) else { return };
    // An invalid birth mark: the guest cannot be identified.
    guest.config.insert("meta".to_owned(), text_scalar("creation-qemu=10.0.2,ctime=soon"));
}

/// A few keys of a kind, each in one of its forms.
fn draw_forms(rng: &mut Rng, kind: GuestKind) -> Vec<(String, &'static str)> {
    let fields: Vec<Field> = Field::ALL.into_iter().filter(|field| rule_of(kind, *field).is_some()).collect();
    let mut drawn = Vec::new();
    for _ in 0..1 + rng.below(4) {
        let field = rng.pick(&fields).copied().unwrap_or(Field::Cores);
        let form = rng.pick(&known_forms(kind, field)).map_or("", |(form, _)| *form);
        drawn.push((field.word().to_owned(), form));
    }
    drawn
}

fn draw_pending_removals(rng: &mut Rng, guest: &GuestSpec) -> Vec<String> {
    let present_keys = guest.config.keys().filter(|key| !guest.pending.contains_key(*key));
    present_keys.filter(|_| rng.one_in(4)).cloned().collect()
}

fn draw_ha(rng: &mut Rng) -> HaSpec {
    let state = rng.pick_word(&["started", "stopped", "ignored", "disabled"]).to_owned();
    let believed = rng.one_in(2).then(|| rng.pick_word(&["started", "fence", "migrate", "error", "recovery"]).to_owned());
    HaSpec { state: Some(state), believed }
}

/// A quarter of the tokens do not see everything, and some see nothing.
fn restrict_token(rng: &mut Rng, spec: &mut WorldSpec) {
    if !rng.one_in(4) {
        return;
    }
    spec.tokens.insert(TOKEN.to_owned(), token("lab", false));
    let ids: Vec<u32> = spec.guests.iter().map(|guest| guest.vmid).collect();
    let mut paths = vec![("/".to_owned(), !rng.one_in(3))];
    paths.extend(ids.iter().filter(|_| rng.one_in(2)).map(|vmid| (format!("/vms/{vmid}"), true)));
    paths.retain(|_| !rng.one_in(12));
    spec.acl = paths.into_iter().map(|(path, spreads)| acl_entry(path, "PVEAuditor", !spreads)).collect();
    if rng.one_in(3) {
        spec.acl.push(acl_entry(format!("/vms/{}", rng.pick(&ids).copied().unwrap_or(100)), "NoAccess", false));
    }
}

fn acl_entry(path: String, role: &str, here_only: bool) -> AclSpec {
    AclSpec { path, role: role.to_owned(), user: None, group: None, token: Some(TOKEN.to_owned()), here_only }
}

/// Responses that Proxmox never sends, but an intermediary might.
fn draw_strange_responses(rng: &mut Rng) -> Vec<RequestFault> {
    if !rng.one_in(6) {
        return Vec::new();
    }
    let answers = [
        (200, "OK", "<html><body>Sign in to the guest network</body></html>"),
        (200, "OK", "{\"data\":null,\"success\":1}"),
        (200, "OK", "{\"data\":\"text\",\"success\":1}"),
        (200, "OK", "{\"data\":[{\"vmid\":"),
        (200, "OK", ""),
        (200, "OK", "{\"data\":null,\"success\":0,\"status\":500,\"message\":\"got no worker upid - start worker failed\\n\"}"),
        (401, "Authentication failed!", ""),
        (403, "Permission check failed", "{\"data\":null}"),
        (301, "Moved Permanently", ""),
        (404, "Not Found", "<html>"),
        (501, "Method 'GET /x' not implemented", ""),
        (500, "hostname lookup 'pve9' failed - failed to get address info for: pve9: Name or service not known", ""),
    ];
    let (status, reason, body) = *rng.pick(&answers).unwrap_or(&(200, "OK", ""));
    let response_fault = ResponseFault::Instead { status, reason: reason.to_owned(), body: body.to_owned(), html: body.starts_with('<') };
    let nth = 1 + rng.below(16);
    vec![RequestFault { nth: Some(nth), fault: Some(response_fault), ..RequestFault::default() }]
}
