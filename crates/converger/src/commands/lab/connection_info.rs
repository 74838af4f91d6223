//! How a lab is reached: printed for people, and written into a directory for programs.

use std::fmt::Write as _;

use converger_lab::WorldSpec;
use converger_lab::server::{ClockMode, LabCertificates, ServedNode};
use serde_json::{Value, json};

use super::CommandError;
use super::lab_directory::{AUTHORITY, CARD, LabDirectory, SECRET};

/// The state directory of an apply: beside the lab, because another lab has another history.
const STATE_DIRECTORY: &str = "state";

pub(super) struct LabConnectionInfo {
    flavour: u8,
    /// The name of the cluster, or of the single node without one.
    cluster: Option<String>,
    guests: usize,
    fingerprint: String,
    authority: String,
    /// The first token and its secret. A lab without a token accepts tickets only.
    token: Option<(String, String)>,
    /// What moves its time, as converger.toml has it.
    clock: &'static str,
}

impl LabConnectionInfo {
    pub(super) fn new(spec: &WorldSpec, identity: &LabCertificates, clock: ClockMode) -> Self {
        Self {
            clock: if matches!(clock, ClockMode::Virtual { .. }) { "clock = \"requests\"\n" } else { "" },
            flavour: spec.flavour.major(),
            cluster: spec.cluster.as_ref().or_else(|| spec.nodes.keys().next()).cloned(),
            guests: spec.guests.len(),
            fingerprint: identity.fingerprint(),
            authority: identity.authority_pem().to_owned(),
            token: spec.tokens.iter().next().map(|(id, token)| (id.clone(), token.secret.clone())),
        }
    }

    /// How to reach the lab, for people.
    pub(super) fn render(&self, served_nodes: &[ServedNode], directory: Option<&LabDirectory>) -> String {
        let mut text = format!("lab: Proxmox VE {} with {} guests\n", self.flavour, self.guests);
        let mut line = |name: &str, value: &str| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {name:<12} {value}");
        };
        for served_node in served_nodes {
            line(&served_node.node, &format!("https://{}", served_node.address));
        }
        line("fingerprint", &self.fingerprint);
        match &self.token {
            Some((id, secret)) => line("token", &format!("{id}={secret}")),
            None => line("token", "none: the world has no `tokens`"),
        }
        if let Some(note) = directory.and_then(LabDirectory::describe_kept_config) {
            line("kept", &note);
        }
        text.push_str("Ctrl-C ends it.\n");
        text
    }

    /// The same for programs: a converger.toml for this one, and for others a card with the certificate of the authority.
    ///
    /// lab.json is written last: a program that waits for it finds all other files.
    pub(super) fn write_files(&self, directory: &LabDirectory, served_nodes: &[ServedNode]) -> Result<(), CommandError> {
        if let Some((id, secret)) = &self.token {
            directory.write_private(SECRET, &format!("{secret}\n"))?;
            directory.write_config(&self.config_toml(id, served_nodes))?;
        }
        directory.write_public(AUTHORITY, &self.authority)?;
        directory.write_public(CARD, &format!("{:#}\n", self.card_json(served_nodes)))
    }

    fn config_toml(&self, id: &str, served_nodes: &[ServedNode]) -> String {
        let pin = &self.fingerprint;
        let endpoint =
            |served_node: &ServedNode| format!("  {{ url = \"https://{}\", fingerprints = [\"{pin}\"] }},\n", served_node.address);
        let endpoints: String = served_nodes.iter().map(endpoint).collect();
        // A string of JSON is one of TOML.
        let cluster = self.cluster.as_ref().map(|name| format!("cluster = {}\n", json!(name))).unwrap_or_default();
        let (id, clock) = (json!(id), self.clock);
        format!(
            "[environments.lab]\nmode = \"solo\"\n{cluster}{clock}token = {id}\nsecret = {{ file = \"{SECRET}\" }}\nendpoints = [\n{endpoints}]\n\n[store]\ndirectory = \"{STATE_DIRECTORY}\"\n"
        )
    }

    fn card_json(&self, served_nodes: &[ServedNode]) -> Value {
        let node = |served_node: &ServedNode| json!({ "node": served_node.node, "host": served_node.address.ip(), "port": served_node.address.port() });
        let nodes: Vec<Value> = served_nodes.iter().map(node).collect();
        let token = self.token.as_ref().map(|(id, _)| json!({ "id": id, "secret": { "file": SECRET } }));
        json!({
            "schema": "converger.lab/1", "flavour": self.flavour, "nodes": nodes, "fingerprint": self.fingerprint,
            "authority": { "file": AUTHORITY }, "token": token
        })
    }
}
