//! GenAI folders: configuration, model and tokenizer.

use crate::common::named_by;
use crate::support::{beside, exact, json, largest_difference, literal, model};
use kvark::generate::{GenerateOptions, Sampler};
use kvark::inference::{TensorDim, Value};
use kvark::text::{EncodeOptions, Message};
use kvark::{Cpu, Model, Runner};
use serde_json::Value as Json;
use std::path::PathBuf;

#[test]
fn a_folder_is_a_model_with_its_tokenizer_and_template() {
    let folder = beside().join("folder");
    let model = model(&folder);
    assert_eq!(model.artifact().architecture, "llama");
    assert_eq!(model.facts().context_length, 16);
    // The configuration names two end tokens and greedy sampling.
    let tokenizer = model.tokenizer().unwrap();
    let ends: Vec<u32> = (0..32).filter(|id| tokenizer.is_eog(*id)).collect();
    assert_eq!(ends, [2, 4]);
    assert_eq!(
        (
            model.default_sampling().temperature,
            model.default_sampling().top_k
        ),
        (0.0, 7)
    );
    let messages = [Message::new("user", "hello")];
    let prompt = model
        .chat_template()
        .unwrap()
        .render(&messages, true)
        .unwrap();
    assert_eq!(prompt, "<|start|>user hello<|end|><|start|>");

    let options = EncodeOptions {
        special: true,
        ..Default::default()
    };
    let ids = tokenizer.encode(&prompt, options);
    assert_eq!((ids[0], ids[ids.len() - 1]), (3, 3));
    let mut runner = Runner::new(&model, &Cpu::new().unwrap(), &exact()).unwrap();
    let mut sampler = Sampler::new(model.default_sampling());
    let options = GenerateOptions {
        max_tokens: Some(2),
        ..Default::default()
    };
    let answer = runner
        .generate(&model, &ids, &mut sampler, &options, |_| true)
        .unwrap();
    assert!(!answer.tokens.is_empty());
}

/// Folders of the builder of ONNX Runtime GenAI, whose files do not state how wide a head is.
fn built() -> Vec<PathBuf> {
    let folders = [Some(beside().join("builder")), named_by("KVARK_TEST_GENAI")];
    let entries = folders.into_iter().flatten().flat_map(|folder| {
        let entries = std::fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().path())
    });
    let mut built: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
    built.sort();
    assert!(built.len() >= 2);
    built
}

#[test]
fn folders_of_the_builder_give_the_logits_of_onnx_runtime() {
    for folder in built() {
        let expected = json(&folder.join("expected.json"));
        let numbers = |list: &Json| -> Vec<f32> {
            let list = list.as_array().unwrap().iter();
            list.map(|x| x.as_f64().unwrap() as f32).collect()
        };
        let tolerance = expected["tolerance"].as_f64().unwrap() as f32;
        let ids: Vec<u32> = numbers(&expected["ids"])
            .iter()
            .map(|id| *id as u32)
            .collect();
        let rows = expected["logits"].as_array().unwrap().iter();
        let truth: Vec<f32> = rows.flat_map(numbers).collect();
        // The model's file alone runs too: what the configuration states follows from the attention.
        let alone = std::env::temp_dir().join(format!("kvark-alone-{}", std::process::id()));
        std::fs::create_dir_all(&alone).unwrap();
        for name in ["model.onnx", "model.onnx.data"] {
            std::fs::copy(folder.join(name), alone.join(name)).unwrap();
        }
        for path in [folder.clone(), alone.join("model.onnx")] {
            let model = model(&path);
            for step in [ids.len(), 5, 1] {
                let mut runner = Runner::new(&model, &Cpu::new().unwrap(), &exact()).unwrap();
                let mut found = vec![];
                for step in ids.chunks(step) {
                    let keep = |_: usize, row: &[f32]| {
                        found.extend_from_slice(row);
                        true
                    };
                    runner.feed_all_logits(step, keep).unwrap();
                }
                let away = largest_difference(&found, &truth);
                assert!(away < tolerance, "{} by {step}: {away}", path.display());
            }
        }
        std::fs::remove_dir_all(&alone).unwrap();
    }
}

/// A session has the inputs of the file, with the size of a head from the configuration.
#[test]
fn folders_of_the_builder_run_as_they_were_exported() {
    for name in ["phi", "qwen3"] {
        let folder = beside().join("builder").join(name);
        let expected = json(&folder.join("expected.json"));
        let head_size = json(&folder.join("genai_config.json"))["model"]["decoder"]["head_size"]
            .as_u64()
            .unwrap() as usize;
        let mut session = literal(&folder);
        let ids = expected["ids"].as_array().unwrap();
        let (n, batch) = (ids.len(), 1);
        let ids: Vec<i64> = ids.iter().map(|id| id.as_i64().unwrap()).collect();
        let feed: Vec<(String, Value)> = session
            .inputs()
            .iter()
            .map(|input| {
                let value = match &input.name[..] {
                    "input_ids" => Value::i64([batch, n], ids.clone()),
                    "attention_mask" => Value::i64([batch, n], vec![1; n]),
                    _ => {
                        let [_, TensorDim::Fixed(heads), _, TensorDim::Fixed(dim)] =
                            input.shape[..]
                        else {
                            panic!("{input}")
                        };
                        assert_eq!(dim, head_size);
                        Value::f32([batch, heads, 0, dim], vec![])
                    }
                };
                (input.name.clone(), value)
            })
            .collect();
        let outputs = session.run(feed).unwrap();
        let rows = expected["logits"].as_array().unwrap().iter();
        let truth = rows.flat_map(|row| row.as_array().unwrap());
        let truth: Vec<f32> = truth.map(|x| x.as_f64().unwrap() as f32).collect();
        assert_eq!(outputs[0].0, "logits");
        let away = largest_difference(outputs[0].1.as_f32().unwrap(), &truth);
        assert!(away < 1e-4, "{name}: {away}");
    }
}

/// Opening the model file also reads the sidecar files in its folder.
#[test]
fn a_bare_file_finds_its_neighbours() {
    let folder = beside().join("folder");
    let bare = model(&folder.join("model.onnx"));
    assert_eq!(bare.artifact().architecture, "llama");
    assert!(bare.tokenizer().is_ok());
    let alone = model(&beside().join("llama.onnx"));
    assert_eq!(alone.artifact().architecture, "onnx");
    let error = alone.tokenizer().err().unwrap();
    assert!(error.to_string().contains("tokenizer.json"), "{error}");
}

#[test]
fn a_folder_without_a_configuration_is_named() {
    let folder = beside().parent().unwrap().to_owned();
    let error = Model::open(&folder, None).err().unwrap().to_string();
    assert!(
        error.ends_with("the folder has no genai_config.json and no config.json with weights"),
        "{error}"
    );
}

/// Replaces a text of a file's bytes by another of the same length, wherever it is.
fn replace(bytes: &mut [u8], from: &str, to: &str) -> usize {
    assert_eq!(from.len(), to.len());
    let places: Vec<usize> = bytes
        .windows(from.len())
        .enumerate()
        .filter_map(|(at, window)| (window == from.as_bytes()).then_some(at))
        .collect();
    for at in &places {
        bytes[*at..*at + to.len()].copy_from_slice(to.as_bytes());
    }
    places.len()
}

/// A decoder whose index inputs have other names, which its configuration states, gives the same bits.
#[test]
fn index_inputs_with_other_names_are_those_of_the_configuration() {
    let original = beside().join("stand_in");
    let folder = std::env::temp_dir().join(format!("kvark-renamed-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut bytes = std::fs::read(original.join("model.onnx")).unwrap();
    assert!(replace(&mut bytes, "write_indices", "first_new_row") > 1);
    assert!(replace(&mut bytes, "nonpad_kv_seqlen", "valid_rows_after") > 1);
    std::fs::write(folder.join("model.onnx"), &bytes).unwrap();
    let mut config = json(&original.join("genai_config.json"));
    let write = |config: &serde_json::Value| {
        std::fs::write(folder.join("genai_config.json"), config.to_string()).unwrap();
    };
    // Its mask is computed from the indices, and a name that the configuration does not state is not guessed.
    write(&config);
    let error = Model::open(&folder, None).err().unwrap().to_string();
    assert!(
        error.ends_with("there is no tensor first_new_row"),
        "{error}"
    );
    let inputs = &mut config["model"]["decoder"]["inputs"];
    inputs["write_indices"] = "first_new_row".into();
    inputs["nonpad_kv_seqlen"] = "valid_rows_after".into();
    write(&config);

    let logits = |folder: &std::path::Path| {
        let mut runner = Runner::new(&model(folder), &Cpu::new().unwrap(), &exact()).unwrap();
        let mut bits: Vec<u32> = vec![];
        for ids in [&[3, 1, 4, 1][..], &[5], &[9, 2]] {
            let keep = |_: usize, row: &[f32]| {
                bits.extend(row.iter().map(|x| x.to_bits()));
                true
            };
            runner.feed_all_logits(ids, keep).unwrap();
        }
        bits
    };
    assert_eq!(logits(&folder), logits(&original));
    std::fs::remove_dir_all(&folder).unwrap();
}
