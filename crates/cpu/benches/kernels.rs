//! `cargo bench -p kvark-cpu`: the time of products and of attention without a cache by size, through the backend as models
//! call it. `KVARK_ISA` chooses the tier; an argument that is a number is the number of threads (one without it),
//! and `quantised` leaves out everything but products of quantised weights.
//!
//! A run of a graph copies its operands in and its result out, so the smallest products show the cost of a call.

use backend::{Backend, CompileOptions, Precision, Runnable};
use base::DType;
use conformance::TestRng;
use cpu::Cpu;
use graph::ops::{Attention, Linear};
use graph::{Graph, GraphBuilder, Value};
use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

/// Rows, columns and depth of the products.
const PRODUCTS: [(usize, usize, usize); 11] = [
    (1, 512, 512),
    (2, 512, 512),
    (4, 512, 512),
    (8, 512, 512),
    (12, 512, 512),
    (16, 64, 64),
    (32, 512, 512),
    (128, 512, 512),
    (1, 2048, 2048),
    (32, 2048, 2048),
    (512, 1024, 256),
];
/// Keys of the attentions, below and above the number from which flash attention is used.
const KEYS: [usize; 8] = [128, 512, 1024, 2047, 2048, 4096, 8192, 16384];
const QUERIES: usize = 96;
const HEAD_DIM: usize = 64;

/// Types of quantised products.
const QUANTISED: [DType; 6] = [
    DType::Q4_0,
    DType::Q4_1,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
    DType::Q8_0,
];
/// Rows of quantised products.
const ROWS: [usize; 7] = [1, 2, 4, 8, 16, 32, 256];
/// Columns and depth of quantised products: a weight that fits the caches of a core.
const COLUMNS: usize = 512;
const DEPTH: usize = 1536;

fn product(dtype: DType, [m, n, k]: [usize; 3], rng: &mut TestRng) -> (Graph, Vec<Value>) {
    let mut builder = GraphBuilder::new("product");
    let x = builder.input("x", DType::F32, [m.into(), k.into()]);
    let weight = rng.weights(dtype, n * k);
    let weight = builder
        .constant("weight", dtype, &[n, k], weight)
        .expect("the bytes of the shape");
    let y = builder
        .node("y", Linear::default(), &[x, weight])
        .expect("operands of a product");
    let graph = builder.finish(&[y]).expect("a graph");
    (graph, vec![Value::f32([m, k], rng.units(m * k))])
}

fn attention(keys: usize, rng: &mut TestRng) -> (Graph, Vec<Value>) {
    let mut builder = GraphBuilder::new("attention");
    let shapes = [QUERIES, keys, keys].map(|tokens| [1, 1, tokens, HEAD_DIM]);
    let operands: Vec<_> = ["q", "k", "v"]
        .iter()
        .zip(shapes)
        .map(|(name, shape)| builder.input(name, DType::F32, shape.map(Into::into)))
        .collect();
    let op = Attention {
        scale: 0.125,
        causal: false,
        softcap: None,
        token_major: false,
    };
    let y = builder
        .node("y", op, &operands)
        .expect("operands of attention");
    let graph = builder.finish(&[y]).expect("a graph");
    let inputs = shapes.map(|shape| Value::f32(shape, rng.units(shape.iter().product())));
    (graph, inputs.to_vec())
}

/// Seconds of a run in each precision: the fifth fastest of 40 times, each of so many runs that it takes a millisecond. The precisions
/// take turns.
fn seconds<const N: usize>(
    cpu: &Cpu,
    threads: usize,
    precisions: [Precision; N],
    (graph, inputs): (Graph, Vec<Value>),
) -> [f64; N] {
    let graph = Arc::new(graph);
    let mut runnables = precisions.map(|precision| {
        let options = CompileOptions {
            threads: Some(threads),
            precision,
            ..CompileOptions::default()
        };
        let executable = cpu.compile(graph.clone(), &options).expect("it compiles");
        Runnable::bind(graph.clone(), executable, None).expect("it has no cache")
    });
    let time = |runnable: &mut Runnable, runs: usize| {
        let start = Instant::now();
        for _ in 0..runs {
            runnable.run(&inputs).expect("it runs");
        }
        start.elapsed().as_secs_f64() / runs as f64
    };
    let runs = (1e-3 / time(&mut runnables[0], 1)).clamp(1.0, 1000.0) as usize;
    let mut times = [(); N].map(|()| vec![]);
    for _ in 0..40 {
        for (runnable, times) in runnables.iter_mut().zip(&mut times) {
            times.push(time(runnable, runs));
        }
    }
    times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[4]
    })
}

/// Products of every type in every precision. No activation stands out of its row, so no block has a second plane.
fn quantised_products(cpu: &Cpu, threads: usize, out: &mut impl Write) -> std::io::Result<()> {
    let mut rng = TestRng::new(1);
    let names = Precision::ALL.map(Precision::name).join(" and ");
    writeln!(out, "{COLUMNS} x {DEPTH} by rows: GMAC/s in {names}")?;
    for dtype in QUANTISED {
        write!(out, "{dtype:>5}:")?;
        for m in ROWS {
            let product = product(dtype, [m, COLUMNS, DEPTH], &mut rng);
            let times = seconds(cpu, threads, Precision::ALL, product);
            let [high, balanced, fast] = times.map(|t| 1e-9 * (m * COLUMNS * DEPTH) as f64 / t);
            let ratio = balanced / high;
            write!(out, "  {m}: {high:.0} {balanced:.0} ({ratio:.2}) {fast:.0}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn main() -> std::io::Result<()> {
    // Cargo passes `--bench`.
    let threads = std::env::args()
        .find_map(|arg| arg.parse().ok())
        .unwrap_or(1);
    let cpu = Cpu::new().expect("a tier that the CPU has");
    let mut rng = TestRng::new(1);
    let mut out = std::io::stdout();
    writeln!(out, "{}, {threads} threads", cpu.isa())?;
    quantised_products(&cpu, threads, &mut out)?;
    if std::env::args().any(|arg| arg == "quantised") {
        return Ok(());
    }
    let high = [Precision::High];
    writeln!(out, "product (m x n x k): us, GFLOP/s, GB/s of weights")?;
    for (m, n, k) in PRODUCTS {
        let [time] = seconds(
            &cpu,
            threads,
            high,
            product(DType::F32, [m, n, k], &mut rng),
        );
        let flops = 2e-9 * (m * n * k) as f64 / time;
        let bytes = 4e-9 * (n * k) as f64 / time;
        let us = time * 1e6;
        writeln!(out, "{m} x {n} x {k}: {us:.1}, {flops:.1}, {bytes:.1}")?;
    }
    writeln!(
        out,
        "attention of {QUERIES} queries, head dim {HEAD_DIM}: us, ns per key"
    )?;
    for keys in KEYS {
        let [time] = seconds(&cpu, threads, high, attention(keys, &mut rng));
        let (us, ns) = (time * 1e6, time * 1e9 / keys as f64);
        writeln!(out, "{keys} keys: {us:.0}, {ns:.0}")?;
    }
    Ok(())
}
