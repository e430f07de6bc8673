//! Output that follows a JSON schema, a grammar or a regular expression.

use super::{Run, report};
use crate::output::measured;
use crate::speculation::OpenDraft;
use crate::{interrupt, output};
use anyhow::{Context, Result, bail};
use clap::Args;
use kvark::Model;
use kvark::engine::{Engine, Request, RequestEvent, SchedulerOptions};
use kvark::generate::{GenerateOptions, GenerateOutput};
use kvark::grammar::{GrammarCompiler, GrammarSource};
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Options that constrain the output.
#[derive(Args)]
pub(super) struct FormatArgs {
    /// JSON schema that the output follows: the schema itself or a file; {} for any JSON
    #[arg(long, value_name = "SCHEMA|FILE", group = "format", conflicts_with_all = ["parallel", "prompt_cache", "context_shift"])]
    json_schema: Option<String>,
    /// File with a grammar that the output follows: GBNF as llama.cpp has it, or Lark if its name ends with .lark
    #[arg(long, value_name = "FILE", group = "format", conflicts_with_all = ["parallel", "prompt_cache", "context_shift"])]
    grammar: Option<PathBuf>,
    /// Regular expression that the whole output matches
    #[arg(long, value_name = "EXPRESSION", group = "format", conflicts_with_all = ["parallel", "prompt_cache", "context_shift"])]
    regex: Option<String>,
}

impl FormatArgs {
    /// Whether a grammar was asked for.
    pub(super) fn is_given(&self) -> bool {
        self.json_schema.is_some() || self.grammar.is_some() || self.regex.is_some()
    }

    /// The grammar that was asked for.
    pub(super) fn source(&self) -> Result<Option<GrammarSource>> {
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

impl Run {
    /// Generates text that follows a grammar.
    pub(super) fn constrained(
        &self,
        model: Model,
        draft: &OpenDraft,
        text: Option<&str>,
        options: GenerateOptions,
        source: &GrammarSource,
    ) -> Result<()> {
        let model = Arc::new(model);
        let compiler = GrammarCompiler::new(&model)?;
        let constraint = compiler.constraint(source)?;
        let messages = self.messages(text)?;
        let conversations = self.conversations(&model)?;
        let prompt = self.prompt(&model, conversations.as_ref(), text, &messages)?;
        let sampling = self.sampling.options(&model)?;
        let seed = sampling.seed;
        let seed_note = output::seed_note(&sampling);
        let backend = self.engine.device.backend()?;
        let speculation = self.spec.options(draft)?;
        let candidates = speculation.as_ref().map_or(0, |spec| spec.max_candidates);
        let one = SchedulerOptions {
            slots: 1,
            prefixes: Some(1),
            candidates,
            draft: draft.load(&model, &self.engine, 1)?,
            ..SchedulerOptions::default()
        };
        let runner = self.engine.runner_options()?;
        let engine = Engine::start(model.clone(), &*backend, &runner, &one)?;
        let request = Request {
            sampling,
            options,
            constraint: Some(constraint),
            speculation,
            ..Request::new(prompt.clone())
        };
        let mut shown = text.filter(|_| !(self.json || self.is_chat() || self.no_display_prompt));
        let bar = output::progress("prompt", prompt.len());
        let mut all = String::new();
        for event in engine.handle().generate(request)? {
            if interrupt::requested() {
                bar.finish_and_clear();
                bail!("interrupted");
            }
            let piece = match event {
                RequestEvent::Started(_) | RequestEvent::Round(_) => continue,
                RequestEvent::PromptProgress(done) => {
                    bar.set_position(done as u64);
                    continue;
                }
                RequestEvent::Token(token) => token.text,
                RequestEvent::Failed(error) => return Err(error.into()),
                RequestEvent::Finished(end) => {
                    bar.finish_and_clear();
                    all.push_str(&end.rest);
                    let generated = GenerateOutput {
                        tokens: end.tokens,
                        text: all,
                        finish: end.finish,
                        timings: end.timings,
                    };
                    let mut out = std::io::stdout();
                    if let Some(stats) = &end.speculation {
                        self.spec.write_trace(&model, stats)?;
                    }
                    if self.json {
                        let memory = engine.handle().state()?.memory;
                        let mut object = report(&prompt, &generated, memory);
                        object["seed"] = seed.into();
                        if let Some(stats) = &end.speculation {
                            object["spec"] = server::spec_object(stats);
                        }
                        writeln!(out, "{object}")?;
                        return Ok(());
                    }
                    writeln!(out, "{}{}", shown.take().unwrap_or_default(), end.rest)?;
                    let t = generated.timings;
                    output::statistics(&format!(
                        "[prompt {}; generated {}; {seed_note}{}]",
                        measured(t.prompt_tokens, t.prompt_rate()),
                        measured(t.generated_tokens, t.decode_rate()),
                        generated.finish.name(),
                    ));
                    return Ok(());
                }
            };
            bar.finish_and_clear();
            all.push_str(&piece);
            if !self.json {
                output::text(&(shown.take().unwrap_or_default().to_owned() + &piece))?;
            }
        }
        Ok(())
    }
}
