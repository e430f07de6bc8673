//! The private-use characters that mark the text of messages while a template runs.

use std::ops::Range;

/// The private-use characters of planes 15 and 16, which are used as marks.
pub(super) const MARKS: [Range<u32>; 2] = [0xF_0000..0xF_FFFE, 0x10_0000..0x10_FFFE];

/// The characters of a text that could be mistaken for marks.
pub(super) fn private(text: &str) -> impl Iterator<Item = char> {
    text.chars().filter(|c| is_private(*c))
}

/// Whether a character is in the ranges that marks are taken from.
pub(super) fn is_private(c: char) -> bool {
    MARKS.iter().any(|range| range.contains(&u32::from(c)))
}
