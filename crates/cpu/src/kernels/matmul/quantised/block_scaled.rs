//! Products in balanced precision: activations of eight bits with a scale for every block of 32 inputs.
//!
//! A block whose largest activation stands out of its row has a second plane: the rounding errors of the first, eight bits finer. Whether
//! it has one depends on its row alone. The kernel decodes a block of a panel to registers once and multiplies it with all rows; a
//! row's sums are in the order of the blocks, the second plane of a block after its first.

mod activations;
mod products;

pub(super) use activations::BlockScaledActivations;
use activations::{MAX_FEW_ROWS, NUMBERS};
use products::{Bits, BlockQuants, SignedBytes, add_products, add_products_of_two, decode};

use super::format::{BLOCK, LINE, PANEL, Quant};
use super::microkernel::unroll;
use super::panel::{PanelBlocks, PanelReader, RowScaledPanel};
use super::task::{PanelTask, QuantisedLinear, write};
use crate::isa::Isa;
use crate::prefetch::Prefetcher;
use crate::simd::{IntegerKernel, RowScaledDot};
use std::marker::PhantomData;
use std::ops::Range;

/// Bytes of the activations that are multiplied with all panels of a task, so that they stay in L2.
const PART_BYTES: usize = 256 * 1024;
/// The fewest and the most rows of such a part.
const PART_ROWS: [usize; 2] = [32, 128];

/// Bytes of a thread's scratch: the sums of a part's rows for two panels, and the rows with a second plane of every block.
pub(super) fn thread_scratch(linear: &QuantisedLinear) -> usize {
    if linear.m <= MAX_FEW_ROWS {
        return 0;
    }
    let (rows, blocks) = (part_rows(linear), linear.k / BLOCK);
    let lists = (rows + 1) * blocks * size_of::<u16>();
    2 * rows * LINE + lists.next_multiple_of(LINE)
}

/// The rows that are multiplied with a decoded block.
fn part_rows(linear: &QuantisedLinear) -> usize {
    let [least, most] = PART_ROWS;
    (PART_BYTES / linear.k).clamp(least, most).min(linear.m)
}

/// The products of a task's panels with all rows.
struct BlockScaledKernel<'a, Q>(PanelTask<'a, BlockScaledActivations>, PhantomData<Q>);

/// Multiplies the panels of a task.
///
/// # Safety
/// As for [`QuantisedLinear::run`], within the task's panels; the task's scratch must have [`thread_scratch`].
pub(super) unsafe fn multiply(task: PanelTask<'_, BlockScaledActivations>, isa: Isa) {
    const HALF: usize = BLOCK / 2;
    let format = task.linear.format;
    macro_rules! run {
        ($quants:ty) => {
            isa.run_integers(BlockScaledKernel::<$quants>(task, PhantomData))
        };
    }
    match (format.quant, format.group) {
        (Quant::Byte, _) => run!(SignedBytes<false>),
        (Quant::Table(_), _) => run!(SignedBytes<true>),
        (Quant::Five, _) => run!(Bits<1, BLOCK>),
        (Quant::Six, _) => run!(Bits<2, HALF>),
        (Quant::Nibble, BLOCK) => run!(Bits<0, BLOCK>),
        (Quant::Nibble, _) => run!(Bits<0, HALF>),
    }
}

impl<Q: BlockQuants> IntegerKernel for BlockScaledKernel<'_, Q> {
    type Output = ();

    #[inline(always)]
    fn run<S: RowScaledDot>(self, s: S) {
        let task = &self.0;
        let QuantisedLinear { m, k, format, .. } = task.linear;
        let layout = &RowScaledPanel::new(&format, k);
        let mut prefetcher = task.prefetch_plan.prefetcher();
        // SAFETY: `multiply`'s caller guarantees the operands and the scratch, and the format has been matched.
        unsafe {
            match m {
                1 => multiply_few::<S, Q, 1>(s, task, layout, &mut prefetcher),
                2 => multiply_few::<S, Q, 2>(s, task, layout, &mut prefetcher),
                3 | MAX_FEW_ROWS => {
                    multiply_few::<S, Q, MAX_FEW_ROWS>(s, task, layout, &mut prefetcher)
                }
                _ => {
                    for first in (0..m).step_by(part_rows(&task.linear)) {
                        let rows = first..m.min(first + part_rows(&task.linear));
                        multiply_many::<S, Q>(s, task, layout, &mut prefetcher, rows);
                    }
                }
            }
        }
    }
}

/// The next blocks of a panel.
///
/// # Safety
/// As for [`PanelReader::next`].
#[inline(always)]
unsafe fn next_blocks<S: RowScaledDot, Q: BlockQuants>(
    s: S,
    reader: &mut PanelReader,
    most: usize,
) -> PanelBlocks {
    // SAFETY: as the caller guarantees.
    unsafe {
        match Q::UPPER {
            0 => reader.next::<S, 0>(s, most),
            1 => reader.next::<S, 1>(s, most),
            _ => reader.next::<S, 2>(s, most),
        }
    }
}

/// Runs `$body` for every block of a panel, or of two if `$both`: `$index` is its number, `$block` the decoded blocks. A macro, because a closure would not be
/// compiled for the tier.
macro_rules! for_blocks {
    ($s:ident, $quants:ident, $task:ident, $layout:ident, $prefetcher:expr, $panel:expr, $both:expr, |$index:ident, $block:ident| $body:block) => {{
        let mut prefetcher: Option<&mut Prefetcher<'_>> = $prefetcher;
        let all = $task.activations.blocks;
        let start = $task.operands.weight.add($panel * $layout.bytes);
        let mut other = PanelReader::new(start.wrapping_add($layout.bytes), $layout, 0);
        if let Some(prefetcher) = &mut prefetcher {
            prefetcher.consumed($layout.spans);
        }
        let mut reader = PanelReader::new(start, $layout, 0);
        let mut $index = 0;
        while $index < all {
            let blocks = next_blocks::<S, $quants>($s, &mut reader, all - $index);
            let (mut other_quants, mut other_factors) = (blocks.quants, blocks.factors);
            if $both {
                let blocks = next_blocks::<S, $quants>($s, &mut other, all - $index);
                (other_quants, other_factors) = (blocks.quants, blocks.factors);
            }
            if let Some(prefetcher) = &mut prefetcher {
                prefetcher.consumed(blocks.header_bytes);
            }
            let (mut quants, mut factors) = (blocks.quants, blocks.factors);
            for _ in 0..blocks.count {
                if let Some(prefetcher) = &mut prefetcher {
                    prefetcher.reads(quants, $layout.block_bytes);
                }
                let first = decode::<S, $quants>($s, quants, factors, $layout);
                let $block = match $both {
                    true => {
                        let (quants, factors) = (other_quants, other_factors);
                        [first, decode::<S, $quants>($s, quants, factors, $layout)]
                    }
                    false => [first, first],
                };
                $body
                $index += 1;
                other_quants = other_quants.wrapping_add(blocks.quants_stride);
                other_factors = other_factors.wrapping_add(blocks.factors_stride);
                quants = quants.add(blocks.quants_stride);
                factors = factors.add(blocks.factors_stride);
            }
        }
    }};
}

/// Multiplies all panels with up to `R` rows, whose sums are in registers. If there are fewer, the data after them is multiplied too
/// and not stored.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn multiply_few<S: RowScaledDot, Q: BlockQuants, const R: usize>(
    s: S,
    task: &PanelTask<'_, BlockScaledActivations>,
    layout: &RowScaledPanel,
    prefetcher: &mut Prefetcher<'_>,
) {
    let x = &task.activations;
    let m = task.linear.m;
    for panel in task.panels.clone() {
        let mut sums = [s.zero(); R];
        // SAFETY: as the caller guarantees; rows are laid out in whole fours.
        unsafe {
            for_blocks!(
                s,
                Q,
                task,
                layout,
                Some(&mut *prefetcher),
                panel,
                false,
                |index, block| {
                    let (plane, numbers) = (x.plane(0, index, 0), x.numbers(0, index, 0));
                    unroll!(r in 0 1 2 3, R, {
                        let (plane, numbers) = (plane.add(r * BLOCK), numbers.add(r * NUMBERS));
                        sums[r] = add_products::<S, Q>(s, &block[0], plane, numbers, sums[r]);
                    });
                    unroll!(r in 0 1 2 3, R, {
                        if *x.flag(index, r) != 0 {
                            let (plane, numbers) = (x.plane(1, index, r), x.numbers(1, index, r));
                            sums[r] = add_products::<S, Q>(s, &block[0], plane, numbers, sums[r]);
                        }
                    });
                }
            );
            let units = s.load(task.operands.weight.add(panel * layout.bytes).cast());
            for (row, sum) in sums.into_iter().enumerate().take(m) {
                write(s, task, row, panel, s.mul(sum, units));
            }
        }
    }
}

/// Multiplies all panels with some rows, whose sums are in the thread's scratch.
///
/// # Safety
/// As for [`multiply`]; there must be at most [`part_rows`] rows.
#[inline(always)]
unsafe fn multiply_many<S: RowScaledDot, Q: BlockQuants>(
    s: S,
    task: &PanelTask<'_, BlockScaledActivations>,
    layout: &RowScaledPanel,
    prefetcher: &mut Prefetcher<'_>,
    rows: Range<usize>,
) {
    let x = &task.activations;
    // A list for each block: the number of its rows with a second plane, and the rows, counted from the part's first.
    let lists: *mut u16 = task
        .expanded
        .wrapping_add(2 * part_rows(&task.linear) * LINE)
        .cast();
    let list_len = part_rows(&task.linear) + 1;
    // SAFETY: as the caller guarantees.
    unsafe {
        for block in 0..x.blocks {
            let list = lists.add(block * list_len);
            let mut count = 0;
            for row in 0..rows.len() {
                list.add(1 + count).write(row as u16);
                count += usize::from(*x.flag(block, rows.start + row));
            }
            list.write(count as u16);
        }
        let tile = const { S::UNPACKED_TILE.0 };
        for panel in task.panels.clone().step_by(tile.max(1)) {
            let prefetcher = (rows.start == 0).then_some(&mut *prefetcher);
            let part = (rows.clone(), lists.cast_const());
            match tile == 2 && panel + 1 < task.panels.end {
                true => multiply_part::<S, Q, true>(s, task, layout, prefetcher, part, panel),
                false => multiply_part::<S, Q, false>(s, task, layout, prefetcher, part, panel),
            }
        }
    }
}

/// Multiplies a panel, or two if `BOTH`, with some rows; `lists` has the rows with a second plane of every block.
///
/// # Safety
/// As for [`multiply_many`]; the panels must exist.
#[inline(always)]
unsafe fn multiply_part<S: RowScaledDot, Q: BlockQuants, const BOTH: bool>(
    s: S,
    task: &PanelTask<'_, BlockScaledActivations>,
    layout: &RowScaledPanel,
    prefetcher: Option<&mut Prefetcher<'_>>,
    (rows, lists): (Range<usize>, *const u16),
    panel: usize,
) {
    let x = &task.activations;
    let list_len = part_rows(&task.linear) + 1;
    let sums: *mut f32 = task.expanded.cast();
    // The sums of a row: one or two vectors.
    let panels = 1 + usize::from(BOTH);
    let width = panels * PANEL;
    // SAFETY: as the caller guarantees.
    unsafe {
        for vector in 0..rows.len() * panels {
            s.store(sums.add(vector * PANEL), s.zero());
        }
        macro_rules! add {
            ($block:ident, $to:expr, $plane:expr, $numbers:expr) => {{
                let to: *mut f32 = $to;
                if BOTH {
                    let before = [s.load(to), s.load(to.add(PANEL))];
                    let [a, b] = add_products_of_two::<S, Q>(s, &$block, $plane, $numbers, before);
                    s.store(to, a);
                    s.store(to.add(PANEL), b);
                } else {
                    let sum = add_products::<S, Q>(s, &$block[0], $plane, $numbers, s.load(to));
                    s.store(to, sum);
                }
            }};
        }
        for_blocks!(
            s,
            Q,
            task,
            layout,
            prefetcher,
            panel,
            BOTH,
            |index, block| {
                let mut plane = x.plane(0, index, rows.start).cast_const();
                let mut numbers = x.numbers(0, index, rows.start).cast_const();
                let mut to = sums;
                for _ in 0..rows.len() {
                    add!(block, to, plane, numbers);
                    (plane, numbers) = (plane.add(BLOCK), numbers.add(NUMBERS));
                    to = to.add(width);
                }
                let list = lists.add(index * list_len);
                for i in 0..usize::from(*list) {
                    let row = usize::from(*list.add(1 + i));
                    let to = sums.add(row * width);
                    let row = rows.start + row;
                    add!(block, to, x.plane(1, index, row), x.numbers(1, index, row));
                }
            }
        );
        for i in 0..panels {
            let panel = panel + i;
            let units = s.load(task.operands.weight.add(panel * layout.bytes).cast());
            for row in rows.clone() {
                let sum = s.load(sums.add((row - rows.start) * width + i * PANEL));
                write(s, task, row, panel, s.mul(sum, units));
            }
        }
    }
}
