//! Reproduces, id for id, the published sets of texts and tokens for real vocabularies.

use std::fs;
use std::path::Path;

use text::{EncodeOptions, TokenKind};

use crate::gguf;

const SEPARATOR: &str = "\n__ggml_vocab_test__\n";

#[test]
fn every_set_is_reproduced() {
    let Some(folder) = gguf::vocab_folder() else {
        eprintln!("skipped: no folder of vocabulary fixtures (set KVARK_FIXTURES)");
        return;
    };
    let mut sets = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "gguf")
        {
            check_set(&path);
            sets += 1;
        }
    }
    assert!(sets > 0, "the folder holds no sets");
}

fn check_set(path: &Path) {
    let beside = |suffix: &str| fs::read_to_string(format!("{}.{suffix}", path.display())).unwrap();
    let (inputs, outputs) = (beside("inp"), beside("out"));
    let texts: Vec<&str> = inputs.split(SEPARATOR).collect();
    let lines: Vec<&str> = outputs.lines().collect();
    // The file of texts ends in a separator.
    assert_eq!(texts.len(), lines.len() + 1, "{}", path.display());
    let (metadata, tokenizer) = gguf::load(path);
    let model = metadata.str("tokenizer.ggml.model").unwrap();
    for (text, line) in texts.iter().zip(lines) {
        let want: Vec<u32> = line
            .split_whitespace()
            .map(|id| id.parse().unwrap())
            .collect();
        let ids = tokenizer.encode(text, EncodeOptions::default());
        assert_eq!(ids, want, "{} {text:?}", path.display());
        if model != Some("bert") {
            assert_eq!(tokenizer.decode(&ids, false), *text, "{}", path.display());
        }
    }
}

#[test]
fn long_text_without_spaces_comes_back() {
    let Some(folder) = gguf::vocab_folder() else {
        eprintln!("skipped: no folder of vocabulary fixtures (set KVARK_FIXTURES)");
        return;
    };
    for name in ["gpt-2", "llama-spm", "bert-bge", "deepseek-llm"] {
        let (_, tokenizer) = gguf::load(&folder.join(format!("ggml-vocab-{name}.gguf")));
        for unit in ["a", "abcdefghij", "的我", "=", " ", "\n"] {
            let text = unit.repeat(100_000 / unit.len());
            let ids = tokenizer.encode(&text, EncodeOptions::default());
            assert!(ids.len() <= text.len() + 1);
            let back = name == "bert-bge" || tokenizer.decode(&ids, false) == text;
            assert!(back, "{name} {unit:?}");
        }
    }
}

#[test]
fn special_tokens_of_phi_3() {
    let Some(folder) = gguf::vocab_folder() else {
        eprintln!("skipped: no folder of vocabulary fixtures (set KVARK_FIXTURES)");
        return;
    };
    let (_, tokenizer) = gguf::load(&folder.join("ggml-vocab-phi-3.gguf"));
    let end = tokenizer.special_token("<|end|>").unwrap();
    assert!(tokenizer.is_eog(end));
    assert_eq!(tokenizer.kind(end), Some(TokenKind::Control));
    let options = EncodeOptions {
        bos: true,
        special: true,
        ..EncodeOptions::default()
    };
    let ids = tokenizer.encode("<|user|>Hello<|end|>", options);
    assert_eq!(ids, [1, 32010, 15043, 32007]);
    assert!(
        !tokenizer
            .encode("<|end|>", EncodeOptions::default())
            .contains(&end)
    );
}
