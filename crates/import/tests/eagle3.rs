//! Eagle3 heads in safetensors files: their outputs, and what is said about those that cannot be used.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use backend::reference::Reference;
use backend::{Backend, Runnable};
use graph::Value;
use import::{Artifact, FeatureLayers, ImportErrorKind as K, ImportOptions};
use kv::{CacheConfig, CacheRegistry, KvStorage, make_decode_session};
use serde_json::{Value as Json, json};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/eagle3")
}

fn expected() -> Json {
    let text = fs::read_to_string(fixtures().join("expected.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn numbers(rows: &Json) -> Vec<f32> {
    let rows = rows.as_array().unwrap().iter();
    let rows = rows.flat_map(|row| row.as_array().unwrap());
    rows.map(|x| x.as_f64().unwrap() as f32).collect()
}

fn close(found: &Value, wanted: &Json) {
    for (a, b) in found.as_f32().unwrap().iter().zip(numbers(wanted)) {
        assert!((a - b).abs() < 1e-4 * b.abs().max(1.0), "{a} and {b}");
    }
}

/// The outputs of `forward` for all pairs, in steps of these sizes.
fn forward(head: &Artifact, sizes: &[usize], embedded: &[f32], hidden: &[f32]) -> [Vec<f32>; 2] {
    let mut config = CacheConfig::new(64, head.facts.caches.clone());
    (config.key_storage, config.value_storage) = (KvStorage::F32, KvStorage::F32);
    let (session, _) = make_decode_session(Reference::new().id(), &config).unwrap();
    let cache = CacheRegistry::global().get(session.key()).unwrap();
    let graph = Arc::new(head.method("forward").unwrap().graph.clone());
    let executable = Reference
        .compile(graph.clone(), &Default::default())
        .unwrap();
    let mut runnable = Runnable::bind(graph, executable, Some(cache)).unwrap();
    let width = head.facts.hidden_size;
    let (mut at, mut all) = (0, [vec![], vec![]]);
    for &n in sizes {
        let part = |all: &[f32]| Value::f32([n, width], all[at * width..][..n * width].to_vec());
        let positions = (at as i32..).take(n).collect();
        let inputs = [
            part(embedded),
            part(hidden),
            Value::i32([n], positions),
            Value::i32([n], (0..n as i32).collect()),
        ];
        let outputs = runnable.run(&inputs).unwrap();
        for (all, output) in all.iter_mut().zip(outputs) {
            all.extend_from_slice(output.as_f32().unwrap());
        }
        at += n;
    }
    all
}

#[test]
fn both_forms_give_the_outputs_of_numpy() {
    let expected = expected();
    for (form, layers) in [
        ("midlayer", FeatureLayers::Standard),
        ("speculators", FeatureLayers::Listed(vec![2, 2, 1])),
    ] {
        let head = import::open(&fixtures().join(form)).unwrap();
        assert_eq!(head.architecture, "eagle3");
        assert!(!head.facts.is_decoder());
        let facts = head.draft_head.clone().unwrap();
        assert_eq!(facts.target_layers, layers);
        assert_eq!(facts.target_tokens[..4], [1, 3, 4, 8]);
        assert_eq!(facts.target_tokens.len(), 12);

        let features = Value::f32([5, 48], numbers(&expected["features"]));
        let graph = Arc::new(head.method("fuse").unwrap().graph.clone());
        let executable = Reference
            .compile(graph.clone(), &Default::default())
            .unwrap();
        let mut fuse = Runnable::bind(graph, executable, None).unwrap();
        let hidden = fuse.run(&[features]).unwrap();
        close(&hidden[0], &expected["hidden"]);

        let hidden = numbers(&expected["hidden"]);
        let embedded = numbers(&expected["embedded"]);
        for sizes in [&[5][..], &[2, 1, 2]] {
            let [logits, next] = forward(&head, sizes, &embedded, &hidden);
            close(&Value::f32([5, 12], logits), &expected[form]["logits"]);
            close(&Value::f32([5, 16], next), &expected[form]["next"]);
        }
    }
}

/// Copies a form into a folder of its own, with its configuration and its header changed.
fn changed(
    name: &str,
    config: impl FnOnce(&mut Json),
    header: impl FnOnce(&mut String),
) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("kvark-eagle3-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let from = fixtures().join("midlayer");
    let text = fs::read_to_string(from.join("config.json")).unwrap();
    let mut json: Json = serde_json::from_str(&text).unwrap();
    config(&mut json);
    fs::write(folder.join("config.json"), json.to_string()).unwrap();
    let bytes = fs::read(from.join("model.safetensors")).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut text = String::from_utf8(bytes[8..8 + len].to_vec()).unwrap();
    header(&mut text);
    let length = (text.len() as u64).to_le_bytes();
    let file = [&length[..], text.as_bytes(), &bytes[8 + len..]].concat();
    fs::write(folder.join("model.safetensors"), file).unwrap();
    folder
}

#[test]
fn heads_that_cannot_be_used_are_named() {
    type Change = fn(&mut Json);
    let same: fn(&mut String) = |_| {};
    let configs: [(Change, K, &str); 7] = [
        (
            |c| c["hidden_size"] = json!(32),
            K::Tensor,
            "midlayer.input_layernorm.weight has shape [16], must have [32]",
        ),
        (
            |c| c["target_hidden_size"] = json!(20),
            K::Tensor,
            "fc.weight has shape [16, 48], must have [16, 60]",
        ),
        (
            |c| c["num_attention_heads"] = json!("two"),
            K::Value,
            "num_attention_heads of config.json is \"two\"",
        ),
        (
            |c| drop(c.as_object_mut().unwrap().remove("intermediate_size")),
            K::Value,
            "intermediate_size of config.json is missing",
        ),
        (
            |c| c["norm_before_fc"] = json!(true),
            K::Unsupported,
            "norm_before_fc = true",
        ),
        (
            |c| c["rope_scaling"] = json!({ "rope_type": "llama3" }),
            K::Unsupported,
            "rope_scaling \"llama3\"",
        ),
        (
            |c| c["eagle_aux_hidden_state_layer_ids"] = json!([1, -1]),
            K::Value,
            "eagle_aux_hidden_state_layer_ids is [1,-1]",
        ),
    ];
    for (index, (change, kind, text)) in configs.into_iter().enumerate() {
        let folder = changed(&format!("config{index}"), change, same);
        let error = import::open(&folder).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
        assert_eq!(error.kind(), kind, "{error}");
        fs::remove_dir_all(folder).unwrap();
    }
    let rename = |from: &'static str, to: &'static str| {
        move |text: &mut String| *text = text.replace(from, to)
    };
    for (name, from, to, text) in [
        (
            "missing",
            "mlp.up_proj",
            "mlp.op_proj",
            "tensor midlayer.mlp.up_proj.weight is missing",
        ),
        (
            "unused",
            "\"t2d\"",
            "\"q2d\"",
            "tensor q2d is not part of the architecture eagle3",
        ),
        (
            "other",
            "hidden_norm",
            "hidden_morn",
            // A model whose configuration does not say which.
            "model_type of config.json is missing",
        ),
    ] {
        let folder = changed(name, |_| {}, rename(from, to));
        let error = import::open(&folder).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
        fs::remove_dir_all(folder).unwrap();
    }
    // SGLang counts layers by their outputs.
    let nested = json!({ "eagle_aux_hidden_state_layer_ids": [1, 1, 0] });
    let folder = changed("nested", |c| c["eagle_config"] = nested, same);
    let head = import::open(&folder).unwrap().draft_head.unwrap();
    assert_eq!(head.target_layers, FeatureLayers::Listed(vec![2, 2, 1]));
    fs::remove_file(folder.join("config.json")).unwrap();
    let error = import::open(&folder.join("model.safetensors")).unwrap_err();
    assert!(
        error.to_string().contains("has no config.json beside it"),
        "{error}"
    );
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn exported_models_have_features_only_if_they_are_wanted() {
    let pt2 = |name: &str| fixtures().join(format!("../pt2/{name}.pt2"));
    let open = |name: &str, feature_layers| {
        let options = ImportOptions {
            feature_layers,
            ..ImportOptions::default()
        };
        import::open_with(&pt2(name), &options)
    };
    let outputs = |layers| {
        let model = open("decoder_features", layers).unwrap();
        model.method("forward").unwrap().graph.outputs().len()
    };
    assert_eq!(outputs(FeatureLayers::None), 1);
    assert_eq!(outputs(FeatureLayers::Standard), 2);
    assert_eq!(outputs(FeatureLayers::Listed(vec![2, 2, 1])), 2);
    for (name, layers, text) in [
        (
            "decoder_features",
            vec![0, 1],
            "was exported with the features of layers [2, 2, 1], and the draft head needs those of [0, 1]: export it with \
             --feature-layers 0,1",
        ),
        (
            "decoder_features",
            vec![4],
            "is 4, and the model has 4 layers",
        ),
        (
            "decoder_llama",
            vec![1, 1],
            "was exported without the features of a draft head: export it with --feature-layers 1,1",
        ),
    ] {
        let error = open(name, FeatureLayers::Listed(layers)).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
}

/// One byte of the header or the configuration after the other is changed: the head is refused, or it is consistent.
#[test]
fn damaged_heads_are_refused_or_import() {
    use base::Bytes;
    use import::safetensors::{Safetensors, lower};
    let folder = fixtures().join("speculators");
    let file = fs::read(folder.join("model.safetensors")).unwrap();
    let config = fs::read(folder.join("config.json")).unwrap();
    let header = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let mut refused = 0;
    let mut check = |file: &[u8], config: &[u8]| {
        let read = Safetensors::parse(&Bytes::from(file), config);
        let lowered = read.and_then(|file| lower(&file, &ImportOptions::default()));
        match lowered {
            Ok(model) => assert!(!model.draft_head.unwrap().target_layers.is_empty()),
            Err(error) => {
                refused += 1;
                let message = error.to_string();
                assert!(!message.contains(char::is_control), "{message:?}");
            }
        }
    };
    for value in [b'0', b'9', b'-', b'"', 0, 0xff] {
        for at in 0..header {
            let mut damaged = file.clone();
            damaged[at] = value;
            check(&damaged, &config);
        }
        for at in 0..config.len() {
            let mut damaged = config.clone();
            damaged[at] = value;
            check(&file, &damaged);
        }
    }
    for at in (0..file.len()).step_by(97) {
        check(&file[..at], &config);
    }
    assert!(refused > 1000, "{refused}");
}
