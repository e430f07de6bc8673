//! `kvark launch`: a coding agent or another client, pointed at a running `kvark serve`.

use crate::output;
use crate::ps::ServerArgs;
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde_json::json;
use std::io::Write;
use std::process::Command;

/// Run a coding agent on the models of a running kvark serve
#[derive(Args)]
#[command(
    after_help = "Clients: claude (Claude Code), codex (Codex CLI), opencode, aider, ollama (its own command), and openai (any program \
that reads OPENAI_BASE_URL; only with --print). They are installed apart.

Coding agents send long prompts: Claude Code some 20,000 tokens before your first word. Start the server with room for them, and with a \
place for what leaves its memory:
  kvark serve MODEL -c 65536 --cache-ram 4GiB

Examples:
  kvark launch claude
  kvark launch codex --model coder -- exec \"Explain this folder\"
  kvark launch opencode --print                 the environment, for a shell"
)]
pub(crate) struct Launch {
    /// The client
    client: Client,
    /// Name of a model of the server [default: its first one]
    #[arg(short, long, value_name = "NAME")]
    model: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
    /// Print what to set and to run instead of running it
    #[arg(long)]
    print: bool,
    /// Arguments of the client
    #[arg(last = true, value_name = "ARGS")]
    arguments: Vec<String>,
}

/// A client that is known.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Client {
    Claude,
    Codex,
    Opencode,
    Aider,
    Ollama,
    Openai,
}

/// A context that is too small for the prompts of coding agents.
const SMALL_CONTEXT: u64 = 32_768;

/// How a client is run.
struct Recipe {
    /// Its program; `None` for one that nobody can name.
    program: Option<&'static str>,
    variables: Vec<(&'static str, String)>,
    arguments: Vec<String>,
}

impl Launch {
    pub(crate) fn execute(self) -> Result<()> {
        let server = self.server.ask()?;
        let known: Vec<&str> = server.models.iter().map(|model| &*model.name).collect();
        let model = match &self.model {
            None => server.models.first(),
            Some(name) => server.models.iter().find(|model| model.name == *name),
        };
        let Some(model) = model else {
            let name = self.model.as_deref().unwrap_or("any name");
            bail!(
                "the server has no model {name:?}; it has {}",
                known.join(", ")
            );
        };
        let agent = !matches!(self.client, Client::Ollama | Client::Openai);
        if let Some(context) = model.context.filter(|n| agent && *n < SMALL_CONTEXT) {
            output::warn(&format!(
                "{} has a context of {context} tokens, less than coding agents send before your first word: kvark serve -c 65536",
                model.name
            ));
        }
        let key = self.server.key().unwrap_or_else(|| "kvark".to_owned());
        let recipe = recipe(self.client, &server.address, &model.name, &key);
        let arguments = [recipe.arguments, self.arguments].concat();
        if self.print {
            let mut lines: Vec<String> = recipe
                .variables
                .iter()
                .map(|(name, value)| format!("export {name}={}", quoted(value)))
                .collect();
            if let Some(program) = recipe.program {
                let words = arguments.iter().map(|word| quoted(word));
                let words: Vec<String> = [program.to_owned()].into_iter().chain(words).collect();
                lines.push(words.join(" "));
            }
            let mut out = std::io::stdout().lock();
            return Ok(writeln!(out, "{}", lines.join("\n"))?);
        }
        let Some(program) = recipe.program else {
            bail!("openai stands for any program: use --print, and run yours with what it prints");
        };
        let mut command = Command::new(program);
        command.args(&arguments).envs(recipe.variables);
        run(&mut command).with_context(|| format!("{program} cannot be run: is it installed?"))
    }
}

/// Runs a command in the place of this process.
#[cfg(unix)]
fn run(command: &mut Command) -> Result<()> {
    use std::os::unix::process::CommandExt;
    Err(command.exec().into())
}

/// Runs a command to its end.
#[cfg(not(unix))]
fn run(command: &mut Command) -> Result<()> {
    let status = command.status()?;
    match status.success() {
        true => Ok(()),
        false => bail!("it ended with {status}"),
    }
}

/// How a client is told of a server, a model and a key.
fn recipe(client: Client, address: &str, model: &str, key: &str) -> Recipe {
    let api = format!("{address}/v1");
    let text = str::to_owned;
    match client {
        Client::Claude => Recipe {
            program: Some("claude"),
            variables: vec![
                ("ANTHROPIC_BASE_URL", text(address)),
                ("ANTHROPIC_AUTH_TOKEN", text(key)),
                ("ANTHROPIC_MODEL", text(model)),
                ("ANTHROPIC_DEFAULT_HAIKU_MODEL", text(model)),
                ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", text("1")),
            ],
            arguments: vec![],
        },
        Client::Codex => {
            let provider = format!(
                r#"model_providers.kvark={{name="kvark",base_url="{api}",wire_api="responses",env_key="KVARK_API_KEY"}}"#
            );
            let settings = [
                provider,
                text(r#"model_provider="kvark""#),
                text(r#"web_search="disabled""#),
            ];
            let settings = settings
                .into_iter()
                .flat_map(|setting| [text("-c"), setting]);
            Recipe {
                program: Some("codex"),
                variables: vec![("KVARK_API_KEY", text(key))],
                arguments: settings.chain([text("-m"), text(model)]).collect(),
            }
        }
        Client::Opencode => {
            let config = json!({
                "model": format!("kvark/{model}"),
                "provider": { "kvark": {
                    "npm": "@ai-sdk/openai-compatible",
                    "name": "kvark",
                    "options": { "baseURL": api, "apiKey": key },
                    "models": { (model): { "name": model } },
                }},
            });
            Recipe {
                program: Some("opencode"),
                variables: vec![("OPENCODE_CONFIG_CONTENT", config.to_string())],
                arguments: vec![],
            }
        }
        Client::Aider => Recipe {
            program: Some("aider"),
            variables: vec![("OPENAI_API_BASE", api), ("OPENAI_API_KEY", text(key))],
            arguments: vec![text("--model"), format!("openai/{model}")],
        },
        Client::Ollama => Recipe {
            program: Some("ollama"),
            variables: vec![("OLLAMA_HOST", text(address))],
            arguments: vec![],
        },
        Client::Openai => Recipe {
            program: None,
            variables: vec![
                ("OPENAI_BASE_URL", api.clone()),
                ("OPENAI_API_BASE", api),
                ("OPENAI_API_KEY", text(key)),
                ("OPENAI_MODEL", text(model)),
            ],
            arguments: vec![],
        },
    }
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}
