//! Nested loops over several strided tensors, shared by elementwise kernels, copies, gathers and reductions.

use super::{Context, SERIAL_ELEMENTS, for_row_ranges};

/// Loops over `N` strided tensors, outermost first.
#[derive(Clone, Debug)]
pub(crate) struct LoopNest<const N: usize> {
    /// For each loop around the innermost one: its iterations, and every tensor's step in elements.
    outer: Vec<(usize, [usize; N])>,
    /// Iterations of the innermost loop.
    pub(crate) width: usize,
    /// Every tensor's step in the innermost loop, in elements.
    pub(crate) steps: [usize; N],
}

impl<const N: usize> LoopNest<N> {
    /// The loops over `shape` with every tensor's strides; adjacent loops are merged where possible.
    pub(crate) fn new(shape: &[usize], strides: [&[usize]; N]) -> LoopNest<N> {
        let mut loops: Vec<(usize, [usize; N])> = Vec::new();
        for (axis, &size) in shape.iter().enumerate().filter(|(_, size)| **size != 1) {
            let steps = strides.map(|s| s[axis]);
            match loops.last_mut() {
                Some((turns, outer)) if (0..N).all(|i| outer[i] == steps[i] * size) => {
                    *turns *= size;
                    *outer = steps;
                }
                _ => loops.push((size, steps)),
            }
        }
        let (width, steps) = loops.pop().unwrap_or((1, [1; N]));
        LoopNest {
            outer: loops,
            width,
            steps,
        }
    }

    /// How often the innermost loop runs.
    pub(crate) fn rows(&self) -> usize {
        self.outer.iter().map(|(turns, _)| turns).product()
    }

    /// A cursor at the start of a row.
    pub(crate) fn cursor(&self, row: usize) -> Cursor<'_, N> {
        let mut cursor = Cursor {
            nest: self,
            turns: [0; MAX_LOOPS],
            at: [0; N],
        };
        assert!(
            self.outer.len() <= MAX_LOOPS,
            "checked when the call was made"
        );
        let mut rest = row;
        for (i, (turns, steps)) in self.outer.iter().enumerate().rev() {
            let turn = rest % turns.max(&1);
            rest /= turns.max(&1);
            cursor.turns[i] = turn;
            for (at, step) in cursor.at.iter_mut().zip(steps) {
                *at += turn * step;
            }
        }
        cursor
    }

    /// Whether there are at most `MAX_LOOPS` loops around the innermost one.
    pub(crate) fn fits(&self) -> bool {
        self.outer.len() <= MAX_LOOPS
    }

    /// Adds a loop inside the innermost one.
    pub(crate) fn push_inner(&mut self, width: usize, steps: [usize; N]) {
        self.outer.push((self.width, self.steps));
        (self.width, self.steps) = (width, steps);
    }
}

/// A range of a loop nest: some rows, or some columns of the only row.
#[derive(Clone, Copy)]
pub(crate) struct NestRange {
    pub(crate) row: usize,
    pub(crate) rows: usize,
    pub(crate) column: usize,
    pub(crate) columns: usize,
}

impl<const N: usize> LoopNest<N> {
    /// Runs `body` on ranges that cover the loops, on several threads if there are enough elements.
    pub(crate) fn run(&self, ctx: &Context<'_>, body: &(dyn Fn(NestRange) + Sync)) {
        let (rows, width) = (self.rows(), self.width);
        if rows * width == 0 {
            return;
        }
        if rows > 1 {
            let all = |row, end| {
                body(NestRange {
                    row,
                    rows: end - row,
                    column: 0,
                    columns: width,
                });
            };
            for_row_ranges(ctx, rows, width, &all);
        } else {
            let blocks = width.div_ceil(SERIAL_ELEMENTS / 4).max(1);
            for_row_ranges(ctx, blocks, width / blocks, &|start, end| {
                let column = width * start / blocks;
                body(NestRange {
                    row: 0,
                    rows: 1,
                    column,
                    columns: width * end / blocks - column,
                });
            });
        }
    }

    /// The range that covers all loops.
    pub(crate) fn full_range(&self) -> NestRange {
        let empty = self.width == 0;
        NestRange {
            row: 0,
            rows: if empty { 0 } else { self.rows() },
            column: 0,
            columns: self.width,
        }
    }

    /// Every tensor's offset of the first element of a range's row.
    #[inline(always)]
    pub(crate) fn start(&self, cursor: &Cursor<'_, N>, part: NestRange) -> [usize; N] {
        let mut at = cursor.at;
        for i in 0..N {
            at[i] += part.column * self.steps[i];
        }
        at
    }
}

/// The most loops around the innermost one.
const MAX_LOOPS: usize = 16;

/// A row of the loops, with the tensors' offsets.
pub(crate) struct Cursor<'a, const N: usize> {
    nest: &'a LoopNest<N>,
    turns: [usize; MAX_LOOPS],
    /// Every tensor's offset of the row's first element.
    pub(crate) at: [usize; N],
}

impl<const N: usize> Cursor<'_, N> {
    /// Moves to the next row; the first row follows the last.
    #[inline(always)]
    pub(crate) fn advance(&mut self) {
        for (i, (turns, steps)) in self.nest.outer.iter().enumerate().rev() {
            self.turns[i] += 1;
            for (at, step) in self.at.iter_mut().zip(steps) {
                *at += step;
            }
            if self.turns[i] < *turns {
                return;
            }
            self.turns[i] = 0;
            for (at, step) in self.at.iter_mut().zip(steps) {
                *at -= turns * step;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use graph::ops::{broadcast_strides, strides};

    fn walk(nest: &LoopNest<2>, start: usize) -> Vec<[usize; 2]> {
        let mut cursor = nest.cursor(start);
        let mut found = vec![];
        for _ in start..nest.rows() {
            for i in 0..nest.width {
                found.push([0, 1].map(|t| cursor.at[t] + i * nest.steps[t]));
            }
            cursor.advance();
        }
        found
    }

    #[test]
    fn adjacent_loops_are_merged() {
        let shape = [2, 3, 1, 4];
        let whole = LoopNest::new(&shape, [&strides(&shape), &strides(&shape)]);
        assert_eq!((whole.rows(), whole.width, whole.steps), (1, 24, [1, 1]));
        let row = LoopNest::new(&shape, [&strides(&shape), &broadcast_strides(&[4], &shape)]);
        assert_eq!((row.rows(), row.width, row.steps), (6, 4, [1, 1]));
        let scalar = LoopNest::new(&shape, [&strides(&shape), &broadcast_strides(&[], &shape)]);
        assert_eq!((scalar.rows(), scalar.width, scalar.steps), (1, 24, [1, 0]));
    }

    #[test]
    fn walks_in_order_from_any_row() {
        let (shape, moved) = ([2, 3, 4], [4, 8, 1]);
        let nest = LoopNest::new(&shape, [&strides(&shape), &moved]);
        let all = walk(&nest, 0);
        let expect: Vec<[usize; 2]> = (0..24)
            .map(|i| [i, i / 12 * 4 + i / 4 % 3 * 8 + i % 4])
            .collect();
        assert_eq!(all, expect);
        assert_eq!(walk(&nest, 4), all[4 * nest.width..]);
        let empty = LoopNest::new(&[3, 0], [&[0, 1], &[0, 1]]);
        assert_eq!(empty.rows() * empty.width, 0);
    }
}
