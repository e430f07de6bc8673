//! The samplers' flags, under llama.cpp's names.

use crate::support::*;
use serde_json::Value;

fn run(folder: &Folder, tiny: &str, more: &[&str]) -> Value {
    let args = [
        "run",
        tiny,
        "-p",
        "ab",
        "--json",
        "-n",
        "24",
        "--ignore-eos",
    ];
    folder.run(&[&args[..], more].concat()).json()["tokens"].clone()
}

#[test]
fn each_flag_reaches_its_stage() {
    let folder = Folder::new();
    let tiny = &*folder.file("tiny.gguf", model());
    let greedy = run(&folder, tiny, &["--temp", "0"]);
    let first = greedy[0].to_string();
    // Excluded, the best token is never taken; pushed, it is always taken.
    let excluded = run(
        &folder,
        tiny,
        &["--temp", "0", "-l", &format!("{first}:-inf")],
    );
    assert_ne!(excluded[0], greedy[0]);
    let all: Vec<&Value> = excluded.as_array().unwrap().iter().collect();
    assert!(!all.contains(&&greedy[0]), "{excluded}");
    let pushed = run(&folder, tiny, &["--temp", "0", "--logit-bias", "5+1000"]);
    assert!(pushed.as_array().unwrap().iter().all(|id| *id == 5));
    // A penalty above all logits makes every token another one than the last.
    for penalty in ["--frequency-penalty", "--presence-penalty"] {
        let found = run(&folder, tiny, &["--temp", "0", penalty, "1000"]);
        let mut ids: Vec<u64> = found
            .as_array()
            .unwrap()
            .iter()
            .map(|id| id.as_u64().unwrap())
            .collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 24, "{penalty}: {found}");
    }
    // Pushed to one token by a bias, the text repeats it; DRY ends the repetition, and its breaker lets it go on.
    let bias = [
        "--temp",
        "0",
        "--logit-bias",
        "5+60",
        "--dry-multiplier",
        "50",
    ];
    let dry = run(&folder, tiny, &bias);
    assert_eq!((&dry[0], &dry[1]), (&Value::from(5), &Value::from(5)));
    assert!(dry.as_array().unwrap().iter().any(|id| *id != 5), "{dry}");
    for more in [
        &["--dry-sequence-breaker", "c"][..],
        &["--dry-allowed-length", "100"],
        &["--dry-penalty-last-n", "0"],
    ] {
        let found = run(&folder, tiny, &[&bias[..], more].concat());
        let same = found.as_array().unwrap().iter().all(|id| *id == 5);
        assert!(same, "{more:?}: {found}");
    }
    // XTC with certainty removes the best of several that are above the threshold.
    let xtc = ["--temp", "0", "--top-k", "2", "--xtc-probability", "1"];
    let found = run(
        &folder,
        tiny,
        &[&xtc[..], &["--xtc-threshold", "0"]].concat(),
    );
    assert_ne!(found[0], greedy[0]);
    let found = run(
        &folder,
        tiny,
        &[&xtc[..], &["--xtc-threshold", "0.51"]].concat(),
    );
    assert_eq!(found, greedy);
    // Typical sampling changes what a seed draws, and a probability of 1 does not.
    let drawn = |more: &[&str]| {
        let args = ["--temp", "2", "--top-k", "0", "--min-p", "0", "--seed", "3"];
        run(&folder, tiny, &[&args[..], more].concat())
    };
    assert_eq!(drawn(&["--typical", "1"]), drawn(&[]));
    assert_ne!(drawn(&["--typical-p", "0.1"]), drawn(&[]));
    assert_eq!(drawn(&["--typical", "0.1"]), drawn(&["--typical-p", "0.1"]));
}

#[test]
fn samplers_run_in_the_given_order() {
    let folder = Folder::new();
    let tiny = &*folder.file("tiny.gguf", model());
    let drawn = |more: &[&str]| {
        let args = ["--temp", "2", "--seed", "3"];
        run(&folder, tiny, &[&args[..], more].concat())
    };
    let default = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature";
    assert_eq!(drawn(&["--samplers", default]), drawn(&[]));
    assert_ne!(drawn(&["--samplers", "temperature"]), drawn(&[]));
    // Top-k alone draws from one token, and without its name it does not run.
    let greedy = run(&folder, tiny, &["--temp", "0"]);
    assert_eq!(drawn(&["--top-k", "1", "--samplers", "top-k"]), greedy);
    assert_ne!(drawn(&["--top-k", "1", "--samplers", "temp"]), greedy);
    // A fraction of a standard deviation leaves the most likely token.
    assert_eq!(drawn(&["--top-n-sigma", "0.001"]), greedy);
    assert_eq!(drawn(&["--top-n-sigma", "-1"]), drawn(&[]));
    // A target of no surprise comes to the most likely tokens.
    let mirostat = ["--mirostat", "2"];
    assert_ne!(drawn(&mirostat), drawn(&[]));
    let sure = ["--mirostat-ent", "0", "--mirostat-lr", "1"];
    assert_eq!(drawn(&[&mirostat[..], &sure].concat()), greedy);
}

#[test]
fn what_the_flags_do_not_take_is_named() {
    let folder = Folder::new();
    let tiny = &*folder.file("tiny.gguf", model());
    let cases = [
        ("--frequency-penalty", "x", "must be a number"),
        ("--presence-penalty", "nan", "must be a number"),
        ("--typical", "1.5", "from 0 to 1"),
        ("--xtc-probability", "-1", "from 0 to 1"),
        ("--xtc-threshold", "2", "from 0 to 1"),
        ("--dry-multiplier", "-1", "at least 0"),
        ("--dry-base", "0.5", "at least 1"),
        ("--dry-allowed-length", "-2", "at least 0"),
        ("--dry-penalty-last-n", "-2", "or -1"),
        ("--logit-bias", "5", "must be a token id and a bias"),
        ("--mirostat", "1", "must be 0 or 2"),
        ("--samplers", "top_k;heat", "names of samplers (penalties, "),
    ];
    for (flag, value, says) in cases {
        let output = folder.run(&["run", tiny, "-p", "a", flag, value]);
        assert_eq!(output.code, Some(2), "{flag}");
        let named = output.stderr.contains(flag) && output.stderr.contains(says);
        assert!(named, "{flag} {value}: {}", output.stderr);
    }
    let error = folder
        .run(&["run", tiny, "-p", "a", "--logit-bias", "64+1"])
        .error();
    let says = "logit_bias: token id 64 is outside the model's vocabulary of 64";
    assert!(error.contains(says), "{error}");
}
