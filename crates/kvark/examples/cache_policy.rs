//! A cache policy of one's own: attention sinks. The cache keeps the first tokens of the text and the most recent ones, so
//! that a generation of any length runs in a small, fixed number of cells. The model and its attention op do not change:
//! the policy decides which tokens are held, and a query attends to the held tokens.
//!
//! ```sh
//! cargo run --release -p kvark --example cache_policy -- path/to/model.gguf
//! ```

use kvark::backend::Backend;
use kvark::cache::{
    Cache, CacheConfig, CacheManager, CacheSession, Cells, KvError, OneSequence, SeqCache, Step,
    StepPlan,
};
use kvark::prelude::*;
use std::io::Write;

type Error = Box<dyn std::error::Error>;

/// Holds the first `sinks` and the last `recent` tokens of one sequence. A pool of cells stores them.
struct SinkCache {
    cells: Cells,
    sinks: u32,
    recent: u32,
}

impl SinkCache {
    fn new(config: &CacheConfig, sinks: u32, recent: u32) -> SinkCache {
        let cells = Cells::new(config);
        SinkCache {
            cells,
            sinks,
            recent,
        }
    }

    /// Frees the cells of the tokens between the sinks and the recent tokens.
    fn evict(&mut self) -> Result<(), KvError> {
        let next = self.cells.seq_next(0)?.unwrap_or(0);
        let end = next.saturating_sub(self.recent);
        match end > self.sinks {
            true => self.cells.seq_rm(0, self.sinks..end),
            false => Ok(()),
        }
    }
}

/// All of these are the pool's.
impl Cache for SinkCache {
    fn can_extend(&self, n: u32) -> bool {
        self.cells.can_extend(n)
    }

    fn capacity(&self) -> u32 {
        self.cells.capacity()
    }

    fn len(&self) -> u32 {
        self.cells.len()
    }

    fn clear(&mut self) {
        self.cells.clear();
    }

    fn rewind(&mut self, len: u32) -> Result<(), KvError> {
        self.cells.rewind(len)
    }
}

/// The interface to a forward: the pool plans a step, and the policy evicts tokens after its commit.
impl CacheManager for SinkCache {
    fn declared(&self, positions: &[i32], step: &mut Step) -> Result<(), KvError> {
        self.cells.declared(positions, step)
    }

    fn is_declared(&self) -> bool {
        self.cells.is_declared()
    }

    fn plan(&self, step: &Step, plan: &mut StepPlan) -> Result<(), KvError> {
        self.cells.plan(step, plan)
    }

    fn commit(&mut self, plan: &StepPlan) {
        self.cells.commit(plan);
        self.evict()
            .expect("sequence 0 exists, and the range lies in it");
    }

    fn abort(&mut self, plan: Option<&StepPlan>) {
        self.cells.abort(plan);
    }
}

/// Tokens of a prefill step.
const STEP: usize = 16;

/// A runner on a cache with that policy. Everything that runs on a `Runner` runs on it.
fn sink_runner(model: &Model, cpu: &Cpu, sinks: u32, recent: u32) -> Result<Runner, Error> {
    let capacity = sinks + recent + STEP as u32;
    let config = CacheConfig::new(capacity, model.facts().caches.clone());
    let policy = SinkCache::new(&config, sinks, recent);
    let session = CacheSession::new("sinks", policy, cpu.new_kv(&config)?);
    let options = RunnerOptions {
        max_step_tokens: STEP,
        ..Default::default()
    };
    let cache = Box::new(OneSequence(session));
    Ok(BatchRunner::with_cache(model, cpu, &options, cache)?.into())
}

fn main() -> Result<(), Error> {
    let path = std::env::args()
        .nth(1)
        .ok_or("usage: cache_policy MODEL.gguf")?;
    let model = Model::open(path.as_ref(), None)?;
    write_story(&model, [4, 60], 200, &mut std::io::stdout())?;
    Ok(())
}

/// Generates `tokens` tokens with these numbers of sinks and recent tokens. Returns the text and the cells in use.
pub(crate) fn write_story(
    model: &Model,
    [sinks, recent]: [u32; 2],
    tokens: usize,
    out: &mut impl Write,
) -> Result<(String, u32), Error> {
    let mut runner = sink_runner(model, &Cpu::new()?, sinks, recent)?;
    let encode = EncodeOptions {
        bos: model.tokenizer()?.adds_bos(),
        ..Default::default()
    };
    let prompt = model
        .tokenizer()?
        .encode("Once upon a time, there was a", encode);
    let mut sampler = Sampler::new(SamplerOptions {
        temperature: 0.0,
        ..Default::default()
    });
    let options = GenerateOptions {
        max_tokens: Some(tokens),
        ignore_eos: true,
        ..Default::default()
    };
    let story = runner.generate(
        model,
        &prompt,
        &mut sampler,
        &options,
        |event| match event {
            GenerateEvent::Text(text) => write!(out, "{text}").and_then(|()| out.flush()).is_ok(),
            GenerateEvent::PromptProgress(_) => true,
        },
    )?;
    let held = runner.cells_used()? as u32;
    writeln!(
        out,
        "\n[{} tokens of context in {held} cells]",
        runner.tokens().len()
    )?;
    Ok((story.text, held))
}
