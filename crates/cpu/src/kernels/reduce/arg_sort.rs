//! The order of elements along an axis.

use crate::kernels::axis_view::AxisView;
use crate::kernels::{Context, SendPtr, for_row_ranges};
use base::DType;
use graph::ops;

/// Indices of the first elements of every line in sorted order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArgSort {
    pub(crate) lines: AxisView,
    /// Elements of a line of the result.
    pub(crate) count: usize,
    pub(crate) descending: bool,
    pub(crate) dtype: DType,
}

impl ArgSort {
    /// # Safety
    /// `x` must hold all lines and `out` `count` indices of each.
    pub(crate) unsafe fn run(&self, ctx: &Context<'_>, x: *const u8, out: *mut i64) {
        // SAFETY: the caller guarantees the lines, whose type was fixed by inference.
        unsafe {
            match self.dtype {
                DType::F32 => self.typed::<f32>(ctx, x.cast(), out),
                DType::I32 => self.typed::<i32>(ctx, x.cast(), out),
                DType::I64 => self.typed::<i64>(ctx, x.cast(), out),
                _ => self.typed::<u8>(ctx, x, out),
            }
        }
    }

    /// # Safety
    /// As for [`run`](ArgSort::run).
    unsafe fn typed<T: Copy + PartialOrd>(&self, ctx: &Context<'_>, x: *const T, out: *mut i64) {
        let (x, out) = (SendPtr(x.cast_mut()), SendPtr(out));
        let (lines, count) = (self.lines, self.count);
        let to = AxisView {
            len: count,
            ..lines
        };
        for_row_ranges(ctx, lines.count(), lines.len * 8, &|start, end| {
            let mut list: Vec<(T, i64)> = Vec::with_capacity(lines.len);
            for line in start..end {
                let first = lines.start(line);
                list.clear();
                // SAFETY: the caller guarantees the line.
                list.extend(
                    (0..lines.len).map(|i| unsafe { (*x.at(first + i * lines.inner), i as i64) }),
                );
                let order = |a: &(T, i64), b: &(T, i64)| {
                    let values = match self.descending {
                        true => ops::ArgSort::order(&b.0, &a.0),
                        false => ops::ArgSort::order(&a.0, &b.0),
                    };
                    values.then(a.1.cmp(&b.1))
                };
                if count < list.len() && count > 0 {
                    list.select_nth_unstable_by(count - 1, order);
                    list.truncate(count);
                }
                list.sort_unstable_by(order);
                for (i, (_, index)) in list.iter().take(count).enumerate() {
                    // SAFETY: as above; every line is written by one task.
                    unsafe { *out.at(to.start(line) + i * to.inner) = *index };
                }
            }
        });
    }
}
