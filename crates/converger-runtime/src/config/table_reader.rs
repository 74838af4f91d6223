//! Reads tables of converger.toml. Every fault is collected with its place and reading continues, so that a person sees all of them at once.
//!
//! No message quotes a value: a secret may have been pasted in place of it.

use std::ops::{Range, RangeInclusive};

use converger_core::document::{Diagnostic, Diagnostics, Span, nearest_word};
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

/// The faults found so far.
#[derive(Default)]
pub(super) struct FaultList(Diagnostics);

impl FaultList {
    pub(super) fn push(&mut self, fault: Diagnostic) {
        self.0.push(fault);
    }

    /// The value, or nothing where there was a fault, which is kept.
    pub(super) fn keep<T>(&mut self, parsed: Result<T, Diagnostic>) -> Option<T> {
        parsed.map_err(|fault| self.push(fault)).ok()
    }

    /// The value, unless there was a fault anywhere.
    pub(super) fn finish<T>(self, value: T) -> Result<T, Diagnostics> {
        if self.0.is_empty() { Ok(value) } else { Err(self.0.into_sorted()) }
    }
}

/// A fault of this value.
pub(super) fn fault_at<T>(value: &Spanned<T>, message: impl Into<String>) -> Diagnostic {
    Diagnostic::new(to_span(value.span()), message)
}

pub(super) fn to_span(range: Range<usize>) -> Span {
    Span::new(range.start, range.end)
}

/// Whether a key can be shown: a misspelt key is a plain word, and anything else may be a secret that was pasted there.
pub(super) fn is_plain_word(word: &str) -> bool {
    !word.is_empty() && word.len() <= 20 && word.bytes().all(|byte| byte.is_ascii_lowercase() || matches!(byte, b'-' | b'_'))
}

/// One table, whose unknown keys are reported.
pub(super) struct TableReader<'t> {
    /// How messages name it, such as "`[limits]`".
    name: String,
    table: &'t DeTable<'t>,
}

impl<'t> TableReader<'t> {
    /// Opens a table and reports the keys that do not belong there.
    pub(super) fn new(name: impl Into<String>, table: &'t DeTable<'t>, keys: &[&str], faults: &mut FaultList) -> Self {
        let name = name.into();
        for key in table.keys().filter(|key| !keys.contains(&key.get_ref().as_ref())) {
            let word = key.get_ref().as_ref();
            let shown = if is_plain_word(word) { format!("unknown key `{word}` in {name}") } else { format!("unknown key in {name}") };
            let help = match nearest_word(word, keys) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("known keys: {}", keys.join(", ")),
            };
            faults.push(fault_at(key, shown).with_help(help));
        }
        Self { name, table }
    }

    /// How messages name the table.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn has_any(&self, keys: &[&str]) -> bool {
        keys.iter().any(|key| self.table.contains_key(*key))
    }

    /// The value of a key, where `take` accepts it.
    pub(super) fn read<T>(
        &self,
        key: &str,
        wanted: &str,
        faults: &mut FaultList,
        take: impl FnOnce(&'t DeValue<'t>) -> Option<T>,
    ) -> Option<Spanned<T>> {
        let value = self.table.get(key)?;
        faults.keep(read_as(value, &format!("`{key}` in {}", self.name), wanted, take))
    }

    pub(super) fn text(&self, key: &str, example: &str, faults: &mut FaultList) -> Option<Spanned<String>> {
        self.read(key, &format!("text in quotes, such as {example}"), faults, as_text)
    }

    /// A whole number.
    fn number(&self, key: &str, faults: &mut FaultList) -> Option<Spanned<u64>> {
        let value = self.table.get(key)?;
        let number = read_as(value, &format!("`{key}` in {}", self.name), "a whole number that is not negative", as_number);
        faults.keep(number.map_err(|fault| if value.get_ref().is_str() { fault.with_help("write it without quotes") } else { fault }))
    }

    /// A number within bounds.
    pub(super) fn number_in(&self, key: &str, unit: &str, range: &RangeInclusive<u64>, faults: &mut FaultList) -> Option<u64> {
        let written = self.number(key, faults)?;
        let number = *written.get_ref();
        if range.contains(&number) {
            return Some(number);
        }
        let (least, most) = (range.start(), range.end());
        faults.push(fault_at(&written, format!("`{key}` in {} must be between {least} and {most}{unit}, not {number}", self.name)));
        None
    }

    pub(super) fn flag(&self, key: &str, faults: &mut FaultList) -> Option<Spanned<bool>> {
        self.read(key, "true or false, without quotes", faults, |value| value.as_bool())
    }

    pub(super) fn array(&self, key: &str, example: &str, faults: &mut FaultList) -> Option<Spanned<&'t DeArray<'t>>> {
        self.read(key, &format!("a list, such as {example}"), faults, DeValue::as_array)
    }

    /// A list of texts.
    pub(super) fn texts(&self, key: &str, example: &str, faults: &mut FaultList) -> Option<Spanned<Vec<Spanned<String>>>> {
        let list = self.array(key, example, faults)?;
        let what = format!("each entry of `{key}` in {}", self.name);
        let words = list.get_ref().iter().filter_map(|entry| faults.keep(read_as(entry, &what, "text in quotes", as_text))).collect();
        Some(Spanned::new(list.span(), words))
    }

    /// A table inside this one.
    pub(super) fn table(&self, key: &str, faults: &mut FaultList) -> Option<Spanned<&'t DeTable<'t>>> {
        self.read(key, "a table", faults, DeValue::as_table)
    }
}

/// The value in the form that `take` accepts.
pub(super) fn read_as<'t, T>(
    value: &'t Spanned<DeValue<'t>>,
    what: &str,
    wanted: &str,
    take: impl FnOnce(&'t DeValue<'t>) -> Option<T>,
) -> Result<Spanned<T>, Diagnostic> {
    match take(value.get_ref()) {
        Some(taken) => Ok(Spanned::new(value.span(), taken)),
        None => Err(fault_at(value, format!("{what} must be {wanted}"))),
    }
}

pub(super) fn as_text(value: &DeValue<'_>) -> Option<String> {
    value.as_str().map(str::to_owned)
}

pub(super) fn as_number(value: &DeValue<'_>) -> Option<u64> {
    let number = value.as_integer()?;
    u64::from_str_radix(number.as_str(), number.radix()).ok()
}
