//! Divides fused products into tasks, and derives the spans that each thread prefetches.

use super::format::PANEL;
use super::{MAX_FUSED_PRODUCTS, QuantisedLinear};
use crate::prefetch::{Span, SpanList};
use base::gate::chunk_start;
use std::ops::Range;

/// Tasks per thread if they may have any number of panels.
pub(super) const VECTOR_TASKS_PER_THREAD: usize = 4;

/// The panels of fused products divided evenly into tasks: product after product, or the same panels of two products.
#[derive(Clone, Copy)]
pub(super) struct PanelPartition {
    /// Panels of every product.
    panels: [usize; MAX_FUSED_PRODUCTS],
    /// The number of panels that are divided, and the number of tasks.
    all: usize,
    tasks: usize,
    /// Whether a task has the same panels of the first two products; there are no other products then.
    paired: bool,
}

impl PanelPartition {
    /// Divides the panels of all products, product after product.
    pub(super) fn sequential<T>(
        parts: &[(QuantisedLinear, T)],
        max_panels: Option<usize>,
        threads: usize,
    ) -> PanelPartition {
        let mut panels = [0; MAX_FUSED_PRODUCTS];
        for (to, (part, _)) in panels.iter_mut().zip(parts) {
            *to = part.n.div_ceil(PANEL);
        }
        let all = panels.iter().sum();
        PanelPartition {
            panels,
            all,
            tasks: tasks(all, max_panels, threads),
            paired: false,
        }
    }

    /// Divides the columns of two products of one shape; a task has the same columns of both. Returns `None` if the
    /// scratch does not hold a task's columns for every thread.
    pub(super) fn paired(
        part: &QuantisedLinear,
        max_panels: Option<usize>,
        threads: usize,
    ) -> Option<PanelPartition> {
        let panels = part.n.div_ceil(PANEL);
        let partition = PanelPartition {
            panels: [panels; MAX_FUSED_PRODUCTS],
            all: panels,
            tasks: tasks(panels, max_panels, threads),
            paired: true,
        };
        (threads * 2 * partition.columns() <= part.n).then_some(partition)
    }

    /// The most columns of a task.
    pub(super) fn columns(&self) -> usize {
        self.all.div_ceil(self.tasks) * PANEL
    }

    pub(super) fn tasks(&self) -> usize {
        self.tasks
    }

    /// The panels of a task, numbered through all products.
    fn panels(&self, task: usize) -> Range<usize> {
        let start = |task| chunk_start(self.all, self.tasks, task);
        start(task)..start(task + 1)
    }

    /// The products that a task has panels of, with the panels.
    pub(super) fn task(&self, task: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
        let (panels, paired) = (self.panels(task), self.paired);
        let mut first = 0;
        let parts = self.panels.into_iter().enumerate();
        let parts = parts.take(if paired { 2 } else { MAX_FUSED_PRODUCTS });
        parts.filter_map(move |(part, count)| {
            let own = if paired {
                panels.clone()
            } else {
                let within = |panel: usize| panel.clamp(first, first + count) - first;
                let own = within(panels.start)..within(panels.end);
                first += count;
                own
            };
            (!own.is_empty()).then_some((part, own))
        })
    }
}

/// The number of tasks for this many panels: the same number for every thread.
fn tasks(panels: usize, max_panels: Option<usize>, threads: usize) -> usize {
    let each = match max_panels {
        Some(most) => panels.div_ceil(threads * most),
        None => VECTOR_TASKS_PER_THREAD,
    };
    (threads * each).clamp(1, panels.max(1))
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
        .and_then(|(part, _)| PanelPartition::paired(part, None, threads));
    let partition = paired.unwrap_or_else(|| PanelPartition::sequential(parts, None, threads));
    let tasks = |thread| chunk_start(partition.tasks(), threads, thread);
    let plan = |thread| {
        let pieces = (tasks(thread)..tasks(thread + 1)).flat_map(|task| partition.task(task));
        let span = |(part, panels): (usize, Range<usize>)| {
            let (linear, weight): &(QuantisedLinear, usize) = &parts[part];
            let bytes = linear.format.panel_bytes(linear.k);
            Span::new(weight + panels.start * bytes, panels.len() * bytes)
        };
        pieces.map(span).collect()
    };
    (0..threads).map(plan).collect()
}

#[cfg(test)]
mod tests {
    use super::super::format::PackedFormat;
    use super::*;
    use backend::Precision;
    use base::DType;

    fn linear(n: usize) -> QuantisedLinear {
        let format = PackedFormat::of(DType::Q4_1).expect("a quantised type");
        QuantisedLinear {
            m: 1,
            n,
            k: 64,
            format,
            precision: Precision::High,
        }
    }

    #[test]
    fn tasks_are_even_and_fit_the_scratch() {
        for sizes in [&[576, 192, 192][..], &[49_152], &[40], &[16], &[1536, 1536]] {
            let parts: Vec<_> = sizes.iter().map(|n| (linear(*n), ())).collect();
            for (threads, max_panels) in
                (1..=9).flat_map(|n| [(n, None), (n, Some(4)), (n, Some(8))])
            {
                let paired = PanelPartition::paired(&parts[0].0, max_panels, threads);
                for partition in [
                    Some(PanelPartition::sequential(&parts, max_panels, threads)),
                    paired,
                ] {
                    let Some(partition) = partition else { continue };
                    let panels = (0..partition.tasks()).map(|task| partition.panels(task).len());
                    let (least, most) = (panels.clone().min(), panels.max().unwrap_or(0));
                    assert!(least.is_some_and(|least| least > 0 && most <= least + 1));
                    assert!(most * PANEL <= partition.columns());
                    assert!(max_panels.is_none_or(|allowed| most <= allowed));
                }
            }
        }
    }

    #[test]
    fn threads_prefetch_every_panel_once() {
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
                    let bytes = parts[0].0.format.panel_bytes(64);
                    let panels: usize = sizes.iter().map(|n| n.div_ceil(PANEL)).sum();
                    assert_eq!(read, panels * bytes);
                }
            }
        }
    }
}
