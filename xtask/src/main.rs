//! `cargo xtask`: the project's own tasks.
#![forbid(unsafe_code)]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line talks to its terminal"
)]

mod cuda;
#[cfg(test)]
mod documents;
mod fuzz;
mod layers;
mod model;
mod mutants;
mod onnx_node;
mod peers;
mod serve;
mod shell;
mod soak;
mod test;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// kvark's own tasks.
///
/// They run from anywhere in the tree and make what they need under target/. Environment: KVARK_TEST_MODEL names the
/// model of the tests and comparisons, and KVARK_PEERS_VENV a Python virtual environment that already has the peers.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    Test(test::Test),
    Layers(layers::Layers),
    Fuzz(fuzz::Fuzz),
    Mutants(mutants::Mutants),
    BenchPeers(peers::bench::BenchPeers),
    ScorePeers(peers::score::ScorePeers),
    BenchTorch(peers::torch::BenchTorch),
    CheckExport(peers::export::CheckExport),
    BenchOnnx(peers::onnx::BenchOnnx),
    CheckOnnx(peers::check_onnx::CheckOnnx),
    CheckEmbed(peers::embed::CheckEmbed),
    BenchServe(serve::bench::BenchServe),
    BenchAgents(serve::agents::BenchAgents),
    CheckServe(serve::check::CheckServe),
    CheckLlamaTests(serve::llama_tests::CheckLlamaTests),
    SoakServe(serve::soak::SoakServe),
    OnnxNode(onnx_node::OnnxNode),
    Soak(soak::Soak),
    BenchSpec(peers::spec::BenchSpec),
    CheckCuda(cuda::CheckCuda),
    TestCuda(cuda::TestCuda),
}

fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::Test(task) => task.execute(),
        Task::Layers(task) => task.execute(),
        Task::Fuzz(task) => task.execute(),
        Task::Mutants(task) => task.execute(),
        Task::BenchPeers(task) => task.execute(),
        Task::ScorePeers(task) => task.execute(),
        Task::BenchTorch(task) => task.execute(),
        Task::CheckExport(task) => task.execute(),
        Task::BenchOnnx(task) => task.execute(),
        Task::CheckOnnx(task) => task.execute(),
        Task::CheckEmbed(task) => task.execute(),
        Task::BenchServe(task) => task.execute(),
        Task::BenchAgents(task) => task.execute(),
        Task::CheckServe(task) => task.execute(),
        Task::CheckLlamaTests(task) => task.execute(),
        Task::SoakServe(task) => task.execute(),
        Task::OnnxNode(task) => task.execute(),
        Task::Soak(task) => task.execute(),
        Task::BenchSpec(task) => task.execute(),
        Task::CheckCuda(task) => task.execute(),
        Task::TestCuda(task) => task.execute(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
