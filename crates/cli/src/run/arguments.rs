//! Which of the words after `kvark run` is the model and which is the prompt.

use super::Run;
use crate::args::ModelArgs;
use anyhow::{Result, bail};
use std::io::IsTerminal;
use std::path::Path;

/// The meaning of a positional argument.
#[derive(Debug, PartialEq)]
enum Word {
    Model,
    Prompt,
    /// A mistyped model name or a prompt.
    Unclear,
}

/// File name extensions of models.
const EXTENSIONS: [&str; 4] = [".gguf", ".pt2", ".onnx", ".pte"];
/// Prefixes of model references.
const REFERENCES: [&str; 4] = ["hf:", "ollama:", "http://", "https://"];

/// Classifies a word by what it looks like, and by the files and the catalogue of this machine.
fn classify(word: &str) -> Word {
    let spaces = word.contains(char::is_whitespace);
    let is_model_file = EXTENSIONS
        .iter()
        .any(|extension| word.to_ascii_lowercase().ends_with(extension));
    if kvark::catalogue::find(word).is_some() || (!word.is_empty() && Path::new(word).exists()) {
        return Word::Model;
    }
    match (spaces, is_model_file) {
        (true, true) => return Word::Unclear,
        (true, false) => return Word::Prompt,
        (false, true) => return Word::Model,
        (false, false) => {}
    }
    let is_reference = REFERENCES.iter().any(|prefix| word.starts_with(prefix));
    if is_reference || word.contains(['/', '\\']) {
        return Word::Model;
    }
    // Standard input.
    if word == "-" {
        return Word::Prompt;
    }
    // A single word of the characters that names have.
    let in_names = |c: char| c.is_ascii_alphanumeric() || "._:-".contains(c);
    match !word.is_empty() && word.chars().all(in_names) {
        true => Word::Unclear,
        false => Word::Prompt,
    }
}

impl Run {
    /// The model and the text of the prompt, if there is one. Reads standard input if nothing else gives a prompt and it is
    /// not a terminal.
    pub(super) fn arguments(&self) -> Result<(ModelArgs, Option<String>)> {
        let named = self.model.clone().or_else(|| self.hub.reference());
        let prompt_by_flag =
            self.text.is_given() || self.token_ids.is_some() || self.messages.is_some();
        let (model, prompt) = match (&self.model_or_prompt, &self.prompt) {
            (first, None) if named.is_some() => match first {
                Some(word) if classify(word) == Word::Model => bail!(
                    "the model is given twice, by --model or --hf-repo and as {word:?}; write a prompt that looks like a file as --prompt {word:?}"
                ),
                first => (named, first.clone()),
            },
            (Some(first), Some(prompt)) => {
                if named.is_some() {
                    bail!(
                        "the model is given twice, by --model or --hf-repo and as {first:?}; write the prompt as one argument in quotes"
                    );
                }
                (Some(first.clone()), Some(prompt.clone()))
            }
            (Some(first), None) if prompt_by_flag => (Some(first.clone()), None),
            (Some(first), None) => match classify(first) {
                Word::Model => (Some(first.clone()), None),
                Word::Prompt => (None, Some(first.clone())),
                Word::Unclear => bail!(
                    "{first:?} is no file and no catalogue model (see kvark list); write a prompt of one word as --prompt {first:?}, and a model as --model {first:?}"
                ),
            },
            (None, _) => (named, None),
        };
        if prompt.is_some() && self.text.is_given() {
            bail!("the prompt is given twice, as an argument and by --prompt or --file");
        }
        if prompt.is_some() && self.token_ids.is_some() {
            bail!("the prompt is given twice, as an argument and by --token-ids");
        }
        let text = match prompt {
            Some(text) if text == "-" => Some(crate::text_input::read_stdin()?),
            Some(text) => Some(text),
            None => match self.text.read()? {
                None if !prompt_by_flag && !std::io::stdin().is_terminal() => {
                    Some(crate::text_input::read_stdin()?).filter(|text| !text.is_empty())
                }
                text => text,
            },
        };
        Ok((ModelArgs::named(model), text))
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
        let prompts = [
            "The capital of France is",
            "either/or is a question",
            "Hello!",
            "Größe",
            "",
            "two\nlines",
            "-",
        ];
        let unclear = ["Hello", "no-such-name", "llama3:8b", "explain model.gguf"];
        for word in models {
            assert_eq!(classify(word), Word::Model, "{word}");
        }
        for word in prompts {
            assert_eq!(classify(word), Word::Prompt, "{word}");
        }
        for word in unclear {
            assert_eq!(classify(word), Word::Unclear, "{word}");
        }
    }
}
