//! Chat templates: render a conversation to the prompt text that the model was trained on.

mod builtin;
mod json;
mod private_use;
mod prompt;
mod render_prompt;
mod strftime;

pub use prompt::Prompt;

use std::collections::HashSet;
use std::error::Error as _;
use std::sync::LazyLock;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Serde, Value, ValueKind};
use minijinja::{Environment, ErrorKind, State};
use minijinja_contrib::pycompat;
use regex::Regex;
use serde::{Deserialize, Serialize};

use crate::error::TextError;
use json::JsonStyle;

/// The template's name inside its environment; has no extension, so nothing is HTML-escaped.
const TEMPLATE_NAME: &str = "chat";
/// The maximum number of template instructions of a rendering: far more than a long conversation needs.
const MAX_INSTRUCTIONS: u64 = 10_000_000;
/// The maximum nesting of lists and maps that are written.
const MAX_NESTING: usize = 128;

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The role: `system`, `user` or `assistant` in most templates.
    pub role: String,
    /// The text of the message.
    pub content: String,
}

impl Message {
    /// A message with this role and content.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
        }
    }
}

/// A compiled Jinja chat template, with the Python functions and methods that such templates use.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos: String,
    eos: String,
    /// Private-use characters of the source.
    private: HashSet<char>,
}

impl ChatTemplate {
    /// Compiles a template that can use the texts of the model's BOS and EOS.
    ///
    /// # Errors
    /// [`TextError::Template`] with the line when `source` does not parse.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self, TextError> {
        let mut environment = Environment::new();
        let mut syntax = SyntaxConfig::builder();
        let syntax = syntax.trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(from_jinja)?);
        environment.set_fuel(Some(MAX_INSTRUCTIONS));
        environment.set_formatter(|out, state, value| {
            check_depth(value)?;
            minijinja::escape_formatter(out, state, value)
        });
        environment.set_unknown_method_callback(call_method);
        environment.add_filter("tojson", to_json);
        environment.add_function("raise_exception", raise);
        environment.add_function("strftime_now", |format: &str| {
            strftime::strftime(format, jiff::Timestamp::now())
        });
        environment
            .add_template_owned(TEMPLATE_NAME, without_generation_blocks(source))
            .map_err(from_jinja)?;
        Ok(Self {
            environment,
            source: source.to_owned(),
            bos: bos.to_owned(),
            eos: eos.to_owned(),
            private: [source, bos, eos]
                .into_iter()
                .flat_map(private_use::private)
                .collect(),
        })
    }

    /// The template's own source.
    pub fn source_text(&self) -> &str {
        &self.source
    }

    /// The names of the built-in templates.
    pub fn names() -> impl Iterator<Item = &'static str> {
        builtin::TEMPLATES.iter().map(|(name, _)| *name)
    }

    /// The source of a built-in template, for models that carry none; named as in llama.cpp.
    pub fn source(name: &str) -> Option<&'static str> {
        builtin::source(name)
    }

    /// The built-in ChatML template.
    pub fn chatml() -> Self {
        let source = builtin::source("chatml").expect("is built in");
        Self::new(source, "", "<|im_end|>").expect("a template of ours")
    }

    /// The text of a conversation, ending where the assistant begins to speak if `add_generation_prompt`.
    ///
    /// # Errors
    /// [`TextError::TemplateRaised`] if the template rejects the conversation, [`TextError::Template`] if it fails.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, TextError> {
        self.render_with(messages, add_generation_prompt, &serde_json::Map::new())
    }

    /// As [`render`](Self::render), for messages of any shape and with further variables, such as `tools`.
    ///
    /// # Errors
    /// As [`render`](Self::render).
    pub fn render_with<M: Serialize>(
        &self,
        messages: &[M],
        add_generation_prompt: bool,
        variables: &serde_json::Map<String, serde_json::Value>,
    ) -> Result<String, TextError> {
        // Templates test `tools is none`, so a missing variable must be none, not undefined.
        let absent = ["tools", "documents"].map(|name| (name, Value::from(())));
        let given = variables
            .iter()
            .map(|(name, value)| (name.as_str(), Value::from(Serde(value))));
        let fixed = [
            ("messages", Value::from(Serde(messages))),
            ("add_generation_prompt", Value::from(add_generation_prompt)),
            ("bos_token", Value::from(self.bos.as_str())),
            ("eos_token", Value::from(self.eos.as_str())),
        ];
        let context = Value::from_pairs(absent.into_iter().chain(given).chain(fixed));
        let template = self
            .environment
            .get_template(TEMPLATE_NAME)
            .map_err(from_jinja)?;
        template.render(context).map_err(from_jinja)
    }
}

/// Replaces `{% generation %}` blocks, which only mark text for training, by blocks that are always executed.
fn without_generation_blocks(source: &str) -> String {
    static TAG: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}").expect("a pattern of ours")
    });
    let replace = |tag: &regex::Captures| {
        let word = if tag.get(2).is_some() {
            "endif"
        } else {
            "if true"
        };
        format!("{{%{} {word} {}%}}", &tag[1], &tag[3])
    };
    TAG.replace_all(source, replace).into_owned()
}

/// The message of a template's own `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn raise(message: String) -> Result<Value, minijinja::Error> {
    Err(
        minijinja::Error::new(ErrorKind::InvalidOperation, message.clone())
            .with_source(Raised(message)),
    )
}

/// Returns an error for values that are nested so deeply that writing them could overflow the stack.
fn check_depth(value: &Value) -> Result<(), minijinja::Error> {
    let mut open = vec![(value.clone(), 0)];
    while let Some((value, depth)) = open.pop() {
        let is_map = value.kind() == ValueKind::Map;
        if !is_map && value.kind() != ValueKind::Seq {
            continue;
        }
        if depth == MAX_NESTING {
            let message = "a value is nested too deeply to be written";
            return Err(minijinja::Error::new(ErrorKind::InvalidOperation, message));
        }
        for item in value.try_iter()? {
            let item = if is_map { value.get_item(&item)? } else { item };
            open.push((item, depth + 1));
        }
    }
    Ok(())
}

/// Python's `json.dumps` as chat templates call it.
fn to_json(value: &Value, options: Kwargs) -> Result<Value, minijinja::Error> {
    let separators: Option<(String, String)> =
        match options.get::<Option<Vec<String>>>("separators")? {
            None => None,
            Some(pair) => match <[String; 2]>::try_from(pair) {
                Ok([item, key]) => Some((item, key)),
                Err(_) => {
                    let message = "separators must be two strings";
                    return Err(minijinja::Error::new(ErrorKind::InvalidOperation, message));
                }
            },
        };
    let style = JsonStyle {
        indent: options.get("indent")?,
        ascii: options
            .get::<Option<bool>>("ensure_ascii")?
            .unwrap_or(false),
        sorted: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        separators,
    };
    options.assert_all_used()?;
    check_depth(value)?;
    let tree = serde_json::to_value(value).map_err(|error| {
        minijinja::Error::new(ErrorKind::BadSerialization, "not to be written as JSON")
            .with_source(error)
    })?;
    Ok(Value::from_safe_string(style.write(&tree)))
}

/// Python's methods: those of pycompat, and others that templates use.
fn call_method(
    state: &mut State,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, minijinja::Error> {
    let affix = || {
        let (affix, Rest(more)): (&str, Rest<Value>) = minijinja::value::from_args(arguments)?;
        match more.is_empty() {
            true => Ok(affix),
            false => Err(minijinja::Error::from(ErrorKind::TooManyArguments)),
        }
    };
    match (method, value.as_str()) {
        ("removeprefix", Some(text)) => Ok(text.strip_prefix(affix()?).unwrap_or(text).into()),
        ("removesuffix", Some(text)) => Ok(text.strip_suffix(affix()?).unwrap_or(text).into()),
        _ => pycompat::unknown_method_callback(state, value, method, arguments),
    }
}

fn from_jinja(error: minijinja::Error) -> TextError {
    let line = error.line();
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref() {
            return TextError::TemplateRaised {
                line,
                message: message.clone(),
            };
        }
        source = cause.source();
    }
    let message = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    TextError::Template { line, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str) -> Result<String, TextError> {
        let messages = [
            Message::new("user", "Hi"),
            Message::new("assistant", "Yes?"),
        ];
        ChatTemplate::new(source, "<s>", "</s>")?.render(&messages, true)
    }

    #[test]
    fn chatml_is_built_in() {
        let text = ChatTemplate::chatml().render(&[Message::new("user", "Hi")], true);
        assert_eq!(
            text.unwrap(),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        );
    }

    #[test]
    fn generation_blocks_keep_their_text_and_their_trimming() {
        let cases = [
            ("a{% generation %}b{% endgeneration %}c", "abc"),
            ("a {%- generation -%} b {%- endgeneration -%} c", "abc"),
            (
                "a\n  {%generation%}\nb\n  {% endgeneration +%}\nc",
                "a\nb\n\nc",
            ),
            ("{{ 'generation' }}", "generation"),
        ];
        for (source, want) in cases {
            assert_eq!(render(source).unwrap(), want, "{source}");
        }
    }

    #[test]
    fn errors_carry_line_and_message() {
        let raised = render("{% if true %}\n{{ raise_exception('No system role') }}\n{% endif %}");
        assert_eq!(
            raised,
            Err(TextError::TemplateRaised {
                line: Some(2),
                message: "No system role".into()
            })
        );
        let inside =
            render("{% macro m() %}\n{{ raise_exception('deep') }}{% endmacro %}\n\n{{ m() }}");
        assert!(
            matches!(inside, Err(TextError::TemplateRaised { message, .. }) if message == "deep")
        );
        let syntax = render("one\n{% for %}");
        assert!(
            matches!(syntax, Err(TextError::Template { line: Some(2), .. })),
            "{syntax:?}"
        );
        let method = render("\n\n{{ messages[0].content.explode() }}");
        assert!(
            matches!(method, Err(TextError::Template { line: Some(3), .. })),
            "{method:?}"
        );
    }

    #[test]
    fn a_template_cannot_run_for_ever() {
        let long = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
        assert!(matches!(render(long), Err(TextError::Template { .. })));
        let deep = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}";
        assert!(matches!(render(deep), Err(TextError::Template { .. })));
    }

    #[test]
    fn a_template_cannot_exhaust_the_stack() {
        let nest = |times: u32, end: &str| {
            let grow = "{% set ns.x = [ns.x] %}{% endfor %}";
            render(&format!(
                "{{% set ns = namespace(x={{}}) %}}{{% for _ in range({times}) %}}{grow}{end}"
            ))
        };
        for end in ["{{ ns.x }}", "{{ ns.x | tojson }}"] {
            assert_eq!(
                nest(100, end).unwrap(),
                format!("{}{{}}{}", "[".repeat(100), "]".repeat(100))
            );
            assert!(matches!(
                nest(9000, end),
                Err(TextError::Template { line: Some(1), .. })
            ));
        }
    }

    #[test]
    fn absent_tools_are_none() {
        assert_eq!(
            render("{{ tools is defined }} {{ tools is none }} {{ x is defined }}").unwrap(),
            "True True False"
        );
        let template = ChatTemplate::new("{{ tools[0].name }} {{ day }}", "", "").unwrap();
        let variables = serde_json::json!({"tools": [{"name": "add"}], "day": 3});
        let variables = variables.as_object().unwrap();
        assert_eq!(
            template.render_with(&[(); 0], true, variables).unwrap(),
            "add 3"
        );
    }

    #[test]
    fn the_clock_answers() {
        let year: u32 = render("{{ strftime_now('%Y') }}").unwrap().parse().unwrap();
        assert!(year >= 2025);
    }

    proptest::proptest! {
        #[test]
        fn no_template_panics(source in "(\\{\\{|\\}\\}|\\{%|%\\}|-| for m in | endfor | if | messages|\\[|\\]|::|-1|\\(|\\)|\\.|strip|'|é|\\|tojson|\n){0,16}") {
            let _ = render(&source);
        }
    }
}
