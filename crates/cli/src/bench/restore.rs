//! `kvark bench --restore`: restoring a conversation from a snapshot against computing its tokens again.

use super::cache::Report;
use crate::args::EngineArgs;
use crate::interrupt;
use anyhow::{Result, bail};
use kvark::Model;
use kvark::snapshot::Snapshot;
use std::path::Path;
use std::time::Instant;

/// Tokens of the conversation.
const TOKENS: usize = 2000;

/// Measures prefill and restore alternately, so that a slow phase of the machine affects both; reports medians.
pub(super) fn run(model: &Model, engine: &EngineArgs, repetitions: u32) -> Result<Report> {
    let folder = std::env::temp_dir().join(format!("kvark-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let measured = measure(model, engine, repetitions, &folder.join("restore.kv"));
    std::fs::remove_dir_all(&folder)?;
    measured
}

fn measure(model: &Model, engine: &EngineArgs, repetitions: u32, file: &Path) -> Result<Report> {
    let vocab = model.facts().vocab_size as u32;
    let tokens: Vec<u32> = (0..TOKENS as u32)
        .map(|i| i.wrapping_mul(2_654_435_761) % vocab)
        .collect();
    let mut times: [Vec<f64>; 5] = Default::default();
    let mut bytes = 0;
    // The first round warms caches and is not counted.
    for round in 0..=repetitions {
        // Start with an empty cache, as after a restart.
        let (mut computed, mut restored) = (engine.runner(model)?, engine.runner(model)?);
        let start = Instant::now();
        computed.feed(&tokens, |_| true)?;
        let prefill = start.elapsed();
        let start = Instant::now();
        computed.save(model, file, b"")?;
        let save = start.elapsed();
        bytes = std::fs::metadata(file)?.len();
        let start = Instant::now();
        let snapshot = Snapshot::open(file)?;
        let open = start.elapsed();
        restored.restore(model, &snapshot, TOKENS)?;
        let restore = start.elapsed();
        if interrupt::requested() {
            bail!("interrupted");
        }
        if round > 0 {
            let ratio = prefill.as_secs_f64() / restore.as_secs_f64();
            let all = [prefill, restore, open, save].map(|t| t.as_secs_f64() * 1e3);
            let [prefill, restore, open, save] = all;
            for (times, time) in times.iter_mut().zip([prefill, restore, open, save, ratio]) {
                times.push(time);
            }
        }
    }
    let [prefill, restore, open, save, ratio] = times.map(median);
    Ok(Report {
        rows: vec![
            ("prefill of 2000 tokens", prefill, "ms"),
            ("restore of 2000 tokens from a file", restore, "ms"),
            ("of which: map the file and check every byte", open, "ms"),
            ("restore against prefill", ratio, "times"),
            ("save, until it is on the disk", save, "ms"),
            ("size of the file", bytes as f64 / 1e6, "MB"),
        ],
    })
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
