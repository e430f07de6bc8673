//! ExecuTorch programs made from the same exports: they give what PyTorch gives.

use std::fs;

use crate::decoders::check_logits;
use crate::golden::{executorch_program, folder};
use crate::plain::problems;
use import::ImportErrorKind as K;
use import::pte::Pte;

/// The names of all programs.
fn names(decoders: bool) -> Vec<String> {
    let entries = fs::read_dir(folder().join("../pte")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let programs = paths.filter(|path| path.extension().is_some_and(|e| e == "pte"));
    let names = programs.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned());
    let mut names: Vec<String> = names
        .filter(|name| name.starts_with("decoder") == decoders)
        .collect();
    names.sort();
    assert!(names.len() >= 5);
    names
}

#[test]
fn outputs_are_those_of_pytorch() {
    let found = names(false).into_iter().flat_map(|name| {
        let path = executorch_program(&name);
        let plain = problems(&path, &name, &|_| {});
        let optimised = problems(&path, &name, &|graph| {
            graph::passes::optimise(graph).unwrap()
        });
        [plain, optimised].concat()
    });
    let found: Vec<String> = found.collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn logits_are_those_of_transformers() {
    for name in names(true) {
        check_logits(&executorch_program(&name), &name);
    }
}

#[test]
fn facts_come_from_constant_methods() {
    let artifact = import::open(&executorch_program("decoder_gemma3")).unwrap();
    assert_eq!(artifact.file.format().name(), "pte");
    let facts = &artifact.facts;
    let windows: Vec<Option<u32>> = facts.caches.iter().map(|cache| cache.window).collect();
    assert_eq!(windows, [Some(4), None]);
    assert_eq!(
        (facts.context_length, facts.vocab_size, facts.max_step),
        (64, 48, Some(32))
    );
}

#[test]
fn weights_may_be_in_a_file_of_their_own() {
    let path = executorch_program("external/mlp");
    let found = problems(&path, "mlp", &|_| {});
    assert!(found.is_empty(), "{}", found.join("\n"));
    // Without that file the weight is named.
    let error = Pte::parse(&base::Bytes::map(&path).unwrap(), None).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("there is no .ptd file with it"), "{text}");
}

#[test]
fn delegated_programs_are_refused_by_name() {
    let error = import::open(&executorch_program("external/delegated")).unwrap_err();
    assert_eq!(error.kind(), K::Unsupported, "{error}");
    assert!(error.to_string().contains("XnnpackBackend"), "{error}");
}

#[test]
fn damaged_programs_are_refused() {
    let whole = fs::read(executorch_program("decoder_llama")).unwrap();
    let parse = |bytes: &[u8]| Pte::parse(&base::Bytes::from(bytes), None);
    parse(&whole).unwrap();
    for len in (0..whole.len()).step_by(977).chain([8, 12, 31]) {
        let error = parse(&whole[..len]).unwrap_err();
        assert_eq!(error.kind(), K::Malformed, "{len}: {error}");
    }
    // Any byte of the tables may be anything: an error or a program, never a panic.
    let tables = whole.len().min(60_000);
    for at in (8..tables).step_by(61) {
        for value in [0, 1, 0x7f, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            if let Ok(program) = parse(&bytes) {
                let options = import::ImportOptions::default();
                _ = import::pte::lower(&program, &options);
            }
        }
    }
}
