//! Every weight type and op of a small graph, emitted, compiled and compared with the CPU backend's generic tier.

use backend::{Backend, CompileOptions, Footprint, FootprintRequest};
use base::{Bytes, DType};
use cpu::{Cpu, Isa};
use emit::{EmitOptions, Program, ProgramPlan, Regions};
use graph::ops::{
    Activation, Binary, BinaryFunction, Concat, Conv, Expand, ExpertScores, Gated, GatherRows,
    LayerNorm, Linear, Permute, Pool, PoolFunction, Reshape, RmsNorm, RouteExperts, Scale, Slice,
    SoftCap, Unary, WindowAxis,
};
use graph::{Bindings, Dim, Graph, GraphBuilder, TensorId, Value};
use kv::CacheConfig;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

const DRIVER: &str = include_str!("driver.c");
/// Rows of tables, outputs of layers, and width of rows.
const ROWS: usize = 40;
const OUTPUTS: usize = 37;
const WIDTH: usize = 512;
/// The most tokens of a step.
const STEP: usize = 24;

/// Deterministic bytes.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n)
            .map(|_| self.next() as f32 / (1u64 << 30) as f32 - 1.0)
            .collect()
    }

    /// Blocks of a type with scales of a reasonable size.
    fn blocks(&mut self, dtype: DType, elements: usize) -> Vec<u8> {
        let halves: &[usize] = match dtype {
            DType::F32 => {
                return self
                    .floats(elements)
                    .iter()
                    .flat_map(|x| x.to_le_bytes())
                    .collect();
            }
            DType::F16 | DType::BF16 => {
                // Exponents near that of one, with either sign.
                let one = if dtype == DType::F16 {
                    0x3400u16
                } else {
                    0x3e00
                };
                let word = |noise: &mut Noise| one | (noise.next() as u16 & 0x81ff);
                return (0..elements)
                    .flat_map(|_| word(self).to_le_bytes())
                    .collect();
            }
            DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
            DType::Q2_K => &[80, 82],
            DType::Q3_K => &[108],
            DType::Q6_K => &[208],
            DType::MXFP4 => &[],
            _ => &[0],
        };
        let (len, bytes) = (dtype.block_len(), dtype.block_bytes());
        let mut all = Vec::new();
        for _ in 0..elements / len {
            let mut block: Vec<u8> = (0..bytes).map(|_| self.next() as u8).collect();
            for at in halves {
                let half = 0x2000 | (self.next() as u16 & 0x83ff);
                block[*at..at + 2].copy_from_slice(&half.to_le_bytes());
            }
            if dtype == DType::MXFP4 {
                // Powers of two below one.
                block[0] = 118 + block[0] % 8;
            }
            all.extend(block);
        }
        all
    }
}

struct Builder {
    graph: GraphBuilder,
    noise: Noise,
    count: usize,
}

impl Builder {
    fn constant(&mut self, dtype: DType, shape: &[usize]) -> TensorId {
        let bytes = self.noise.blocks(dtype, shape.iter().product());
        self.count += 1;
        let name = format!("constant.{}", self.count);
        self.graph
            .constant(&name, dtype, shape, Bytes::from(&bytes[..]))
            .unwrap()
    }

    fn node(&mut self, op: impl Into<graph::ops::Op>, inputs: &[TensorId]) -> TensorId {
        self.count += 1;
        let name = format!("node.{}", self.count);
        self.graph.node(&name, op, inputs).unwrap()
    }
}

/// A graph with every weight type and all ops that need no cache and no table of positions.
fn everything() -> Graph {
    let mut graph = GraphBuilder::new("forward");
    let tokens_dim = graph.symbol("T");
    let tokens = graph.input("tokens", DType::I32, [tokens_dim]);
    graph.input("position", DType::I32, [tokens_dim]);
    graph.input("text", DType::I32, [tokens_dim]);
    let mut b = Builder {
        graph,
        noise: Noise(7),
        count: 0,
    };
    let types = DType::ALL.into_iter().filter(|dtype| dtype.is_real());
    let (mut parts, mut tied) = (Vec::new(), Vec::new());
    for (i, dtype) in types.enumerate() {
        let table = b.constant(dtype, &[ROWS, WIDTH]);
        let rows = b.node(GatherRows, &[table, tokens]);
        let weight = b.constant(dtype, &[OUTPUTS, WIDTH]);
        let activation = Some(Activation::ALL[i % Activation::ALL.len()]).filter(|_| i % 2 == 0);
        let product = if i % 3 == 0 {
            let bias = b.constant(DType::F32, &[OUTPUTS]);
            b.node(Linear { activation }, &[rows, weight, bias])
        } else {
            b.node(Linear { activation }, &[rows, weight])
        };
        parts.push(product);
        // A table that is the weight of a product as well.
        let table = b.constant(dtype, &[ROWS, WIDTH]);
        let rows = b.node(GatherRows, &[table, tokens]);
        tied.push(b.node(Linear { activation: None }, &[rows, table]));
    }
    let x = parts[0];
    let vector = b.constant(DType::F32, &[OUTPUTS]);
    let bias = b.constant(DType::F32, &[OUTPUTS]);
    for function in Activation::ALL {
        let scaled = b.node(Scale { factor: 0.37 }, &[x]);
        parts.push(b.node(
            Unary {
                function: function.into(),
            },
            &[scaled],
        ));
        parts.push(b.node(Gated { function }, &[x, parts[1]]));
    }
    for function in [
        BinaryFunction::Add,
        BinaryFunction::Sub,
        BinaryFunction::Mul,
        BinaryFunction::Div,
        BinaryFunction::Min,
        BinaryFunction::Max,
    ] {
        parts.push(b.node(Binary { function }, &[x, vector]));
        parts.push(b.node(Binary { function }, &[parts[2], parts[3]]));
    }
    parts.push(b.node(SoftCap { cap: 3.0 }, &[x]));
    parts.push(b.node(RmsNorm { eps: 1e-5 }, &[x, vector]));
    parts.push(b.node(LayerNorm { eps: 1e-5 }, &[x, vector, bias]));
    let row = b.node(
        Slice {
            axis: 1,
            start: Dim::from(3),
            len: Dim::from(OUTPUTS - 3),
            step: 1,
        },
        &[x],
    );
    parts.push(row);
    let turned = b.node(Permute { axes: vec![1, 0] }, &[x]);
    parts.push(b.node(Permute { axes: vec![1, 0] }, &[turned]));
    let shape = vec![tokens_dim, Dim::from(OUTPUTS)];
    parts.push(b.node(Expand { shape }, &[vector]));
    parts.extend(tied);
    parts.extend(windows(&mut b, tokens_dim, tokens));
    let all = b.node(Concat { axis: 1 }, &parts);
    b.graph.finish(&[all]).unwrap()
}

/// Rows of convolutions and pools of an image for each token.
fn windows(b: &mut Builder, tokens_dim: Dim, tokens: TensorId) -> Vec<TensorId> {
    let axes = |[size, stride, dilation, before, after]: [usize; 5]| {
        let axis = WindowAxis {
            size,
            stride,
            dilation,
            before,
            after,
        };
        vec![axis; 2]
    };
    let table = b.constant(DType::F32, &[ROWS, WIDTH]);
    let rows = b.node(GatherRows, &[table, tokens]);
    let shape = [8, 8, 8].map(Dim::from);
    let shape = [tokens_dim].into_iter().chain(shape).collect();
    let image = b.node(Reshape { shape }, &[rows]);
    let conv = |b: &mut Builder, x: TensorId, axis, weight: [usize; 4], rest: &[TensorId]| {
        let op = Conv {
            axes: axes(axis),
            groups: if weight[1] == 1 { weight[0] } else { 1 },
            activation: match rest.len() {
                0 => Some(Activation::HardSwish),
                _ => Some(Activation::Silu),
            },
        };
        let weights = b.constant(DType::F32, &weight);
        let bias = b.constant(DType::F32, &weight[..1]);
        b.node(op, &[&[x, weights, bias], rest].concat())
    };
    let by_channel = conv(b, image, [3, 2, 1, 1, 0], [8, 1, 3, 3], &[]);
    let wide = conv(b, image, [1, 1, 1, 0, 0], [30, 8, 1, 1], &[]);
    let summed = conv(b, image, [3, 1, 1, 1, 1], [30, 8, 3, 3], &[wide]);
    // A result is the sum of two chains.
    let deep = conv(b, summed, [3, 2, 2, 1, 2], [26, 30, 3, 3], &[]);
    let mut images = vec![by_channel, deep];
    for function in PoolFunction::ALL {
        let axes = axes([3, 2, 1, 1, 1]);
        images.push(b.node(Pool { axes, function }, &[image]));
    }
    let flat = |image: TensorId| {
        let shape = &b.graph.ty(image).shape;
        let width = shape[1..]
            .iter()
            .map(|dim| dim.as_const().unwrap())
            .product::<usize>();
        let shape = vec![tokens_dim, Dim::from(width)];
        b.node(Reshape { shape }, &[image])
    };
    images.into_iter().map(flat).collect()
}

/// Emits the graph to a folder.
fn emit_to(graph: &Graph, cpu: &Cpu, folder: &Path) {
    with_plan(graph, cpu, |plan| {
        let program = Program::new(plan, &EmitOptions::default()).unwrap();
        program.write(folder, &mut |_, _| true).unwrap();
    });
    std::fs::write(folder.join("driver.c"), DRIVER).unwrap();
}

/// Calls `with` with a plan of the graph's program.
fn with_plan<T>(graph: &Graph, cpu: &Cpu, with: impl FnOnce(&ProgramPlan<'_>) -> T) -> T {
    let options = CompileOptions {
        threads: Some(1),
        ..CompileOptions::default()
    };
    let config = CacheConfig::new(STEP as u32, vec![]);
    let is_weight = |id: TensorId| graph.tensor(id).constant().is_some();
    let request = FootprintRequest {
        bindings: Bindings([STEP, 0, 0, 0]),
        options: &options,
        is_weight: &is_weight,
        cache: (&config, 1),
    };
    let Footprint { arena, kv, .. } = cpu.footprint(graph, &request).unwrap();
    let end = arena.arena_bytes;
    let plan = ProgramPlan {
        name: "everything",
        graph,
        memory: &arena,
        kv: &kv,
        regions: Regions {
            kv: 0,
            arena: 0,
            logits: end,
            end,
        },
        context: STEP,
        max_step: STEP,
        vocab: 0,
        tokenizer: None,
    };
    with(&plan)
}

#[test]
fn routed_experts_are_refused_by_name() {
    let mut graph = GraphBuilder::new("forward");
    let tokens_dim = graph.symbol("T");
    let tokens = graph.input("tokens", DType::I32, [tokens_dim]);
    graph.input("position", DType::I32, [tokens_dim]);
    graph.input("text", DType::I32, [tokens_dim]);
    let mut b = Builder {
        graph,
        noise: Noise(9),
        count: 0,
    };
    let table = b.constant(DType::F32, &[ROWS, 8]);
    let logits = b.node(GatherRows, &[table, tokens]);
    let route = RouteExperts {
        used: 2,
        scores: ExpertScores::Softmax,
        normalise: true,
        scale: 1.0,
        groups: None,
    };
    let routed = b.node(route, &[logits]);
    let graph = b.graph.finish(&[routed]).unwrap();
    let generic = Isa::available()
        .into_iter()
        .find(|isa| isa.name() == "generic");
    let cpu = Cpu::with_isa(generic.unwrap());
    let error = with_plan(&graph, &cpu, |plan| {
        let program = Program::new(plan, &EmitOptions::default());
        program.err().expect("no program").to_string()
    });
    assert!(error.contains("route_experts"), "{error}");
    assert!(error.contains("there is no C of this op"), "{error}");
}

fn compile(folder: &Path, compiler: &str, flags: &[&str]) -> PathBuf {
    let program = folder.join(format!("driver{}", flags.join("")));
    let output = Command::new(compiler)
        .current_dir(folder)
        .args(flags)
        .args([
            "-std=c11",
            "-ffp-contract=off",
            "-Wall",
            "-Wextra",
            "-Werror",
        ])
        .args(["driver.c", "model.c", "kernels.c", "-lm", "-o"])
        .arg(&program)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    program
}

#[test]
fn every_type_and_op_computes_the_bits_of_the_generic_tier() {
    let there = |name: &str| {
        Command::new(name)
            .arg("--version")
            .output()
            .is_ok_and(|o| o.status.success())
    };
    if !there("cc") {
        let _ = writeln!(std::io::stderr(), "skipped: there is no C compiler cc");
        return;
    }
    let folder = std::env::temp_dir().join(format!("kvark-emit-types-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let graph = everything();
    let cpu = Cpu::with_isa(Isa::GENERIC);
    emit_to(&graph, &cpu, &folder);
    let options = CompileOptions {
        threads: Some(1),
        ..CompileOptions::default()
    };
    let mut compiled = cpu.compile(Arc::new(graph), &options).unwrap();
    let mut programs = vec![
        compile(&folder, "cc", &["-O0"]),
        compile(&folder, "cc", &["-O2"]),
        compile(&folder, "cc", &["-O3", "-march=native"]),
        // Without the vector extensions of GCC and Clang.
        compile(&folder, "cc", &["-O1", "-DNO_LANES"]),
    ];
    if there("clang") {
        programs.push(compile(&folder, "clang", &["-O3"]));
    }
    for count in [1usize, 3, STEP] {
        let ids: Vec<i32> = (0..count).map(|i| (i * 7 % ROWS) as i32).collect();
        let inputs = [
            Value::i32([count], ids.clone()),
            Value::i32([count], (0..count as i32).collect()),
            Value::i32([count], vec![0; count]),
        ];
        let expect = compiled.run(&inputs, None, None).unwrap();
        let expect = expect[0].as_f32().unwrap();
        let ids: Vec<String> = ids.iter().map(i32::to_string).collect();
        for program in &programs {
            let mut child = Command::new(program)
                .current_dir(&folder)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let text = format!("e {count} {}\n", ids.join(" "));
            child
                .stdin
                .take()
                .unwrap()
                .write_all(text.as_bytes())
                .unwrap();
            let output = child.wait_with_output().unwrap();
            let words = output.stdout.as_chunks::<4>().0.iter();
            let found: Vec<f32> = words.map(|four| f32::from_le_bytes(*four)).collect();
            assert_eq!(found.len(), 1 + expect.len());
            let width = expect.len() / count;
            for (i, (a, b)) in found[1..].iter().zip(expect).enumerate() {
                let same = a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
                let (token, column) = (i / width, i % width);
                assert!(
                    same,
                    "{program:?}: token {token}, part {}, {a} is not {b}",
                    column / OUTPUTS
                );
            }
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
