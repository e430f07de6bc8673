//! `cargo xtask bench-peers`: compares kvark with other runtimes at their best, interleaved.

mod document;
mod llama_bench;
mod measure;
mod peer;
mod row;
mod section;

use super::script;
use super::turns::TurnArgs;
use crate::{model, shell};
use anyhow::{Context, Result, ensure};
use clap::Args;
use measure::Peers;
use peer::PeerKind;
use section::{Files, Section, Test, record};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Compare the speed of kvark with that of other runtimes at their best, interleaved on one machine
#[derive(Args)]
#[command(
    after_help = "Every test of a round is measured on all sides, one right after the other; who goes first changes with the round. \
A side runs a test once uncounted before it counts, in batches of 512, with KV in the same type (llama.cpp's q8_0 and q4_0 beside \
q8 and q4) and the same number of threads. The sides that wait sleep. A ratio above 1 means that kvark is faster; it is the median of \
the rounds' own ratios to the best peer of the row, which the row names.

llama.cpp and ik_llama.cpp are measured with their weights as in the file and repacked, and the better of both is their figure. A peer \
that cannot run a file, a depth or a storage, or takes longer than --patience, is left out of that row, and the document says so.

--record measures what the project aims at, tier by tier, with the wanted ratios beside the measured ones. Sections that \
this machine cannot run are left out, and the document says so. Its models are that of --model (SmolLM2 in Q4_1), the large one that is \
the first of --also (Qwen2.5-1.5B in Q4_K_M), and the others of --also and --formats.

llama-bench is built under target/ for this CPU, and for the avx2 tier once more without anything above AVX2; the others \
are wheels in a virtual environment there. KVARK_PEERS_VENV names another environment.

Examples:
  cargo xtask bench-peers
  cargo xtask bench-peers --model model.gguf --rounds 9 -t 1,2 --json
  cargo xtask bench-peers --peer openvino --model qwen.gguf -p 256 -n 0
  cargo xtask bench-peers --isa avx2 --precision balanced -p 512 -d 0,4096,16384
  cargo xtask bench-peers --formats Q8_0,Q6_K,Q5_K_M,F16,BF16
  cargo xtask bench-peers --record --also qwen.gguf --also gemma.gguf --also tinyllama.gguf --formats Q8_0,F16 --markdown docs/benchmarks/cpu.md"
)]
pub(crate) struct BenchPeers {
    /// Model (GGUF) [default: SmolLM2-135M-Instruct]
    #[arg(short, long, value_name = "GGUF")]
    model: Option<PathBuf>,
    /// Another model (GGUF) to measure; may be repeated
    #[arg(long, value_name = "GGUF")]
    also: Vec<PathBuf>,
    /// Formats that llama.cpp converts the model to, into target/models; the files are measured after those of --also
    #[arg(long, value_name = "FORMAT", value_delimiter = ',')]
    #[arg(value_parser = ["F16", "BF16", "Q4_0", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0"])]
    formats: Vec<String>,
    /// Measure the tests of the project's record instead of chosen ones
    #[arg(long, conflicts_with_all = ["isa", "cache_type", "threads", "n_prompt", "n_gen", "n_depth"])]
    record: bool,
    /// Force this tier of kvark's kernels; avx2 is compared with a llama.cpp built for AVX2 only
    #[arg(long, value_name = "TIER")]
    isa: Option<String>,
    /// Storage type of keys and values on both sides
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = ["f32", "f16", "q8", "q4"])]
    cache_type: String,
    /// Runtimes to compare with [default: all]
    #[arg(long, value_name = "NAMES", value_enum, value_delimiter = ',')]
    peer: Vec<PeerKind>,
    /// Seconds after which a measurement of a peer is given up
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    patience: u64,
    /// Precision of kvark's quantised products [default: that of kvark]
    #[arg(long, value_name = "NAME", value_parser = ["high", "balanced"])]
    precision: Option<String>,
    #[command(flatten)]
    turns: TurnArgs,
}

impl BenchPeers {
    pub(crate) fn execute(self) -> Result<()> {
        let main = model::find(self.model.clone())?;
        let named = self.also.iter();
        let named = named.map(|file| Ok(model::find(Some(file.clone()))?));
        let converted = self.formats.iter().map(|format| convert(&main, format));
        let also = named.chain(converted).collect::<Result<_>>()?;
        let files = measure::Models { main, also };
        let sections = if self.record {
            record()
        } else {
            self.chosen()?
        };
        let mut kvark = self.turns.kvark()?;
        kvark.precision.clone_from(&self.precision);
        let peers = Peers {
            kinds: match self.peer.is_empty() {
                true => PeerKind::ALL.to_vec(),
                false => self.peer.clone(),
            },
            patience: Duration::from_secs(self.patience),
        };
        let record = measure::run(sections, &files, kvark, self.turns.rounds, &peers)?;
        self.turns.report(&record.markdown(), &record.json())
    }

    /// What the flags ask for.
    fn chosen(&self) -> Result<Vec<Section>> {
        let tests = self.turns.cases().into_iter();
        let tests: Vec<Test> = tests
            .map(|case| Test::speed(case).kv(&self.cache_type))
            .collect();
        ensure!(!tests.is_empty(), "nothing to measure");
        let section = |files| Section {
            title: "Chosen tests",
            tier: self.isa.clone(),
            files,
            tests: tests.clone(),
        };
        let also = !self.also.is_empty() || !self.formats.is_empty();
        let also = also.then(|| section(Files::Also));
        Ok([section(Files::Main)].into_iter().chain(also).collect())
    }
}

/// The model in another format, converted unless it is there already.
fn convert(model: &Path, format: &str) -> Result<PathBuf> {
    let folder = shell::target().join("models");
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let stem = model.file_stem().unwrap_or_default().to_string_lossy();
    let file = folder.join(format!("{stem}-{}.gguf", format.to_lowercase()));
    if !file.exists() {
        let mut command = script::CONVERT.command()?;
        shell::run(command.arg(model).arg(format).arg(&file))?;
    }
    Ok(file)
}
