//! A mixed load: nothing is recorded after start-up, and steps are replays. Needs a GPU, as `device.rs` does.

#[path = "gpu/binding.rs"]
mod binding;
mod gpu;

use backend::{Backend, BatchDescriptor, LogitsMode, RunMode, Runnable, StepOptions, StepOutputs};
use base::DType;
use conformance::TestRng;
use graph::ops::{GatherRows, Linear, Reshape, UpdateAndAttend};
use graph::{Dim, Graph, GraphBuilder};
use kv::{CacheConfig, LayerConfig, Step, make_seq_session};
use std::io::Write;
use std::sync::Arc;

const VOCABULARY: usize = 64;
const HEADS: usize = 4;
const DIM: usize = 32;
const SEQUENCES: u32 = 64;

/// Embeddings, one layer of attention and a head. Its outputs are logits and, as a feature, what attention gives each token.
fn decoder() -> Arc<Graph> {
    let mut noise = TestRng::new(4);
    let mut b = GraphBuilder::new("decoder");
    let (t, r) = (b.symbol("T"), b.symbol("R"));
    let tokens = b.input("tokens", DType::I32, [t]);
    let position = b.input("position", DType::I32, [t]);
    let rows = b.input("rows", DType::I32, [r]);
    let width = HEADS * DIM;
    let mut weight = |b: &mut GraphBuilder, name: &str, n: usize| {
        let data = noise.weights(DType::Q8_0, n * width);
        b.constant(name, DType::Q8_0, &[n, width], data).unwrap()
    };
    let embeddings = weight(&mut b, "embeddings", VOCABULARY);
    let x = b.node("x", GatherRows, &[embeddings, tokens]).unwrap();
    let [q, k, v] = ["q", "k", "v"].map(|name| {
        let w = weight(&mut b, &format!("{name}.weight"), width);
        let y = b.node(name, Linear::default(), &[x, w]).unwrap();
        let shape: Vec<Dim> = vec![t, HEADS.into(), DIM.into()];
        let name = format!("{name}.heads");
        b.node(&name, Reshape { shape }, &[y]).unwrap()
    });
    let op = UpdateAndAttend {
        cache_id: 0,
        scale: 0.2,
        softcap: None,
    };
    let attended = b.node("attend", op, &[q, k, v, position]).unwrap();
    let shape: Vec<Dim> = vec![t, width.into()];
    let flat = b.node("flat", Reshape { shape }, &[attended]).unwrap();
    let last = b.node("last", GatherRows, &[flat, rows]).unwrap();
    let head = weight(&mut b, "head", VOCABULARY);
    let logits = b.node("logits", Linear::default(), &[last, head]).unwrap();
    Arc::new(b.finish(&[logits, flat]).unwrap())
}

fn runnable(cuda: &cuda::Cuda, mode: RunMode) -> Runnable {
    let layer = LayerConfig {
        kv_heads: HEADS,
        key_dim: DIM,
        value_dim: DIM,
        window: None,
        sinks: 0,
    };
    let config = CacheConfig::uniform(64 * 400, 1, layer);
    let (_session, bound) = make_seq_session(cuda.id(), &config).unwrap();
    let mut runnable = binding::runnable(cuda, &decoder(), bound.cache_key);
    let prepared = StepOptions {
        mode,
        max_sequences: SEQUENCES as usize,
        max_query_len: 1,
        max_tokens: 512,
        max_rows: SEQUENCES as usize,
        record_all: true,
    };
    runnable.prepare(&prepared).unwrap();
    runnable
}

#[test]
fn features_of_every_token_come_back_in_every_mode() {
    let Some(cuda) = gpu::device() else { return };
    let ids: Vec<u32> = (0..5).collect();
    let features = [RunMode::Full, RunMode::Piecewise, RunMode::None].map(|mode| {
        let mut runnable = runnable(&cuda, mode);
        let mut outputs = StepOutputs::new(LogitsMode::Logits);
        let mut step = Step::default();
        step.extend(0, 0, &ids);
        step.want_last();
        runnable.run_step(&step, &mut outputs).unwrap();
        assert_eq!(outputs.logits(0).len(), VOCABULARY);
        let features = (0..ids.len()).map(|token| outputs.features(token).to_vec());
        features.collect::<Vec<_>>()
    });
    let [full, piecewise, none] = features;
    assert!(full.iter().all(|row| row.len() == HEADS * DIM));
    assert!(full.iter().flatten().all(|x| x.is_finite()) && full[0] != full[4]);
    assert!(full == piecewise && full == none, "modes differ");
}

#[test]
fn a_mixed_load_replays_what_was_recorded_at_start_up() {
    let Some(cuda) = gpu::device() else { return };
    let mut runnable = runnable(&cuda, RunMode::Full);
    let recorded = runnable.executable().captures();
    assert!(recorded > 50, "only {recorded} recordings");
    // Every sequence begins with a prompt, of which a few are longer than anything recorded, and goes on alone and with others.
    let mut random = TestRng::new(8);
    let mut held = [0u32; SEQUENCES as usize];
    let mut outputs = StepOutputs::new(LogitsMode::Argmax);
    let (mut steps, mut replays) = (0, 0);
    for i in 0..400 {
        let mut step = Step::default();
        let starts = (i % 5 == 0)
            .then(|| held.iter().position(|len| *len == 0))
            .flatten();
        for seq in 0..SEQUENCES {
            let at = held[seq as usize];
            let tokens = match at {
                0 if starts == Some(seq as usize) && i % 50 == 0 => 200,
                0 if starts == Some(seq as usize) => 1 + (random.bits() % 60) as u32,
                0 => continue,
                _ if random.bits().is_multiple_of(4) => continue,
                _ => 1,
            };
            let ids: Vec<u32> = (0..tokens).map(|t| (at + t) % VOCABULARY as u32).collect();
            step.extend(seq, at, &ids);
            step.want_last();
            held[seq as usize] += tokens;
        }
        if step.is_empty() {
            continue;
        }
        let dispatcher = runnable.dispatcher();
        let batch = BatchDescriptor::of(&step, dispatcher.max_query_len());
        let mode = dispatcher.dispatch(batch).mode;
        runnable.run_step(&step, &mut outputs).unwrap();
        steps += 1;
        replays += usize::from(mode == RunMode::Full);
    }
    assert_eq!(
        runnable.executable().captures(),
        recorded,
        "recorded after start-up"
    );
    let share = replays as f64 / steps as f64;
    let _ = writeln!(
        std::io::stderr(),
        "{replays} of {steps} steps replay {recorded} recordings"
    );
    assert!(share >= 0.95, "only {share} of all steps replay");
}
