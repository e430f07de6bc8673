//! Quantised products against dequantised weights, on every tier.

use super::super::Epilogue;
use super::format::{BLOCK, PackedFormat, Quant};
use super::packed_weight::PackedWeight;
use super::weight_source::WeightSource;
use super::{Gate, LinearOperands, Prologue, QuantisedLinear, run_fused};
use crate::aligned::AlignedBuffer;
use crate::isa::Isa;
use crate::kernels::Context;
use crate::kernels::elementwise::{Elementwise, Function};
use crate::kernels::loop_nest::LoopNest;
use crate::kernels::normalise::norm::Norm;
use crate::simd::MAX_ROW_SCALED;
use crate::thread_pool::ThreadPool;
use backend::{CompileOptions, Precision};
use base::{Bytes, DType, quant};
use conformance::TestRng;
use graph::ops::{Activation, BinaryFunction};
use std::sync::Arc;

fn product(
    isa: Isa,
    threads: &ThreadPool,
    weight: &PackedWeight,
    linear: QuantisedLinear,
    x: &[f32],
    bias: &[f32],
) -> Vec<f32> {
    let mut out = vec![f32::NAN; linear.m * linear.n];
    let mut scratch = AlignedBuffer::new(linear.scratch(threads.count())).unwrap();
    let operands = LinearOperands {
        x: x.as_ptr(),
        weight: weight.address(),
        epilogue: Epilogue {
            bias: if bias.is_empty() {
                std::ptr::null()
            } else {
                bias.as_ptr()
            },
            ..Epilogue::NONE
        },
        out: out.as_mut_ptr(),
        scratch: scratch.as_mut_ptr().cast(),
    };
    // SAFETY: every buffer has the size that the shapes say.
    unsafe { linear.run(&Context { isa, threads }, operands) };
    out
}

fn pack(source: (DType, &Bytes), n: usize, k: usize, threads: &ThreadPool) -> Arc<PackedWeight> {
    let isa = *Isa::available().last().expect("at least one tier");
    pack_on(isa, source, n, k, threads)
}

fn pack_on(
    isa: Isa,
    (dtype, rows): (DType, &Bytes),
    n: usize,
    k: usize,
    threads: &ThreadPool,
) -> Arc<PackedWeight> {
    let source = WeightSource {
        dtype,
        format: PackedFormat::of(dtype).unwrap(),
        rows,
        n,
        k,
        on_demand: false,
    };
    let ctx = Context { isa, threads };
    // The same weight twice is packed once.
    let both = PackedWeight::load_all(&[source, source], &ctx, &CompileOptions::default()).unwrap();
    let [packed, again] = &both[..] else {
        panic!("two weights were asked for");
    };
    assert!(Arc::ptr_eq(packed, again));
    packed.clone()
}

/// Every precision with the tiers that compute it. Fast precision is one of its own on tiles only.
fn tiers() -> impl Iterator<Item = (Precision, Isa)> {
    let tiers = Precision::ALL.into_iter().flat_map(|precision| {
        Isa::available()
            .into_iter()
            .map(move |isa| (precision, isa))
    });
    tiers.filter(|(precision, isa)| *precision != Precision::Fast || isa.has_tiles())
}

#[test]
fn every_format_and_tier_is_close_to_exact_and_rows_do_not_depend_on_each_other() {
    let threads = ThreadPool::new(2);
    let mut noise = TestRng::new(7);
    let packed = DType::ALL
        .into_iter()
        .filter_map(|t| Some((t, PackedFormat::of(t)?)));
    for (dtype, format) in packed {
        for (n, k) in [
            (1usize, 256usize),
            (40, 512),
            (16, 768),
            (17, 2304),
            (33, 288),
        ] {
            if !k.is_multiple_of(dtype.block_len()) {
                continue;
            }
            let source = noise.weights(dtype, n * k);
            let mut weights = vec![0.0; n * k];
            quant::dequantise(dtype, &source, &mut weights).unwrap();
            let weight = pack((dtype, &source), n, k, &threads);
            let most = 37;
            let mut x: Vec<f32> = (0..most * k)
                .map(|_| noise.unit() * noise.unit() * 8.0)
                .collect();
            // Blocks of zeros, of one large number and of tiny numbers.
            x[..BLOCK].fill(0.0);
            x[BLOCK + 3] = 900.0;
            x[2 * BLOCK..3 * BLOCK].iter_mut().for_each(|x| *x *= 1e-20);
            let bias: Vec<f32> = (0..n).map(|_| noise.unit()).collect();
            let mut vector_bits: [Option<Vec<f32>>; 2] = [None, None];
            for (precision, isa) in tiers() {
                let bf16 = precision == Precision::Fast;
                // The inputs that share an activation scale, and the largest quantised magnitude.
                let (shared, largest) = match precision {
                    Precision::High => (k, MAX_ROW_SCALED),
                    Precision::Balanced => (BLOCK, 127.0),
                    // Activations and weights are rounded to bf16.
                    Precision::Fast => (BLOCK, f32::INFINITY),
                };
                // Half a unit of the last place of an activation, and up to a whole one of a weight.
                let relative = if bf16 { 3.0 / 256.0 } else { 0.0 };
                let linear = |m| QuantisedLinear {
                    m,
                    n,
                    k,
                    format,
                    precision,
                };
                let all = product(isa, &threads, &weight, linear(most), &x, &bias);
                for (row, out) in all.chunks(n).enumerate() {
                    let x = &x[row * k..][..k];
                    for (column, found) in out.iter().enumerate() {
                        let w = &weights[column * k..][..k];
                        let expect: f64 = x
                            .iter()
                            .zip(w)
                            .map(|(x, w)| f64::from(*x) * f64::from(*w))
                            .sum();
                        // Half a step of the activations' scale for every weight, the rounding of row-scaled factors
                        // (half a unit times the distance from the middle quant, and half a unit), and that of the sum.
                        let tallest = w.iter().fold(0.0f32, |a, w| a.max(w.abs()));
                        let units = match format.quant {
                            Quant::Nibble => 9.0,
                            Quant::Five => 18.0,
                            Quant::Six => 24.0,
                            Quant::Table(_) | Quant::Byte => 1.1,
                        };
                        // Factors of bf16 weights are f16; a min has the power of two that is part of its quants.
                        let factors = if bf16 { tallest / 1000.0 } else { 0.0 };
                        let rounding = tallest / 32_700.0 * units + factors;
                        let steps: f32 = x
                            .chunks(shared)
                            .zip(w.chunks(shared))
                            .map(|(x, w)| {
                                let top = x.iter().fold(0.0f32, |a, x| a.max(x.abs()));
                                let weights: f32 = w.iter().map(|w| w.abs()).sum();
                                let products: f32 =
                                    x.iter().zip(w).map(|(x, w)| (x * w).abs()).sum();
                                let activations: f32 = x.iter().map(|x| x.abs()).sum();
                                top / largest * 0.51 * weights
                                    + activations * rounding
                                    + products * (1e-5 + relative)
                                    + top * weights * 2e-7
                            })
                            .sum();
                        let error = (f64::from(*found) - f64::from(bias[column]) - expect).abs();
                        assert!(
                            error <= f64::from(steps) + 1e-6,
                            "{isa} {precision:?} {dtype} [{row}, {column}]: {found} is {error:e} off, {steps:e} allowed"
                        );
                    }
                }
                for m in [1, 2, 3, 4, 5, 7, 8, 9, 11, 16, 17, 24, 33] {
                    let few = product(isa, &threads, &weight, linear(m), &x[..m * k], &bias);
                    assert_eq!(
                        few,
                        all[..m * n],
                        "{isa} {precision:?} {dtype}: {m} rows differ from the same among {most}"
                    );
                }
                if isa != Isa::GENERIC && !bf16 {
                    let first = vector_bits[precision as usize].get_or_insert_with(|| all.clone());
                    assert_eq!(
                        &all, first,
                        "{isa} {precision:?} {dtype} differs from the first vector tier"
                    );
                }
            }
        }
    }
}

#[test]
fn many_rows_have_the_bits_of_few() {
    let threads = ThreadPool::new(2);
    let mut noise = TestRng::new(13);
    // Panels that do not pair, and a depth that is no multiple of a chunk.
    let (most, n, k) = (131, 40, 1280);
    let packed = DType::ALL
        .into_iter()
        .filter_map(|t| Some((t, PackedFormat::of(t)?)));
    for (dtype, format) in packed {
        let weight = pack((dtype, &noise.weights(dtype, n * k)), n, k, &threads);
        let x: Vec<f32> = (0..most * k).map(|_| noise.unit() * 8.0).collect();
        for (precision, isa) in tiers().filter(|(_, isa)| *isa != Isa::GENERIC) {
            let linear = |m| QuantisedLinear {
                m,
                n,
                k,
                format,
                precision,
            };
            let all = product(isa, &threads, &weight, linear(most), &x, &[]);
            for (first, m) in [(0, 1), (130, 1), (40, 64), (66, 65), (31, 100)] {
                let part = &x[first * k..][..m * k];
                let part = product(isa, &threads, &weight, linear(m), part, &[]);
                assert_eq!(
                    part,
                    all[first * n..][..m * n],
                    "{isa} {precision:?} {dtype}: {m} rows from {first} differ from the same among {most}"
                );
            }
        }
    }
}

#[test]
fn a_weight_is_packed_once_while_it_is_used() {
    let threads = ThreadPool::new(1);
    let source = TestRng::new(1).weights(DType::Q4_0, 16 * 64);
    let first = pack((DType::Q4_0, &source), 16, 64, &threads);
    let again = pack((DType::Q4_0, &source), 16, 64, &threads);
    assert_eq!(first.address(), again.address());
    assert!(PackedFormat::of(DType::F32).is_none());
}

/// `function(a, b)` by the kernel that runs when nothing is fused.
fn elementwise(
    isa: Isa,
    threads: &ThreadPool,
    function: Function,
    a: &[f32],
    b: &[f32],
) -> Vec<f32> {
    let op = Elementwise {
        function,
        nest: LoopNest::new(&[a.len()], [&[1]; 3]),
    };
    let mut out = vec![0.0; a.len()];
    // SAFETY: all three have as many elements.
    unsafe {
        let ctx = Context { isa, threads };
        op.run(&ctx, a.as_ptr(), b.as_ptr(), out.as_mut_ptr());
    }
    out
}

#[test]
fn fused_products_are_bit_identical_to_separate_calls() {
    let mut noise = TestRng::new(11);
    // With more threads than the scratch has columns for, a gate waits for both products.
    for threads in [1, 2, 16].map(ThreadPool::new) {
        for (dtype, n, k) in [(DType::Q4_1, 264, 256), (DType::Q8_0, 264, 256)] {
            let format = PackedFormat::of(dtype).unwrap();
            let weights = [(); 2].map(|()| noise.weights(dtype, n * k));
            let weights = weights
                .each_ref()
                .map(|rows| pack((dtype, rows), n, k, &threads));
            let sizes = [1, 3, 20, 37];
            for ((precision, isa), m) in tiers().flat_map(|tier| sizes.map(|m| (tier, m))) {
                let linear = QuantisedLinear {
                    m,
                    n,
                    k,
                    format,
                    precision,
                };
                let x: Vec<f32> = (0..m * k).map(|_| noise.unit() * 3.0).collect();
                let other: Vec<f32> = (0..m * n).map(|_| noise.unit()).collect();
                let [gate, up] = weights
                    .each_ref()
                    .map(|w| product(isa, &threads, w, linear, &x, &[]));
                let add = Function::Binary(BinaryFunction::Add);
                let sum = elementwise(isa, &threads, add, &gate, &other);
                let silu = Function::Gated(Activation::Silu);
                let gated = elementwise(isa, &threads, silu, &gate, &up);

                let mut scratch = AlignedBuffer::new(linear.scratch(threads.count())).unwrap();
                let mut places = [(); 2].map(|()| vec![f32::NAN; m * n]);
                let mut operands = |i: usize| LinearOperands {
                    x: x.as_ptr(),
                    weight: weights[i].address(),
                    epilogue: Epilogue::NONE,
                    out: places[i].as_mut_ptr(),
                    scratch: scratch.as_mut_ptr().cast(),
                };
                let both = [(linear, operands(0)), (linear, operands(1))];
                let [out, gate_scratch] = [both[0].1.out, both[1].1.out];
                let mut residual = other.clone();
                let to = residual.as_mut_ptr();
                // SAFETY: every buffer has the size that the shapes say; both results are written in place.
                unsafe {
                    let ctx = Context {
                        isa,
                        threads: &threads,
                    };
                    let mut added = both[0];
                    added.1.out = to;
                    added.1.epilogue.residual = to;
                    run_fused(&ctx, None, &[added], None);
                    let activation = Activation::Silu;
                    run_fused(
                        &ctx,
                        None,
                        &both,
                        Some(Gate {
                            activation,
                            out,
                            scratch: gate_scratch,
                        }),
                    );
                }
                // An activation, and a residual after it.
                let relu = Function::Unary(Activation::Relu.into());
                let activated = elementwise(isa, &threads, relu, &gate, &gate);
                let expect = elementwise(isa, &threads, add, &activated, &other);
                let mut found = other.clone();
                let mut part = both[0];
                part.1.out = found.as_mut_ptr();
                part.1.epilogue.activation = Some(Activation::Relu);
                // SAFETY: as above.
                unsafe {
                    linear.run(
                        &Context {
                            isa,
                            threads: &threads,
                        },
                        part.1,
                    )
                };
                assert_eq!(found, activated, "{isa} {dtype}: {m} rows, activated");
                part.1.epilogue.residual = other.as_ptr();
                // SAFETY: as above.
                unsafe {
                    linear.run(
                        &Context {
                            isa,
                            threads: &threads,
                        },
                        part.1,
                    )
                };
                assert_eq!(
                    found, expect,
                    "{isa} {dtype}: {m} rows, activated and added"
                );
                // Rows that are normalised as they are quantised.
                let norm = Norm {
                    rows: m,
                    width: k,
                    eps: 1e-5,
                    centred: true,
                };
                let [weight, bias] = [&other[..k.min(n)], &other[n - k..n]];
                let mut normed = x.clone();
                let raw = x.clone();
                let ctx = Context {
                    isa,
                    threads: &threads,
                };
                let (to, weight, bias) = (normed.as_mut_ptr(), weight.as_ptr(), bias.as_ptr());
                // SAFETY: a row has as many elements as the weight and the bias.
                unsafe { norm.run(&ctx, raw.as_ptr(), weight, bias, to) };
                let expect = product(isa, &threads, &weights[1], linear, &normed, &[]);
                normed.fill(f32::NAN);
                let prologue = Prologue {
                    norm,
                    x: raw.as_ptr(),
                    weight,
                    bias,
                };
                let mut part = both[1];
                part.1.x = normed.as_mut_ptr();
                // SAFETY: as above.
                unsafe { run_fused(&ctx, Some(prologue), &[part], None) };
                assert_eq!(places[1], expect, "{isa} {dtype}: {m} rows, normed");
                assert_eq!(residual, sum, "{isa} {dtype}: {m} rows, added");
                assert_eq!(places[0], gated, "{isa} {dtype}: {m} rows, gated");
            }
        }
    }
}

#[test]
fn every_tier_packs_the_same_bytes() {
    let threads = ThreadPool::new(2);
    let mut noise = TestRng::new(11);
    let (n, k) = (40, 512);
    for dtype in DType::ALL
        .into_iter()
        .filter(|t| PackedFormat::of(*t).is_some())
    {
        let rows = noise.weights(dtype, n * k);
        let mut first: Option<Vec<u8>> = None;
        for isa in Isa::available() {
            // A copy, because otherwise the cached packed weight would be found.
            let rows = Bytes::from(&rows[..]);
            let packed = pack_on(isa, (dtype, &rows), n, k, &threads);
            // SAFETY: the packed bytes live as long as `packed`.
            let bytes = unsafe { std::slice::from_raw_parts(packed.address(), packed.len()) };
            let first = first.get_or_insert_with(|| bytes.to_vec());
            assert!(bytes == &first[..], "{isa} {dtype}");
        }
    }
}
