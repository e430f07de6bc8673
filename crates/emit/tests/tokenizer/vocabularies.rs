//! Vocabularies of every algorithm and pre-tokenizer.

use crate::gguf;
use std::path::Path;
use text::{HuggingFaceFiles, TokenKind, Vocab, VocabModel};

/// Every pre-tokenizer of byte-level BPE that has a name and patterns of its own.
const PRE_TOKENIZERS: [&str; 8] = [
    "gpt-2",
    "smollm",
    "llama-bpe",
    "qwen2",
    "deepseek-llm",
    "deepseek-coder",
    "falcon",
    "default",
];

/// Small vocabularies that are committed: files of Hugging Face's tokenizers, encoders with random weights, and variants of them.
pub(crate) fn committed() -> Vec<(String, Vocab)> {
    let mut all = hugging_face();
    let find = |name: &str| {
        all.iter()
            .find(|(found, _)| found == name)
            .unwrap()
            .1
            .clone()
    };
    let (gpt2, llama2, bert) = (find("gpt2"), find("llama2"), find("bert"));
    for name in PRE_TOKENIZERS {
        let vocab = Vocab {
            pre_tokenizer: name.to_owned(),
            split_stages: vec![],
            ..gpt2.clone()
        };
        all.push((format!("gpt2 by {name}"), vocab));
    }
    let variants = [
        (
            "collapsed",
            Vocab {
                remove_extra_whitespaces: Some(true),
                ..llama2.clone()
            },
        ),
        (
            "bare",
            Vocab {
                add_space_prefix: Some(false),
                ..llama2.clone()
            },
        ),
        (
            "once",
            Vocab {
                space_prefix_once: true,
                space_prefix_if_missing: true,
                ..llama2.clone()
            },
        ),
        (
            "newlines",
            Vocab {
                newline_runs: true,
                ..llama2.clone()
            },
        ),
        (
            "cased",
            Vocab {
                cased: true,
                ..bert.clone()
            },
        ),
        ("scores", by_score(&llama2)),
        ("no-space", without_space(&by_score(&llama2))),
        ("mark", with_mark(&bert)),
        ("no-unknown", without_bytes(&llama2)),
    ];
    all.extend(variants.map(|(name, vocab)| (name.to_owned(), vocab)));
    all.extend(encoders());
    all
}

/// A vocabulary that merges by the scores of its pieces.
fn by_score(vocab: &Vocab) -> Vocab {
    Vocab {
        merges: base::StringTable::default(),
        scores: (0..vocab.tokens.len()).map(|id| -(id as f32)).collect(),
        ..vocab.clone()
    }
}

/// A vocabulary in which a space is no piece, so that it is spelled in bytes.
fn without_space(vocab: &Vocab) -> Vocab {
    let renamed = |token| if token == "▁" { "gone" } else { token };
    Vocab {
        tokens: vocab.tokens.iter().map(renamed).collect(),
        ..vocab.clone()
    }
}

/// A vocabulary whose last token is the mark that begins words.
fn with_mark(vocab: &Vocab) -> Vocab {
    let mut vocab = vocab.clone();
    vocab.tokens.push("▁");
    vocab.kinds.push(TokenKind::Normal);
    vocab
}

/// A vocabulary in which some bytes have no token, so that characters become the unknown token.
fn without_bytes(vocab: &Vocab) -> Vocab {
    let renamed = |token: &str| match token {
        "<0xC3>" | "<0xE2>" => format!("gone {token}"),
        token => token.to_owned(),
    };
    Vocab {
        tokens: vocab.tokens.iter().map(renamed).collect(),
        unk: Some(0),
        ..vocab.clone()
    }
}

fn hugging_face() -> Vec<(String, Vocab)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/hugging_face");
    let names = [
        "gpt2",
        "smollm",
        "llama3",
        "qwen2",
        "llama2",
        "gemma",
        "metaspace",
        "bert",
        "bert_cased",
    ];
    let read = |name: &str| {
        let bytes = std::fs::read(folder.join(format!("{name}.json"))).unwrap();
        let files = HuggingFaceFiles {
            tokenizer: &bytes,
            ..HuggingFaceFiles::default()
        };
        (name.to_owned(), files.vocab().unwrap())
    };
    names.map(read).into()
}

/// The tokenizers of the encoders with random weights; the decoders have none.
fn encoders() -> Vec<(String, Vocab)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures/encoder");
    let entries = std::fs::read_dir(folder).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "gguf"));
    paths.sort();
    let named = |path: &std::path::PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, gguf::vocab(path).unwrap())
    };
    paths.iter().map(named).collect()
}

/// Vocabularies of real models, where there are any: those of llama.cpp's tests, and the default model's.
pub(crate) fn real() -> Vec<(String, Vocab)> {
    let mut paths = Vec::new();
    if let Some(folder) = gguf::vocab_folder() {
        let entries = std::fs::read_dir(folder).unwrap();
        paths.extend(entries.map(|entry| entry.unwrap().path()));
        paths.retain(|path| path.extension().is_some_and(|ending| ending == "gguf"));
        paths.sort();
    }
    paths.extend(gguf::smollm2());
    let named = |path: &std::path::PathBuf| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        (name, gguf::vocab(path).unwrap())
    };
    paths.iter().map(named).collect()
}

/// Whether every algorithm is among the vocabularies.
pub(crate) fn have_every_algorithm(all: &[(String, Vocab)]) -> bool {
    let models = [
        VocabModel::Bpe,
        VocabModel::SentencePiece,
        VocabModel::WordPiece,
    ];
    models
        .iter()
        .all(|model| all.iter().any(|(_, vocab)| vocab.model == *model))
}
