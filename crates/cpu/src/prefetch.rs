//! What threads bring near before they need it: weights and cached rows, in the order in which they read them.
//!
//! A core waits for few lines at a time, but its second cache follows many pages on its own. So lines are asked for from
//! several pages side by side, some time before they are used: a thread then reads half as much again as in order.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Stretches of memory that a thread reads for one job, at most.
const STRETCHES: usize = 16;
/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes of a page.
const PAGE: usize = 4096;
/// Pages that are asked for side by side, about.
const PAGES: usize = 16;
/// Lines that a waiting thread asks for at most: well below what its own cache holds.
const WAITING: usize = 512 * 1024 / LINE;

/// Memory that is read from its start to its end, or two pieces of it in turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// Addresses and lengths; the second may be empty.
    pub(crate) sides: [(usize, usize); 2],
}

impl Stretch {
    pub(crate) fn new(start: usize, len: usize) -> Stretch {
        Stretch {
            sides: [(start, len), (0, 0)],
        }
    }

    /// Joined with one that lies right behind it.
    fn with(&self, next: &Stretch) -> Option<Stretch> {
        let mut joined = *self;
        for (side, (start, len)) in joined.sides.iter_mut().zip(next.sides) {
            if len > 0 && side.0 + side.1 != start {
                return None;
            }
            side.1 += len;
        }
        Some(joined)
    }
}

/// What a thread reads for one job, in its order.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stretches {
    list: [Stretch; STRETCHES],
    len: usize,
}

impl Stretches {
    /// Adds what is read next; what is too much will not be asked for.
    pub(crate) fn push(&mut self, next: Stretch) {
        let last = self.len.checked_sub(1);
        if let Some(joined) = last.and_then(|last| self.list[last].with(&next)) {
            self.list[self.len - 1] = joined;
        } else if self.len < STRETCHES {
            self.list[self.len] = next;
            self.len += 1;
        }
    }

    pub(crate) fn get(&self) -> &[Stretch] {
        &self.list[..self.len]
    }
}

impl FromIterator<Stretch> for Stretches {
    fn from_iter<I: IntoIterator<Item = Stretch>>(stretches: I) -> Stretches {
        let mut all = Stretches::default();
        stretches.into_iter().for_each(|next| all.push(next));
        all
    }
}

/// What one thread reads in this job and in the next, and how far it has asked for it.
///
/// Only its thread moves along it; another one says what comes next. Nothing here is ordered with anything else: a thread
/// that sees half of a change asks for memory that nobody needs, and an address outside all memory does no harm.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Course {
    /// Those of the last turn that was told, and of the one before it, by the turn's last bit; an empty one ends them.
    stretches: [[[AtomicUsize; 4]; STRETCHES]; 2],
    told: AtomicUsize,
    place: [AtomicUsize; PLACE],
    /// Lines that the thread may still ask for while it waits.
    waiting: AtomicUsize,
}

/// Numbers of a [`Place`].
const PLACE: usize = 13;

/// How far a thread has asked.
#[derive(Clone, Copy)]
struct Place {
    /// Lines that every page side by side has left.
    left: usize,
    sides: [Pages; 2],
    /// The stretch behind theirs, and the turn that it belongs to.
    stretch: usize,
    turn: usize,
}

/// Some pages of one side of a stretch.
#[derive(Clone, Copy, Default)]
struct Pages {
    /// The next line of the first of them, and how many they are.
    at: usize,
    count: usize,
    /// The page behind them.
    next: usize,
    /// The side of the stretch.
    start: usize,
    len: usize,
}

impl Course {
    /// Says what the next turn reads; the one told before is this one.
    pub(crate) fn tell(&self, stretches: &Stretches) {
        let turn = self.told.load(Relaxed).wrapping_add(1);
        let nothing = [Stretch::default()];
        let all = stretches.get().iter().chain(&nothing);
        for (to, stretch) in self.stretches[turn % 2].iter().zip(all) {
            let [(start, len), (other, other_len)] = stretch.sides;
            for (to, number) in to.iter().zip([start, len, other, other_len]) {
                to.store(number, Relaxed);
            }
        }
        self.told.store(turn, Relaxed);
    }

    /// What was told last.
    #[cfg(test)]
    pub(crate) fn last_told(&self) -> Vec<Stretch> {
        let told = self.told.load(Relaxed);
        let all = (0..STRETCHES).map(|i| self.stretch(told, i));
        all.take_while(|stretch| stretch.sides[0].1 > 0).collect()
    }

    fn stretch(&self, turn: usize, index: usize) -> Stretch {
        let numbers = &self.stretches[turn % 2][index];
        let [start, len, other, other_len] = std::array::from_fn(|i| numbers[i].load(Relaxed));
        Stretch {
            sides: [(start, len), (other, other_len)],
        }
    }

    /// Whether a place is in a turn before this one: others have done the rest of its share.
    fn is_behind(&self, place: &Place) -> bool {
        self.told.load(Relaxed).wrapping_sub(place.turn) as isize > 1
    }

    /// For the thread that reads, when it begins with some of this turn's work.
    pub(crate) fn reader(&self) -> Reader<'_> {
        self.waiting.store(WAITING, Relaxed);
        let mut place = self.place();
        if self.is_behind(&place) {
            // It has not been on its way: what is used first is used before it could be asked for.
            place.sides = [Pages::default(); 2];
            self.go_on(&mut place);
            place.left = 0;
        }
        Reader {
            course: self,
            place,
            used: 0,
            done: false,
        }
    }

    /// Asks for a little while the thread waits; whether there was anything left.
    pub(crate) fn wait(&self) -> bool {
        let waiting = self.waiting.load(Relaxed);
        if waiting == 0 {
            return false;
        }
        let mut place = self.place();
        let Some(lines) = self.ask(&mut place) else {
            return false;
        };
        self.waiting.store(waiting.saturating_sub(lines), Relaxed);
        self.set_place(&place);
        true
    }

    fn place(&self) -> Place {
        let n: [usize; PLACE] = std::array::from_fn(|i| self.place[i].load(Relaxed));
        let pages = |i: usize| Pages {
            at: n[i],
            count: n[i + 1],
            next: n[i + 2],
            start: n[i + 3],
            len: n[i + 4],
        };
        Place {
            left: n[0],
            sides: [pages(1), pages(6)],
            stretch: n[11],
            turn: n[12],
        }
    }

    fn set_place(&self, place: &Place) {
        let [a, b] = place
            .sides
            .map(|side| [side.at, side.count, side.next, side.start, side.len]);
        let ends = [place.stretch, place.turn];
        let numbers = [place.left].into_iter().chain(a).chain(b).chain(ends);
        for (to, number) in self.place.iter().zip(numbers) {
            to.store(number, Relaxed);
        }
    }

    /// Asks for the next line of every page side by side; how many these were, `None` at the end.
    #[inline(always)]
    fn ask(&self, place: &mut Place) -> Option<usize> {
        if place.left == 0 && !self.go_on(place) {
            return None;
        }
        let mut lines = 0;
        for side in &mut place.sides {
            let pages = side.pages();
            for page in pages.clone() {
                near(side.at.wrapping_add(page * PAGE));
            }
            lines += pages.len();
            side.at = side.at.wrapping_add(LINE);
        }
        place.left -= 1;
        Some(lines)
    }

    /// Goes on to the pages that follow; whether there are any.
    #[cold]
    #[inline(never)]
    fn go_on(&self, place: &mut Place) -> bool {
        loop {
            let rest = place.sides.map(|side| side.rest());
            let all = rest[0] + rest[1];
            if all > 0 {
                for (side, rest) in place.sides.iter_mut().zip(rest) {
                    // The same number each time, as far as possible.
                    side.take(rest.div_ceil(all.div_ceil(PAGES)));
                }
                place.left = PAGE / LINE;
                return true;
            }
            place.sides = [Pages::default(); 2];
            let told = self.told.load(Relaxed);
            if self.is_behind(place) {
                (place.turn, place.stretch) = (told.wrapping_sub(1), 0);
            }
            if place.stretch < STRETCHES {
                let Stretch { sides } = self.stretch(place.turn, place.stretch);
                place.sides = sides.map(|(start, len)| Pages::of(start, len));
                let ended = sides[0].1 == 0;
                place.stretch = if ended { STRETCHES } else { place.stretch + 1 };
            } else if place.turn != told {
                (place.turn, place.stretch) = (told, 0);
            } else {
                return false;
            }
        }
    }
}

impl Pages {
    /// Before the first page.
    fn of(start: usize, len: usize) -> Pages {
        Pages {
            next: start / PAGE * PAGE,
            start,
            len,
            ..Pages::default()
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
pub(crate) struct Reader<'a> {
    course: &'a Course,
    place: Place,
    /// Bytes used without others having been asked for, or the other way round.
    used: isize,
    /// Whether there is nothing left to ask for.
    done: bool,
}

impl Reader<'_> {
    /// Some bytes are used now.
    #[inline(always)]
    pub(crate) fn used(&mut self, bytes: usize) {
        if self.done {
            return;
        }
        self.used += bytes as isize;
        while self.used > 0 {
            match self.course.ask(&mut self.place) {
                Some(lines) => self.used -= (lines * LINE) as isize,
                None => {
                    self.done = true;
                    return;
                }
            }
        }
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.course.set_place(&self.place);
    }
}

/// Asks for the line at an address.
#[inline(always)]
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

    const ALL: usize = PAGES * PAGE;

    fn told(stretches: &[Stretch]) -> Stretches {
        stretches.iter().copied().collect()
    }

    /// What is asked for from here on.
    fn asked(course: &Course) -> Vec<usize> {
        let mut place = course.place();
        let mut lines = Vec::new();
        while course.ask(&mut place).is_some() {
            for side in place.sides {
                let pages = (0..side.count).map(|page| side.at - LINE + page * PAGE);
                lines.extend(pages.filter(|at| at.wrapping_sub(side.start) < side.len));
            }
        }
        lines
    }

    #[test]
    fn every_line_is_asked_for_once_and_pages_side_by_side() {
        let course = Course::default();
        assert!(asked(&course).is_empty());
        for lens in [
            [ALL, 0, 0, 0],
            [3 * ALL + 640, 0, 64, 5056],
            [ALL, ALL, 192, 64],
            [64, 0, ALL - 64, 3 * ALL],
        ] {
            let at = |i: usize| (((i + 1) << 30) + 640 * i, lens[i]);
            let stretches = [0, 2].map(|i| Stretch {
                sides: [at(i), at(i + 1)],
            });
            let course = Course::default();
            course.tell(&told(&stretches));
            let mut lines = asked(&course);
            assert!(lens[0] < ALL || lines[0] / PAGE + 1 == lines[1] / PAGE);
            if lens[1] == ALL {
                assert!(lines[..PAGES].iter().any(|at| at >> 30 == 2), "both sides");
            }
            lines.sort_unstable();
            let all = (0..4).map(at);
            let all = all.flat_map(|(start, len)| (start..start + len).step_by(LINE));
            assert!(lines.into_iter().eq(all));
        }
    }

    #[test]
    fn a_thread_that_was_not_on_its_way_begins_behind_what_it_uses_first() {
        let course = Course::default();
        for turn in 1..=3 {
            course.tell(&told(&[Stretch::new(turn << 30, 2 * ALL)]));
        }
        drop(course.reader());
        // Turn 2 is read, turn 3 comes next.
        let place = course.place();
        assert_eq!((place.turn, place.left), (2, 0));
        let mut reader = course.reader();
        reader.used(PAGES / 2 * LINE);
        reader.used(PAGES * LINE);
        drop(reader);
        assert_eq!(course.place().sides[0].at, (2 << 30) + ALL + 2 * LINE);
    }

    #[test]
    fn a_turn_without_anything_is_passed_over() {
        let course = Course::default();
        course.tell(&told(&[]));
        course.tell(&told(&[Stretch::new(1 << 20, LINE)]));
        assert_eq!(asked(&course), [1 << 20]);
    }

    #[test]
    fn a_waiting_thread_stops_in_time() {
        let course = Course::default();
        course.tell(&told(&[Stretch::new(0, 1 << 24)]));
        drop(course.reader());
        let steps = std::iter::from_fn(|| course.wait().then_some(())).count();
        assert_eq!(steps, WAITING / PAGES);
        drop(course.reader());
        assert!(course.wait());
    }

    #[test]
    fn neighbours_are_joined() {
        let (a, b) = (Stretch::new(64, 64), Stretch::new(128, 640));
        assert_eq!(told(&[a, b]).get(), [Stretch::new(64, 704)]);
        assert_eq!(told(&[b, a]).get(), [b, a]);
        let apart = (0..2 * STRETCHES).map(|i| Stretch::new(i << 20, 64));
        assert_eq!(apart.collect::<Stretches>().get().len(), STRETCHES);
    }
}
