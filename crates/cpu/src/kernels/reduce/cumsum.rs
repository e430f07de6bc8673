//! Running sums along an axis.

use crate::kernels::axis_view::AxisView;
use base::DType;

/// Running sums along an axis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CumSum {
    pub(crate) lines: AxisView,
    pub(crate) dtype: DType,
}

impl CumSum {
    /// # Safety
    /// Both must hold all lines; `out` may be `x`.
    pub(crate) unsafe fn run(&self, x: *const u8, out: *mut u8) {
        // SAFETY: the caller guarantees the lines, whose type was fixed by inference.
        unsafe {
            match self.dtype {
                DType::F32 => self.typed::<f32>(x.cast(), out.cast(), |a, b| a + b),
                DType::I32 => self.typed::<i32>(x.cast(), out.cast(), i32::wrapping_add),
                _ => self.typed::<i64>(x.cast(), out.cast(), i64::wrapping_add),
            }
        }
    }

    /// # Safety
    /// As for [`run`](CumSum::run).
    unsafe fn typed<T: Copy>(&self, x: *const T, out: *mut T, add: fn(T, T) -> T) {
        let AxisView { len, inner, .. } = self.lines;
        for line in 0..self.lines.count() {
            let start = self.lines.start(line);
            for i in 0..len {
                let at = start + i * inner;
                // SAFETY: the caller guarantees the line.
                unsafe {
                    let x = *x.add(at);
                    *out.add(at) = if i == 0 {
                        x
                    } else {
                        add(*out.add(at - inner), x)
                    };
                }
            }
        }
    }
}
