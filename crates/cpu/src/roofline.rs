//! Measures the limits of the machine in a fraction of a second: the read bandwidth and the multiplication rates of
//! some threads.
#![allow(
    clippy::needless_range_loop,
    reason = "iterators over registers are not inlined with the tier's features"
)]

use crate::isa::Isa;

use crate::kernels::SendPtr;
use crate::prefetch::{Prefetcher, Span, SpanList};
use crate::simd::{IntegerKernel, Kernel, LANES, RowScaledDot, Simd};
use crate::thread_pool::ThreadPool;
use base::Bytes;
use std::time::Instant;

/// Measured limits of some threads together; a lower bound of a step's time follows from them.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// Bytes per second read from as much memory as the caller's weights take.
    pub read_bytes: f64,
    /// Multiply-accumulates of quantised weights per second. Each takes four products of bytes on matrix tiles, where the
    /// tier has them, and two on vectors.
    pub integer_macs: f64,
    /// f32 multiply-accumulates per second.
    pub float_macs: f64,
}

/// The fewest and the most bytes that are read. The most is more than the caches of a machine usually hold.
const READ: [usize; 2] = [32 << 20, 768 << 20];
/// How often each rate is measured; the best round counts.
const ROUNDS: usize = 7;
/// Iterations of a multiplication loop.
const LOOPS: usize = 200_000;

impl Probe {
    pub(crate) fn measure(isa: Isa, count: usize, weights_bytes: usize) -> Probe {
        let threads = ThreadPool::new(count);
        let len = weights_bytes.clamp(READ[0], READ[1]);
        let memory = Bytes::filled(len, |bytes| bytes.fill(1));
        let at = SendPtr(memory.as_ptr().cast_mut());
        let chunk = len / count / READ_STEP * READ_STEP;
        let whole = |i| Span::new(memory.as_ptr() as usize + i * chunk, chunk);
        let chunks = (0..count).map(|i| std::iter::once(whole(i)).collect());
        let chunks: Vec<SpanList> = chunks.collect();
        let best = |task: &(dyn Fn(usize, usize) + Sync)| {
            let once = || {
                // The next round reads the same memory.
                threads.set_next_spans(&chunks);
                let start = Instant::now();
                threads.run_chunked(count, task);
                start.elapsed().as_secs_f64()
            };
            (0..ROUNDS).map(|_| once()).fold(f64::INFINITY, f64::min)
        };
        let read = best(&|i, thread| {
            // SAFETY: every chunk lies inside the memory.
            let from = unsafe { at.at(i * chunk) };
            let prefetcher = threads.prefetch_plan(thread).prefetcher();
            let read = ReadKernel {
                from,
                len: chunk,
                prefetcher,
            };
            std::hint::black_box(isa.run(read));
        });
        let bytes = best(&|_, _| multiply_bytes(isa));
        let floats = best(&|_, _| {
            std::hint::black_box(isa.run(FloatKernel));
        });
        let all = count as f64;
        Probe {
            read_bytes: all * chunk as f64 / read,
            integer_macs: all * weights_multiplied(isa) / bytes,
            float_macs: all * (LOOPS * CHAINS * LANES) as f64 / floats,
        }
    }
}

/// Bytes read per iteration of the read loop.
const READ_STEP: usize = 256;

struct ReadKernel<'a> {
    from: *const u8,
    len: usize,
    prefetcher: Prefetcher<'a>,
}

impl Kernel for ReadKernel<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) -> f32 {
        let mut sums = [s.zero(); 4];
        for at in (0..self.len).step_by(READ_STEP) {
            // SAFETY: the constructor guarantees a length that is a multiple of `READ_STEP`.
            unsafe {
                let from = self.from.add(at);
                self.prefetcher.reads(from, READ_STEP);
                for i in 0..4 {
                    sums[i] = s.add(sums[i], s.load(from.add(64 * i).cast()));
                }
            }
        }
        s.reduce_sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
    }
}

/// Independent chains of multiplications.
const CHAINS: usize = 12;

struct FloatKernel;

impl Kernel for FloatKernel {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let mut sums = [s.splat(1.0); CHAINS];
        let (a, b) = (s.splat(0.5), s.splat(0.25));
        for _ in 0..LOOPS {
            for i in 0..CHAINS {
                sums[i] = s.fma(sums[i], a, b);
            }
        }
        let mut all = s.zero();
        for i in 0..CHAINS {
            all = s.add(all, sums[i]);
        }
        s.reduce_sum(all)
    }
}

struct ByteKernel;

/// Independent accumulators of the byte loop.
const SUMS: usize = 8;

impl IntegerKernel for ByteKernel {
    type Output = f32;

    #[inline(always)]
    fn run<S: RowScaledDot>(self, s: S) -> f32 {
        let line = [1u8; 64];
        let x = [1u8; 64];
        let mut sums = [s.zero_planes(); SUMS];
        let mut all = s.zero();
        // SAFETY: both arrays hold a line.
        unsafe {
            let weights = s.load_bytes(line.as_ptr());
            for _ in 0..LOOPS {
                for i in 0..SUMS {
                    sums[i] = s.dot_planes::<0>(sums[i], weights, x.as_ptr());
                }
            }
        }
        // SAFETY: two numbers are readable.
        unsafe {
            let factors = s.load_bytes(line.as_ptr());
            for i in 0..SUMS {
                let totals =
                    s.add_scaled::<false>(s.zero_totals(), sums[i], factors, [0; 2].as_ptr());
                all = s.add(all, s.totals_to_f32(totals));
            }
        }
        s.reduce_sum(all)
    }
}

fn multiply_bytes(isa: Isa) {
    #[cfg(target_arch = "x86_64")]
    if isa.has_tiles() {
        // SAFETY: the tier has tiles.
        unsafe { crate::simd::amx::AmxTiles::new().peak_loop(LOOPS / 8) };
        return;
    }
    std::hint::black_box(isa.run_integers(ByteKernel));
}

/// Weights that one thread's byte loop multiplies: on tiles with four products of bytes each; on vectors, a dot product
/// multiplies both bytes of four activations with sixteen rows.
fn weights_multiplied(isa: Isa) -> f64 {
    if isa.has_tiles() {
        (LOOPS / 8 * 16 * 16 * 64) as f64
    } else {
        (LOOPS * SUMS * 64) as f64
    }
}
