//! Runs the examples on the model that `KVARK_TEST_MODEL` names and checks what they write.

mod common;

#[path = "../examples/cache_policy.rs"]
#[allow(dead_code, reason = "the test calls what `main` calls")]
mod cache_policy;
#[path = "../examples/chat.rs"]
#[allow(dead_code, reason = "the test calls what `main` calls")]
mod chat;
#[path = "../examples/stream.rs"]
#[allow(dead_code, reason = "the test calls what `main` calls")]
mod stream;

use kvark::prelude::*;

fn model() -> Option<Model> {
    let path = common::named_by("KVARK_TEST_MODEL")?;
    Some(Model::open(&path, None).unwrap())
}

#[test]
fn a_chat_answers_each_line_and_remembers_the_ones_before() {
    let Some(model) = model() else { return };
    let answers = |input: &str| {
        let mut out = vec![];
        let greedy = SamplerOptions {
            temperature: 0.0,
            ..Default::default()
        };
        chat::chat(&model, greedy, input.as_bytes(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    let first = answers("What is the capital of France?\n");
    assert!(first.contains("Paris"), "{first}");
    let both = answers("What is the capital of France?\nWhat did I ask you about?\n");
    let second = both.strip_prefix(&first).expect("the same first answer");
    assert!(second.contains("France"), "{second}");
}

#[test]
fn a_stream_ends_after_its_sentences() {
    let Some(model) = model() else { return };
    let mut out = vec![];
    let output = stream::stream(&model, "Once upon a time", 2, &mut out).unwrap();
    assert_eq!(output.finish, FinishReason::Interrupted);
    let text = String::from_utf8(out).unwrap();
    assert_eq!(text, output.text);
    assert_eq!(text.matches(['.', '!', '?']).count(), 2, "{text}");
}

#[test]
fn sinks_and_recent_tokens_bound_the_cells_of_any_length() {
    let Some(model) = model() else { return };
    let story = |kept, tokens| {
        let mut out = vec![];
        cache_policy::write_story(&model, kept, tokens, &mut out).unwrap()
    };
    let (long, cells) = story([4, 28], 120);
    assert_eq!(cells, 32);
    // While nothing was evicted, the policy changes nothing; afterwards the text differs from that of a full context.
    let (whole, _) = story([4, 508], 120);
    let same = long
        .bytes()
        .zip(whole.bytes())
        .take_while(|(a, b)| a == b)
        .count();
    assert!(same > 60, "{same}");
    assert_ne!(long, whole);
}
