//! `kvark run`: completes a prompt.

mod arguments;
mod report;

use crate::args::{EngineArgs, ShiftArgs, predict, token_ids};
use crate::catalogue::HubArgs;
use crate::output_format::{Constraints, FormatArgs};
use crate::prefix::GivenPrefix;
use crate::prompt::Conversations;
use crate::prompt::TemplateArgs;
use crate::sampling::SamplingArgs;
use crate::speculation::{OpenDraft, Pool, SpecArgs, open_pool, spec_note};
use crate::text_input::TextArgs;
use crate::{chat, interrupt, messages, output, prompt};
use anyhow::{Context, Result, bail};
use clap::{ArgGroup, Args};
use kvark::Model;
use kvark::generate::{
    FinishReason, GenerateEvent, GenerateOptions, Sampler, SamplerOptions, Sequence,
};
use kvark::memory::CacheKind;
use kvark::snapshot::Snapshot;
use kvark::speculative::SpecStats;
use kvark::text::Message;
use report::{branches_report, report};
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Complete a prompt
#[derive(Args)]
#[command(
    group = ArgGroup::new("conversation").multiple(true),
    after_help = "A single argument is the model if it is a file, a catalogue name or looks like a file's name; otherwise it is the \
prompt. Without a prompt, text that is piped to standard input is the prompt; at a terminal, kvark run MODEL opens a chat. The line end after the text of a file or a pipe is \
not part of the prompt. A folder or file with a catalogue's name is written ./NAME.

Examples:
  kvark run \"The capital of France is\" -n 16 --temp 0
  kvark run model.gguf \"The capital of France is\"
  echo \"The capital of France is\" | kvark run -n 16
  kvark run --chat --system \"Answer briefly.\" \"Why is the sky blue?\"
  kvark run --messages conversation.json
  kvark run --parallel 4 -p \"A name for a cat:\" -n 8 --seed 1
  kvark run -f long.txt --prompt-cache long.kv -n 64
  kvark run --prefix long.kvp \"In short:\" -n 64
  kvark run --spec-type auto -f article.txt -n 200
  kvark run --chat --json-schema person.json \"Invent a person.\"
  kvark run model.gguf -f prompt.txt --json"
)]
pub(crate) struct Run {
    /// Path or catalogue name; the default model (SmolLM2-135M-Instruct, or that of kvark config) when left out
    #[arg(value_name = "MODEL")]
    model_or_prompt: Option<String>,
    /// The prompt; - for standard input
    #[arg(id = "prompt_argument", value_name = "PROMPT")]
    prompt: Option<String>,
    /// The model, as a flag
    #[arg(short, long, value_name = "MODEL")]
    model: Option<String>,
    #[command(flatten)]
    hub: HubArgs,
    #[command(flatten)]
    text: TextArgs,
    /// The prompt as token ids, such as 1,2,3
    #[arg(long, value_name = "IDS", value_parser = token_ids, conflicts_with = "text")]
    token_ids: Option<TokenIds>,
    /// Treat the prompt as a user's message and apply the model's chat template
    #[arg(long, group = "conversation", conflicts_with = "token_ids")]
    chat: bool,
    /// System message of --chat or --messages
    #[arg(
        long,
        value_name = "TEXT",
        allow_hyphen_values = true,
        requires = "conversation"
    )]
    system: Option<String>,
    /// Conversation to continue: a JSON list of {"role": ..., "content": ...}; - for standard input. A prompt is added to it
    /// as the user's message
    #[arg(
        long,
        value_name = "FILE",
        group = "conversation",
        conflicts_with = "token_ids"
    )]
    messages: Option<PathBuf>,
    /// Maximum number of tokens to generate; -1 for no limit but the model's end of text or a full context
    #[arg(short = 'n', long, value_name = "N", default_value_t = -1, allow_hyphen_values = true, value_parser = predict)]
    predict: i64,
    /// Stop generating at this string; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,
    /// Continue past the model's end of text
    #[arg(long)]
    ignore_eos: bool,
    /// Do not print the prompt
    #[arg(long)]
    no_display_prompt: bool,
    /// Generate K continuations in one batch, with seeds --seed, --seed + 1, ...
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=64))]
    parallel: Option<u32>,
    /// Restore the longest common prefix of the prompt from FILE and save the whole text to FILE for the next run; a
    /// conversation of kvark chat is refused
    #[arg(long, value_name = "FILE")]
    prompt_cache: Option<PathBuf>,
    /// Begin with a file of kvark prefix build, whose tokens come before the prompt: the processes that use it share its keys and
    /// values. With --chat, its text is the system message
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt_cache", "system"])]
    prefix: Option<PathBuf>,
    /// With --json, the log-probability of every token and those of the K most likely ones
    #[arg(long, value_name = "K", requires = "json", value_parser = clap::value_parser!(u32).range(0..=100))]
    logprobs: Option<u32>,
    /// Kind of the cache: contiguous (one sequence), cells (sequences that share cells) or tree (one sequence and candidates)
    /// [default: contiguous, or cells for --parallel and --spec-type]
    #[arg(long, value_name = "KIND", value_parser = ["contiguous", "cells", "tree"], hide_possible_values = true)]
    cache: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print no progress and no statistics
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    template: TemplateArgs,
    #[command(flatten)]
    shift: ShiftArgs,
    #[command(flatten)]
    spec: SpecArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// A list that clap parses as one value.
type TokenIds = Vec<u32>;

impl Run {
    pub(crate) fn execute(self) -> Result<()> {
        if self.quiet {
            output::be_quiet();
        }
        let (model, text) = self.arguments()?;
        if text.is_none() && self.token_ids.is_none() && self.messages.is_none() {
            bail!(
                "no prompt: give one after the model, with --prompt, --file or --token-ids, or in a pipe"
            );
        }
        if text.as_ref().is_some_and(String::is_empty) {
            bail!("the prompt is empty");
        }
        self.spec.check_trace()?;
        if self.template.chat_template.is_some() && !self.is_chat() {
            bail!("--chat-template needs --chat");
        }
        let prefix = self.prefix.as_deref().map(GivenPrefix::open).transpose()?;
        if let Some(prefix) = &prefix {
            prefix.check_conversation(self.is_chat())?;
        }
        let messages = self.messages(text.as_deref(), prefix.as_ref())?;
        self.format.check()?;
        let _listening = interrupt::listen();
        let known = match &self.prompt_cache {
            Some(file) => prompt_cache(file)?,
            None => None,
        };
        self.engine.check_one_mode()?;
        let draft = self.spec.open_draft(&model, &self.engine)?;
        let name = model.name()?;
        let model = model.open_with_features(&self.engine, draft.feature_layers())?;
        let model = Arc::new(model);
        let mut options = GenerateOptions {
            max_tokens: usize::try_from(self.predict).ok(),
            stop: self.stop.clone(),
            ignore_eos: self.ignore_eos,
            ..GenerateOptions::default()
        };
        let count = self.parallel.unwrap_or(1);
        // The runner is created before the prompt is tokenized: a thread builds the tokenizer meanwhile.
        let mut pool = self.open_pool(&model, &draft, count, prefix.as_ref())?;
        let constraints = self.format.constraints(&model)?;
        let conversations = self.conversations(&model)?;
        let prompt = self.prompt(&model, conversations.as_ref(), text.as_deref(), &messages);
        let prompt = after_prefix(prefix.as_ref(), conversations.is_some(), prompt?)?;
        if let Some(conversations) = &conversations {
            options.reasoning = conversations.reasoning_budget(&prompt)?;
        }
        let first_turn = messages.iter().position(|m| m.role != "system");
        let preamble = &messages[..first_turn.unwrap_or(0)];
        let preamble = conversations.as_ref().map(|c| (c, preamble));
        self.shift.enable(&mut pool.runner, preamble)?;
        let reused = match &known {
            Some(snapshot) => pool.runner.resume(&model, 0, snapshot, &prompt)?,
            None => pool.runner.begin_with_prefix(0)?,
        };
        let run = Generation {
            run: &self,
            model: &model,
            options: &options,
            constraints: constraints.as_ref(),
            prompt: &prompt,
            reused,
        };
        let finished = match self.parallel {
            Some(count) => run.branches(&mut pool, count),
            None => run.one(&mut pool, text),
        };
        if matches!(&finished, Err(error) if !error.is::<std::io::Error>()) {
            return finished;
        }
        // The tokens are saved also if standard output was closed.
        if let Some(file) = &self.prompt_cache {
            let notes = json!({ "model": name }).to_string();
            let saved = pool.runner.save(&model, 0, file, notes.as_bytes());
            saved.context("cannot save")?;
        }
        finished
    }

    fn open_pool(
        &self,
        model: &Model,
        draft: &OpenDraft,
        count: u32,
        prefix: Option<&GivenPrefix>,
    ) -> Result<Pool> {
        let speculates = self.spec.options(draft)?.is_some();
        let kind = match self.cache.as_deref() {
            Some("contiguous") => CacheKind::Contiguous,
            Some("tree") => CacheKind::Tree,
            None if count == 1 && !speculates => CacheKind::of_one_sequence(model.facts()),
            _ => CacheKind::Cells { sequences: count },
        };
        if count > 1 && !matches!(kind, CacheKind::Cells { .. }) {
            let name = self.cache.as_deref().unwrap_or_default();
            bail!("a {name} cache holds one sequence: --parallel needs --cache cells");
        }
        if kind == CacheKind::Tree && (self.prompt_cache.is_some() || self.shift.context_shift) {
            bail!(
                "a tree cache is not saved or shifted: --prompt-cache and --context-shift need --cache contiguous or cells"
            );
        }
        if speculates && kind == CacheKind::Contiguous {
            bail!(
                "a contiguous cache holds no candidates: --spec-type needs --cache cells or tree"
            );
        }
        open_pool(model, &self.engine, &self.spec, draft, kind, prefix)
    }
}

/// A run with its prompt.
struct Generation<'a> {
    run: &'a Run,
    model: &'a Model,
    options: &'a GenerateOptions,
    constraints: Option<&'a Constraints>,
    prompt: &'a [u32],
    /// Tokens of the prompt that were restored.
    reused: usize,
}

impl Generation<'_> {
    /// The sequence of a branch, after these tokens.
    fn sequence(
        &self,
        pool: &Pool,
        seq: u32,
        prompt: &[u32],
        sampling: &SamplerOptions,
    ) -> Result<Sequence<'static>> {
        let sampler = Sampler::new(SamplerOptions {
            seed: sampling.seed.wrapping_add(u64::from(seq)),
            ..sampling.clone()
        });
        let constraint = self.constraints.map(Constraints::constraint).transpose()?;
        Ok(Sequence::new(seq, prompt, sampler, self.options)
            .with_constraint(constraint)
            .with_logprobs(self.run.logprobs.map(|top| top as usize))
            .with_speculator(pool.speculator()?))
    }

    /// Generates one continuation and prints it as it comes.
    fn one(&self, pool: &mut Pool, text: Option<String>) -> Result<()> {
        let run = self.run;
        let sampling = run.sampling.options(self.model)?;
        let seed_note = output::seed_note(&sampling);
        // The prompt is printed after it was processed, before the first generated text.
        let mut shown = text.filter(|_| !(run.json || run.is_chat() || run.no_display_prompt));
        let new = &self.prompt[self.reused..];
        let sequence = self.sequence(pool, 0, new, &sampling)?;
        let bar = output::progress("prompt", new.len());
        let mut written = Ok(());
        let runner = &mut pool.runner;
        let generated = runner.generate(self.model, vec![sequence], |_, piece| {
            match piece {
                GenerateEvent::PromptProgress(done) => bar.set_position(done as u64),
                GenerateEvent::Text(text) => {
                    bar.finish_and_clear();
                    let text = shown.take().unwrap_or_default() + &text;
                    if !run.json && written.is_ok() {
                        written = output::text(&text);
                    }
                }
            }
            !interrupt::requested() && written.is_ok()
        });
        bar.finish_and_clear();
        let generated = generated?.swap_remove(0);
        written?;
        let spec = generated.speculation.as_ref();
        if let Some(stats) = spec {
            run.spec.write_trace(self.model, stats)?;
        }
        let mut out = std::io::stdout();
        if run.json {
            let mut object = report(self.prompt, &generated, pool.runner.memory()?);
            object["seed"] = sampling.seed.into();
            if run.prompt_cache.is_some() || run.prefix.is_some() {
                object["reused_tokens"] = self.reused.into();
            }
            writeln!(out, "{object}")?;
            return Ok(());
        }
        write!(out, "{}", shown.unwrap_or_default())?;
        if self.model.tokenizer().is_err() {
            let ids: Vec<String> = generated.tokens.iter().map(u32::to_string).collect();
            write!(out, "{}", ids.join(","))?;
        }
        writeln!(out)?;
        let t = generated.timings;
        let known = match self.reused {
            0 => String::new(),
            n => format!("{n} restored and "),
        };
        output::statistics(&format!(
            "[prompt {known}{}; generated {}; {seed_note}{}]",
            output::measured(t.prompt_tokens, t.prompt_rate()),
            output::measured(t.generated_tokens, t.decode_rate()),
            generated.finish.name(),
        ));
        if let Some(stats) = spec {
            output::statistics(&spec_note(stats));
        }
        if generated.finish == FinishReason::Context {
            let advice = run.shift.advice();
            output::note(&format!("[the context is full; {advice}]"));
        }
        Ok(())
    }

    /// Generates several continuations and prints them at the end. The prompt is computed once, and each step is one forward for
    /// all of them.
    fn branches(&self, pool: &mut Pool, count: u32) -> Result<()> {
        let (run, prompt) = (self.run, self.prompt);
        if pool.needs_features() {
            pool.runner.keep_features(0, true)?;
        }
        let start = Instant::now();
        let new = &prompt[self.reused..];
        let bar = output::progress("prompt", new.len());
        let fed = pool.runner.sequence(0).feed(new, |done| {
            bar.set_position(done as u64);
            !interrupt::requested()
        })?;
        bar.finish_and_clear();
        if !fed {
            bail!("interrupted");
        }
        let prompt_time = start.elapsed();
        for id in 1..count {
            pool.runner.fork(0, id)?;
        }
        let sampling = run.sampling.options(self.model)?;
        let sequence = |id| self.sequence(pool, id, &[], &sampling);
        let sequences: Result<Vec<_>> = (0..count).map(sequence).collect();
        let total = self.options.max_tokens.unwrap_or(0) * count as usize;
        let bar = output::progress("tokens", total);
        let generated = pool.runner.generate(self.model, sequences?, |_, _| {
            bar.inc(1);
            !interrupt::requested()
        })?;
        bar.finish_and_clear();
        let each = generated.iter().filter_map(|g| g.speculation.as_ref());
        let stats = each.fold(None, |total: Option<SpecStats>, stats| {
            let mut total = total.unwrap_or_default();
            total.add(stats);
            Some(total)
        });
        if let Some(stats) = &stats {
            run.spec.write_trace(self.model, stats)?;
        }
        let mut out = std::io::stdout();
        let (object, measures) = branches_report(
            (prompt, new.len(), prompt_time),
            &generated,
            pool.runner.memory()?,
            sampling.seed,
        );
        if run.json {
            let mut object = object;
            if let Some(stats) = &stats {
                object["spec"] = server::spec_object(stats);
            }
            if run.prompt_cache.is_some() || run.prefix.is_some() {
                object["reused_tokens"] = self.reused.into();
            }
            writeln!(out, "{object}")?;
            return Ok(());
        }
        for (id, g) in (0..).zip(&generated) {
            let seed = sampling.seed.wrapping_add(id);
            let finish = g.finish.name();
            writeln!(out, "--- {} of {count}, seed {seed}, {finish}", id + 1)?;
            writeln!(out, "{}", g.text)?;
        }
        output::statistics(&format!(
            "[prompt {} once; generated {}; seeds from {}]",
            output::tokens(prompt.len()),
            output::measured(measures.generated_tokens, measures.decode_rate()),
            sampling.seed,
        ));
        if let Some(stats) = &stats {
            output::statistics(&spec_note(stats));
        }
        Ok(())
    }
}

/// Opens the snapshot of `--prompt-cache`, if the file exists. Fails before any work if the file could not be written in
/// the end, or if it holds a conversation that would be overwritten.
fn prompt_cache(file: &Path) -> Result<Option<Snapshot>> {
    Snapshot::check_writable(file).context("--prompt-cache")?;
    if !file.exists() {
        return Ok(None);
    }
    let snapshot = Snapshot::open(file)?;
    if let Some(turns) = chat::saved_turns(&snapshot) {
        let name = file.display();
        bail!(
            "{name} holds a conversation of {turns} turn{}, which kvark run would overwrite: continue it with kvark chat \
             --prompt-cache {name}, or name another file",
            if turns == 1 { "" } else { "s" }
        );
    }
    Ok(Some(snapshot))
}

impl Run {
    /// Whether the prompt is a conversation.
    fn is_chat(&self) -> bool {
        self.chat || self.messages.is_some()
    }

    /// The conversation: that of `--messages`, with the system message before it and the prompt after it.
    fn messages(&self, text: Option<&str>, prefix: Option<&GivenPrefix>) -> Result<Vec<Message>> {
        if !self.is_chat() {
            return Ok(vec![]);
        }
        let mut all = match &self.messages {
            Some(file) => messages::read(file)?,
            None => vec![],
        };
        let system = self.system.as_ref();
        let system = system.map(|system| (Message::new("system", system), "--system"));
        let of_prefix = || Some((prefix?.system()?, "--prefix"));
        if let Some((system, flag)) = system.or_else(of_prefix) {
            if all.first().is_some_and(|first| first.role == "system") {
                bail!(
                    "the conversation of --messages has a system message already; leave {flag} out"
                );
            }
            all.insert(0, system);
        }
        all.extend(text.map(|text| Message::new("user", text)));
        Ok(all)
    }

    /// Chat formatting of prompts, if they are conversations.
    fn conversations<'m>(&self, model: &'m Model) -> Result<Option<Conversations<'m>>> {
        let is_chat = self.is_chat();
        let conversations = is_chat.then(|| Conversations::new(model, &self.template));
        conversations.transpose()
    }

    fn prompt(
        &self,
        model: &Model,
        conversations: Option<&Conversations<'_>>,
        text: Option<&str>,
        messages: &[Message],
    ) -> Result<Vec<u32>> {
        let text = text.unwrap_or_default();
        match (&self.token_ids, conversations) {
            (Some(ids), _) => Ok(ids.clone()),
            (None, Some(conversations)) => conversations.tokens(messages),
            (None, None) if self.prefix.is_some() => {
                prompt::continuation(model, text, self.template.special)
            }
            (None, None) => prompt::encode(model, text, self.template.special),
        }
    }
}

/// The whole prompt: a plain one comes after the tokens of a prefix, and a conversation begins with them.
fn after_prefix(prefix: Option<&GivenPrefix>, is_chat: bool, prompt: Vec<u32>) -> Result<Vec<u32>> {
    let Some(prefix) = prefix else {
        return Ok(prompt);
    };
    if is_chat {
        prefix.check_prompt(&prompt)?;
        return Ok(prompt);
    }
    Ok([prefix.file.tokens(), &prompt].concat())
}
