//! Encoders with the inputs and outputs of an export, here ONNX files that the test writes.

use super::*;
use writer::{F32, I64, node, port, tensor};

#[path = "../../../import/tests/onnx/writer.rs"]
#[allow(dead_code, reason = "the tests of the importer use all of it")]
mod writer;

const WIDTH: usize = 4;
const WORDS: [&str; 6] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "cat", "dog"];

/// The row of a token in the embedding table.
fn row(id: u32) -> [f32; WIDTH] {
    std::array::from_fn(|i| (id as f32 - 1.5) * 0.25 + (i * i) as f32)
}

/// An encoder that looks its tokens up: a folder with the model and its tokenizer.
fn folder(name: &str, tokens: &str, more: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("embed-exported-{name}"));
    std::fs::create_dir_all(&folder).unwrap();
    let table: Vec<u8> = (0..WORDS.len() as u32)
        .flat_map(row)
        .flat_map(f32::to_le_bytes)
        .collect();
    let ids = ["input_ids"].iter().chain(more);
    let model = writer::Model {
        nodes: vec![node(
            "Gather",
            &["table", "input_ids"],
            &["last_hidden_state"],
        )],
        tensors: vec![tensor("table", &[6, WIDTH as i64], F32, &table)],
        inputs: ids.map(|name| port(name, I64, &["1", tokens])).collect(),
        outputs: vec![port("last_hidden_state", F32, &["1", tokens, "4"])],
        ..writer::Model::default()
    };
    std::fs::write(folder.join("model.onnx"), model.bytes()).unwrap();
    let vocab: serde_json::Map<String, Value> = (0..)
        .zip(WORDS)
        .map(|(id, word): (u32, _)| (word.to_owned(), id.into()))
        .collect();
    let special =
        |id: usize| serde_json::json!({ "id": id, "content": WORDS[id], "special": true });
    let tokenizer = serde_json::json!({
        "added_tokens": (0..4).map(special).collect::<Vec<_>>(),
        "normalizer": { "type": "BertNormalizer", "lowercase": true },
        "pre_tokenizer": { "type": "BertPreTokenizer" },
        "post_processor": { "type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2] },
        "model": { "type": "WordPiece", "unk_token": "[UNK]", "vocab": vocab },
    });
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    folder.join("model.onnx")
}

/// The mean of the rows of these tokens.
fn mean(ids: &[u32]) -> Vec<f32> {
    let sum = |i: usize| ids.iter().map(|id| row(*id)[i]).sum::<f32>();
    (0..WIDTH).map(|i| sum(i) / ids.len() as f32).collect()
}

#[test]
fn an_exported_encoder_embeds_texts() {
    let plain = EmbedOptions {
        normalize: false,
        ..EmbedOptions::default()
    };
    let all = ["attention_mask", "token_type_ids", "position_ids"];
    for (name, tokens, more) in [
        ("dynamic", "sequence", &all[..]),
        ("ids", "sequence", &[]),
        // Shorter texts are padded, and their padding is not part of the mean.
        ("fixed", "6", &all[..1]),
    ] {
        let path = folder(name, tokens, more);
        let mut embedder = embedder(&path, &Cpu::new().unwrap(), &plain);
        assert_eq!(embedder.dimensions(), WIDTH);
        let found = embedder.embed(&["cat", "cat dog cat"], |_| true).unwrap();
        let found = found.unwrap();
        for (embedding, ids) in found.iter().zip([&[2, 4, 3][..], &[2, 4, 5, 4, 3]]) {
            assert_eq!(embedding.tokens, ids.len(), "{name}");
            assert_eq!(embedding.values, mean(ids), "{name}");
        }
        embedder.set_normalize(true);
        let unit = embedder.embed(&["cat"], |_| true).unwrap().unwrap();
        let length: f32 = unit[0].values.iter().map(|x| x * x).sum();
        assert!((length - 1.0).abs() < 1e-6);
        if tokens == "6" {
            let long = embedder.embed(&["cat cat cat cat cat"], |_| true);
            let kind = long.unwrap_err();
            let refused = matches!(kind.kind(), RuntimeErrorKind::TextTooLong { limit: 6, .. });
            assert!(refused, "{kind}");
        }
    }
}

#[test]
fn an_export_with_other_inputs_is_refused_by_name() {
    let path = folder("pixels", "sequence", &["pixel_values"]);
    let refused = Embedder::new(open(&path), &Cpu::new().unwrap(), &EmbedOptions::default());
    let refused = refused.err().unwrap().to_string();
    assert!(refused.contains("pixel_values"), "{refused}");
}
