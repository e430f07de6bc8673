//! Convolutions with few channels a group: the places of a few output channels are summed in registers, straight from the
//! copies of the input.

use super::copies::Block;
use super::{Conv, ConvOperands, ConvShape, Copies, K_BLOCK};
use crate::kernels::{Context, for_tasks};
use crate::simd::{Kernel, LANES, Simd};

/// Elements of the copies of a block, about: they stay in L1.
const BLOCK_ELEMENTS: usize = 4096;
/// The fewest places of a block.
const MIN_PLACES: usize = 64;

#[derive(Clone, Debug)]
pub(super) struct Direct {
    copies: Copies,
    /// Input channels of a group.
    inner: usize,
}

impl Direct {
    pub(super) fn new(shape: &ConvShape) -> Direct {
        let places = (BLOCK_ELEMENTS / shape.inner.max(1)).max(MIN_PLACES);
        Direct {
            copies: Copies::new(shape.axes, places, 0.0),
            inner: shape.inner,
        }
    }

    /// Elements of scratch of a thread: the last row is read in whole vectors.
    pub(super) fn scratch(&self) -> usize {
        self.copies.channel() * self.inner + LANES
    }

    /// # Safety
    /// As for [`Conv::run`].
    pub(super) unsafe fn run(&self, ctx: &Context<'_>, op: &Conv, o: ConvOperands) {
        let shape = op.shape;
        let blocks = self.copies.blocks();
        let tasks = shape.batch * shape.groups * blocks;
        for_tasks(ctx, tasks, shape.work(), &|task, thread| {
            let o = o.of_thread(thread, self.scratch());
            let (block, group) = (self.copies.block(task % blocks), task / blocks);
            let channel = group * shape.outer;
            // SAFETY: the caller guarantees the operands; every task writes its own places of its own group.
            unsafe {
                let weight = group % shape.groups * shape.outer * shape.depth();
                ctx.isa.run(DirectBlock {
                    copies: &self.copies,
                    shape,
                    block,
                    x: o.x.add(group * shape.inner * shape.input_plane()),
                    weight: o.weight.add(weight),
                    scratch: o.scratch,
                    out: o.out.add(channel * shape.output_plane() + block.place),
                });
                let places = (block.place, block.rows * block.width);
                op.finish(ctx, &o, (channel, shape.outer), places);
            }
        });
    }
}

/// All output channels of a group at a block of places.
struct DirectBlock<'a> {
    copies: &'a Copies,
    shape: ConvShape,
    block: Block,
    x: *const f32,
    weight: *const f32,
    scratch: *mut f32,
    out: *mut f32,
}

/// Calls the tile of `$r` channels and `$v` vectors. Tiles that do not fit a tier's registers are not compiled for it.
macro_rules! tile {
    ($self:ident, $s:ident, $at:expr, ($r:expr, $v:expr), $(($R:literal, $V:literal))*) => {
        match ($r, $v) {
            $(($R, $V) => {
                if const { $R * $V <= sums::<S>() } {
                    $s.call(DirectTile::<$R, $V> { block: $self, at: $at });
                }
            })*
            (r, v) => unreachable!("a tile of {r} channels and {v} vectors"),
        }
    };
}

/// Sums that fit the registers of a tier.
const fn sums<S: Simd>() -> usize {
    S::REGISTER_TILE.0 * S::REGISTER_TILE.1
}

/// Most vectors of a tile of one channel: enough chains to hide the latency of a multiply-add.
const fn single<S: Simd>() -> usize {
    if sums::<S>() >= 8 { 8 } else { 4 }
}

/// Most channels and vectors of other tiles.
const fn largest<S: Simd>() -> usize {
    if sums::<S>() >= 16 { 4 } else { 2 }
}

impl Kernel for DirectBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let shape = &self.shape;
        for channel in 0..shape.inner {
            // SAFETY: `Direct::run` guarantees the group's input and a thread's scratch.
            unsafe {
                let x = self.x.add(channel * shape.input_plane());
                let to = self.scratch.add(channel * self.copies.channel());
                self.copies.copy(s, x, &self.block, to);
            }
        }
        let this = &self;
        let mut channel = 0;
        while channel < shape.outer {
            let channels = match shape.outer - channel {
                rest if rest >= largest::<S>() => largest::<S>(),
                2.. => 2,
                _ => 1,
            };
            // One channel leaves registers for more places.
            let most = if channels == 1 {
                single::<S>()
            } else {
                largest::<S>()
            };
            let mut at = TilePlace {
                channel,
                row: 0,
                column: 0,
            };
            let mut rest = this.block.rows * this.block.width.div_ceil(LANES);
            while rest > 0 {
                // A tile may count the last vector more than once.
                let vectors = match rest {
                    1 => 1,
                    2 => 2,
                    3..=4 => 4.min(most),
                    _ => most,
                };
                tile!(
                    this,
                    s,
                    at,
                    (channels, vectors),
                    (1, 1)(1, 2)(1, 4)(1, 8)(2, 1)(2, 2)(2, 4)(4, 1)(4, 2)(4, 4)
                );
                (0..vectors.min(rest)).for_each(|_| at.advance(&this.block));
                rest = rest.saturating_sub(vectors);
            }
            channel += channels;
        }
    }
}

/// The first channel, row and column of a tile in its block. A tile's vectors of places are counted row by row.
#[derive(Clone, Copy)]
struct TilePlace {
    channel: usize,
    row: usize,
    column: usize,
}

impl TilePlace {
    /// Goes on to the next vector.
    #[inline(always)]
    fn advance(&mut self, block: &Block) {
        self.column += LANES;
        if self.column >= block.width {
            (self.row, self.column) = (self.row + 1, 0);
        }
    }
}

/// `R` output channels of `V` vectors of places.
struct DirectTile<'a, const R: usize, const V: usize> {
    block: &'a DirectBlock<'a>,
    at: TilePlace,
}

impl<const R: usize, const V: usize> Kernel for DirectTile<'_, R, V> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let DirectBlock {
            copies,
            shape,
            block,
            ..
        } = self.block;
        let mut at = self.at;
        let channel = at.channel;
        let (depth, kernel) = (shape.depth(), copies.taps.len());
        let (plane, width) = (shape.output_plane(), block.width);
        // Where each vector is read and written, and the places of the block from there on. What is written behind a row is
        // overwritten by the next one.
        let (mut from, mut to, mut room) = ([0; V], [0; V], [0; V]);
        for v in 0..V {
            if at.row == block.rows {
                (from[v], to[v], room[v]) = (from[v - 1], to[v - 1], room[v - 1]);
                continue;
            }
            from[v] = at.row * copies.line + at.column;
            to[v] = at.row * width + at.column;
            room[v] = block.rows * width - to[v];
            at.advance(block);
        }
        // SAFETY: constructed only by `DirectBlock`, whose maker guarantees the operands. A row of the copies may be read to
        // a whole vector, and only places of the block are written.
        unsafe {
            let weight = self.block.weight.add(channel * depth);
            let out = self.block.out.add(channel * plane);
            let mut start = 0;
            loop {
                let end = (start + K_BLOCK).min(depth);
                let mut sums = [[s.zero(); V]; R];
                let (mut at, mut tap) = (start, start % kernel);
                let mut input = self.block.scratch.add(start / kernel * copies.channel());
                while at < end {
                    let offset = *copies.taps.get_unchecked(tap);
                    let mut x = [s.zero(); V];
                    for v in 0..V {
                        x[v] = s.load(input.add(offset + from[v]));
                    }
                    for r in 0..R {
                        let weight = s.splat(*weight.add(r * depth + at));
                        for v in 0..V {
                            sums[r][v] = s.fma(weight, x[v], sums[r][v]);
                        }
                    }
                    at += 1;
                    tap += 1;
                    if tap == kernel {
                        tap = 0;
                        input = input.add(copies.channel());
                    }
                }
                // All are read before one is written.
                if start > 0 {
                    for r in 0..R {
                        for v in 0..V {
                            let to = out.add(r * plane + to[v]);
                            let before = match room[v] {
                                LANES.. => s.load(to),
                                count => s.load_part(to, count),
                            };
                            sums[r][v] = s.add(before, sums[r][v]);
                        }
                    }
                }
                for r in 0..R {
                    for v in 0..V {
                        let to = out.add(r * plane + to[v]);
                        match room[v] {
                            LANES.. => s.store(to, sums[r][v]),
                            count => s.store_part(to, sums[r][v], count),
                        }
                    }
                }
                start = end;
                if start == depth {
                    break;
                }
            }
        }
    }
}
