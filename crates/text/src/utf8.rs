//! Text from bytes that arrive in pieces.

/// Turns a stream of byte pieces into text that is never cut inside a character.
///
/// A character's bytes may be spread over several tokens. What is not complete is held back; what can no longer become
/// valid is replaced by U+FFFD. All pieces together give what [`String::from_utf8_lossy`] gives for all bytes together.
///
/// ```
/// let mut stream = text::Utf8Stream::default();
/// assert_eq!(stream.push(b"caf\xC3"), "caf");
/// assert_eq!(stream.push(b"\xA9"), "é");
/// assert_eq!(stream.finish(), "");
/// ```
#[derive(Debug, Clone, Default)]
pub struct Utf8Stream {
    /// The beginning of a character, three bytes at most.
    held: Vec<u8>,
}

impl Utf8Stream {
    /// Takes the next bytes and gives all text that is certain.
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

    /// Ends the stream: a character left incomplete becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        let held = std::mem::take(&mut self.held);
        String::from_utf8_lossy(&held).into_owned()
    }

    /// Whether bytes are held back.
    pub fn is_pending(&self) -> bool {
        !self.held.is_empty()
    }
}

/// Whether more bytes could still make a character of these.
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
        // The character is broken off: one replacement for the three bytes held.
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
