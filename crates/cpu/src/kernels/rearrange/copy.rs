//! Strided copies: permute, expand, slice and concatenate.

use crate::kernels::loop_nest::LoopNest;
use crate::kernels::{Context, SERIAL_ELEMENTS, SendPtr, for_row_ranges};
use graph::ops::strides;

/// Copies elements of one size from one strided view to another; the source is tensor 1 of the loops.
#[derive(Clone, Debug)]
pub(crate) struct CopyStrided {
    nest: LoopNest<2>,
    /// The loop along which the source is contiguous, if it is not the innermost one: iterations and steps.
    crosswise: Option<(usize, [usize; 2])>,
    /// First element of the source and of the target.
    start: [usize; 2],
    element_bytes: usize,
}

/// Rows and columns of a block of a transposition: a cache line of f32 on either side.
const BLOCK: usize = 16;

impl CopyStrided {
    /// A copy of the view `from` of a tensor to the row-major target of `shape`.
    pub(crate) fn new(
        shape: &[usize],
        from: &[usize],
        first: usize,
        element_bytes: usize,
    ) -> CopyStrided {
        CopyStrided::between(shape, &strides(shape), from, [0, first], element_bytes)
    }

    /// A copy between two views, each with its strides and first element.
    pub(crate) fn between(
        shape: &[usize],
        to: &[usize],
        from: &[usize],
        start: [usize; 2],
        element_bytes: usize,
    ) -> CopyStrided {
        // The loop along which the source is contiguous is moved next to the innermost one; the two are copied in
        // blocks.
        let inner = (0..shape.len()).rev().find(|axis| shape[*axis] != 1);
        let along = (0..shape.len())
            .rev()
            .find(|axis| from[*axis] == 1 && shape[*axis] > 1)
            .filter(|axis| Some(*axis) != inner);
        let (Some(inner), Some(along)) = (inner, along) else {
            return CopyStrided {
                nest: LoopNest::new(shape, [to, from]),
                crosswise: None,
                start,
                element_bytes,
            };
        };
        let others = (0..shape.len()).filter(|axis| ![inner, along].contains(axis));
        let mut order: Vec<usize> = others.collect();
        order.extend([along, inner]);
        let pick = |of: &[usize]| order.iter().map(|axis| of[*axis]).collect::<Vec<_>>();
        let (shape, to, from) = (pick(shape), pick(to), pick(from));
        let outer = shape.len() - 2;
        let mut nest = LoopNest::new(&shape[..outer], [&to[..outer], &from[..outer]]);
        nest.push_inner(shape[outer + 1], [to[outer + 1], from[outer + 1]]);
        CopyStrided {
            nest,
            crosswise: Some((shape[outer], [to[outer], from[outer]])),
            start,
            element_bytes,
        }
    }

    /// Whether the copy has few enough loops to run.
    pub(crate) fn fits(&self) -> bool {
        self.nest.fits()
    }

    /// # Safety
    /// Both views must lie in their buffers, which must not overlap.
    pub(crate) unsafe fn run(&self, ctx: &Context<'_>, from: *const u8, to: *mut u8) {
        // SAFETY: as the caller guarantees; sizes are those of the run types, whose alignment is their size.
        unsafe {
            match self.element_bytes {
                1 => self.typed::<u8>(ctx, from, to),
                4 => self.typed::<u32>(ctx, from.cast(), to.cast()),
                8 => self.typed::<u64>(ctx, from.cast(), to.cast()),
                n => unreachable!("no run type has {n} bytes"),
            }
        }
    }

    /// # Safety
    /// As for [`run`](CopyStrided::run).
    unsafe fn typed<T: Copy>(&self, ctx: &Context<'_>, from: *const T, to: *mut T) {
        // SAFETY: the views begin inside their buffers.
        let (from, to) = unsafe {
            (
                SendPtr(from.add(self.start[1]).cast_mut()),
                SendPtr(to.add(self.start[0])),
            )
        };
        let turns = self.crosswise.map_or(1, |(turns, _)| turns);
        let (rows, width) = (self.nest.rows(), self.nest.width * turns);
        if rows * width == 0 {
            return;
        }
        if rows == 1
            && width >= SERIAL_ELEMENTS
            && let Some((turns, _)) = self.crosswise
        {
            // A single large transposition is divided into strips.
            let strips = turns.div_ceil(BLOCK);
            for_row_ranges(ctx, strips, width / strips, &|start, end| {
                let range = (start * BLOCK, (end * BLOCK).min(turns));
                // SAFETY: as the caller guarantees; tasks write different strips.
                unsafe { self.transpose(from.at(0), to.at(0), range) };
            });
            return;
        }
        for_row_ranges(ctx, rows, width, &|start, end| {
            let mut cursor = self.nest.cursor(start);
            for _ in start..end {
                let [t, f] = cursor.at;
                // SAFETY: as the caller guarantees; tasks write different rows.
                unsafe {
                    match self.crosswise {
                        Some((turns, _)) => self.transpose(from.at(f), to.at(t), (0, turns)),
                        None => self.row(from.at(f), to.at(t)),
                    }
                }
                cursor.advance();
            }
        });
    }

    /// # Safety
    /// A row of the innermost loop must exist from both addresses on.
    unsafe fn row<T: Copy>(&self, from: *const T, to: *mut T) {
        let [t, f] = self.nest.steps;
        // SAFETY: the caller guarantees the row.
        unsafe {
            match (t, f) {
                (1, 1) => std::ptr::copy_nonoverlapping(from, to, self.nest.width),
                (1, 0) => std::slice::from_raw_parts_mut(to, self.nest.width).fill(*from),
                _ => {
                    for i in 0..self.nest.width {
                        *to.add(i * t) = *from.add(i * f);
                    }
                }
            }
        }
    }

    /// Copies some iterations of the crosswise loop and all of the innermost, block by block.
    ///
    /// # Safety
    /// Both loops must lie inside both buffers.
    unsafe fn transpose<T: Copy>(&self, from: *const T, to: *mut T, range: (usize, usize)) {
        let (_, [across_to, across_from]) = self.crosswise.expect("a transpose");
        let [step_to, step_from] = self.nest.steps;
        for first in (range.0..range.1).step_by(BLOCK) {
            let last = (first + BLOCK).min(range.1);
            for start in (0..self.nest.width).step_by(BLOCK) {
                let end = (start + BLOCK).min(self.nest.width);
                for i in first..last {
                    for j in start..end {
                        // SAFETY: the caller guarantees both loops.
                        unsafe {
                            *to.add(i * across_to + j * step_to) =
                                *from.add(i * across_from + j * step_from);
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::thread_pool::ThreadPool;

    #[test]
    fn every_order_of_axes_and_every_slice() {
        let threads = ThreadPool::new(2);
        let ctx = Context {
            isa: Isa::GENERIC,
            threads: &threads,
        };
        let orders = [
            vec![0, 1, 2, 3],
            vec![0, 2, 1, 3],
            vec![3, 2, 1, 0],
            vec![1, 3, 0, 2],
            vec![0, 1, 3, 2],
        ];
        for shape in [
            [2, 3, 5, 7],
            [1, 40, 1, 33],
            [3, 1, 17, 16],
            [1, 1, 200, 130],
        ] {
            let x: Vec<u32> = (0..shape.iter().product::<usize>() as u32).collect();
            let own = strides(&shape);
            for order in &orders {
                let (to, from): (Vec<usize>, Vec<usize>) =
                    order.iter().map(|axis| (shape[*axis], own[*axis])).unzip();
                let mut out = vec![0u32; x.len()];
                let copy = CopyStrided::new(&to, &from, 0, 4);
                // SAFETY: both hold the whole tensor.
                unsafe { copy.run(&ctx, x.as_ptr().cast(), out.as_mut_ptr().cast()) };
                let steps = strides(&to);
                for (i, found) in out.iter().enumerate() {
                    let at: usize = (0..4).map(|a| i / steps[a] % to[a] * from[a]).sum();
                    assert_eq!(*found as usize, at, "{shape:?} {order:?}");
                }
            }
        }
        // Every second element of the middle of three columns, repeated.
        let x: Vec<u64> = (0..12).collect();
        let mut out = vec![0u64; 6];
        let copy = CopyStrided::new(&[2, 3], &[6, 0], 1, 8);
        // SAFETY: the view lies in `x`, the result in `out`.
        unsafe { copy.run(&ctx, x.as_ptr().cast(), out.as_mut_ptr().cast()) };
        assert_eq!(out, [1, 1, 1, 7, 7, 7]);
    }
}
