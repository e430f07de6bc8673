//! The ops that decoders are made of.

use crate::op_case::Operand::{Index, Rows, Weight};
use crate::op_case::{OpCase, Operand};
use base::DType;
use graph::Dim;
use graph::ops::{
    Activation, Binary, BinaryFunction, Gated, GatherRows, LayerNorm, Linear, Op, Reshape, RmsNorm,
    Rope, RopeLayout, RopeTable, Scale, SoftCap, Unary,
};

pub(super) fn cases() -> Vec<OpCase> {
    let vector = |n: usize| Weight(DType::F32, vec![n]);
    let mut cases = Vec::new();
    let mut add = |op: Op, tokens: usize, operands: &[Operand]| {
        cases.push(OpCase::new(op, tokens, operands, cases.len() as u64 + 1));
    };
    for tokens in [1, 2, 3, 7, 50] {
        // Widths around a vector's sixteen lanes, one that is divided over threads, and odd ones.
        for width in [1, 5, 16, 33, 576] {
            let row = || Rows(vec![width]);
            for function in [BinaryFunction::Add, BinaryFunction::Mul] {
                add(Binary { function }.into(), tokens, &[row(), row()]);
                add(Binary { function }.into(), tokens, &[row(), vector(width)]);
            }
            for function in Activation::ALL {
                let unary = Unary {
                    function: function.into(),
                };
                add(unary.into(), tokens, &[row()]);
                add(Gated { function }.into(), tokens, &[row(), row()]);
            }
            add(Scale { factor: -1.75 }.into(), tokens, &[row()]);
            add(SoftCap { cap: 1.5 }.into(), tokens, &[row()]);
            add(
                RmsNorm { eps: 1e-5 }.into(),
                tokens,
                &[row(), vector(width)],
            );
            add(
                LayerNorm { eps: 1e-5 }.into(),
                tokens,
                &[row(), vector(width), vector(width)],
            );
        }
        for dtype in DType::ALL.into_iter().filter(|t| t.is_real()) {
            let widths: &[usize] = match dtype.block_len() {
                1 => &[3, 16, 40],
                32 => &[32, 96],
                _ => &[256, 512],
            };
            for &k in widths {
                let (x, weight) = (|| Rows(vec![k]), |n: usize| Weight(dtype, vec![n, k]));
                add(Linear::default().into(), tokens, &[x(), weight(37)]);
                add(
                    Linear::default().into(),
                    tokens,
                    &[x(), weight(5), vector(5)],
                );
                for index in [DType::I32, DType::I64] {
                    add(GatherRows.into(), tokens, &[weight(9), Index(index, 9)]);
                }
                for activation in Activation::ALL {
                    let activation = Some(activation);
                    let op = Linear { activation };
                    add(op.clone().into(), tokens, &[x(), weight(7)]);
                    add(op.into(), tokens, &[x(), weight(7), vector(7)]);
                }
            }
        }
        for (heads, dim, rotated) in [(1, 4, 4), (3, 64, 64), (2, 80, 32)] {
            for layout in [RopeLayout::Interleaved, RopeLayout::Halves] {
                add(
                    Rope { layout }.into(),
                    tokens,
                    &[Rows(vec![heads, dim]), Rows(vec![rotated])],
                );
            }
            for index in [DType::I32, DType::I64] {
                let operands = [Index(index, 4000), vector(rotated / 2)];
                add(RopeTable { magnitude: 1.25 }.into(), tokens, &operands);
            }
        }
        let shape = vec![Dim::from(graph::Symbol(0)), 4.into(), 6.into()];
        add(Reshape { shape }.into(), tokens, &[Rows(vec![24])]);
    }
    cases
}
