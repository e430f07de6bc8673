//! Software prefetch of weights and cached rows, in the order in which threads read them.
//!
//! A core can wait for only a few cache lines at a time, but its L2 prefetcher follows many pages on its own.
//! Prefetching lines of several pages in parallel, ahead of their use, raises a thread's read bandwidth. A second prefetch
//! brings lines into L1 shortly before their use. `docs/benchmarks/cpu.md` has what both gain.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The most spans that a thread prefetches for one job.
const MAX_SPANS: usize = 16;
/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes of a page.
const PAGE: usize = 4096;
/// The number of pages whose lines are prefetched in parallel, approximately.
const PAGES_IN_PARALLEL: usize = 8;
/// The distance of prefetches into L1, in bytes.
const L1_DISTANCE: usize = 4096;
/// The most lines that a waiting thread prefetches: well below the capacity of its own cache.
const MAX_WAITING_LINES: usize = 512 * 1024 / LINE;

/// A memory region that is read front to back, or two regions (keys and values) that are read in step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    /// Address and length of each region; the second may be empty.
    pub(crate) regions: [(usize, usize); 2],
}

impl Span {
    pub(crate) fn new(start: usize, len: usize) -> Span {
        Span {
            regions: [(start, len), (0, 0)],
        }
    }

    /// `self` extended by `next`, if `next` starts where `self` ends.
    fn with(&self, next: &Span) -> Option<Span> {
        let mut merged = *self;
        for (region, (start, len)) in merged.regions.iter_mut().zip(next.regions) {
            if len > 0 && region.0 + region.1 != start {
                return None;
            }
            region.1 += len;
        }
        Some(merged)
    }
}

/// The spans that one thread reads for one job, in reading order.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SpanList {
    list: [Span; MAX_SPANS],
    len: usize,
}

impl SpanList {
    /// Appends a span, merged with the last one if it is adjacent. Spans beyond [`MAX_SPANS`] are dropped and not
    /// prefetched.
    pub(crate) fn push(&mut self, next: Span) {
        let last = self.len.checked_sub(1);
        if let Some(merged) = last.and_then(|last| self.list[last].with(&next)) {
            self.list[self.len - 1] = merged;
        } else if self.len < MAX_SPANS {
            self.list[self.len] = next;
            self.len += 1;
        }
    }

    pub(crate) fn get(&self) -> &[Span] {
        &self.list[..self.len]
    }
}

impl FromIterator<Span> for SpanList {
    fn from_iter<I: IntoIterator<Item = Span>>(spans: I) -> SpanList {
        let mut all = SpanList::default();
        spans.into_iter().for_each(|next| all.push(next));
        all
    }
}

/// What one thread reads in the current and the next job, and how far it has prefetched.
///
/// Only the owning thread moves the cursor; another thread sets the next job's spans. All accesses are relaxed: a
/// thread that sees half an update prefetches memory that is not needed, and prefetching an invalid address does
/// nothing.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct PrefetchPlan {
    /// The spans of the job planned last and of the one before it, indexed by the lowest bit of the job number. An
    /// empty span ends the list.
    spans: [[[AtomicUsize; 4]; MAX_SPANS]; 2],
    jobs_planned: AtomicUsize,
    cursor: [AtomicUsize; CURSOR_WORDS],
    /// Lines that the thread may still prefetch while it waits.
    waiting_lines_left: AtomicUsize,
}

/// Words of a [`PrefetchCursor`].
const CURSOR_WORDS: usize = 13;

/// How far a thread has prefetched.
#[derive(Clone, Copy)]
struct PrefetchCursor {
    /// Lines left in every page of the page groups.
    left: usize,
    regions: [PageGroup; 2],
    /// The span after the current one, and the job that it belongs to.
    span: usize,
    job: usize,
}

/// Consecutive pages of one region of a span whose lines are prefetched in parallel.
#[derive(Clone, Copy, Default)]
struct PageGroup {
    /// The next line of the first page, and the number of pages.
    at: usize,
    count: usize,
    /// The page after the group.
    next: usize,
    /// The region of the span.
    start: usize,
    len: usize,
}

impl PrefetchPlan {
    /// Sets the spans of the next job; the job that was set before becomes the current one.
    pub(crate) fn set_next(&self, spans: &SpanList) {
        let job = self.jobs_planned.load(Relaxed).wrapping_add(1);
        let nothing = [Span::default()];
        let all = spans.get().iter().chain(&nothing);
        for (to, span) in self.spans[job % 2].iter().zip(all) {
            let [(start, len), (other, other_len)] = span.regions;
            for (to, number) in to.iter().zip([start, len, other, other_len]) {
                to.store(number, Relaxed);
            }
        }
        self.jobs_planned.store(job, Relaxed);
    }

    /// The spans that were set last.
    #[cfg(test)]
    pub(crate) fn last_planned(&self) -> Vec<Span> {
        let jobs_planned = self.jobs_planned.load(Relaxed);
        let all = (0..MAX_SPANS).map(|i| self.span(jobs_planned, i));
        all.take_while(|span| span.regions[0].1 > 0).collect()
    }

    fn span(&self, job: usize, index: usize) -> Span {
        let numbers = &self.spans[job % 2][index];
        let [start, len, other, other_len] = std::array::from_fn(|i| numbers[i].load(Relaxed));
        Span {
            regions: [(start, len), (other, other_len)],
        }
    }

    /// Whether the cursor belongs to a job before the current one: other threads have run the rest of that chunk.
    fn is_stale(&self, cursor: &PrefetchCursor) -> bool {
        self.jobs_planned.load(Relaxed).wrapping_sub(cursor.job) as isize > 1
    }

    /// A prefetcher for the owning thread, which starts on tasks of the current job.
    pub(crate) fn prefetcher(&self) -> Prefetcher<'_> {
        self.waiting_lines_left.store(MAX_WAITING_LINES, Relaxed);
        let mut cursor = self.cursor();
        if self.is_stale(&cursor) {
            // The thread has prefetched nothing for this job. Skip the first page group: it is read before a prefetch
            // could complete.
            cursor.regions = [PageGroup::default(); 2];
            self.next_pages(&mut cursor);
            cursor.left = 0;
        }
        Prefetcher {
            plan: self,
            cursor,
            consumed: 0,
            done: false,
        }
    }

    /// Prefetches a few lines while the thread waits for work; returns whether there were any left.
    pub(crate) fn prefetch_while_waiting(&self) -> bool {
        let waiting_lines_left = self.waiting_lines_left.load(Relaxed);
        if waiting_lines_left == 0 {
            return false;
        }
        let mut cursor = self.cursor();
        let Some(lines) = self.prefetch_step(&mut cursor) else {
            return false;
        };
        self.waiting_lines_left
            .store(waiting_lines_left.saturating_sub(lines), Relaxed);
        self.set_cursor(&cursor);
        true
    }

    fn cursor(&self) -> PrefetchCursor {
        let n: [usize; CURSOR_WORDS] = std::array::from_fn(|i| self.cursor[i].load(Relaxed));
        let pages = |i: usize| PageGroup {
            at: n[i],
            count: n[i + 1],
            next: n[i + 2],
            start: n[i + 3],
            len: n[i + 4],
        };
        PrefetchCursor {
            left: n[0],
            regions: [pages(1), pages(6)],
            span: n[11],
            job: n[12],
        }
    }

    fn set_cursor(&self, cursor: &PrefetchCursor) {
        let [a, b] = cursor.regions.map(|region| {
            [
                region.at,
                region.count,
                region.next,
                region.start,
                region.len,
            ]
        });
        let ends = [cursor.span, cursor.job];
        let numbers = [cursor.left].into_iter().chain(a).chain(b).chain(ends);
        for (to, number) in self.cursor.iter().zip(numbers) {
            to.store(number, Relaxed);
        }
    }

    /// Prefetches the next line of every page of the current groups. Returns the number of lines, or `None` at the end
    /// of the plan.
    #[inline(always)]
    fn prefetch_step(&self, cursor: &mut PrefetchCursor) -> Option<usize> {
        if cursor.left == 0 && !self.next_pages(cursor) {
            return None;
        }
        let mut lines = 0;
        for region in &mut cursor.regions {
            let pages = region.pages();
            for page in pages.clone() {
                prefetch_line(region.at.wrapping_add(page * PAGE));
            }
            lines += pages.len();
            region.at = region.at.wrapping_add(LINE);
        }
        cursor.left -= 1;
        Some(lines)
    }

    /// Moves the cursor to the next page groups; returns whether there are any.
    #[cold]
    #[inline(never)]
    fn next_pages(&self, cursor: &mut PrefetchCursor) -> bool {
        loop {
            let rest = cursor.regions.map(|region| region.rest());
            let all = rest[0] + rest[1];
            if all > 0 {
                for (region, rest) in cursor.regions.iter_mut().zip(rest) {
                    // Divides the pages that are left into groups of about the same size.
                    region.take(rest.div_ceil(all.div_ceil(PAGES_IN_PARALLEL)));
                }
                cursor.left = PAGE / LINE;
                return true;
            }
            cursor.regions = [PageGroup::default(); 2];
            let jobs_planned = self.jobs_planned.load(Relaxed);
            if self.is_stale(cursor) {
                (cursor.job, cursor.span) = (jobs_planned.wrapping_sub(1), 0);
            }
            if cursor.span < MAX_SPANS {
                let Span { regions } = self.span(cursor.job, cursor.span);
                cursor.regions = regions.map(|(start, len)| PageGroup::of(start, len));
                let ended = regions[0].1 == 0;
                cursor.span = if ended { MAX_SPANS } else { cursor.span + 1 };
            } else if cursor.job != jobs_planned {
                (cursor.job, cursor.span) = (jobs_planned, 0);
            } else {
                return false;
            }
        }
    }
}

impl PageGroup {
    /// The empty group before the first page of a region.
    fn of(start: usize, len: usize) -> PageGroup {
        PageGroup {
            next: start / PAGE * PAGE,
            start,
            len,
            ..PageGroup::default()
        }
    }

    /// The pages whose next line lies inside the region: not the first if the region starts later in it, not the last
    /// if the region ends earlier.
    #[inline(always)]
    fn pages(&self) -> Range<usize> {
        let inside = |page: usize| {
            let at = self.at.wrapping_add(page.wrapping_mul(PAGE));
            at.wrapping_sub(self.start) < self.len
        };
        let first = usize::from(!inside(0));
        let last = usize::from(!inside(self.count.wrapping_sub(1)));
        first..self.count.saturating_sub(last).max(first)
    }

    /// Pages of the region after this group.
    fn rest(&self) -> usize {
        let end = self.start.saturating_add(self.len);
        end.saturating_sub(self.next).div_ceil(PAGE)
    }

    fn take(&mut self, count: usize) {
        self.at = self.next;
        self.count = count;
        self.next = self.next.wrapping_add(count * PAGE);
    }
}

/// Prefetches as many bytes as its thread reports consumed; writes the cursor back when dropped.
pub(crate) struct Prefetcher<'a> {
    plan: &'a PrefetchPlan,
    cursor: PrefetchCursor,
    /// Bytes consumed minus bytes prefetched.
    consumed: isize,
    /// Whether the plan has been prefetched completely.
    done: bool,
}

impl Prefetcher<'_> {
    /// Reports that the thread reads `bytes` bytes at an address now, and also prefetches what follows them into L1.
    #[inline(always)]
    pub(crate) fn reads(&mut self, at: *const u8, bytes: usize) {
        for line in (0..bytes).step_by(LINE) {
            prefetch_l1_line(at.addr().wrapping_add(L1_DISTANCE + line));
        }
        self.consumed(bytes);
    }

    /// Reports that the thread reads `bytes` more bytes now.
    #[inline(always)]
    pub(crate) fn consumed(&mut self, bytes: usize) {
        if self.done {
            return;
        }
        self.consumed += bytes as isize;
        while self.consumed > 0 {
            match self.plan.prefetch_step(&mut self.cursor) {
                Some(lines) => self.consumed -= (lines * LINE) as isize,
                None => {
                    self.done = true;
                    return;
                }
            }
        }
    }
}

impl Drop for Prefetcher<'_> {
    fn drop(&mut self) {
        self.plan.set_cursor(&self.cursor);
    }
}

/// Prefetches the cache line at an address into L1.
#[inline(always)]
fn prefetch_l1_line(address: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of an invalid address does nothing.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(address));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Prefetches the cache line at an address into L2.
#[inline(always)]
pub(crate) fn prefetch_line(address: usize) {
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

    const ALL: usize = PAGES_IN_PARALLEL * PAGE;

    fn spans_of(spans: &[Span]) -> SpanList {
        spans.iter().copied().collect()
    }

    /// The lines that are prefetched from the cursor on.
    fn prefetched(plan: &PrefetchPlan) -> Vec<usize> {
        let mut cursor = plan.cursor();
        let mut lines = Vec::new();
        while plan.prefetch_step(&mut cursor).is_some() {
            for region in cursor.regions {
                let pages = (0..region.count).map(|page| region.at - LINE + page * PAGE);
                lines.extend(pages.filter(|at| at.wrapping_sub(region.start) < region.len));
            }
        }
        lines
    }

    #[test]
    fn every_line_is_prefetched_once_and_pages_in_parallel() {
        let plan = PrefetchPlan::default();
        assert!(prefetched(&plan).is_empty());
        for lens in [
            [ALL, 0, 0, 0],
            [3 * ALL + 640, 0, 64, 5056],
            [ALL, ALL, 192, 64],
            [64, 0, ALL - 64, 3 * ALL],
        ] {
            let at = |i: usize| (((i + 1) << 30) + 640 * i, lens[i]);
            let spans = [0, 2].map(|i| Span {
                regions: [at(i), at(i + 1)],
            });
            let plan = PrefetchPlan::default();
            plan.set_next(&spans_of(&spans));
            let mut lines = prefetched(&plan);
            assert!(lens[0] < ALL || lines[0] / PAGE + 1 == lines[1] / PAGE);
            if lens[1] == ALL {
                assert!(
                    lines[..PAGES_IN_PARALLEL].iter().any(|at| at >> 30 == 2),
                    "both sides"
                );
            }
            lines.sort_unstable();
            let all = (0..4).map(at);
            let all = all.flat_map(|(start, len)| (start..start + len).step_by(LINE));
            assert!(lines.into_iter().eq(all));
        }
    }

    #[test]
    fn a_thread_that_has_not_prefetched_skips_the_first_page_group() {
        let plan = PrefetchPlan::default();
        for job in 1..=3 {
            plan.set_next(&spans_of(&[Span::new(job << 30, 2 * ALL)]));
        }
        drop(plan.prefetcher());
        // Job 2 is current, job 3 is next.
        let cursor = plan.cursor();
        assert_eq!((cursor.job, cursor.left), (2, 0));
        let mut prefetcher = plan.prefetcher();
        prefetcher.consumed(PAGES_IN_PARALLEL / 2 * LINE);
        prefetcher.consumed(PAGES_IN_PARALLEL * LINE);
        drop(prefetcher);
        assert_eq!(plan.cursor().regions[0].at, (2 << 30) + ALL + 2 * LINE);
    }

    #[test]
    fn a_job_without_spans_is_skipped() {
        let plan = PrefetchPlan::default();
        plan.set_next(&spans_of(&[]));
        plan.set_next(&spans_of(&[Span::new(1 << 20, LINE)]));
        assert_eq!(prefetched(&plan), [1 << 20]);
    }

    #[test]
    fn a_waiting_thread_stops_at_its_limit() {
        let plan = PrefetchPlan::default();
        plan.set_next(&spans_of(&[Span::new(0, 1 << 24)]));
        drop(plan.prefetcher());
        let steps = std::iter::from_fn(|| plan.prefetch_while_waiting().then_some(())).count();
        assert_eq!(steps, MAX_WAITING_LINES / PAGES_IN_PARALLEL);
        drop(plan.prefetcher());
        assert!(plan.prefetch_while_waiting());
    }

    #[test]
    fn adjacent_spans_are_merged() {
        let (a, b) = (Span::new(64, 64), Span::new(128, 640));
        assert_eq!(spans_of(&[a, b]).get(), [Span::new(64, 704)]);
        assert_eq!(spans_of(&[b, a]).get(), [b, a]);
        let separate = (0..2 * MAX_SPANS).map(|i| Span::new(i << 20, 64));
        assert_eq!(separate.collect::<SpanList>().get().len(), MAX_SPANS);
    }
}
