//! The `kvark` command, as a library: the program and the Python package call [`main`].
#![forbid(unsafe_code)]

mod agents_bench;
mod args;
mod bench;
mod catalogue;
mod chat;
mod completions;
mod config;
mod default_head;
mod device;
mod embed;
mod emit_c;
mod exec;
mod export;
mod inspect;
mod interrupt;
mod launch;
mod list;
mod man;
mod messages;
mod named_value;
mod nearest;
mod npy;
mod output;
mod output_format;
mod plan;
mod positional;
mod prefix;
mod prompt;
mod ps;
mod quantize;
mod run;
mod sampling;
mod score;
mod serve;
mod show;
mod single_dash;
mod spec_trace;
mod speculation;
mod text_input;
mod tokenize;
mod tune_kv;

use anyhow::anyhow;
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser, Subcommand};
use kvark::{RuntimeError, RuntimeErrorKind};
use std::ffi::OsString;

/// Run language models on your own machine.
///
/// MODEL is a path (.gguf, .pt2, .pte, .onnx, or a folder with config.json or genai_config.json), a catalogue name (see
/// `kvark list`), hf:OWNER/REPO[:QUANT] for a model of the Hugging Face hub, ollama:NAME for one of Ollama on this machine,
/// or an https address of a GGUF file.
/// The default is SmolLM2-135M-Instruct, which is downloaded on first use.
#[derive(Parser)]
#[command(
    name = "kvark",
    version,
    arg_required_else_help = true,
    after_help = "Examples:
  kvark chat                                      talk to the default model
  kvark run \"The capital of France is\" -n 16      complete a prompt
  kvark run model.gguf -f prompt.txt --json       machine-readable output
  kvark embed encoder.gguf \"a cat\" \"a kitten\"     texts as vectors
  kvark run -hf OWNER/REPO:Q8_0 -p \"Hello\"        a model of Hugging Face's hub
  kvark list                                      models that have a name
  kvark show gemma3                               what a model is
  kvark inspect model.gguf                        what is in a file
  kvark plan model.gguf -c 32768                  the memory of a run
  kvark config                                    defaults and their sources

kvark COMMAND --help tells more about a command."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(Box<run::Run>),
    Chat(Box<chat::Chat>),
    Serve(Box<serve::Serve>),
    Ps(ps::Ps),
    Launch(launch::Launch),
    Prefix(prefix::Prefix),
    Score(score::Score),
    TuneKv(tune_kv::TuneKv),
    Embed(embed::Embed),
    Bench(bench::Bench),
    AgentsBench(Box<agents_bench::AgentsBench>),
    Exec(exec::Exec),
    Export(export::Export),
    EmitC(emit_c::EmitC),
    Quantize(quantize::Quantize),
    Convert(quantize::Convert),
    Plan(plan::Plan),
    Show(show::Show),
    Inspect(inspect::Inspect),
    Tokenize(tokenize::Tokenize),
    Detokenize(tokenize::Detokenize),
    Pull(catalogue::Pull),
    List(list::List),
    Rm(catalogue::Rm),
    Config(config::Config),
    Completions(completions::Completions),
    Man(man::Man),
}

/// The command line. A negative number after a flag is parsed as that flag's value and checked by its own parser.
fn command() -> clap::Command {
    let numbers = |arg: clap::Arg| match arg.is_positional() || !arg.get_action().takes_values() {
        true => arg,
        false => arg.allow_negative_numbers(true),
    };
    // As elsewhere, the last one of a repeated flag counts, and lists grow. Only one of two models would be used: an error.
    let last_counts = |arg: clap::Arg| match arg.get_id().as_str() {
        "model" | "hf_repo" => arg,
        _ if arg.is_positional() || matches!(arg.get_action(), ArgAction::Append) => arg,
        id => {
            let id = clap::Id::from(id.to_owned());
            arg.overrides_with(id)
        }
    };
    Cli::command().mut_subcommands(|command| command.mut_args(numbers).mut_args(last_counts))
}

/// Exit code of wrong usage, as clap's.
const WRONG_USAGE: u8 = 2;

/// Runs the command with these arguments, of which the first is the program's name. Returns the exit code. Wrong usage and
/// help end the process.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    interrupt::install(output::note);
    let arguments = match single_dash::spell_out(arguments) {
        Ok(arguments) => arguments,
        Err(message) => {
            output::note(&format!("error: {message}"));
            return WRONG_USAGE;
        }
    };
    let mut arguments = arguments;
    // A user who names nothing to do wants to talk.
    if arguments.len() == 1 && output::is_interactive() {
        arguments.push("chat".into());
    }
    let given = arguments.get(1).and_then(|word| word.to_str());
    if let Some(message) = given.and_then(|word| unknown_command(&command(), word)) {
        output::note(&format!("error: {message}"));
        return WRONG_USAGE;
    }
    let code = match execute(&arguments) {
        Ok(()) => 0,
        Err(error) if output::is_closed_pipe(&error) => 0,
        Err(error) => {
            output::error(&advise(error));
            1
        }
    };
    interrupt::exit_code().unwrap_or(code)
}

/// The message about a word in the place of a command, if there is no such command.
fn unknown_command(known: &clap::Command, word: &str) -> Option<String> {
    let names = || known.get_subcommands().map(clap::Command::get_name);
    if word.is_empty()
        || word.starts_with('-')
        || word == "help"
        || names().any(|name| name == word)
    {
        return None;
    }
    let advice = match nearest::nearest(word, names(), (word.chars().count() - 1).min(2)) {
        Some(near) => format!("did you mean kvark {near}?"),
        None => "kvark help lists the commands".to_owned(),
    };
    Some(format!("there is no command {word:?}; {advice}"))
}

/// The arguments of `kvark run` as those of `kvark chat`.
fn as_chat(arguments: &[OsString]) -> Vec<OsString> {
    let mut own = arguments.to_vec();
    if let Some(command) = own.get_mut(1) {
        *command = "chat".into();
    }
    own.retain(|argument| argument != "--chat");
    own
}

/// Adds the flag that helps to an error of the library, which knows no flags.
fn advise(error: anyhow::Error) -> anyhow::Error {
    let kind = error.downcast_ref().map(RuntimeError::kind);
    if let Some(RuntimeErrorKind::PromptTooLong {
        tokens,
        room,
        capacity,
    }) = kind
    {
        // One token more, for the answer.
        let needed = (capacity - room + tokens + 1).next_multiple_of(64);
        return anyhow!("{error}; -c {needed} makes the context large enough");
    }
    error
}

/// Runs the command of the arguments.
fn execute(arguments: &[OsString]) -> anyhow::Result<()> {
    let matches = config::parse(command(), arguments)?;
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match cli.command {
        Command::Run(command) if command.is_chat_without_prompt()? => execute(&as_chat(arguments)),
        Command::Run(command) => command.execute(),
        Command::Chat(command) => command.execute(),
        Command::Serve(command) => command.execute(),
        Command::Ps(command) => command.execute(),
        Command::Launch(command) => command.execute(),
        Command::Prefix(command) => command.execute(),
        Command::Score(command) => command.execute(),
        Command::TuneKv(command) => command.execute(),
        Command::Embed(command) => command.execute(),
        Command::Bench(command) => command.execute(),
        Command::AgentsBench(command) => command.execute(),
        Command::Exec(command) => command.execute(),
        Command::Export(command) => command.execute(),
        Command::EmitC(command) => command.execute(),
        Command::Quantize(command) => command.execute(),
        Command::Convert(command) => command.execute(),
        Command::Plan(command) => command.execute(),
        Command::Show(command) => command.execute(),
        Command::Inspect(command) => command.execute(),
        Command::Tokenize(command) => command.execute(),
        Command::Detokenize(command) => command.execute(),
        Command::Pull(command) => command.execute(),
        Command::List(command) => command.execute(),
        Command::Rm(command) => command.execute(),
        Command::Config(command) => command.execute(),
        Command::Completions(command) => command.execute(),
        Command::Man(command) => command.execute(),
    }
}
