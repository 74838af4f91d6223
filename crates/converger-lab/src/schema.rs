//! The API schema: paths, methods, parameters with types and bounds, permissions.
//!
//! The table (`data/api.json`) was derived once from the official API documentation data of 9.2 and
//! contains facts only. What a method does is in `api`.

mod check;
mod format;
pub(crate) mod property;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value;

use crate::access::release_has_privilege;
use crate::flavour::Flavour;
use crate::word_map::WordMap;
pub(crate) use check::{GivenParams, GivenValue, check_params};
pub(crate) use format::split_list;

/// The type of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) enum ValueType {
    #[default]
    #[serde(rename = "s")]
    Text,
    #[serde(rename = "i")]
    Integer,
    #[serde(rename = "n")]
    Number,
    #[serde(rename = "b")]
    Boolean,
    #[serde(rename = "a")]
    List,
}

/// The allowed values of a parameter, or of a key in a property string.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ValueSchema {
    #[serde(rename = "t")]
    pub(crate) base: ValueType,
    min: Option<f64>,
    max: Option<f64>,
    #[serde(rename = "minl")]
    length_min: Option<usize>,
    #[serde(rename = "maxl")]
    length_max: Option<usize>,
    #[serde(rename = "enum")]
    one_of: Vec<String>,
    #[serde(rename = "fmt")]
    format: Option<String>,
    #[serde(rename = "pat")]
    pattern: Option<String>,
    /// The keys of a property string; empty for plain values.
    #[serde(rename = "sub")]
    pub(crate) properties: BTreeMap<String, ValueSchema>,
    #[serde(rename = "req")]
    requires: Option<String>,
    /// How many instances a numbered option has.
    #[serde(rename = "n")]
    count: Option<u32>,
    #[serde(rename = "opt")]
    optional: u8,
    #[serde(rename = "key")]
    default_key: u8,
    alias: Option<String>,
    #[serde(rename = "as")]
    key_alias: Option<String>,
}

/// One parameter of a method.
#[derive(Clone, Debug)]
pub(crate) struct MethodParameter {
    pub(crate) shape: &'static ValueSchema,
    pub(crate) required: bool,
    since: u8,
}

/// One method of the API.
#[derive(Debug)]
pub(crate) struct ApiMethod {
    /// Its index in the table.
    pub(crate) number: usize,
    pub(crate) verb: String,
    /// The path with its `{captures}`.
    pub(crate) template: String,
    segments: Vec<String>,
    /// The last capture may contain slashes (networks and volumes).
    takes_rest: bool,
    /// Runs in the privileged daemon; the proxy passes it on.
    pub(crate) protected: bool,
    /// Runs on the node that the path names.
    pub(crate) on_node: bool,
    pub(crate) token_allowed: bool,
    /// Whether it is about containers.
    pub(crate) is_lxc: bool,
    /// The permission check as in the documentation data.
    pub(crate) permission: Value,
    /// For each release, whether it requires only privileges that the release has, and nothing else.
    pub(crate) needs_only_known_privileges: [bool; 3],
    parameters: WordMap<String, MethodParameter>,
    /// Numbered options, such as `net` for `net#`.
    numbered: WordMap<String, MethodParameter>,
    /// Required parameters, and whether any parameter requires another one. Precomputed, because every request needs them.
    required: Vec<String>,
    has_companions: bool,
    /// Position and name of each capture in the path.
    captures: Vec<(usize, String)>,
    since: u8,
}

impl ApiMethod {
    /// The parameter with this name; `net3` is found under `net#`.
    pub(crate) fn parameter(&self, name: &str, flavour: Flavour) -> Option<&MethodParameter> {
        let found = self.parameters.get(name).or_else(|| self.numbered_parameter(name))?;
        (found.since <= flavour.major()).then_some(found)
    }

    fn numbered_parameter(&self, name: &str) -> Option<&MethodParameter> {
        let (stem, number) = split_number(name)?;
        let found = self.numbered.get(stem)?;
        (number < found.shape.count.unwrap_or(0)).then_some(found)
    }

    pub(crate) fn required_names(&self) -> &[String] {
        &self.required
    }

    /// The captures of a path that matches this method.
    fn capture_segments(&self, segments: &[&str]) -> Vec<(String, String)> {
        let last = self.segments.len().saturating_sub(1);
        let rest = |index: usize| segments.get(index..).map_or_else(String::new, |rest| rest.join("/"));
        let captured = |index: usize| if index == last { rest(index) } else { segments[index].to_owned() };
        self.captures.iter().map(|(index, name)| (name.clone(), captured(*index))).collect()
    }
}

/// The name that a template segment captures.
fn captured_name(segment: &str) -> Option<&str> {
    segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'))
}

/// Splits `net3` into `net` and 3; a number with a leading zero is not split.
pub(crate) fn split_number(name: &str) -> Option<(&str, u32)> {
    let count = name.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (stem, digits) = name.split_at(name.len() - count);
    let plain = !digits.is_empty() && (digits == "0" || !digits.starts_with('0'));
    if stem.is_empty() || !plain { None } else { digits.parse().ok().map(|number| (stem, number)) }
}

/// The method of an API path, and its captures.
pub(crate) fn find_method(verb: &str, segments: &[&str], flavour: Flavour) -> Option<(&'static ApiMethod, Vec<(String, String)>)> {
    let known = |method: &&&'static ApiMethod| method.verb == verb && method.since <= flavour.major();
    let method = METHOD_TREE.find(segments, &known)?;
    Some((method, method.capture_segments(segments)))
}

/// The schema of a guest's config key, from the parameters of the config update.
pub(crate) fn config_key_schema(template: &str, key: &str, flavour: Flavour) -> Option<&'static ValueSchema> {
    let method = CONFIG_METHODS.iter().find(|method| method.template == template)?;
    method.parameter(key, flavour).map(|parameter| parameter.shape)
}

/// All methods of the table.
pub(crate) fn methods() -> impl Iterator<Item = &'static ApiMethod> {
    METHODS.iter()
}

static API_TABLE: LazyLock<ApiTable> = LazyLock::new(|| {
    let table = serde_json::from_str(include_str!("../data/api.json"));
    table.unwrap_or_else(|error| panic!("data/api.json is part of the program and must parse: {error}"))
});

static METHODS: LazyLock<Vec<ApiMethod>> = LazyLock::new(|| API_TABLE.methods.iter().enumerate().map(build_method).collect());

/// The config updates of guests, which know every key.
static CONFIG_METHODS: LazyLock<Vec<&'static ApiMethod>> = LazyLock::new(|| {
    let is_config = |method: &&ApiMethod| method.verb == "PUT" && method.template.ends_with("/{vmid}/config");
    METHODS.iter().filter(is_config).collect()
});

/// The methods by path segments.
#[derive(Default)]
struct MethodTree {
    words: WordMap<&'static str, MethodTree>,
    /// The subtree after a capture, whatever its name.
    capture: Option<Box<MethodTree>>,
    /// Methods whose path ends here.
    methods_here: Vec<&'static ApiMethod>,
    /// Methods whose last capture takes the rest of the path.
    rest_methods: Vec<&'static ApiMethod>,
}

impl MethodTree {
    /// The method for these segments. A fixed word wins over a capture, and both win over a capture of the rest.
    fn find(&self, segments: &[&str], known: &impl Fn(&&&'static ApiMethod) -> bool) -> Option<&'static ApiMethod> {
        let Some((first, rest)) = segments.split_first() else { return self.methods_here.iter().find(known).copied() };
        let by_word = self.words.get(first).and_then(|tree| tree.find(rest, known));
        let by_capture = || self.capture.as_ref().and_then(|tree| tree.find(rest, known));
        by_word.or_else(by_capture).or_else(|| self.rest_methods.iter().find(known).copied())
    }

    fn add(&mut self, segments: &'static [String], method: &'static ApiMethod) {
        match segments {
            [] => self.methods_here.push(method),
            [_] if method.takes_rest => self.rest_methods.push(method),
            [first, rest @ ..] if captured_name(first).is_some() => self.capture.get_or_insert_default().add(rest, method),
            [first, rest @ ..] => self.words.entry(first).or_default().add(rest, method),
        }
    }
}

static METHOD_TREE: LazyLock<MethodTree> = LazyLock::new(|| {
    let mut tree = MethodTree::default();
    METHODS.iter().for_each(|method| tree.add(&method.segments, method));
    tree
});

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ApiTable {
    types: Vec<ValueSchema>,
    methods: Vec<ApiMethodRow>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ApiMethodRow {
    #[serde(rename = "p")]
    path: String,
    #[serde(rename = "m")]
    verb: String,
    #[serde(rename = "f")]
    flags: String,
    #[serde(rename = "c")]
    check: Value,
    /// Name (`!` required, `@8` since that release) and index of the type.
    #[serde(rename = "a")]
    parameters: BTreeMap<String, usize>,
    #[serde(default)]
    since: u8,
}

fn build_method((number, row): (usize, &'static ApiMethodRow)) -> ApiMethod {
    let segments: Vec<String> = row.path.split('/').filter(|segment| !segment.is_empty()).map(str::to_owned).collect();
    let parameters: BTreeMap<String, MethodParameter> = row.parameters.iter().map(|(name, index)| build_parameter(name, *index)).collect();
    let numbered = parameters.iter().filter_map(|(name, parameter)| Some((name.strip_suffix('#')?.to_owned(), parameter.clone())));
    ApiMethod {
        number,
        verb: row.verb.clone(),
        template: row.path.clone(),
        takes_rest: segments.last().is_some_and(|last| last == "{cidr}" || last == "{volume}"),
        captures: segments.iter().enumerate().filter_map(|(index, own)| Some((index, captured_name(own)?.to_owned()))).collect(),
        segments,
        is_lxc: row.path.contains("/lxc"),
        protected: row.flags.contains('p'),
        on_node: row.flags.contains('n'),
        token_allowed: !row.flags.contains('t'),
        permission: row.check.clone(),
        needs_only_known_privileges: [Flavour::V7, Flavour::V8, Flavour::V9]
            .map(|flavour| needs_only_known_privileges(&row.check, flavour)),
        numbered: numbered.collect(),
        required: parameters.iter().filter(|(_, parameter)| parameter.required).map(|(name, _)| name.clone()).collect(),
        has_companions: parameters.values().any(|parameter| parameter.shape.requires.is_some()),
        parameters: parameters.into_iter().collect(),
        since: row.since,
    }
}

/// Whether a check requires only privileges on a path, all of which the release has.
fn needs_only_known_privileges(check: &Value, flavour: Flavour) -> bool {
    let items = check.as_array().map_or(&[][..], Vec::as_slice);
    let privileges = items.get(2).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let is_plain = items.first().is_some_and(|first| first == "perm") && !items.iter().any(|item| item == "require_param");
    is_plain && !privileges.is_empty() && privileges.iter().all(|item| item.as_str().is_some_and(|own| release_has_privilege(flavour, own)))
}

fn build_parameter(name: &str, index: usize) -> (String, MethodParameter) {
    let (name, since) = name.split_once('@').unwrap_or((name, "0"));
    let bare_name = name.trim_end_matches('!');
    let shape = &API_TABLE.types[index];
    (bare_name.to_owned(), MethodParameter { shape, required: bare_name.len() < name.len(), since: since.parse().unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_template(verb: &str, path: &str, flavour: Flavour) -> Option<&'static str> {
        let segments: Vec<&str> = path.split('/').collect();
        find_method(verb, &segments, flavour).map(|(method, _)| method.template.as_str())
    }

    #[test]
    fn known_paths_find_their_method_and_unknown_ones_none() {
        let config = Some("/nodes/{node}/qemu/{vmid}/config");
        assert_eq!(find_template("PUT", "nodes/pve1/qemu/100/config", Flavour::V9), config);
        assert_eq!(find_template("PATCH", "nodes/pve1/qemu/100/config", Flavour::V9), None);
        assert_eq!(find_template("POST", "nodes/pve1/lxc/100/config", Flavour::V9), None);
    }

    #[test]
    fn only_networks_and_volumes_may_contain_slashes() {
        let path = ["cluster", "firewall", "ipset", "lan", "10.0.0.0", "24"];
        let (method, captured) = find_method("GET", &path, Flavour::V9).unwrap();
        assert_eq!(method.template, "/cluster/firewall/ipset/{name}/{cidr}");
        assert_eq!(captured.last(), Some(&("cidr".to_owned(), "10.0.0.0/24".to_owned())));
        assert!(find_method("GET", &["cluster", "firewall", "aliases", "a", "b"], Flavour::V9).is_none());
    }

    #[test]
    fn methods_and_parameters_are_unknown_before_their_release() {
        assert_eq!(find_template("PUT", "pools", Flavour::V7), None);
        assert_eq!(find_template("PUT", "pools", Flavour::V8), Some("/pools"));
        let (stop, _) = find_method("POST", &["nodes", "a", "qemu", "100", "status", "stop"], Flavour::V9).unwrap();
        assert!(stop.parameter("overrule-shutdown", Flavour::V7).is_none());
        assert!(stop.parameter("overrule-shutdown", Flavour::V9).is_some());
    }

    #[test]
    fn numbered_options_have_the_limits_of_proxmox() {
        let (config, _) = find_method("PUT", &["nodes", "a", "qemu", "100", "config"], Flavour::V9).unwrap();
        for (name, known) in [("net0", true), ("net31", true), ("net32", false), ("net01", false), ("net", false)] {
            assert_eq!(config.parameter(name, Flavour::V9).is_some(), known, "{name}");
        }
    }
}
