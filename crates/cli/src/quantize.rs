//! `kvark quantize` and `kvark convert`: models written as GGUF files.

use crate::args;
use crate::{interrupt, output};
use anyhow::{Context, Result, bail};
use clap::Args;
use kvark::model::GgufSource;
use kvark::model::gguf::{QUANTISATIONS, Quantisation, QuantisePlan};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

/// Make a model smaller: write it as a GGUF file in another quantisation
#[derive(Args)]
#[command(
    after_help = "MODEL is a GGUF file, split or not, in f32, f16 or bf16, or a folder of Hugging Face with safetensors. TYPE is F32, BF16, \
F16, Q8_0, Q6_K, Q5_K_M, Q5_K_S, Q5_1, Q5_0, Q4_K_M, Q4_K_S, IQ4_NL, IQ4_XS, Q4_1, Q4_0, Q3_K_L, Q3_K_M, Q3_K_S or Q2_K. \
Which tensors of a mix get more bits is llama.cpp's choice, and its programs read the files.

Examples:
  kvark quantize model-f16.gguf model-Q4_K_M.gguf --type Q4_K_M
  kvark quantize path/to/folder model-Q8_0.gguf --type Q8_0
  kvark quantize model-f16.gguf --type Q4_K_M --dry-run"
)]
pub(crate) struct Quantize {
    #[command(flatten)]
    files: Files,
    /// The quantisation, such as Q4_K_M
    #[arg(long = "type", value_name = "TYPE", value_parser = quantisation)]
    quantisation: Quantisation,
    /// Quantise tensors that are quantised already, which loses more than from the original
    #[arg(long)]
    allow_requantize: bool,
}

/// Write a folder of Hugging Face as a GGUF file
#[derive(Args)]
#[command(
    after_help = "MODEL is a folder with config.json, safetensors and tokenizer.json. Matrices keep their types (--type F16 and others change them), \
vectors become f32. llama.cpp reads the file.

Examples:
  kvark convert path/to/folder model.gguf
  kvark convert path/to/folder model-f16.gguf --type F16"
)]
pub(crate) struct Convert {
    #[command(flatten)]
    files: Files,
    /// The type of matrices [default: as they are stored]
    #[arg(long = "type", value_name = "TYPE", value_parser = quantisation)]
    quantisation: Option<Quantisation>,
}

/// The input and the output.
#[derive(Args)]
struct Files {
    /// Path, name or reference of the model
    model: String,
    /// The file to write
    #[arg(value_name = "OUT.gguf", value_parser = gguf, required_unless_present = "dry_run")]
    output: Option<PathBuf>,
    /// Write nothing; print the type of each tensor and the sizes
    #[arg(long)]
    dry_run: bool,
    /// Replace OUT.gguf if it is there
    #[arg(long)]
    force: bool,
    /// Number of threads, at most one per core [default: all cores]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn quantisation(text: &str) -> Result<Quantisation, String> {
    Quantisation::find(text).ok_or_else(|| {
        let known = QUANTISATIONS.map(|known| known.name);
        format!("the types are {}", known.join(", "))
    })
}

fn gguf(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let good = path.extension().is_some_and(|e| e == "gguf");
    good.then_some(path)
        .ok_or_else(|| "must end in .gguf".to_owned())
}

impl Quantize {
    pub(crate) fn execute(self) -> Result<()> {
        self.files
            .write(Some(self.quantisation), self.allow_requantize)
    }
}

impl Convert {
    pub(crate) fn execute(self) -> Result<()> {
        self.files.write(self.quantisation, false)
    }
}

impl Files {
    fn write(self, to: Option<Quantisation>, again: bool) -> Result<()> {
        let path = args::model_path(&self.model)?;
        let _listening = interrupt::listen();
        let source = GgufSource::open(&path)?;
        let plan = QuantisePlan::new(&source.file, to, again)?;
        let from: u64 = plan.tensors.iter().map(|t| t.from_bytes as u64).sum();
        let mut types: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
        for tensor in &plan.tensors {
            let entry = types.entry(tensor.to.name()).or_default();
            *entry = (entry.0 + 1, entry.1 + tensor.to_bytes as u64);
        }
        if !source.has_tokenizer {
            output::warn("there is no tokenizer: the file will have none");
        }
        let begun = Instant::now();
        let mut written = None;
        if let Some(out) = self.output.as_deref().filter(|_| !self.dry_run) {
            if out.exists() && !self.force {
                bail!("{} is there already (--force replaces it)", out.display());
            }
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            let threads = args::threads(self.threads).unwrap_or(cores);
            let bar = output::bytes_progress("quantize", from);
            let result = plan.write(out, source.further, threads, &mut |done| {
                bar.set_position(done);
                !interrupt::requested()
            });
            bar.finish_and_clear();
            if interrupt::requested() {
                bail!("interrupted");
            }
            result.with_context(|| format!("cannot write {}", out.display()))?;
            written = Some(out.metadata()?.len());
        }
        let seconds = begun.elapsed().as_secs_f64();
        let mut out = std::io::stdout();
        if self.json {
            let tensors = plan.tensors.iter().map(|t| {
                json!({"name": t.name, "from": t.from.name(), "to": t.to.name(), "bytes": t.to_bytes})
            });
            let report = json!({
                "tensors": tensors.collect::<Vec<_>>(),
                "bytes_before": from,
                "bytes": plan.bytes(),
                "file_bytes": written,
                "seconds": seconds,
            });
            writeln!(out, "{report}")?;
            return Ok(());
        }
        if self.dry_run {
            for t in &plan.tensors {
                let bytes = output::bytes(t.to_bytes as u64);
                writeln!(
                    out,
                    "{:40} {:>7} -> {:7} {bytes:>10}",
                    t.name,
                    t.from.name(),
                    t.to.name()
                )?;
            }
        }
        for (name, (count, bytes)) in types {
            let tensors = output::count(count, "tensor");
            writeln!(out, "{name:8} {tensors:>12} {:>10}", output::bytes(bytes))?;
        }
        let (before, after) = (output::bytes(from), output::bytes(plan.bytes()));
        let took = match written {
            Some(_) => format!(" in {seconds:.1} s"),
            None => String::new(),
        };
        writeln!(out, "{before} -> {after}{took}")?;
        Ok(())
    }
}
