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
