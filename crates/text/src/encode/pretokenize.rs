//! Splits text into words. Byte-level BPE merges only within a word.
//!
//! Each named pre-tokenizer is a list of stages. A stage splits every piece of the previous stage into the matches of its
//! pattern and the text between them. The published patterns end in `\s+(?!\S)|\s+`; here that look-ahead is a rule
//! for the text between matches ([`GapRule::SplitLastSpace`]), so every pattern is a plain regular
//! expression: matching is linear in the text and cannot fail.

use regex::Regex;

use crate::{SplitStage, TextError, WordAutomata};

/// GPT-2: contractions; letters, digits or other symbols, each with one leading space.
pub(crate) const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+";
/// Llama 3: as GPT-2, but any symbol may precede letters, digits are grouped by three and line ends stay together.
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
);
/// Qwen 2: as Llama 3, with single digits.
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
);
/// Qwen 3.5: as Qwen 2, with marks among letters.
const QWEN35: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}",
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
);
/// Ling 2: as Qwen 2, with line ends apart.
const BAILING: &str = concat!(
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]"
);
/// Seed: as Qwen 2, with line ends apart from symbols.
const SEED: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+"
);
/// K-EXAONE: words with single spaces between them are one.
const EXAONE_MOE: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]"
);
/// DeepSeek 3: letters with a symbol before them, after ideographs and groups of three digits.
const DEEPSEEK3: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+"
);
const DEEPSEEK3_IDEOGRAPHS: &str = r"[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+";
/// Mistral's Tekken: as GPT-4o, with single digits and without contractions.
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
);
/// Kimi K2: as GPT-4o, with Han apart.
const KIMI: &str = concat!(
    r"\p{Han}+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
);
/// GPT-4o: as Llama 3, but a change from small to large letters begins a word, and contractions end one.
const GPT4O: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
);
/// The cased letters of the older Unicode version that DeepSeek LLM was trained with.
const DEEPSEEK_LETTERS: &str = concat!(
    r"\s?[A-Za-z\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}\u{1C4}-\u{293}\u{295}-\u{2AF}",
    r"\u{370}-\u{373}\u{376}\u{377}\u{37B}-\u{37D}\u{37F}\u{386}\u{388}-\u{38A}\u{38C}\u{38E}-\u{3A1}",
    r"\u{3A3}-\u{3F5}\u{3F7}-\u{481}\u{48A}-\u{52F}\u{531}-\u{556}\u{10A0}-\u{10C5}\u{13A0}-\u{13F5}",
    r"\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}\u{1D00}-\u{1D2B}\u{1D6B}-\u{1D77}\u{1D79}-\u{1D9A}",
    r"\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}\u{1F20}-\u{1F45}\u{1F48}-\u{1F4D}\u{1F50}-\u{1F57}\u{1F59}\u{1F5B}",
    r"\u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}\u{1FB6}-\u{1FBC}\u{1FBE}\u{1FC2}-\u{1FC4}\u{1FC6}-\u{1FCC}",
    r"\u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}\u{1FE0}-\u{1FEC}\u{1FF2}-\u{1FF4}\u{1FF6}-\u{1FFC}\u{2102}\u{2107}",
    r"\u{210A}-\u{2113}\u{2115}\u{2119}-\u{211D}\u{2124}\u{2126}\u{2128}\u{212A}-\u{212D}\u{212F}-\u{2134}",
    r"\u{2139}\u{213C}-\u{213F}\u{2145}-\u{2149}\u{214E}\u{2183}\u{2184}\u{2C00}-\u{2C7B}\u{2C7E}-\u{2CE4}",
    r"\u{2CEB}-\u{2CEE}\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}\u{A680}-\u{A69B}\u{A722}-\u{A76F}\u{A771}-\u{A787}",
    r"\u{A78B}-\u{A78E}\u{AB70}-\u{ABBF}\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}\u{FF21}-\u{FF3A}\u{FF41}-\u{FF5A}",
    r"\u{10400}-\u{1044F}\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}",
    r"\u{118A0}-\u{118DF}\u{1E900}-\u{1E943}]+",
);
const DEEPSEEK_SIGNS: &str =
    r"\s?[!-/:-~\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF5E}\u{2018}-\u{201F}\u{3000}-\u{3002}]+";
const DEEPSEEK_IDEOGRAPHS: &str = r"[\u{4E00}-\u{9FA5}\u{800}-\u{4E00}\u{AC00}-\u{D7FF}]+";
const SIGNS: &str = r"[\p{P}$+<=>^~|]+";
const FALCON_SIGNS: &str = r"[\p{P}$+<=>^~|`]+";
const THREE_DIGITS: &str = "[0-9][0-9][0-9]";

/// Names of Llama 3's pre-tokenizer that also take words that are tokens as they are, and begin prompts with BOS.
const LLAMA3_NAMES: [&str; 7] = [
    "llama-bpe",
    "llama3",
    "llama-v3",
    "falcon3",
    "falcon-h1",
    "lfm2",
    "pixtral",
];

/// The rule for text between two matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GapRule {
    /// One piece.
    Whole,
    /// If a match does not begin with white space, the last white-space character before it is a separate piece.
    SplitLastSpace,
}

/// A pre-tokenizer: a list of regex stages.
#[derive(Debug)]
pub(crate) struct PreTokenizer {
    stages: Vec<(Regex, GapRule)>,
    /// Whether a word that is a token skips merging.
    pub(crate) ignore_merges: bool,
    /// Whether prompts begin with BOS by default.
    pub(crate) adds_bos: bool,
}

/// The stages of the pre-tokenizer with GGUF's name `name`.
fn stages_of(name: &str) -> Result<&'static [(&'static str, GapRule)], TextError> {
    use GapRule::{SplitLastSpace, Whole};
    Ok(match name {
        "gpt-2" | "mpt" | "olmo" | "phi-2" | "exaone4" | "gigachat" | "a.x-4.0" | "trillion"
        | "granite-docling" | "mellum" => &[(GPT2, SplitLastSpace)],
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" => {
            &[(r"\p{N}", Whole), (GPT2, SplitLastSpace)]
        }
        "smaug-bpe" | "dbrx" | "chatglm-bpe" | "glm4" | "glm5" => &[(LLAMA3, SplitLastSpace)],
        name if LLAMA3_NAMES.contains(&name) => &[(LLAMA3, SplitLastSpace)],
        "gpt-4o" | "llama4" | "kanana2" | "minimax-m2" => &[(GPT4O, SplitLastSpace)],
        "tekken" => &[(TEKKEN, SplitLastSpace)],
        "kimi-k2" => &[(KIMI, SplitLastSpace)],
        "qwen2" | "deepseek-r1-qwen" | "stablelm2" | "hunyuan" | "solar-open" | "megrez" => {
            &[(QWEN2, SplitLastSpace)]
        }
        "qwen35" => &[(QWEN35, SplitLastSpace)],
        "bailingmoe" | "bailingmoe2" | "llada-moe" => &[(BAILING, SplitLastSpace)],
        "seed-coder" => &[(SEED, SplitLastSpace)],
        "exaone-moe" => &[(EXAONE_MOE, SplitLastSpace)],
        "deepseek-v3" | "hunyuan-dense" | "joyai-llm" => &[
            (r"\p{N}{1,3}", Whole),
            (DEEPSEEK3_IDEOGRAPHS, Whole),
            (DEEPSEEK3, SplitLastSpace),
        ],
        "deepseek-llm" => &[
            (r"[\r\n]", Whole),
            (DEEPSEEK_LETTERS, Whole),
            (DEEPSEEK_SIGNS, Whole),
            (r"\s+$", Whole),
            (DEEPSEEK_IDEOGRAPHS, Whole),
            (r"\p{N}+", Whole),
        ],
        "deepseek-coder" => &[
            (r"[\r\n]", Whole),
            (r"\s?\p{L}+", Whole),
            (r"\s?\p{P}+", Whole),
            (DEEPSEEK_IDEOGRAPHS, Whole),
            (r"\p{N}", Whole),
        ],
        "falcon" => &[
            (FALCON_SIGNS, Whole),
            (GPT2, SplitLastSpace),
            (THREE_DIGITS, Whole),
        ],
        "" | "default" => &[
            (SIGNS, Whole),
            (GPT2, SplitLastSpace),
            (r"\p{N}+", Whole),
            (THREE_DIGITS, Whole),
        ],
        other => return Err(TextError::UnknownPreTokenizer(other.to_owned())),
    })
}

/// GGUF's name of the pre-tokenizer with these stages, if it has one. Of those with equal stages it is one that agrees about merging words
/// that are tokens.
pub(crate) fn name_of(splits: &[SplitStage], ignore_merges: bool) -> Option<&'static str> {
    const NAMES: [&str; 16] = [
        "gpt-2",
        "smollm",
        "llama-bpe",
        "smaug-bpe",
        "glm4",
        "gpt-4o",
        "tekken",
        "kimi-k2",
        "qwen2",
        "qwen35",
        "bailingmoe",
        "seed-coder",
        "exaone-moe",
        "deepseek-v3",
        "deepseek-llm",
        "deepseek-coder",
    ];
    let agrees = |name: &&str| {
        let stages = stages_of(name).unwrap_or_default();
        let same = |(own, split): (&(&str, GapRule), &SplitStage)| {
            let last_space = own.1 == GapRule::SplitLastSpace;
            own.0 == split.pattern && last_space == split.splits_last_space
        };
        stages.len() == splits.len() && stages.iter().zip(splits).all(same)
    };
    let mut named = NAMES.into_iter().filter(agrees);
    let merges =
        |name: &&str| PreTokenizer::new(name).is_ok_and(|own| own.ignore_merges == ignore_merges);
    named.find(merges)
}

impl PreTokenizer {
    /// The pre-tokenizer with GGUF's name `name`; the empty name is `default`.
    ///
    /// # Errors
    /// [`TextError::UnknownPreTokenizer`] with the name.
    pub(crate) fn new(name: &str) -> Result<Self, TextError> {
        let stages = stages_of(name)?;
        let compile = |&(pattern, gap): &(&str, GapRule)| {
            (Regex::new(pattern).expect("a pattern of ours"), gap)
        };
        let llama = LLAMA3_NAMES.contains(&name) || name == "tekken";
        Ok(Self {
            stages: stages.iter().map(compile).collect(),
            ignore_merges: llama || name == "glm4" || name == "glm5",
            adds_bos: llama,
        })
    }

    /// The pre-tokenizer with the stages that a file lists.
    ///
    /// # Errors
    /// [`TextError::UnknownPreTokenizer`] with a pattern that is not a supported regular expression.
    pub(crate) fn from_splits(
        splits: &[SplitStage],
        ignore_merges: bool,
    ) -> Result<Self, TextError> {
        let compile = |split: &SplitStage| {
            let gap = match split.splits_last_space {
                true => GapRule::SplitLastSpace,
                false => GapRule::Whole,
            };
            let regex = Regex::new(&split.pattern);
            let unknown = |_| TextError::UnknownPreTokenizer(split.pattern.clone());
            Ok((regex.map_err(unknown)?, gap))
        };
        Ok(Self {
            stages: splits.iter().map(compile).collect::<Result<_, _>>()?,
            ignore_merges,
            adds_bos: false,
        })
    }

    /// The stages as automata.
    ///
    /// # Errors
    /// If a pattern has no automaton.
    pub(crate) fn automata(&self) -> Result<WordAutomata, TextError> {
        let stages = self.stages.iter();
        WordAutomata::new(
            stages.map(|(regex, gap)| (regex.as_str(), *gap == GapRule::SplitLastSpace)),
        )
    }

    /// The words of `text` in order. Together they contain every byte of it.
    pub(crate) fn split<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let mut pieces = vec![text];
        for (regex, gap) in &self.stages {
            let mut next = Vec::with_capacity(pieces.len());
            for piece in pieces {
                isolate(piece, regex, *gap, &mut next);
            }
            pieces = next;
        }
        pieces
    }
}

/// Appends the matches in `piece` and the gaps between them.
fn isolate<'t>(piece: &'t str, regex: &Regex, gap: GapRule, out: &mut Vec<&'t str>) {
    let mut done = 0;
    for found in regex.find_iter(piece) {
        let between = &piece[done..found.start()];
        let begins_word = !found.as_str().starts_with(char::is_whitespace);
        let last = between.char_indices().next_back().map_or(0, |(at, _)| at);
        if gap == GapRule::SplitLastSpace && begins_word && last > 0 {
            out.extend([&between[..last], &between[last..]]);
        } else if !between.is_empty() {
            out.push(between);
        }
        out.push(found.as_str());
        done = found.end();
    }
    if done < piece.len() {
        out.push(&piece[done..]);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use proptest::prelude::*;

    const NAMES: [&str; 19] = [
        "tekken",
        "kimi-k2",
        "qwen35",
        "bailingmoe2",
        "seed-coder",
        "exaone-moe",
        "deepseek-v3",
        "gpt-2",
        "gpt-4o",
        "smollm",
        "llama-bpe",
        "qwen2",
        "starcoder",
        "refact",
        "deepseek-llm",
        "deepseek-coder",
        "falcon",
        "mpt",
        "default",
    ];

    #[test]
    fn words_by_name() {
        let cases: [(&str, &str, &[&str]); 16] = [
            (
                "gpt-2",
                "I've  12 cats!",
                &["I", "'ve", " ", " 12", " cats", "!"],
            ),
            ("gpt-2", "a \t b", &["a", " \t", " b"]),
            ("gpt-2", "a \tb", &["a", " ", "\t", "b"]),
            ("gpt-2", "a\n\n\nb", &["a", "\n\n", "\n", "b"]),
            ("gpt-2", "\tb", &["\t", "b"]),
            ("gpt-2", "a  ", &["a", "  "]),
            ("smollm", "in 1984!", &["in", " ", "1", "9", "8", "4", "!"]),
            (
                "llama-bpe",
                "a\n\n  b 12345",
                &["a", "\n\n", " ", " b", " ", "123", "45"],
            ),
            (
                "llama-bpe",
                "We'Ve (x)\n\n",
                &["We", "'Ve", " (", "x", ")\n\n"],
            ),
            ("llama-bpe", "a  \t12", &["a", "  ", "\t", "12"]),
            ("qwen2", "x 12", &["x", " ", "1", "2"]),
            ("falcon", "a 12345`b", &["a", " ", "123", "45", "`", "b"]),
            ("default", "a 12345`b", &["a", " ", "123", "45", "`", "b"]),
            (
                "deepseek-llm",
                "a 12,\n 我 ",
                &["a", " ", "12", ",", "\n", " ", "我", " "],
            ),
            (
                "deepseek-coder",
                "a 12,\n 我",
                &["a", " ", "1", "2", ",", "\n", " ", "我"],
            ),
            ("", "", &[]),
        ];
        for (name, text, want) in cases {
            assert_eq!(
                PreTokenizer::new(name).unwrap().split(text),
                want,
                "{name} {text:?}"
            );
        }
    }

    /// `tests/pretokenize/generate.py` asks Hugging Face's `tokenizers`.
    #[test]
    fn words_are_those_of_the_models_own_tokenizers() {
        let cases = include_str!("../../tests/pretokenize/cases.json");
        let cases: Vec<(String, String, Vec<String>)> = serde_json::from_str(cases).unwrap();
        for (name, text, want) in cases {
            assert_eq!(
                PreTokenizer::new(&name).unwrap().split(&text),
                want,
                "{name} {text:?}"
            );
        }
    }

    #[test]
    fn an_unknown_name_is_named() {
        let error = PreTokenizer::new("tekken-9").unwrap_err();
        assert_eq!(error, TextError::UnknownPreTokenizer("tekken-9".into()));
    }

    proptest! {
        #[test]
        fn nothing_is_lost(text in any::<String>(), spaced in "[ \t\n\r a1!'é我]{0,24}") {
            static SPLITS: LazyLock<Vec<PreTokenizer>> =
                LazyLock::new(|| NAMES.iter().map(|name| PreTokenizer::new(name).unwrap()).collect());
            for split in SPLITS.iter() {
                for text in [&text, &spaced] {
                    let pieces = split.split(text);
                    prop_assert_eq!(&pieces.concat(), text);
                    prop_assert!(text.is_empty() || pieces.iter().all(|piece| !piece.is_empty()));
                }
            }
        }
    }
}
