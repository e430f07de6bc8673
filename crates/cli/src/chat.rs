//! `kvark chat`: a conversation in the terminal.

mod conversation;
mod input;
mod map;

use crate::args::{EngineArgs, ModelArgs, ShiftArgs, TemplateArgs};
use crate::prompt::Conversations;
use crate::run::predict;
use crate::sampling::SamplingArgs;
use crate::{interrupt, output};
use anyhow::{Context, Result, bail};
use clap::Args;
pub(crate) use conversation::saved_turns;
use conversation::{Branch, Conversation, Reply};
use input::Input;
use kvark::BatchRunner;
use kvark::generate::{FinishReason, GenerateEvent, GenerateOptions, Sampler};
use kvark::snapshot::Snapshot;
use kvark::text::Message;
use std::path::{Path, PathBuf};

const HELP: &str = "/fork [NAME]   start a branch with the history so far, and switch to it
/branches      list the branches
/switch NAME   switch to another branch
/rewind [N]    remove the last N turns of this branch (default 1)
/keep          delete all other branches
/drop NAME     delete another branch
/cache         show which cells of the cache the branches hold
/save FILE     save this branch to a file
/load FILE     replace this branch by a saved one
/clear         remove all turns of this branch
/help          this list
/exit          leave, as Ctrl-D does
Ctrl-C stops an answer; the text so far stays in the conversation.";

/// Talk to a model
#[derive(Args)]
#[command(after_help = "In the conversation:
  /fork [NAME]   start a branch with the history so far, and switch to it
  /branches      list the branches
  /switch NAME   switch to another branch
  /rewind [N]    remove the last N turns of this branch (default 1)
  /keep          delete all other branches
  /drop NAME     delete another branch
  /cache         show which cells of the cache the branches hold
  /save FILE     save this branch to a file
  /load FILE     replace this branch by a saved one
  /clear         remove all turns of this branch
  /help          this list
  /exit          leave, as Ctrl-D does
  Ctrl-C         stop the answer, or clear the line; twice at the prompt to leave

Lines piped to stdin are messages; only answers are written to stdout. The exit code is 1 when a message was not answered, \
or a file not saved or loaded.

Examples:
  kvark chat
  kvark chat model.gguf --system \"Answer in one sentence.\" -p \"Why is the sky blue?\"
  printf 'Hello!\\nAnd in French?\\n' | kvark chat --temp 0")]
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
    #[command(flatten)]
    template: TemplateArgs,
    #[command(flatten)]
    shift: ShiftArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// Whether the chat reads another line or exits.
#[derive(PartialEq)]
enum Next {
    Line,
    /// Read the next line; this one failed (a message was not answered, or a file not saved or loaded).
    Failed,
    Exit,
}

impl Chat {
    pub(crate) fn execute(self) -> Result<()> {
        let _listening = interrupt::listen();
        if let Some(file) = &self.prompt_cache {
            Snapshot::check_writable(file).context("--prompt-cache")?;
        }
        self.engine.check_one_mode()?;
        let model = self.model.open(&self.engine)?;
        let backend = self.engine.device.backend()?;
        let cells = BatchRunner::new(&model, &*backend, &self.engine.runner_options()?)?;
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
        let mut failed = 0;
        let mut first = self.prompt.clone();
        loop {
            let line = match first.take() {
                Some(text) => Some(Ok(text)),
                None => input.line()?,
            };
            let Some(line) = line else {
                break;
            };
            let next = match line {
                Ok(line) => take(&mut conversation, &line, input.is_terminal(), &self.shift)?,
                Err(why) => {
                    output::note(&format!("[{why}]"));
                    Next::Failed
                }
            };
            failed += usize::from(next == Next::Failed);
            if next == Next::Exit {
                break;
            }
        }
        if let Some(file) = &self.prompt_cache {
            conversation.save(file).context("cannot save")?;
        }
        if failed > 0 && !input.is_terminal() && !interrupt::requested() {
            bail!("{failed} of the lines failed (see the messages above)");
        }
        Ok(())
    }
}

/// Acts on one line: a command or a message.
fn take(
    conversation: &mut Conversation<'_>,
    line: &str,
    terminal: bool,
    shift: &ShiftArgs,
) -> Result<Next> {
    let line = line.trim();
    if let Some(command) = line.strip_prefix('/') {
        return command_line(conversation, command);
    }
    match line.is_empty() {
        true => Ok(Next::Line),
        false => say(conversation, line, terminal, shift),
    }
}

fn command_line(conversation: &mut Conversation<'_>, line: &str) -> Result<Next> {
    // A file's name may have spaces.
    let file = line.split_once(char::is_whitespace);
    match file.map(|(name, file)| (name, Path::new(file.trim()))) {
        Some(("save", file)) => {
            let saved = conversation.save(file);
            let saved = saved.map(|tokens| format!("[{} saved]", output::tokens(tokens)));
            return Ok(with_file(saved));
        }
        Some(("load", file)) => {
            let loaded = conversation.load(file);
            return Ok(with_file(
                loaded.map(|turns| format!("[turns loaded: {turns}]")),
            ));
        }
        _ => {}
    }
    let mut words = line.split_whitespace();
    let (name, argument, more) = (words.next().unwrap_or_default(), words.next(), words.next());
    if more.is_some() {
        output::note(&format!(
            "/{name} takes at most one word after it; /help lists the commands"
        ));
        return Ok(Next::Line);
    }
    let said = match (name, argument) {
        ("exit" | "quit" | "bye", None) => return Ok(Next::Exit),
        ("help", None) => HELP.to_owned(),
        ("clear", None) => {
            conversation.clear()?;
            "[the conversation was cleared]".to_owned()
        }
        ("rewind", argument) => rewind(conversation, argument.unwrap_or("1"))?,
        ("fork", name) => message_of(
            conversation
                .fork(name)
                .map(|name| format!("[now in {name}]")),
        ),
        ("switch", Some(name)) => message_of(
            conversation
                .switch(name)
                .map(|()| format!("[now in {name}]")),
        ),
        ("drop", Some(name)) => message_of(
            conversation
                .drop_branch(name)
                .map(|()| format!("[{name} was dropped]")),
        ),
        ("keep", None) => message_of(
            conversation
                .keep()
                .map(|n| format!("[branches dropped: {n}]")),
        ),
        ("branches", None) => branches(conversation),
        ("cache", None) => map::draw(conversation)?,
        ("switch" | "drop", None) => {
            format!("/{name} takes the name of a branch; /branches lists them")
        }
        ("save" | "load", None) => format!("/{name} takes the name of a file"),
        ("exit" | "quit" | "bye" | "help" | "clear" | "keep" | "branches" | "cache", Some(_)) => {
            format!("/{name} takes nothing after it")
        }
        _ => format!("unknown command /{name}; /help lists the commands"),
    };
    output::note(&said);
    Ok(Next::Line)
}

/// Prints the result of `/save` or `/load`.
fn with_file(result: Result<String>) -> Next {
    let next = match result {
        Ok(_) => Next::Line,
        Err(_) => Next::Failed,
    };
    output::note(&message_of(result));
    next
}

/// Message for the result of a command, or its error.
fn message_of(result: Result<String>) -> String {
    result.unwrap_or_else(|error| error.to_string())
}

fn rewind(conversation: &mut Conversation<'_>, turns: &str) -> Result<String> {
    let Ok(n) = turns.parse() else {
        return Ok("/rewind takes a number of turns, such as /rewind 2".to_owned());
    };
    Ok(match conversation.rewind(n)? {
        Ok(left) => format!("[turns left: {left}]"),
        Err(turns) => format!("cannot rewind by {n}; turns so far: {turns}"),
    })
}

fn branches(conversation: &Conversation<'_>) -> String {
    let (list, current) = conversation.branches();
    let line = |(i, branch): (usize, &Branch)| {
        let mark = if i == current { '*' } else { ' ' };
        let tokens = conversation.cells().tokens(branch.id).len();
        format!(
            "{mark} {:<12} {} turns, {}",
            branch.name,
            conversation.turns(branch),
            output::tokens(tokens)
        )
    };
    list.iter()
        .enumerate()
        .map(line)
        .collect::<Vec<_>>()
        .join("\n")
}

/// Sends one message and prints the answer.
fn say(
    conversation: &mut Conversation<'_>,
    text: &str,
    terminal: bool,
    shift: &ShiftArgs,
) -> Result<Next> {
    // A Ctrl-C from before the message was typed has been handled already.
    if terminal {
        interrupt::reset();
    }
    let full = match shift.context_shift {
        true => {
            "free some with /rewind N, /drop or /clear, or start with a smaller --keep or a larger --ctx-size"
        }
        false => "free some with /rewind N, /drop or /clear, or start with --context-shift",
    };
    let mut bar = None;
    let mut written = Ok(());
    let reply = conversation.say(text, |new_tokens, piece| {
        match piece {
            GenerateEvent::PromptProgress(done) => bar
                .get_or_insert_with(|| output::progress("prompt", new_tokens))
                .set_position(done as u64),
            GenerateEvent::Text(text) => {
                if let Some(bar) = bar.take() {
                    bar.finish_and_clear();
                }
                written = output::text(text);
            }
        }
        !interrupt::requested() && written.is_ok()
    });
    if let Some(bar) = bar.take() {
        bar.finish_and_clear();
    }
    written?;
    let failed = match reply? {
        Reply::Answered(finish) => {
            output::text("\n")?;
            if finish == FinishReason::Context {
                output::note(&format!("[the context is full; {full}]"));
            }
            return Ok(after_interrupt(terminal, Next::Line));
        }
        Reply::NoRoom { needed, room } => format!(
            "[the context is full: this message needs {needed} more tokens, and {room} are free; {full}]"
        ),
        Reply::Refused(error) => format!("[{error}]"),
        Reply::Stopped => "[stopped before the answer began]".to_owned(),
    };
    output::note(&failed);
    Ok(after_interrupt(terminal, Next::Failed))
}

/// On a terminal, Ctrl-C stops the answer; elsewhere it ends the program.
fn after_interrupt(terminal: bool, next: Next) -> Next {
    match (interrupt::requested(), terminal) {
        (false, _) => next,
        (true, false) => Next::Exit,
        (true, true) => {
            interrupt::reset();
            Next::Line
        }
    }
}
