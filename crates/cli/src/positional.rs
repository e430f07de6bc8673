//! Which of the words after a command is the model and which is the text.

use crate::args::ModelArgs;
use crate::catalogue::HubArgs;
use crate::nearest::nearest_model;
use crate::text_input::{self, TextArgs};
use anyhow::{Result, bail};
use clap::Args;
use kvark::hub::ModelRef;

/// A model and a text, as arguments or flags.
#[derive(Args)]
pub(crate) struct ModelTextArgs {
    /// Path, catalogue name, hf:OWNER/REPO[:QUANT], ollama:NAME or https address; the default model when left out
    #[arg(value_name = "MODEL")]
    model_or_text: Option<String>,
    /// The text; - for standard input
    #[arg(id = "text_argument", value_name = "TEXT")]
    text_argument: Option<String>,
    /// The model, as a flag
    #[arg(short, long, value_name = "MODEL")]
    model: Option<String>,
    #[command(flatten)]
    hub: HubArgs,
    #[command(flatten)]
    pub(crate) text: TextArgs,
}

impl ModelTextArgs {
    /// The model, and the text that the arguments, a flag or a pipe give. `instead` is a flag that was given in the place of a
    /// text.
    pub(crate) fn resolve(
        &self,
        instead: Option<&'static str>,
    ) -> Result<(ModelArgs, Option<String>)> {
        let words = Words {
            first: self.model_or_text.as_deref(),
            second: self.text_argument.as_deref(),
            model: self.model.clone().or_else(|| self.hub.reference()),
            text_flag: instead.or(self.text.flag()),
            noun: "text",
        };
        let (model, text) = words.split()?;
        let text = match text {
            Some(text) => Some(text_input::argument(&text)?),
            None => match self.text.read()? {
                None if instead.is_none() => text_input::piped()?,
                text => text,
            },
        };
        Ok((ModelArgs::named(model), text))
    }
}

/// The positional arguments of a command that takes a model and a text, and what its flags give.
pub(crate) struct Words<'a> {
    pub(crate) first: Option<&'a str>,
    pub(crate) second: Option<&'a str>,
    /// The model of a flag.
    pub(crate) model: Option<String>,
    /// The flag that gives the text.
    pub(crate) text_flag: Option<&'static str>,
    /// The name of the text in messages.
    pub(crate) noun: &'static str,
}

impl Words<'_> {
    /// The model and the text of the arguments.
    pub(crate) fn split(self) -> Result<(Option<String>, Option<String>)> {
        let noun = self.noun;
        let owned = |word: &str| Some(word.to_owned());
        let (model, text) = match (self.first, self.second) {
            (None, _) => return Ok((self.model, None)),
            (Some(first), Some(_)) if self.model.is_some() => bail!(
                "the model is given twice, by --model or --hf-repo and as {first:?}; write the {noun} as one argument in quotes"
            ),
            (Some(first), Some(second)) => (owned(first), owned(second)),
            (Some(word), None) if self.model.is_some() => match classify(word) {
                Word::Model => bail!(
                    "the model is given twice, by --model or --hf-repo and as {word:?}; write a {noun} that looks like a file as --prompt {word:?}"
                ),
                _ => (self.model, owned(word)),
            },
            (Some(word), None) => match (classify(word), self.text_flag) {
                (Word::Model, _) => (owned(word), None),
                (Word::Text, _) => (None, owned(word)),
                (Word::Either, None) => (None, owned(word)),
                (Word::Either | Word::Mistyped, Some(flag)) => bail!(
                    "{word:?} is no file and no catalogue model{}, and {flag} gives the {noun} already",
                    advice(word)
                ),
                (Word::Mistyped, None) => bail!(
                    "{word:?} is no file and no catalogue model{}; write a {noun} as --prompt {word:?}, and a model as --model {word:?}",
                    advice(word)
                ),
            },
        };
        if let (Some(_), Some(flag)) = (&text, self.text_flag) {
            bail!("the {noun} is given twice, as an argument and by {flag}");
        }
        Ok((model, text))
    }
}

/// The name that was probably meant, or where the names are.
pub(crate) fn advice(word: &str) -> String {
    match nearest_model(word) {
        Some(name) => format!(" (did you mean {name}?)"),
        None => " (see kvark list)".to_owned(),
    }
}

/// The meaning of a positional argument.
#[derive(Debug, PartialEq)]
enum Word {
    Model,
    Text,
    /// A word that nothing tells apart from a model's name; a text if there is no other.
    Either,
    /// Probably a mistyped name of a model.
    Mistyped,
}

/// File name extensions of models.
const EXTENSIONS: [&str; 4] = [".gguf", ".pt2", ".onnx", ".pte"];
/// Prefixes of model references.
const REFERENCES: [&str; 4] = ["hf:", "ollama:", "http://", "https://"];

/// Classifies a word by what it looks like, and by the files and the catalogue of this machine.
fn classify(word: &str) -> Word {
    let is_there = |reference| match reference {
        ModelRef::Path(path) => !word.is_empty() && path.exists(),
        _ => true,
    };
    let spaces = word.contains(char::is_whitespace);
    if !spaces && REFERENCES.iter().any(|prefix| word.starts_with(prefix)) {
        return Word::Model;
    }
    if word.parse().is_ok_and(is_there) {
        return Word::Model;
    }
    let is_model_file = EXTENSIONS
        .iter()
        .any(|extension| word.to_ascii_lowercase().ends_with(extension));
    match (spaces, is_model_file) {
        (true, true) => return Word::Mistyped,
        (true, false) => return Word::Text,
        (false, true) => return Word::Model,
        (false, false) => {}
    }
    if word == text_input::STDIN {
        return Word::Text;
    }
    if word.contains(['/', '\\']) {
        return Word::Model;
    }
    let in_names = |c: char| c.is_ascii_alphanumeric() || "._:-".contains(c);
    if word.is_empty() || !word.chars().all(in_names) {
        return Word::Text;
    }
    // Such as llama3:8b: names of models have a digit and a sign between their parts.
    let inner = word.trim_end_matches(['.', ':', '-']);
    let is_like_a_name = inner.contains(|c: char| c.is_ascii_digit())
        && inner.contains(|c: char| c.is_ascii_alphabetic())
        && inner.contains(['.', '_', ':', '-']);
    match is_like_a_name || nearest_model(word).is_some() {
        true => Word::Mistyped,
        false => Word::Either,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_told_apart() {
        let models = [
            "missing.gguf",
            "a/b.bin",
            "folder/model",
            "C:\\models\\a",
            "hf:owner/repo:Q4_K_M",
            "ollama:llama3",
            "https://example.org/a",
            "MODEL.GGUF",
            "smollm2",
            "Cargo.toml",
        ];
        let texts = [
            "The capital of France is",
            "either/or is a question",
            "https://example.org is a page",
            "Hello!",
            "Größe",
            "",
            "two\nlines",
            "-",
        ];
        let either = ["Hello", "Hi", "42", "well-known", "Why..."];
        let mistyped = ["smolm2", "gemma", "llama3:8b", "explain model.gguf"];
        for word in models {
            assert_eq!(classify(word), Word::Model, "{word}");
        }
        for word in texts {
            assert_eq!(classify(word), Word::Text, "{word}");
        }
        for word in either {
            assert_eq!(classify(word), Word::Either, "{word}");
        }
        for word in mistyped {
            assert_eq!(classify(word), Word::Mistyped, "{word}");
        }
    }
}
