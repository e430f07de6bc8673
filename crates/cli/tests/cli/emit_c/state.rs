//! The state of an emitted decoder: stopped steps, rewinds without the cache, several models in one process, the stack.

use super::{Act, Case, KvStorage, compile, compiler, decoder_fixture, drive};
use crate::support::Folder;
use std::path::{Path, PathBuf};
use std::process::Command;

const TWO_MODELS: &str = include_str!("../../../../emit/tests/two_models.c");

fn id(i: usize) -> u32 {
    (i * 7 + 3) as u32 % 48
}

fn feed(range: std::ops::Range<usize>) -> Act {
    Act::Feed(range.map(id).collect())
}

/// A decoder whose first layers have a window, and its C.
fn windowed<'a>(model: &'a Path, more: &'a [&'a str]) -> Case<'a> {
    Case {
        model,
        context: 96,
        step: 8,
        storage: KvStorage::F32,
        more,
    }
}

/// The logits of the last feed.
fn last(program: &Path, acts: &[Act], vocab: usize) -> Vec<u32> {
    let results = drive(program, acts, vocab);
    assert!(results.iter().all(|(code, _)| *code == 0), "{acts:?}");
    results.last().unwrap().1.clone()
}

#[test]
fn stopped_steps_are_computed_again() {
    let Some(compiler) = compiler("cc") else {
        return;
    };
    let folder = Folder::new();
    let model = decoder_fixture("gemma3.gguf");
    let case = windowed(&model, &[]);
    let vocab = case.runner().0.facts().vocab_size;
    let program = compile(&case.emit(&folder, "stop"), compiler, &["-O2"]);
    for end in [14, 20, 40] {
        let mut acts = vec![feed(0..10), Act::Stop(5)];
        acts.extend((10..end).map(|i| feed(i..i + 1)));
        acts.extend([Act::Stop(-1), feed(end..end + 2)]);
        let cold = last(&program, &[feed(0..end + 2)], vocab);
        assert!(last(&program, &acts, vocab) == cold, "stopped up to {end}");
    }
}

#[test]
fn rewinds_without_the_cache_evict_nothing() {
    let Some(compiler) = compiler("cc") else {
        return;
    };
    let folder = Folder::new();
    let model = decoder_fixture("gemma3.gguf");
    let case = windowed(&model, &[]);
    let vocab = case.runner().0.facts().vocab_size;
    let program = compile(&case.emit(&folder, "rewinds"), compiler, &["-O2"]);
    let cold = last(&program, &[feed(0..8), feed(60..61)], vocab);
    let histories = [
        // Without the cache from the start, with it later.
        vec![
            Act::Kv(false),
            feed(0..60),
            Act::Rewind(7),
            Act::Kv(true),
            feed(7..9),
            Act::Rewind(8),
            feed(60..61),
        ],
        // Without the cache in between.
        vec![
            feed(0..60),
            Act::Kv(false),
            Act::Rewind(7),
            feed(7..9),
            Act::Kv(true),
            Act::Rewind(8),
            feed(60..61),
        ],
    ];
    for acts in histories {
        assert!(last(&program, &acts, vocab) == cold, "{acts:?}");
    }
    let results = drive(&program, &[feed(0..60), Act::Rewind(10)], vocab);
    assert_eq!(results[1].0, -4, "the window is gone");
}

#[test]
fn two_models_decode_from_two_threads() {
    let Some(compiler) = compiler("cc") else {
        return;
    };
    let folder = Folder::new();
    let model = decoder_fixture("gemma3.gguf");
    let target = windowed(&model, &["--threads", "2"]).emit(&folder, "two");
    std::fs::write(target.join("two.c"), TWO_MODELS).unwrap();
    let flags = ["-O2", "-pthread", "-std=c11", "-ffp-contract=off"];
    let sources = ["two.c", "model.c", "kernels.c", "-lm", "-o", "two"];
    let made = Command::new(compiler)
        .current_dir(&target)
        .args(flags)
        .arg("-D_POSIX_C_SOURCE=200809L")
        .args(sources)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{said}");
    let output = Command::new(target.join("two"))
        .current_dir(&target)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "same\n");
}

#[test]
fn the_debug_program_leaks_nothing() {
    let Some(compiler) = compiler("cc") else {
        return;
    };
    let folder = Folder::new();
    let model = decoder_fixture("gemma3.gguf");
    let target = windowed(&model, &[]).emit(&folder, "leaks");
    let make = Command::new("make")
        .current_dir(&target)
        .args([&format!("CC={compiler}"), "debug"])
        .output();
    if !make.is_ok_and(|output| output.status.success()) {
        return;
    }
    let run = |arguments: &[&str]| {
        let output = Command::new(target.join("debug"))
            .current_dir(&target)
            .args(arguments)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert_eq!(run(&["-n", "4", "1,2,3"]), "");
    let error = run(&["-n", "4", "1000000"]);
    assert!(!error.contains("leak"), "{error}");
}

/// Heads of 512 need no more of the stack than 48 KiB.
#[test]
fn large_heads_fit_on_a_small_stack() {
    let Some(compiler) = compiler("cc") else {
        return;
    };
    let folder = Folder::new();
    let model = decoder_fixture("gemma3.gguf");
    let target: PathBuf = windowed(&model, &[]).emit(&folder, "stack");
    let header = std::fs::read_to_string(target.join("kernels.h")).unwrap();
    let larger = header.lines().map(|line| match line {
        _ if line.starts_with("#define MAX_KEY_DIM") => "#define MAX_KEY_DIM 512",
        _ if line.starts_with("#define MAX_VALUE_DIM") => "#define MAX_VALUE_DIM 512",
        _ if line.starts_with("#define MAX_GROUP") => "#define MAX_GROUP 8",
        line => line,
    });
    let larger: Vec<&str> = larger.collect();
    std::fs::write(target.join("kernels.h"), larger.join("\n") + "\n").unwrap();
    let output = Command::new(compiler)
        .current_dir(&target)
        .args(["-O2", "-std=c11", "-Werror", "-Wframe-larger-than=49152"])
        .args(["-c", "kernels.c", "-o", "kernels.o"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}
