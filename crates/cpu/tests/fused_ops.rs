//! A fused op computes the bits that its nodes compute one by one, with weights of every kind of kernel.

use backend::{Backend, CompileOptions, ExecutorKind};
use base::{Bytes, DType};
use cpu::{Cpu, Isa};
use graph::ops::{
    Activation, Binary, BinaryFunction, Gated, LayerNorm, Linear, Op, Reshape, RmsNorm, Scale,
};
use graph::{Graph, GraphBuilder, TensorId, Value};
use std::sync::Arc;

const WIDTH: usize = 64;
const HIDDEN: usize = 96;

/// Numbers without a pattern.
fn noise(seed: u64) -> impl Iterator<Item = u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    })
}

/// A weight of `[n, k]` small numbers of any type.
fn weight(b: &mut GraphBuilder, name: &str, dtype: DType, [n, k]: [usize; 2]) -> TensorId {
    let elements = n * k / dtype.block_len();
    let seed = name.bytes().map(u64::from).sum();
    let mut noise = noise(seed);
    let mut number = || f32::from(noise.next().unwrap()) / 1024.0 - 0.125;
    let mut bytes = Vec::new();
    for _ in 0..elements {
        match dtype {
            DType::F32 => bytes.extend(number().to_le_bytes()),
            DType::F16 => bytes.extend(half::f16::from_f32(number()).to_le_bytes()),
            DType::BF16 => bytes.extend(half::bf16::from_f32(number()).to_le_bytes()),
            // A scale and codes.
            _ => {
                bytes.extend(half::f16::from_f32(0.01).to_le_bytes());
                let codes = dtype.block_bytes() - 2;
                bytes.extend((0..codes).map(|_| (number() * 1024.0) as i8 as u8));
            }
        }
    }
    b.constant(name, dtype, &[n, k], Bytes::from_slice(&bytes))
        .unwrap()
}

/// Norms, products of the same rows, gates in both orders, and residuals, among them a product's own rows.
fn graph(dtype: DType) -> Graph {
    let mut b = GraphBuilder::new("fused");
    let t = b.symbol("T");
    let input = b.input("x", DType::F32, [t, WIDTH.into()]);
    let ones: Vec<f32> = (0..WIDTH).map(|i| 1.0 + i as f32 / 100.0).collect();
    let ones = b
        .constant("ones", DType::F32, &[WIDTH], Bytes::from_slice(&ones))
        .unwrap();
    let mut count = 0;
    let mut node = |b: &mut GraphBuilder, op: Op, inputs: &[TensorId]| {
        count += 1;
        b.node(&format!("n{count}"), op, inputs).unwrap()
    };
    let linear = || Op::from(Linear::default());
    let add = || {
        Op::from(Binary {
            function: BinaryFunction::Add,
        })
    };
    let [square, wide, narrow] = [[WIDTH; 2], [HIDDEN, WIDTH], [WIDTH, HIDDEN]];
    let mut x = node(&mut b, Scale { factor: 0.5 }.into(), &[input]);
    for layer in 0..2 {
        let weights = ["a", "b", "c", "up", "gate", "down", "own"];
        let shapes = [square, square, square, wide, wide, narrow, square];
        let weights: Vec<TensorId> = weights
            .iter()
            .zip(shapes)
            .map(|(name, shape)| weight(&mut b, &format!("{name}{layer}"), dtype, shape))
            .collect();
        let eps = 1e-5;
        let norm = node(&mut b, RmsNorm { eps }.into(), &[x, ones]);
        let shape = vec![t, 2.into(), (WIDTH / 2).into()];
        let p = node(&mut b, linear(), &[norm, weights[0]]);
        let _ = node(&mut b, Reshape { shape }.into(), &[p]);
        let q = node(&mut b, linear(), &[norm, weights[1]]);
        let r = node(&mut b, linear(), &[norm, weights[2]]);
        let pq = node(&mut b, add(), &[p, q]);
        let pqr = node(&mut b, add(), &[pq, r]);
        x = node(&mut b, add(), &[x, pqr]);
        let norm = node(&mut b, LayerNorm { eps }.into(), &[x, ones, ones]);
        let up = node(&mut b, linear(), &[norm, weights[3]]);
        let gate = node(&mut b, linear(), &[norm, weights[4]]);
        let operands = if layer == 0 { [gate, up] } else { [up, gate] };
        let function = Activation::Silu;
        let gated = node(&mut b, Gated { function }.into(), &operands);
        let down = node(&mut b, linear(), &[gated, weights[5]]);
        x = node(&mut b, add(), &[down, x]);
        let own = node(&mut b, linear(), &[x, weights[6]]);
        x = node(&mut b, add(), &[own, x]);
    }
    b.finish(&[x]).unwrap()
}

#[test]
fn fused_ops_have_the_bits_of_their_nodes() {
    let types = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::Q4_0,
        DType::Q8_0,
    ];
    for (isa, dtype) in Isa::available()
        .into_iter()
        .flat_map(|isa| types.map(|dtype| (isa, dtype)))
    {
        let graph = Arc::new(graph(dtype));
        let mut executables = [ExecutorKind::Compiled, ExecutorKind::Interpreted].map(|executor| {
            let options = CompileOptions {
                threads: Some(3),
                executor,
                ..CompileOptions::default()
            };
            Cpu::with_isa(isa).compile(graph.clone(), &options).unwrap()
        });
        for tokens in [1, 3, 20, 70] {
            let x = noise(tokens as u64).take(tokens * WIDTH);
            let x = x.map(|x| f32::from(x) / 128.0 - 1.0).collect();
            let x = [Value::f32([tokens, WIDTH], x)];
            let [fused, alone] = executables.each_mut().map(|executable| {
                let mut outputs = executable.run(&x, None, None).unwrap();
                let output = outputs.remove(0);
                let bits = output.as_f32().unwrap().iter().map(|x| x.to_bits());
                bits.collect::<Vec<u32>>()
            });
            assert!(fused == alone, "{isa}, {dtype}, {tokens} tokens");
        }
    }
}
