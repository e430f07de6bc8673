//! GenAI folders: configuration, model and tokenizer.

use crate::support::{beside, exact, model};
use kvark::generate::{GenerateOptions, Sampler};
use kvark::text::{EncodeOptions, Message};
use kvark::{Cpu, Model, Runner};

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
        error.ends_with("the folder has no genai_config.json"),
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
    let mut config = crate::support::json(&original.join("genai_config.json"));
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
