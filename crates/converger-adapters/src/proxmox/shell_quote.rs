//! Quoting for shell commands that people are to type. A foreign text stays one word of the command (G16).

/// Quotes a text as one shell word.
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
