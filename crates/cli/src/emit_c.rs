//! `kvark emit-c`: writes a model as a C program.

use crate::args::{self, ModelArgs};
use crate::{interrupt, output};
use anyhow::Result;
use clap::Args;
use kvark::RunnerOptions;
use kvark::backend::{CompileOptions, Cpu, Isa};
use kvark::cache::KvStorage;
use kvark::emit::{EmitErrorKind, EmitOptions, Program, ProgramPlan, Regions};
use kvark::memory::{CacheKind, MemoryLimit, MemoryPlan, PlannedModel};
use std::path::PathBuf;

/// Write a model as a C program in which every address is fixed
#[derive(Args)]
#[command(
    after_help = "DIR gets model.h (all offsets as constants), model.c (one call per node), kernels.c (portable C11), weights.bin, \
layout.map (the offsets as a table), main.c (reads and prints token ids) and a Makefile. With --tokenizer it also gets tokenizer.c, \
tokenizer.h and tokenizer.bin, and main.c takes text by -p. The program needs libc and libm only, \
allocates once before the first token, and computes the same bits as kvark with KVARK_ISA=generic. Its state has the offsets of \
`kvark plan --map -t 1` with the same options.

Examples:
  kvark emit-c -o smollm2 -c 1024 && make -C smollm2
  kvark tokenize -p \"The capital of France is\" | (cd smollm2 && ./model -n 16)
  kvark emit-c -o smollm2 -c 1024 --tokenizer && make -C smollm2 && (cd smollm2 && ./model -p \"The capital of France is\")
  kvark emit-c model.gguf -o model -c 512 -b 64 --cache-type-k f32 --cache-type-v f32 --static"
)]
pub(crate) struct EmitC {
    #[command(flatten)]
    model: ModelArgs,
    /// Folder to write; one that an earlier emit-c wrote is replaced
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Context length in tokens [default: the length the model was trained for]
    #[arg(short, long, value_name = "N", value_parser = args::context_size)]
    ctx_size: Option<u32>,
    /// Maximum number of tokens in one step of prompt processing
    #[arg(short, long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    batch_size: u32,
    /// Storage type of cached keys: f32, f16 or f8_e4m3
    #[arg(long, value_name = "TYPE", default_value = "f16", hide_possible_values = true, value_parser = args::storage_names())]
    cache_type_k: KvStorage,
    /// Storage type of cached values: f32, f16 or f8_e4m3
    #[arg(long, value_name = "TYPE", default_value = "f16", hide_possible_values = true, value_parser = args::storage_names())]
    cache_type_v: KvStorage,
    /// Number of threads of the program
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
    /// Make the state a static buffer, so that the program allocates nothing
    #[arg(long = "static")]
    static_state: bool,
    /// Fail if state and weights need more than SIZE, such as 800M or 2G
    #[arg(long, value_name = "SIZE", value_parser = args::byte_size)]
    max_bytes: Option<u64>,
    /// Emit the tokenizer too, so that the program takes and prints text
    #[arg(long)]
    tokenizer: bool,
}

impl EmitC {
    pub(crate) fn execute(self) -> Result<()> {
        let context = self.ctx_size.map(|n| n as usize);
        let path = self.model.path()?;
        let artifact = kvark::model::open_artifact(&path, context)?;
        args::warn_of_context(&artifact.facts, self.ctx_size);
        let planned = PlannedModel::try_from(&artifact)?;
        // The program computes in the order of the generic tier, on one thread.
        let backend = Cpu::with_isa(Isa::GENERIC);
        let plan = MemoryPlan::new(
            &planned,
            &backend,
            &self.runner_options(),
            CacheKind::of_one_sequence(&artifact.facts),
            None,
        )?;
        let offsets = plan.state_offsets();
        let tokenizer = match self.tokenizer {
            true => Some(kvark::model::open_tokenizer(&path)?),
            false => None,
        };
        let program_plan = ProgramPlan {
            name: artifact.name.as_deref().unwrap_or(&artifact.architecture),
            graph: planned.graph(),
            memory: &plan.places,
            kv: &plan.kv,
            regions: Regions {
                kv: offsets.kv,
                arena: offsets.arena,
                logits: offsets.logits,
                end: offsets.end,
            },
            context: match artifact.facts.is_decoder() {
                true => plan.cache.capacity as usize,
                false => plan.step.tokens,
            },
            max_step: plan.step.tokens,
            vocab: artifact.facts.vocab_size,
            tokenizer: tokenizer.as_ref(),
        };
        let options = EmitOptions {
            static_state: self.static_state,
            threads: self.threads as usize,
            max_bytes: self.max_bytes,
        };
        let program = Program::new(&program_plan, &options)?;
        self.write(&program)
    }

    fn runner_options(&self) -> RunnerOptions {
        RunnerOptions {
            context: self.ctx_size.map(|n| n as usize),
            max_step_tokens: self.batch_size as usize,
            key_storage: self.cache_type_k,
            value_storage: self.cache_type_v,
            memory: MemoryLimit::None,
            compile: CompileOptions {
                threads: Some(1),
                ..CompileOptions::default()
            },
            ..RunnerOptions::default()
        }
    }

    fn write(&self, program: &Program<'_>) -> Result<()> {
        let _listening = interrupt::listen();
        let bar = output::bytes_progress("weights", program.weight_bytes() as u64);
        let written = program.write(&self.output, &mut |done, _| {
            bar.set_position(done as u64);
            !interrupt::requested()
        });
        bar.finish_and_clear();
        match written {
            Err(error) if matches!(error.kind(), EmitErrorKind::Interrupted) => return Ok(()),
            written => written?,
        }
        let (state, weights) = (program.state_bytes() as u64, program.weight_bytes() as u64);
        output::note(&format!(
            "{}: {} of state, {} of weights{}; build it with: make -C {}",
            self.output.display(),
            output::bytes(state),
            output::bytes(weights),
            match program.tokenizer_bytes() {
                0 => String::new(),
                tables => format!(", {} of tokenizer", output::bytes(tables as u64)),
            },
            self.output.display()
        ));
        Ok(())
    }
}
