//! How products are cut into tasks, and what the threads therefore read.

use super::weights::STRIP;
use super::{PANEL, PackedLinear, TOGETHER};
use crate::ahead::{Stretch, Stretches};
use crate::threads::share_start;
use std::ops::Range;

/// The strips of products in tasks.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    /// Strips of every product.
    strips: [usize; TOGETHER],
    /// Strips of a task.
    step: usize,
    /// Whether a task has the same strips of the first two products, and there are no others.
    paired: bool,
}

impl Cut {
    /// Tasks of one product, then those of the next.
    pub(super) fn in_turn<T>(parts: &[(PackedLinear, T)], tiled: bool, threads: usize) -> Cut {
        let mut strips = [0; TOGETHER];
        for (to, (part, _)) in strips.iter_mut().zip(parts) {
            *to = part.n.div_ceil(STRIP);
        }
        Cut {
            strips,
            step: task_strips(strips.iter().sum(), tiled, threads),
            paired: false,
        }
    }

    /// Tasks of the same columns of two products of one shape; `None` where there are too many threads for the room that
    /// their columns have.
    pub(super) fn paired(part: &PackedLinear, tiled: bool, threads: usize) -> Option<Cut> {
        let strips = part.n.div_ceil(STRIP);
        let cut = Cut {
            strips: [strips; TOGETHER],
            step: task_strips(strips, tiled, threads),
            paired: true,
        };
        (threads * 2 * cut.columns() <= part.n).then_some(cut)
    }

    /// Columns of a task, at most.
    pub(super) fn columns(&self) -> usize {
        self.step * STRIP
    }

    pub(super) fn tasks(&self) -> usize {
        let counted = if self.paired { 1 } else { TOGETHER };
        let parts = &self.strips[..counted];
        parts.iter().map(|strips| strips.div_ceil(self.step)).sum()
    }

    /// The product that a task begins with, and its strips of it.
    pub(super) fn task(&self, mut task: usize) -> (usize, Range<usize>) {
        for (part, strips) in self.strips.into_iter().enumerate() {
            let tasks = strips.div_ceil(self.step);
            if task < tasks {
                let start = task * self.step;
                return (part, start..(start + self.step).min(strips));
            }
            task -= tasks;
        }
        unreachable!("every task belongs to a product")
    }
}

/// Strips that a task takes, where a step has so many.
fn task_strips(strips: usize, tiled: bool, threads: usize) -> usize {
    if tiled {
        // As many as fit a panel, or fewer where the threads then come out more even.
        let most = |step: &usize| strips.div_ceil(*step).div_ceil(threads) * step;
        (2..=PANEL).rev().min_by_key(most).unwrap_or(PANEL)
    } else {
        strips.div_ceil(threads * 4).max(1)
    }
}

/// What every thread reads of products whose weights are at these addresses, when it is not disturbed.
pub(crate) fn reading(
    parts: &[(PackedLinear, usize)],
    gated: bool,
    threads: usize,
) -> Vec<Stretches> {
    let paired = parts
        .first()
        .filter(|_| gated)
        .and_then(|(part, _)| Cut::paired(part, false, threads));
    let cut = paired.unwrap_or_else(|| Cut::in_turn(parts, false, threads));
    let tasks = |thread| share_start(cut.tasks(), threads, thread);
    let course = |thread| {
        let mut found = Stretches::default();
        for task in tasks(thread)..tasks(thread + 1) {
            let (part, strips) = cut.task(task);
            let more = if cut.paired { part + 1 } else { part };
            for (linear, weight) in &parts[part..=more] {
                let (_, _, bytes) = linear.form.offsets(linear.k);
                let start = weight + strips.start * bytes;
                found.push(Stretch::new(start, strips.len() * bytes));
            }
        }
        found
    };
    (0..threads).map(course).collect()
}

#[cfg(test)]
mod tests {
    use super::super::weights::Form;
    use super::*;
    use base::DType;

    fn linear(n: usize) -> PackedLinear {
        let form = Form::of(DType::Q4_1).expect("a quantised type");
        PackedLinear {
            m: 1,
            n,
            k: 64,
            form,
        }
    }

    #[test]
    fn the_threads_together_read_every_strip_once() {
        for sizes in [&[576, 192, 192][..], &[49_152], &[40], &[1536, 1536]] {
            for threads in 1..=5 {
                for gated in [false, sizes.len() == 2] {
                    let parts: Vec<_> = sizes.iter().map(|n| linear(*n)).zip(0..).collect();
                    let parts: Vec<_> = parts.into_iter().map(|(l, i)| (l, i << 40)).collect();
                    let all = reading(&parts, gated, threads);
                    let all = all.iter().flat_map(Stretches::get);
                    let mut all: Vec<_> = all.map(|stretch| stretch.sides[0]).collect();
                    all.sort_unstable();
                    let mut end = None;
                    for (start, len) in &all {
                        assert!(end.is_none_or(|end| end == *start) || start % (1 << 40) == 0);
                        end = Some(start + len);
                    }
                    let read: usize = all.iter().map(|(_, len)| len).sum();
                    let (_, _, bytes) = parts[0].0.form.offsets(64);
                    let strips: usize = sizes.iter().map(|n| n.div_ceil(STRIP)).sum();
                    assert_eq!(read, strips * bytes);
                }
            }
        }
    }
}
