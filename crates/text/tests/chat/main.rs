//! Renders conversations with templates in the manner of well-known models and compares with what Hugging Face's
//! renderer makes of them (`generate.py` writes `cases.json`).

mod prompts;

use std::fs;
use std::path::Path;

use serde::Deserialize;
use text::{ChatTemplate, TextError};

#[derive(Deserialize)]
struct Case {
    template: String,
    messages: Vec<serde_json::Value>,
    add_generation_prompt: bool,
    variables: serde_json::Map<String, serde_json::Value>,
    want: Want,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Want {
    Text(String),
    Raised(String),
}

#[test]
fn templates_render_as_in_python() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chat");
    let cases = fs::read_to_string(folder.join("cases.json")).unwrap();
    let cases: Vec<Case> = serde_json::from_str(&cases).unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let name = &case.template;
        let source = fs::read_to_string(folder.join(format!("templates/{name}.jinja"))).unwrap();
        let template = ChatTemplate::new(&source, "<s>", "</s>").unwrap();
        let got =
            match template.render_with(&case.messages, case.add_generation_prompt, &case.variables)
            {
                Ok(text) => Want::Text(text),
                Err(TextError::TemplateRaised {
                    line: Some(_),
                    message,
                }) => Want::Raised(message),
                Err(error) => panic!("{name}: {error}"),
            };
        assert_eq!(got, case.want, "{name} {:?}", case.messages);
    }
}
