//! `Histogram`: counts of values by their size.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The number of bounds of a histogram.
const BOUNDS: usize = 14;

/// Which values a histogram counts: the upper bounds of its buckets, ascending. One more bucket has all larger values.
pub trait Buckets {
    /// The bounds.
    const BOUNDS: [u64; BOUNDS];
}

/// Times in microseconds.
#[derive(Debug, Default)]
pub struct Times;

impl Buckets for Times {
    const BOUNDS: [u64; BOUNDS] = [
        1_000,
        2_500,
        5_000,
        10_000,
        25_000,
        50_000,
        100_000,
        250_000,
        500_000,
        1_000_000,
        2_500_000,
        10_000_000,
        30_000_000,
        120_000_000,
    ];
}

/// Numbers of tokens.
#[derive(Debug, Default)]
pub struct Sizes;

impl Buckets for Sizes {
    const BOUNDS: [u64; BOUNDS] = [
        1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192,
    ];
}

/// Counts of values by their size. Any thread may read it while another one counts.
#[derive(Debug, Default)]
pub struct Histogram<B> {
    counts: [AtomicU64; BOUNDS],
    larger: AtomicU64,
    sum: AtomicU64,
    buckets: PhantomData<B>,
}

impl<B: Buckets> Histogram<B> {
    /// Counts a value.
    pub fn add(&self, value: u64) {
        let bucket = B::BOUNDS.iter().position(|bound| value <= *bound);
        let count = bucket.map_or(&self.larger, |bucket| &self.counts[bucket]);
        count.fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// Every bound with the number of values up to it.
    pub fn up_to(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut total = 0;
        B::BOUNDS
            .iter()
            .zip(&self.counts)
            .map(move |(bound, count)| {
                total += count.load(Ordering::Relaxed);
                (*bound, total)
            })
    }

    /// The number of values.
    pub fn count(&self) -> u64 {
        let last = self.up_to().last().map_or(0, |(_, count)| count);
        last + self.larger.load(Ordering::Relaxed)
    }

    /// The sum of the values.
    pub fn sum(&self) -> u64 {
        self.sum.load(Ordering::Relaxed)
    }
}

impl Histogram<Times> {
    /// Counts a time.
    pub fn add_time(&self, time: Duration) {
        self.add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_up_to_every_bound() {
        let histogram = Histogram::<Sizes>::default();
        for value in [0, 1, 2, 3, 100, 9000] {
            histogram.add(value);
        }
        let counts: Vec<(u64, u64)> = histogram.up_to().collect();
        assert_eq!(counts[..4], [(1, 2), (2, 3), (4, 4), (8, 4)]);
        assert_eq!(counts.last(), Some(&(8192, 5)));
        assert_eq!((histogram.count(), histogram.sum()), (6, 9106));
        assert!(Sizes::BOUNDS.is_sorted() && Times::BOUNDS.is_sorted());
    }
}
