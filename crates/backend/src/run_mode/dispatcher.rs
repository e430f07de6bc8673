//! `Dispatcher`: maps each step to a run mode and to the recording that serves it.

use super::{BatchDescriptor, RunMode};
use std::collections::BTreeSet;

/// The sizes that steps are recorded for, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureSizes(Vec<usize>);

impl CaptureSizes {
    /// These sizes in order, each once.
    pub fn new(sizes: impl IntoIterator<Item = usize>) -> CaptureSizes {
        let sizes: BTreeSet<usize> = sizes.into_iter().filter(|size| *size > 0).collect();
        CaptureSizes(sizes.into_iter().collect())
    }

    /// The sizes of a device on which padding is cheap: all up to `max_query_len` and their multiples for 2 and 4 sequences, and 1,
    /// 2 and 4, then multiples of 8 below 256, then multiples of 16, up to twice the tokens of the largest decode and at most 512
    /// and `max_tokens`.
    pub fn sparse(max_sequences: usize, max_query_len: usize, max_tokens: usize) -> CaptureSizes {
        let most = (2 * max_sequences * max_query_len).min(512).min(max_tokens);
        let decodes = [1, 2, 4].into_iter().filter(|n| *n <= max_sequences);
        let decodes = decodes.flat_map(|n| (1..=max_query_len).map(move |query| n * query));
        let sizes = [1, 2, 4].into_iter().chain(decodes);
        let sizes = sizes
            .chain((8..256).step_by(8))
            .chain((256..).step_by(16).take_while(|n| *n <= 512));
        CaptureSizes::new(sizes.filter(|size| *size <= most))
    }

    /// The sizes of a device on which every row of padding costs as much as a real one: all up to 64, then steps of at
    /// most an eighth up to twice the tokens of the largest decode, and the longest step itself.
    pub fn dense(max_sequences: usize, max_query_len: usize, max_tokens: usize) -> CaptureSizes {
        let most = (2 * max_sequences * max_query_len)
            .clamp(64, 512)
            .min(max_tokens);
        let sizes = (1..=64)
            .chain((72..128).step_by(8))
            .chain((128..256).step_by(16));
        let sizes = sizes
            .chain((256..=512).step_by(32))
            .filter(|size| *size <= most);
        CaptureSizes::new(sizes.chain([max_tokens]))
    }

    /// The sizes in order.
    pub fn as_slice(&self) -> &[usize] {
        &self.0
    }

    /// The smallest size that is at least `tokens` and a multiple of `query_len`.
    fn padded(&self, tokens: usize, query_len: usize) -> Option<usize> {
        let at = self.0.partition_point(|size| *size < tokens);
        let mut sizes = self.0[at..].iter().copied();
        sizes.find(|size| size.is_multiple_of(query_len))
    }
}

/// Options of a [`Dispatcher`].
#[derive(Clone, Debug)]
pub struct DispatcherOptions {
    /// The mode, downgraded to what the executable supports.
    pub mode: RunMode,
    /// The sizes that are recorded.
    pub sizes: CaptureSizes,
    /// Most sequences of a step.
    pub max_sequences: usize,
    /// The most tokens of each sequence in a uniform decode: 1 plus the candidates.
    pub max_query_len: usize,
    /// Most padding, as the part of a recorded size that it divides: 8 for an eighth. A step that would need more is
    /// not padded and not recorded. `None` for any padding.
    pub max_padding: Option<usize>,
}

/// A dispatched step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispatch {
    /// `None`, `Piecewise` or `Full`.
    pub mode: RunMode,
    /// The descriptor of the padded step, which is the key of its recording.
    pub batch: BatchDescriptor,
}

/// Maps steps to recordings. It is the only place that knows which recordings exist.
#[derive(Clone, Debug)]
pub struct Dispatcher {
    options: DispatcherOptions,
    full: BTreeSet<BatchDescriptor>,
    piecewise: BTreeSet<BatchDescriptor>,
}

impl Dispatcher {
    /// A dispatcher with all keys of its mode.
    pub fn new(options: DispatcherOptions) -> Dispatcher {
        let mut dispatcher = Dispatcher {
            options,
            full: BTreeSet::new(),
            piecewise: BTreeSet::new(),
        };
        let DispatcherOptions {
            mode,
            sizes,
            max_sequences,
            max_query_len,
            ..
        } = dispatcher.options.clone();
        for &size in sizes.as_slice() {
            let mixed = dispatcher.descriptor(size, None);
            match mode.mixed_mode() {
                RunMode::Full => dispatcher.full.insert(mixed),
                RunMode::Piecewise => dispatcher.piecewise.insert(mixed.relaxed()),
                _ => false,
            };
        }
        for query_len in (1..=max_query_len).filter(|_| mode.is_dual()) {
            // A decode of the most sequences may be padded to more of them.
            let largest = query_len.saturating_mul(max_sequences);
            let largest = sizes.padded(largest, query_len).unwrap_or(largest);
            let fits = |size: &&usize| **size <= largest && size.is_multiple_of(query_len);
            for &size in sizes.as_slice().iter().filter(fits) {
                let uniform = dispatcher.descriptor(size, Some(query_len));
                dispatcher.full.insert(uniform);
            }
        }
        dispatcher
    }

    /// A dispatcher that records nothing.
    pub fn eager() -> Dispatcher {
        Dispatcher::new(DispatcherOptions {
            mode: RunMode::None,
            sizes: CaptureSizes::new([]),
            max_sequences: 1,
            max_query_len: 1,
            max_padding: None,
        })
    }

    /// The mode whose steps are dispatched.
    pub fn mode(&self) -> RunMode {
        self.options.mode
    }

    /// The most tokens of each sequence in a uniform decode.
    pub fn max_query_len(&self) -> usize {
        self.options.max_query_len
    }

    /// The key of a recorded size, without rows.
    fn descriptor(&self, tokens: usize, query_len: Option<usize>) -> BatchDescriptor {
        let sequences = tokens / query_len.unwrap_or(1);
        BatchDescriptor {
            tokens,
            rows: 0,
            sequences: Some(sequences.min(self.options.max_sequences)),
            query_len,
        }
    }

    /// The mode and the recording of a step: `Full` before `Piecewise` before `None`. A step that no recording fits is
    /// run as it is.
    pub fn dispatch(&self, batch: BatchDescriptor) -> Dispatch {
        let eager = Dispatch {
            mode: RunMode::None,
            batch: batch.relaxed(),
        };
        let query_len = batch.query_len.filter(|_| self.options.mode.is_dual());
        let sizes = &self.options.sizes;
        let Some(tokens) = sizes.padded(batch.tokens, query_len.unwrap_or(1)) else {
            return eager;
        };
        let padding = tokens - batch.tokens;
        let too_much = |part: usize| padding.saturating_mul(part) > tokens;
        if self.options.max_padding.is_some_and(too_much) {
            return eager;
        }
        let key = self.descriptor(tokens, query_len);
        let with_rows = |key: BatchDescriptor| BatchDescriptor {
            rows: padded_rows(batch, tokens),
            ..key
        };
        if self.full.contains(&key) {
            return Dispatch {
                mode: RunMode::Full,
                batch: with_rows(key),
            };
        }
        if self.piecewise.contains(&key.relaxed()) {
            return Dispatch {
                mode: RunMode::Piecewise,
                batch: with_rows(key.relaxed()),
            };
        }
        eager
    }

    /// All that is recorded for steps of up to this many rows, in the order in which it should be: pieces before whole steps, large
    /// before small.
    pub fn captures(&self, max_rows: usize) -> Vec<Dispatch> {
        let mut captures = vec![];
        for (mode, keys) in [
            (RunMode::Piecewise, &self.piecewise),
            (RunMode::Full, &self.full),
        ] {
            let mut keys: Vec<BatchDescriptor> = keys.iter().copied().collect();
            keys.sort_by_key(|key| (std::cmp::Reverse(key.tokens), key.query_len.is_none()));
            for key in keys {
                // The rows of a step are padded to the next of these sizes.
                let most = row_sizes(key.tokens).find(|rows| *rows >= max_rows);
                let mut rows: Vec<usize> = row_sizes(key.tokens).collect();
                rows.retain(|rows| *rows <= most.unwrap_or(key.tokens));
                let dispatch = |rows: usize| Dispatch {
                    mode,
                    batch: BatchDescriptor { rows, ..key },
                };
                captures.extend(rows.into_iter().rev().map(dispatch));
            }
        }
        captures
    }

    /// How many descriptors steps can be dispatched to, those of different numbers of rows counted apart.
    pub fn descriptors(&self) -> usize {
        let keys = self.full.iter().chain(&self.piecewise);
        keys.map(|key| row_sizes(key.tokens).count()).sum()
    }
}

/// The numbers of rows that steps of this many tokens are recorded for: 0, powers of two, and the number of tokens.
fn row_sizes(tokens: usize) -> impl Iterator<Item = usize> {
    let powers = std::iter::successors(Some(1), |n: &usize| n.checked_mul(2));
    let below = powers.take_while(move |n| *n < tokens);
    std::iter::once(0).chain(below).chain([tokens])
}

/// The rows of a recording for this step, which is padded to `tokens`.
fn padded_rows(batch: BatchDescriptor, tokens: usize) -> usize {
    // There are more rows than tokens only if the caller wants a row twice.
    let padded = row_sizes(tokens).find(|rows| *rows >= batch.rows);
    padded.unwrap_or(batch.rows)
}

#[cfg(test)]
mod tests;
