use super::*;
use crate::isa::Isa;
use crate::thread_pool::ThreadPool;
use conformance::TestRng;
use graph::ops::{Conv as ConvOp, Op, WindowAxis};
use graph::{Bindings, Dim, TensorType, Value};

/// The kernel, stride, dilation and padding of an axis, and its elements.
type Axis = ([usize; 5], usize);

const AXES: [&[Axis]; 9] = [
    &[([1, 1, 1, 0, 0], 300)],
    &[([3, 1, 1, 1, 1], 40), ([3, 1, 1, 1, 1], 9)],
    &[([3, 2, 1, 1, 1], 23), ([3, 2, 1, 1, 0], 37)],
    &[([1, 1, 1, 0, 0], 5), ([1, 2, 1, 0, 0], 11)],
    &[([2, 3, 2, 0, 2], 14), ([5, 3, 1, 4, 3], 7)],
    // Rows that are divided, and padding wider than the rows.
    &[([7, 1, 3, 9, 9], 531)],
    &[([1, 1, 1, 2, 2], 1), ([9, 1, 1, 4, 4], 1)],
    &[([16, 16, 1, 0, 0], 32), ([16, 16, 1, 0, 0], 48)],
    &[
        ([2, 1, 1, 1, 0], 3),
        ([2, 2, 1, 0, 1], 5),
        ([3, 1, 3, 3, 3], 20),
    ],
];

#[test]
fn both_ways_agree_with_plain_loops_for_any_number_of_threads() {
    let mut noise = TestRng::new(5);
    for axes in AXES {
        for (batch, groups, inner, outer) in [
            (1, 1, 3, 1),
            (2, 5, 1, 1),
            (1, 2, 4, 7),
            (1, 1, 33, 9),
            (1, 1, 70, 26),
            (2, 2, 20, 100),
            (1, 1, 0, 2),
        ] {
            let sizes: Vec<usize> = axes.iter().map(|(_, len)| *len).collect();
            let kernel = axes.iter().map(|(axis, _)| axis[0]);
            let weight_shape: Vec<usize> =
                [groups * outer, inner].into_iter().chain(kernel).collect();
            // A reference of so many products takes too long.
            let depth: usize = weight_shape[1..].iter().product();
            if depth * outer * groups > 60_000 {
                continue;
            }
            check(
                &mut noise,
                axes,
                [batch, groups, inner],
                &sizes,
                &weight_shape,
            );
        }
    }
}

fn check(
    noise: &mut TestRng,
    axes: &[Axis],
    [batch, groups, inner]: [usize; 3],
    sizes: &[usize],
    weight_shape: &[usize],
) {
    let axes = axes
        .iter()
        .map(|([size, stride, dilation, before, after], _)| WindowAxis {
            size: *size,
            stride: *stride,
            dilation: *dilation,
            before: *before,
            after: *after,
        });
    let axes: Vec<WindowAxis> = axes.collect();
    let x_shape: Vec<usize> = [batch, groups * inner]
        .into_iter()
        .chain(sizes.iter().copied())
        .collect();
    let mut value = |shape: &[usize]| {
        let count = shape.iter().product();
        Value::f32(shape, noise.units(count))
    };
    let (x, weight) = (value(&x_shape), value(weight_shape));
    let bias = value(&weight_shape[..1]);
    let mut op = ConvOp {
        axes,
        groups,
        activation: None,
    };
    let ty = |value: &Value| {
        TensorType::f32(
            value
                .shape
                .iter()
                .map(|n| Dim::from(*n))
                .collect::<Vec<_>>(),
        )
    };
    let types = [ty(&x), ty(&weight)];
    let shape = Op::from(op.clone()).infer(&[&types[0], &types[1]]).unwrap();
    let shape = shape.dims(&Bindings::default()).unwrap();
    let residual = value(&shape);
    let operands = [&x, &weight, &bias, &residual];
    for (count, activation) in [
        (2, None),
        (3, Some(Activation::Relu)),
        (4, Some(Activation::Silu)),
    ] {
        op.activation = activation;
        let operands = &operands[..count];
        let expect = Op::from(op.clone())
            .evaluate(operands, &shape, &Bindings::default())
            .unwrap();
        let expect = expect.as_f32().unwrap();
        let size = ConvShape {
            batch,
            groups,
            inner,
            outer: weight_shape[0] / groups,
            axes: Slide::three(&op.axes, sizes, &shape[2..]),
        };
        for isa in Isa::available() {
            let mut first: Option<Vec<f32>> = None;
            for threads in [1, 3] {
                let threads = &ThreadPool::new(threads);
                let found = compute(
                    &Context { isa, threads },
                    &Conv::new(size, activation),
                    operands,
                    expect.len(),
                );
                for (i, (found, expect)) in found.iter().zip(expect).enumerate() {
                    let tolerance =
                        1e-5 * (1.0 + (weight_shape[1..].iter().product::<usize>() as f32).sqrt());
                    assert!(
                        (found - expect).abs() < tolerance,
                        "{isa} {op:?} {x_shape:?} {weight_shape:?} {i}: {found} for {expect}"
                    );
                }
                match &first {
                    Some(first) => assert_eq!(*first, found, "{isa} {op:?} {x_shape:?}"),
                    None => first = Some(found),
                }
            }
        }
    }
}

fn compute(ctx: &Context<'_>, op: &Conv, operands: &[&Value], len: usize) -> Vec<f32> {
    let mut scratch = vec![f32::NAN; op.scratch(ctx.threads.count()) / 4];
    // The elements behind the result must stay NaN.
    let mut out = vec![f32::NAN; len + 64];
    let at = |i: usize| {
        operands
            .get(i)
            .map_or(std::ptr::null(), |value| value.as_f32().unwrap().as_ptr())
    };
    let operands = ConvOperands {
        x: at(0),
        weight: at(1),
        bias: at(2),
        residual: at(3),
        out: out.as_mut_ptr(),
        scratch: scratch.as_mut_ptr(),
    };
    // SAFETY: every operand has the size its shape says.
    unsafe { op.run(ctx, operands) };
    assert!(out[len..].iter().all(|x| x.is_nan()));
    out.truncate(len);
    out
}
