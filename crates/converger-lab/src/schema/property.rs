//! Property strings such as `virtio=BC:24:11:00:00:01,bridge=vmbr0`, parsed and checked like in
//! Proxmox.
//!
//! Must not know what a key means to a guest.

use std::collections::BTreeMap;

use super::check::check_value;
use super::{ValueSchema, ValueType};

/// The keys of a property string and their values.
pub(crate) type PropertyValues = BTreeMap<String, String>;

/// Parses and checks `text`; errors are prefixed with `path`.
pub(crate) fn parse(shapes: &BTreeMap<String, ValueSchema>, text: &str, path: &str) -> Result<PropertyValues, String> {
    let mut found = PropertyValues::new();
    let mut default_key = None;
    for part in text.split(',').filter(|part| !part.trim().is_empty()) {
        match part.split_once('=') {
            Some((key, value)) if !key.is_empty() && !value.is_empty() => add_keyed(shapes, key, value, &mut found)?,
            Some(_) => return Err("missing key in comma-separated list property\n".to_owned()),
            None => add_keyless(shapes, part, &mut found, &mut default_key)?,
        }
    }
    check_properties(shapes, found, path)
}

fn add_keyed(shapes: &BTreeMap<String, ValueSchema>, key: &str, value: &str, found: &mut PropertyValues) -> Result<(), String> {
    if found.contains_key(key) {
        return Err(duplicate_key_error(key));
    }
    let shape = shapes.get(key).ok_or_else(|| invalid_key_error(key))?;
    let Some(alias) = &shape.alias else {
        found.insert(key.to_owned(), normalize_boolean(shape, value));
        return Ok(());
    };
    if let Some(other) = &shape.key_alias
        && found.insert(other.clone(), key.to_owned()).is_some()
    {
        return Err(format!("key alias '{other}' is already defined\n"));
    }
    let target = shapes.get(alias).ok_or_else(|| invalid_key_error(alias))?;
    found.insert(alias.clone(), normalize_boolean(target, value));
    Ok(())
}

fn add_keyless(
    shapes: &BTreeMap<String, ValueSchema>,
    part: &str,
    found: &mut PropertyValues,
    default_key: &mut Option<String>,
) -> Result<(), String> {
    if let Some(key) = default_key {
        return Err(duplicate_key_error(key));
    }
    let key = shapes.iter().find(|(_, shape)| shape.default_key == 1).map(|(key, _)| key);
    let key = key.ok_or("value without key, but schema does not define a default key\n")?;
    if found.insert(key.clone(), part.to_owned()).is_some() {
        return Err(duplicate_key_error(key));
    }
    *default_key = Some(key.clone());
    Ok(())
}

fn duplicate_key_error(key: &str) -> String {
    format!("duplicate key in comma-separated list property: {key}\n")
}

fn invalid_key_error(key: &str) -> String {
    format!("invalid key in comma-separated list property: {key}\n")
}

/// In property strings, a boolean may be a word.
fn normalize_boolean(shape: &ValueSchema, value: &str) -> String {
    match (shape.base, value.to_ascii_lowercase().as_str()) {
        (ValueType::Boolean, "1" | "on" | "yes" | "true") => "1".to_owned(),
        (ValueType::Boolean, "0" | "off" | "no" | "false") => "0".to_owned(),
        _ => value.to_owned(),
    }
}

fn check_properties(shapes: &BTreeMap<String, ValueSchema>, found: PropertyValues, path: &str) -> Result<PropertyValues, String> {
    let mut errors = BTreeMap::new();
    for (key, text) in &found {
        let below = format!("{path}.{key}");
        let wrong = shapes.get(key).and_then(|shape| check_value(shape, &below, text).err());
        errors.extend(wrong.map(|error| (below, error)));
    }
    let absent = shapes.iter().filter(|(key, shape)| shape.optional == 0 && shape.alias.is_none() && !found.contains_key(*key));
    errors.extend(absent.map(|(key, _)| (format!("{path}.{key}"), "property is missing and it is not optional".to_owned())));
    if errors.is_empty() {
        return Ok(found);
    }
    let lines: String = errors.iter().map(|(key, error)| format!("{key}: {error}\n")).collect();
    Err(format!("format error\n{lines}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flavour::Flavour;

    fn property_schemas(key: &str) -> &'static BTreeMap<String, ValueSchema> {
        &super::super::config_key_schema("/nodes/{node}/qemu/{vmid}/config", key, Flavour::V9).unwrap().properties
    }

    fn check_error(key: &str, text: &str, error: &str) {
        assert_eq!(parse(property_schemas(key), text, key), Err(error.to_owned()), "{text}");
    }

    #[test]
    fn invalid_property_strings_are_refused() {
        check_error("net0", "virtio,virtio=aa:bb:cc:dd:ee:ff", "key alias 'model' is already defined\n");
        check_error("net0", "virtio,nosuch=1", "invalid key in comma-separated list property: nosuch\n");
        check_error("net0", "=x", "missing key in comma-separated list property\n");
        check_error("net0", "bridge=a,bridge=b", "duplicate key in comma-separated list property: bridge\n");
    }

    #[test]
    fn boolean_words_become_numbers() {
        let parsed = parse(property_schemas("net0"), "bridge=vmbr0,model=virtio,firewall=yes", "net0").unwrap();
        assert_eq!(parsed.get("firewall").map(String::as_str), Some("1"));
    }
}
