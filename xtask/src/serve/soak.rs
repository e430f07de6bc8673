//! `cargo xtask soak-serve`: mixed load from many clients, with every greedy answer compared.

use super::process::ServerProcess;
use super::python;
use crate::shell;
use anyhow::Result;
use clap::Args;
use std::process::Command;

/// Load kvark serve with mixed clients, and check answers, cells, handles and memory
#[derive(Args)]
#[command(
    after_help = "Clients send chats, streams, completions, forks of conversations and wrong requests; they cancel and they disconnect \
in the middle. Every greedy answer is compared with that of a second server that runs one request at a time and reuses nothing. At the \
end no request may run, clearing the cache must free all cells, and file handles and memory must be as after the warm-up.

With --generated, clients send random schemas, grammars and calls of conversations instead, and every conversation is compared with a \
model of what it must hold.

Examples:
  cargo xtask soak-serve
  cargo xtask soak-serve --minutes 3 --clients 32
  cargo xtask soak-serve --generated --minutes 30 --clients 4"
)]
pub(crate) struct SoakServe {
    /// Time of the load
    #[arg(long, value_name = "N", default_value_t = 10.0)]
    minutes: f64,
    /// Clients at once
    #[arg(long, value_name = "N", default_value_t = 32)]
    clients: u32,
    /// Seed of the random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Generated schemas, grammars and calls of conversations
    #[arg(long)]
    generated: bool,
}

impl SoakServe {
    pub(crate) fn execute(self) -> Result<()> {
        let folder = shell::target().join("soak-serve");
        let context = ["--ctx-size", "1024"];
        if self.generated {
            let server = ServerProcess::start(&folder, "generated", &context)?;
            let mut soak = shell::command("python3");
            soak.arg("python/clients/generated.py");
            return self.run(soak, &server);
        }
        let python = python("requirements.txt")?;
        let alone = [&context[..], &["--parallel", "1"]].concat();
        let alone = ServerProcess::start(&folder, "alone", &alone)?;
        let flags = [&context[..], &["--parallel", "8", "--queue", "24"]].concat();
        let loaded = ServerProcess::start(&folder, "loaded", &flags)?;
        let mut soak = shell::command(python);
        soak.arg("python/clients/soak.py");
        soak.args(["--alone", &alone.address]);
        self.run(soak, &loaded)
    }

    /// Runs a script against a server.
    fn run(&self, mut script: Command, server: &ServerProcess) -> Result<()> {
        script.args(["--address", &server.address]);
        script.args(["--pid", &server.pid().to_string()]);
        script.args(["--minutes", &self.minutes.to_string()]);
        script.args(["--clients", &self.clients.to_string()]);
        shell::run(script.args(["--seed", &self.seed.to_string()]))
    }
}
