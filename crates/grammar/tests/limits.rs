//! Grammars from hostile clients: each is compiled or refused by name, on any thread, and none takes the process along.

use grammar::{GrammarCompiler, GrammarError, GrammarSource, MAX_NESTING, MAX_RULES};
use runtime::{Model, TokenConstraint};
use serde_json::{Map, Value, json};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

/// A compiler for the model of the tests; without it they are skipped.
fn compiler() -> Option<(Arc<Model>, GrammarCompiler)> {
    let Some(path) = std::env::var_os("KVARK_TEST_MODEL").filter(|path| !path.is_empty()) else {
        _ = writeln!(std::io::stderr(), "skipped: KVARK_TEST_MODEL is not set");
        return None;
    };
    let model = Arc::new(Model::open(Path::new(&path), None).unwrap());
    let compiler = GrammarCompiler::new(&model).unwrap();
    Some((model, compiler))
}

/// Definitions `a0` to `a(n - 1)`, each of which refers to the next one, and a string at the end.
fn chain(n: usize, link: impl Fn(Value) -> Value) -> Value {
    let next = |i: usize| match i + 1 < n {
        true => link(json!({ "$ref": format!("#/$defs/a{}", i + 1) })),
        false => json!({ "type": "string" }),
    };
    let definitions: Map<String, Value> = (0..n).map(|i| (format!("a{i}"), next(i))).collect();
    json!({ "$ref": "#/$defs/a0", "$defs": definitions })
}

fn rules(n: usize) -> String {
    let rule = |i: usize| format!("a{i} ::= \"x\" a{}\n", i + 1);
    let rules: String = (0..n - 2).map(rule).collect();
    format!("root ::= a0\n{rules}a{} ::= \"y\"\n", n - 2)
}

#[test]
fn deep_grammars_are_compiled_or_refused_by_name() {
    let Some((_, compiler)) = compiler() else {
        return;
    };
    let array = |next: Value| json!({ "type": "array", "items": next });
    let group = |n: usize| format!("root ::= {}\"a\"{}", "(".repeat(n), ")".repeat(n));
    for (name, source, works) in [
        (
            "300 arrays",
            GrammarSource::JsonSchema(chain(300, array)),
            true,
        ),
        (
            "1000 references",
            GrammarSource::JsonSchema(chain(1000, |next| next)),
            true,
        ),
        (
            "as many arrays as allowed",
            GrammarSource::JsonSchema(chain(MAX_RULES, array)),
            true,
        ),
        (
            "more arrays",
            GrammarSource::JsonSchema(chain(MAX_RULES + 1, array)),
            false,
        ),
        ("1000 rules", GrammarSource::Gbnf(rules(1000)), true),
        (
            "as many rules as allowed",
            GrammarSource::Gbnf(rules(MAX_RULES)),
            true,
        ),
        (
            "more rules",
            GrammarSource::Gbnf(rules(MAX_RULES + 1)),
            false,
        ),
        (
            "as many groups as allowed",
            GrammarSource::Gbnf(group(MAX_NESTING)),
            true,
        ),
        (
            "more groups",
            GrammarSource::Gbnf(group(MAX_NESTING + 1)),
            false,
        ),
        ("5000 groups", GrammarSource::Gbnf(group(5000)), false),
        (
            "a long expression",
            GrammarSource::Regex("a".repeat(1 << 20)),
            false,
        ),
        (
            "80000 alternatives",
            GrammarSource::Gbnf(format!("root ::= {}\"z\"", "\"word\" | ".repeat(80_000))),
            false,
        ),
        (
            "many Lark rules",
            GrammarSource::Lark("a: \"x\"\n".repeat(MAX_RULES + 1)),
            false,
        ),
    ] {
        match compiler.constraint(&source) {
            Ok(_) => assert!(works, "{name}"),
            Err(error) => {
                assert!(!works, "{name}: {error}");
                assert!(
                    matches!(error, GrammarError::TooLarge { .. }),
                    "{name}: {error}"
                );
                let text = error.to_string();
                assert!(
                    text.contains("at most") && text.lines().count() == 1,
                    "{text}"
                );
            }
        }
    }
}

#[test]
fn expressions_that_are_too_deep_are_refused_without_a_backtrace() {
    let Some((_, compiler)) = compiler() else {
        return;
    };
    let deep = format!("{}a{}", "(".repeat(5000), ")*".repeat(5000));
    let error = compiler
        .constraint(&GrammarSource::Regex(deep))
        .err()
        .unwrap();
    let text = error.to_string();
    assert!(text.len() < 2000 && !text.contains("backtrace"), "{text}");
}

/// Whether a constraint takes a text, and whether the text may end there.
fn follows(model: &Model, constraint: &mut dyn TokenConstraint, text: &str) -> Option<bool> {
    let tokenizer = model.tokenizer().unwrap();
    let bytes = |id: u32| tokenizer.token_bytes(id).unwrap_or_default().to_vec();
    // One byte at a time: every text can be written so.
    let byte_token =
        |byte: u8| (0..model.facts().vocab_size as u32).find(|id| bytes(*id) == [byte]);
    for byte in text.bytes() {
        constraint.accept(byte_token(byte)?).ok()?;
    }
    let mut allowed = vec![u32::MAX; model.facts().vocab_size.div_ceil(32)];
    constraint.restrict(&mut allowed).ok()?;
    let eos = tokenizer.eos()? as usize;
    Some(allowed[eos / 32] >> (eos % 32) & 1 == 1)
}

#[test]
fn objects_are_closed_and_white_space_is_bounded() {
    let Some((model, compiler)) = compiler() else {
        return;
    };
    let person = json!({ "type": "object", "properties": { "name": { "type": "string" } } });
    let open = json!({ "type": "object", "properties": { "name": { "type": "string" } }, "additionalProperties": true });
    let blanks = " ".repeat(40);
    for (schema, text, ends) in [
        (&person, "{\"name\": \"Al\"}", Some(true)),
        (&person, "{\n  \"name\": \"Al\"\n}", Some(true)),
        (&person, "{\"name\":\"Al\", \"age\"", None),
        (&person, &format!("{{{blanks}\"name\": \"Al\"}}"), None),
        (&person, "{\n\n\n\n\n\n", None),
        (&open, "{\"name\":\"Al\",\"age\":3}", Some(true)),
        (&json!({ "type": "object" }), "{\"a\": 1}", Some(true)),
        (
            &json!({ "type": "object" }),
            &format!("{{\"a\":{blanks}"),
            None,
        ),
    ] {
        let source = GrammarSource::JsonSchema(schema.clone());
        let mut constraint = compiler.constraint(&source).unwrap();
        assert_eq!(
            follows(&model, &mut *constraint, text),
            ends,
            "{schema} {text:?}"
        );
    }
}
