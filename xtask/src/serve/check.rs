//! `cargo xtask check-serve`: kvark serve with the unmodified clients of OpenAI, Anthropic and Ollama.

use super::process::ServerProcess;
use super::python;
use crate::shell;
use anyhow::Result;
use clap::Args;

/// Check kvark serve with the unmodified clients of OpenAI, Anthropic and Ollama
#[derive(Args)]
#[command(
    after_help = "Makes a virtual environment under target/serve-venv with the pinned clients (python/clients/requirements.txt), starts \
the built kvark serve on free ports with the test model, and runs python/clients/check_clients.py, check_ollama.py (ollama and langchain-ollama) and python/examples/agent.py; check_hybrid.py beside them talks to a tiny \
model with recurrent layers. \
--long also runs Schemathesis against /openapi.json (python/clients/requirements-long.txt), and the page's tests in Chromium \
(crates/server/page/tests; they need npm and Debian's chromium).

Examples:
  cargo xtask check-serve
  cargo xtask check-serve --long"
)]
pub(crate) struct CheckServe {
    /// Also send generated requests for every path of /openapi.json, and test the page in Chromium
    #[arg(long)]
    long: bool,
    /// Also run frameworks over these clients and lm-eval (check_frameworks.py, check_lm_eval.py; some 1 GB of packages)
    #[arg(long)]
    frameworks: bool,
    /// Generated requests for each path and method
    #[arg(long, value_name = "N", default_value_t = 50, requires = "long")]
    examples: u32,
}

const KEY: &str = "check-serve-key";

impl CheckServe {
    pub(crate) fn execute(self) -> Result<()> {
        let python = python("requirements.txt")?;
        let folder = shell::target().join("check-serve");
        let context = ["--ctx-size", "2048"];
        let open = ServerProcess::start(&folder, "open", &context)?;
        let flags = [&context[..], &["--api-key", KEY]].concat();
        let keyed = ServerProcess::start(&folder, "keyed", &flags)?;
        let mut clients = shell::command(&python);
        clients.arg("python/clients/check_clients.py");
        shell::run(clients.args([&open.address, &keyed.address, KEY]))?;
        let mut ollama = shell::command(&python);
        ollama.arg("python/clients/check_ollama.py");
        shell::run(ollama.arg(&open.address))?;
        if self.frameworks {
            let list = "requirements-frameworks.txt";
            let mut frameworks = shell::command(super::python_in("frameworks-venv", list)?);
            frameworks.arg("python/clients/check_frameworks.py");
            shell::run(frameworks.arg(&open.address))?;
            let list = "requirements-lm-eval.txt";
            let mut evaluation = shell::command(super::python_in("lm-eval-venv", list)?);
            evaluation.arg("python/clients/check_lm_eval.py");
            shell::run(evaluation.arg(&open.address))?;
        }
        let mut agent = shell::command(&python);
        shell::run(agent.args(["python/examples/agent.py", &open.address]))?;
        drop(keyed);
        let model = shell::root().join("crates/server/tests/fixtures/hybrid_chat.gguf");
        let hybrid = ServerProcess::start_with(&folder, "hybrid", &model, &[])?;
        let mut chats = shell::command(&python);
        shell::run(chats.args(["python/clients/check_hybrid.py", &hybrid.address]))?;
        drop(hybrid);
        if self.long {
            page_tests(&open)?;
            drop(open);
            // A generated request may ask for an answer without an end: a short one is as good.
            let short = ["--ctx-size", "512", "--timeout", "30"];
            let server = ServerProcess::start(&folder, "generated", &short)?;
            self.generated_requests(&server)?;
        }
        Ok(())
    }

    /// Runs Schemathesis: no request may give a server error or an answer that the document does not describe.
    fn generated_requests(&self, server: &ServerProcess) -> Result<()> {
        let python = super::python("requirements-long.txt")?;
        let mut tests = shell::command(python.with_file_name("schemathesis"));
        tests
            .arg("run")
            .arg(format!("{}/openapi.json", server.address));
        // The events never end.
        tests.args(["--exclude-path", "/v1/kvark/events"]);
        // A generated name could be one of the catalogue, or of a repository of the hub.
        tests.args(["--exclude-path", "/api/pull"]);
        tests.args(["--max-examples", &self.examples.to_string()]);
        tests.args(["--seed", "1", "--workers", "2", "--request-timeout", "120"]);
        tests.args([
            "--checks",
            "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
        ]);
        tests.args(["--generation-database", "none", "--no-color"]);
        shell::run(&mut tests)?;
        let health = shell::output(shell::command("curl").args([
            "--fail",
            "--silent",
            &format!("{}/health", server.address),
        ]))?;
        eprintln!("after the generated requests: {health}");
        Ok(())
    }
}

/// Runs the page's tests in headless Chromium.
fn page_tests(server: &ServerProcess) -> Result<()> {
    let folder = shell::root().join("crates/server/page/tests");
    let npm = |task: &str| {
        let mut command = shell::command("npm");
        command.arg(task).current_dir(&folder);
        command
    };
    shell::run(&mut npm("ci"))?;
    shell::run(npm("test").env("KVARK_ADDRESS", &server.address))
}
