//! Divides fused products into tasks, and derives the spans that each thread prefetches.

use super::format::STRIP;
use super::{MAX_FUSED_PRODUCTS, QuantisedLinear};
use crate::prefetch::{Span, SpanList};
use base::gate::chunk_start;
use std::ops::Range;

/// Tasks per thread if they may have any number of strips.
const VECTOR_TASKS_PER_THREAD: usize = 4;

/// The strips of fused products divided evenly into tasks: product after product, or the same strips of two products.
#[derive(Clone, Copy)]
pub(super) struct StripPartition {
    /// Strips of every product.
    strips: [usize; MAX_FUSED_PRODUCTS],
    /// The number of strips that are divided, and the number of tasks.
    all: usize,
    tasks: usize,
    /// Whether a task has the same strips of the first two products; there are no other products then.
    paired: bool,
}

impl StripPartition {
    /// Divides the strips of all products, product after product.
    pub(super) fn sequential<T>(
        parts: &[(QuantisedLinear, T)],
        max_strips: Option<usize>,
        threads: usize,
    ) -> StripPartition {
        let mut strips = [0; MAX_FUSED_PRODUCTS];
        for (to, (part, _)) in strips.iter_mut().zip(parts) {
            *to = part.n.div_ceil(STRIP);
        }
        let all = strips.iter().sum();
        StripPartition {
            strips,
            all,
            tasks: tasks(all, max_strips, threads),
            paired: false,
        }
    }

    /// Divides the columns of two products of one shape; a task has the same columns of both. Returns `None` if the
    /// scratch does not hold a task's columns for every thread.
    pub(super) fn paired(
        part: &QuantisedLinear,
        max_strips: Option<usize>,
        threads: usize,
    ) -> Option<StripPartition> {
        let strips = part.n.div_ceil(STRIP);
        let partition = StripPartition {
            strips: [strips; MAX_FUSED_PRODUCTS],
            all: strips,
            tasks: tasks(strips, max_strips, threads),
            paired: true,
        };
        (threads * 2 * partition.columns() <= part.n).then_some(partition)
    }

    /// The most columns of a task.
    pub(super) fn columns(&self) -> usize {
        self.all.div_ceil(self.tasks) * STRIP
    }

    pub(super) fn tasks(&self) -> usize {
        self.tasks
    }

    /// The strips of a task, numbered through all products.
    fn strips(&self, task: usize) -> Range<usize> {
        let start = |task| chunk_start(self.all, self.tasks, task);
        start(task)..start(task + 1)
    }

    /// The products that a task has strips of, with the strips.
    pub(super) fn task(&self, task: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
        let (strips, paired) = (self.strips(task), self.paired);
        let mut first = 0;
        let parts = self.strips.into_iter().enumerate();
        let parts = parts.take(if paired { 2 } else { MAX_FUSED_PRODUCTS });
        parts.filter_map(move |(part, count)| {
            let own = if paired {
                strips.clone()
            } else {
                let within = |strip: usize| strip.clamp(first, first + count) - first;
                let own = within(strips.start)..within(strips.end);
                first += count;
                own
            };
            (!own.is_empty()).then_some((part, own))
        })
    }
}

/// The number of tasks for this many strips: the same number for every thread.
fn tasks(strips: usize, max_strips: Option<usize>, threads: usize) -> usize {
    let each = match max_strips {
        Some(most) => strips.div_ceil(threads * most),
        None => VECTOR_TASKS_PER_THREAD,
    };
    (threads * each).clamp(1, strips.max(1))
}

/// The spans of packed weights that every thread reads in its own chunk, before any stealing.
pub(crate) fn prefetch_spans(
    parts: &[(QuantisedLinear, usize)],
    gated: bool,
    threads: usize,
) -> Vec<SpanList> {
    let paired = parts
        .first()
        .filter(|_| gated)
        .and_then(|(part, _)| StripPartition::paired(part, None, threads));
    let partition = paired.unwrap_or_else(|| StripPartition::sequential(parts, None, threads));
    let tasks = |thread| chunk_start(partition.tasks(), threads, thread);
    let plan = |thread| {
        let pieces = (tasks(thread)..tasks(thread + 1)).flat_map(|task| partition.task(task));
        let span = |(part, strips): (usize, Range<usize>)| {
            let (linear, weight): &(QuantisedLinear, usize) = &parts[part];
            let bytes = linear.format.strip_bytes(linear.k);
            Span::new(weight + strips.start * bytes, strips.len() * bytes)
        };
        pieces.map(span).collect()
    };
    (0..threads).map(plan).collect()
}

#[cfg(test)]
mod tests {
    use super::super::format::PackedFormat;
    use super::*;
    use base::DType;

    fn linear(n: usize) -> QuantisedLinear {
        let format = PackedFormat::of(DType::Q4_1).expect("a quantised type");
        QuantisedLinear {
            m: 1,
            n,
            k: 64,
            format,
        }
    }

    #[test]
    fn tasks_are_even_and_fit_the_scratch() {
        for sizes in [&[576, 192, 192][..], &[49_152], &[40], &[16], &[1536, 1536]] {
            let parts: Vec<_> = sizes.iter().map(|n| (linear(*n), ())).collect();
            for (threads, max_strips) in
                (1..=9).flat_map(|n| [(n, None), (n, Some(4)), (n, Some(8))])
            {
                let paired = StripPartition::paired(&parts[0].0, max_strips, threads);
                for partition in [
                    Some(StripPartition::sequential(&parts, max_strips, threads)),
                    paired,
                ] {
                    let Some(partition) = partition else { continue };
                    let strips = (0..partition.tasks()).map(|task| partition.strips(task).len());
                    let (least, most) = (strips.clone().min(), strips.max().unwrap_or(0));
                    assert!(least.is_some_and(|least| least > 0 && most <= least + 1));
                    assert!(most * STRIP <= partition.columns());
                    assert!(max_strips.is_none_or(|allowed| most <= allowed));
                }
            }
        }
    }

    #[test]
    fn threads_prefetch_every_strip_once() {
        for sizes in [&[576, 192, 192][..], &[49_152], &[40], &[1536, 1536]] {
            for threads in 1..=5 {
                for gated in [false, sizes.len() == 2] {
                    let parts: Vec<_> = sizes.iter().map(|n| linear(*n)).zip(0..).collect();
                    let parts: Vec<_> = parts.into_iter().map(|(l, i)| (l, i << 40)).collect();
                    let all = prefetch_spans(&parts, gated, threads);
                    let all = all.iter().flat_map(SpanList::get);
                    let mut all: Vec<_> = all.map(|span| span.regions[0]).collect();
                    all.sort_unstable();
                    let mut end = None;
                    for (start, len) in &all {
                        assert!(end.is_none_or(|end| end == *start) || start % (1 << 40) == 0);
                        end = Some(start + len);
                    }
                    let read: usize = all.iter().map(|(_, len)| len).sum();
                    let bytes = parts[0].0.format.strip_bytes(64);
                    let strips: usize = sizes.iter().map(|n| n.div_ceil(STRIP)).sum();
                    assert_eq!(read, strips * bytes);
                }
            }
        }
    }
}
