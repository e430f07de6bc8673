//! What threads bring near before they need it: weights and cached rows, in the order in which they read them.
//!
//! A core waits for few lines at a time, but its second cache follows many pages on its own. So lines are asked for from
//! several pages side by side, some time before they are used: a thread then reads half as much again as in order.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Stretches of memory that a thread reads for one job, at most.
const MAX_SPANS: usize = 16;
/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes of a page.
const PAGE: usize = 4096;
/// Pages that are asked for side by side, about.
const PAGES_IN_PARALLEL: usize = 16;
/// Lines that a waiting thread asks for at most: well below what its own cache holds.
const MAX_WAITING_LINES: usize = 512 * 1024 / LINE;

/// Memory that is read from its start to its end, or two pieces of it in turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    /// Addresses and lengths; the second may be empty.
    pub(crate) regions: [(usize, usize); 2],
}

impl Span {
    pub(crate) fn new(start: usize, len: usize) -> Span {
        Span {
            regions: [(start, len), (0, 0)],
        }
    }

    /// Joined with one that lies right behind it.
    fn with(&self, next: &Span) -> Option<Span> {
        let mut joined = *self;
        for (region, (start, len)) in joined.regions.iter_mut().zip(next.regions) {
            if len > 0 && region.0 + region.1 != start {
                return None;
            }
            region.1 += len;
        }
        Some(joined)
    }
}

/// What a thread reads for one job, in its order.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SpanList {
    list: [Span; MAX_SPANS],
    len: usize,
}

impl SpanList {
    /// Adds what is read next; what is too much will not be asked for.
    pub(crate) fn push(&mut self, next: Span) {
        let last = self.len.checked_sub(1);
        if let Some(joined) = last.and_then(|last| self.list[last].with(&next)) {
            self.list[self.len - 1] = joined;
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

/// What one thread reads in this job and in the next, and how far it has asked for it.
///
/// Only its thread moves along it; another one says what comes next. Nothing here is ordered with anything else: a thread
/// that sees half of a change asks for memory that nobody needs, and an address outside all memory does no harm.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct PrefetchPlan {
    /// Those of the last turn that was jobs_planned, and of the one before it, by the turn's last bit; an empty one ends them.
    spans: [[[AtomicUsize; 4]; MAX_SPANS]; 2],
    jobs_planned: AtomicUsize,
    cursor: [AtomicUsize; CURSOR_WORDS],
    /// Lines that the thread may still ask for while it waits.
    waiting_lines_left: AtomicUsize,
}

/// Numbers of a [`PrefetchCursor`].
const CURSOR_WORDS: usize = 13;

/// How far a thread has asked.
#[derive(Clone, Copy)]
struct PrefetchCursor {
    /// Lines that every page side by side has left.
    left: usize,
    regions: [PageGroup; 2],
    /// The stretch behind theirs, and the turn that it belongs to.
    span: usize,
    job: usize,
}

/// Some pages of one side of a stretch.
#[derive(Clone, Copy, Default)]
struct PageGroup {
    /// The next line of the first of them, and how many they are.
    at: usize,
    count: usize,
    /// The page behind them.
    next: usize,
    /// The side of the stretch.
    start: usize,
    len: usize,
}

impl PrefetchPlan {
    /// Says what the next turn reads; the one jobs_planned before is this one.
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

    /// What was jobs_planned last.
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

    /// Whether a place is in a turn before this one: others have done the rest of its share.
    fn is_stale(&self, cursor: &PrefetchCursor) -> bool {
        self.jobs_planned.load(Relaxed).wrapping_sub(cursor.job) as isize > 1
    }

    /// For the thread that reads, when it begins with some of this turn's work.
    pub(crate) fn prefetcher(&self) -> Prefetcher<'_> {
        self.waiting_lines_left.store(MAX_WAITING_LINES, Relaxed);
        let mut cursor = self.cursor();
        if self.is_stale(&cursor) {
            // It has not been on its way: what is used first is used before it could be asked for.
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

    /// Asks for a little while the thread waits; whether there was anything left.
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

    /// Asks for the next line of every page side by side; how many these were, `None` at the end.
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

    /// Goes on to the pages that follow; whether there are any.
    #[cold]
    #[inline(never)]
    fn next_pages(&self, cursor: &mut PrefetchCursor) -> bool {
        loop {
            let rest = cursor.regions.map(|region| region.rest());
            let all = rest[0] + rest[1];
            if all > 0 {
                for (region, rest) in cursor.regions.iter_mut().zip(rest) {
                    // The same number each time, as far as possible.
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
    /// Before the first page.
    fn of(start: usize, len: usize) -> PageGroup {
        PageGroup {
            next: start / PAGE * PAGE,
            start,
            len,
            ..PageGroup::default()
        }
    }

    /// Those whose next line is inside the side: not the first where that begins later, not the last where it ends before.
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

    /// Pages that have not been taken.
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

/// Asks for as much as is used.
pub(crate) struct Prefetcher<'a> {
    plan: &'a PrefetchPlan,
    cursor: PrefetchCursor,
    /// Bytes used without others having been asked for, or the other way round.
    consumed: isize,
    /// Whether there is nothing left to ask for.
    done: bool,
}

impl Prefetcher<'_> {
    /// Some bytes are used now.
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

/// Asks for the line at an address.
#[inline(always)]
fn prefetch_line(address: usize) {
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

    /// What is prefetched for from here on.
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
    fn every_line_is_asked_for_once_and_pages_side_by_side() {
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
    fn a_thread_that_was_not_on_its_way_begins_behind_what_it_uses_first() {
        let plan = PrefetchPlan::default();
        for job in 1..=3 {
            plan.set_next(&spans_of(&[Span::new(job << 30, 2 * ALL)]));
        }
        drop(plan.prefetcher());
        // Turn 2 is read, turn 3 comes next.
        let cursor = plan.cursor();
        assert_eq!((cursor.job, cursor.left), (2, 0));
        let mut prefetcher = plan.prefetcher();
        prefetcher.consumed(PAGES_IN_PARALLEL / 2 * LINE);
        prefetcher.consumed(PAGES_IN_PARALLEL * LINE);
        drop(prefetcher);
        assert_eq!(plan.cursor().regions[0].at, (2 << 30) + ALL + 2 * LINE);
    }

    #[test]
    fn a_turn_without_anything_is_passed_over() {
        let plan = PrefetchPlan::default();
        plan.set_next(&spans_of(&[]));
        plan.set_next(&spans_of(&[Span::new(1 << 20, LINE)]));
        assert_eq!(prefetched(&plan), [1 << 20]);
    }

    #[test]
    fn a_waiting_thread_stops_in_time() {
        let plan = PrefetchPlan::default();
        plan.set_next(&spans_of(&[Span::new(0, 1 << 24)]));
        drop(plan.prefetcher());
        let steps = std::iter::from_fn(|| plan.prefetch_while_waiting().then_some(())).count();
        assert_eq!(steps, MAX_WAITING_LINES / PAGES_IN_PARALLEL);
        drop(plan.prefetcher());
        assert!(plan.prefetch_while_waiting());
    }

    #[test]
    fn neighbours_are_joined() {
        let (a, b) = (Span::new(64, 64), Span::new(128, 640));
        assert_eq!(spans_of(&[a, b]).get(), [Span::new(64, 704)]);
        assert_eq!(spans_of(&[b, a]).get(), [b, a]);
        let apart = (0..2 * MAX_SPANS).map(|i| Span::new(i << 20, 64));
        assert_eq!(apart.collect::<SpanList>().get().len(), MAX_SPANS);
    }
}
