//! How a lab is reached: told to people, and left in a directory for programs.
//!
//! What never enters here: serving it.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use converger_lab::Setting;
use converger_lab::server::{Identity, Place};
use serde_json::{Value, json};

use super::{Stop, private};
use crate::files;

/// Leads this program here.
const CONFIG: &str = "converger.toml";
const SECRET: &str = "secret";
/// Lead any other program here.
const CARD: &str = "lab.json";
const AUTHORITY: &str = "ca.pem";

pub(super) struct Invitation {
    flavour: u8,
    guests: usize,
    fingerprint: String,
    authority: String,
    /// The first token and its secret, for people who try things. A world without one can be reached with tickets only.
    token: Option<(String, String)>,
}

impl Invitation {
    pub(super) fn new(setting: &Setting, identity: &Identity) -> Self {
        Self {
            flavour: setting.flavour.major(),
            guests: setting.guests.len(),
            fingerprint: identity.fingerprint(),
            authority: identity.authority_pem().to_owned(),
            token: setting.tokens.iter().next().map(|(id, token)| (id.clone(), token.secret.clone())),
        }
    }

    /// How to reach the lab, for people.
    pub(super) fn text(&self, places: &[Place]) -> String {
        let mut text = format!("lab: Proxmox VE {} with {} guests\n", self.flavour, self.guests);
        for place in places {
            let _ = writeln!(text, "  {:<12} https://{}", place.node, place.address);
        }
        let _ = writeln!(text, "  {:<12} {}", "fingerprint", self.fingerprint);
        if let Some((id, secret)) = &self.token {
            let _ = writeln!(text, "  {:<12} {id}={secret}", "token");
        }
        text.push_str("Ctrl-C ends it.\n");
        text
    }

    /// The same for programs: a converger.toml for this one, and for others a card with the certificate of the authority.
    pub(super) fn leave(&self, room: &Path, places: &[Place]) -> Result<(), Stop> {
        if let Some((id, secret)) = &self.token {
            private(&room.join(SECRET), &format!("{secret}\n"))?;
            private(&room.join(CONFIG), &self.config(id, places))?;
        }
        public(&room.join(AUTHORITY), &self.authority)?;
        public(&room.join(CARD), &format!("{:#}\n", self.card(places)))
    }

    fn config(&self, id: &str, places: &[Place]) -> String {
        let pin = &self.fingerprint;
        let endpoint = |place: &Place| format!("  {{ url = \"https://{}\", fingerprints = [\"{pin}\"] }},\n", place.address);
        let endpoints: Vec<String> = places.iter().map(endpoint).collect();
        format!(
            "# Leads to the lab that was started with `converger lab --into`.\n[environments.lab]\nmode = \"solo\"\ntoken = \"{id}\"\n\
             secret = {{ file = \"{SECRET}\" }}\nendpoints = [\n{}]\n",
            endpoints.concat()
        )
    }

    fn card(&self, places: &[Place]) -> Value {
        let node = |place: &Place| json!({ "node": place.node, "host": place.address.ip(), "port": place.address.port() });
        let nodes: Vec<Value> = places.iter().map(node).collect();
        let token = self.token.as_ref().map(|(id, _)| json!({ "id": id, "secret": { "file": SECRET } }));
        json!({
            "schema": "converger.lab/1", "flavour": self.flavour, "nodes": nodes, "fingerprint": self.fingerprint,
            "authority": { "file": AUTHORITY }, "token": token
        })
    }
}

fn public(path: &Path, text: &str) -> Result<(), Stop> {
    files::replace(path, |file| file.write_all(text.as_bytes()))
        .map_err(|error| Stop::failed(format!("cannot write {}: {error}", files::shown(path))))
}
