//! What threads bring near before they need it: the memory that products read, in the order in which they read it.
//!
//! A core waits for few lines at a time, but its second cache follows many pages on its own. So lines are asked for from
//! several pages side by side, some time before they are used: a thread then reads half as much again as in order.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Stretches of memory that a thread reads for one job, at most.
pub(crate) const STRETCHES: usize = 8;
/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes of a page.
const PAGE: usize = 4096;
/// Pages that are asked for side by side, at most.
const PAGES: usize = 8;
/// Lines that a waiting thread asks for at most: well below what its own cache holds.
const WAITING: usize = 512 * 1024 / LINE;

/// Addresses and lengths, in the order of their use; those behind the last are empty.
pub(crate) type Stretches = [(usize, usize); STRETCHES];

/// What one thread reads in this job and in the next, and how far it has asked for it.
///
/// Only its thread moves along it; another one says what comes next. Nothing here is ordered with anything else: a thread
/// that sees half of a change asks for memory that nobody needs, and an address outside all memory does no harm.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Course {
    /// Those of the last turn that was told, and of the one before it, by the turn's last bit.
    stretches: [[[AtomicUsize; 2]; STRETCHES]; 2],
    told: AtomicUsize,
    place: [AtomicUsize; PLACE],
    /// Lines that the thread may still ask for while it waits.
    waiting: AtomicUsize,
}

/// Numbers of a [`Place`].
const PLACE: usize = 8;

/// How far a thread has asked.
#[derive(Clone, Copy)]
struct Place {
    /// The next line of the first of the pages side by side; how many these are, and the lines that each has left.
    at: usize,
    pages: usize,
    left: usize,
    /// The page behind them.
    next: usize,
    /// The stretch that they belong to.
    start: usize,
    len: usize,
    /// The stretch behind that, and the turn that it belongs to.
    stretch: usize,
    turn: usize,
}

impl Course {
    /// Says what the next turn reads; the one told before is this one.
    pub(crate) fn tell(&self, stretches: &Stretches) {
        let turn = self.told.load(Relaxed).wrapping_add(1);
        for (to, (start, len)) in self.stretches[turn % 2].iter().zip(stretches) {
            to[0].store(*start, Relaxed);
            to[1].store(*len, Relaxed);
        }
        self.told.store(turn, Relaxed);
    }

    /// For the thread that reads, when it begins with some of this turn's work.
    pub(crate) fn reader(&self) -> Reader<'_> {
        self.waiting.store(WAITING, Relaxed);
        let mut place = self.place();
        let now = self.told.load(Relaxed).wrapping_sub(1);
        if now.wrapping_sub(place.turn) as isize > 0 {
            // It has not been on its way: what is used first is used before it could be asked for.
            (place.turn, place.stretch, place.len) = (now, 0, 0);
            self.go_on(&mut place);
            place.left = 0;
        }
        Reader {
            course: self,
            place,
            used: 0,
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
        let [at, pages, left, next, start, len, stretch, turn] =
            std::array::from_fn(|i| self.place[i].load(Relaxed));
        Place {
            at,
            pages,
            left,
            next,
            start,
            len,
            stretch,
            turn,
        }
    }

    fn set_place(&self, place: &Place) {
        let Place {
            at,
            pages,
            left,
            next,
            start,
            len,
            stretch,
            turn,
        } = *place;
        let numbers = [at, pages, left, next, start, len, stretch, turn];
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
        for at in place.lines() {
            if at.wrapping_sub(place.start) < place.len {
                near(at);
                lines += 1;
            }
        }
        place.at = place.at.wrapping_add(LINE);
        place.left -= 1;
        Some(lines)
    }

    /// Goes on to the pages that follow; whether there are any.
    #[cold]
    #[inline(never)]
    fn go_on(&self, place: &mut Place) -> bool {
        loop {
            let end = place.start.wrapping_add(place.len);
            if place.len > 0 && place.next < end {
                let pages = (end - place.next).div_ceil(PAGE);
                // The same number each time, as far as possible.
                place.pages = pages.div_ceil(pages.div_ceil(PAGES));
                place.left = PAGE / LINE;
                place.at = place.next;
                place.next += place.pages * PAGE;
                return true;
            }
            if place.stretch < STRETCHES {
                let [start, len] = &self.stretches[place.turn % 2][place.stretch];
                (place.start, place.len) = (start.load(Relaxed), len.load(Relaxed));
                place.next = place.start / PAGE * PAGE;
                place.stretch += 1;
            } else if place.turn != self.told.load(Relaxed) {
                place.turn = place.turn.wrapping_add(1);
                place.stretch = 0;
            } else {
                return false;
            }
        }
    }
}

impl Place {
    /// The next line of every page.
    #[inline(always)]
    fn lines(&self) -> impl Iterator<Item = usize> + use<> {
        let at = self.at;
        (0..self.pages).map(move |page| at.wrapping_add(page * PAGE))
    }
}

/// Asks for as much as is used.
pub(crate) struct Reader<'a> {
    course: &'a Course,
    place: Place,
    /// Lines used without others having been asked for, or the other way round.
    used: isize,
}

impl Reader<'_> {
    /// Some lines are used now.
    #[inline(always)]
    pub(crate) fn used(&mut self, lines: usize) {
        self.used += lines as isize;
        while self.used > 0 {
            match self.course.ask(&mut self.place) {
                Some(lines) => self.used -= lines as isize,
                None => self.used = 0,
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

    /// What is asked for from here on.
    fn asked(course: &Course) -> Vec<usize> {
        let mut place = course.place();
        let mut lines = Vec::new();
        loop {
            let before = place;
            if course.ask(&mut place).is_none() {
                return lines;
            }
            // Those of the place after it went on, if it did.
            let at = Place {
                at: place.at - LINE,
                ..place
            };
            assert!(before.left == 0 || before.at == at.at);
            lines.extend(at.lines().filter(|at| at - place.start < place.len));
        }
    }

    #[test]
    fn every_line_is_asked_for_once_and_pages_side_by_side() {
        let course = Course::default();
        assert!(asked(&course).is_empty());
        const ALL: usize = PAGES * PAGE;
        for lens in [[ALL, 0, 0], [3 * ALL + 640, 64, 5056], [64, ALL - 64, 128]] {
            let mut stretches = Stretches::default();
            for (i, len) in lens.into_iter().enumerate() {
                stretches[i] = (((i + 1) << 30) + 640, len);
            }
            let course = Course::default();
            course.tell(&stretches);
            let mut lines = asked(&course);
            assert!(lens[0] < ALL || lines[0] / PAGE + 1 == lines[1] / PAGE);
            lines.sort_unstable();
            let all = stretches
                .iter()
                .flat_map(|(start, len)| (*start..start + len).step_by(LINE));
            assert!(lines.into_iter().eq(all));
        }
    }

    #[test]
    fn a_thread_that_was_not_on_its_way_begins_behind_what_it_uses_first() {
        let course = Course::default();
        for turn in 1..=3 {
            course.tell(&[(turn << 30, 2 * PAGES * PAGE); STRETCHES]);
        }
        drop(course.reader());
        // Turn 2 is read, turn 3 comes next.
        let place = course.place();
        assert_eq!((place.turn, place.left), (2, 0));
        let mut reader = course.reader();
        reader.used(PAGES / 2);
        reader.used(PAGES);
        drop(reader);
        assert_eq!(course.place().at, (2 << 30) + PAGES * PAGE + 2 * LINE);
    }

    #[test]
    fn a_waiting_thread_stops_in_time() {
        let course = Course::default();
        course.tell(&[(0, 1 << 24); STRETCHES]);
        drop(course.reader());
        let steps = std::iter::from_fn(|| course.wait().then_some(())).count();
        assert_eq!(steps, WAITING / PAGES);
        drop(course.reader());
        assert!(course.wait());
    }
}
