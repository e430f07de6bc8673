//! Folders of Hugging Face in the commands.

use crate::support::*;
use std::path::Path;

#[test]
fn a_folder_is_scored_planned_and_inspected() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures/folder");
    let model = |name: &str| fixtures.join(name).to_str().unwrap().to_owned();
    let folder = Folder::new();
    for name in ["llama_plain", "qwen3", "mixtral"] {
        let ids = ["score", &model(name), "--token-ids", "1,2,3,4,5", "--json"];
        let scores = folder.run(&ids).json();
        assert!(
            scores["nll"].as_f64().is_some_and(|nll| nll > 0.0),
            "{scores}"
        );
    }
    // A sharded one by its index.
    let index = format!("{}/model.safetensors.index.json", model("mixtral"));
    folder.run(&["score", &index, "--token-ids", "1,2,3"]).ok();
    let plan = folder.run(&["plan", &model("qwen2")]).ok();
    assert!(plan.contains("qwen2 (qwen2)"), "{plan}");
    let shown = folder.run(&["show", &model("qwen3")]).ok();
    assert!(
        shown.contains("F16") && shown.contains("(safetensors)"),
        "{shown}"
    );
    let listed = folder.run(&["inspect", &model("mixtral")]).ok();
    assert!(listed.contains("MixtralForCausalLM"), "{listed}");
    let error = folder
        .run(&["score", &model("nothing"), "--token-ids", "1"])
        .error();
    assert!(error.contains("no such file"), "{error}");
}
