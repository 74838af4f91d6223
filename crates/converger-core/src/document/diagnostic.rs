//! A fault in a text: what is wrong, where, and what to do. The CLI renders it with snippets and colours.

/// A range of bytes in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// The first byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

impl Span {
    /// An empty range at a byte offset.
    #[must_use]
    pub fn at(offset: usize) -> Self {
        Self::new(offset, offset)
    }

    /// The range between two byte offsets, which are at most [`super::TEXT_BYTES_MAX`].
    #[must_use]
    pub fn new(start: usize, end: usize) -> Self {
        let clip = |offset: usize| u32::try_from(offset).unwrap_or(u32::MAX);
        Self { start: clip(start), end: clip(end) }
    }
}

/// A position for people: both numbers start at 1, and columns count characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineColumn {
    /// The line, from 1.
    pub line: usize,
    /// The character within the line, from 1.
    pub column: usize,
}

impl LineColumn {
    /// Where `offset` is in `text`.
    #[must_use]
    pub fn at_offset(text: &str, offset: u32) -> Self {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
        let before = text.get(..offset).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
        let column = before.get(line_start..).unwrap_or("").chars().count() + 1;
        Self { line, column }
    }
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The part of the text that is wrong.
    pub span: Span,
    /// What is wrong, in one sentence without a full stop.
    pub message: String,
    /// What to do about it.
    pub help: Option<String>,
    /// A second relevant position with its label, such as the first of two duplicates.
    pub related: Option<(Span, String)>,
}

impl Diagnostic {
    /// A fault at this place.
    pub fn new(span: Span, message: impl Into<String>) -> Self {
        Self { span, message: message.into(), help: None, related: None }
    }

    /// The same with what to do about it.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    pub(crate) fn with_related(mut self, span: Span, label: impl Into<String>) -> Self {
        self.related = Some((span, label.into()));
        self
    }
}

/// All faults of one text, at most [`Diagnostics::MAX`] of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostics {
    list: Vec<Diagnostic>,
    is_truncated: bool,
}

impl Diagnostics {
    /// Decoding stops after this many faults: nobody reads more, and a hostile file must not fill memory with them.
    pub const MAX: usize = 100;

    /// The faults, sorted by position.
    #[must_use]
    pub fn list(&self) -> &[Diagnostic] {
        &self.list
    }

    /// Whether decoding stopped at the maximum, so that there may be more faults.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    /// Whether there is no fault.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.list.len() >= Self::MAX
    }

    /// Adds a fault, as long as there is room for it.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        if self.is_full() {
            self.is_truncated = true;
        } else {
            self.list.push(diagnostic);
        }
    }

    /// The faults in the order of their places.
    #[must_use]
    pub fn into_sorted(mut self) -> Self {
        self.list.sort_by_key(|diagnostic| diagnostic.span);
        self
    }
}

impl From<Diagnostic> for Diagnostics {
    fn from(diagnostic: Diagnostic) -> Self {
        Self { list: vec![diagnostic], is_truncated: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_and_column_count_from_one() {
        let text = "a\nbé x\n";
        assert_eq!(LineColumn::at_offset(text, 0), LineColumn { line: 1, column: 1 });
        assert_eq!(LineColumn::at_offset(text, 6), LineColumn { line: 2, column: 4 });
        assert_eq!(LineColumn::at_offset(text, 99), LineColumn { line: 3, column: 1 });
    }

    #[test]
    fn faults_beyond_the_maximum_are_truncated_and_reported() {
        let mut diagnostics = Diagnostics::default();
        for offset in 0..=Diagnostics::MAX {
            assert!(!diagnostics.is_truncated());
            diagnostics.push(Diagnostic::new(Span::at(offset), "x"));
        }
        assert_eq!(diagnostics.list().len(), Diagnostics::MAX);
        assert!(diagnostics.is_truncated());
    }
}
