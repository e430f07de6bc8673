//! `kvark prefix build`: a text as a file whose keys and values processes share.

mod given;

pub(crate) use given::GivenPrefix;

use crate::args::EngineArgs;
use crate::positional::ModelTextArgs;
use crate::prompt::{Conversations, TemplateArgs};
use crate::{interrupt, output, prompt};
use anyhow::{Context, Result, bail};
use clap::Args;
use given::Beginning;
use kvark::generate::RunnerOptions;
use kvark::memory::CacheKind;
use kvark::snapshot::PrefixFile;
use kvark::text::Message;
use kvark::{BatchRunner, Model};
use std::path::PathBuf;
use std::time::Instant;

/// Compute a text once, for runs, chats and servers that begin with it
#[derive(Args)]
#[command(
    after_help = "The file has the tokens of the text and their keys and values. Processes that use it map it: what is in memory once \
serves all of them, and nothing of it is computed or copied (a GPU gets a copy). It fits the model, the storage types and the version of \
kvark that it was made with; anything else is refused by name. A prefix file that exists is replaced as a whole; any other file is left \
as it is.

With --chat, the text is the system message of chats. Without it, the text is the beginning of plain prompts.

Examples:
  kvark prefix build -f doc.txt -o doc.kvp
  kvark run --prefix doc.kvp \"In short: \" -n 64
  kvark prefix build --on doc.kvp -f notes.txt -o notes.kvp
  kvark prefix build --chat -f system.txt -o system.kvp
  kvark chat --prefix system.kvp
  kvark serve --prefix system.kvp
  kvark inspect doc.kvp"
)]
pub(crate) struct Prefix {
    /// Action: build, which makes a file
    #[arg(value_name = "ACTION", value_parser = ["build"], hide_possible_values = true)]
    action: String,
    #[command(flatten)]
    input: ModelTextArgs,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Prefix file that the text continues; the new file has the tokens of both
    #[arg(long, value_name = "FILE", conflicts_with = "chat")]
    on: Option<PathBuf>,
    /// Make the text the system message of chats, with the model's chat template
    #[arg(long)]
    chat: bool,
    /// Chat template to use instead of the model's own: a name or a file, as for kvark run
    #[arg(long, value_name = "NAME|FILE", requires = "chat")]
    chat_template: Option<String>,
    /// Parse control tokens such as <|im_end|> in the text; without this flag they are plain text
    #[arg(long)]
    special: bool,
    /// Print no progress and no statistics
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

impl Prefix {
    pub(crate) fn execute(self) -> Result<()> {
        if self.quiet {
            output::be_quiet();
        }
        let (model, text) = self.input.resolve(None)?;
        let Some(text) = text else {
            bail!("no text: give one with --file or --prompt, or in a pipe");
        };
        if text.is_empty() {
            bail!("the text is empty");
        }
        self.engine.check_one_mode()?;
        self.check_output()?;
        let base = self.on.as_deref().map(GivenPrefix::open).transpose()?;
        if let Some(base) = &base {
            base.check_conversation(false)?;
        }
        let _listening = interrupt::listen();
        let name = model.name()?;
        let model = model.open(&self.engine)?;
        let backend = self.engine.device.backend()?;
        let mut options = self.engine.runner_options()?;
        let shared = base.map(|base| base.file.shared(&model, &*backend, &options));
        options.prefix = shared.transpose()?;
        let tokens = self.tokens(&model, &text, &options)?;
        let kind = CacheKind::of_one_sequence(model.facts());
        let mut runner = BatchRunner::with_cache_kind(&model, &*backend, &options, kind, 0)?;
        let before = runner.begin_with_prefix(0)?;
        let start = Instant::now();
        let bar = output::progress("prefix", tokens.len());
        let fed = runner.sequence(0).feed(&tokens, |done| {
            bar.set_position(done as u64);
            !interrupt::requested()
        });
        bar.finish_and_clear();
        if !fed? {
            bail!("interrupted");
        }
        let capacity = runner.capacity()?;
        if before + tokens.len() >= capacity {
            bail!("the text fills the context of {capacity} tokens, which leaves no room after it");
        }
        let beginning = match self.chat {
            true => Beginning::System(text),
            false => Beginning::Text,
        };
        let notes = beginning.notes(&name);
        runner.save_prefix(&model, 0, &self.output, &notes)?;
        let file = PrefixFile::open(&self.output)?;
        output::statistics(&format!(
            "[{}: {}, {}; {} computed in {:.1} s]",
            self.output.display(),
            output::tokens(file.tokens().len()),
            output::bytes(file.file_bytes() as u64),
            output::tokens(tokens.len()),
            start.elapsed().as_secs_f64(),
        ));
        Ok(())
    }

    /// The tokens that are computed.
    fn tokens(&self, model: &Model, text: &str, options: &RunnerOptions) -> Result<Vec<u32>> {
        if self.chat {
            let template = TemplateArgs::of(self.chat_template.clone(), self.special);
            let conversations = Conversations::new(model, &template)?;
            return conversations.beginning(&[Message::new("system", text)]);
        }
        match options.prefix {
            Some(_) => prompt::continuation(model, text, self.special),
            None => prompt::encode(model, text, self.special),
        }
    }

    /// Returns an error before any work if the file could not be written in the end, or would be lost.
    fn check_output(&self) -> Result<()> {
        let path = &self.output;
        PrefixFile::check_writable(path).context("--output")?;
        if path.exists() && !PrefixFile::is_at(path).unwrap_or(false) {
            bail!(
                "--output {}: the file is not a kvark prefix and is not replaced",
                path.display()
            );
        }
        Ok(())
    }
}
