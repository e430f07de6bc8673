//! Steps of a small decoder: every run mode gives the same bits, whatever the step is padded to, and they agree with
//! the reference within the tolerance. The most likely tokens of a row are those of its logits.

use crate::{TestRng, check_close};
use backend::reference::Reference;
use backend::{Backend, CompileOptions, LogitsMode, RunMode, Runnable, StepOptions, StepOutputs};
use base::{Bytes, DType};
use graph::ops::{GatherRows, Linear, Reshape, Rope, RopeLayout, RopeTable, UpdateAndAttend};
use graph::{Dim, Graph, GraphBuilder, Value};
use kv::{
    CacheConfig, CacheRegistry, LayerConfig, Role, SessionResult, Step, StepToken,
    make_decode_session, make_seq_session, make_tree_session,
};
use std::sync::Arc;

const VOCAB: usize = 40;
const HEADS: usize = 4;
const KV_HEADS: usize = 1;
const DIM: usize = 16;
const LAYERS: usize = 2;
const SEQUENCES: usize = 6;

/// Runs every case and returns how many there were.
pub(super) fn run(
    backend: &dyn Backend,
    options: &CompileOptions,
    tolerance: f32,
) -> Result<usize, String> {
    let graph = decoder();
    let kinds = [
        ("contiguous", sequence_steps()),
        ("cells", mixed_steps()),
        ("tree", tree_steps()),
    ];
    let mut cases = 0;
    for (kind, steps) in kinds {
        let run = |backend: &dyn Backend, mode, wanted| {
            outputs(backend, options, &graph, kind, &steps, (mode, wanted))
                .map_err(|e| format!("{kind} steps in mode {mode}: {e}"))
        };
        let logits = |backend: &dyn Backend, mode| -> Result<Vec<Value>, String> {
            let all = run(backend, mode, LogitsMode::Logits)?;
            Ok(all.iter().map(logits_of).collect())
        };
        let reference = logits(&Reference::new(), RunMode::None)?;
        let eager = logits(backend, RunMode::None)?;
        for (index, (found, expect)) in eager.iter().zip(&reference).enumerate() {
            check_close(found, expect, tolerance)
                .map_err(|e| format!("{kind} step {index}: {e}"))?;
        }
        for mode in RunMode::ALL {
            if logits(backend, mode)? != eager {
                return Err(format!("{kind} steps in mode {mode} have other bits"));
            }
            cases += 1;
            for wanted in WANTED {
                let found = run(backend, mode, wanted)?;
                check_topk(&found, &eager, wanted)
                    .map_err(|e| format!("{kind} steps in mode {mode}, {wanted:?}: {e}"))?;
                cases += 1;
            }
        }
    }
    Ok(cases)
}

/// The other outputs than all logits.
const WANTED: [LogitsMode; 4] = [
    LogitsMode::Argmax,
    LogitsMode::TopK(1),
    LogitsMode::TopK(5),
    LogitsMode::TopK(VOCAB + 1),
];

/// The logits of a step's rows.
fn logits_of(outputs: &StepOutputs) -> Value {
    let rows = outputs.rows();
    let each = (0..rows).flat_map(|row| outputs.logits(row).iter().copied());
    Value::f32([rows, VOCAB], each.collect())
}

/// Checks that the outputs of every step are the most likely tokens of its logits.
fn check_topk(found: &[StepOutputs], logits: &[Value], wanted: LogitsMode) -> Result<(), String> {
    for (step, (found, logits)) in found.iter().zip(logits).enumerate() {
        let rows = logits.shape[0];
        let mut expect = StepOutputs::new(wanted);
        let logits = logits.as_f32().ok_or("logits of another type")?;
        expect.fill(rows, VOCAB, logits);
        if found.rows() != rows {
            return Err(format!("step {step} has {} rows, not {rows}", found.rows()));
        }
        for row in 0..rows {
            let (found, expect) = (found.topk(row), expect.topk(row));
            if found != expect {
                let text = format!("step {step}, row {row}: {found:?}, not {expect:?}");
                return Err(text);
            }
        }
    }
    Ok(())
}

/// The outputs of every step, in one mode.
fn outputs(
    backend: &dyn Backend,
    options: &CompileOptions,
    graph: &Arc<Graph>,
    kind: &str,
    steps: &[Step],
    mode: (RunMode, LogitsMode),
) -> Result<Vec<StepOutputs>, String> {
    let layer = LayerConfig {
        kv_heads: KV_HEADS,
        key_dim: DIM,
        value_dim: DIM,
        window: None,
        sinks: 0,
    };
    let config = CacheConfig::uniform(200, LAYERS, layer);
    match kind {
        "cells" => steps_on(
            backend,
            options,
            graph,
            make_seq_session(backend.id(), &config),
            steps,
            mode,
        ),
        "tree" => steps_on(
            backend,
            options,
            graph,
            make_tree_session(backend.id(), &config),
            steps,
            mode,
        ),
        _ => steps_on(
            backend,
            options,
            graph,
            make_decode_session(backend.id(), &config),
            steps,
            mode,
        ),
    }
}

fn steps_on<K>(
    backend: &dyn Backend,
    options: &CompileOptions,
    graph: &Arc<Graph>,
    made: SessionResult<K>,
    steps: &[Step],
    (mode, wanted): (RunMode, LogitsMode),
) -> Result<Vec<StepOutputs>, String> {
    let (_session, bound) = made.map_err(|e| e.to_string())?;
    let key = bound.cache_key.ok_or("no cache key")?;
    let entry = CacheRegistry::global().get(&key);
    let entry = entry.map_err(|e| e.to_string())?;
    let text = |e: backend::BackendError| e.to_string();
    let executable = backend.compile(graph.clone(), options).map_err(text)?;
    let mut runnable = Runnable::bind(graph.clone(), executable, Some(entry)).map_err(text)?;
    let step_options = StepOptions {
        mode,
        max_sequences: SEQUENCES,
        max_query_len: 1,
        max_tokens: 96,
        max_rows: SEQUENCES,
        // All sizes are recorded before the steps of one kind of outputs, and when they come for the others.
        record_all: wanted == LogitsMode::Argmax,
    };
    runnable.prepare(&step_options).map_err(text)?;
    let mut all = Vec::new();
    let mut outputs = StepOutputs::new(wanted);
    for step in steps {
        runnable.run_step(step, &mut outputs).map_err(text)?;
        all.push(outputs.clone());
    }
    Ok(all)
}

/// Embeddings, two layers of attention with rotated keys, and a head.
fn decoder() -> Arc<Graph> {
    let mut noise = TestRng::new(7);
    let mut b = GraphBuilder::new("decoder");
    let (t, r) = (b.symbol("T"), b.symbol("R"));
    let tokens = b.input("tokens", DType::I32, [t]);
    let position = b.input("position", DType::I32, [t]);
    let rows = b.input("rows", DType::I32, [r]);
    let width = HEADS * DIM;
    let mut weight = |b: &mut GraphBuilder, name: &str, shape: &[usize]| {
        let data = noise.weights(DType::F32, shape.iter().product());
        b.constant(name, DType::F32, shape, data)
            .expect("a whole constant")
    };
    let frequencies: Vec<u8> = (0..DIM / 2)
        .flat_map(|i| 0.5f32.powi(i as i32).to_le_bytes())
        .collect();
    let frequencies = b.constant(
        "frequencies",
        DType::F32,
        &[DIM / 2],
        Bytes::from(&frequencies[..]),
    );
    let frequencies = frequencies.expect("a whole constant");
    let table = RopeTable { magnitude: 1.0 };
    let table = b
        .node("table", table, &[position, frequencies])
        .expect("a table");
    let embeddings = weight(&mut b, "embeddings", &[VOCAB, width]);
    let mut x = b
        .node("embedded", GatherRows, &[embeddings, tokens])
        .expect("embeddings");
    for layer in 0..LAYERS {
        let mut product = |b: &mut GraphBuilder, name: &str, x, heads: usize| {
            let name = format!("{name}{layer}");
            let w = weight(b, &format!("{name}.weight"), &[heads * DIM, width]);
            let y = b
                .node(&name, Linear::default(), &[x, w])
                .expect("a product");
            let shape: Vec<Dim> = vec![t, heads.into(), DIM.into()];
            b.node(&format!("{name}.heads"), Reshape { shape }, &[y])
                .expect("heads")
        };
        let q = product(&mut b, "q", x, HEADS);
        let k = product(&mut b, "k", x, KV_HEADS);
        let v = product(&mut b, "v", x, KV_HEADS);
        let layout = RopeLayout::Halves;
        let rope = |b: &mut GraphBuilder, name: &str, x| {
            let name = format!("{name}{layer}.rotated");
            b.node(&name, Rope { layout }, &[x, table])
                .expect("a rotation")
        };
        let (q, k) = (rope(&mut b, "q", q), rope(&mut b, "k", k));
        let op = UpdateAndAttend {
            cache_id: layer as u32,
            scale: 0.25,
            softcap: None,
        };
        let attended = b
            .node(&format!("attend{layer}"), op, &[q, k, v, position])
            .expect("attention");
        let shape: Vec<Dim> = vec![t, width.into()];
        x = b
            .node(&format!("out{layer}"), Reshape { shape }, &[attended])
            .expect("rows");
    }
    let last = b.node("last", GatherRows, &[x, rows]).expect("wanted rows");
    let head = weight(&mut b, "head", &[VOCAB, width]);
    let logits = b
        .node("logits", Linear::default(), &[last, head])
        .expect("logits");
    Arc::new(b.finish(&[logits]).expect("a valid graph"))
}

/// A prompt in chunks, then decodes.
fn sequence_steps() -> Vec<Step> {
    let mut at = 0;
    let mut steps = vec![];
    for tokens in [5, 67, 1, 1, 17, 1] {
        let ids: Vec<u32> = (at..at + tokens).map(|i| i * 7 % VOCAB as u32).collect();
        let mut step = Step::sequence(&ids, at);
        if tokens != 67 {
            step.want_last();
        }
        steps.push(step);
        at += tokens;
    }
    steps
}

/// Prompts and decodes of several sequences side by side.
fn mixed_steps() -> Vec<Step> {
    let mut held = [0u32; SEQUENCES];
    let parts: [&[(u32, u32)]; 8] = [
        &[(0, 9)],
        &[(0, 1), (1, 12)],
        &[(0, 1), (1, 1), (2, 3), (3, 70)],
        &[(0, 1), (1, 1), (2, 1), (3, 1)],
        &[(3, 1), (1, 1), (4, 2), (5, 1)],
        &[(0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1)],
        &[(5, 1)],
        &[(2, 1), (4, 1), (5, 1)],
    ];
    let step = |parts: &[(u32, u32)]| {
        let mut step = Step::default();
        for &(seq, tokens) in parts {
            let at = &mut held[seq as usize];
            let ids: Vec<u32> = (0..tokens)
                .map(|i| (11 * seq + 3 * (*at + i)) % VOCAB as u32)
                .collect();
            step.extend(seq, *at, &ids);
            step.want_last();
            *at += tokens;
        }
        step
    };
    parts.into_iter().map(step).collect()
}

/// A prompt, and a tree of candidates in two forwards.
fn tree_steps() -> Vec<Step> {
    let ids: Vec<u32> = (0..6).collect();
    let mut prompt = Step::sequence(&ids, 0);
    prompt.want_last();
    let candidates = |nodes: &[(Option<u32>, i32)]| {
        let mut step = Step::default();
        for (i, &(parent, depth)) in nodes.iter().enumerate() {
            let row = step.push(StepToken {
                id: 10 + i as u32,
                position: 6 + depth,
                seq: 0,
                role: Role::Candidate { parent },
            });
            step.want(row);
        }
        step
    };
    let first = candidates(&[
        (None, 0),
        (None, 0),
        (Some(0), 1),
        (Some(1), 1),
        (Some(2), 2),
    ]);
    let second = candidates(&[(Some(4), 3), (Some(3), 2), (Some(4), 3)]);
    vec![prompt, first, second]
}
