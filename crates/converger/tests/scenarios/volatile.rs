//! What differs from one telling of a story to the next, and means nothing: ports, certificates, the time of the reading.
//!
//! Digests, ids and times of the lab's own world are not among it: they come from the story.

/// A fingerprint as it is shown: 32 pairs with colons.
const FINGERPRINT_CHARS: usize = 95;

/// Whatever is to be replaced.
pub(crate) struct Volatile {
    known: Vec<(String, String)>,
    /// The files of the story: what stands there was written by somebody, and stays.
    written: Vec<String>,
}

impl Volatile {
    pub(crate) fn new(known: Vec<(String, String)>, files: Vec<Vec<u8>>) -> Self {
        Self { known, written: files.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect() }
    }

    /// The text with a name for each of those.
    pub(crate) fn replaced(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (found, name) in &self.known {
            text = text.replace(found, name);
        }
        for before in ["read at ", "seen at ", "\"taken_at\": \""] {
            text = with_times_named(&text, before);
        }
        self.with_fingerprints_named(&text)
    }

    /// Fingerprints that nobody wrote down are those of certificates that were made just now.
    fn with_fingerprints_named(&self, text: &str) -> String {
        let (mut named, mut rest) = (String::new(), text);
        while let Some(character) = rest.chars().next() {
            let found = rest.get(..FINGERPRINT_CHARS).filter(|part| is_fingerprint(part));
            match found.filter(|found| !self.written.iter().any(|text| text.contains(*found))) {
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

fn is_fingerprint(text: &str) -> bool {
    text.split(':').count() == 32 && text.split(':').all(|pair| pair.len() == 2 && pair.bytes().all(|digit| digit.is_ascii_hexdigit()))
}

/// The time after each `before`, up to its `Z`, without which it is none.
fn with_times_named(text: &str, before: &str) -> String {
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
fn what_is_volatile_is_named_and_nothing_else() {
    let (pinned, other) = (["AB"; 32].join(":"), ["CD"; 32].join(":"));
    let volatile = Volatile::new(vec![("127.0.0.1:4711".into(), "<pve1>".into())], vec![pinned.clone().into_bytes()]);
    assert_eq!(
        volatile.replaced(&format!("127.0.0.1:4711 shows {other}, not {pinned}; read at 2026-11-15T12:00:00Z.")),
        format!("<pve1> shows <another fingerprint>, not {pinned}; read at <time>.")
    );
    let kept = "127.0.0.1:471 read at noon, 2026-11-15T12:00:00Z, AB:CD é";
    assert_eq!(volatile.replaced(kept), kept);
}
