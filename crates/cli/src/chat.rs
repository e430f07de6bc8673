//! `kvark chat`: a conversation in the terminal.

mod conversation;
mod input;

use crate::args::{EngineArgs, ModelArgs, SamplingArgs};
use crate::run::predict;
use crate::{interrupt, output};
use anyhow::{Result, bail};
use clap::Args;
use conversation::{Conversation, Reply};
use input::Input;
use kvark::{Finish, GenerateOptions, Piece, Sampler};

const HELP: &str = "/rewind [N]   forget the last N turns, or the last one
/clear        forget the whole conversation
/help         this list
/exit         leave, as Ctrl-D does
Ctrl-C stops an answer; what was said so far stays in the conversation.";

/// Talk to a model
#[derive(Args)]
#[command(after_help = "In the conversation:
  /rewind [N]   forget the last N turns, or the last one
  /clear        forget the whole conversation
  /help         list the commands
  /exit         leave, as Ctrl-D does
  Ctrl-C        stop the answer, or clear the line; twice at the prompt to leave

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
    /// Most tokens of an answer; -1 until the model ends it or the context is full
    #[arg(short = 'n', long, value_name = "N", default_value_t = -1, allow_hyphen_values = true, value_parser = predict)]
    predict: i64,
    /// End answers at this string; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,
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
        model.tokenizer()?;
        model.template()?;
        let runner = self.engine.runner(&model)?;
        let options = GenerateOptions {
            max_tokens: usize::try_from(self.predict).ok(),
            stop: self.stop.clone(),
            ignore_eos: false,
        };
        let sampler = Sampler::new(self.sampling.options());
        let mut conversation =
            Conversation::new(&model, runner, sampler, options, self.system.clone());
        let mut input = Input::open();
        if input.is_terminal() {
            let name = model.artifact().name.as_deref().unwrap_or("the model");
            let room = conversation.capacity()?;
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
    let mut words = line.split_whitespace();
    let (name, argument, more) = (words.next(), words.next(), words.next());
    match (name.unwrap_or_default(), argument, more) {
        ("exit" | "quit" | "bye", None, _) => return Ok(Next::Exit),
        ("help", None, _) => output::note(HELP),
        ("clear", None, _) => {
            conversation.clear();
            output::note("[the conversation is forgotten]");
        }
        ("rewind", argument, None) => match argument.unwrap_or("1").parse() {
            Ok(n) => match conversation.rewind(n) {
                Ok(left) => output::note(&format!("[turns left: {left}]")),
                Err(turns) => output::note(&format!("cannot forget {n} of {turns} turns")),
            },
            Err(_) => output::note("/rewind takes a number of turns, such as /rewind 2"),
        },
        ("exit" | "quit" | "bye" | "help" | "clear", Some(_), _) => {
            output::note(&format!("/{} takes nothing after it", name.unwrap_or("")));
        }
        ("rewind", ..) => output::note("/rewind takes one number of turns, such as /rewind 2"),
        (name, ..) => output::note(&format!(
            "unknown command /{name}; /help lists the commands"
        )),
    }
    Ok(Next::Line)
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
                output::note("[the context is full; make room with /rewind N or /clear]");
            }
        }
        Reply::NoRoom { needed, capacity } => output::note(&format!(
            "[the context is full: with this message the conversation has {needed} tokens, and there is room for \
             {capacity}; make room with /rewind N or /clear]"
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
