//! Values that differ between two runs of a scenario without meaning: ports, certificates, times of this machine, names of runs and tasks,
//! and digests, which depend on the planning machine (it is protected from itself).
//!
//! Ids and times of the lab's own world stay, because they come from the scenario. Each value keeps its name throughout a scenario, so that
//! equal values are recognisable.

use std::cell::RefCell;

/// A displayed fingerprint: 32 pairs with colons.
const FINGERPRINT_CHARS: usize = 95;

/// Replaces volatile values.
pub(crate) struct VolatileValues {
    known: Vec<(String, String)>,
    /// The files of the scenario: values in them are intentional and stay.
    scenario_files: Vec<String>,
    /// Runs and digests, in the order of their appearance.
    runs: RefCell<Vec<String>>,
    digests: RefCell<Vec<String>>,
}

/// Values that occur only with applies.
const RUN_CHARS: usize = 17;
const DIGEST_CHARS: usize = 71;
/// `sha256:` and the first twelve digits.
const SHORT_DIGEST_CHARS: usize = 19;

/// The name of a ledger, its public key, and a root hash.
const LOG_CHARS: usize = 26;
const KEY_CHARS: usize = 80;
const ROOT_CHARS: usize = 44;

impl VolatileValues {
    pub(crate) fn new(known: Vec<(String, String)>, files: Vec<Vec<u8>>) -> Self {
        let written = files.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect();
        Self { known, scenario_files: written, runs: RefCell::default(), digests: RefCell::default() }
    }

    /// Replaces these values with names.
    pub(crate) fn replace_values(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (found, name) in &self.known {
            text = text.replace(found, name);
        }
        // A port that is being closed resets queued connections and refuses later ones.
        text = text.replace(": connection reset", ": connection refused");
        for before in ["read at ", "observed at ", "since ", "\"taken_at\": \""] {
            text = replace_times(&text, before);
        }
        let text = replace_numbers(&text, "\"at_ms\": ", "<time>");
        let text = replace_parts(&text, DIGEST_CHARS, |part| is_digest(part).then(|| self.name_digest(part)));
        let text = replace_parts(&text, SHORT_DIGEST_CHARS, |part| is_digest(part).then(|| self.name_short_digest(part)));
        // The clock difference is in whole seconds and varies by one with the duration of a request.
        self.replace_fingerprints(&replace_numbers(&text, "clock is ", "<some>"))
    }

    /// Like [`Self::replace_values`], with the additional values of an apply.
    pub(crate) fn replace_run_values(&self, text: &str) -> String {
        let text = replace_parts(&self.replace_values(text), RUN_CHARS, |part| is_run(part).then(|| self.name_run(part)));
        let text = replace_parts(&text, 20, |part| is_time(part).then(|| "<time>".to_owned()));
        let text = replace_parts(&text, 16, |part| is_compact_time(part).then(|| "<time>".to_owned()));
        let text = replace_numbers(&replace_numbers(&text, "process: ", "<pid>"), "(process ", "<pid>");
        let text = replace_receipts(&text);
        let text = replace_parts(&text, KEY_CHARS, |part| is_key(part).then(|| "<key of the ledger>".to_owned()));
        let text = replace_parts(&text, LOG_CHARS, |part| is_log(part).then(|| "<ledger>".to_owned()));
        let text = replace_parts(&text, ROOT_CHARS, |part| is_root(part).then(|| "<root>".to_owned()));
        // The age of an observation, in whole seconds of this machine.
        let text = replace_numbers(&text, "(age_secs: ", "<some>");
        replace_tasks(&text)
    }

    /// Fills the placeholders for digests and runs in an argument.
    pub(crate) fn fill_argument(&self, argument: &str) -> String {
        let mut argument = argument.to_owned();
        for (kind, list) in [("digest", &self.digests), ("run", &self.runs)] {
            for (number, value) in list.borrow().iter().enumerate() {
                argument = argument.replace(&format!("{{{kind}:{}}}", number + 1), value);
            }
        }
        argument
    }

    /// A digest that was shown by its first digits before has the same number.
    fn name_digest(&self, digest: &str) -> String {
        if let Some(short) = self.digests.borrow_mut().iter_mut().find(|known| digest.starts_with(known.as_str())) {
            digest.clone_into(short);
        }
        value_name(&self.digests, digest, "digest")
    }

    fn name_short_digest(&self, short: &str) -> String {
        let known = self.digests.borrow().iter().find(|known| known.starts_with(short)).cloned();
        value_name(&self.digests, &known.unwrap_or_else(|| short.to_owned()), "short digest")
    }

    fn name_run(&self, run: &str) -> String {
        value_name(&self.runs, run, "run")
    }

    /// Fingerprints that are in no file of the scenario belong to fresh certificates.
    fn replace_fingerprints(&self, text: &str) -> String {
        let (mut named, mut rest) = (String::new(), text);
        while let Some(character) = rest.chars().next() {
            let found = rest.get(..FINGERPRINT_CHARS).filter(|part| is_fingerprint(part));
            match found.filter(|found| !self.scenario_files.iter().any(|text| text.contains(*found))) {
                Some(found) => {
                    named.push_str("<another fingerprint>");
                    rest = &rest[found.len()..];
                }
                None => {
                    named.push(character);
                    rest = &rest[character.len_utf8()..];
                }
            }
        }
        named
    }
}

/// The name of a value: its number in the order of appearance.
fn value_name(list: &RefCell<Vec<String>>, value: &str, kind: &str) -> String {
    let mut list = list.borrow_mut();
    let at = list.iter().position(|own| own == value).unwrap_or_else(|| {
        list.push(value.to_owned());
        list.len() - 1
    });
    format!("<{kind} {}>", at + 1)
}

/// Replaces every part of this many bytes for which `name` returns something.
fn replace_parts(text: &str, bytes: usize, name: impl Fn(&str) -> Option<String>) -> String {
    let (mut result, mut rest) = (String::new(), text);
    while let Some(character) = rest.chars().next() {
        if let Some(name) = rest.get(..bytes).and_then(&name) {
            result.push_str(&name);
            rest = &rest[bytes..];
        } else {
            result.push(character);
            rest = &rest[character.len_utf8()..];
        }
    }
    result
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(is_hex)
}

/// Eight hexadecimal digits of its second and eight random ones.
fn is_run(text: &str) -> bool {
    text.split_once('-').is_some_and(|(second, chance)| second.len() == 8 && chance.len() == 8 && is_hex(second) && is_hex(chance))
}

/// A receipt has each entry in one line, the referenced blobs in others, and a signature in the last one.
fn replace_receipts(text: &str) -> String {
    let named = |line: &str| match line.split_once(' ') {
        Some(("extra", _)) => "extra <entry>".to_owned(),
        Some(("kept", _)) => "kept <bundle>".to_owned(),
        Some(("\u{2014}", _)) => "\u{2014} <ledger> <signature>".to_owned(),
        _ => line.to_owned(),
    };
    text.split('\n').map(named).collect::<Vec<_>>().join("\n")
}

fn is_log(text: &str) -> bool {
    text.strip_prefix("converger-").is_some_and(is_hex)
}

fn is_key(text: &str) -> bool {
    let parts: Vec<&str> = text.splitn(3, '+').collect();
    matches!(parts.as_slice(), [log, hash, key] if log.len() == LOG_CHARS && is_log(log) && hash.len() == 8 && is_hex(hash) && is_base64(key))
}

fn is_root(text: &str) -> bool {
    text.strip_suffix('=').is_some_and(|root| root.len() == ROOT_CHARS - 1 && is_base64(root))
}

fn is_base64(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/')
}

fn is_time(text: &str) -> bool {
    let shape = |(byte, model): (u8, u8)| if model == b'0' { byte.is_ascii_digit() } else { byte == model };
    text.len() == 20 && text.bytes().zip(*b"0000-00-00T00:00:00Z").all(shape)
}

/// Whether a text is a time as in a file name.
fn is_compact_time(text: &str) -> bool {
    let shape = |(byte, model): (u8, u8)| if model == b'0' { byte.is_ascii_digit() } else { byte == model };
    text.len() == 16 && text.bytes().zip(*b"00000000T000000Z").all(shape)
}

fn replace_numbers(text: &str, before: &str, name: &str) -> String {
    let mut parts = text.split(before);
    let mut result = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|character: char| character.is_ascii_digit());
        result += &format!("{before}{}{rest}", if rest.len() < part.len() { name } else { "" });
    }
    result
}

/// `UPID:node:pid:start:time:kind:about:user:` comes from the world; its numbers depend on the order of concurrent requests.
fn replace_tasks(text: &str) -> String {
    let mut parts = text.split("UPID:");
    let mut result = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let fields: Vec<&str> = part.splitn(8, ':').collect();
        match fields.as_slice() {
            [node, _, _, _, kind, about, _, rest] => result += &format!("<task {kind} {about} on {node}>{rest}"),
            _ => result += part,
        }
    }
    result
}

fn is_fingerprint(text: &str) -> bool {
    text.split(':').count() == 32 && text.split(':').all(|pair| pair.len() == 2 && pair.bytes().all(|digit| digit.is_ascii_hexdigit()))
}

/// Replaces the time after each `before`, up to its `Z`.
fn replace_times(text: &str, before: &str) -> String {
    let mut parts = text.split(before);
    let mut named = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        named.push_str(before);
        match part.split_once('Z') {
            Some((time, rest)) if time.len() == 19 => {
                named.push_str("<time>");
                named.push_str(rest);
            }
            _ => named.push_str(part),
        }
    }
    named
}

#[test]
fn replaces_only_volatile_values() {
    let (pinned, other) = (["AB"; 32].join(":"), ["CD"; 32].join(":"));
    let volatile = VolatileValues::new(vec![("127.0.0.1:4711".into(), "<pve1>".into())], vec![pinned.clone().into_bytes()]);
    assert_eq!(
        volatile.replace_values(&format!("127.0.0.1:4711 shows {other}, not {pinned}; read at 2026-11-15T12:00:00Z.")),
        format!("<pve1> shows <another fingerprint>, not {pinned}; read at <time>.")
    );
    let unchanged = "127.0.0.1:471 read at noon, 2026-11-15T12:00:00Z, AB:CD é";
    assert_eq!(volatile.replace_values(unchanged), unchanged);
}

#[test]
fn run_values_keep_their_names() {
    let volatile = VolatileValues::new(Vec::new(), Vec::new());
    let digest = format!("sha256:{}", "0a".repeat(32));
    let text =
        format!("{digest} 6b2a9c11-00ffee00-0 2026-11-15T12:00:00Z (process 12) UPID:pve1:0000A:0B:6B2A9C11:qmstart:100:a@pve!b: {digest}");
    let named = "<digest 1> <run 1>-0 <time> (process <pid>) <task qmstart 100 on pve1> <digest 1>";
    assert_eq!(volatile.replace_run_values(&text), named);
    assert_eq!(volatile.fill_argument("{run:1}-0 {digest:1} {run:2}"), format!("6b2a9c11-00ffee00-0 {digest} {{run:2}}"));
    let (other, short) = (format!("sha256:{}", "0b".repeat(32)), format!("sha256:{}", "0b".repeat(6)));
    assert_eq!(
        volatile.replace_values(&format!("{} {short} {other} {short}", &digest[..19])),
        "<short digest 1> <short digest 2> <digest 2> <short digest 2>"
    );
    assert_eq!(volatile.fill_argument("{digest:2}"), other);
}
