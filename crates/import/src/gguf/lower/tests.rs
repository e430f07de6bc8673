//! What is built for small models, and what each wrong number or tensor is answered with.

use base::Bytes;

use super::*;
use crate::ImportErrorKind as K;
use crate::gguf::test_writer::Writer;
use crate::gguf::{Array, Value};
use crate::lowered::FeatureLayers;

const F32: u32 = 0;
const I32: u32 = 26;

/// A model to be written: keys without their architecture, and tensors with their dimensions outermost first.
#[derive(Clone)]
struct Model {
    architecture: &'static str,
    keys: Vec<(&'static str, Value)>,
    tensors: Vec<(String, Vec<u64>, u32)>,
}

impl Model {
    /// One layer of width 8: two heads, one of keys and values, seven tokens.
    fn llama() -> Model {
        let mut model = Model {
            architecture: "llama",
            keys: vec![
                ("block_count", Value::U32(1)),
                ("context_length", Value::U32(16)),
                ("embedding_length", Value::U32(8)),
                ("feed_forward_length", Value::U32(12)),
                ("attention.head_count", Value::U32(2)),
                ("attention.head_count_kv", Value::U32(1)),
                ("attention.layer_norm_rms_epsilon", Value::F32(0.25)),
            ],
            tensors: Vec::new(),
        };
        for (name, shape) in [
            ("token_embd.weight", &[7, 8][..]),
            ("blk.0.attn_norm.weight", &[8]),
            ("blk.0.attn_q.weight", &[8, 8]),
            ("blk.0.attn_k.weight", &[4, 8]),
            ("blk.0.attn_v.weight", &[4, 8]),
            ("blk.0.attn_output.weight", &[8, 8]),
            ("blk.0.ffn_norm.weight", &[8]),
            ("blk.0.ffn_gate.weight", &[12, 8]),
            ("blk.0.ffn_up.weight", &[12, 8]),
            ("blk.0.ffn_down.weight", &[8, 12]),
            ("output_norm.weight", &[8]),
        ] {
            model.add(name, shape);
        }
        model
    }

    fn set(&mut self, key: &'static str, value: Value) {
        self.keys.retain(|(k, _)| *k != key);
        self.keys.push((key, value));
    }

    fn add(&mut self, name: &str, shape: &[u64]) {
        self.remove(name);
        self.tensors.push((name.to_owned(), shape.to_vec(), F32));
    }

    fn remove(&mut self, name: &str) {
        self.tensors.retain(|(n, _, _)| n != name);
    }

    fn import(&self) -> Result<LoweredModel, ImportError> {
        self.import_with(&ImportOptions::default())
    }

    fn import_with(&self, options: &ImportOptions) -> Result<LoweredModel, ImportError> {
        let name = Value::String(self.architecture.into());
        let mut writer = Writer::new().entry("general.architecture", name);
        for (key, value) in &self.keys {
            // Keys of no architecture are written with a colon before them.
            let key = match key.strip_prefix(':') {
                Some(key) => key.to_owned(),
                None => format!("{}.{key}", self.architecture),
            };
            writer = writer.entry(&key, value.clone());
        }
        let mut offset = 0;
        for (name, shape, code) in &self.tensors {
            let dims: Vec<u64> = shape.iter().rev().copied().collect();
            writer = writer.tensor(name, &dims, *code, offset);
            offset += (dims.iter().product::<u64>() * 4).next_multiple_of(32);
        }
        let ones = 1f32.to_le_bytes().repeat(offset as usize / 4);
        let file = writer.data(&ones).finish();
        lower(&Gguf::parse(Bytes::from(&file[..]))?, options)
    }

    fn text(&self) -> String {
        self.import().unwrap().methods[0].graph.to_string()
    }
}

#[test]
fn the_graph_of_one_layer() {
    let wanted = "\
graph forward(tokens: i32[T], position: i32[T], rows: i32[R])
  token_embd: f32[T, 8] = gather_rows(token_embd.weight, tokens)
  blk.0.attn_norm: f32[T, 8] = rms_norm(token_embd, blk.0.attn_norm.weight) {eps: 2.5e-1}
  blk.0.attn_q: f32[T, 8] = linear(blk.0.attn_norm, blk.0.attn_q.weight)
  blk.0.attn_k: f32[T, 4] = linear(blk.0.attn_norm, blk.0.attn_k.weight)
  blk.0.attn_v: f32[T, 4] = linear(blk.0.attn_norm, blk.0.attn_v.weight)
  blk.0.attn_q.heads: f32[T, 2, 4] = reshape(blk.0.attn_q)
  rope: f32[T, 4] = rope_table(position, rope.frequency)
  blk.0.attn_q.rotated: f32[T, 2, 4] = rope(blk.0.attn_q.heads, rope) {layout: interleaved}
  blk.0.attn_k.heads: f32[T, 1, 4] = reshape(blk.0.attn_k)
  blk.0.attn_k.rotated: f32[T, 1, 4] = rope(blk.0.attn_k.heads, rope) {layout: interleaved}
  blk.0.attn_v.heads: f32[T, 1, 4] = reshape(blk.0.attn_v)
  blk.0.attn: f32[T, 2, 4] = update_and_attend(blk.0.attn_q.rotated, blk.0.attn_k.rotated, blk.0.attn_v.heads, position) {cache_id: 0, scale: 0.5}
  blk.0.attn.joined: f32[T, 8] = reshape(blk.0.attn)
  blk.0.attn_output: f32[T, 8] = linear(blk.0.attn.joined, blk.0.attn_output.weight)
  blk.0.attn_residual: f32[T, 8] = add(token_embd, blk.0.attn_output)
  blk.0.ffn_norm: f32[T, 8] = rms_norm(blk.0.attn_residual, blk.0.ffn_norm.weight) {eps: 2.5e-1}
  blk.0.ffn_gate: f32[T, 12] = linear(blk.0.ffn_norm, blk.0.ffn_gate.weight)
  blk.0.ffn_up: f32[T, 12] = linear(blk.0.ffn_norm, blk.0.ffn_up.weight)
  blk.0.ffn_act: f32[T, 12] = gated(blk.0.ffn_gate, blk.0.ffn_up) {function: silu}
  blk.0.ffn_down: f32[T, 8] = linear(blk.0.ffn_act, blk.0.ffn_down.weight)
  blk.0.ffn_residual: f32[T, 8] = add(blk.0.attn_residual, blk.0.ffn_down)
  wanted: f32[R, 8] = gather_rows(blk.0.ffn_residual, rows)
  output_norm: f32[R, 8] = rms_norm(wanted, output_norm.weight) {eps: 2.5e-1}
  logits: f32[R, 7] = linear(output_norm, token_embd.weight)
  return logits
";
    assert_eq!(Model::llama().text(), wanted);
}

#[test]
fn fused_tensors_make_the_same_graph() {
    let mut model = Model::llama();
    let separate = model.text();
    for name in ["attn_q", "attn_k", "attn_v", "ffn_gate"] {
        model.remove(&format!("blk.0.{name}.weight"));
    }
    model.add("blk.0.attn_qkv.weight", &[16, 8]);
    model.add("blk.0.ffn_up.weight", &[24, 8]);
    assert_eq!(model.text(), separate);
}

#[test]
fn facts_follow_the_keys() {
    let mut model = Model::llama();
    model.set("attention.sliding_window", Value::U32(5));
    model.set(":general.name", Value::String("Tiny".into()));
    let artifact = model.import().unwrap();
    assert_eq!(artifact.name.as_deref(), Some("Tiny"));
    assert_eq!(artifact.architecture, "llama");
    let cache = kv::LayerConfig {
        kv_heads: 1,
        key_dim: 4,
        value_dim: 4,
        window: Some(5),
        sinks: 0,
    };
    let facts = ModelFacts {
        caches: vec![cache],
        context_length: 16,
        context_stated: true,
        vocab_size: 7,
        hidden_size: 8,
        max_step: None,
        context_limit: None,
        pooling: None,
    };
    assert_eq!(artifact.facts, facts);
}

#[test]
fn windows_follow_their_pattern() {
    let mut model = Model::llama();
    model.set("attention.sliding_window", Value::U32(5));
    for (pattern, window) in [
        (Value::U32(1), None),
        (Value::U32(2), Some(5)),
        (Value::Array(Array::Bool(vec![true])), Some(5)),
        (Value::Array(Array::Bool(vec![false])), None),
    ] {
        model.set("attention.sliding_window_pattern", pattern.clone());
        let artifact = model.import().unwrap();
        assert_eq!(artifact.facts.caches[0].window, window, "{pattern:?}");
    }
}

/// A layer that attends to latent rows of 6: two heads of 3 elements and 2 rotated ones, with values of 5.
fn latent_model() -> Model {
    let mut model = Model {
        architecture: "deepseek2",
        ..Model::llama()
    };
    for (key, value) in [
        ("attention.head_count_kv", 1),
        ("attention.kv_lora_rank", 6),
        ("attention.key_length", 8),
        ("attention.value_length", 6),
        ("attention.key_length_mla", 5),
        ("attention.value_length_mla", 5),
        ("rope.dimension_count", 2),
    ] {
        model.set(key, Value::U32(value));
    }
    model.remove("blk.0.attn_k.weight");
    model.remove("blk.0.attn_v.weight");
    for (name, shape) in [
        ("blk.0.attn_q.weight", &[10, 8][..]),
        ("blk.0.attn_kv_a_mqa.weight", &[8, 8]),
        ("blk.0.attn_kv_a_norm.weight", &[6]),
        ("blk.0.attn_k_b.weight", &[2, 6, 3]),
        ("blk.0.attn_v_b.weight", &[2, 5, 6]),
        ("blk.0.attn_output.weight", &[8, 10]),
    ] {
        model.add(name, shape);
    }
    model
}

#[test]
fn heads_attend_to_one_latent_row() {
    let artifact = latent_model().import().unwrap();
    let cache = kv::LayerConfig {
        kv_heads: 1,
        key_dim: 8,
        value_dim: 6,
        window: None,
        sinks: 0,
    };
    assert_eq!(artifact.facts.caches, [cache]);
    let text = artifact.methods[0].graph.to_string();
    for line in [
        "blk.0.attn_k_b.1: f32[T, 6] = linear(blk.0.attn_k_b.1.x, blk.0.attn_k_b.1.weight)",
        "blk.0.attn_q.rotated: f32[T, 2, 8] = rope(blk.0.attn_q.latent, rope)",
        "blk.0.attn: f32[T, 2, 6] = update_and_attend(blk.0.attn_q.rotated, blk.0.attn_k.rotated, blk.0.attn_v.heads, position)",
        "blk.0.attn_v_b: f32[T, 10] = concat(blk.0.attn_v_b.0, blk.0.attn_v_b.1)",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    // Keys of older files are those of heads, and both matrices of a head are one tensor.
    let mut joined = latent_model();
    joined.set("attention.head_count_kv", Value::U32(2));
    joined.set("attention.key_length", Value::U32(5));
    joined.set("attention.value_length", Value::U32(5));
    for name in ["attn_k_b", "attn_v_b"] {
        joined.remove(&format!("blk.0.{name}.weight"));
    }
    joined.keys.retain(|(key, _)| !key.ends_with("_mla"));
    joined.add("blk.0.attn_kv_b.weight", &[16, 6]);
    assert_eq!(joined.text(), text);
}

#[test]
fn wrong_latent_files_are_named() {
    let table: &[(Damage, &str)] = &[
        (
            |m| m.keys.retain(|(key, _)| *key != "attention.kv_lora_rank"),
            "deepseek2.attention.kv_lora_rank",
        ),
        (
            |m| m.set("attention.key_length_mla", Value::U32(2)),
            "2 elements of a key are rotated",
        ),
        (
            |m| m.add("blk.0.attn_k_b.weight", &[2, 3, 6]),
            "tensor blk.0.attn_k_b.weight has shape [2, 3, 6], must have [2, 6, 3]",
        ),
        (
            |m| m.remove("blk.0.attn_v_b.weight"),
            "blk.0.attn_v_b.weight",
        ),
        (
            |m| {
                m.set("expert_count", Value::U32(4));
                m.set("expert_used_count", Value::U32(2));
                m.set("expert_group_count", Value::U32(2));
                m.set("expert_group_used_count", Value::U32(1));
            },
            "deepseek2.expert_group_count of experts with softmax",
        ),
    ];
    for (damage, part) in table {
        let mut model = latent_model();
        damage(&mut model);
        let error = model.import().unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

type Damage = fn(&mut Model);

#[test]
fn every_wrong_key_is_named() {
    let table: &[(Damage, K, &str)] = &[
        (
            |m| m.architecture = "mamba",
            K::UnknownArchitecture,
            "architecture \"mamba\" is not supported; supported architectures are llama, qwen2, qwen2vl, qwen2moe, \
             qwen3, qwen3moe, qwen3vl, qwen3vlmoe, qwen3next, qwen35, qwen35moe, olmoe, granitemoe, granitehybrid, gpt-oss, gemma, gemma2, gemma3, gemma4, phi3, gpt2, smollm3, olmo2, \
             granite, deepseek2, glm4, glm4moe, dots1, bailingmoe2, minimax-m2, ernie4_5, ernie4_5-moe, seed_oss, hunyuan-dense, hunyuan-moe, \
             arcee, command-r, cohere2, exaone, exaone4, exaone-moe, starcoder2, falcon, stablelm, lfm2, lfm2moe, mamba2, nemotron_h, \
             nemotron_h_moe, bert, nomic-bert",
        ),
        (
            |m| m.keys.retain(|(k, _)| *k != "block_count"),
            K::MissingKey,
            "metadata key llama.block_count is missing",
        ),
        (
            |m| m.set("block_count", Value::U32(4_000_000_000)),
            K::Value,
            "llama.block_count is 4000000000, must be from 1 to 2147483647",
        ),
        (
            |m| m.set("block_count", Value::U32(2_000_000_000)),
            K::Value,
            "llama.block_count is 2000000000, but the file has 11 tensors",
        ),
        (
            |m| m.set("block_count", Value::String("one".into())),
            K::Value,
            "metadata key llama.block_count is string, not a usize",
        ),
        (
            |m| m.set("attention.head_count", Value::U32(0)),
            K::Value,
            "llama.attention.head_count is 0, must be from 1 to 2147483647",
        ),
        (
            |m| m.set("attention.head_count", Value::U32(3)),
            K::Value,
            "llama.attention.head_count of layer 0 is 3, which does not divide the width 8",
        ),
        (
            |m| m.set("attention.head_count_kv", Value::U32(3)),
            K::Value,
            "llama.attention.head_count_kv of layer 0 is 3, which does not divide 2 heads",
        ),
        (
            |m| {
                let heads = Value::Array(Array::I32(vec![2, 2]));
                m.set("attention.head_count", heads);
            },
            K::Value,
            "llama.attention.head_count has 2 entries for 1 layers",
        ),
        (
            |m| m.set("attention.layer_norm_rms_epsilon", Value::F32(f32::NAN)),
            K::Value,
            "llama.attention.layer_norm_rms_epsilon is NaN, must be a finite number above 0",
        ),
        (
            |m| m.set("attention.key_length", Value::U32(i32::MAX as u32 - 1)),
            K::Tensor,
            "tensor blk.0.attn_q.weight has shape [8, 8], must have [4294967292, 8]",
        ),
        (
            |m| m.set("vocab_size", Value::U32(9)),
            K::Value,
            "llama.vocab_size counts 9 tokens, but tensor token_embd.weight has 7 rows",
        ),
        (
            |m| {
                let tokens = Value::Array(Array::String(["a"; 6].iter().collect()));
                m.set(":tokenizer.ggml.tokens", tokens);
            },
            K::Value,
            "tokenizer.ggml.tokens counts 6 tokens, but tensor token_embd.weight has 7 rows",
        ),
        (
            |m| m.set("rope.dimension_count", Value::U32(6)),
            K::Value,
            "llama.rope.dimension_count is 6, must be even and at most the key length 4",
        ),
        (
            |m| m.set("rope.scaling.type", Value::String("dynamic".into())),
            K::Unsupported,
            "llama.rope.scaling.type \"dynamic\" with this file's frequency factors is not supported",
        ),
        (
            |m| m.set("rope.scaling.type", Value::String("linear".into())),
            K::MissingKey,
            "metadata key llama.rope.scaling.factor is missing",
        ),
        (
            |m| {
                m.set("rope.scaling.type", Value::String("linear".into()));
                m.set("rope.scaling.factor", Value::F32(1e-40));
            },
            K::Value,
            "the rotary embedding has frequencies that are not finite",
        ),
        (
            |m| m.set("expert_count", Value::U32(8)),
            K::MissingKey,
            "metadata key llama.expert_used_count is missing",
        ),
        (
            |m| {
                m.set("expert_count", Value::U32(8));
                m.set("expert_used_count", Value::U32(2));
                m.set("expert_gating_func", Value::U32(3));
            },
            K::Unsupported,
            "llama.expert_gating_func = 3 is not supported",
        ),
        (
            |m| m.set("attention.causal", Value::Bool(false)),
            K::Unsupported,
            "llama.attention.causal = false is not supported",
        ),
        (
            |m| m.set(":split.count", Value::U16(3)),
            K::Unsupported,
            "one part of a model split over 3 files, without the others, is not supported",
        ),
    ];
    refuses(table);
}

#[test]
fn every_wrong_tensor_is_named() {
    let table: &[(Damage, K, &str)] = &[
        (
            |m| m.remove("token_embd.weight"),
            K::MissingTensor,
            "tensor token_embd.weight is missing",
        ),
        (
            |m| m.remove("blk.0.ffn_gate.weight"),
            K::MissingTensor,
            "tensor blk.0.ffn_gate.weight is missing",
        ),
        (
            |m| m.remove("output_norm.weight"),
            K::MissingTensor,
            "tensor output_norm.weight is missing",
        ),
        (
            |m| m.add("token_embd.weight", &[7]),
            K::Value,
            "tensor token_embd.weight has shape [7], must be a matrix",
        ),
        (
            |m| m.add("token_embd.weight", &[7, 9]),
            K::Tensor,
            "tensor token_embd.weight has shape [7, 9], must have [7, 8]",
        ),
        (
            |m| m.add("blk.0.attn_norm.weight", &[9]),
            K::Tensor,
            "tensor blk.0.attn_norm.weight has shape [9], must have [8]",
        ),
        (
            |m| {
                m.remove("blk.0.attn_q.weight");
                m.add("blk.0.attn_qkv.weight", &[15, 8]);
            },
            K::Tensor,
            "tensor blk.0.attn_qkv.weight has shape [15, 8], must have [16, 8]",
        ),
        (
            |m| m.tensors[2].2 = I32,
            K::Tensor,
            "tensor blk.0.attn_q.weight is i32, must be of a real type",
        ),
        (
            |m| m.add("rope_freqs.weight", &[3]),
            K::Tensor,
            "tensor rope_freqs.weight has shape [3], must have [2]",
        ),
        (
            |m| m.add("blk.0.attn_q_norm.weight", &[4]),
            K::UnusedTensor,
            "tensor blk.0.attn_q_norm.weight is not part of the architecture llama",
        ),
        (
            |m| m.architecture = "qwen2",
            K::MissingTensor,
            "tensor blk.0.attn_q.bias is missing",
        ),
        (
            |m| m.architecture = "qwen3",
            K::MissingTensor,
            "tensor blk.0.attn_q_norm.weight is missing",
        ),
    ];
    refuses(table);
}

fn refuses(table: &[(Damage, K, &str)]) {
    for (damage, kind, message) in table {
        let mut model = Model::llama();
        damage(&mut model);
        let error = model.import().expect_err(message);
        assert_eq!(error.to_string(), *message);
        assert_eq!(error.kind(), *kind, "{message}");
    }
}

/// A head of width 8 over two tapped layers, with five tokens.
fn eagle3() -> Model {
    let mut model = Model::llama();
    model.architecture = "eagle3";
    let layers = Array::U32(vec![0, 2]);
    model.set("target_layers", Value::Array(layers));
    model.remove("token_embd.weight");
    model.add("fc.weight", &[8, 16]);
    model.add("blk.0.attn_norm_2.weight", &[8]);
    for (name, rows) in [("attn_q", 8), ("attn_k", 4), ("attn_v", 4)] {
        model.add(&format!("blk.0.{name}.weight"), &[rows, 16]);
    }
    model.add("output.weight", &[5, 8]);
    model.tensors.push(("d2t".to_owned(), vec![5], I32));
    model
}

#[test]
fn an_eagle3_head_pairs_tokens_with_features() {
    let head = eagle3().import().unwrap();
    assert_eq!(head.architecture, "eagle3");
    assert!(!head.facts.is_decoder(), "it has no tokens of its own");
    assert_eq!((head.facts.caches.len(), head.facts.hidden_size), (1, 8));
    let facts = head.draft_head.unwrap();
    let layers = FeatureLayers::Listed(vec![0, 2]);
    assert_eq!(facts.target_layers, layers);
    // The bytes of every tensor of these tests are ones in f32.
    assert_eq!(facts.target_tokens, [1f32.to_bits(); 5]);
    let [forward, fuse] = &head.methods[..] else {
        panic!("two methods");
    };
    let wanted = "\
graph fuse(features: f32[T, 16])
  fc: f32[T, 8] = linear(features, fc.weight)
  return fc
";
    assert_eq!(fuse.graph.to_string(), wanted);
    let text = forward.graph.to_string();
    for line in [
        "graph forward(embedded: f32[T, 8], hidden: f32[T, 8], position: i32[T], rows: i32[R])",
        "blk.0.pair: f32[T, 16] = concat(blk.0.attn_norm, blk.0.attn_norm_2) {axis: 1}",
        "blk.0.attn_q: f32[T, 8] = linear(blk.0.pair, blk.0.attn_q.weight)",
        "blk.0.attn_residual: f32[T, 8] = add(hidden, blk.0.attn_output)",
        "wanted: f32[R, 8] = gather_rows(blk.0.attn_residual, rows)",
        "output: f32[R, 5] = linear(output_norm, output.weight)",
        "return output, blk.0.ffn_residual",
    ] {
        assert!(text.contains(line), "no {line:?} in {text}");
    }
}

#[test]
fn a_damaged_eagle3_head_is_refused() {
    type Change = fn(&mut Model);
    let table: [(Change, &str); 6] = [
        (
            |m| m.keys.retain(|(key, _)| *key != "target_layers"),
            "target_layers",
        ),
        (
            |m| m.set("norm_before_fc", Value::Bool(true)),
            "norm_before_fc = true",
        ),
        (|m| m.remove("fc.weight"), "fc.weight"),
        (|m| m.add("fc.weight", &[8, 24]), "fc.weight"),
        (
            |m| m.add("blk.1.attn_q.weight", &[8, 16]),
            "blk.1.attn_q.weight",
        ),
        (
            |m| {
                m.remove("d2t");
                m.add("d2t", &[5]);
            },
            "d2t",
        ),
    ];
    for (change, expect) in table {
        let mut model = eagle3();
        change(&mut model);
        let error = model.import().unwrap_err().to_string();
        assert!(error.contains(expect), "{error}");
    }
}

#[test]
fn features_are_the_inputs_of_layers() {
    let file = |features: &[usize]| {
        let model = Model::llama();
        let spec = model.import().unwrap();
        assert!(spec.draft_head.is_none());
        let options = ImportOptions {
            feature_layers: FeatureLayers::Listed(features.to_vec()),
            ..ImportOptions::default()
        };
        model.import_with(&options)
    };
    let graph = file(&[0]).unwrap().methods[0].graph.to_string();
    assert!(graph.ends_with("return logits, token_embd\n"), "{graph}");
    let error = file(&[1]).unwrap_err().to_string();
    assert!(
        error.contains("is 1, and the model has 1 layers"),
        "{error}"
    );
}
