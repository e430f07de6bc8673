//! `kvark chat`: a conversation in the terminal.

mod colours;
mod commands;
mod completion;
mod conversation;
mod files;
mod input;
mod map;
mod migrate;
mod saved;
mod settings;
mod transcript;
#[cfg(unix)]
mod typeahead;
mod wrap;

use crate::args::predict;
use crate::args::{EngineArgs, ModelArgs, ShiftArgs};
use crate::device::DeviceArgs;
use crate::output::measured;
use crate::output_format::FormatArgs;
use crate::prefix::GivenPrefix;
use crate::prompt::Conversations;
use crate::prompt::TemplateArgs;
use crate::sampling::SamplingArgs;
use crate::speculation::{self, SpecArgs, spec_note};
use crate::{interrupt, output};
use anyhow::{Context, Result, bail};
use clap::Args;
use conversation::{Answer, Conversation, Reply, Shown};
use files::FileToWrite;
use input::{Confirmed, Entry, Input};
use kvark::generate::{FinishReason, GenerateOptions, Sampler};
use kvark::memory::CacheKind;
use kvark::snapshot::Snapshot;
use kvark::text::Message;
pub(crate) use saved::{Saved, saved_turns};
use settings::Settings;
use std::path::{Path, PathBuf};
use std::sync::Arc;
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
    /// Continue the conversation saved in FILE, if it exists, and save to FILE after every turn; a prompt of kvark run is
    /// refused
    #[arg(long, value_name = "FILE")]
    prompt_cache: Option<PathBuf>,
    /// Begin with a file of kvark prefix build --chat: its text is the system message, and the processes that use it share its keys
    /// and values
    #[arg(long, value_name = "FILE", conflicts_with = "system")]
    prefix: Option<PathBuf>,
    /// Maximum number of tokens per answer; -1 for no limit but the model's end of turn or a full context
    #[arg(short = 'n', long, value_name = "N", default_value_t = -1, allow_hyphen_values = true, value_parser = predict)]
    predict: i64,
    /// Stop answers at this string; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,
    /// Print statistics after each answer
    #[arg(short, long)]
    verbose: bool,
    /// Print no banner, no progress and no notes on answers that --predict cut
    #[arg(short, long, conflicts_with = "verbose")]
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

/// The action of the chat after a line.
enum Next {
    Line,
    /// Read the next line; this one failed (a message was not answered, or a file not saved or loaded).
    Failed,
    /// Let the user edit the last message.
    Edit,
    /// Write the file if the user says yes.
    Confirm {
        question: String,
        file: FileToWrite,
    },
    Exit,
}

/// A running chat.
struct Session<'a> {
    conversation: Conversation<'a>,
    settings: Settings,
    shift: &'a ShiftArgs,
    /// The device that holds the cache.
    device: DeviceArgs,
    /// The display name of the model.
    model: String,
    prompt_cache: Option<&'a Path>,
    verbose: bool,
    /// Whether lines are typed in a terminal.
    terminal: bool,
}

impl Chat {
    pub(crate) fn execute(self) -> Result<()> {
        let _listening = interrupt::listen();
        if self.quiet {
            output::be_quiet();
        }
        if let Some(file) = &self.prompt_cache {
            Snapshot::check_writable(file).context("--prompt-cache")?;
        }
        self.engine.check_one_mode()?;
        self.spec.check_trace()?;
        self.format.check()?;
        let prefix = self.prefix.as_deref().map(GivenPrefix::open).transpose()?;
        if let Some(prefix) = &prefix {
            prefix.check_conversation(true)?;
        }
        let draft = self.spec.open_draft(&self.model, &self.engine)?;
        let model = (self.model).open_with_features(&self.engine, draft.feature_layers())?;
        let model = Arc::new(model);
        let kind = CacheKind::Cells { sequences: 1 };
        let shared = prefix.as_ref();
        let pool = speculation::open_pool(&model, &self.engine, &self.spec, &draft, kind, shared)?;
        let speculator = pool.speculator()?;
        let constraints = self.format.constraints(&model)?;
        let conversations = Conversations::new(&model, &self.template)?;
        let system = self
            .system
            .as_ref()
            .map(|text| Message::new("system", text))
            .or_else(|| prefix.as_ref()?.system());
        if let (Some(prefix), Some(system)) = (&prefix, &system) {
            let next = [system.clone(), Message::new("user", "a")];
            prefix.check_prompt(&conversations.tokens(&next)?)?;
        }
        let options = GenerateOptions {
            max_tokens: usize::try_from(self.predict).ok(),
            stop: self.stop.clone(),
            ..GenerateOptions::default()
        };
        let sampler = Sampler::new(self.sampling.options(&model)?);
        let mut conversation =
            Conversation::new(&conversations, pool.runner, sampler, options, system);
        conversation.speculate(speculator);
        conversation.constrain(constraints);
        let resumed = self.prompt_cache.as_deref().filter(|file| file.exists());
        if let Some(file) = resumed {
            conversation.resume(file)?;
        }
        conversation.enable_context_shift(&self.shift)?;
        interrupt::stop_at_termination();
        let mut input = Input::open();
        let mut session = Session {
            conversation,
            settings: Settings::new(self.sampling.clone(), self.predict),
            shift: &self.shift,
            device: self.engine.device.clone(),
            model: self.model.name()?,
            prompt_cache: self.prompt_cache.as_deref(),
            verbose: self.verbose,
            terminal: input.is_terminal(),
        };
        if session.terminal {
            interrupt::ignore_repeats();
            session.greet()?;
        }
        if resumed.is_some() {
            session.show_last_turns();
        }
        let failed = session.read_lines(&mut input, self.prompt.clone());
        // The conversation is saved whatever ended it.
        let saved = session.save().context("cannot save");
        let failed = failed?;
        saved?;
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
    /// Prints the banner.
    fn greet(&self) -> Result<()> {
        if !output::is_quiet() {
            let room = self.conversation.cells().capacity()?;
            let model = &self.model;
            colours::note(&format!(
                "{model}, context of {room} tokens; /help lists the commands"
            ));
        }
        Ok(())
    }

    /// Prints what was said last in the current branch.
    fn show_last_turns(&self) {
        if !output::is_quiet() {
            transcript::show(&self.conversation, transcript::LAST_TURNS);
        }
    }

    /// Saves the conversation to the file of `--prompt-cache` if it has changed.
    fn save(&mut self) -> Result<()> {
        match self.prompt_cache {
            Some(file) => self.conversation.save_if_changed(file, &self.model),
            None => Ok(()),
        }
    }

    /// The prompt: with the branch if there are several.
    fn prompt(&self) -> String {
        match self.conversation.branches() {
            ([_], _) => "> ".to_owned(),
            (branches, current) => format!("{}> ", branches[current].name),
        }
    }

    /// Acts on all lines of the input and returns how many failed. `first` comes before them.
    fn read_lines(&mut self, input: &mut Input, first: Option<String>) -> Result<usize> {
        let mut failed = 0;
        let mut waiting = first.map(Entry::Line);
        loop {
            // A signal may end the program while a line is waited for.
            if let Err(error) = self.save() {
                colours::note(&format!("[cannot save: {error:#}]"));
            }
            let entry = match waiting.take() {
                Some(entry) => Some(Ok(entry)),
                None => input.entry(&self.prompt(), &self.conversation.branch_names())?,
            };
            let Some(entry) = entry else {
                return Ok(failed);
            };
            let mut next = match entry {
                Ok(entry) => self.take(entry)?,
                Err(why) => {
                    colours::note(&format!("[{why}]"));
                    Next::Failed
                }
            };
            if let Next::Edit = next {
                let last = self.conversation.last_message().unwrap_or_default();
                next = match input.edit(&self.prompt(), last)? {
                    Some(text) => self.replace(&text)?,
                    None => Next::Line,
                };
            }
            if let Next::Confirm { question, file } = next {
                let confirmed = input.confirm(&question)?;
                next = match confirmed {
                    Confirmed::Yes => file.write(self),
                    Confirmed::No | Confirmed::Other(_) => {
                        colours::note("[nothing was written]");
                        Next::Line
                    }
                };
                if let Confirmed::Other(line) = confirmed {
                    waiting = Some(Entry::Line(line));
                }
            }
            match next {
                Next::Failed => failed += 1,
                Next::Exit => return Ok(failed),
                _ => {}
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
            &mut dyn FnMut(usize, Shown) -> bool,
        ) -> Result<Reply>,
    ) -> Result<Next> {
        // A Ctrl-C from before the message was typed has been handled already.
        if self.terminal {
            interrupt::reset();
        }
        let mut bar = None;
        let mut written = Ok(());
        let mut wrap = Wrap::for_stdout();
        // Whether reasoning was shown last.
        let mut thought = false;
        let reply = generate(&mut self.conversation, &mut |new_tokens, piece| {
            match piece {
                Shown::Progress(done) => bar
                    .get_or_insert_with(|| output::progress("prompt", new_tokens))
                    .set_position(done as u64),
                Shown::Reasoning(text) => {
                    if let Some(bar) = bar.take() {
                        bar.finish_and_clear();
                    }
                    thought = true;
                    written = colours::reasoning(&wrap.push(&text));
                }
                Shown::Text(text) => {
                    if let Some(bar) = bar.take() {
                        bar.finish_and_clear();
                    }
                    if !text.is_empty() && std::mem::take(&mut thought) {
                        written = colours::reasoning(
                            &(std::mem::replace(&mut wrap, Wrap::for_stdout()).finish() + "\n\n"),
                        );
                    }
                    if written.is_ok() {
                        written = colours::answer(&wrap.push(&text));
                    }
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
                colours::answer(&wrap.finish())?;
                output::text("\n")?;
                let cut = match answer.finish {
                    FinishReason::Length if output::is_quiet() => None,
                    FinishReason::Length => Some(format!(
                        "[the answer was cut after {} (--predict); /set predict N changes the limit]",
                        output::tokens(answer.timings.generated_tokens)
                    )),
                    FinishReason::Context => {
                        Some(format!("[the answer was cut: the context is full; {full}]"))
                    }
                    FinishReason::Stop | FinishReason::Interrupted | FinishReason::Deadline => None,
                };
                cut.iter().for_each(|cut| colours::note(cut));
                if self.verbose {
                    colours::note(&format!("[{}]", statistics(&answer)));
                    if let Some(stats) = self.conversation.spec_stats() {
                        colours::note(&spec_note(stats));
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
        colours::note(&failed);
        Ok(self.after_interrupt(Next::Failed))
    }

    /// On a terminal, Ctrl-C stops the answer; elsewhere it ends the program, as other signals do.
    fn after_interrupt(&self, next: Next) -> Next {
        match (interrupt::requested(), self.terminal) {
            (false, _) => next,
            (true, false) => Next::Exit,
            (true, true) if interrupt::terminated() => Next::Exit,
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
