//! A tokenizer as C: its tables as a file, and the scanners and merges that the model's algorithm needs.

mod table_file;

use crate::c_text::{define, fill};
use crate::error::{EmitError, EmitErrorKind};
use std::fmt::Write;
pub(crate) use table_file::Section;
use table_file::{NONE, TableFile, pair_table, string_table};
use text::{Acceptance, AlgorithmTables, MergeRow, TextError, Tokenizer, WordAutomata};

/// The most tokens of a table: an id plus one and a flag fit in 32 bits.
const MAX_TOKENS: usize = 1 << 30;

/// The sources and tables of a tokenizer.
pub struct TokenizerProgram {
    header: String,
    source: String,
    tables: Vec<u8>,
    pub(crate) sections: Vec<Section>,
}

impl TokenizerProgram {
    /// Makes the sources and tables of a tokenizer; `title` names the model in comments.
    ///
    /// # Errors
    /// `Tokenizer` if the tokenizer has no tables.
    pub fn new(tokenizer: &Tokenizer, title: &str) -> Result<TokenizerProgram, EmitError> {
        let count = tokenizer.vocab_size();
        if count > MAX_TOKENS {
            return Err(EmitErrorKind::Tokenizer(TextError::TooManyTokens(count)).into());
        }
        let tables = tokenizer.tables().map_err(EmitErrorKind::Tokenizer)?;
        let mut parts = Parts::new(tokenizer);
        let special: Vec<[u32; 4]> = tables
            .special
            .iter()
            .map(|edge| {
                let end = edge.token.map_or(0, |id| (id + 1) << 1);
                let end = end | u32::from(edge.always);
                [edge.node, edge.byte.into(), edge.next, end]
            })
            .collect();
        parts.add_pairs("SPECIAL", "edges of the trie of special tokens", &special);
        for (name, value) in [
            ("TOKENIZER_OMITS_FIRST_SPACE", tables.omits_first_space),
            (
                "TOKENIZER_OMITS_SPACE_AFTER_SPECIAL",
                tables.omits_space_after_special,
            ),
        ] {
            define(&mut parts.facts, name, u8::from(value), "");
        }
        parts.add_algorithm(&tables.algorithm);
        Ok(parts.finish(title))
    }

    /// The text of `tokenizer.h`.
    pub fn header(&self) -> &str {
        &self.header
    }

    /// The text of `tokenizer.c`.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The bytes of `tokenizer.bin`.
    pub fn tables(&self) -> &[u8] {
        &self.tables
    }
}

/// A tokenizer in C while it is made.
struct Parts<'a> {
    tokenizer: &'a Tokenizer,
    file: TableFile,
    /// Constants of the header.
    facts: String,
    /// Types of the header, and the work buffers of `struct tokenizer`.
    structs: &'static str,
    buffers: String,
    source: String,
}

impl<'a> Parts<'a> {
    /// The tables that every algorithm has.
    fn new(tokenizer: &'a Tokenizer) -> Parts<'a> {
        let ids = 0..tokenizer.vocab_size() as u32;
        let (mut text, mut ends, mut kinds) = (Vec::new(), Vec::new(), Vec::new());
        let mut longest = 0;
        for id in ids {
            let bytes = tokenizer.token_bytes(id).unwrap_or_default();
            longest = longest.max(bytes.len());
            text.extend_from_slice(bytes);
            ends.push(text.len() as u32);
            let hidden = tokenizer.kind(id).is_some_and(|kind| kind.is_hidden());
            let flags = [hidden, tokenizer.is_special(id), tokenizer.is_eog(id)];
            let bits = (0..).zip(flags);
            kinds.push(bits.map(|(bit, flag)| u8::from(flag) << bit).sum::<u8>());
        }
        let mut file = TableFile::new();
        file.add_u32("T_ENDS", "the end of each token's bytes", &ends);
        file.add("T_TEXT", "the bytes of all tokens", &text);
        let what = "1 without text to show, 2 special, 4 ends a generation";
        file.add("T_KINDS", what, &kinds);
        let mut facts = String::new();
        define(&mut facts, "TOKENIZER_TOKENS", ends.len(), "ids are below");
        let what = "bytes of the longest token";
        define(&mut facts, "TOKENIZER_LONGEST", longest, what);
        let id = |id: Option<u32>| id.map_or(-1, i64::from);
        define(
            &mut facts,
            "TOKENIZER_BOS_ID",
            id(tokenizer.bos()),
            "-1 for none",
        );
        define(&mut facts, "TOKENIZER_EOS_ID", id(tokenizer.eos()), "");
        let adds = match (tokenizer.adds_bos(), tokenizer.adds_eos()) {
            (true, true) => "(TOKENIZER_BOS | TOKENIZER_EOS)",
            (true, false) => "TOKENIZER_BOS",
            (false, true) => "TOKENIZER_EOS",
            (false, false) => "0",
        };
        define(&mut facts, "TOKENIZER_ADDS", adds, "");
        Parts {
            tokenizer,
            file,
            facts,
            structs: "",
            buffers: String::new(),
            source: include_str!("../templates/tokenizer/common.c").to_owned(),
        }
    }

    fn add_algorithm(&mut self, algorithm: &AlgorithmTables) {
        match algorithm {
            AlgorithmTables::Bpe {
                words,
                bytes,
                merges,
                whole,
            } => {
                if !whole.is_empty() {
                    self.add_strings("WHOLE", "tokens that words become without merging", whole);
                    self.source += include_str!("../templates/tokenizer/strings.c");
                }
                self.add_byte_ids(bytes);
                self.add_merges(merges);
                self.add_words(words);
                self.source += include_str!("../templates/tokenizer/stages.c");
                let skip = match whole.is_empty() {
                    true => "",
                    false => include_str!("../templates/tokenizer/bpe_whole.c"),
                };
                let bpe = include_str!("../templates/tokenizer/bpe.c");
                self.source += &fill(bpe, &[("whole", skip)]);
            }
            AlgorithmTables::SentencePiece {
                pieces,
                merges,
                bytes,
                unknown,
                space_prefix,
                space_prefix_once,
                space_prefix_if_missing,
                collapse_spaces,
                newline_runs,
            } => {
                let ids: Vec<u32> = pieces.iter().map(|(id, _)| *id).collect();
                self.add_strings("PIECES", "pieces by their text", &ids);
                self.source += include_str!("../templates/tokenizer/strings.c");
                self.add_byte_ids(bytes);
                if merges.is_empty() {
                    let mut ranks = vec![NONE; self.tokenizer.vocab_size()];
                    for (id, rank) in pieces {
                        ranks[*id as usize] = *rank;
                    }
                    self.file
                        .add_u32("T_RANKS", "lower ranks merge earlier", &ranks);
                    self.add_merge_loop(include_str!("../templates/tokenizer/merge_scores.c"));
                } else {
                    self.add_merges(merges);
                }
                let unknown = unknown.map_or(-1, i64::from);
                define(&mut self.facts, "TOKENIZER_UNKNOWN", unknown, "-1 for none");
                for (name, value) in [
                    ("SPACE_PREFIX", *space_prefix),
                    ("SPACE_PREFIX_ONCE", *space_prefix_once),
                    ("SPACE_PREFIX_IF_MISSING", *space_prefix_if_missing),
                    ("COLLAPSE_SPACES", *collapse_spaces),
                ] {
                    let name = format!("TOKENIZER_{name}");
                    define(&mut self.facts, &name, u8::from(value), "");
                }
                self.buffers += "    uint8_t plain[TOKENIZER_MAX_TEXT + 1];\n";
                let runs = match newline_runs {
                    true => include_str!("../templates/tokenizer/sentencepiece_runs.c"),
                    false => include_str!("../templates/tokenizer/sentencepiece_whole.c"),
                };
                let spm = include_str!("../templates/tokenizer/sentencepiece.c");
                self.source += &fill(spm, &[("runs", runs)]);
            }
            AlgorithmTables::WordPiece {
                words,
                pieces,
                unknown,
                max_word_chars,
                characters,
            } => {
                self.add_strings("PIECES", "pieces by their text", pieces);
                self.source += include_str!("../templates/tokenizer/strings.c");
                self.add_words(words);
                define(&mut self.facts, "TOKENIZER_UNKNOWN", unknown, "");
                define(
                    &mut self.facts,
                    "TOKENIZER_MAX_WORD",
                    max_word_chars,
                    "characters; a longer word is unknown",
                );
                self.add_characters(characters);
                self.source += include_str!("../templates/tokenizer/wordpiece.c");
            }
        }
    }

    /// A table of pairs, and the constant of its mask.
    fn add_pairs(&mut self, name: &str, what: &str, rows: &[[u32; 4]]) {
        let table = pair_table(rows);
        let mask = format!("{:#x}u", table.len() / 4 - 1);
        define(
            &mut self.facts,
            &format!("TOKENIZER_{name}_MASK"),
            mask,
            "slots less one",
        );
        self.file.add_u32(&format!("T_{name}"), what, &table);
    }

    /// A table of tokens by their bytes, and the constant of its mask.
    fn add_strings(&mut self, name: &str, what: &str, ids: &[u32]) {
        let tokenizer = self.tokenizer;
        let table = string_table(ids, |id| tokenizer.token_bytes(id).unwrap_or_default());
        let mask = format!("{:#x}u", table.len() - 1);
        define(
            &mut self.facts,
            &format!("TOKENIZER_{name}_MASK"),
            mask,
            "slots less one",
        );
        self.file.add_u32(&format!("T_{name}"), what, &table);
    }

    fn add_byte_ids(&mut self, bytes: &[Option<u32>]) {
        let ids: Vec<u32> = bytes.iter().map(|id| id.unwrap_or(NONE)).collect();
        self.file.add_u32("T_BYTES", "the token of each byte", &ids);
    }

    fn add_merges(&mut self, merges: &[MergeRow]) {
        let rows: Vec<[u32; 4]> = merges
            .iter()
            .map(|row| [row.left, row.right, row.rank, row.id])
            .collect();
        self.add_pairs("MERGES", "pairs that merge, with rank and result", &rows);
        self.add_merge_loop(include_str!("../templates/tokenizer/merge_pairs.c"));
    }

    /// The merge loop, with the function that looks a pair up.
    fn add_merge_loop(&mut self, find: &str) {
        self.structs = include_str!("../templates/tokenizer/merge.h");
        self.buffers += concat!(
            "    size_t symbol_count, merge_count;\n",
            "    struct tokenizer_symbol symbols[TOKENIZER_MAX_TEXT + 1];\n",
            "    struct tokenizer_merge merges[2 * (TOKENIZER_MAX_TEXT + 1)];\n"
        );
        self.source += find;
        self.source += include_str!("../templates/tokenizer/merge.c");
    }

    /// The classes of characters, the automata of the patterns and their scanner.
    fn add_words(&mut self, words: &WordAutomata) {
        let ranges = words.ranges.iter();
        let ranges: Vec<u32> = ranges
            .map(|(first, class)| first << 8 | u32::from(*class))
            .collect();
        define(&mut self.facts, "TOKENIZER_RANGES", ranges.len(), "");
        define(
            &mut self.facts,
            "TOKENIZER_CLASSES",
            words.white_space.len(),
            "classes of characters",
        );
        let what = "the first character of a range and its class";
        self.file.add_u32("T_RANGES", what, &ranges);
        let spaces: Vec<u8> = words.white_space.iter().map(|x| u8::from(*x)).collect();
        self.file
            .add("T_WHITE_SPACE", "classes that are white space", &spaces);
        let mut rows = String::new();
        for (i, stage) in words.stages.iter().enumerate() {
            let accepts = stage.accepts.iter().map(|accepts| match accepts {
                Acceptance::Never => 0,
                Acceptance::AtEnd => 1,
                Acceptance::Always => 3,
            });
            let accepts: Vec<u8> = accepts.collect();
            let next = format!("T_NEXT_{i}");
            self.file
                .add_u16(&next, "the next state by state and class", &stage.next);
            let name = format!("T_ACCEPTS_{i}");
            self.file
                .add(&name, "where a match can end in a state", &accepts);
            let comma = if i == 0 { "" } else { ", " };
            let splits = u8::from(stage.splits_last_space);
            let _ = write!(rows, "{comma}{{{next}, {name}, {splits}}}");
        }
        let scanner = include_str!("../templates/tokenizer/words.c");
        self.source += &fill(scanner, &[("stages", &rows)]);
    }

    /// The characters that normalisation changes, and the buffer of normalised text.
    fn add_characters(&mut self, characters: &[(char, char, String)]) {
        let (mut rows, mut text) = (Vec::new(), String::new());
        let mut growth = 1;
        for (first, last, plain) in characters {
            growth = growth.max(plain.len().div_ceil(first.len_utf8()));
            let place = [text.len() as u32, plain.len() as u32];
            rows.extend([u32::from(*first), u32::from(*last)]);
            rows.extend(place);
            text += plain;
        }
        define(
            &mut self.facts,
            "TOKENIZER_CHARACTERS",
            rows.len() / 4,
            "ranges that normalisation changes",
        );
        let what = "first and last character, offset and length of the result";
        self.file.add_u32("T_CHARACTERS", what, &rows);
        self.file
            .add("T_CHARACTER_TEXT", "the results", text.as_bytes());
        let _ = writeln!(
            self.buffers,
            "    uint8_t plain[{growth} * TOKENIZER_MAX_TEXT + 1];"
        );
    }

    fn finish(self, title: &str) -> TokenizerProgram {
        let (tables, sections) = self.file.finish();
        let mut facts = self.facts;
        define(
            &mut facts,
            "TOKENIZER_BYTES",
            format!("{}ull", tables.len()),
            "of tokenizer.bin",
        );
        let mut offsets = String::new();
        for section in &sections {
            let offset = format!("{:#x}ull", section.offset);
            define(&mut offsets, &section.name, offset, &section.shape);
        }
        let header = fill(
            include_str!("../templates/tokenizer/tokenizer.h"),
            &[
                ("title", title),
                ("facts", &facts),
                ("offsets", &offsets),
                ("structs", self.structs),
                ("buffers", &self.buffers),
            ],
        );
        let mut source = fill(&self.source, &[("title", title)]);
        source += include_str!("../templates/tokenizer/interface.c");
        TokenizerProgram {
            header,
            source,
            tables,
            sections,
        }
    }
}
