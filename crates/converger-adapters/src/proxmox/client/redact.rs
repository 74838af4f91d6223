//! Removes a secret from received text, in every encoding that JSON or a URL allows. A server that echoes a request must not bring the
//! secret into messages and files.
//!
//! It works on the raw text, before decoding. JSON has two ways to write an ASCII character, as itself and as `\u00XX`; with both covered,
//! no text that is decoded later contains the secret.

/// Replacement for the secret.
pub(super) const REDACTED: &str = "(secret)";

/// JSON inside a JSON string doubles its backslashes. Deeper nesting than this is not searched.
const BACKSLASHES_MAX: usize = 7;

/// Removes `secret`, which consists of plain ASCII characters, from `text`.
pub(super) fn redact_word(text: String, secret: &str) -> String {
    let text = if text.contains(secret) { text.replace(secret, REDACTED) } else { text };
    // Most responses contain neither, which skips the slow scan.
    if text.contains("\\u") || text.contains('%') { redact_encoded(&text, secret) } else { text }
}

fn redact_encoded(text: &str, secret: &str) -> String {
    let mut redacted = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        // A match may begin with an encoded character or with plain ones; both are tried at every position.
        match match_word(rest.as_bytes(), secret.as_bytes()).and_then(|length| rest.get(length..)) {
            Some(after) => {
                redacted.push_str(REDACTED);
                rest = after;
            }
            None => {
                let mut own = rest.chars();
                redacted.extend(own.next());
                rest = own.as_str();
            }
        }
    }
    redacted
}

/// The length of `secret` at the beginning of `bytes`, if it is there.
fn match_word(bytes: &[u8], secret: &[u8]) -> Option<usize> {
    let mut length = 0;
    for own in secret {
        length += match_character(bytes.get(length..)?, *own)?;
    }
    Some(length)
}

/// The length of this character at the beginning of `bytes`: itself, `\u00XX` or `%XX`.
fn match_character(bytes: &[u8], own: u8) -> Option<usize> {
    let first = *bytes.first()?;
    if first == own {
        return Some(1);
    }
    let backslashes = bytes.iter().take(BACKSLASHES_MAX).take_while(|byte| **byte == b'\\').count();
    let (mark, digits) =
        if backslashes > 0 { (backslashes + 3, bytes.get(backslashes..)?.strip_prefix(b"u00")?) } else { (1, bytes.strip_prefix(b"%")?) };
    let digits = std::str::from_utf8(digits.get(..2)?).ok()?;
    (u8::from_str_radix(digits, 16) == Ok(own)).then_some(mark + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORD: &str = "f3b1c8de-0000-4000-8000-123456789abc";

    fn encode_word(each: impl Fn(usize, char) -> String) -> String {
        WORD.chars().enumerate().map(|(index, own)| each(index, own)).collect()
    }

    #[test]
    fn redacts_every_json_encoding_of_the_word() {
        let forms = [
            WORD.to_owned(),
            WORD.replace('-', "\\u002d"),
            WORD.replace('-', "\\u002D"),
            WORD.replace('-', "%2D"),
            encode_word(|_, own| format!("\\u{:04x}", u32::from(own))),
            encode_word(|_, own| format!("\\u{:04X}", u32::from(own))),
            encode_word(|index, own| if index % 2 == 0 { own.to_string() } else { format!("\\u{:04x}", u32::from(own)) }),
            encode_word(|index, own| if index == 35 { format!("\\u{:04x}", u32::from(own)) } else { own.to_string() }),
            encode_word(|_, own| format!("\\\\u{:04x}", u32::from(own))),
            encode_word(|_, own| format!("%{:02x}", u32::from(own))),
        ];
        for form in forms {
            let body = format!(r#"{{"ä {form}":"f3b1{form}{form} \u0066"}}"#);
            let redacted = redact_word(body.clone(), WORD);
            assert_eq!(redacted, r#"{"ä (secret)":"f3b1(secret)(secret) \u0066"}"#, "{body}");
        }
    }

    #[test]
    fn keeps_other_text_unchanged() {
        for text in
            ["", "\\u00", "%2", "\\", "ü%C3%BC\\u00fc", &WORD[1..], &WORD[..35], "f3b1c8de\\u002d0000\\u002d4000", "f3b1c8de\\u012d0000"]
        {
            assert_eq!(redact_word(text.to_owned(), WORD), text, "{text}");
        }
        assert_eq!(match_character(b"\\u+2d", b'-'), None, "a sign is no digit");
    }

    #[test]
    fn many_backslashes_take_linear_time() {
        let marks = "\\".repeat(1 << 20) + "u";
        assert_eq!(redact_word(marks.clone(), WORD), marks);
    }
}
