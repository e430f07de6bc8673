//! Products in balanced precision: activations of eight bits with a scale for every block of 32 inputs.
//!
//! A block whose largest activation stands out of its row has a second plane: the rounding errors of the first, eight bits finer. Whether
//! it has one depends on its row alone. The kernel decodes a block of a panel to registers once and multiplies it with all rows; a
//! row's sums are in the order of the blocks, the second plane of a block after its first.

mod activations;
mod products;

pub(super) use activations::BlockScaledActivations;
use activations::MAX_FEW_ROWS;
pub(super) use products::{Bits, BlockQuants, SignedBytes, group_factors};
use products::{add_products, decode};

use super::format::{BLOCK, LINE, PANEL};
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
    macro_rules! run {
        ($quants:ty) => {
            isa.run_integers(BlockScaledKernel::<$quants>(task, PhantomData))
        };
    }
    for_quants!(task.linear.format, run);
}

/// Calls a macro with the type of a format's quants.
macro_rules! for_quants {
    ($format:expr, $run:ident) => {{
        use crate::kernels::matmul::quantised::block_scaled::{Bits, SignedBytes};
        use crate::kernels::matmul::quantised::format::{BLOCK, Quant};
        const HALF: usize = BLOCK / 2;
        match ($format.quant, $format.group) {
            (Quant::Byte, _) => $run!(SignedBytes<false>),
            (Quant::Table(_), _) => $run!(SignedBytes<true>),
            (Quant::Five, _) => $run!(Bits<1, BLOCK>),
            (Quant::Six, _) => $run!(Bits<2, HALF>),
            (Quant::Nibble, BLOCK) => $run!(Bits<0, BLOCK>),
            (Quant::Nibble, _) => $run!(Bits<0, HALF>),
        }
    }};
}
pub(super) use for_quants;

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
pub(super) unsafe fn next_blocks<S: RowScaledDot, Q: BlockQuants>(
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

/// Runs `$body` for every block of `$panels` panels: `$index` is its number, `$blocks` the decoded blocks. A macro, because a closure
/// would not be compiled for the tier.
macro_rules! for_blocks {
    ($s:ident, $quants:ident, $task:ident, $layout:ident, $prefetcher:expr, $first:expr, $panels:expr, |$index:ident, $blocks:ident| $body:block) => {{
        let mut prefetcher: Option<&mut Prefetcher<'_>> = $prefetcher;
        let all = $task.activations.blocks;
        let panels: usize = $panels;
        let start = $task.operands.weight.add($first * $layout.bytes);
        let mut readers: [PanelReader; $panels] = std::array::from_fn(|panel| {
            PanelReader::new(start.wrapping_add(panel * $layout.bytes), $layout, 0)
        });
        if let Some(prefetcher) = &mut prefetcher {
            prefetcher.consumed($layout.spans);
        }
        let mut $index = 0;
        while $index < all {
            let next = next_blocks::<S, $quants>($s, &mut readers[0], all - $index);
            let mut quants = [next.quants; $panels];
            let mut factors = [next.factors; $panels];
            for panel in 1..panels {
                let next = next_blocks::<S, $quants>($s, &mut readers[panel], all - $index);
                (quants[panel], factors[panel]) = (next.quants, next.factors);
            }
            if let Some(prefetcher) = &mut prefetcher {
                prefetcher.consumed(next.header_bytes);
            }
            for _ in 0..next.count {
                if let Some(prefetcher) = &mut prefetcher {
                    prefetcher.reads(quants[0], $layout.block_bytes);
                }
                let mut $blocks = [decode::<S, $quants>($s, quants[0], factors[0], $layout); $panels];
                for panel in 1..panels {
                    $blocks[panel] = decode::<S, $quants>($s, quants[panel], factors[panel], $layout);
                }
                $body
                $index += 1;
                for panel in 0..panels {
                    quants[panel] = quants[panel].wrapping_add(next.quants_stride);
                    factors[panel] = factors[panel].wrapping_add(next.factors_stride);
                }
            }
        }
    }};
}

/// Addresses `step` numbers apart.
#[inline(always)]
fn addresses<const N: usize>(first: *mut f32, step: usize) -> [*mut f32; N] {
    let mut list = [first; N];
    for (i, address) in list.iter_mut().enumerate() {
        *address = first.wrapping_add(i * step);
    }
    list
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
        // In registers, once all calls are inlined.
        let mut sums = [[0.0f32; PANEL]; R];
        let to: *mut f32 = sums.as_mut_ptr().cast();
        // SAFETY: as the caller guarantees; rows are laid out in whole fours.
        unsafe {
            let prefetcher = Some(&mut *prefetcher);
            for_blocks!(s, Q, task, layout, prefetcher, panel, 1, |index, block| {
                let (planes, numbers) = x.adjacent::<R>(0, index, 0);
                let to = addresses::<R>(to, PANEL);
                add_products::<S, Q, 1, R>(s, &block, planes, numbers, to);
                unroll!(r in 0 1 2 3, R, {
                    if *x.flag(index, r) != 0 {
                        let (planes, numbers) = x.adjacent::<1>(1, index, r);
                        add_products::<S, Q, 1, 1>(s, &block, planes, numbers, [to[r]]);
                    }
                });
            });
            let units = s.load(task.operands.weight.add(panel * layout.bytes).cast());
            for (row, sum) in sums.iter().enumerate().take(m) {
                write(s, task, row, panel, s.mul(s.load(sum.as_ptr()), units));
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
        let tile = const { S::BLOCK_TILE.0 };
        for panel in task.panels.clone().step_by(tile) {
            let prefetcher = (rows.start == 0).then_some(&mut *prefetcher);
            let part = (rows.clone(), lists.cast_const());
            match tile == 2 && panel + 1 < task.panels.end {
                true => multiply_part::<S, Q, 2>(s, task, layout, prefetcher, part, panel),
                false => multiply_part::<S, Q, 1>(s, task, layout, prefetcher, part, panel),
            }
        }
    }
}

/// Multiplies some panels with some rows; `lists` has the rows with a second plane of every block.
///
/// # Safety
/// As for [`multiply_many`]; the panels must exist.
#[inline(always)]
unsafe fn multiply_part<S: RowScaledDot, Q: BlockQuants, const PANELS: usize>(
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
    // The sums of a row: a vector for each panel.
    let width = PANELS * PANEL;
    // SAFETY: as the caller guarantees.
    unsafe {
        for vector in 0..rows.len() * PANELS {
            s.store(sums.add(vector * PANEL), s.zero());
        }
        for_blocks!(
            s,
            Q,
            task,
            layout,
            prefetcher,
            panel,
            PANELS,
            |index, blocks| {
                let mut row = 0;
                macro_rules! add_rows {
                    ($count:literal) => {
                        while const { S::BLOCK_TILE.1 >= $count } && rows.len() - row >= $count {
                            let (planes, numbers) =
                                x.adjacent::<$count>(0, index, rows.start + row);
                            let to = addresses::<$count>(sums.add(row * width), width);
                            add_products::<S, Q, PANELS, $count>(s, &blocks, planes, numbers, to);
                            row += $count;
                        }
                    };
                }
                add_rows!(4);
                add_rows!(2);
                add_rows!(1);
                let list = lists.add(index * list_len);
                let (list, count) = (list.add(1), usize::from(*list));
                let mut done = 0;
                macro_rules! add_listed {
                    ($count:literal) => {
                        while const { S::BLOCK_TILE.1 >= $count } && count - done >= $count {
                            let (mut planes, mut numbers) = x.adjacent::<$count>(1, index, 0);
                            let mut to = [sums; $count];
                            for i in 0..$count {
                                let row = usize::from(*list.add(done + i));
                                let ([plane], [numbers_of_row]) =
                                    x.adjacent::<1>(1, index, rows.start + row);
                                (planes[i], numbers[i]) = (plane, numbers_of_row);
                                to[i] = sums.add(row * width);
                            }
                            add_products::<S, Q, PANELS, $count>(s, &blocks, planes, numbers, to);
                            done += $count;
                        }
                    };
                }
                add_listed!(4);
                add_listed!(2);
                add_listed!(1);
            }
        );
        for i in 0..PANELS {
            let panel = panel + i;
            let units = s.load(task.operands.weight.add(panel * layout.bytes).cast());
            for row in rows.clone() {
                let sum = s.load(sums.add((row - rows.start) * width + i * PANEL));
                write(s, task, row, panel, s.mul(sum, units));
            }
        }
    }
}
