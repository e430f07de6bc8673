//! The `kvark` command, as a library: the program and the Python package call [`main`].
#![forbid(unsafe_code)]

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
mod list;
mod man;
mod messages;
mod npy;
mod output;
mod plan;
mod prompt;
mod run;
mod sampling;
mod score;
mod serve;
mod single_dash;
mod spec_trace;
mod speculation;
mod text_input;
mod tokenize;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;

/// Run language models on your own machine.
///
/// MODEL is a path (.gguf, .pt2, .pte, .onnx, or a folder with genai_config.json), a catalogue name (see `kvark list`),
/// hf:OWNER/REPO[:QUANT] for a model of the Hugging Face hub, ollama:NAME for one of Ollama on this machine, or an https
/// address of a GGUF file.
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
  kvark embed encoder.gguf \"a cat\" \"a kitten\"    texts as vectors
  kvark run -hf OWNER/REPO:Q8_0 -p \"Hello\"         a model of the Hugging Face hub
  kvark list                                      models that are there or can be had by name
  kvark inspect model.gguf                        what is in a file
  kvark plan model.gguf -c 32768                  the memory that a run will take
  kvark config                                    defaults, and where they come from

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
    Serve(serve::Serve),
    Score(score::Score),
    Embed(embed::Embed),
    Bench(bench::Bench),
    Exec(exec::Exec),
    Export(export::Export),
    EmitC(emit_c::EmitC),
    Plan(plan::Plan),
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
    // As elsewhere, the last one of a repeated flag counts; lists grow.
    Cli::command().mut_subcommands(|command| command.mut_args(numbers).args_override_self(true))
}

/// Runs the command with these arguments, of which the first is the program's name. Returns the exit code. Wrong usage and
/// help end the process.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    interrupt::install(output::note);
    let arguments = single_dash::spell_out(arguments);
    let code = match config::parse(command(), &arguments).and_then(run) {
        Ok(()) => 0,
        Err(error) if output::is_closed_pipe(&error) => 0,
        Err(error) => {
            output::error(&error);
            1
        }
    };
    interrupt::exit_code().unwrap_or(code)
}

/// Runs the command that was parsed.
fn run(matches: clap::ArgMatches) -> anyhow::Result<()> {
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match cli.command {
        Command::Run(command) => command.execute(),
        Command::Chat(command) => command.execute(),
        Command::Serve(command) => command.execute(),
        Command::Score(command) => command.execute(),
        Command::Embed(command) => command.execute(),
        Command::Bench(command) => command.execute(),
        Command::Exec(command) => command.execute(),
        Command::Export(command) => command.execute(),
        Command::EmitC(command) => command.execute(),
        Command::Plan(command) => command.execute(),
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
