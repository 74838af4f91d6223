//! Checks parameters against the schema, with the error texts of Proxmox.
//!
//! Must not depend on permissions or state. A method may still reject a value that passes.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{ApiMethod, ValueSchema, ValueType, format, property};
use crate::flavour::Flavour;

/// A value as the request contained it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GivenValue {
    Text(String),
    /// A repeated key, or a JSON array.
    List(Vec<String>),
    /// A JSON boolean.
    Bool(bool),
    /// A JSON object, which no parameter accepts.
    Object,
}

impl GivenValue {
    pub(crate) fn from_json(value: &Value) -> Self {
        match value {
            Value::String(text) => Self::Text(text.clone()),
            Value::Bool(flag) => Self::Bool(*flag),
            Value::Array(items) => Self::List(items.iter().map(json_to_text).collect()),
            Value::Object(_) => Self::Object,
            other => Self::Text(json_to_text(other)),
        }
    }

    /// The value as one text.
    pub(crate) fn to_text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::List(items) => items.join(","),
            Self::Bool(flag) => u8::from(*flag).to_string(),
            Self::Object => String::new(),
        }
    }
}

fn json_to_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// Parameters in the order of the request.
pub(crate) type GivenParams = Vec<(String, GivenValue)>;

const UNKNOWN_TEXT: &str = "property is not defined in schema and the schema does not allow additional properties";
const MISSING_TEXT: &str = "property is missing and it is not optional";

/// The parameters as plain texts, or the error of each.
pub(crate) fn check_params(
    method: &ApiMethod,
    params: GivenParams,
    flavour: Flavour,
) -> Result<Vec<(String, String)>, BTreeMap<String, String>> {
    let mut errors = BTreeMap::new();
    add_missing_errors(method, &params, &mut errors);
    let mut values = Vec::with_capacity(params.len());
    for (name, value) in params {
        match check_param(method, &name, value, flavour) {
            Ok(text) => values.push((name, text)),
            Err(error) => {
                errors.insert(name, error);
            }
        }
    }
    if errors.is_empty() { Ok(values) } else { Err(errors) }
}

fn add_missing_errors(method: &ApiMethod, params: &GivenParams, errors: &mut BTreeMap<String, String>) {
    let is_given = |name: &str| params.iter().any(|(known, _)| known == name);
    for name in method.required_names().iter().filter(|name| !is_given(name)) {
        errors.insert(name.clone(), MISSING_TEXT.to_owned());
    }
    for (name, _) in params.iter().filter(|_| method.has_companions) {
        let requires = method.parameters.get(name).and_then(|parameter| parameter.shape.requires.as_ref());
        if let Some(other) = requires.filter(|other| !is_given(other)) {
            errors.insert(other.clone(), format!("missing property - '{name}' requires this property"));
        }
    }
}

fn check_param(method: &ApiMethod, name: &str, value: GivenValue, flavour: Flavour) -> Result<String, String> {
    let parameter = method.parameter(name, flavour).ok_or(UNKNOWN_TEXT)?;
    if flavour.memory_is_number() && name == "memory" && method.template.contains("/qemu") {
        return check_memory_number(value);
    }
    check_given(parameter.shape, name, value, flavour)
}

/// In release 7, the memory of a virtual machine is a plain integer of at least 16.
fn check_memory_number(value: GivenValue) -> Result<String, String> {
    let number = ValueSchema { base: ValueType::Integer, min: Some(16.0), ..ValueSchema::default() };
    check_given(&number, "memory", value, Flavour::V9)
}

fn check_given(shape: &ValueSchema, name: &str, value: GivenValue, flavour: Flavour) -> Result<String, String> {
    match value {
        GivenValue::Text(text) => check_text(shape, name, text),
        GivenValue::Bool(flag) if flavour > Flavour::V7 && shape.base == ValueType::Boolean => Ok(u8::from(flag).to_string()),
        GivenValue::Bool(_) if flavour == Flavour::V7 => Err(wrong_type_text(shape.base, "JSON::PP::Boolean")),
        GivenValue::Bool(_) => check_text(shape, name, value.to_text()),
        GivenValue::List(_) if takes_list(shape) => check_text(shape, name, value.to_text()),
        GivenValue::List(_) => Err(wrong_type_text(shape.base, "ARRAY")),
        GivenValue::Object => Err(wrong_type_text(shape.base, "HASH")),
    }
}

fn check_text(shape: &ValueSchema, name: &str, text: String) -> Result<String, String> {
    check_value(shape, name, &text).map(|()| text)
}

fn takes_list(shape: &ValueSchema) -> bool {
    shape.base == ValueType::List || shape.format.as_ref().is_some_and(|format| format.ends_with("-list"))
}

fn wrong_type_text(base: ValueType, found_type: &str) -> String {
    format!("type check ('{}') failed - got {found_type}", type_name(base))
}

fn type_name(base: ValueType) -> &'static str {
    match base {
        ValueType::Text => "string",
        ValueType::Integer => "integer",
        ValueType::Number => "number",
        ValueType::Boolean => "boolean",
        ValueType::List => "array",
    }
}

/// Checks a text against its schema. The order (type, format, pattern, length, bounds, enumeration) is that of Proxmox: only the first
/// failure is reported.
pub(super) fn check_value(shape: &ValueSchema, path: &str, text: &str) -> Result<(), String> {
    if !has_type(shape.base, text) {
        return Err(wrong_type_text(shape.base, &format!("'{text}'")));
    }
    check_format(shape, path, text)?;
    check_length(shape, text)?;
    check_bounds(shape, text)?;
    if !shape.one_of.is_empty() && !shape.one_of.iter().any(|allowed| allowed == text) {
        let allowed = shape.one_of.join(", ");
        return Err(format!("value '{text}' does not have a value in the enumeration '{allowed}'"));
    }
    Ok(())
}

fn has_type(base: ValueType, text: &str) -> bool {
    match base {
        ValueType::Text | ValueType::List => true,
        ValueType::Integer => is_integer(text),
        ValueType::Number => is_number(text),
        ValueType::Boolean => text == "0" || text == "1",
    }
}

fn is_integer(text: &str) -> bool {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    !digits.is_empty() && digits.chars().all(|character| character.is_ascii_digit())
}

fn is_number(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    unsigned.starts_with(|character: char| character.is_ascii_digit() || character == '.') && unsigned.parse::<f64>().is_ok()
}

fn check_format(shape: &ValueSchema, path: &str, text: &str) -> Result<(), String> {
    let wrong = |error: String| format!("invalid format - {error}");
    if !shape.properties.is_empty() {
        property::parse(&shape.properties, text, path).map_err(wrong)?;
    }
    if let Some(name) = &shape.format {
        format::check_format(name, text).map_err(wrong)?;
    }
    match &shape.pattern {
        Some(pattern) if !format::matches_pattern(pattern, text) => Err("value does not match the regex pattern".to_owned()),
        _ => Ok(()),
    }
}

fn check_length(shape: &ValueSchema, text: &str) -> Result<(), String> {
    if shape.length_max.is_none() && shape.length_min.is_none() {
        return Ok(());
    }
    let length = text.chars().count();
    if let Some(most) = shape.length_max.filter(|most| length > *most) {
        return Err(format!("value may only be {most} characters long"));
    }
    match shape.length_min.filter(|least| length < *least) {
        Some(least) => Err(format!("value must be at least {least} characters long")),
        None => Ok(()),
    }
}

fn check_bounds(shape: &ValueSchema, text: &str) -> Result<(), String> {
    if shape.max.is_none() && shape.min.is_none() {
        return Ok(());
    }
    let Ok(number) = text.parse::<f64>() else { return Ok(()) };
    if let Some(most) = shape.max.filter(|most| number > *most) {
        return Err(format!("value must have a maximum value of {most}"));
    }
    match shape.min.filter(|least| number < *least) {
        Some(least) => Err(format!("value must have a minimum value of {least}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_errors(params: &[(&str, &str)], flavour: Flavour) -> BTreeMap<String, String> {
        let (method, _) = super::super::find_method("PUT", &["nodes", "a", "qemu", "100", "config"], flavour).unwrap();
        let path = [("node", "a"), ("vmid", "100")];
        let given_params =
            path.iter().chain(params).map(|(name, text)| ((*name).to_owned(), GivenValue::Text((*text).to_owned()))).collect();
        check_params(method, given_params, flavour).err().unwrap_or_default()
    }

    #[test]
    fn invalid_values_get_the_texts_of_proxmox() {
        let found =
            check_errors(&[("cores", "abc"), ("memory", "-5"), ("onboot", "yes"), ("nosuchkey", "1"), ("name", "a_b")], Flavour::V9);
        assert_eq!(found["cores"], "type check ('integer') failed - got 'abc'");
        assert_eq!(found["memory"], "invalid format - format error\nmemory.current: value must have a minimum value of 16\n");
        assert_eq!(found["onboot"], "type check ('boolean') failed - got 'yes'");
        assert_eq!(found["nosuchkey"], UNKNOWN_TEXT);
        assert_eq!(found["name"], "invalid format - value does not look like a valid DNS name\n");
    }

    #[test]
    fn memory_is_an_integer_in_release_7_only() {
        assert_eq!(check_errors(&[("memory", "current=64")], Flavour::V7)["memory"], "type check ('integer') failed - got 'current=64'");
        assert!(check_errors(&[("memory", "current=64")], Flavour::V8).is_empty());
    }

    #[test]
    fn nested_errors_keep_their_line_ends() {
        let found = check_errors(&[("net1", "e1000=01:bb:cc:dd:ee:ff,bridge=vmbr0"), ("net0", "virtio,bridge")], Flavour::V9);
        let mac = "invalid format - format error\nnet1.macaddr: invalid format - value does not look like a valid unicast MAC address\n\n";
        assert_eq!(found["net1"], mac);
        assert_eq!(found["net0"], "invalid format - duplicate key in comma-separated list property: model\n");
    }
}
