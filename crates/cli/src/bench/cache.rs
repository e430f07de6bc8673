//! `kvark bench --cache`: the cost of cache operations, and the gain of decoding branches of a shared prefix in one batch.

use crate::args::EngineArgs;
use crate::interrupt;
use anyhow::{Result, bail};
use kvark::cache::{CacheConfig, CacheManager, Cells, LayerConfig, SeqCache, StepPlan};
use kvark::generate::BatchToken;
use kvark::{BatchRunner, Model};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Cells of the pool whose operations are timed.
const CELLS: u32 = 100_000;
/// Sequences in the timed decode step.
const SEQUENCES: u32 = 16;
/// Number of branches and length of their shared prefix in the comparison of one forward for all with one for each.
const BRANCHES: u32 = 8;
const TRUNK: usize = 2000;

/// Measurements with their names, in the order of the report.
pub(super) struct Report {
    pub(super) rows: Vec<(&'static str, f64, &'static str)>,
}

impl Report {
    pub(super) fn json(&self) -> Value {
        let row = |(name, value, unit): &(&str, f64, &str)| json!({ "test": name, "value": value, "unit": unit });
        self.rows.iter().map(row).collect()
    }
}

/// Runs all measurements, each `repetitions` times; medians are reported.
pub(super) fn run(model: &Model, engine: &EngineArgs, repetitions: u32) -> Result<Report> {
    let mut rows = operations(repetitions)?;
    rows.extend(branches(model, engine, repetitions)?);
    Ok(Report { rows })
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e6
}

/// A pool in which sequences 0 to `n - 1` hold the same number of tokens, written one sequence per step.
fn filled(n: u32, tokens_each: u32) -> Result<Cells> {
    let layer = LayerConfig {
        kv_heads: 1,
        key_dim: 1,
        value_dim: 1,
        window: None,
        sinks: 0,
    };
    let mut cells = Cells::new(&CacheConfig::uniform(CELLS, 1, layer));
    let mut plan = StepPlan::default();
    for seq in 0..n {
        for start in (0..tokens_each).step_by(500) {
            let positions: Vec<i32> = (start..(start + 500).min(tokens_each))
                .map(|p| p as i32)
                .collect();
            cells.begin_step(&vec![seq; positions.len()])?;
            cells.plan_declared(&positions, &mut plan)?;
            cells.commit(&plan);
        }
    }
    Ok(cells)
}

fn operations(repetitions: u32) -> Result<Vec<(&'static str, f64, &'static str)>> {
    let mut cells = filled(1, CELLS)?;
    let (mut copies, mut removals) = (vec![], vec![]);
    for _ in 0..repetitions.max(3) * 20 {
        let start = Instant::now();
        cells.seq_cp(0, 1, ..)?;
        copies.push(start.elapsed());
        let start = Instant::now();
        cells.seq_rm(1, ..)?;
        removals.push(start.elapsed());
    }
    let mut freed = vec![];
    for _ in 0..repetitions.max(3) {
        let mut last = cells.clone();
        let start = Instant::now();
        last.seq_rm(0, ..)?;
        freed.push(start.elapsed());
    }
    let each = CELLS / SEQUENCES - 100;
    let mut cells = filled(SEQUENCES, each)?;
    let seqs: Vec<u32> = (0..SEQUENCES).collect();
    let positions = vec![each as i32; SEQUENCES as usize];
    let mut plan = StepPlan::default();
    let mut plans = vec![];
    for _ in 0..repetitions.max(3) * 100 {
        cells.begin_step(&seqs)?;
        let start = Instant::now();
        cells.plan_declared(&positions, &mut plan)?;
        plans.push(start.elapsed());
        cells.abort(Some(&plan));
    }
    Ok(vec![
        ("seq_cp of 100000 cells", median(copies), "µs"),
        ("seq_rm of 100000 shared cells", median(removals), "µs"),
        ("seq_rm that frees 100000 cells", median(freed), "µs"),
        (
            "plan of a decode step for 16 sequences",
            median(plans),
            "µs",
        ),
    ])
}

/// Decodes eight branches of a long prefix: one forward for all against one forward each.
fn branches(
    model: &Model,
    engine: &EngineArgs,
    repetitions: u32,
) -> Result<Vec<(&'static str, f64, &'static str)>> {
    const STEPS: usize = 8;
    let mut branches =
        BatchRunner::new(model, &*engine.device.backend()?, &engine.runner_options()?)?;
    let vocab = model.facts().vocab_size as u32;
    let trunk: Vec<u32> = (0..TRUNK as u32)
        .map(|i| i.wrapping_mul(2_654_435_761) % vocab)
        .collect();
    if !branches
        .sequence(0)
        .feed(&trunk, &mut |_| !interrupt::requested())?
    {
        bail!("interrupted");
    }
    for id in 1..BRANCHES {
        branches.fork(0, id)?;
    }
    let trunk_cells = branches.cells_used()?;
    let token = |id: u32, i: usize| BatchToken {
        seq: id,
        id: (id * 31 + i as u32 * 7) % vocab,
        logits: true,
    };
    let (mut together, mut apart) = (vec![], vec![]);
    let mut tail_cells = 0;
    for _ in 0..repetitions {
        for (all, times) in [(true, &mut together), (false, &mut apart)] {
            let start = Instant::now();
            for i in 0..STEPS {
                let step: Vec<BatchToken> = (0..BRANCHES).map(|id| token(id, i)).collect();
                match all {
                    true => branches.step(&step)?,
                    false => step.iter().try_for_each(|t| branches.step(&[*t]))?,
                }
            }
            times.push(start.elapsed());
            tail_cells = branches.cells_used()? - trunk_cells;
            for id in 0..BRANCHES {
                branches.rewind(id, TRUNK)?;
            }
            if interrupt::requested() {
                bail!("interrupted");
            }
        }
    }
    let tokens = (STEPS * BRANCHES as usize) as f64;
    let (together, apart) = (median(together), median(apart));
    Ok(vec![
        (
            "8 branches of a 2000-token trunk, one forward for all",
            tokens / together * 1e6,
            "tokens/s",
        ),
        (
            "the same, one forward each",
            tokens / apart * 1e6,
            "tokens/s",
        ),
        ("together against apart", apart / together, "times"),
        (
            "cells held by the trunk, shared by all",
            trunk_cells as f64,
            "cells",
        ),
        ("cells held by the tails", tail_cells as f64, "cells"),
    ])
}
