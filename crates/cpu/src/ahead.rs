//! What idle threads bring near while they wait: the memory that the next products will read.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Stretches of memory at most.
pub(crate) const STRETCHES: usize = 3;
/// Bytes that a thread brings near at most: well below what its own cache holds.
const MOST: usize = 512 * 1024;
/// Bytes that are asked for at once.
const STEP: usize = 256;
/// Bytes of a cache line.
const LINE: usize = 64;

/// Addresses and lengths.
pub(crate) type Stretches = [(usize, usize); STRETCHES];

/// What comes next, divided among the threads in their order.
///
/// Nothing here is ordered with anything else: a thread that sees half of a change asks for memory that nobody needs, and
/// an address outside all memory does no harm.
pub(crate) struct Ahead {
    stretches: [[AtomicUsize; 2]; STRETCHES],
    /// Per thread, what it asks for next and where its share ends, counted over all stretches.
    shares: Box<[[AtomicUsize; 2]]>,
}

impl Ahead {
    pub(crate) fn new(threads: usize) -> Ahead {
        Ahead {
            stretches: Default::default(),
            shares: (0..threads).map(|_| Default::default()).collect(),
        }
    }

    /// Says what comes next.
    pub(crate) fn set(&self, stretches: &Stretches) {
        let mut all = 0;
        for ([start, len], (new_start, new_len)) in self.stretches.iter().zip(stretches) {
            start.store(*new_start, Ordering::Relaxed);
            len.store(*new_len, Ordering::Relaxed);
            all += new_len;
        }
        let count = self.shares.len();
        for (i, [next, end]) in self.shares.iter().enumerate() {
            let (from, to) = (all * i / count, all * (i + 1) / count);
            next.store(from, Ordering::Relaxed);
            end.store(to.min(from + MOST), Ordering::Relaxed);
        }
    }

    /// Asks for a little of a thread's share; whether there was any left.
    pub(crate) fn bring(&self, thread: usize) -> bool {
        let [next, end] = &self.shares[thread];
        let mut at = next.load(Ordering::Relaxed);
        if at >= end.load(Ordering::Relaxed) {
            return false;
        }
        next.store(at + STEP, Ordering::Relaxed);
        for [start, len] in &self.stretches {
            let len = len.load(Ordering::Relaxed);
            if at < len {
                let from = start.load(Ordering::Relaxed).wrapping_add(at);
                for line in (0..STEP).step_by(LINE) {
                    near(from.wrapping_add(line));
                }
                break;
            }
            at -= len;
        }
        true
    }
}

/// Asks for the line at an address.
fn near(address: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of an invalid address does nothing.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(std::ptr::without_provenance(address));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_share_is_asked_for_once() {
        let ahead = Ahead::new(2);
        let memory = [0u8; 4096];
        let start = memory.as_ptr() as usize;
        assert!(!ahead.bring(0));
        ahead.set(&[(start, 1024), (start + 1024, 2048), (start + 3072, 0)]);
        let steps = |thread| std::iter::from_fn(|| ahead.bring(thread).then_some(())).count();
        assert_eq!([steps(0), steps(1)], [6, 6]);
        assert!(!ahead.bring(0) && !ahead.bring(1));
        ahead.set(&[(start, MOST * 4), (0, 0), (0, 0)]);
        assert_eq!(steps(1), MOST / STEP);
    }
}
