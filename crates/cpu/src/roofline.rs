//! What the machine can do, measured in a fraction of a second: how fast threads read memory, and how fast they multiply.
#![allow(
    clippy::needless_range_loop,
    reason = "iterators over registers are not inlined with the tier's features"
)]

use crate::isa::{IntegerKernel, Isa, Kernel};
use crate::kernels::Shared;
use crate::prefetch::{Reader, Stretch, Stretches};
use crate::simd::{Integers, LANES, Simd};
use crate::thread_pool::Threads;
use base::Bytes;
use std::time::Instant;

/// The rates of some threads together.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// Bytes a second from memory that is larger than the near caches.
    pub read_bytes: f64,
    /// Multiplications of bytes a second, in matrix tiles where the tier has them.
    pub byte_macs: f64,
    /// Multiplications of f32 a second.
    pub float_macs: f64,
}

/// Bytes that are read: as many as a small model has.
const READ: usize = 96 << 20;
/// How often everything is measured; the best counts.
const ROUNDS: usize = 7;
/// Rounds of a loop of multiplications.
const LOOPS: usize = 200_000;

impl Probe {
    pub(crate) fn measure(isa: Isa, count: usize) -> Probe {
        let threads = Threads::new(count);
        let memory = Bytes::filled(READ, |bytes| bytes.fill(1));
        let at = Shared(memory.as_ptr().cast_mut());
        let share = READ / count / LINES * LINES;
        let whole = |i| Stretch::new(memory.as_ptr() as usize + i * share, share);
        let shares = (0..count).map(|i| std::iter::once(whole(i)).collect());
        let shares: Vec<Stretches> = shares.collect();
        let best = |task: &(dyn Fn(usize, usize) + Sync)| {
            let once = || {
                // The next round reads what this one does.
                threads.read_ahead(&shares);
                let start = Instant::now();
                threads.run_near(count, task);
                start.elapsed().as_secs_f64()
            };
            (0..ROUNDS).map(|_| once()).fold(f64::INFINITY, f64::min)
        };
        let read = best(&|i, thread| {
            // SAFETY: every share lies inside the memory.
            let from = unsafe { at.at(i * share) };
            let reader = threads.course(thread).reader();
            let read = Read {
                from,
                len: share,
                reader,
            };
            std::hint::black_box(isa.run(read));
        });
        let bytes = best(&|_, _| multiply_bytes(isa));
        let floats = best(&|_, _| {
            std::hint::black_box(isa.run(Floats));
        });
        let all = count as f64;
        Probe {
            read_bytes: all * share as f64 / read,
            byte_macs: all * byte_loop(isa) / bytes,
            float_macs: all * (LOOPS * CHAINS * LANES) as f64 / floats,
        }
    }
}

/// Bytes that one turn of the reading loop takes.
const LINES: usize = 256;

struct Read<'a> {
    from: *const u8,
    len: usize,
    reader: Reader<'a>,
}

impl Kernel for Read<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) -> f32 {
        let mut sums = [s.zero(); 4];
        for at in (0..self.len).step_by(LINES) {
            self.reader.used(LINES);
            for i in 0..4 {
                // SAFETY: the maker vouches for whole turns.
                unsafe {
                    let p = self.from.add(at + 64 * i);
                    sums[i] = s.add(sums[i], s.load(p.cast()));
                }
            }
        }
        s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
    }
}

/// Chains of multiplications that do not wait for each other.
const CHAINS: usize = 12;

struct Floats;

impl Kernel for Floats {
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
        s.sum(all)
    }
}

struct ByteDots;

/// Independent sums of the byte loop.
const SUMS: usize = 8;

impl IntegerKernel for ByteDots {
    type Output = f32;

    #[inline(always)]
    fn run<S: Integers>(self, s: S) -> f32 {
        let line = [1u8; 64];
        let x = [1u8; 64];
        let mut sums = [s.no_sums(); SUMS];
        let mut all = s.zero();
        // SAFETY: both arrays hold a line.
        unsafe {
            let weights = s.bytes(line.as_ptr());
            for _ in 0..LOOPS {
                for i in 0..SUMS {
                    sums[i] = s.dot::<0>(sums[i], weights, x.as_ptr());
                }
            }
        }
        for i in 0..SUMS {
            all = s.add(all, s.total(sums[i], 0));
        }
        s.sum(all)
    }
}

fn multiply_bytes(isa: Isa) {
    #[cfg(target_arch = "x86_64")]
    if isa.has_tiles() {
        // SAFETY: the tier has tiles.
        unsafe { crate::simd::amx::Tiles::new().spin(LOOPS / 8) };
        return;
    }
    std::hint::black_box(isa.run_integers(ByteDots));
}

/// Multiplications of one byte loop of a thread. A dot takes both bytes of sixteen times four activations.
fn byte_loop(isa: Isa) -> f64 {
    if isa.has_tiles() {
        (LOOPS / 8 * 4 * 16 * 16 * 64) as f64
    } else {
        (LOOPS * SUMS * 2 * 64) as f64
    }
}
