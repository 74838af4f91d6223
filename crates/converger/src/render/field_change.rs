//! The change of one config key on one line: `cores: 2 -> 4`.

use converger_core::action::FieldChange;
use converger_core::normalize::{ChangeEffect, FieldValue};

use super::{DIM, GREEN, RED, apply_style, collapse_blanks};

/// Longer values are cut.
const VALUE_CHARS_MAX: usize = 100;

/// Characters before the first difference of two long values that are shown with it.
const CONTEXT_CHARS: usize = 20;

/// The key, its value, the value that waits for a restart if there is one, and the declared value. Long values are cut unless `is_whole`.
pub(super) fn render_field_change(change: &FieldChange, is_whole: bool) -> String {
    let start = if is_whole { 0 } else { excerpt_start(change) };
    let side = |value: &Option<FieldValue>| match value {
        None => "(absent)".to_owned(),
        Some(value) if is_whole => collapse_blanks(&value.to_string()),
        Some(value) => collapse_blanks(&shorten_value(value, start)),
    };
    let pending = change.pending.as_ref().map(|pending| format!(" (pending: {})", side(pending))).unwrap_or_default();
    let note = match change.effect {
        ChangeEffect::Recorded => "",
        ChangeEffect::Live => " (takes effect while it runs)",
        ChangeEffect::AtRestart => " (takes effect at the next start)",
    };
    let (before, after) = (apply_style(RED, format!("{}{pending}", side(&change.before))), apply_style(GREEN, side(&change.after)));
    format!("{}: {before} -> {after}{}", change.field.word(), apply_style(DIM, note))
}

/// Where the excerpts of two long values start: shortly before their first difference, which the beginning may not show.
fn excerpt_start(change: &FieldChange) -> usize {
    let (Some(before), Some(after)) = (&change.before, &change.after) else { return 0 };
    let (before, after) = (plain_text(before).0, plain_text(after).0);
    let common = before.chars().zip(after.chars()).take_while(|(one, other)| one == other).count();
    if common < VALUE_CHARS_MAX - CONTEXT_CHARS { 0 } else { common - CONTEXT_CHARS }
}

/// A value as it is cut, and whether it is quoted. The characters of a text are counted as they are; other values as they are written.
fn plain_text(value: &FieldValue) -> (String, bool) {
    match value {
        FieldValue::Text(text) => (text.to_string(), true),
        other => (other.to_string(), false),
    }
}

/// A value, or if it is long, an excerpt from `start` with its length.
fn shorten_value(value: &FieldValue, start: usize) -> String {
    let (text, is_text) = plain_text(value);
    let count = text.chars().count();
    if count <= VALUE_CHARS_MAX {
        return value.to_string();
    }
    let excerpt: String = text.chars().skip(start).take(VALUE_CHARS_MAX).collect();
    let excerpt = if is_text { format!("{excerpt:?}") } else { excerpt };
    let before = if start > 0 { "..." } else { "" };
    let after = if start + VALUE_CHARS_MAX < count { "..." } else { "" };
    format!("{before}{excerpt}{after} [{count} characters; --verbose shows all]")
}

#[cfg(test)]
mod tests {
    use converger_core::normalize::{Field, WordSet};

    use super::*;

    fn render_change(
        before: Option<FieldValue>,
        pending: Option<Option<FieldValue>>,
        after: Option<FieldValue>,
        effect: ChangeEffect,
    ) -> String {
        let change = FieldChange { field: Field::Cores, before, pending, after, effect };
        anstream::adapter::strip_str(&render_field_change(&change, false)).to_string()
    }

    fn text(text: impl Into<String>) -> Option<FieldValue> {
        Some(FieldValue::Text(text.into().into()))
    }

    #[test]
    fn both_values_stand_on_one_line_with_the_pending_one_and_the_effect() {
        let count = |number| Some(FieldValue::Count(number));
        assert_eq!(render_change(count(2), None, count(4), ChangeEffect::Recorded), "cores: 2 -> 4");
        assert_eq!(
            render_change(count(2), Some(count(8)), count(6), ChangeEffect::AtRestart),
            "cores: 2 (pending: 8) -> 6 (takes effect at the next start)"
        );
        assert_eq!(render_change(None, None, count(1), ChangeEffect::Live), "cores: (absent) -> 1 (takes effect while it runs)");
    }

    #[test]
    fn an_excerpt_of_two_long_texts_shows_where_they_differ() {
        let (before, after) = (format!("{}old", "x".repeat(5000)), format!("{}new{}", "x".repeat(5000), "y".repeat(400)));
        let line = render_change(text(before), None, text(after), ChangeEffect::Recorded);
        let expected = format!(
            "cores: ...\"{same}old\" [5003 characters; --verbose shows all] -> ...\"{same}new{more}\"... [5403 characters; --verbose shows all]",
            same = "x".repeat(20),
            more = "y".repeat(77)
        );
        assert_eq!(line, expected);
    }

    #[test]
    fn an_excerpt_of_two_long_lists_of_tags_shows_where_they_differ() {
        let tags = |last: &str| {
            let names = (0..12).map(|number| format!("team-{number:02}-web")).chain([last.to_owned()]);
            FieldValue::Tags(WordSet::new(names.map(Into::into).collect()))
        };
        let line = render_change(Some(tags("zbackup")), None, Some(tags("zother")), ChangeEffect::Recorded);
        assert!(line.contains("zbackup]") && line.contains("zother]"), "{line}");
    }

    #[test]
    fn a_text_that_fits_is_shown_whole_and_an_excerpt_is_escaped() {
        let fits = "é".repeat(VALUE_CHARS_MAX);
        assert_eq!(render_change(text(&*fits), None, None, ChangeEffect::Recorded), format!("cores: {fits:?} -> (absent)"));
        let hostile = render_change(text("\u{1b}[2J".repeat(50)), None, None, ChangeEffect::Recorded);
        assert!(!hostile.contains('\u{1b}') && hostile.contains("[200 characters; --verbose shows all]"), "{hostile}");
    }
}
