//! Lines that people are to type into a shell: what others wrote stays one word of them (G16).
//!
//! What never enters: which lines, and what they are for.

/// A text as one word of a shell.
pub(super) fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_word_cannot_end_early() {
        assert_eq!(quote("svc@pve!probe"), "'svc@pve!probe'");
        assert_eq!(quote("o'neill@pve!x; rm -rf /"), r"'o'\''neill@pve!x; rm -rf /'");
    }
}
