//! The `kvark` command.
#![forbid(unsafe_code)]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line talks to its terminal"
)]

mod args;
mod bench;
mod interrupt;
mod output;
mod run;
mod score;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Run language models on your own machine.
///
/// MODEL is a path to a GGUF file or a name of the catalogue (see `kvark list`); left out, it is
/// SmolLM2-135M-Instruct, which is fetched on first use.
#[derive(Parser)]
#[command(name = "kvark", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Run),
    Score(score::Score),
    Bench(bench::Bench),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    interrupt::install();
    let result = match cli.command {
        Command::Run(command) => command.execute(),
        Command::Score(command) => command.execute(),
        Command::Bench(command) => command.execute(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::error(&error);
            ExitCode::FAILURE
        }
    }
}
