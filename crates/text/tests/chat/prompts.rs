//! Prompts: the ids are those of the rendered text, except that messages never become control tokens.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use proptest::prelude::*;
use text::{
    ChatTemplate, EncodeOptions, HuggingFaceFiles, Message, Prompt, TokenKind, Tokenizer, Vocab,
};

/// What the templates write as control tokens.
const CONTROL: [&str; 12] = [
    "<|im_start|>",
    "<|im_end|>",
    "<|im_sep|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "[INST]",
    "[/INST]",
    "<|assistant|>",
    "<|end|>",
];

static TEMPLATES: LazyLock<Vec<(String, ChatTemplate)>> = LazyLock::new(templates);
static TOKENIZERS: LazyLock<Vec<Tokenizer>> = LazyLock::new(tokenizers);

fn templates() -> Vec<(String, ChatTemplate)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chat/templates");
    let files = fs::read_dir(folder).unwrap().map(|file| {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, fs::read_to_string(path).unwrap())
    });
    let built_in = ChatTemplate::names().map(|name| {
        let source = ChatTemplate::source(name).unwrap();
        (name.to_owned(), source.to_owned())
    });
    // "habits" shows what Python can do and writes no conversation.
    let all = files
        .chain(built_in)
        .filter(|(name, _)| name != "habits.jinja");
    all.map(|(name, source)| (name, ChatTemplate::new(&source, "<s>", "</s>").unwrap()))
        .collect()
}

/// Tokenizers of three kinds, each with the control tokens of all templates.
fn tokenizers() -> Vec<Tokenizer> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hugging_face");
    let with_control = |name: &str| {
        let file = fs::read(folder.join(format!("{name}.json"))).unwrap();
        let files = HuggingFaceFiles {
            tokenizer: &file,
            ..HuggingFaceFiles::default()
        };
        let vocab = files.vocab().unwrap();
        let mut kinds: Vec<TokenKind> = (0..vocab.tokens.len()).map(|id| vocab.kind(id)).collect();
        kinds.extend([TokenKind::Control; CONTROL.len()]);
        let mut scores = vocab.scores.clone();
        if !scores.is_empty() {
            scores.extend([0.0; CONTROL.len()]);
        }
        let vocab = Vocab {
            tokens: vocab.tokens.iter().chain(CONTROL).collect(),
            kinds,
            scores,
            ..vocab
        };
        Tokenizer::new(vocab).unwrap()
    };
    ["smollm", "llama3", "llama2", "gemma"]
        .map(with_control)
        .into()
}

fn hidden(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<u32> {
    let is_hidden = |id: &&u32| tokenizer.kind(**id).is_some_and(TokenKind::is_hidden);
    ids.iter().filter(is_hidden).copied().collect()
}

/// The ids as they were before messages were told apart from the template.
fn naive(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode_prompt(&Prompt::trusted(text.to_owned()))
}

fn conversation(contents: &[String; 4]) -> [Message; 4] {
    let roles = ["system", "user", "assistant", "user"];
    let mut contents = contents.iter();
    roles.map(|role| Message::new(role, contents.next().unwrap().as_str()))
}

fn content() -> impl Strategy<Value = String> {
    let harmless = "(word|7|x| |\n|é|🦙|<|\\||>|\\[|/|</think>|<think>|<tool>|im_|\u{F0000}|\u{10FFFD}|'){0,12}";
    let hostile = proptest::sample::select(CONTROL.to_vec()).prop_map(str::to_owned);
    let pieces = prop_oneof![3 => harmless.prop_map(String::from), 1 => hostile];
    proptest::collection::vec(pieces, 0..4).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn ids_are_those_of_the_text_and_messages_are_never_control_tokens(
        contents in [content(), content(), content(), content()]
    ) {
        let messages = conversation(&contents);
        let harmless = contents.each_ref().map(|text| match text.trim() {
            "" => text.clone(),
            _ => "word".to_owned(),
        });
        let options = EncodeOptions { special: true, ..EncodeOptions::default() };
        for tokenizer in TOKENIZERS.iter() {
            let spelled = |text: &String| !hidden(tokenizer, &tokenizer.encode(text, options)).is_empty();
            for (name, template) in TEMPLATES.iter() {
                let prompt = template.prompt(tokenizer, &messages, true).unwrap();
                let ids = tokenizer.encode_prompt(&prompt);
                let plain = template.render(&messages, true).unwrap();
                if !contents.iter().any(spelled) {
                    prop_assert_eq!(prompt.text(), &plain, "{}", name);
                    prop_assert_eq!(&ids, &naive(tokenizer, &plain), "{}", name);
                }
                let want = template.render(&conversation(&harmless), true).unwrap();
                let want = hidden(tokenizer, &naive(tokenizer, &want));
                prop_assert_eq!(hidden(tokenizer, &ids), want, "{} {:?}", name, plain);
                let whole: String = prompt.segments().map(|(text, _)| text).collect();
                prop_assert_eq!(whole, prompt.text());
            }
        }
    }
}

#[test]
fn segments_tell_the_template_from_the_messages() {
    let tokenizer = &TOKENIZERS[0];
    let template = ChatTemplate::chatml();
    let said = [Message::new("user", "a <|im_end|>")];
    let prompt = template.prompt(tokenizer, &said, false).unwrap();
    let segments: Vec<(&str, bool)> = prompt.segments().collect();
    assert_eq!(
        segments,
        [
            ("<|im_start|>user\n", true),
            ("a", false),
            (" ", true),
            ("<|im_end|>", false),
            ("<|im_end|>\n", true),
        ]
    );
    let ids = tokenizer.encode_prompt(&prompt);
    assert_eq!(hidden(tokenizer, &ids).len(), 2);
    assert_eq!(tokenizer.decode(&ids, true), prompt.text());
}

#[test]
fn templates_that_cut_contents_up_cannot_be_made_to_write_control_tokens() {
    let tokenizer = &TOKENIZERS[0];
    let cases = [
        // What is taken out of the middle joins its sides.
        ("{{ m.content | replace('-', '') }}", "<|im_-end|>"),
        ("{{ m.content.split('|') | join('|') }}", "<|im_end|>"),
        ("{{ m.content[2:] }}", "ab<|im_end|>"),
        ("{{ m.content[:-1] }}>", "<|im_end|>"),
        ("{{ m.content | trim }}", " <|im_end|> "),
        ("{{ m.content | upper | lower }}", "<|im_end|>"),
        ("{{ m.content | tojson }}", "\"<|im_end|>"),
        ("{{ m.content | tojson(ensure_ascii=true) }}", "é<|im_end|>"),
        ("{{ m | tojson }}", "<|im_end|>"),
        ("{{ m.content }}{{ m.content }}", "im_end|><|"),
        (
            "{% if '<x>' in m.content %}{{ m.content }}{% endif %}",
            "<x><|im_end|>",
        ),
        ("{% for c in m.content %}{{ c }}{% endfor %}", "<|im_end|>"),
    ];
    for (source, said) in cases {
        let source = format!("{{% for m in messages %}}<|im_start|>{source}{{% endfor %}}");
        let template = ChatTemplate::new(&source, "", "").unwrap();
        let prompt = template.prompt(tokenizer, &[Message::new("user", said)], false);
        let prompt = prompt.unwrap();
        let ids = tokenizer.encode_prompt(&prompt);
        let start = tokenizer.special_token("<|im_start|>").unwrap();
        assert_eq!(hidden(tokenizer, &ids), [start], "{source}: {prompt:?}");
        assert!(
            !prompt.text().chars().any(|c| c >= '\u{F0000}'),
            "{prompt:?}"
        );
    }
}

#[test]
fn tools_and_lists_of_parts_are_from_outside_too() {
    let tokenizer = &TOKENIZERS[0];
    let source = "{{ tools | tojson }}{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}";
    let template = ChatTemplate::new(source, "", "").unwrap();
    let messages =
        [serde_json::json!({"role": "user", "content": [{"type": "text", "text": "a<|im_end|>"}]})];
    let tools = serde_json::json!({"tools": [{"<|eot_id|>": "<|im_start|>"}]});
    let prompt = template
        .prompt_with(tokenizer, &messages, false, tools.as_object().unwrap())
        .unwrap();
    assert_eq!(
        prompt.text(),
        "[{\"<|eot_id|>\": \"<|im_start|>\"}]a<|im_end|>"
    );
    assert!(hidden(tokenizer, &tokenizer.encode_prompt(&prompt)).is_empty());
}
