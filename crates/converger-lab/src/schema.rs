//! The table of what the API takes: paths, methods, parameters with types and bounds, who may call.
//!
//! The table (`data/api.json`) was derived once from the official API documentation data of 9.2 and
//! holds facts only. What never enters here: what a method does.

mod check;
mod format;
pub(crate) mod property;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value;

use crate::access::knows;
use crate::flavour::Flavour;
use crate::words::Words;
pub(crate) use check::{Given, Params, check};
pub(crate) use format::split_list;

/// The kind of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) enum Base {
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

/// What one parameter, or one key of a property string, may be.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Shape {
    #[serde(rename = "t")]
    pub(crate) base: Base,
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
    pub(crate) sub: BTreeMap<String, Shape>,
    #[serde(rename = "req")]
    requires: Option<String>,
    /// How many of a numbered option there are.
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
pub(crate) struct Parameter {
    pub(crate) shape: &'static Shape,
    pub(crate) required: bool,
    since: u8,
}

/// One method of the API.
#[derive(Debug)]
pub(crate) struct Method {
    /// Its place in the table.
    pub(crate) number: usize,
    pub(crate) verb: String,
    /// The path with its `{captures}`.
    pub(crate) template: String,
    segments: Vec<String>,
    /// Networks and volumes have slashes of their own, and stand last.
    takes_rest: bool,
    /// Runs in the privileged daemon: the proxy hands it over.
    pub(crate) protected: bool,
    /// Runs on the node that the path names.
    pub(crate) on_node: bool,
    pub(crate) token_allowed: bool,
    /// Is about containers, and not about virtual machines.
    pub(crate) is_lxc: bool,
    /// The permission check, as the documentation data has it.
    pub(crate) permission: Value,
    /// Whether it asks for nothing but privileges, all of which a release knows: by release.
    pub(crate) asks_for_known: [bool; 3],
    parameters: Words<String, Parameter>,
    /// Those of a numbered option, such as `net` for `net#`.
    numbered: Words<String, Parameter>,
    /// Parameters that must be given, and whether one of them wants another one beside it: asked with each request.
    required: Vec<String>,
    has_companions: bool,
    /// Where in a path its captures are, and what they are called.
    captures: Vec<(usize, String)>,
    since: u8,
}

impl Method {
    /// The parameter called `name`; `net3` is found under `net#`.
    pub(crate) fn parameter(&self, name: &str, flavour: Flavour) -> Option<&Parameter> {
        let found = self.parameters.get(name).or_else(|| self.numbered(name))?;
        (found.since <= flavour.major()).then_some(found)
    }

    fn numbered(&self, name: &str) -> Option<&Parameter> {
        let (stem, number) = split_number(name)?;
        let found = self.numbered.get(stem)?;
        (number < found.shape.count.unwrap_or(0)).then_some(found)
    }

    pub(crate) fn required(&self) -> &[String] {
        &self.required
    }

    /// The captures of the segments of a path that is this method's.
    fn captures(&self, segments: &[&str]) -> Vec<(String, String)> {
        let last = self.segments.len().saturating_sub(1);
        let rest = |index: usize| segments.get(index..).map_or_else(String::new, |rest| rest.join("/"));
        let given = |index: usize| if index == last { rest(index) } else { segments[index].to_owned() };
        self.captures.iter().map(|(index, name)| (name.clone(), given(*index))).collect()
    }
}

/// What a segment of a template captures.
fn capture(segment: &str) -> Option<&str> {
    segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'))
}

/// `net3` is `net` and 3; a leading zero makes another word.
pub(crate) fn split_number(name: &str) -> Option<(&str, u32)> {
    let count = name.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (stem, digits) = name.split_at(name.len() - count);
    let plain = !digits.is_empty() && (digits == "0" || !digits.starts_with('0'));
    if stem.is_empty() || !plain { None } else { digits.parse().ok().map(|number| (stem, number)) }
}

/// The method that a path of the API leads to, and what it captured.
pub(crate) fn find(verb: &str, segments: &[&str], flavour: Flavour) -> Option<(&'static Method, Vec<(String, String)>)> {
    let known = |method: &&&'static Method| method.verb == verb && method.since <= flavour.major();
    let method = TREE.at(segments, &known)?;
    Some((method, method.captures(segments)))
}

/// The shape of a guest's config key, by the parameters of its config update.
pub(crate) fn config_key(template: &str, key: &str, flavour: Flavour) -> Option<&'static Shape> {
    let method = CONFIGS.iter().find(|method| method.template == template)?;
    method.parameter(key, flavour).map(|parameter| parameter.shape)
}

/// Every method of the table.
pub(crate) fn methods() -> impl Iterator<Item = &'static Method> {
    METHODS.iter()
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let table = serde_json::from_str(include_str!("../data/api.json"));
    table.unwrap_or_else(|error| panic!("data/api.json is part of the program and must parse: {error}"))
});

static METHODS: LazyLock<Vec<Method>> = LazyLock::new(|| TABLE.methods.iter().enumerate().map(method).collect());

/// The updates of guests' configs, which know every key.
static CONFIGS: LazyLock<Vec<&'static Method>> = LazyLock::new(|| {
    let is_config = |method: &&Method| method.verb == "PUT" && method.template.ends_with("/{vmid}/config");
    METHODS.iter().filter(is_config).collect()
});

/// The methods by the words of their paths.
#[derive(Default)]
struct Tree {
    words: Words<&'static str, Tree>,
    /// What follows a capture, whatever it is called.
    capture: Option<Box<Tree>>,
    /// Those whose path ends here.
    here: Vec<&'static Method>,
    /// Those whose last capture takes everything from here on.
    open: Vec<&'static Method>,
}

impl Tree {
    /// The method at the end of these segments. A fixed word wins over a capture, and both over one that takes the rest.
    fn at(&self, segments: &[&str], known: &impl Fn(&&&'static Method) -> bool) -> Option<&'static Method> {
        let Some((first, rest)) = segments.split_first() else { return self.here.iter().find(known).copied() };
        let by_word = self.words.get(first).and_then(|tree| tree.at(rest, known));
        let by_capture = || self.capture.as_ref().and_then(|tree| tree.at(rest, known));
        by_word.or_else(by_capture).or_else(|| self.open.iter().find(known).copied())
    }

    fn add(&mut self, segments: &'static [String], method: &'static Method) {
        match segments {
            [] => self.here.push(method),
            [_] if method.takes_rest => self.open.push(method),
            [first, rest @ ..] if capture(first).is_some() => self.capture.get_or_insert_default().add(rest, method),
            [first, rest @ ..] => self.words.entry(first).or_default().add(rest, method),
        }
    }
}

static TREE: LazyLock<Tree> = LazyLock::new(|| {
    let mut tree = Tree::default();
    METHODS.iter().for_each(|method| tree.add(&method.segments, method));
    tree
});

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    types: Vec<Shape>,
    methods: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    #[serde(rename = "p")]
    path: String,
    #[serde(rename = "m")]
    verb: String,
    #[serde(rename = "f")]
    flags: String,
    #[serde(rename = "c")]
    check: Value,
    /// Name (`!` required, `@8` since that release) and the index of its type.
    #[serde(rename = "a")]
    parameters: BTreeMap<String, usize>,
    #[serde(default)]
    since: u8,
}

fn method((number, row): (usize, &'static Row)) -> Method {
    let segments: Vec<String> = row.path.split('/').filter(|segment| !segment.is_empty()).map(str::to_owned).collect();
    let parameters: BTreeMap<String, Parameter> = row.parameters.iter().map(|(name, index)| parameter(name, *index)).collect();
    let numbered = parameters.iter().filter_map(|(name, parameter)| Some((name.strip_suffix('#')?.to_owned(), parameter.clone())));
    Method {
        number,
        verb: row.verb.clone(),
        template: row.path.clone(),
        takes_rest: segments.last().is_some_and(|last| last == "{cidr}" || last == "{volume}"),
        captures: segments.iter().enumerate().filter_map(|(index, own)| Some((index, capture(own)?.to_owned()))).collect(),
        segments,
        is_lxc: row.path.contains("/lxc"),
        protected: row.flags.contains('p'),
        on_node: row.flags.contains('n'),
        token_allowed: !row.flags.contains('t'),
        permission: row.check.clone(),
        asks_for_known: [Flavour::V7, Flavour::V8, Flavour::V9].map(|flavour| asks_for_known(&row.check, flavour)),
        numbered: numbered.collect(),
        required: parameters.iter().filter(|(_, parameter)| parameter.required).map(|(name, _)| name.clone()).collect(),
        has_companions: parameters.values().any(|parameter| parameter.shape.requires.is_some()),
        parameters: parameters.into_iter().collect(),
        since: row.since,
    }
}

/// Whether a check is for privileges on a path and for nothing else, and a release knows them all.
fn asks_for_known(check: &Value, flavour: Flavour) -> bool {
    let items = check.as_array().map_or(&[][..], Vec::as_slice);
    let privileges = items.get(2).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let is_plain = items.first().is_some_and(|first| first == "perm") && !items.iter().any(|item| item == "require_param");
    is_plain && !privileges.is_empty() && privileges.iter().all(|item| item.as_str().is_some_and(|own| knows(flavour, own)))
}

fn parameter(name: &str, index: usize) -> (String, Parameter) {
    let (name, since) = name.split_once('@').unwrap_or((name, "0"));
    let bare = name.trim_end_matches('!');
    let shape = &TABLE.types[index];
    (bare.to_owned(), Parameter { shape, required: bare.len() < name.len(), since: since.parse().unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(verb: &str, path: &str, flavour: Flavour) -> Option<&'static str> {
        let segments: Vec<&str> = path.split('/').collect();
        find(verb, &segments, flavour).map(|(method, _)| method.template.as_str())
    }

    #[test]
    fn paths_lead_to_methods_and_unknown_ones_nowhere() {
        let config = Some("/nodes/{node}/qemu/{vmid}/config");
        assert_eq!(template("PUT", "nodes/pve1/qemu/100/config", Flavour::V9), config);
        assert_eq!(template("PATCH", "nodes/pve1/qemu/100/config", Flavour::V9), None);
        assert_eq!(template("POST", "nodes/pve1/lxc/100/config", Flavour::V9), None);
    }

    #[test]
    fn a_network_may_have_a_slash_and_others_may_not() {
        let path = ["cluster", "firewall", "ipset", "lan", "10.0.0.0", "24"];
        let (method, captured) = find("GET", &path, Flavour::V9).unwrap();
        assert_eq!(method.template, "/cluster/firewall/ipset/{name}/{cidr}");
        assert_eq!(captured.last(), Some(&("cidr".to_owned(), "10.0.0.0/24".to_owned())));
        assert!(find("GET", &["cluster", "firewall", "aliases", "a", "b"], Flavour::V9).is_none());
    }

    #[test]
    fn what_came_later_is_not_there_before() {
        assert_eq!(template("PUT", "pools", Flavour::V7), None);
        assert_eq!(template("PUT", "pools", Flavour::V8), Some("/pools"));
        let (stop, _) = find("POST", &["nodes", "a", "qemu", "100", "status", "stop"], Flavour::V9).unwrap();
        assert!(stop.parameter("overrule-shutdown", Flavour::V7).is_none());
        assert!(stop.parameter("overrule-shutdown", Flavour::V9).is_some());
    }

    #[test]
    fn numbered_options_end_where_proxmox_ends_them() {
        let (config, _) = find("PUT", &["nodes", "a", "qemu", "100", "config"], Flavour::V9).unwrap();
        for (name, known) in [("net0", true), ("net31", true), ("net32", false), ("net01", false), ("net", false)] {
            assert_eq!(config.parameter(name, Flavour::V9).is_some(), known, "{name}");
        }
    }
}
