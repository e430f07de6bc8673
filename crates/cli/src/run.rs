//! `kvark run`: completes a prompt.

mod arguments;
mod constrained;

use crate::args::{EngineArgs, ShiftArgs, predict, token_ids};
use crate::catalogue::HubArgs;
use crate::prompt::Conversations;
use crate::prompt::TemplateArgs;
use crate::sampling::SamplingArgs;
use crate::speculation::{OpenDraft, SingleRunner, SpecArgs, Speculation, open_pool, spec_note};
use crate::text_input::TextArgs;
use crate::{chat, interrupt, messages, output, prompt};
use anyhow::{Context, Result, bail};
use clap::{ArgGroup, Args};
use constrained::FormatArgs;
use kvark::Model;
use kvark::generate::{
    DecodeContext, FinishReason, GenerateEvent, GenerateOptions, GenerateOutput, Sampler,
    SamplerOptions, Timings,
};
use kvark::memory::MemoryUsage;
use kvark::snapshot::Snapshot;
use kvark::speculative::SpecStats;
use kvark::text::Message;
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
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
    #[arg(long, value_name = "FILE", conflicts_with = "parallel")]
    prompt_cache: Option<PathBuf>,
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
        if self.parallel.is_some() && self.shift.context_shift {
            bail!("--context-shift cannot be used with --parallel");
        }
        if self.template.chat_template.is_some() && !self.is_chat() {
            bail!("--chat-template needs --chat");
        }
        let messages = self.messages(text.as_deref())?;
        let format = self.format.source()?;
        let _listening = interrupt::listen();
        let known = match &self.prompt_cache {
            Some(file) => prompt_cache(file)?,
            None => None,
        };
        self.engine.check_one_mode()?;
        let draft = self.spec.open_draft(&model, &self.engine)?;
        let name = model.name()?;
        let model = model.open_with_features(&self.engine, draft.feature_layers())?;
        let options = GenerateOptions {
            max_tokens: usize::try_from(self.predict).ok(),
            stop: self.stop.clone(),
            ignore_eos: self.ignore_eos,
        };
        if let Some(source) = &format {
            return self.constrained(model, &draft, text.as_deref(), options, source);
        }
        if let Some(count) = self.parallel {
            let conversations = self.conversations(&model)?;
            let prompt = self.prompt(&model, conversations.as_ref(), text.as_deref(), &messages)?;
            return self.parallel(&model, &draft, &prompt, &options, count);
        }
        // The runner is created before the prompt is tokenized: a thread builds the tokenizer meanwhile.
        let mut runner = SingleRunner::new(&model, &self.engine, &self.spec, &draft)?;
        let conversations = self.conversations(&model)?;
        let prompt = self.prompt(&model, conversations.as_ref(), text.as_deref(), &messages)?;
        let first_turn = messages.iter().position(|m| m.role != "system");
        let preamble = &messages[..first_turn.unwrap_or(0)];
        let preamble = conversations.as_ref().map(|c| (c, preamble));
        if let Some(keep) = self.shift.keep(runner.capacity()?, preamble)? {
            runner.enable_context_shift(keep)?;
        }
        let sampling = self.sampling.options(&model)?;
        let seed = sampling.seed;
        let seed_note = output::seed_note(&sampling);
        let mut sampler = Sampler::new(sampling);
        let reused = match &known {
            Some(snapshot) => runner.resume(&model, snapshot, &prompt)?,
            None => 0,
        };
        // The prompt is printed after it was processed, before the first generated text.
        let mut shown = text.filter(|_| !(self.json || self.is_chat() || self.no_display_prompt));
        let new = &prompt[reused..];
        let bar = output::progress("prompt", new.len());
        let mut written = Ok(());
        let generated = runner.generate(&model, new, &mut sampler, &options, |piece| {
            match piece {
                GenerateEvent::PromptProgress(done) => bar.set_position(done as u64),
                GenerateEvent::Text(text) => {
                    bar.finish_and_clear();
                    let text = shown.take().unwrap_or_default() + &text;
                    if !self.json && written.is_ok() {
                        written = output::text(&text);
                    }
                }
            }
            !interrupt::requested() && written.is_ok()
        });
        bar.finish_and_clear();
        let generated = generated?;
        let save = || match &self.prompt_cache {
            Some(file) => {
                let notes = json!({ "model": name }).to_string();
                let saved = runner.save(&model, file, notes.as_bytes());
                saved.context("cannot save")
            }
            None => Ok(()),
        };
        if written.is_err() {
            save()?;
        }
        written?;
        if let Some(stats) = runner.stats() {
            self.spec.write_trace(&model, stats)?;
        }
        let mut out = std::io::stdout();
        if self.json {
            let mut object = report(&prompt, &generated, runner.memory()?);
            object["seed"] = seed.into();
            if let Some(stats) = runner.stats() {
                object["spec"] = server::spec_object(stats);
            }
            if self.prompt_cache.is_some() {
                object["reused_tokens"] = reused.into();
            }
            writeln!(out, "{object}")?;
            return save();
        }
        write!(out, "{}", shown.unwrap_or_default())?;
        if model.tokenizer().is_err() {
            let ids: Vec<String> = generated.tokens.iter().map(u32::to_string).collect();
            write!(out, "{}", ids.join(","))?;
        }
        writeln!(out)?;
        let t = generated.timings;
        let known = match reused {
            0 => String::new(),
            n => format!("{n} restored and "),
        };
        output::statistics(&format!(
            "[prompt {known}{}; generated {}; {seed_note}{}]",
            output::measured(t.prompt_tokens, t.prompt_rate()),
            output::measured(t.generated_tokens, t.decode_rate()),
            generated.finish.name(),
        ));
        if let Some(stats) = runner.stats() {
            output::statistics(&spec_note(stats));
        }
        if generated.finish == FinishReason::Context {
            let advice = self.shift.advice();
            output::note(&format!("[the context is full; {advice}]"));
        }
        save()
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
    fn messages(&self, text: Option<&str>) -> Result<Vec<Message>> {
        if !self.is_chat() {
            return Ok(vec![]);
        }
        let mut all = match &self.messages {
            Some(file) => messages::read(file)?,
            None => vec![],
        };
        if let Some(system) = &self.system {
            if all.first().is_some_and(|first| first.role == "system") {
                bail!(
                    "the conversation of --messages has a system message already; leave --system out"
                );
            }
            all.insert(0, Message::new("system", system));
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
            (None, None) => prompt::encode(model, text, self.template.special),
        }
    }

    /// Generates several continuations. The prompt is computed once, and each step is one forward for all of them.
    fn parallel(
        &self,
        model: &Model,
        draft: &OpenDraft,
        prompt: &[u32],
        options: &GenerateOptions,
        count: u32,
    ) -> Result<()> {
        let (mut branches, speculation) =
            open_pool(model, &self.engine, &self.spec, draft, count as usize)?;
        if speculation
            .as_ref()
            .is_some_and(Speculation::needs_features)
        {
            branches.keep_features(0, true)?;
        }
        let start = Instant::now();
        let bar = output::progress("prompt", prompt.len());
        let fed = branches.sequence(0).feed(prompt, &mut |done| {
            bar.set_position(done as u64);
            !interrupt::requested()
        })?;
        bar.finish_and_clear();
        if !fed {
            bail!("interrupted");
        }
        let prompt_time = start.elapsed();
        for id in 1..count {
            branches.fork(0, id)?;
        }
        let base = self.sampling.options(model)?;
        let seed = |id: u32| base.seed.wrapping_add(u64::from(id));
        let sampler = |id| {
            Sampler::new(SamplerOptions {
                seed: seed(id),
                ..base.clone()
            })
        };
        let total = options.max_tokens.unwrap_or(0) * count as usize;
        let bar = output::progress("tokens", total);
        let on_event = |_: u32, _: GenerateEvent| {
            bar.inc(1);
            !interrupt::requested()
        };
        let mut stats = None;
        let generated = match &speculation {
            None => {
                let mut each: Vec<_> = (0..count).map(|id| (id, sampler(id))).collect();
                branches.generate(model, &mut each, options, on_event)?
            }
            Some(speculation) => {
                let mut each = vec![];
                for id in 0..count {
                    each.push((id, sampler(id), speculation.speculator()?));
                }
                let generated =
                    branches.generate_speculative_batch(model, &mut each, options, on_event)?;
                let mut total = SpecStats::default();
                each.iter()
                    .for_each(|(_, _, speculator)| total.add(speculator.stats()));
                self.spec.write_trace(model, &total)?;
                stats = Some(total);
                generated
            }
        };
        bar.finish_and_clear();
        let time = generated
            .iter()
            .map(|g| g.timings.decode_time)
            .max()
            .unwrap_or_default();
        let tokens: usize = generated.iter().map(|g| g.tokens.len()).sum();
        let decoded: usize = generated.iter().map(|g| g.timings.decoded_tokens).sum();
        let measures = Timings {
            prompt_tokens: prompt.len(),
            prompt_time,
            generated_tokens: tokens,
            decode_time: time,
            decoded_tokens: decoded,
            ..Timings::default()
        };
        let mut out = std::io::stdout();
        if self.json {
            let branch = |(id, g): (u32, &GenerateOutput)| {
                let finish = g.finish.name();
                json!({ "seed": seed(id), "tokens": g.tokens, "text": g.text, "finish_reason": finish })
            };
            let mut object = report(prompt, &generated[0], branches.memory()?);
            object["seed"] = base.seed.into();
            object["branches"] = (0..).zip(&generated).map(branch).collect();
            object["timings"] = timings(&measures);
            if let Some(stats) = &stats {
                object["spec"] = server::spec_object(stats);
            }
            writeln!(out, "{object}")?;
            return Ok(());
        }
        for (id, g) in (0..).zip(&generated) {
            writeln!(
                out,
                "--- {} of {count}, seed {}, {}",
                id + 1,
                seed(id),
                g.finish.name()
            )?;
            writeln!(out, "{}", g.text)?;
        }
        output::statistics(&format!(
            "[prompt {} once; generated {}; seeds from {}]",
            output::tokens(prompt.len()),
            output::measured(tokens, measures.decode_rate()),
            base.seed,
        ));
        if let Some(stats) = &stats {
            output::statistics(&spec_note(stats));
        }
        Ok(())
    }
}

fn report(prompt: &[u32], generated: &GenerateOutput, memory: MemoryUsage) -> Value {
    json!({
        "prompt_tokens": prompt,
        "tokens": generated.tokens,
        "text": generated.text,
        "finish_reason": generated.finish.name(),
        "timings": timings(&generated.timings),
        "memory": {
            "weights_bytes": memory.weights,
            "kv_bytes": memory.kv,
            "arena_bytes": memory.arena,
            "packed_bytes": memory.packed,
        },
    })
}

fn timings(t: &Timings) -> Value {
    let ms = |d: std::time::Duration| d.as_secs_f64() * 1e3;
    json!({
        "prompt_n": t.prompt_tokens,
        "prompt_ms": ms(t.prompt_time),
        "prompt_per_second": t.prompt_rate(),
        "predicted_n": t.generated_tokens,
        "predicted_ms": ms(t.decode_time),
        "predicted_per_second": t.decode_rate(),
    })
}
