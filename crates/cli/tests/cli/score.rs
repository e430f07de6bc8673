//! Scores of texts that are longer than the context.

use crate::support::*;
use serde_json::Value;
use std::path::Path;

fn numbers(value: &Value) -> Vec<f64> {
    let list = value.as_array().unwrap().iter();
    list.map(|number| number.as_f64().unwrap()).collect()
}

fn list(ids: &[u32]) -> String {
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    ids.join(",")
}

#[test]
fn windows_score_each_token_once_as_alone() {
    let folder = Folder::new();
    let bare = &*folder.file("bare.gguf", bare_model());
    let ids: Vec<u32> = (0..50u32).map(|i| (i * i * 7 + i) % 61 + 3).collect();
    let score = |ids: &[u32], more: &[&str]| {
        let args = ["score", bare, "--json", "--token-ids", &list(ids)];
        folder.run(&[&args[..], more].concat())
    };
    const CONTEXT: usize = 16;
    for stride in [1, 5, 8, 15] {
        let found = score(&ids, &["-c", "16", "--stride", &stride.to_string()]).json();
        // Each window alone: the tokens that the windows before it did not reach.
        let (mut logprob, mut argmax) = (Vec::<f64>::new(), Vec::<f64>::new());
        let (mut begin, mut reached) = (0, 1);
        loop {
            let end = ids.len().min(begin + CONTEXT);
            let window = score(&ids[begin..end], &["-c", "16"]).json();
            logprob.extend(&numbers(&window["logprob"])[reached - 1 - begin..]);
            let best = numbers(&window["argmax"]);
            argmax.extend(&best[reached - 1 - begin..best.len() - 1]);
            reached = end;
            if end == ids.len() {
                argmax.extend(best.last());
                break;
            }
            begin += stride;
        }
        assert_eq!(logprob.len(), ids.len() - 1);
        assert_eq!(numbers(&found["logprob"]), logprob, "stride {stride}");
        assert_eq!(numbers(&found["argmax"]), argmax, "stride {stride}");
        let nll = -logprob.iter().sum::<f64>() / logprob.len() as f64;
        assert!((found["nll"].as_f64().unwrap() - nll).abs() < 1e-12);
        let perplexity = found["perplexity"].as_f64().unwrap();
        assert!((perplexity - nll.exp()).abs() < 1e-9 * perplexity);
    }
    // A text that fits is scored as without a stride.
    let short = &ids[..12];
    let with = score(short, &["-c", "16", "--stride", "8"]).json();
    assert_eq!(with, score(short, &["-c", "16"]).json());

    let too_long = score(&ids, &["-c", "16"]).error();
    assert!(
        too_long.contains("--stride 8 scores the text"),
        "{too_long}"
    );
    let error = score(&ids, &["-c", "16", "--stride", "16"]).error();
    let says = "the stride is 16, must be at least 1 and below the context of 16";
    assert!(error.contains(says), "{error}");
    assert_eq!(score(&ids, &["--stride", "0"]).code, Some(2));
}

#[test]
fn precisions_are_compared_and_close() {
    let folder = Folder::new();
    let model = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../import/tests/fixtures/decoder/llama_mixed.gguf");
    let (model, ids) = (
        model.to_str().unwrap(),
        list(&(0..40).collect::<Vec<u32>>()),
    );
    let run = |more: &[&str]| {
        let args = ["score", model, "--json", "--token-ids", &ids];
        folder.run(&[&args[..], more].concat())
    };
    let found = run(&["--compare-precision"]).json();
    let nll = |precision| run(&["--precision", precision]).json()["nll"].clone();
    assert_eq!(found["nll"], nll("high"));
    for precision in ["balanced", "fast"] {
        let other = &found[precision];
        let mean = other["mean_difference"].as_f64().unwrap();
        assert!(mean < 0.1, "{found}");
        assert_eq!(other["nll"], nll(precision));
    }
    let refused = run(&["--precision", "low"]);
    assert_eq!(refused.code, Some(2));
    let says = "must be high, balanced or fast";
    assert!(refused.stderr.contains(says), "{}", refused.stderr);
}
