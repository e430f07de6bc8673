use super::run;
use crate::graph::TensorId;
use crate::ops::{Activation, BinaryFunction, Cast, Concat, MatMul, ReduceFunction, UnaryFunction};
use crate::passes::testing::{TestGraphBuilder, after, tokens};
use base::DType;

/// The text after fusing what `spell` makes of `x: f32[T, 8]`, without its first and last line.
fn fused(spell: impl Fn(&mut TestGraphBuilder, TensorId) -> TensorId) -> Vec<String> {
    let mut s = TestGraphBuilder::new();
    let t = tokens(&mut s);
    let x = s.input("x", [t, 8.into()]);
    let y = spell(&mut s, x);
    let text = after(s.finish(&[y]), run);
    let nodes = text.lines().filter(|line| line.contains(" = "));
    nodes
        .map(|line| line.split(" = ").nth(1).unwrap().to_owned())
        .collect()
}

#[test]
fn gelu_by_tanh_in_its_spellings() {
    type Cube = fn(&mut TestGraphBuilder, TensorId) -> TensorId;
    let cubes: [Cube; 3] = [
        |s, x| s.power(x, 3.0),
        |s, x| {
            let square = s.mul(x, x);
            s.mul(square, x)
        },
        |s, x| {
            let square = s.power(x, 2.0);
            s.mul(x, square)
        },
    ];
    for cube in cubes {
        let spelled = fused(|s, x| {
            let half = s.times(x, 0.5);
            let cube = cube(s, x);
            let cube = s.times(cube, 0.044715);
            let sum = s.add(x, cube);
            let inner = s.times(sum, 0.797_884_6);
            let tanh = s.unary(Activation::Tanh, inner);
            let sum = s.plus(tanh, 1.0);
            s.mul(half, sum)
        });
        assert_eq!(spelled, ["unary(x) {function: gelu_tanh}"]);
    }
    let fast = fused(|s, x| {
        let scaled = s.times(x, 0.797_884_6);
        let cubic = s.times(x, 0.044715);
        let cubic = s.mul(cubic, x);
        let cubic = s.plus(cubic, 1.0);
        let inner = s.mul(scaled, cubic);
        let tanh = s.unary(Activation::Tanh, inner);
        let sum = s.plus(tanh, 1.0);
        let half = s.times(x, 0.5);
        s.mul(half, sum)
    });
    assert_eq!(fast, ["unary(x) {function: gelu_tanh}"]);
}

#[test]
fn gelu_by_erf_silu_and_gates() {
    let erf = fused(|s, x| {
        let root = s.number(std::f32::consts::SQRT_2);
        let inner = s.binary(BinaryFunction::Div, x, root);
        let erf = s.unary(UnaryFunction::Erf, inner);
        let sum = s.plus(erf, 1.0);
        let y = s.mul(x, sum);
        s.times(y, 0.5)
    });
    assert_eq!(erf, ["unary(x) {function: gelu_erf}"]);
    let gate = fused(|s, x| {
        let up = s.power(x, 2.0);
        let sigmoid = s.unary(Activation::Sigmoid, x);
        let silu = s.mul(sigmoid, x);
        s.mul(up, silu)
    });
    assert_eq!(gate, ["pow(x, c1)", "gated(x, n1) {function: silu}"]);
    let shared = fused(|s, x| {
        let sigmoid = s.unary(Activation::Sigmoid, x);
        let silu = s.mul(sigmoid, x);
        s.add(silu, sigmoid)
    });
    assert_eq!(
        shared.len(),
        3,
        "the sigmoid is read by another: {shared:?}"
    );
}

#[test]
fn hard_swish_in_its_spellings() {
    // The limits of `x · slope + shift`, and what the product is divided by.
    for (slope, top, divisor, is_swish) in [
        (1.0, 6.0, 6.0, true),
        (1.0 / 6.0, 1.0, 1.0, true),
        (1.0, 6.0, 5.0, false),
        (0.2, 1.0, 1.0, false),
    ] {
        let spelled = fused(|s, x| {
            let inner = s.times(x, slope);
            let moved = s.plus(inner, top / 2.0);
            let limits = [0.0, top, divisor].map(|limit| s.number(limit));
            let low = s.binary(BinaryFunction::Max, moved, limits[0]);
            let gate = s.binary(BinaryFunction::Min, low, limits[1]);
            let y = s.mul(x, gate);
            s.binary(BinaryFunction::Div, y, limits[2])
        });
        let expect = ["unary(x) {function: hard_swish}".to_owned()];
        assert_eq!(spelled == expect, is_swish, "{spelled:?}");
    }
}

#[test]
fn norms() {
    let rms = fused(|s, x| {
        let square = s.power(x, 2.0);
        let mean = s.reduce(ReduceFunction::Mean, square);
        let sum = s.plus(mean, 1e-6);
        let inverse = s.unary(UnaryFunction::Rsqrt, sum);
        let normed = s.mul(x, inverse);
        let weight = s.weight("weight", &[8]);
        s.mul(normed, weight)
    });
    assert_eq!(rms, ["rms_norm(x, weight) {eps: 1e-6}"]);
    let divided = fused(|s, x| {
        let square = s.mul(x, x);
        let mean = s.reduce(ReduceFunction::Mean, square);
        let sum = s.plus(mean, 1e-6);
        let root = s.unary(UnaryFunction::Sqrt, sum);
        s.binary(BinaryFunction::Div, x, root)
    });
    assert_eq!(divided, ["rms_norm(x, n5.weight) {eps: 1e-6}"]);
    let layer = fused(|s, x| {
        let mean = s.reduce(ReduceFunction::Mean, x);
        let centred = s.binary(BinaryFunction::Sub, x, mean);
        let square = s.power(centred, 2.0);
        let variance = s.reduce(ReduceFunction::Mean, square);
        let sum = s.plus(variance, 1e-5);
        let inverse = s.unary(UnaryFunction::Rsqrt, sum);
        let normed = s.mul(centred, inverse);
        let (weight, bias) = (s.weight("weight", &[8]), s.weight("bias", &[8]));
        let scaled = s.mul(normed, weight);
        s.add(scaled, bias)
    });
    assert_eq!(layer, ["layer_norm(x, weight, bias) {eps: 1e-5}"]);
}

#[test]
fn softmax_and_soft_cap() {
    let softmax = fused(|s, x| {
        let max = s.reduce(ReduceFunction::Max, x);
        let around = s.binary(BinaryFunction::Sub, x, max);
        let weight = s.unary(UnaryFunction::Exp, around);
        let sum = s.reduce(ReduceFunction::Sum, weight);
        s.binary(BinaryFunction::Div, weight, sum)
    });
    assert_eq!(softmax, ["softmax(x) {axis: 1}"]);
    let cap = fused(|s, x| {
        let cap = s.number(30.0);
        let small = s.binary(BinaryFunction::Div, x, cap);
        let tanh = s.unary(Activation::Tanh, small);
        s.mul(tanh, cap)
    });
    assert_eq!(cap, ["soft_cap(x) {cap: 30}"]);
}

/// The rotary embedding as Hugging Face models write it: angles by a matrix product, one table for queries and keys.
#[test]
fn rotary_embedding() {
    let mut s = TestGraphBuilder::new();
    let t = tokens(&mut s);
    let position = s.builder.input("position", DType::I64, [1.into(), t]);
    let q = s.input("q", [1.into(), 3.into(), t, 8.into()]);
    let k = s.input("k", [1.into(), 2.into(), t, 8.into()]);
    let frequency = s.weight("frequency", &[1, 4, 1]);
    let position = s.reshape(position, [1.into(), 1.into(), t]);
    let position = s.op(Cast { to: DType::F32 }, &[position]);
    let angles = s.op(MatMul::default(), &[frequency, position]);
    let angles = s.permute(angles, &[0, 2, 1]);
    let angles = s.op(Concat { axis: 2 }, &[angles, angles]);
    let mut wave = |function| {
        let wave = s.unary(function, angles);
        let wave = s.times(wave, 1.25);
        s.reshape(wave, [1.into(), 1.into(), t, 8.into()])
    };
    let (cos, sin) = (wave(UnaryFunction::Cos), wave(UnaryFunction::Sin));
    let mut rotated = |x: TensorId| {
        let kept = s.mul(x, cos);
        let second = s.slice(x, 3, 4, 4);
        let second = s.unary(UnaryFunction::Neg, second);
        let first = s.slice(x, 3, 0, 4);
        let turned = s.op(Concat { axis: 3 }, &[second, first]);
        let turned = s.mul(turned, sin);
        s.add(kept, turned)
    };
    let outputs = [rotated(q), rotated(k)];
    let text = after(s.finish(&outputs), run);
    assert_eq!(text.matches("= rope(").count(), 2, "{text}");
    assert!(text.contains("{magnitude: 1.25}"), "{text}");
    assert!(!text.contains("cos") && !text.contains("concat("), "{text}");
}
