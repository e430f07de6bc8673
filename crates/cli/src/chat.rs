//! `kvark chat`: a conversation in the terminal.

mod conversation;
mod input;
mod map;

use crate::args::{EngineArgs, ModelArgs, SamplingArgs, ShiftArgs};
use crate::run::predict;
use crate::{interrupt, output};
use anyhow::{Result, bail};
use clap::Args;
use conversation::{Branch, Conversation, Reply};
use input::Input;
use kvark::{Branches, Cpu, Finish, GenerateOptions, Message, Piece, Sampler};
use std::path::{Path, PathBuf};

const HELP: &str = "/fork [NAME]   begin a branch with all that was said, and go on in it
/branches      list the branches
/switch NAME   go on in another branch
/rewind [N]    forget the last N turns of this branch, or the last one
/keep          forget all branches but this one
/drop NAME     forget another branch
/cache         show which cells of the cache the branches hold
/save FILE     write this branch to a file
/load FILE     go on from a saved branch, in the place of this one
/clear         forget all turns of this branch
/help          this list
/exit          leave, as Ctrl-D does
Ctrl-C stops an answer; what was said so far stays in the conversation.";

/// Talk to a model
#[derive(Args)]
#[command(after_help = "In the conversation:
  /fork [NAME]   begin a branch with all that was said, and go on in it
  /branches      list the branches
  /switch NAME   go on in another branch
  /rewind [N]    forget the last N turns of this branch, or the last one
  /keep          forget all branches but this one
  /drop NAME     forget another branch
  /cache         show which cells of the cache the branches hold
  /save FILE     write this branch to a file
  /load FILE     go on from a saved branch, in the place of this one
  /clear         forget all turns of this branch
  /help          this list
  /exit          leave, as Ctrl-D does
  Ctrl-C         stop the answer, or clear the line; twice at the prompt to leave

Lines piped into it are messages; only answers are written to stdout.

Examples:
  kvark chat
  kvark chat model.gguf --system \"Answer in one sentence.\" -p \"Why is the sky blue?\"
  printf 'Hello!\\nAnd in French?\\n' | kvark chat --temp 0")]
pub(crate) struct Chat {
    #[command(flatten)]
    model: ModelArgs,
    /// Instructions that come before the conversation
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<String>,
    /// The first message
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Go on from the conversation in FILE, if it is there, and save to it in the end
    #[arg(long, value_name = "FILE")]
    prompt_cache: Option<PathBuf>,
    /// Most tokens of an answer; -1 until the model ends it or the context is full
    #[arg(short = 'n', long, value_name = "N", default_value_t = -1, allow_hyphen_values = true, value_parser = predict)]
    predict: i64,
    /// End answers at this string; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,
    #[command(flatten)]
    shift: ShiftArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// Whether the conversation goes on.
#[derive(PartialEq)]
enum Next {
    Line,
    Exit,
}

impl Chat {
    pub(crate) fn execute(self) -> Result<()> {
        let model = self.model.open(&self.engine)?;
        let mut cells = Branches::new(&model, &Cpu::new()?, &self.engine.policy()?)?;
        model.tokenizer()?;
        model.template()?;
        let system = self
            .system
            .as_ref()
            .map(|text| Message::new("system", text));
        let keep = self.shift.keep(&model, Some(system.as_slice()))?;
        if let Some(keep) = keep {
            cells.allow_shifts(keep)?;
        }
        let options = GenerateOptions {
            max_tokens: usize::try_from(self.predict).ok(),
            stop: self.stop.clone(),
            ignore_eos: false,
        };
        let sampler = Sampler::new(self.sampling.options(&model));
        let mut conversation = Conversation::new(&model, cells, sampler, options, system, keep);
        if let Some(file) = self.prompt_cache.as_deref().filter(|file| file.exists()) {
            conversation.warm(file)?;
        }
        let mut input = Input::open();
        if input.is_terminal() {
            let name = model.artifact().name.as_deref().unwrap_or("the model");
            let room = conversation.cells().capacity()?;
            output::note(&format!(
                "{name}, context of {room} tokens; /help lists the commands"
            ));
        }
        if let Some(text) = &self.prompt {
            take(&mut conversation, text, input.is_terminal())?;
        }
        while let Some(line) = input.line()? {
            if take(&mut conversation, &line, input.is_terminal())? == Next::Exit {
                break;
            }
        }
        if let Some(file) = &self.prompt_cache {
            conversation.save(file)?;
        }
        Ok(())
    }
}

/// Acts on one line: a command or a message.
fn take(conversation: &mut Conversation<'_>, line: &str, terminal: bool) -> Result<Next> {
    let line = line.trim();
    if let Some(command) = line.strip_prefix('/') {
        return command_line(conversation, command);
    }
    if !line.is_empty() {
        say(conversation, line, terminal)?;
    }
    Ok(Next::Line)
}

fn command_line(conversation: &mut Conversation<'_>, line: &str) -> Result<Next> {
    // A file's name may have spaces.
    let file = line.split_once(char::is_whitespace);
    match file.map(|(name, file)| (name, Path::new(file.trim()))) {
        Some(("save", file)) => {
            let saved = conversation.save(file);
            output::note(&told(
                saved.map(|tokens| format!("[{tokens} tokens saved]")),
            ));
            return Ok(Next::Line);
        }
        Some(("load", file)) => {
            let loaded = conversation.load(file);
            output::note(&told(
                loaded.map(|turns| format!("[turns loaded: {turns}]")),
            ));
            return Ok(Next::Line);
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
            conversation.clear();
            "[the conversation is forgotten]".to_owned()
        }
        ("rewind", argument) => rewind(conversation, argument.unwrap_or("1")),
        ("fork", name) => told(
            conversation
                .fork(name)
                .map(|name| format!("[now in {name}]")),
        ),
        ("switch", Some(name)) => told(
            conversation
                .switch(name)
                .map(|()| format!("[now in {name}]")),
        ),
        ("drop", Some(name)) => told(
            conversation
                .drop_branch(name)
                .map(|()| format!("[{name} is forgotten]")),
        ),
        ("keep", None) => told(
            conversation
                .keep()
                .map(|n| format!("[branches forgotten: {n}]")),
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

/// What a command has to say, be it why it did nothing.
fn told(result: Result<String>) -> String {
    result.unwrap_or_else(|error| error.to_string())
}

fn rewind(conversation: &mut Conversation<'_>, turns: &str) -> String {
    match turns.parse().map(|n| (n, conversation.rewind(n))) {
        Ok((_, Ok(left))) => format!("[turns left: {left}]"),
        Ok((n, Err(turns))) => format!("cannot forget {n} of {turns} turns"),
        Err(_) => "/rewind takes a number of turns, such as /rewind 2".to_owned(),
    }
}

fn branches(conversation: &Conversation<'_>) -> String {
    let (list, current) = conversation.branches();
    let line = |(i, branch): (usize, &Branch)| {
        let mark = if i == current { '*' } else { ' ' };
        let tokens = conversation.cells().tokens(branch.id).len();
        format!(
            "{mark} {:<12} {} turns, {tokens} tokens",
            branch.name,
            conversation.turns(branch)
        )
    };
    list.iter()
        .enumerate()
        .map(line)
        .collect::<Vec<_>>()
        .join("\n")
}

/// Says one message and shows the answer.
fn say(conversation: &mut Conversation<'_>, text: &str, terminal: bool) -> Result<()> {
    interrupt::reset();
    let mut bar = None;
    let mut written = Ok(());
    let reply = conversation.say(text, |new_tokens, piece| {
        match piece {
            Piece::Prompt(done) => bar
                .get_or_insert_with(|| output::progress("prompt", new_tokens))
                .set_position(done as u64),
            Piece::Text(text) => {
                if let Some(bar) = bar.take() {
                    bar.finish_and_clear();
                }
                written = output::text(text);
            }
        }
        !interrupt::asked() && written.is_ok()
    });
    if let Some(bar) = bar.take() {
        bar.finish_and_clear();
    }
    written?;
    match reply? {
        Reply::Answered(finish) => {
            output::text("\n")?;
            if finish == Finish::Context {
                output::note(
                    "[the context is full; make room with /rewind N, /drop or /clear, or begin with --context-shift]",
                );
            }
        }
        Reply::NoRoom { needed, room } => output::note(&format!(
            "[the context is full: this message takes {needed} more tokens, and there is room for {room}; make room with \
             /rewind N, /drop or /clear, or begin with --context-shift]"
        )),
        Reply::Refused(error) => output::note(&format!("[{error}]")),
        Reply::Stopped => output::note("[stopped before the answer began]"),
    }
    if interrupt::asked() {
        if !terminal {
            bail!("interrupted");
        }
        interrupt::reset();
    }
    Ok(())
}
