//! Copies of input channels under a block of places, with the padding, and with the elements of each phase of a stride
//! together: under every element of a kernel, neighbouring places then read neighbouring elements.

use crate::kernels::rearrange::windows::Slide;
use crate::simd::{LANES, Simd};

/// How blocks of places divide an output plane, and how the input under one of them is copied.
#[derive(Clone, Debug)]
pub(super) struct Copies {
    axes: [Slide; 3],
    /// The element that stands for the padding.
    padding: f32,
    /// Places of a block along the last two axes. A block with more than one row has whole rows.
    pub(super) rows: usize,
    pub(super) width: usize,
    /// Blocks along each axis.
    counts: [usize; 3],
    /// Phases of the stride along the last two axes that a kernel reads.
    phases: [usize; 2],
    /// Rows of a phase's copy.
    lines: usize,
    /// Elements of a row of the copy.
    pub(super) line: usize,
    /// Where the copy has the elements under each element of the kernel, for the block's first place.
    pub(super) taps: Vec<usize>,
}

/// A block of places.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// The first place along each axis.
    pub(super) first: [usize; 3],
    /// Rows and columns.
    pub(super) rows: usize,
    pub(super) width: usize,
    /// The first place in the output plane.
    pub(super) place: usize,
}

impl Copies {
    /// Blocks of at most `places` places.
    pub(super) fn new(axes: [Slide; 3], places: usize, padding: f32) -> Copies {
        let [a, b, c] = axes;
        let parts = |count: usize, most: usize| count.div_ceil(most.max(1)).max(1);
        let width = match parts(c.places, places) {
            1 => c.places,
            parts => c.places.div_ceil(parts).next_multiple_of(LANES),
        };
        let rows = match width < c.places {
            true => 1,
            false => b.places.div_ceil(parts(b.places, places / width.max(1))),
        };
        // Under a place, element `within` lies `shift` elements on in the copy of `phase`.
        let split = |axis: &Slide, within: usize| {
            let at = within * axis.dilation;
            (at / axis.stride, at % axis.stride)
        };
        let reach = |axis: &Slide| {
            let all = (0..axis.size).map(|within| split(axis, within));
            let most = |(shift, phase), (s, p): (usize, usize)| (s.max(shift), p.max(phase));
            all.fold((0, 0), most)
        };
        let ((tall, phases_b), (wide, phases_c)) = (reach(&b), reach(&c));
        let phases = [phases_b + 1, phases_c + 1];
        let (lines, line) = (rows + tall, width + wide);
        let mut taps = vec![];
        for i in 0..a.size {
            for j in 0..b.size {
                for k in 0..c.size {
                    let ((down, phase_b), (right, phase_c)) = (split(&b, j), split(&c, k));
                    let copy = (i * phases[0] + phase_b) * phases[1] + phase_c;
                    taps.push((copy * lines + down) * line + right);
                }
            }
        }
        Copies {
            axes,
            padding,
            rows,
            width,
            counts: [
                a.places,
                b.places.div_ceil(rows.max(1)),
                c.places.div_ceil(width.max(1)),
            ],
            phases,
            lines,
            line,
            taps,
        }
    }

    /// Elements of the copy of a channel.
    pub(super) fn channel(&self) -> usize {
        self.axes[0].size * self.phases[0] * self.phases[1] * self.lines * self.line
    }

    /// Blocks of an output plane.
    pub(super) fn blocks(&self) -> usize {
        self.counts.iter().product()
    }

    /// Block `index` of an output plane.
    pub(super) fn block(&self, index: usize) -> Block {
        let [_, down, across] = self.counts;
        let [_, b, c] = self.axes;
        let first = [
            index / across / down,
            index / across % down * self.rows,
            index % across * self.width,
        ];
        Block {
            first,
            rows: self.rows.min(b.places - first[1]),
            width: self.width.min(c.places - first[2]),
            place: (first[0] * b.places + first[1]) * c.places + first[2],
        }
    }

    /// Copies a channel's elements under a block. Lines are written in whole vectors, in order: what one writes behind itself is
    /// overwritten by the next.
    ///
    /// # Safety
    /// `x` must hold the channel, and `to` have room for [`channel`](Copies::channel) elements and a vector.
    #[inline(always)]
    pub(super) unsafe fn copy<S: Simd>(&self, s: S, x: *const f32, block: &Block, to: *mut f32) {
        let [a, b, c] = self.axes;
        let limit = x.wrapping_add(a.len * b.len * c.len);
        let mut to = to;
        for i in 0..a.size {
            let deep = a.at(block.first[0], i);
            for phase_b in 0..self.phases[0] {
                for phase_c in 0..self.phases[1] {
                    for line in 0..self.lines {
                        let down = (block.first[1] + line) * b.stride + phase_b;
                        let row = down.checked_sub(b.before).filter(|row| *row < b.len);
                        // SAFETY: plane and row are inside the channel, and `to` moves over the copy.
                        unsafe {
                            match deep.zip(row) {
                                Some((deep, row)) => {
                                    let x = x.add((deep * b.len + row) * c.len);
                                    self.copy_line(s, (x, limit), (block.first[2], phase_c), to);
                                }
                                None => self.pad(s, to, self.line),
                            }
                            to = to.add(self.line);
                        }
                    }
                }
            }
        }
    }

    /// Copies a row's elements of one phase, from a place on.
    ///
    /// # Safety
    /// `x` must hold the row, elements be readable up to `limit`, and `to` have room for a line and a vector.
    #[inline(always)]
    unsafe fn copy_line<S: Simd>(
        &self,
        s: S,
        (x, limit): (*const f32, *const f32),
        (place, phase): (usize, usize),
        to: *mut f32,
    ) {
        let c = self.axes[2];
        // Element `i` of the line is element `first + i · stride − before` of the row.
        let first = place * c.stride + phase;
        let start = c.before.saturating_sub(first).div_ceil(c.stride);
        let end = (c.len + c.before).saturating_sub(first).div_ceil(c.stride);
        let end = end.min(self.line);
        let start = start.min(end);
        // SAFETY: elements from `start` to `end` are inside the row, and the line has room.
        unsafe {
            self.pad(s, to, start);
            let from = x
                .wrapping_add(first + start * c.stride)
                .wrapping_sub(c.before);
            if c.stride == 1 {
                for at in (0..end - start).step_by(LANES) {
                    let from = from.wrapping_add(at);
                    let vector = match from.wrapping_add(LANES) <= limit {
                        true => s.load(from),
                        false => s.load_part(from, (end - start - at).min(LANES)),
                    };
                    s.store(to.add(start + at), vector);
                }
            } else if c.stride == 2 {
                // A constant stride is what compilers turn into vectors.
                for i in 0..end - start {
                    *to.add(start + i) = *from.add(i * 2);
                }
            } else {
                for i in 0..end - start {
                    *to.add(start + i) = *from.add(i * c.stride);
                }
            }
            self.pad(s, to.add(end), self.line - end);
        }
    }

    /// # Safety
    /// `to` must have room for `count` elements and a vector.
    #[inline(always)]
    unsafe fn pad<S: Simd>(&self, s: S, to: *mut f32, count: usize) {
        for at in (0..count).step_by(LANES) {
            // SAFETY: as the caller guarantees.
            unsafe { s.store(to.add(at), s.splat(self.padding)) };
        }
    }
}
