//! The `kvark` command.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    kvark_cli::main(std::env::args_os()).into()
}
