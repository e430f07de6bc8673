//! The known name that a mistyped one is nearest to.

/// The name that is nearest to `word`, if one is within `limit` edits.
pub(crate) fn nearest<'a>(
    word: &str,
    names: impl Iterator<Item = &'a str>,
    limit: usize,
) -> Option<&'a str> {
    let (distance, name) = names
        .map(|name| (edits(word, name), name))
        .min_by_key(|(distance, _)| *distance)?;
    (distance <= limit).then_some(name)
}

/// The name or alias of the catalogue that `word` is a typing error of, if there is one.
pub(crate) fn nearest_model(word: &str) -> Option<&'static str> {
    let word = word.to_lowercase();
    let names = kvark::catalogue::MODELS.iter().flat_map(|entry| {
        [entry.name]
            .into_iter()
            .chain(entry.aliases.iter().copied())
    });
    // One edit in a short word; prompts of one word are seldom so near to a name.
    nearest(&word, names, (word.chars().count() / 4).max(1))
}

/// The number of characters to insert, delete or replace between two words.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_found() {
        assert_eq!(edits("kitten", "sitting"), 3);
        assert_eq!(edits("", "abc"), 3);
        let names = ["threads", "temp", "top-k"];
        let near = |word: &str, limit| nearest(word, names.into_iter(), limit);
        assert_eq!(near("thread", 3), Some("threads"));
        assert_eq!(near("temperature", 6), None);
        assert_eq!(near("topk", 2), Some("top-k"));
    }

    #[test]
    fn models_are_near_and_words_are_not() {
        let table = [
            ("smolm2", Some("smollm2")),
            ("SmolLM", Some("smollm2")),
            ("gemma", Some("gemma3")),
            ("qwen2.5-codr", Some("qwen2.5-coder")),
            ("Hello", None),
            ("when", None),
            ("Hi", None),
            ("queen", None),
        ];
        for (word, want) in table {
            assert_eq!(nearest_model(word), want, "{word}");
        }
    }
}
