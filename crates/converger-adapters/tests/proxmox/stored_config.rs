//! A guest's config as Proxmox stores it: how a written form is stored and how it reads back (`docs/proxmox-facts.md`). It is implemented
//! independently of the codec.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// A release of Proxmox VE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProxmoxRelease {
    Seven,
    Eight,
    Nine,
}

impl ProxmoxRelease {
    pub(crate) const ALL: [Self; 3] = [Self::Seven, Self::Eight, Self::Nine];
}

/// The keys of one guest, as text.
#[derive(Clone, Debug)]
pub(crate) struct StoredConfig {
    pub(crate) flavour: ProxmoxRelease,
    pub(crate) kind: &'static str,
    pub(crate) keys: BTreeMap<String, String>,
}

impl StoredConfig {
    /// Stores a form, as the handler of PUT does.
    pub(crate) fn write_form(&mut self, form: &str) {
        for (key, value) in parse_form(form) {
            match key.as_str() {
                "digest" => {}
                "delete" => value.split(',').for_each(|key| {
                    self.keys.remove(key);
                }),
                _ => self.set_key(&key, &value),
            }
        }
    }

    fn set_key(&mut self, key: &str, value: &str) {
        let stored = match key {
            "description" => value.trim_end().to_owned(),
            "tags" => normalize_tags(value),
            "boot" => normalize_boot(value),
            _ => value.trim().to_owned(),
        };
        if key == "description" && stored.is_empty() {
            self.keys.remove(key);
        } else {
            self.keys.insert(key.to_owned(), if key == "tags" && stored.is_empty() { " ".into() } else { stored });
        }
    }

    /// The list that `/pending` returns, with its types.
    pub(crate) fn pending_items(&self) -> String {
        let items = self.keys.iter().map(|(key, text)| json!({"key": key, "value": self.typed_value(key, text)}));
        Value::Array(items.collect()).to_string()
    }

    fn typed_value(&self, key: &str, text: &str) -> Value {
        let is_number = match key {
            "memory" => self.kind == "lxc" || self.flavour == ProxmoxRelease::Seven,
            "balloon" | "cores" | "cpuunits" | "onboot" | "sockets" | "swap" | "numa" | "protection" => true,
            _ => false,
        };
        match (key, text.parse::<u64>()) {
            (_, Ok(number)) if is_number => json!(number),
            ("description", _) if self.kind == "lxc" => json!(format!("{text}\n")),
            _ => json!(text),
        }
    }
}

fn normalize_tags(text: &str) -> String {
    let mut words: Vec<String> = text.split([',', ';', ' ']).filter(|word| !word.is_empty()).map(str::to_lowercase).collect();
    words.sort();
    words.dedup();
    words.join(";")
}

fn normalize_boot(text: &str) -> String {
    let order = text.split(',').find_map(|part| part.strip_prefix("order="));
    order.map_or_else(|| text.to_owned(), |order| format!("order={order}"))
}

/// Splits a form as Proxmox does.
fn parse_form(form: &str) -> Vec<(String, String)> {
    let pairs = form.split(['&', ';']).map(|pair| {
        let mut parts = pair.split('=');
        (percent_decode(parts.next().unwrap_or("")), percent_decode(parts.next().unwrap_or("")))
    });
    pairs.collect()
}

fn percent_decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut plain = Vec::new();
    let mut index = 0;
    while index < bytes.len() {
        if bytes[index] == b'%' {
            plain.push(u8::from_str_radix(&text[index + 1..index + 3], 16).expect("hexadecimal"));
            index += 3;
        } else {
            plain.push(if bytes[index] == b'+' { b' ' } else { bytes[index] });
            index += 1;
        }
    }
    String::from_utf8(plain).expect("UTF-8")
}
