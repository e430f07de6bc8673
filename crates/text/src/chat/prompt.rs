//! `Prompt`: a rendered conversation that separates untrusted text (the messages) from the template's own text.

use std::ops::Range;

/// The text of a conversation and the ranges of its untrusted parts. Control tokens are not recognised in those.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Prompt {
    pub(super) text: String,
    pub(super) untrusted: Vec<Range<usize>>,
}

impl Prompt {
    /// A trusted text: control tokens are recognised everywhere.
    pub fn trusted(text: String) -> Self {
        Self {
            text,
            untrusted: Vec::new(),
        }
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Byte ranges of the untrusted text, in order. White space between them may come from either side.
    pub fn untrusted(&self) -> &[Range<usize>] {
        &self.untrusted
    }

    /// The part of the prompt after its first `at` bytes, which must end a character.
    pub(crate) fn after(&self, at: usize) -> Prompt {
        let rest = self.untrusted.iter().filter(|range| range.end > at);
        Prompt {
            text: self.text[at..].to_owned(),
            untrusted: rest
                .map(|range| range.start.saturating_sub(at)..range.end - at)
                .collect(),
        }
    }

    /// The text in segments, each with a flag whether it is trusted.
    pub fn segments(&self) -> impl Iterator<Item = (&str, bool)> {
        let ends = self.untrusted.iter().map(|range| range.end);
        let starts = std::iter::once(0).chain(ends);
        let untrusted = self.untrusted.iter().cloned();
        let last = self.text.len()..self.text.len();
        let pairs = starts.zip(untrusted.chain([last]));
        let pieces = pairs.flat_map(|(start, range)| {
            [
                (&self.text[start..range.start], true),
                (&self.text[range], false),
            ]
        });
        pieces.filter(|(text, _)| !text.is_empty())
    }
}
