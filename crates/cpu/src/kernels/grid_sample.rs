//! Interpolation of images at the points of a grid.

use super::{Context, SendPtr, for_row_ranges};
use graph::ops::{self, MAX_SAMPLE_AXES, MAX_TAPS};

/// Points whose neighbours are found before the channels are gone through.
const POINTS: usize = 32;

/// The most neighbours of a point: cubic in two axes.
const MAX_NEIGHBOURS: usize = MAX_TAPS * MAX_TAPS;

/// `x [batch, channels, sizes..]` at the points of `grid [batch, points, rank]`, to `[batch, channels, points]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GridSample {
    pub(crate) op: ops::GridSample,
    pub(crate) batch: usize,
    pub(crate) channels: usize,
    /// Sizes of the image's axes; the first `rank` count.
    pub(crate) sizes: [usize; MAX_SAMPLE_AXES],
    pub(crate) rank: usize,
    pub(crate) points: usize,
}

/// The neighbours of a point: element of the plane and weight of each.
#[derive(Clone, Copy)]
struct Neighbours {
    list: [(usize, f32); MAX_NEIGHBOURS],
    count: usize,
}

impl GridSample {
    /// # Safety
    /// `x` must hold all images, `grid` all points and `out` a value for each channel and point.
    pub(crate) unsafe fn run(
        &self,
        ctx: &Context<'_>,
        x: *const f32,
        grid: *const f32,
        out: *mut f32,
    ) {
        let (x, grid) = (SendPtr(x.cast_mut()), SendPtr(grid.cast_mut()));
        let out = SendPtr(out);
        let blocks = self.points.div_ceil(POINTS);
        let work = POINTS * self.channels * MAX_TAPS;
        for_row_ranges(ctx, self.batch * blocks, work, &|start, end| {
            for i in start..end {
                // SAFETY: the caller guarantees the tensors; every block of points is written by one task.
                unsafe { self.block(i / blocks, i % blocks * POINTS, x, grid, out) };
            }
        });
    }

    /// The values of up to [`POINTS`] points of an image, from point `first`.
    ///
    /// # Safety
    /// As for [`run`](GridSample::run); `image` and `first` must be in range.
    unsafe fn block(
        &self,
        image: usize,
        first: usize,
        x: SendPtr<f32>,
        grid: SendPtr<f32>,
        out: SendPtr<f32>,
    ) {
        let plane: usize = self.sizes[..self.rank].iter().product();
        let count = (self.points - first).min(POINTS);
        let mut neighbours = [Neighbours {
            list: [(0, 0.0); MAX_NEIGHBOURS],
            count: 0,
        }; POINTS];
        for (i, neighbours) in neighbours[..count].iter_mut().enumerate() {
            // SAFETY: the point is one of the image's.
            *neighbours = unsafe {
                let point = grid.at((image * self.points + first + i) * self.rank);
                self.neighbours(std::slice::from_raw_parts(point, self.rank))
            };
        }
        for channel in 0..self.channels {
            let map = image * self.channels + channel;
            for (i, neighbours) in neighbours[..count].iter().enumerate() {
                let mut sum = 0.0;
                for (at, weight) in &neighbours.list[..neighbours.count] {
                    // SAFETY: neighbours lie inside the plane.
                    sum += weight * unsafe { *x.at(map * plane + at) };
                }
                // SAFETY: the point is one of the image's.
                unsafe { *out.at(map * self.points + first + i) = sum };
            }
        }
    }

    /// The neighbours of a point in the plane.
    fn neighbours(&self, point: &[f32]) -> Neighbours {
        let mut found = Neighbours {
            list: [(0, 0.0); MAX_NEIGHBOURS],
            count: 1,
        };
        found.list[0] = (0, 1.0);
        let sizes = &self.sizes[..self.rank];
        for (size, coordinate) in sizes.iter().zip(point.iter().rev()) {
            let taps = self.op.taps(*coordinate, *size);
            let before = found;
            found.count = 0;
            for (at, weight) in &before.list[..before.count] {
                for (i, w) in taps.iter() {
                    found.list[found.count] = (at * size + i, weight * w);
                    found.count += 1;
                }
            }
        }
        found
    }
}
