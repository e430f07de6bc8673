//! SmolLM2 split over three files gives the logits of the one file, bit for bit. Runs if `KVARK_TEST_MODEL` names the file.

mod common;
#[path = "../../import/tests/common/splitter.rs"]
mod splitter;

use common::named_by;
use kvark::{Cpu, Model, Runner, RunnerOptions};
use std::path::Path;

fn logits(path: &Path) -> Vec<f32> {
    let model = Model::open(path, None).unwrap();
    let options = RunnerOptions {
        context: Some(64),
        ..RunnerOptions::default()
    };
    let mut runner = Runner::new(&model, &Cpu::new().unwrap(), &options).unwrap();
    let tokens = model.tokenizer().unwrap();
    let tokens = tokens.encode("The capital of France is", Default::default());
    runner.feed(&tokens, |_| true).unwrap();
    runner.logits().to_vec()
}

#[test]
fn a_split_model_has_the_same_logits() {
    let Some(whole) = named_by("KVARK_TEST_MODEL") else {
        return;
    };
    let folder = std::env::temp_dir().join(format!("kvark-split-model-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let parts = splitter::split(&std::fs::read(&whole).unwrap(), 3);
    let path = |number| folder.join(splitter::part_name("smollm2", number, 3));
    for (number, part) in (1..).zip(parts) {
        std::fs::write(path(number), part).unwrap();
    }
    let bits = |logits: Vec<f32>| -> Vec<u32> { logits.iter().map(|x| x.to_bits()).collect() };
    let want = bits(logits(&whole));
    for number in [1, 3] {
        assert!(bits(logits(&path(number))) == want, "part {number}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
