//! The ops that exported graphs are lowered to.

use crate::op_case::Operand::{Tensor, Weight};
use crate::op_case::Values::{Any, Positive, Whole};
use crate::op_case::{OpCase, Operand, SYMBOL_T as T, tokens as t};
use base::DType::{self, Bool, F32, I32, I64};
use graph::Dim;
use graph::ops::{
    Activation, ArgSort, Attention, Binary, BinaryFunction, Cast, Compare, CompareFunction, Concat,
    Conv, CumSum, Expand, Fill, Gather, GatherElements, GridSample, Index, MatMul, Op, Permute,
    Pool, PoolFunction, Range, Reduce, ReduceFunction, SampleMode, SamplePadding, Scalar, Scatter,
    ScatterFunction, Size, Slice, Softmax, Triangle, Unary, UnaryFunction, Where, WindowAxis,
    Windows,
};

/// The element types of a run.
const TYPES: [DType; 4] = [F32, I32, I64, Bool];

pub(super) fn cases() -> Vec<OpCase> {
    let mut cases = Cases(Vec::new());
    for tokens in [1, 3, 18] {
        cases.movement(tokens);
        cases.indexing(tokens);
        cases.elementwise(tokens);
        cases.along_axes(tokens);
        cases.made_of_nothing(tokens);
        cases.products(tokens);
        cases.convolutions(tokens);
        cases.sampled(tokens);
        cases.sorted_and_written(tokens);
        cases.attention(tokens);
    }
    cases.0
}

fn any(dtype: DType, shape: &[usize]) -> Operand {
    Tensor(dtype, shape.to_vec(), Any)
}

fn dims(shape: &[usize]) -> Vec<Dim> {
    let dim = |n: &usize| if *n == T { t() } else { Dim::from(*n) };
    shape.iter().map(dim).collect()
}

struct Cases(Vec<OpCase>);

impl Cases {
    fn add(&mut self, op: impl Into<Op>, tokens: usize, operands: &[Operand]) {
        let seed = self.0.len() as u64 + 1000;
        self.0.push(OpCase::new(op, tokens, operands, seed));
    }

    fn movement(&mut self, tokens: usize) {
        for dtype in TYPES {
            for axes in [[1, 0, 2, 3], [0, 2, 1, 3], [3, 1, 2, 0], [2, 3, 0, 1]] {
                let axes = axes.to_vec();
                self.add(Permute { axes }, tokens, &[any(dtype, &[2, T, 3, 5])]);
            }
            for (from, to) in [
                (&[T, 1, 4][..], &[T, 3, 4][..]),
                (&[1], &[T]),
                (&[T, 1], &[2, T, 5]),
                (&[], &[T, 2]),
                (&[2, 1, T], &[2, 3, T]),
            ] {
                let shape = dims(to);
                self.add(Expand { shape }, tokens, &[any(dtype, from)]);
            }
            for (axis, start, len, step) in [
                (0, Dim::from(0), t(), 1),
                (0, t() - Dim::from(1), Dim::from(1), 1),
                (1, Dim::from(2), Dim::from(3), 1),
                (1, Dim::from(1), Dim::from(3), 2),
                (2, Dim::from(1), Dim::from(2), 1),
                (2, Dim::from(0), Dim::from(2), 3),
            ] {
                let slice = Slice {
                    axis,
                    start,
                    len,
                    step,
                };
                self.add(slice, tokens, &[any(dtype, &[T, 6, 4])]);
            }
            let part = |n: usize| any(dtype, &[T, n, 3]);
            self.add(Concat { axis: 1 }, tokens, &[part(2), part(5)]);
            let six = [1, 2, 1, 4, 1, 3].map(part);
            self.add(Concat { axis: 1 }, tokens, &six);
            self.add(Concat { axis: 0 }, tokens, &[part(2), part(2), part(2)]);
            self.add(
                Concat { axis: 2 },
                tokens,
                &[part(2), any(dtype, &[T, 2, 1])],
            );
            for to in TYPES {
                self.add(Cast { to }, tokens, &[any(dtype, &[T, 37])]);
            }
        }
    }

    fn indexing(&mut self, tokens: usize) {
        for index in [I32, I64] {
            let indices =
                |shape: &[usize], size: i64| Tensor(index, shape.to_vec(), Whole(-size, size));
            for dtype in TYPES {
                let data = || any(dtype, &[4, 5, 3]);
                for axis in 0..3 {
                    let size = [4, 5, 3][axis];
                    self.add(Gather { axis }, tokens, &[data(), indices(&[T], size)]);
                    self.add(Gather { axis }, tokens, &[data(), indices(&[2, T], size)]);
                    self.add(Gather { axis }, tokens, &[data(), indices(&[], size)]);
                }
                let op = GatherElements { axis: 1 };
                self.add(op, tokens, &[data(), indices(&[3, 7, 2], 5)]);
                let (first, second) = (indices(&[T, 1], 4), indices(&[6], 5));
                self.add(Index, tokens, &[data(), first, second]);
                self.add(Index, tokens, &[data(), indices(&[T], 4)]);
            }
        }
    }

    fn elementwise(&mut self, tokens: usize) {
        let shapes: [[&[usize]; 2]; 7] = [
            [&[T, 37], &[T, 37]],
            [&[T, 37], &[37]],
            [&[37], &[T, 37]],
            [&[T, 1, 4], &[3, 1]],
            [&[2, T, 5], &[1, T, 1]],
            [&[], &[T, 20]],
            [&[T, 20], &[]],
        ];
        for [a, b] in shapes {
            for function in BinaryFunction::ALL {
                let op = || Binary { function };
                if function.is_logical() {
                    self.add(op(), tokens, &[any(Bool, a), any(Bool, b)]);
                    continue;
                }
                // Powers and remainders stay tame.
                let values = match function {
                    BinaryFunction::Pow => Positive,
                    _ => Any,
                };
                let number = |shape: &[usize]| Tensor(F32, shape.to_vec(), values);
                if function.takes().contains(&F32) {
                    self.add(op(), tokens, &[number(a), number(b)]);
                }
                for dtype in [I32, I64] {
                    if !function.takes().contains(&dtype) {
                        continue;
                    }
                    let whole = |shape: &[usize]| Tensor(dtype, shape.to_vec(), Whole(1, 5));
                    self.add(op(), tokens, &[whole(a), whole(b)]);
                }
            }
            for function in CompareFunction::ALL {
                for dtype in TYPES {
                    let few = |shape: &[usize]| Tensor(dtype, shape.to_vec(), Whole(-1, 3));
                    self.add(Compare { function }, tokens, &[few(a), few(b)]);
                }
            }
            for dtype in TYPES {
                let condition = || any(Bool, &[T, 1]);
                let condition = if a.len() < 3 && b.len() < 3 {
                    condition()
                } else {
                    any(Bool, &[])
                };
                self.add(Where, tokens, &[condition, any(dtype, a), any(dtype, b)]);
            }
        }
        for function in UnaryFunction::PLAIN {
            let op = || Unary { function };
            let values = match function {
                UnaryFunction::Log
                | UnaryFunction::Log1p
                | UnaryFunction::Acosh
                | UnaryFunction::Sqrt
                | UnaryFunction::Rsqrt
                | UnaryFunction::Reciprocal => Positive,
                _ => Any,
            };
            if function == UnaryFunction::Not {
                self.add(op(), tokens, &[any(Bool, &[T, 37])]);
                continue;
            }
            self.add(op(), tokens, &[Tensor(F32, vec![T, 37], values)]);
            if function.apply_integer(0).is_some() {
                self.add(op(), tokens, &[any(I32, &[T, 37])]);
                self.add(op(), tokens, &[any(I64, &[T, 37])]);
            }
        }
    }

    fn along_axes(&mut self, tokens: usize) {
        for function in ReduceFunction::ALL {
            for axes in [&[0][..], &[1], &[2], &[0, 2], &[1, 2], &[0, 1, 2]] {
                if function.is_index() && axes.len() > 1 {
                    continue;
                }
                for keep in [false, true] {
                    let axes = axes.to_vec();
                    let op = Reduce {
                        function,
                        axes,
                        keep,
                    };
                    self.add(op.clone(), tokens, &[any(F32, &[T, 4, 33])]);
                    if function != ReduceFunction::Mean {
                        let few = |dtype| Tensor(dtype, vec![T, 2, 3], Whole(-2, 3));
                        self.add(op.clone(), tokens, &[few(I32)]);
                        self.add(op.clone(), tokens, &[few(I64)]);
                    }
                    if matches!(function, ReduceFunction::Max | ReduceFunction::Min) {
                        self.add(op, tokens, &[any(Bool, &[T, 2, 3])]);
                    }
                }
            }
        }
        for axis in 0..3 {
            for log in [false, true] {
                self.add(Softmax { axis, log }, tokens, &[any(F32, &[T, 4, 33])]);
            }
            for dtype in [F32, I32, I64] {
                self.add(CumSum { axis }, tokens, &[any(dtype, &[T, 4, 5])]);
            }
        }
        for (upper, diagonal) in [(false, 0), (false, -1), (true, 1), (true, -2), (false, 3)] {
            for dtype in TYPES {
                let op = Triangle { upper, diagonal };
                self.add(op, tokens, &[any(dtype, &[2, T, 5])]);
            }
        }
    }

    fn made_of_nothing(&mut self, tokens: usize) {
        for dtype in [F32, I32, I64] {
            for (start, step) in [(Dim::from(0), 1), (t() - Dim::from(5), -2)] {
                let len = t() * 2 + Dim::from(1);
                let op = Range {
                    start,
                    step,
                    len,
                    dtype,
                };
                self.add(op, tokens, &[]);
            }
        }
        for dtype in TYPES {
            let (value, shape) = (Scalar::F32(2.0), dims(&[T, 3]));
            self.add(
                Fill {
                    value,
                    shape,
                    dtype,
                },
                tokens,
                &[],
            );
        }
        let value = t() * 3 - Dim::from(7);
        self.add(Size { value }, tokens, &[]);
    }

    fn products(&mut self, tokens: usize) {
        // Batch axes of both, rows, depth and columns.
        let shapes: [(&[usize], &[usize], [usize; 3]); 6] = [
            (&[], &[], [T, 33, 17]),
            (&[], &[], [5, T, 4]),
            (&[2, 3], &[2, 3], [T, 16, T]),
            (&[2, 1], &[3], [4, T, 40]),
            (&[], &[2], [T, 64, 48]),
            (&[T], &[T], [1, 8, 1]),
        ];
        for (batch_a, batch_b, [m, k, n]) in shapes {
            for transpose_b in [false, true] {
                let join = |batch: &[usize], last: [usize; 2]| any(F32, &[batch, &last].concat());
                let b = if transpose_b { [n, k] } else { [k, n] };
                let op = MatMul {
                    transpose_b,
                    alpha: 1.0,
                };
                let operands = [join(batch_a, [m, k]), join(batch_b, b)];
                self.add(op.clone(), tokens, &operands);
                if n != T {
                    let op = MatMul { alpha: 0.3, ..op };
                    let [a, b] = operands;
                    self.add(op, tokens, &[a, b, Weight(F32, vec![n])]);
                }
            }
        }
    }

    fn sampled(&mut self, tokens: usize) {
        use SamplePadding::{Border, Reflection, Zeros};
        let modes = [SampleMode::Linear, SampleMode::Nearest, SampleMode::Cubic];
        for (mode, padding) in modes
            .into_iter()
            .flat_map(|mode| [Zeros, Border, Reflection].map(|p| (mode, p)))
        {
            for (align_corners, sizes) in [(true, &[5][..]), (false, &[4, 9]), (true, &[3, 2, 5])] {
                if mode == SampleMode::Cubic && sizes.len() != 2 {
                    continue;
                }
                let op = GridSample {
                    mode,
                    padding,
                    align_corners,
                };
                let points = [&[2, T], &[3, 5][..sizes.len() - 1], &[sizes.len()]].concat();
                let images = [&[2, 3], sizes].concat();
                self.add(op, tokens, &[any(F32, &images), any(F32, &points)]);
            }
        }
    }

    fn convolutions(&mut self, tokens: usize) {
        let axis = |[size, stride, dilation, before, after]: [usize; 5]| WindowAxis {
            size,
            stride,
            dilation,
            before,
            after,
        };
        let lists = [
            vec![axis([3, 1, 1, 1, 1])],
            vec![axis([2, 3, 2, 0, 2])],
            vec![axis([3, 1, 1, 1, 1]), axis([3, 1, 1, 1, 1])],
            vec![axis([1, 1, 1, 0, 0]), axis([5, 2, 1, 4, 3])],
            vec![axis([3, 2, 2, 2, 0]), axis([2, 2, 1, 0, 0])],
            vec![
                axis([2, 1, 1, 1, 0]),
                axis([2, 2, 1, 0, 1]),
                axis([3, 1, 3, 3, 3]),
            ],
        ];
        for axes in lists {
            // Sizes that every kernel fits into; the batch is dynamic.
            let spatial = [5, 7, 22];
            let sizes = &spatial[3 - axes.len()..];
            for batch_axes in 0..3 {
                let op = Windows {
                    axes: axes.clone(),
                    batch_axes,
                    padding: if batch_axes == 1 { 0.0 } else { -2.5 },
                };
                self.add(op, tokens, &[any(F32, &[&[T, 3], sizes].concat())]);
            }
            for function in PoolFunction::ALL {
                let axes = axes.clone();
                self.add(
                    Pool { axes, function },
                    tokens,
                    &[any(F32, &[&[T, 3], sizes].concat())],
                );
            }
            let kernel: Vec<usize> = axes.iter().map(|a| a.size).collect();
            let places = axes.iter().zip(sizes).map(|(axis, size)| {
                let span = (axis.size - 1) * axis.dilation + 1;
                (size + axis.before + axis.after - span) / axis.stride + 1
            });
            let places: Vec<usize> = places.collect();
            // Few and many channels a group are computed in different ways.
            for (groups, inner, outer, activation) in [
                (1, 3, 4, None),
                (6, 1, 1, Some(Activation::Relu)),
                (2, 2, 3, Some(Activation::Silu)),
                (1, 70, 25, Some(Activation::GeluErf)),
                (2, 65, 30, None),
            ] {
                if inner > 60 && tokens > 1 {
                    continue;
                }
                let op = Conv {
                    axes: axes.clone(),
                    groups,
                    activation,
                };
                let x = || any(F32, &[&[T, groups * inner], sizes].concat());
                let weight = || any(F32, &[&[groups * outer, inner], &kernel[..]].concat());
                self.add(op.clone(), tokens, &[x(), weight()]);
                let bias = || any(F32, &[groups * outer]);
                self.add(op.clone(), tokens, &[x(), weight(), bias()]);
                let residual = any(F32, &[&[T, groups * outer], &places[..]].concat());
                self.add(op, tokens, &[x(), weight(), bias(), residual]);
            }
        }
        // A kernel wider than a row, which only padding makes fit.
        let wide = vec![axis([9, 1, 1, 4, 4])];
        let op = Conv {
            axes: wide,
            groups: 1,
            activation: None,
        };
        self.add(op, tokens, &[any(F32, &[1, 2, T]), any(F32, &[2, 2, 9])]);
    }

    fn sorted_and_written(&mut self, tokens: usize) {
        for dtype in TYPES {
            let few = |shape: &[usize]| Tensor(dtype, shape.to_vec(), Whole(-2, 3));
            for (axis, count) in [
                (0, t()),
                (1, Dim::from(6)),
                (1, Dim::from(2)),
                (2, 1.into()),
            ] {
                for descending in [false, true] {
                    let op = ArgSort {
                        axis,
                        descending,
                        count,
                    };
                    self.add(op, tokens, &[few(&[T, 6, 4])]);
                }
            }
            for function in ScatterFunction::ALL {
                if dtype == Bool && function != ScatterFunction::Replace {
                    continue;
                }
                let op = || Scatter { function };
                for index in [I32, I64] {
                    let indices = |shape: &[usize], size: i64| {
                        Tensor(index, shape.to_vec(), Whole(-size, size))
                    };
                    let data = || few(&[4, 5, 3]);
                    self.add(op(), tokens, &[data(), indices(&[T], 4), few(&[T, 5, 3])]);
                    self.add(op(), tokens, &[data(), indices(&[2, T], 4), few(&[3])]);
                    let (first, second) = (|| indices(&[T, 1], 4), || indices(&[6], 5));
                    self.add(op(), tokens, &[data(), first(), second(), few(&[T, 6, 3])]);
                    self.add(op(), tokens, &[data(), first(), second(), few(&[])]);
                    let all = [data(), first(), second(), indices(&[], 3), few(&[6])];
                    self.add(op(), tokens, &all);
                }
            }
        }
    }

    fn attention(&mut self, tokens: usize) {
        // Batch, query heads, key heads, queries, keys, key and value dim.
        let shapes: [(&[usize], [usize; 6]); 5] = [
            (&[], [1, 1, T, T, 8, 8]),
            (&[2], [6, 2, T, T, 16, 20]),
            (&[1], [4, 4, 5, T, 64, 64]),
            (&[2, 1], [2, 1, T, 70, 10, 3]),
            (&[1], [3, 3, 130, 130, 32, 32]),
        ];
        for (batch, [heads, kv_heads, queries, keys, dim, value_dim]) in shapes {
            let operands = |token_major: bool| {
                let part = |[heads, tokens, dim]: [usize; 3]| match token_major {
                    true => any(F32, &[batch, &[tokens, heads, dim]].concat()),
                    false => any(F32, &[batch, &[heads, tokens, dim]].concat()),
                };
                let q = part([heads, queries, dim]);
                let k = part([kv_heads, keys, dim]);
                let v = part([kv_heads, keys, value_dim]);
                vec![q, k, v]
            };
            for (causal, softcap, token_major) in [
                (false, None, false),
                (true, None, true),
                (true, Some(2.0), false),
                (false, None, true),
            ] {
                let op = || Attention {
                    scale: 0.2,
                    causal,
                    softcap,
                    token_major,
                };
                self.add(op(), tokens, &operands(token_major));
                let masks = [
                    any(F32, &[queries, keys]),
                    any(Bool, &[queries, keys]),
                    any(Bool, &[1, keys]),
                    any(F32, &[heads, 1, keys]),
                ];
                for mask in masks {
                    let mut operands = operands(token_major);
                    operands.push(mask);
                    self.add(op(), tokens, &operands);
                }
            }
        }
    }
}
