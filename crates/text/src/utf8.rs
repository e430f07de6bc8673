//! `Utf8Stream`: text from a stream of bytes.

/// Converts a stream of bytes to text that never ends inside a character.
///
/// The bytes of a character may be spread over several tokens. An incomplete character stays pending; invalid bytes are
/// replaced by U+FFFD. The concatenated output equals [`String::from_utf8_lossy`] of all bytes.
///
/// ```
/// let mut stream = text::Utf8Stream::default();
/// assert_eq!(stream.push(b"caf\xC3"), "caf");
/// assert_eq!(stream.push(b"\xA9"), "é");
/// assert_eq!(stream.finish(), "");
/// ```
#[derive(Debug, Clone, Default)]
pub struct Utf8Stream {
    /// The first bytes of an incomplete character, at most three.
    held: Vec<u8>,
}

impl Utf8Stream {
    /// Appends bytes and returns the text of all complete characters.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let mut out = String::with_capacity(self.held.len());
        let mut held = 0;
        let mut chunks = self.held.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            out.push_str(chunk.valid());
            let invalid = chunk.invalid();
            if chunks.peek().is_none() && is_incomplete(invalid) {
                held = invalid.len();
            } else if !invalid.is_empty() {
                out.push(char::REPLACEMENT_CHARACTER);
            }
        }
        self.held.drain(..self.held.len() - held);
        out
    }

    /// Ends the stream. An incomplete character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        let held = std::mem::take(&mut self.held);
        String::from_utf8_lossy(&held).into_owned()
    }

    /// Whether bytes are pending.
    pub fn is_pending(&self) -> bool {
        !self.held.is_empty()
    }
}

/// Whether these bytes can be the start of a valid character.
fn is_incomplete(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn holds_back_replaces_and_flushes() {
        let mut stream = Utf8Stream::default();
        assert_eq!(stream.push("🦙".as_bytes()), "🦙");
        assert_eq!(stream.push(b"\xF0\x9F"), "");
        assert!(stream.is_pending());
        assert_eq!(stream.push(b"\xA6"), "");
        // The character is incomplete: one replacement for the three pending bytes.
        assert_eq!(stream.push(b"x"), "\u{FFFD}x");
        assert_eq!(stream.push(b"\xFF\xE2\x96"), "\u{FFFD}");
        assert_eq!(stream.finish(), "\u{FFFD}");
        assert_eq!(stream.finish(), "");
    }

    proptest! {
        #[test]
        fn any_split_gives_the_lossy_whole(
            bytes in proptest::collection::vec(prop_oneof![any::<u8>(), 0x80u8..0xC0, 0xE0u8..0xF8], 0..64),
            piece in 1usize..7,
        ) {
            let mut stream = Utf8Stream::default();
            let mut text: String = bytes.chunks(piece).map(|chunk| stream.push(chunk)).collect();
            text += &stream.finish();
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn valid_text_survives_any_split(text in "\\PC{0,20}", piece in 1usize..5) {
            let mut stream = Utf8Stream::default();
            let mut out: String = text.as_bytes().chunks(piece).map(|chunk| stream.push(chunk)).collect();
            out += &stream.finish();
            prop_assert_eq!(out, text);
        }
    }
}
