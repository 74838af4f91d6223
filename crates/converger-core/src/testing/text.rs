//! Trees as text: JSON with members in any order, YAML in many styles, and texts with random damage.

use serde_json::{Map, Value};

use super::Rng;

/// JSON on one line.
#[must_use]
pub fn to_json(value: &Value) -> String {
    value.to_string()
}

/// The JSON with the members of maps, and the items of unordered lists, in random order.
#[must_use]
pub fn to_shuffled_json(value: &Value, rng: &mut Rng) -> String {
    let mut out = String::new();
    write_shuffled(value, "", rng, &mut out);
    out
}

/// Lists whose order does not matter. In `boot` it does.
const UNORDERED_LISTS: &[&str] = &["guests", "nodes", "tags", "after", "pending", "hotplug"];

fn write_shuffled(value: &Value, key: &str, rng: &mut Rng, out: &mut String) {
    let space = |rng: &mut Rng, out: &mut String| out.push_str(rng.pick_word(&["", "", " ", "\n\t"]));
    match value {
        Value::Object(map) => {
            let mut members: Vec<(&String, &Value)> = map.iter().collect();
            rng.shuffle(&mut members);
            out.push('{');
            for (index, (name, member)) in members.into_iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                space(rng, out);
                out.push_str(&quote(name));
                out.push(':');
                space(rng, out);
                write_shuffled(member, name, rng, out);
            }
            out.push('}');
        }
        Value::Array(list) => {
            let mut items: Vec<&Value> = list.iter().collect();
            if UNORDERED_LISTS.contains(&key) {
                rng.shuffle(&mut items);
            }
            out.push('[');
            for (index, item) in items.into_iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                space(rng, out);
                write_shuffled(item, key, rng, out);
            }
            out.push(']');
        }
        scalar => out.push_str(&scalar.to_string()),
    }
}

/// YAML with each value in a random style.
#[must_use]
pub fn to_random_yaml(value: &Value, rng: &mut Rng) -> String {
    let mut out = String::from(rng.pick_word(&["", "# what is wanted\n", "---\n"]));
    match value {
        Value::Object(map) if !map.is_empty() => write_block_map(map, 0, rng, &mut out),
        other => {
            out.push_str(&format_flow(other, rng));
            out.push('\n');
        }
    }
    out
}

fn write_block_map(map: &Map<String, Value>, indent: usize, rng: &mut Rng, out: &mut String) {
    for (index, (key, value)) in map.iter().enumerate() {
        // The first member of a list item follows its dash.
        let follows_dash = index == 0 && out.ends_with("- ");
        out.push_str(&" ".repeat(if follows_dash { 0 } else { indent }));
        out.push_str(&format_key(key, rng));
        out.push(':');
        write_block_value(value, indent, rng, out);
    }
}

/// Writes what follows `key:`, up to the end of its last line.
fn write_block_value(value: &Value, indent: usize, rng: &mut Rng, out: &mut String) {
    let deeper = indent + if rng.one_in(3) { 4 } else { 2 };
    match value {
        Value::Object(map) if !map.is_empty() && !rng.one_in(4) => {
            out.push('\n');
            write_block_map(map, deeper, rng, out);
        }
        Value::Array(list) if !list.is_empty() && !rng.one_in(4) => {
            out.push('\n');
            write_block_list(list, deeper, rng, out);
        }
        Value::String(text) if is_plain_lines(text) && rng.one_in(2) => {
            out.push_str(" |-\n");
            for line in text.lines() {
                out.push_str(&format!("{}{line}\n", " ".repeat(deeper)));
            }
        }
        other => {
            out.push(' ');
            out.push_str(&format_flow(other, rng));
            out.push_str(rng.pick_word(&["\n", "\n", "  # why\n", " \n\n"]));
        }
    }
}

fn write_block_list(list: &[Value], indent: usize, rng: &mut Rng, out: &mut String) {
    for item in list {
        out.push_str(&" ".repeat(indent));
        out.push_str("- ");
        match item {
            Value::Object(map) if !map.is_empty() && !rng.one_in(6) => write_block_map(map, indent + 2, rng, out),
            other => {
                out.push_str(&format_flow(other, rng));
                out.push('\n');
            }
        }
    }
}

/// Formats a value on one line.
fn format_flow(value: &Value, rng: &mut Rng) -> String {
    match value {
        Value::Object(map) => {
            let members: Vec<String> =
                map.iter().map(|(key, value)| format!("{}: {}", format_key(key, rng), format_flow(value, rng))).collect();
            format!("{{{}}}", members.join(", "))
        }
        Value::Array(list) => {
            let items: Vec<String> = list.iter().map(|item| format_flow(item, rng)).collect();
            format!("[{}]", items.join(", "))
        }
        Value::String(text) => format_text(text, rng),
        scalar => scalar.to_string(),
    }
}

fn format_key(key: &str, rng: &mut Rng) -> String {
    if rng.one_in(12) { quote(key) } else { key.to_owned() }
}

fn format_text(text: &str, rng: &mut Rng) -> String {
    let is_simple = text.chars().all(|character| character.is_ascii_alphanumeric() || " #-.".contains(character)) && !text.is_empty();
    match rng.below(3) {
        0 if is_plain(text) => text.to_owned(),
        1 if is_simple => format!("'{text}'"),
        _ => quote(text),
    }
}

/// Whether every YAML parser reads a bare word as exactly this text.
fn is_plain(text: &str) -> bool {
    let amount = text.strip_suffix("MiB").or_else(|| text.strip_suffix("GiB"));
    let is_amount = amount.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()));
    let starts = text.starts_with(|first: char| first.is_ascii_alphabetic());
    let fits = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'));
    let is_keyword = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"].iter().any(|word| text.eq_ignore_ascii_case(word));
    is_amount || (starts && fits && !is_keyword)
}

/// Whether it has several lines that a literal block preserves.
fn is_plain_lines(text: &str) -> bool {
    text.contains('\n') && text.lines().all(|line| !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_lowercase()))
}

/// Formats a string in double quotes, valid in JSON and YAML.
fn quote(text: &str) -> String {
    Value::from(text).to_string()
}

/// Damages the text randomly: bytes flipped, removed, inserted or repeated, lines doubled, the end cut off.
#[must_use]
pub fn mutate(text: &str, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..=rng.below(3) {
        bytes = damage_once(bytes, rng);
    }
    bytes
}

/// Pieces that have a meaning to a parser.
const PIECES: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"",
    "'",
    "\\",
    "\\u",
    "\\ud83d",
    "\n",
    "\r\n",
    "\t",
    " ",
    "  ",
    "- ",
    "#",
    "&a ",
    "*a",
    "!!str ",
    "<<: ",
    "? ",
    "|\n",
    ">-\n",
    "---\n",
    "...\n",
    "%YAML 1.1\n",
    "null",
    "~",
    "yes",
    "true",
    "0",
    "-1",
    "1e9",
    "0x10",
    "999999999999",
    "é",
    "😀",
    "\u{feff}",
    "\u{0}",
    "\u{7f}",
    "\u{85}",
    "\u{2028}",
    "vmid: 100",
    "\"vmid\":100,",
    "after: [100]",
    "tags",
    "prod",
];

fn damage_once(mut bytes: Vec<u8>, rng: &mut Rng) -> Vec<u8> {
    let at = rng.index(bytes.len());
    let end = (at + 1 + rng.index(12)).min(bytes.len());
    match rng.below(7) {
        0 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << rng.below(8);
            }
        }
        1 => bytes.truncate(at),
        2 => {
            bytes.drain(at.min(end)..end);
        }
        3 => {
            let piece = rng.pick_word(PIECES).bytes();
            bytes.splice(at..at, piece);
        }
        4 => {
            let piece = rng.pick_word(PIECES).bytes();
            bytes.splice(at.min(end)..end, piece);
        }
        5 => {
            let copy: Vec<u8> = bytes.get(at.min(end)..end).unwrap_or(&[]).to_vec();
            bytes.splice(at..at, copy);
        }
        _ => repeat_line(&mut bytes, at),
    }
    bytes
}

fn repeat_line(bytes: &mut Vec<u8>, at: usize) {
    let is_break = |byte: &u8| *byte == b'\n';
    let start = bytes.iter().take(at).rposition(is_break).map_or(0, |line_break| line_break + 1);
    let end = bytes.iter().skip(at).position(is_break).map_or(bytes.len(), |offset| at + offset + 1);
    let line: Vec<u8> = bytes.get(start..end).unwrap_or(&[]).to_vec();
    bytes.splice(start..start, line);
}
