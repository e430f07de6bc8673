//! Feed-forward blocks of which every row uses only some: the products of an expert read its weights once, for the rows that
//! chose it.
//!
//! A row's products do not depend on the other rows of their calls, and its experts are added in their order, so its result does
//! not depend on the rows that chose the same experts.

use super::LinearOperands;
use super::epilogue::Epilogue;
use super::f32::{MatMul, MatMulOperands, RhsLayout};
use super::half::HalfLinear;
use super::quantised::{self, QuantisedLinear, SingleRows};
use crate::kernels::elementwise::{Elementwise, Function};
use crate::kernels::loop_nest::LoopNest;
use crate::kernels::{Context, SendPtr, for_row_ranges};
use graph::ops::ExpertGate;

/// `out [rows, n] = Σ weight · down(function(gate(x)) · up(x))` over the experts for which a row has a weight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Experts {
    pub(crate) rows: usize,
    /// Number of experts, and those that a row uses at most.
    pub(crate) count: usize,
    pub(crate) used: usize,
    pub(crate) function: ExpertGate,
    pub(crate) gate: ExpertProduct,
    pub(crate) up: ExpertProduct,
    pub(crate) down: ExpertProduct,
}

/// The product of some rows with the matrix of one expert.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ExpertProduct {
    /// `m`, `n` and `k` of f32.
    F32([usize; 3]),
    Half(HalfLinear),
    Quantised(QuantisedLinear),
}

/// The weights of a call's experts.
pub(crate) trait ExpertWeights: Sync {
    /// Makes the weights of experts readable until the next call. Experts that are needed next may be read from the disk meanwhile.
    fn load(&mut self, ctx: &Context<'_>, needed: &[u32], next: &[u32]) -> Result<(), String>;

    /// The addresses of gate, up and down of an expert that was loaded.
    fn addresses(&self, expert: u32) -> [*const u8; 3];
}

/// Experts that are all in memory, one after the other.
pub(crate) struct ResidentExperts {
    /// Gate, up and down of the first expert.
    first: [SendPtr<u8>; 3],
    /// Bytes of each of one expert.
    sizes: [usize; 3],
}

impl ResidentExperts {
    pub(crate) fn new(op: &Experts, first: [*const u8; 3]) -> ResidentExperts {
        ResidentExperts {
            first: first.map(|address| SendPtr(address.cast_mut())),
            sizes: [op.gate, op.up, op.down].map(|product| product.weight_bytes()),
        }
    }
}

impl ExpertWeights for ResidentExperts {
    fn load(&mut self, _: &Context<'_>, _: &[u32], _: &[u32]) -> Result<(), String> {
        Ok(())
    }

    fn addresses(&self, expert: u32) -> [*const u8; 3] {
        std::array::from_fn(|i| {
            let first = self.first[i].0.cast_const();
            first.wrapping_add(expert as usize * self.sizes[i])
        })
    }
}

/// Addresses of a call's operands, result and scratch.
#[derive(Clone, Copy)]
pub(crate) struct ExpertOperands {
    pub(crate) x: *const f32,
    pub(crate) weights: *const f32,
    /// The biases of gate, up and down; null without them.
    pub(crate) biases: [*const f32; 3],
    pub(crate) out: *mut f32,
    /// Scratch of [`Experts::scratch`] bytes.
    pub(crate) scratch: *mut u8,
}

impl ExpertProduct {
    /// The product of another number of rows.
    fn with_rows(self, m: usize) -> ExpertProduct {
        match self {
            ExpertProduct::F32([_, n, k]) => ExpertProduct::F32([m, n, k]),
            ExpertProduct::Half(op) => ExpertProduct::Half(HalfLinear { m, ..op }),
            ExpertProduct::Quantised(op) => ExpertProduct::Quantised(QuantisedLinear { m, ..op }),
        }
    }

    /// Rows, columns and depth.
    pub(crate) fn sizes(&self) -> [usize; 3] {
        match self {
            ExpertProduct::F32(sizes) => *sizes,
            ExpertProduct::Half(op) => [op.m, op.n, op.k],
            ExpertProduct::Quantised(op) => [op.m, op.n, op.k],
        }
    }

    /// Bytes of an expert's weight as the kernel reads it.
    fn weight_bytes(&self) -> usize {
        let [_, n, k] = self.sizes();
        match self {
            ExpertProduct::F32(_) => n * k * size_of::<f32>(),
            ExpertProduct::Half(op) => n * k * op.weight.block_bytes(),
            ExpertProduct::Quantised(op) => op.format.packed_bytes(n, k),
        }
    }

    fn scratch(&self, threads: usize) -> usize {
        match self {
            ExpertProduct::F32(sizes) => mat_mul(*sizes).scratch(),
            ExpertProduct::Half(op) => op.scratch(threads),
            ExpertProduct::Quantised(op) => op.scratch(threads),
        }
    }

    /// # Safety
    /// As for [`QuantisedLinear::run`].
    unsafe fn run(&self, ctx: &Context<'_>, at: LinearOperands) {
        // SAFETY: as the caller guarantees.
        unsafe {
            match self {
                ExpertProduct::F32(sizes) => mat_mul(*sizes).run(
                    ctx,
                    MatMulOperands {
                        a: at.x,
                        b: at.weight.cast(),
                        bias: at.epilogue.bias,
                        out: at.out,
                        scratch: at.scratch,
                    },
                ),
                ExpertProduct::Half(op) => op.run(ctx, at),
                ExpertProduct::Quantised(op) => op.run(ctx, at),
            }
        }
    }
}

fn mat_mul([m, n, k]: [usize; 3]) -> MatMul {
    MatMul {
        m,
        n,
        k,
        batch: vec![(0, 0)],
        rhs_count: 1,
        layout: RhsLayout::Transposed,
        alpha: 1.0,
        activation: None,
    }
}

/// Where the parts of the scratch begin, in bytes.
struct ScratchParts {
    /// The rows of an expert, then their results.
    x: usize,
    gate: usize,
    up: usize,
    out: usize,
    products: usize,
    /// The numbers of the rows, `u32` each.
    numbers: usize,
}

impl Experts {
    fn parts(&self) -> ScratchParts {
        let [_, inner, depth] = self.gate.sizes();
        let [_, width, _] = self.down.sizes();
        let rows = |elements: usize| (self.rows * elements * size_of::<f32>()).next_multiple_of(64);
        let (x, hidden) = (rows(1), rows(inner));
        let gate = x + rows(depth);
        ScratchParts {
            numbers: 0,
            x,
            gate,
            up: gate + hidden,
            out: gate + 2 * hidden,
            products: gate + 2 * hidden + rows(width),
        }
    }

    /// The products of the step if they are quantised and it has one row.
    fn row_products(&self) -> Option<[QuantisedLinear; 3]> {
        match [self.gate, self.up, self.down] {
            [
                ExpertProduct::Quantised(gate),
                ExpertProduct::Quantised(up),
                ExpertProduct::Quantised(down),
            ] if self.rows == 1 && gate.can_fuse_with(&up) => Some([gate, up, down]),
            _ => None,
        }
    }

    fn row_parts(&self, [gate, up, down]: &[QuantisedLinear; 3]) -> RowParts {
        let rows = |n: usize| (self.used * n * size_of::<f32>()).next_multiple_of(64);
        let gate_at = rows(1);
        let up_at = gate_at + rows(gate.n);
        let results = up_at + rows(up.n);
        let x = results + rows(down.n);
        let hidden = x + SingleRows::row_bytes(gate);
        RowParts {
            numbers: 0,
            gate: gate_at,
            up: up_at,
            results,
            x,
            hidden,
            expanded: hidden + self.used * SingleRows::row_bytes(down),
        }
    }

    /// Bytes of scratch: the rows of one expert with what is computed of them, and what the products need.
    pub(crate) fn scratch(&self, threads: usize) -> usize {
        self.scratch_of_rows(threads)
            .max(self.scratch_of_one_row(threads))
    }

    fn scratch_of_one_row(&self, threads: usize) -> usize {
        let products = self.row_products();
        products.map_or(0, |products| {
            let expanded = products.iter().map(SingleRows::expanded_bytes).max();
            self.row_parts(&products).expanded + threads * expanded.unwrap_or(0)
        })
    }

    fn scratch_of_rows(&self, threads: usize) -> usize {
        let products = [self.gate, self.up, self.down];
        let of = |rows: usize| {
            let each = products.map(|product| product.with_rows(rows).scratch(threads));
            each.into_iter().max().unwrap_or(0)
        };
        // Any number of rows may choose an expert, and few rows may need more scratch than many.
        let most = (1..=self.rows).map(of).max().unwrap_or(0);
        self.parts().products + most
    }

    /// Whether the products are of integers.
    pub(crate) fn is_quantised(&self) -> bool {
        matches!(self.gate, ExpertProduct::Quantised(_))
    }

    /// Weight bytes of the experts that the rows read at most, and the multiply-adds.
    pub(crate) fn work(&self) -> (usize, usize) {
        let products = [self.gate, self.up, self.down];
        let experts = self.count.min(self.rows * self.used);
        let bytes: usize = products.iter().map(ExpertProduct::weight_bytes).sum();
        let macs: usize = products.iter().map(|p| p.sizes()[1] * p.sizes()[2]).sum();
        (experts * bytes, self.rows * self.used * macs)
    }

    /// Computes the blocks.
    ///
    /// # Errors
    /// That of the weights, if they cannot be read.
    ///
    /// # Safety
    /// The operands must be valid for the sizes, quantised weights packed in their format, and the output and the scratch must
    /// overlap nothing else.
    pub(crate) unsafe fn run(
        &self,
        ctx: &Context<'_>,
        experts: &mut dyn ExpertWeights,
        at: ExpertOperands,
    ) -> Result<(), String> {
        if let Some(products) = self.row_products()
            && products.iter().all(|p| SingleRows::suits(p, ctx))
        {
            // SAFETY: the caller guarantees a weight for every expert, and the scratch begins with `used` numbers.
            let (routes, numbers) = unsafe {
                let numbers = at.scratch.add(self.row_parts(&products).numbers);
                (
                    std::slice::from_raw_parts(at.weights, self.count),
                    std::slice::from_raw_parts_mut(numbers.cast::<u32>(), self.used),
                )
            };
            let mut chosen = (0..).zip(routes).filter(|(_, weight)| **weight != 0.0);
            let mut active = 0;
            for (number, (expert, _)) in numbers.iter_mut().zip(&mut chosen) {
                *number = expert;
                active += 1;
            }
            // Weights that no routing computed may be of more experts.
            if chosen.next().is_none() {
                let numbers = &numbers[..active];
                experts.load(ctx, numbers, &[])?;
                // SAFETY: as the caller guarantees.
                unsafe { self.run_row(ctx, &products, numbers, experts, at) };
                return Ok(());
            }
        }
        let [_, inner, depth] = self.gate.sizes();
        let [_, width, _] = self.down.sizes();
        let parts = self.parts();
        let floats = |offset: usize| SendPtr(at.scratch.wrapping_add(offset).cast::<f32>());
        let (x, gate, up) = (floats(parts.x), floats(parts.gate), floats(parts.up));
        let results = floats(parts.out);
        let scratch = floats(parts.products).0;
        // SAFETY: the caller guarantees the operands and the scratch, whose parts do not overlap; an expert has at most as many rows
        // as the step.
        unsafe {
            std::slice::from_raw_parts_mut(at.out, self.rows * width).fill(0.0);
            let routes = std::slice::from_raw_parts(at.weights, self.rows * self.count);
            let numbers = at.scratch.wrapping_add(parts.numbers).cast::<u32>();
            let is_used = |expert: &u32| {
                let mut rows = routes.chunks_exact(self.count);
                rows.any(|row| row[*expert as usize] != 0.0)
            };
            let used: Vec<u32> = (0..self.count as u32).filter(is_used).collect();
            for (i, number) in used.iter().enumerate() {
                experts.load(ctx, &used[i..=i], &used[i + 1..])?;
                let [gate_weight, up_weight, down_weight] = experts.addresses(*number);
                let expert = *number as usize;
                let mut m = 0;
                for row in 0..self.rows {
                    if routes[row * self.count + expert] != 0.0 {
                        numbers.add(m).write(row as u32);
                        m += 1;
                    }
                }
                let rows = std::slice::from_raw_parts(numbers.cast_const(), m);
                // All rows of the step are read where they are.
                let gathered = match m == self.rows {
                    true => at.x,
                    false => {
                        let from = SendPtr(at.x.cast_mut());
                        for_row_ranges(ctx, m, depth, &|start, end| {
                            for i in start..end {
                                let from = from.at(rows[i] as usize * depth);
                                x.at(i * depth).copy_from_nonoverlapping(from, depth);
                            }
                        });
                        x.0.cast_const()
                    }
                };
                let operands =
                    |product: &ExpertProduct, weight: *const u8, bias: *const f32, x, out| {
                        let [_, n, _] = product.sizes();
                        let bias = match bias.is_null() {
                            true => bias,
                            false => bias.wrapping_add(expert * n),
                        };
                        LinearOperands {
                            x,
                            weight,
                            epilogue: Epilogue {
                                bias,
                                ..Epilogue::NONE
                            },
                            out,
                            scratch,
                        }
                    };
                let [gate_bias, up_bias, down_bias] = at.biases;
                let products = [self.gate.with_rows(m), self.up.with_rows(m)];
                let gate_operands =
                    operands(&products[0], gate_weight, gate_bias, gathered, gate.0);
                let up_operands = operands(&products[1], up_weight, up_bias, gathered, up.0);
                match products {
                    [ExpertProduct::Quantised(a), ExpertProduct::Quantised(b)]
                        if a.can_fuse_with(&b) =>
                    {
                        let both = [(a, gate_operands), (b, up_operands)];
                        quantised::run_fused(ctx, None, &both, None);
                    }
                    [a, b] => {
                        a.run(ctx, gate_operands);
                        b.run(ctx, up_operands);
                    }
                }
                self.gating(m * inner).run(ctx, gate.0, up.0, gate.0);
                let down = self.down.with_rows(m);
                down.run(
                    ctx,
                    operands(&down, down_weight, down_bias, gate.0, results.0),
                );
                let out = SendPtr(at.out);
                for_row_ranges(ctx, m, width, &|start, end| {
                    for i in start..end {
                        let row = rows[i] as usize;
                        let weight = routes[row * self.count + expert];
                        let result = std::slice::from_raw_parts(results.at(i * width), width);
                        let out = std::slice::from_raw_parts_mut(out.at(row * width), width);
                        for (out, result) in out.iter_mut().zip(result) {
                            *out += weight * result;
                        }
                    }
                });
            }
        }
        Ok(())
    }

    /// The function of gate and up.
    fn gating(&self, elements: usize) -> Elementwise {
        Elementwise {
            function: match self.function {
                ExpertGate::Gated(activation) => Function::Gated(activation),
                ExpertGate::ClampedSwish { alpha, limit } => Function::ClampedSwish(alpha, limit),
            },
            nest: LoopNest::new(&[elements], [&[1]; 3]),
        }
    }

    /// Computes the block of one row: all its experts run together, so that threads wait for each other a few times and not a few
    /// times an expert.
    ///
    /// # Safety
    /// As for [`run`](Experts::run); the row must use the experts of these numbers, at most `used`, which are loaded, and the numbers be
    /// where [`RowParts`] says.
    unsafe fn run_row(
        &self,
        ctx: &Context<'_>,
        products: &[QuantisedLinear; 3],
        numbers: &[u32],
        experts: &dyn ExpertWeights,
        at: ExpertOperands,
    ) {
        let [gate, up, down] = *products;
        let active = numbers.len();
        let parts = self.row_parts(products);
        let scratch = SendPtr(at.scratch);
        // SAFETY: the caller guarantees the operands and the scratch, whose parts do not overlap.
        unsafe {
            let biases = at.biases.map(|p| SendPtr(p.cast_mut()));
            // Product `which` of an expert.
            let operands = |which: usize, index: usize, x: *const f32, out, quantised| {
                let number = numbers[index];
                let bias = biases[which].0.cast_const();
                let bias = match bias.is_null() {
                    true => bias,
                    false => bias.wrapping_add(number as usize * products[which].n),
                };
                LinearOperands {
                    x,
                    weight: experts.addresses(number)[which],
                    epilogue: Epilogue {
                        bias,
                        ..Epilogue::NONE
                    },
                    out,
                    scratch: quantised,
                }
            };
            let floats = |offset: usize| scratch.at(offset).cast::<f32>();
            let x = SendPtr(at.x.cast_mut());
            let opened = |task: usize| {
                let (index, which) = (task / 2, task % 2);
                let out = floats([parts.gate, parts.up][which]).wrapping_add(index * gate.n);
                let x = x.at(0).cast_const();
                let linear = [gate, up][which];
                let quantised = floats(parts.x);
                (linear, operands(which, index, x, out, quantised))
            };
            let row_bytes = SingleRows::row_bytes(&down);
            let closed = |index: usize| {
                let x = floats(parts.gate).wrapping_add(index * down.k).cast_const();
                let out = floats(parts.results).wrapping_add(index * down.n);
                let quantised = floats(parts.hidden + index * row_bytes);
                (down, operands(2, index, x, out, quantised))
            };
            let expanded = scratch.at(parts.expanded);
            if active > 0 {
                let (linear, operands) = opened(0);
                SingleRows::quantise(ctx.isa, &linear, operands);
            }
            SingleRows {
                count: 2 * active,
                product: &opened,
                expanded,
            }
            .run(ctx);
            let (hidden, up_rows) = (floats(parts.gate), floats(parts.up));
            self.gating(active * gate.n)
                .run(ctx, hidden, up_rows, hidden);
            for_row_ranges(ctx, active, 2 * down.k, &|start, end| {
                for index in start..end {
                    let (linear, operands) = closed(index);
                    SingleRows::quantise(ctx.isa, &linear, operands);
                }
            });
            SingleRows {
                count: active,
                product: &closed,
                expanded,
            }
            .run(ctx);
            let out = std::slice::from_raw_parts_mut(at.out, down.n);
            out.fill(0.0);
            for (index, expert) in numbers.iter().enumerate() {
                let weight = *at.weights.add(*expert as usize);
                let result = floats(parts.results).wrapping_add(index * down.n);
                let result = std::slice::from_raw_parts(result, down.n);
                for (out, result) in out.iter_mut().zip(result) {
                    *out += weight * result;
                }
            }
        }
    }
}

/// Where the parts of the scratch of one row begin, in bytes.
struct RowParts {
    /// The numbers of the row's experts, `u32` each.
    numbers: usize,
    /// The rows of gate, which become the hidden rows.
    gate: usize,
    up: usize,
    results: usize,
    /// The quantised row.
    x: usize,
    /// The quantised hidden rows.
    hidden: usize,
    expanded: usize,
}
