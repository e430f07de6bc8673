use super::*;
use crate::{TokenKind, Vocab};

const CONTROL: [&str; 7] = [
    "<think>",
    "</think>",
    "<|channel|>",
    "<|message|>",
    "<|start|>",
    "<|end|>",
    "<|return|>",
];
const THINK: &str = "<think></think>";
const HARMONY: &str = "<|channel|>final<|message|>";

/// A tokenizer of single bytes and of control tokens.
fn tokenizer() -> Tokenizer {
    let mut tokens: Vec<String> = ('!'..='~').map(String::from).collect();
    // Blank, line end and the two bytes of é.
    tokens.extend(["Ġ", "Ċ", "Ã", "©"].map(String::from));
    let mut kinds = vec![TokenKind::Normal; tokens.len()];
    tokens.extend(CONTROL.map(String::from));
    kinds.resize(tokens.len(), TokenKind::Control);
    Tokenizer::new(Vocab {
        tokens: tokens.iter().collect(),
        kinds,
        pre_tokenizer: "gpt-2".into(),
        ..Vocab::default()
    })
    .unwrap()
}

/// The answer of a model that writes `script`, with its reasoning bounded. A forced token takes no token of the script.
fn answer(template: &str, begun: &str, script: &str, tokens: usize) -> String {
    let tokenizer = tokenizer();
    let special = EncodeOptions {
        special: true,
        ..EncodeOptions::default()
    };
    let mut script = tokenizer.encode(script, special).into_iter();
    let mut guard = ReasoningGuard::new(ReasoningBudget {
        tokens,
        format: ReasoningFormat::of_template(template),
        begun: begun.to_owned(),
    });
    let mut all = vec![];
    while all.len() < 500 {
        let Some(token) = guard.forced(&tokenizer).or_else(|| script.next()) else {
            break;
        };
        guard.push(&tokenizer, token);
        all.push(token);
    }
    tokenizer.decode(&all, true)
}

#[test]
fn reasoning_within_its_budget_is_left_alone() {
    for (template, text) in [
        (THINK, "<think>abcd</think>Yes."),
        (THINK, "Yes."),
        (
            HARMONY,
            "<|channel|>analysis<|message|>abcd<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
        ),
        ("plain", "<think>abcd and so on</think>Yes."),
    ] {
        for tokens in [5, 100] {
            assert_eq!(answer(template, "", text, tokens), text, "{tokens}");
        }
    }
}

#[test]
fn reasoning_is_closed_when_its_budget_is_used() {
    let text = "<think>abcdefgh";
    assert_eq!(answer(THINK, "", text, 3), "<think>abc\n</think>defgh");
    assert_eq!(answer(THINK, "", text, 0), "<think>\n</think>abcdefgh");
    // The prompt opened it.
    assert_eq!(
        answer(THINK, "<think>", "abcdefgh", 3),
        "abc\n</think>defgh"
    );
    assert_eq!(answer(THINK, "<think>ab", "cdefgh", 0), "\n</think>cdefgh");
    // A character is finished first.
    assert_eq!(answer(THINK, "<think>", "aébc", 2), "aé\n</think>bc");
}

#[test]
fn a_model_of_channels_chooses_the_next_one() {
    let thought = "<|channel|>analysis<|message|>abcdefgh";
    let end = "<|end|><|start|>assistant";
    let call = "<|channel|>commentary to=functions.f<|message|>{}";
    let script = format!("<|channel|>analysis<|message|>ab{call}");
    let wanted = format!("<|channel|>analysis<|message|>ab{end}{call}");
    assert_eq!(answer(HARMONY, "", &script, 2), wanted);
    // A model that reasons again is forced to answer.
    let script = format!("<|channel|>analysis<|message|>ab{thought}");
    let wanted = format!(
        "<|channel|>analysis<|message|>ab{end}<|channel|>analysis<|message|>{end}<|channel|>final<|message|>abcdefgh"
    );
    assert_eq!(answer(HARMONY, "", &script, 2), wanted);
}

#[test]
fn a_constraint_may_go_on_in_another_way() {
    let tokenizer = tokenizer();
    let mut guard = ReasoningGuard::new(ReasoningBudget {
        tokens: 1,
        format: ReasoningFormat::of_template(THINK),
        begun: "<think>".to_owned(),
    });
    let token = |text: &str| tokenizer.encode(text, EncodeOptions::default())[0];
    guard.push(&tokenizer, token("a"));
    assert_eq!(guard.forced(&tokenizer), Some(token("\n")));
    guard.push(&tokenizer, token("b"));
    assert_eq!(guard.forced(&tokenizer), Some(token("\n")));
    guard.push(&tokenizer, token("\n"));
    assert_eq!(
        guard.forced(&tokenizer),
        tokenizer.special_token("</think>")
    );
}
