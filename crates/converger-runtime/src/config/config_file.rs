//! The text of converger.toml, decoded and checked as a whole: every section, also those of environments that a command does not use.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use converger_core::document::{Diagnostic, Diagnostics, Span};
use converger_core::guest::{EnvironmentName, Vmid, is_tag};
use converger_core::policy::{Limits, Rules};
use converger_engine::schedule::ConcurrencyLimits;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::connection::{self, ConnectionConfig};
use super::table_reader::{FaultList, TableReader, as_number, fault_at, read_as, to_span};

/// The sections of the file.
const SECTIONS: [&str; 6] = ["environments", "limits", "apply", "freeze", "store", "ledger"];
const LIMITS_KEYS: [&str; 3] = ["guests", "percent", "stops"];
const APPLY_KEYS: [&str; 3] = ["at_once", "at_once_per_node", "task_timeout"];
const FREEZE_KEYS: [&str; 2] = ["on", "reason"];
const STORE_KEYS: [&str; 1] = ["directory"];
const LEDGER_KEYS: [&str; 1] = ["witness"];
const PROTECT_KEYS: [&str; 3] = ["ids", "names", "tags"];

/// Every word that the file may use as a key.
pub(super) fn known_keys() -> impl Iterator<Item = &'static str> {
    let sections = SECTIONS.iter().chain(&LIMITS_KEYS).chain(&APPLY_KEYS).chain(&FREEZE_KEYS);
    sections.chain(&STORE_KEYS).chain(&LEDGER_KEYS).chain(&PROTECT_KEYS).copied().chain(connection::known_keys())
}

/// A cluster whose nodes each start more guests than this does nothing else.
const AT_ONCE_RANGE: RangeInclusive<u64> = 1..=1_000;

/// Seconds for one task. Anything shorter ends while a guest starts; nothing is watched for longer than a day.
const TASK_SECS_RANGE: RangeInclusive<u64> = 10..=86_400;

/// What the file says.
#[derive(Clone, Default)]
pub(super) struct ConfigFile {
    pub(super) environments: BTreeMap<EnvironmentName, EnvironmentSection>,
    /// The limits, if the file has that section.
    pub(super) limits: Option<Limits>,
    pub(super) at_once: ConcurrencyLimits,
    pub(super) task_ms: Option<u64>,
    /// Why changes are frozen, if they are.
    pub(super) freeze: Option<String>,
    pub(super) state: Option<PathBuf>,
    pub(super) witness: Option<PathBuf>,
}

/// `[environments.<name>]`.
#[derive(Clone)]
pub(super) struct EnvironmentSection {
    pub(super) span: Span,
    pub(super) rules: Rules,
    /// How the environment is reached, if the section says so.
    pub(super) connection: Option<ConnectionConfig>,
}

impl ConfigFile {
    /// Decodes a text. Paths in it are relative to `directory`.
    ///
    /// # Errors
    /// All faults of syntax; or, where the syntax is right, all other faults. A broken line makes other keys look as if they were missing.
    pub(super) fn parse(text: &str, directory: &Path) -> Result<Self, Diagnostics> {
        let mut faults = FaultList::default();
        let (root, errors) = DeTable::parse_recoverable(text);
        if !errors.is_empty() {
            errors.iter().for_each(|error| faults.push(syntax_fault(error)));
            return faults.finish(Self::default());
        }
        let file = Self::decode(root.get_ref(), directory, &mut faults);
        faults.finish(file)
    }

    /// The connections of all environments that have one.
    pub(super) fn into_connections(self) -> BTreeMap<EnvironmentName, ConnectionConfig> {
        self.environments.into_iter().filter_map(|(name, section)| Some((name, section.connection?))).collect()
    }

    fn decode(root: &DeTable<'_>, directory: &Path, faults: &mut FaultList) -> Self {
        let reader = TableReader::new("the file", root, &SECTIONS, faults);
        let section = |key: &str, keys: &[&str], faults: &mut FaultList| {
            let table = reader.table(key, faults)?;
            Some(TableReader::new(format!("`[{key}]`"), table.into_inner(), keys, faults))
        };
        let limits = section("limits", &LIMITS_KEYS, faults).map(|table| decode_limits(&table, faults));
        let (at_once, task_ms) = section("apply", &APPLY_KEYS, faults).map_or_else(Default::default, |table| decode_apply(&table, faults));
        let freeze = section("freeze", &FREEZE_KEYS, faults).and_then(|table| decode_freeze(&table, faults));
        let state = section("store", &STORE_KEYS, faults).and_then(|table| table.text("directory", "\"/var/lib/converger\"", faults));
        let witness = section("ledger", &LEDGER_KEYS, faults).and_then(|table| decode_witness(&table, faults));
        let environments = reader.table("environments", faults).map_or_else(BTreeMap::new, |table| {
            let sections = table.into_inner().iter();
            sections.filter_map(|(name, section)| decode_environment(name, section, directory, faults)).collect()
        });
        let path = |written: String| directory.join(written);
        let state = state.map(Spanned::into_inner).map(path);
        Self { environments, limits, at_once, task_ms, freeze, state, witness: witness.map(path) }
    }
}

fn syntax_fault(error: &toml::de::Error) -> Diagnostic {
    let message = crate::files::escape_hidden(error.message());
    Diagnostic::new(to_span(error.span().unwrap_or(0..0)), message.lines().collect::<Vec<_>>().join(", "))
}

fn decode_limits(table: &TableReader<'_>, faults: &mut FaultList) -> Limits {
    let default = Limits::default();
    let mut number = |key: &str, most: u32, default: u32| {
        let number = table.number_in(key, "", &(0..=u64::from(most)), faults);
        number.and_then(|number| u32::try_from(number).ok()).unwrap_or(default)
    };
    Limits {
        guests: number("guests", u32::MAX, default.guests),
        percent: number("percent", 100, default.percent),
        stops: number("stops", u32::MAX, default.stops),
    }
}

fn decode_apply(table: &TableReader<'_>, faults: &mut FaultList) -> (ConcurrencyLimits, Option<u64>) {
    let default = ConcurrencyLimits::default();
    let mut number = |key: &str, default: u32| {
        let number = table.number_in(key, " operations", &AT_ONCE_RANGE, faults);
        number.and_then(|number| u32::try_from(number).ok()).unwrap_or(default)
    };
    let at_once = ConcurrencyLimits { per_node: number("at_once_per_node", default.per_node), overall: number("at_once", default.overall) };
    let task_secs = table.number_in("task_timeout", " seconds", &TASK_SECS_RANGE, faults);
    (at_once, task_secs.map(|seconds| seconds * 1_000))
}

fn decode_freeze(table: &TableReader<'_>, faults: &mut FaultList) -> Option<String> {
    let reason = table.text("reason", "\"storage move until Friday\"", faults).map(Spanned::into_inner);
    let on = table.flag("on", faults).filter(|on| *on.get_ref())?;
    let reason = reason.filter(|reason| !reason.trim().is_empty());
    if reason.is_none() {
        let fault = fault_at(&on, "`on = true` in `[freeze]` needs a `reason`");
        faults.push(fault.with_help("write why: `reason = \"storage move until Friday\"`"));
    }
    reason
}

fn decode_witness(table: &TableReader<'_>, faults: &mut FaultList) -> Option<String> {
    let witness = table.text("witness", "\"/mnt/other-disk/converger.witness\"", faults)?;
    if witness.get_ref().is_empty() {
        faults.push(fault_at(&witness, "`witness` in `[ledger]` is empty").with_help("name a file on other storage, or remove the key"));
        return None;
    }
    Some(witness.into_inner())
}

fn decode_environment<'t>(
    name: &Spanned<std::borrow::Cow<'t, str>>,
    section: &'t Spanned<DeValue<'t>>,
    directory: &Path,
    faults: &mut FaultList,
) -> Option<(EnvironmentName, EnvironmentSection)> {
    let Some(environment) = EnvironmentName::new(name.get_ref()) else {
        let fault = fault_at(name, "this is not a valid environment name");
        faults.push(fault.with_help("use lower-case letters, digits, `-` and `_`, at most 64 characters"));
        return None;
    };
    let title = format!("`[environments.{environment}]`");
    let table = faults.keep(read_as(section, &title, "a table", DeValue::as_table))?;
    let span = to_span(table.span());
    let reader = TableReader::new(title, table.into_inner(), &connection::KEYS, faults);
    let connection = connection::decode_connection(&reader, span, directory, faults);
    let protect = reader.table("protect", faults).map(|protect| {
        let title = format!("`[environments.{environment}.protect]`");
        TableReader::new(title, protect.into_inner(), &PROTECT_KEYS, faults)
    });
    let rules = protect.map_or_else(Rules::default, |protect| decode_rules(&protect, faults));
    Some((environment, EnvironmentSection { span, rules, connection }))
}

/// A rule that can never match protects nothing, although its author believes that it does.
fn decode_rules(protect: &TableReader<'_>, faults: &mut FaultList) -> Rules {
    let ids = protect.array("ids", "[100, 101]", faults).into_iter().flat_map(|list| {
        let id = |entry| {
            let number = read_as(entry, &format!("each entry of `ids` in {}", protect.name()), "the id of a guest", as_number)?;
            let help = format!("ids are numbers between {} and {}", Vmid::MIN, Vmid::MAX);
            Vmid::new(*number.get_ref()).ok_or_else(|| fault_at(&number, "this is not the id of a guest").with_help(help))
        };
        list.into_inner().iter().map(id).collect::<Vec<_>>()
    });
    let ids: Vec<Vmid> = ids.filter_map(|id| faults.keep(id)).collect();
    let is_part = |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'));
    let names = words(protect, "names", "[\"core-\"]", faults, |name| {
        let fault = fault_at(name, "this is not the beginning of a guest's name");
        if is_part(name.get_ref()) { Ok(()) } else { Err(fault.with_help("use letters, digits, `-` and `.`; patterns are not supported")) }
    });
    let tags = words(protect, "tags", "[\"prod\"]", faults, |tag| {
        let fault = fault_at(tag, "this is not a tag");
        if is_tag(&tag.get_ref().to_ascii_lowercase()) {
            Ok(())
        } else {
            Err(fault.with_help("use letters, digits, `-`, `_`, `+` and `.`"))
        }
    });
    Rules::new(ids, names, tags)
}

fn words(
    protect: &TableReader<'_>,
    key: &str,
    example: &str,
    faults: &mut FaultList,
    check: impl Fn(&Spanned<String>) -> Result<(), Diagnostic>,
) -> Vec<String> {
    let list = protect.texts(key, example, faults).map(Spanned::into_inner).unwrap_or_default();
    list.into_iter().filter_map(|word| faults.keep(check(&word)).map(|()| word.into_inner())).collect()
}
