//! Which characters are invisible or act on a terminal. All code that displays or writes text uses this rule (G16).
//!
//! Must not decide what replaces them.

/// Whether it is a control character, a format character (zero-width, bidirectional, joiner, tag), a line separator, or a noncharacter.
#[must_use]
pub fn is_invisible(character: char) -> bool {
    let is_nothing = u32::from(character) & 0xfffe == 0xfffe;
    character.is_control() || is_nothing || is_format(character)
}

/// Unicode category Cf, unassigned code points in its ranges, and the two line separators.
fn is_format(character: char) -> bool {
    matches!(
        character,
        '\u{ad}'
            | '\u{600}'..='\u{605}'
            | '\u{61c}'
            | '\u{6dd}'
            | '\u{70f}'
            | '\u{890}'..='\u{891}'
            | '\u{8e2}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{110bd}'
            | '\u{110cd}'
            | '\u{13430}'..='\u{1343f}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Category Cf as listed in the Unicode Character Database: first and last of each range.
    const FORMAT: [(u32, u32); 20] = [
        (0xad, 0xad),
        (0x600, 0x605),
        (0x61c, 0x61c),
        (0x6dd, 0x6dd),
        (0x70f, 0x70f),
        (0x890, 0x891),
        (0x8e2, 0x8e2),
        (0x180e, 0x180e),
        (0x200b, 0x200f),
        (0x202a, 0x202e),
        (0x2060, 0x2064),
        (0x2066, 0x206f),
        (0xfeff, 0xfeff),
        (0xfff9, 0xfffb),
        (0x110bd, 0x110bd),
        (0x110cd, 0x110cd),
        (0x13430, 0x1343f),
        (0x1bca0, 0x1bca3),
        (0x1d173, 0x1d17a),
        (0xe0001, 0xe007f),
    ];

    #[test]
    fn format_characters_are_invisible_and_ordinary_characters_are_not() {
        let mut count = 0;
        for character in FORMAT.into_iter().flat_map(|(first, last)| (first..=last).filter_map(char::from_u32)) {
            assert!(is_invisible(character), "{}", character.escape_unicode());
            count += 1;
        }
        assert!(count > 150, "{count}");
        for character in ['\0', '\u{1b}', '\u{7f}', '\u{9b}', '\u{2028}', '\u{2029}', '\u{2065}', '\u{fffe}', '\u{10ffff}'] {
            assert!(is_invisible(character), "{}", character.escape_unicode());
        }
        let seen = ('\0'..=char::MAX).filter(|own| own.is_alphanumeric() || own.is_ascii_graphic() || *own == ' ');
        for character in seen.chain(['\u{301}', '\u{20ac}', '\u{1f600}', '\u{fffd}']) {
            assert!(!is_invisible(character), "{}", character.escape_unicode());
        }
    }
}
