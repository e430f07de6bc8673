//! The options of output that follows a JSON schema, a grammar or a regular expression.

use anyhow::{Context, Result};
use clap::Args;
use kvark::Model;
use kvark::generate::TokenConstraint;
use kvark::grammar::{GrammarCompiler, GrammarSource};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Options that constrain the output.
#[derive(Args, Default)]
pub(crate) struct FormatArgs {
    /// JSON schema that the output follows: the schema itself or a file; {} for any JSON
    #[arg(long, value_name = "SCHEMA|FILE", group = "format")]
    json_schema: Option<String>,
    /// File with a grammar that the output follows: GBNF as llama.cpp has it, or Lark if its name ends with .lark
    #[arg(long, value_name = "FILE", group = "format")]
    grammar: Option<PathBuf>,
    /// Regular expression that the whole output matches
    #[arg(long, value_name = "EXPRESSION", group = "format")]
    regex: Option<String>,
}

impl FormatArgs {
    /// Whether a grammar was asked for.
    pub(crate) fn is_given(&self) -> bool {
        self.json_schema.is_some() || self.grammar.is_some() || self.regex.is_some()
    }

    /// The grammar that was asked for, before a model is opened.
    ///
    /// # Errors
    /// If a file cannot be read or a schema is not JSON.
    pub(crate) fn check(&self) -> Result<()> {
        self.source().map(|_| ())
    }

    /// The constraints of the answers of a model, if a grammar was asked for.
    pub(crate) fn constraints(&self, model: &Arc<Model>) -> Result<Option<Constraints>> {
        let Some(source) = self.source()? else {
            return Ok(None);
        };
        let compiler = GrammarCompiler::new(model)?;
        // A grammar that is wrong is refused before the prompt is computed.
        compiler.constraint(&source)?;
        Ok(Some(Constraints { compiler, source }))
    }

    /// The grammar that was asked for.
    fn source(&self) -> Result<Option<GrammarSource>> {
        if let Some(schema) = &self.json_schema {
            let schema = json_schema(schema)?;
            return Ok(Some(GrammarSource::JsonSchema(schema)));
        }
        if let Some(file) = &self.grammar {
            let text = crate::text_input::read_text(file)?;
            let is_lark = file
                .extension()
                .is_some_and(|extension| extension == "lark");
            let source = if is_lark {
                GrammarSource::Lark(text)
            } else {
                GrammarSource::Gbnf(text)
            };
            return Ok(Some(source));
        }
        Ok(self.regex.clone().map(GrammarSource::Regex))
    }
}

/// Parses a schema, or that of a file. A text that begins as no JSON value with members does is the name of a file.
fn json_schema(given: &str) -> Result<Value> {
    let is_text = given.trim_start().starts_with(['{', '[']) || ["true", "false"].contains(&given);
    if is_text {
        return serde_json::from_str(given).context("the text of --json-schema is not JSON");
    }
    let text = crate::text_input::read_text(Path::new(given))
        .context("--json-schema is neither JSON nor a file that can be read")?;
    serde_json::from_str(&text).with_context(|| format!("--json-schema: {given} is not JSON"))
}

/// The constraints of answers, one for each.
pub(crate) struct Constraints {
    compiler: GrammarCompiler,
    source: GrammarSource,
}

impl Constraints {
    /// The constraint of one more answer.
    pub(crate) fn constraint(&self) -> Result<Box<dyn TokenConstraint>> {
        Ok(self.compiler.constraint(&self.source)?)
    }
}
