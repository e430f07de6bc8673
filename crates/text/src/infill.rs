//! Text in the middle: how a model is asked for what stands between two texts.

use crate::{EncodeOptions, Tokenizer};

/// The control tokens that models were trained with: before the text in front, before the text behind, and before the answer.
const MARKS: [[&str; 3]; 7] = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    ["▁<PRE>", "▁<SUF>", "▁<MID>"],
    ["<PRE>", "<SUF>", "<MID>"],
];
/// The control tokens before the name of a repository and before a file of it.
const REPOSITORY: [&str; 2] = ["<|repo_name|>", "<repo_name>"];
const FILES: [&str; 3] = ["<|file_sep|>", "<|file_separator|>", "<file_sep>"];

/// The control tokens of a model for text in the middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InfillTokens {
    before: u32,
    after: u32,
    middle: u32,
    repository: Option<u32>,
    file: Option<u32>,
}

/// A text that is asked for between two others.
#[derive(Clone, Debug, Default)]
pub struct InfillRequest<'a> {
    /// The text in front of it.
    pub prefix: &'a str,
    /// The text behind it.
    pub suffix: &'a str,
    /// Other files, with their names, the nearest last.
    pub files: Vec<(&'a str, &'a str)>,
    /// The beginning of the answer.
    pub begun: &'a str,
}

impl InfillTokens {
    /// The tokens of a model; `None` if it was not trained for text in the middle.
    pub fn of(tokenizer: &Tokenizer) -> Option<InfillTokens> {
        let token = |text: &&str| tokenizer.special_token(text);
        let [before, after, middle] = MARKS.iter().find_map(|marks| {
            let found: Vec<u32> = marks.iter().filter_map(&token).collect();
            <[u32; 3]>::try_from(found).ok()
        })?;
        Some(InfillTokens {
            before,
            after,
            middle,
            repository: REPOSITORY.iter().find_map(token),
            file: FILES.iter().find_map(token),
        })
    }

    /// The tokens of a request. Without a mark for files, their texts come one after the other.
    pub fn prompt(&self, tokenizer: &Tokenizer, request: &InfillRequest<'_>) -> Vec<u32> {
        let text = |text: &str| {
            let options = EncodeOptions {
                bos: false,
                special: false,
                ..EncodeOptions::default()
            };
            tokenizer.encode(text, options)
        };
        let mut tokens = vec![];
        if tokenizer.adds_bos() {
            tokens.extend(tokenizer.bos());
        }
        if !request.files.is_empty()
            && let Some(repository) = self.repository
        {
            tokens.push(repository);
            tokens.extend(text("project\n"));
        }
        for (name, content) in &request.files {
            if let Some(mark) = self.file {
                tokens.push(mark);
                tokens.extend(text(&format!("{name}\n")));
            }
            tokens.extend(text(content));
        }
        if let Some(mark) = self.file.filter(|_| !request.files.is_empty()) {
            tokens.push(mark);
            tokens.extend(text("file\n"));
        }
        tokens.push(self.before);
        tokens.extend(text(request.prefix));
        tokens.push(self.after);
        tokens.extend(text(request.suffix));
        tokens.push(self.middle);
        tokens.extend(text(request.begun));
        tokens
    }
}
