//! `kvark chat`: a conversation in the terminal.

mod commands;
mod completion;
mod conversation;
mod input;
mod map;
mod settings;
mod wrap;

use crate::args::predict;
use crate::args::{EngineArgs, ModelArgs, ShiftArgs};
use crate::output::measured;
use crate::prompt::Conversations;
use crate::prompt::TemplateArgs;
use crate::sampling::SamplingArgs;
use crate::speculation::{self, SpecArgs, spec_note};
use crate::{interrupt, output};
use anyhow::{Context, Result, bail};
use clap::Args;
pub(crate) use conversation::saved_turns;
use conversation::{Answer, Conversation, Reply};
use input::{Entry, Input};
use kvark::generate::{FinishReason, GenerateEvent, GenerateOptions, Sampler};
use kvark::snapshot::Snapshot;
use kvark::text::Message;
use settings::Settings;
use std::path::PathBuf;
use wrap::Wrap;

/// Talk to a model
#[derive(Args)]
#[command(after_help = commands::after_help())]
pub(crate) struct Chat {
    #[command(flatten)]
    model: ModelArgs,
    /// System message; replaces that of the conversation in --prompt-cache
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<String>,
    /// The first message
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Continue the conversation saved in FILE, if it exists, and save to FILE at the end
    #[arg(long, value_name = "FILE")]
    prompt_cache: Option<PathBuf>,
    /// Maximum number of tokens per answer; -1 for no limit but the model's end of turn or a full context
    #[arg(short = 'n', long, value_name = "N", default_value_t = -1, allow_hyphen_values = true, value_parser = predict)]
    predict: i64,
    /// Stop answers at this string; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,
    /// Print statistics after each answer
    #[arg(short, long)]
    verbose: bool,
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

/// The action of the chat after a line.
#[derive(PartialEq)]
enum Next {
    Line,
    /// Read the next line; this one failed (a message was not answered, or a file not saved or loaded).
    Failed,
    /// Let the user edit the last message.
    Edit,
    Exit,
}

/// A running chat.
struct Session<'a> {
    conversation: Conversation<'a>,
    settings: Settings,
    shift: &'a ShiftArgs,
    verbose: bool,
    /// Whether lines are typed in a terminal.
    terminal: bool,
}

impl Chat {
    pub(crate) fn execute(self) -> Result<()> {
        let _listening = interrupt::listen();
        if let Some(file) = &self.prompt_cache {
            Snapshot::check_writable(file).context("--prompt-cache")?;
        }
        self.engine.check_one_mode()?;
        self.spec.check_trace()?;
        let draft = self.spec.open_draft(&self.model, &self.engine)?;
        let model = (self.model).open_with_features(&self.engine, draft.feature_layers())?;
        let (cells, speculation) =
            speculation::open_pool(&model, &self.engine, &self.spec, &draft, 1)?;
        let speculator = speculation.map(|shared| shared.speculator()).transpose()?;
        let conversations = Conversations::new(&model, &self.template)?;
        let system = self
            .system
            .as_ref()
            .map(|text| Message::new("system", text));
        let options = GenerateOptions {
            max_tokens: usize::try_from(self.predict).ok(),
            stop: self.stop.clone(),
            ignore_eos: false,
        };
        let sampler = Sampler::new(self.sampling.options(&model)?);
        let mut conversation = Conversation::new(&conversations, cells, sampler, options, system);
        conversation.speculate(speculator);
        if let Some(file) = self.prompt_cache.as_deref().filter(|file| file.exists()) {
            conversation.warm(file)?;
        }
        conversation.enable_context_shift(&self.shift)?;
        let mut input = Input::open();
        if input.is_terminal() {
            let name = self.model.name()?;
            let room = conversation.cells().capacity()?;
            output::note(&format!(
                "{name}, context of {room} tokens; /help lists the commands"
            ));
        }
        let mut session = Session {
            conversation,
            settings: Settings::new(self.sampling.clone(), self.predict),
            shift: &self.shift,
            verbose: self.verbose,
            terminal: input.is_terminal(),
        };
        let failed = session.read_lines(&mut input, self.prompt.clone())?;
        if let Some(file) = &self.prompt_cache {
            session.conversation.save(file).context("cannot save")?;
        }
        if let Some(stats) = session.conversation.spec_stats() {
            self.spec.write_trace(&model, stats)?;
        }
        if failed > 0 && !input.is_terminal() && !interrupt::requested() {
            bail!("{failed} of the lines failed (see the messages above)");
        }
        Ok(())
    }
}

impl Session<'_> {
    /// Acts on all lines of the input and returns how many failed. `first` comes before them.
    fn read_lines(&mut self, input: &mut Input, first: Option<String>) -> Result<usize> {
        let mut failed = 0;
        let mut first = first.map(Entry::Line);
        loop {
            let entry = match first.take() {
                Some(entry) => Some(Ok(entry)),
                None => input.entry(&self.conversation.branch_names())?,
            };
            let Some(entry) = entry else {
                return Ok(failed);
            };
            let mut next = match entry {
                Ok(entry) => self.take(entry)?,
                Err(why) => {
                    output::note(&format!("[{why}]"));
                    Next::Failed
                }
            };
            if next == Next::Edit {
                let last = self.conversation.last_message().unwrap_or_default();
                next = match input.edit(last)? {
                    Some(text) => self.replace(&text)?,
                    None => Next::Line,
                };
            }
            failed += usize::from(next == Next::Failed);
            if next == Next::Exit {
                return Ok(failed);
            }
        }
    }

    /// Acts on one line: a command or a message. A second slash or a space before the slash makes a message of it.
    fn take(&mut self, entry: Entry) -> Result<Next> {
        let text = match &entry {
            Entry::Block(text) => text,
            Entry::Line(line) => match line.strip_prefix('/') {
                Some(message) if message.starts_with('/') => message.trim(),
                Some(command) => return commands::run(self, command.trim()),
                None => line.trim(),
            },
        };
        match text.is_empty() {
            true => Ok(Next::Line),
            false => self.say(text),
        }
    }

    /// Sends one message and prints the answer.
    fn say(&mut self, text: &str) -> Result<Next> {
        self.answer(|conversation, show| conversation.say(text, show))
    }

    /// Sends `text` instead of the last message and prints the answer.
    fn replace(&mut self, text: &str) -> Result<Next> {
        if text.trim().is_empty() {
            return Ok(Next::Line);
        }
        self.answer(|conversation, show| conversation.replace_last(text.trim(), show))
    }

    /// Prints an answer while it is generated.
    fn answer(
        &mut self,
        generate: impl FnOnce(
            &mut Conversation<'_>,
            &mut dyn FnMut(usize, GenerateEvent) -> bool,
        ) -> Result<Reply>,
    ) -> Result<Next> {
        // A Ctrl-C from before the message was typed has been handled already.
        if self.terminal {
            interrupt::reset();
        }
        let mut bar = None;
        let mut written = Ok(());
        let mut wrap = Wrap::for_stdout();
        let reply = generate(&mut self.conversation, &mut |new_tokens, piece| {
            match piece {
                GenerateEvent::PromptProgress(done) => bar
                    .get_or_insert_with(|| output::progress("prompt", new_tokens))
                    .set_position(done as u64),
                GenerateEvent::Text(text) => {
                    if let Some(bar) = bar.take() {
                        bar.finish_and_clear();
                    }
                    written = output::text(&wrap.push(&text));
                }
            }
            !interrupt::requested() && written.is_ok()
        });
        if let Some(bar) = bar.take() {
            bar.finish_and_clear();
        }
        written?;
        let full = match self.shift.context_shift {
            true => {
                "free some with /rewind N, /drop or /clear, or start with a smaller --keep or a larger --ctx-size"
            }
            false => "free some with /rewind N, /drop or /clear, or start with --context-shift",
        };
        let failed = match reply? {
            Reply::Answered(answer) => {
                output::text(&(wrap.finish() + "\n"))?;
                let cut = match answer.finish {
                    FinishReason::Length => Some(format!(
                        "[the answer was cut after {} (--predict); /set predict N changes the limit]",
                        output::tokens(answer.timings.generated_tokens)
                    )),
                    FinishReason::Context => {
                        Some(format!("[the answer was cut: the context is full; {full}]"))
                    }
                    FinishReason::Stop | FinishReason::Interrupted | FinishReason::Deadline => None,
                };
                cut.iter().for_each(|cut| output::note(cut));
                if self.verbose {
                    output::note(&format!("[{}]", statistics(&answer)));
                    if let Some(stats) = self.conversation.spec_stats() {
                        output::note(&spec_note(stats));
                    }
                }
                return Ok(self.after_interrupt(Next::Line));
            }
            Reply::NoRoom { needed, room } => format!(
                "[the context is full: this message needs {needed} more tokens, and {room} are free; {full}]"
            ),
            Reply::Refused(error) => format!("[{error}]"),
            Reply::Stopped => "[stopped before the answer began]".to_owned(),
        };
        output::note(&failed);
        Ok(self.after_interrupt(Next::Failed))
    }

    /// On a terminal, Ctrl-C stops the answer; elsewhere it ends the program.
    fn after_interrupt(&self, next: Next) -> Next {
        match (interrupt::requested(), self.terminal) {
            (false, _) => next,
            (true, false) => Next::Exit,
            (true, true) => {
                interrupt::reset();
                Next::Line
            }
        }
    }
}

/// The measurements of an answer on one line.
fn statistics(answer: &Answer) -> String {
    let t = &answer.timings;
    format!(
        "prompt {}; generated {}; {}",
        measured(t.prompt_tokens, t.prompt_rate()),
        measured(t.generated_tokens, t.decode_rate()),
        answer.finish.name(),
    )
}
