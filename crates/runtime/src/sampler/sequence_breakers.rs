//! Sequence breakers of the DRY penalty as tokens.

use text::{EncodeOptions, Tokenizer};

/// The texts that break sequences by default, as in llama.cpp.
pub const DEFAULT_SEQUENCE_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// Maximum number of tokens of a breaker after its first one.
const MAX_TAIL: usize = 20;

/// All token sequences that contain one of these texts: single tokens that contain it, and tokens that end with its
/// beginning, followed by the tokens of the rest. For
/// [`dry_sequence_breakers`](super::SamplerOptions::dry_sequence_breakers).
pub fn sequence_breakers(tokenizer: &Tokenizer, texts: &[impl AsRef<str>]) -> Vec<Vec<u32>> {
    let mut found = Vec::new();
    for text in texts
        .iter()
        .map(AsRef::as_ref)
        .filter(|text| !text.is_empty())
    {
        for id in 0..tokenizer.vocab_size() as u32 {
            let Some(token) = tokenizer.token_bytes(id) else {
                continue;
            };
            if token
                .windows(text.len())
                .any(|window| window == text.as_bytes())
            {
                found.push(vec![id]);
                continue;
            }
            // Parts of a character have no tokens of their own: the cut is between characters.
            for (cut, _) in text.char_indices().skip(1) {
                if token.ends_with(&text.as_bytes()[..cut]) {
                    let mut tail = tokenizer.encode(&text[cut..], EncodeOptions::default());
                    tail.truncate(MAX_TAIL);
                    found.push([&[id], &*tail].concat());
                }
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}
