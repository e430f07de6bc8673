//! `kvark embed`: texts to embeddings.

use crate::args::{self, GraphArgs, ModelArgs};
use crate::catalogue::HubArgs;
use crate::device::DeviceArgs;
use crate::{interrupt, output, text_input};
use anyhow::{Context, Result, bail};
use clap::{ArgAction, Args, ValueEnum};
use kvark::Model;
use kvark::embed::{EmbedOptions, Embedder, Embedding, Pooling};
use kvark::memory::MemoryLimit;
use kvark::model::OpenOptions;
use serde_json::{Value, json};
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Turn texts into embeddings
#[derive(Args)]
#[command(
    after_help = "Prints one line of numbers per text, in order. Without texts, the lines of standard input are the texts. Embeddings are scaled to unit length, so the dot product of two is \
their cosine similarity.

MODEL is an encoder (GGUF of the architectures bert and nomic-bert, or a folder of a BERT), or a decoder trained for embeddings, of which \
the last token's hidden state is used. There is no KV cache. --pooling overrides the pooling that the file states.

Examples:
  kvark embed all-minilm.gguf \"a cat\" \"a kitten\"
  kvark embed all-minilm.gguf --file sentences.txt > vectors.txt
  cat sentences.txt | kvark embed all-minilm.gguf --truncate --json
  kvark embed -m bge-small.gguf --pooling cls --no-normalize \"a text\""
)]
pub(crate) struct Embed {
    /// Path, name or reference of the model, unless --model names it; then texts
    #[arg(value_name = "MODEL|TEXT")]
    positional: Vec<String>,
    /// The model, as a flag
    #[arg(short, long, value_name = "MODEL")]
    model: Option<String>,
    #[command(flatten)]
    hub: HubArgs,
    /// File with one text per line; - for standard input
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// How hidden states are pooled into one embedding [default: as the model states]
    #[arg(long, value_name = "HOW")]
    pooling: Option<PoolingArg>,
    /// Scale embeddings to unit length (the default)
    #[arg(long, overrides_with = "no_normalize")]
    normalize: bool,
    /// Do not scale embeddings
    #[arg(long, action = ArgAction::SetTrue)]
    no_normalize: bool,
    /// Truncate texts longer than the model's context instead of rejecting them
    #[arg(long)]
    truncate: bool,
    /// Number of threads, at most one per core [default: all cores]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,
    /// Refuse to run if more memory than SIZE is needed, such as 800M or 2G [default: the free memory]
    #[arg(long, value_name = "SIZE", value_parser = args::byte_size)]
    mem_limit: Option<u64>,
    #[command(flatten)]
    graph: GraphArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Value of `--pooling`.
#[derive(Clone, Copy, ValueEnum)]
enum PoolingArg {
    /// Mean over all tokens
    Mean,
    /// First token, the [CLS] of BERT
    Cls,
    /// Last token
    Last,
}

impl From<PoolingArg> for Pooling {
    fn from(pooling: PoolingArg) -> Pooling {
        match pooling {
            PoolingArg::Mean => Pooling::Mean,
            PoolingArg::Cls => Pooling::Cls,
            PoolingArg::Last => Pooling::Last,
        }
    }
}

impl Embed {
    pub(crate) fn execute(self) -> Result<()> {
        let (model, texts) = self.arguments()?;
        let _listening = interrupt::listen();
        let open = OpenOptions {
            passes: self.graph.passes()?,
            hidden_states: true,
            ..OpenOptions::default()
        };
        let model = Model::open_with(&model.path()?, &open)?;
        let mut embedder = Embedder::new(model, &*self.device.backend()?, &self.options()?)?;
        let bar = output::progress("embed", texts.len());
        let start = Instant::now();
        let found = embedder.embed(&texts, |done| {
            bar.set_position(done as u64);
            !interrupt::requested()
        })?;
        bar.finish_and_clear();
        let found = found.context("interrupted")?;
        let mut out = BufWriter::new(io::stdout().lock());
        if self.json {
            let report = report(&embedder, !self.no_normalize, &found, start.elapsed());
            writeln!(out, "{report}")?;
        } else {
            for embedding in &found {
                let numbers: Vec<String> = embedding.values.iter().map(f32::to_string).collect();
                writeln!(out, "{}", numbers.join(" "))?;
            }
        }
        Ok(out.flush()?)
    }

    /// The model and the texts; the first positional argument can be either.
    fn arguments(&self) -> Result<(ModelArgs, Vec<String>)> {
        let mut given = self.positional.iter().cloned();
        let flags = self.model.clone().or_else(|| self.hub.reference());
        let model = flags.or_else(|| given.next());
        let model = model.context("no model: give an encoder, such as all-minilm.gguf")?;
        let texts: Vec<String> = given.collect();
        let texts = match &self.file {
            Some(path) if texts.is_empty() => lines(&text_input::read_text(path)?),
            Some(_) => bail!("give texts either as arguments or with --file, not both"),
            None if texts.is_empty() => text_input::piped()?.map_or(vec![], |text| lines(&text)),
            None => texts,
        };
        if texts.is_empty() {
            bail!("nothing to embed: give texts after the model, with --file, or in a pipe");
        }
        Ok((ModelArgs::named(Some(model)), texts))
    }

    fn options(&self) -> Result<EmbedOptions> {
        Ok(EmbedOptions {
            pooling: self.pooling.map(Pooling::from),
            normalize: !self.no_normalize,
            truncate: self.truncate,
            memory: self
                .mem_limit
                .map_or(MemoryLimit::Machine, MemoryLimit::Bytes),
            compile: self.graph.compile(self.threads, false)?,
        })
    }
}

/// The lines of a text, each of which is embedded.
fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

fn report(embedder: &Embedder, normalized: bool, found: &[Embedding], time: Duration) -> Value {
    let row = |(index, embedding): (usize, &Embedding)| {
        // The shortest decimal that parses back to the same f32.
        let digits = |x: &f32| x.to_string().parse::<f64>().unwrap_or(f64::NAN);
        let values: Vec<f64> = embedding.values.iter().map(digits).collect();
        json!({ "index": index, "tokens": embedding.tokens, "embedding": values })
    };
    let tokens: usize = found.iter().map(|embedding| embedding.tokens).sum();
    let seconds = time.as_secs_f64().max(1e-9);
    json!({
        "architecture": embedder.model().artifact().architecture,
        "dimensions": embedder.dimensions(),
        "pooling": embedder.pooling().name(),
        "normalized": normalized,
        "embeddings": found.iter().enumerate().map(row).collect::<Vec<_>>(),
        "timings": {
            "texts_n": found.len(),
            "tokens_n": tokens,
            "ms": seconds * 1e3,
            "texts_per_second": found.len() as f64 / seconds,
            "tokens_per_second": tokens as f64 / seconds,
        },
    })
}
