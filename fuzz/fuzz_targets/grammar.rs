//! Grammars of clients: whatever the bytes are, a grammar is compiled or refused, and its first masks are computed.
#![no_main]

use grammar::{GrammarCompiler, GrammarSource};
use libfuzzer_sys::fuzz_target;
use runtime::Model;
use std::path::Path;
use std::sync::{Arc, OnceLock};

static COMPILER: OnceLock<(Arc<Model>, GrammarCompiler)> = OnceLock::new();

fuzz_target!(|data: &[u8]| {
    let (model, compiler) = COMPILER.get_or_init(|| {
        let path = std::env::var_os("KVARK_TEST_MODEL").expect("KVARK_TEST_MODEL names a model");
        let model = Arc::new(Model::open(Path::new(&path), None).expect("a model"));
        let compiler = GrammarCompiler::new(&model).expect("a model with a tokenizer");
        (model, compiler)
    });
    let Some((kind, text)) = data.split_first() else {
        return;
    };
    let Ok(text) = std::str::from_utf8(text) else {
        return;
    };
    let source = match kind % 5 {
        0 => GrammarSource::Gbnf(text.to_owned()),
        1 => GrammarSource::Regex(text.to_owned()),
        2 => GrammarSource::Lark(text.to_owned()),
        kind => match serde_json::from_str(text) {
            Ok(schema) if kind == 3 => GrammarSource::JsonSchema(schema),
            Ok(schema) => GrammarSource::ToolCall(schema),
            Err(_) => return,
        },
    };
    let Ok(mut constraint) = compiler.constraint(&source) else {
        return;
    };
    for _ in 0..4 {
        let mut allowed = vec![u32::MAX; model.facts().vocab_size.div_ceil(32)];
        if constraint.restrict(&mut allowed).is_err() {
            return;
        }
        let first = allowed.iter().enumerate().find(|(_, word)| **word != 0);
        let Some((index, word)) = first else { return };
        let token = index as u32 * 32 + word.trailing_zeros();
        if token as usize >= model.facts().vocab_size || constraint.accept(token).is_err() {
            return;
        }
    }
});
