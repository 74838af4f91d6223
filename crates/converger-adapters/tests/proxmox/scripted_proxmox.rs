//! A scripted Proxmox that responds from a few facts about guests. It only supports the client's requests; the lab is the full simulation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use converger_adapters::proxmox::client::{ProxmoxSession, ProxmoxTransport};
use converger_adapters::proxmox::codec::{HttpRequest, HttpResponse, ProxmoxFailure};
use converger_adapters::proxmox::observe::{self, ObservationRequest, ProxmoxReading, ReadProgress, ReadSet, ReadingError};
use converger_core::desired::Scope;
use converger_core::guest::{EnvironmentName, Vmid};
use serde_json::{Value, json};

/// A guest: the JSON of each response about it.
#[derive(Clone, Debug)]
pub(crate) struct ScriptedGuest {
    pub(crate) kind: &'static str,
    pub(crate) node: String,
    /// The row in the cluster's list; `None` hides the guest there.
    pub(crate) listed: Option<String>,
    /// The row in the list of its own node; `None` derives it from `listed` and `current`.
    pub(crate) own: Option<String>,
    pub(crate) current: String,
    pub(crate) pending: String,
}

impl ScriptedGuest {
    /// The row in the list of its own node. A guest with a process is `running` there, whatever its monitor reports.
    fn own_row(&self, vmid: u32, is_full: bool) -> String {
        let parsed = |text: &str| serde_json::from_str(text).unwrap_or(Value::Null);
        if let Some(own) = &self.own {
            return own.clone();
        }
        let (listed, current) = (self.listed.as_deref().map_or(Value::Null, parsed), parsed(&self.current));
        let process = match listed["status"].as_str() {
            Some("unknown") | None => current["status"].clone(),
            Some("stopped") => "stopped".into(),
            Some(_) => "running".into(),
        };
        let mut row = json!({ "vmid": vmid, "status": process, "uptime": if process == "running" { 105 } else { 0 } });
        for (key, own) in
            [("name", "name"), ("lock", "lock"), ("tags", "tags"), ("maxcpu", "cpus"), ("maxmem", "maxmem"), ("template", "template")]
        {
            let value = [&listed[key], &current[key]].into_iter().find(|value| value.is_string() || value.is_number());
            row.as_object_mut().expect("a row").extend(value.map(|value| (own.to_owned(), value.clone())));
        }
        if is_full {
            let monitor = [&current["qmpstatus"], &current["status"]].into_iter().find(|state| state.is_string());
            row["qmpstatus"] = monitor.cloned().unwrap_or_default();
        }
        row.to_string()
    }
}

/// The facts and the overrides.
#[derive(Clone, Default)]
pub(crate) struct ScriptedProxmox {
    pub(crate) cluster: String,
    pub(crate) guests: BTreeMap<u32, ScriptedGuest>,
    /// Guests on which the token has no privilege.
    pub(crate) forbidden: BTreeSet<u32>,
    /// Responses that take precedence, by the end of the path. They are used in order; the last one stays.
    pub(crate) overrides: Arc<Mutex<BTreeMap<String, Vec<HttpResponse>>>>,
    pub(crate) log: Arc<Mutex<Vec<String>>>,
}

pub(crate) const STANDALONE_NODE: &str =
    r#"[{"type":"node","name":"n1","online":1,"local":1,"nodeid":0,"id":"node/n1","ip":"10.0.0.1","level":""}]"#;

pub(crate) fn cluster_rows(name: &str, quorate: u8, nodes: &[(&str, u8)]) -> String {
    let rows = nodes.iter().enumerate().map(|(index, (node, online))| {
        format!(
            r#"{{"type":"node","name":"{node}","online":{online},"local":{},"nodeid":{index},"id":"node/{node}"}}"#,
            u8::from(index == 0)
        )
    });
    let whole = format!(r#"{{"type":"cluster","name":"{name}","quorate":{quorate},"nodes":{},"version":2,"id":"cluster"}}"#, nodes.len());
    format!("[{}]", std::iter::once(whole).chain(rows).collect::<Vec<_>>().join(","))
}

pub(crate) fn success_response(data: &str) -> HttpResponse {
    HttpResponse { status: 200, reason: "OK".into(), body: format!(r#"{{"success":1,"data":{data}}}"#).into() }
}

pub(crate) fn failure_response(status: &str, message: &str) -> HttpResponse {
    let body = format!(r#"{{"success":0,"status":{status},"message":"{message}\n","data":null}}"#);
    HttpResponse { status: 200, reason: "OK".into(), body: body.into() }
}

pub(crate) fn raw_response(status: u16, reason: &str) -> HttpResponse {
    HttpResponse { status, reason: reason.into(), body: Vec::new() }
}

/// A plain stopped guest named `g<vmid>`.
pub(crate) fn stopped_guest(vmid: u32, node: &str) -> ScriptedGuest {
    let kind = "qemu";
    ScriptedGuest {
        kind,
        node: node.to_owned(),
        listed: Some(format!(
            r#"{{"id":"{kind}/{vmid}","vmid":{vmid},"type":"{kind}","node":"{node}","status":"stopped","name":"g{vmid}","template":0,"maxcpu":1,"maxmem":536870912,"cpu":0.5,"netin":0,"uptime":100}}"#
        )),
        own: None,
        current: format!(r#"{{"vmid":{vmid},"status":"stopped","qmpstatus":"stopped","name":"g{vmid}","ha":{{"managed":0}}}}"#),
        pending: format!(
            r#"[{{"key":"name","value":"g{vmid}"}},{{"key":"cores","value":2}},{{"key":"memory","value":"1024"}},{{"key":"digest","value":"0fe8"}}]"#
        ),
    }
}

impl ScriptedProxmox {
    pub(crate) fn with_guests(cluster: &str, guests: impl IntoIterator<Item = (u32, ScriptedGuest)>) -> Self {
        Self { cluster: cluster.to_owned(), guests: guests.into_iter().collect(), ..Self::default() }
    }

    pub(crate) fn with_override(self, path_end: &str, answers: Vec<HttpResponse>) -> Self {
        self.overrides.lock().expect("unpoisoned").insert(path_end.to_owned(), answers);
        self
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.log.lock().expect("unpoisoned").clone()
    }

    pub(crate) fn respond(&self, method: &str, path: &str) -> HttpResponse {
        self.log.lock().expect("unpoisoned").push(format!("{method} {path}"));
        if let Some(answer) = self.take_override(path) {
            return answer;
        }
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let segments: Vec<&str> = path.trim_start_matches("/api2/extjs/").split('/').collect();
        match segments.as_slice() {
            ["version"] => success_response(r#"{"version":"9.2.11","release":"9.2","repoid":"x"}"#),
            ["cluster", "status"] => success_response(&self.cluster),
            ["cluster", "resources"] => success_response(&self.list_guests()),
            ["cluster", "nextid"] => self.next_id(query.trim_start_matches("vmid=")),
            ["access", "permissions"] => self.permissions(query.trim_start_matches("path=%2Fvms%2F")),
            ["nodes", node, kind] => success_response(&self.node_list(node, kind, query == "full=1")),
            ["nodes", node, kind, vmid, rest @ ..] => self.respond_for_guest(node, kind, vmid, &rest.join("/")),
            _ => failure_response("501", "Method 'GET /x' not implemented"),
        }
    }

    fn take_override(&self, path: &str) -> Option<HttpResponse> {
        let mut instead = self.overrides.lock().expect("unpoisoned");
        let (_, answers) = instead.iter_mut().find(|(end, _)| path.ends_with(end.as_str()))?;
        if answers.len() > 1 { Some(answers.remove(0)) } else { answers.first().cloned() }
    }

    fn may_see(&self, vmid: u32) -> bool {
        !self.forbidden.contains(&vmid)
    }

    fn list_guests(&self) -> String {
        let rows = self.guests.iter().filter(|(vmid, _)| self.may_see(**vmid)).filter_map(|(_, guest)| guest.listed.clone());
        format!("[{}]", rows.collect::<Vec<_>>().join(","))
    }

    fn node_list(&self, node: &str, kind: &str, is_full: bool) -> String {
        let matching_guests = self.guests.iter().filter(|(vmid, guest)| guest.node == node && guest.kind == kind && self.may_see(**vmid));
        let rows = matching_guests.map(|(vmid, guest)| guest.own_row(*vmid, is_full));
        format!("[{}]", rows.collect::<Vec<_>>().join(","))
    }

    fn next_id(&self, vmid: &str) -> HttpResponse {
        let is_taken = vmid.parse().is_ok_and(|vmid: u32| self.guests.contains_key(&vmid));
        if !is_taken {
            return success_response(&format!("\"{vmid}\""));
        }
        let body = format!(
            r#"{{"success":0,"status":"400","message":"Parameter verification failed.\n","errors":{{"vmid":"VM {vmid} already exists"}},"data":null}}"#
        );
        HttpResponse { body: body.into(), ..success_response("null") }
    }

    fn permissions(&self, vmid: &str) -> HttpResponse {
        let granted = vmid.parse().is_ok_and(|vmid| self.may_see(vmid));
        let privileges = if granted { r#"{"VM.Audit":1,"VM.PowerMgmt":0}"# } else { "{}" };
        success_response(&format!(r#"{{"/vms/{vmid}":{privileges}}}"#))
    }

    fn respond_for_guest(&self, node: &str, kind: &str, vmid: &str, rest: &str) -> HttpResponse {
        let number: u32 = vmid.parse().expect("an id");
        if !self.may_see(number) {
            return failure_response("\"403\"", &format!("Permission check failed (/vms/{vmid}, VM.Audit)"));
        }
        let folder = if kind == "qemu" { "qemu-server" } else { "lxc" };
        let Some(guest) = self.guests.get(&number).filter(|guest| guest.node == node && guest.kind == kind) else {
            return failure_response("500", &format!("Configuration file 'nodes/{node}/{folder}/{vmid}.conf' does not exist"));
        };
        match rest {
            "status/current" => success_response(&guest.current),
            "pending" => success_response(&guest.pending),
            _ => failure_response("501", "not implemented"),
        }
    }
}

impl ProxmoxTransport for ScriptedProxmox {
    async fn exchange(&self, request: &HttpRequest) -> Result<HttpResponse, ProxmoxFailure> {
        Ok(self.respond(request.method().word(), request.path()))
    }

    fn endpoint_name(&self) -> &str {
        "desk"
    }
}

pub(crate) fn scope_of(ids: &[u64]) -> Scope {
    Scope::new(ids.iter().filter_map(|id| Vmid::new(*id)).collect())
}

/// Takes an observation, without sockets.
pub(crate) fn take_reading(
    proxmox: &ScriptedProxmox,
    ids: &[u64],
    needs: &ReadSet,
    cluster: Option<&str>,
) -> Result<ProxmoxReading, ReadingError> {
    take_reading_with_progress(proxmox, ids, needs, cluster, &|_, _| {})
}

/// The same, with reports of its progress.
pub(crate) fn take_reading_with_progress(
    proxmox: &ScriptedProxmox,
    ids: &[u64],
    needs: &ReadSet,
    cluster: Option<&str>,
    progress: ReadProgress<'_>,
) -> Result<ProxmoxReading, ReadingError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let environment = EnvironmentName::new("lab").expect("a name");
    let scope = scope_of(ids);
    let question = ObservationRequest { environment: &environment, cluster, token: "svc@pve!probe", scope: &scope, needs };
    runtime.block_on(observe::take_reading_with_progress(&ProxmoxSession::new(proxmox.clone()), &question, progress))
}
