//! The `kvark` command.
#![forbid(unsafe_code)]

/// An allocation that fails is one line and exit code 1, not an abort.
#[global_allocator]
static ALLOCATOR: kvark::memory::ExitingAllocator = kvark::memory::ExitingAllocator;

fn main() -> std::process::ExitCode {
    kvark_cli::main(std::env::args_os()).into()
}
