//! `tokenizer.json` files of every kind against what Hugging Face's `tokenizers` makes of texts (`generate.py`).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use text::{EncodeOptions, HuggingFaceFiles, TextError, Tokenizer};

fn read(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hugging_face");
    fs::read(folder.join(format!("{name}.json"))).unwrap()
}

fn tokenizer(file: &[u8]) -> Result<Tokenizer, TextError> {
    let files = HuggingFaceFiles {
        tokenizer: file,
        ..HuggingFaceFiles::default()
    };
    Tokenizer::new(files.vocab()?)
}

#[test]
fn ids_are_those_of_tokenizers() {
    type Cases = BTreeMap<String, Vec<(String, Vec<u32>, Vec<u32>)>>;
    let cases: Cases = serde_json::from_slice(&read("cases")).unwrap();
    assert_eq!(cases.len(), 9);
    let mut problems = vec![];
    for (name, cases) in cases {
        let tokenizer = tokenizer(&read(&name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        for (text, bare, framed) in cases {
            let options = EncodeOptions {
                special: true,
                ..EncodeOptions::default()
            };
            let with_frame = EncodeOptions {
                bos: tokenizer.adds_bos(),
                eos: tokenizer.adds_eos(),
                ..options
            };
            for (options, want) in [(options, bare), (with_frame, framed)] {
                let found = tokenizer.encode(&text, options);
                if found != want {
                    problems.push(format!("{name}: {text:?}\n  {found:?}\n  {want:?}"));
                }
            }
            // BERT loses spaces, and Metaspace does not say whether a space was there.
            if !name.starts_with("bert") && name != "metaspace" {
                let ids = tokenizer.encode(&text, options);
                let back = tokenizer.decode(&ids, true);
                if back != text {
                    problems.push(format!("{name}: {text:?} comes back as {back:?}"));
                }
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn special_tokens_come_from_the_files_beside() {
    let file = read("gpt2");
    let files = HuggingFaceFiles {
        tokenizer: &file,
        config: Some(
            br#"{"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": true,
                "chat_template": [{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]}"#,
        ),
        generation: Some(br#"{"eos_token_id": [3, 4]}"#),
        template: None,
    };
    let tokenizer = Tokenizer::new(files.vocab().unwrap()).unwrap();
    assert_eq!(tokenizer.bos(), tokenizer.special_token("<s>"));
    assert_eq!(tokenizer.eos(), tokenizer.special_token("</s>"));
    assert!(tokenizer.adds_bos() && !tokenizer.adds_eos());
    assert!(tokenizer.is_eog(4) && tokenizer.is_eog(tokenizer.eos().unwrap()));
    assert_eq!(files.chat_template().unwrap().as_deref(), Some("d"));
    let own = HuggingFaceFiles {
        template: Some(b"own"),
        ..files
    };
    assert_eq!(own.chat_template().unwrap().as_deref(), Some("own"));
}

#[test]
fn what_is_not_known_is_named() {
    let gpt2 = String::from_utf8(read("gpt2")).unwrap();
    let llama3 = String::from_utf8(read("llama3")).unwrap();
    let bert = String::from_utf8(read("bert")).unwrap();
    let table = [
        (String::new(), "tokenizer.json is not valid JSON"),
        ("[]".into(), "not a JSON object"),
        ("{}".into(), "no object \"model\""),
        (gpt2.replace("\"BPE\"", "\"WordLevel\""), "WordLevel"),
        (
            gpt2.replace(
                "\"type\":\"ByteLevel\",\"add_prefix_space\":false",
                "\"type\":\"Whitespace\"",
            ),
            "Whitespace",
        ),
        (
            gpt2.replace("\"add_prefix_space\":false", "\"add_prefix_space\":true"),
            "add_prefix_space",
        ),
        (
            gpt2.replace("\"!\":0", "\"!\":4000000000"),
            "far above the number of tokens",
        ),
        (
            gpt2.replace("\"normalizer\":null", "\"normalizer\":{\"type\":\"NFKC\"}"),
            "NFKC",
        ),
        (llama3.replace("(?i:'s", "(?<=x)(?i:'s"), "(?<=x)"),
        (
            bert.replace("\"strip_accents\":null", "\"strip_accents\":false"),
            "accents",
        ),
    ];
    for (file, wanted) in table {
        let error = tokenizer(file.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(wanted), "{wanted}: {error}");
    }
}
