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

    /// The sizes of a device on which padding is cheap: 1, 2 and 4, then multiples of 8 below 256, then multiples of
    /// 16, up to twice the tokens of the largest decode and at most 512 and `max_tokens`.
    pub fn sparse(max_sequences: usize, query_len: usize, max_tokens: usize) -> CaptureSizes {
        let most = (2 * max_sequences * query_len).min(512).min(max_tokens);
        let sizes = [1, 2, 4].into_iter();
        let sizes = sizes
            .chain((8..256).step_by(8))
            .chain((256..).step_by(16).take_while(|n| *n <= 512));
        CaptureSizes::new(sizes.filter(|size| *size <= most)).rounded(query_len)
    }

    /// The sizes of a device on which every row of padding costs as much as a real one: all up to 64, then steps of at
    /// most an eighth up to twice the tokens of the largest decode, and the longest step itself.
    pub fn dense(max_sequences: usize, query_len: usize, max_tokens: usize) -> CaptureSizes {
        let most = (2 * max_sequences * query_len)
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

    /// Sizes rounded up to multiples of a decode's tokens.
    fn rounded(self, query_len: usize) -> CaptureSizes {
        let sizes = self.0.into_iter();
        CaptureSizes::new(sizes.map(|size| size.next_multiple_of(query_len.max(1))))
    }

    /// The sizes in order.
    pub fn as_slice(&self) -> &[usize] {
        &self.0
    }

    /// The largest size; 0 when there is none.
    pub fn largest(&self) -> usize {
        self.0.last().copied().unwrap_or(0)
    }

    /// The smallest size that is at least `tokens`.
    fn padded(&self, tokens: usize) -> Option<usize> {
        let at = self.0.partition_point(|size| *size < tokens);
        self.0.get(at).copied()
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
    /// Tokens of each sequence in a uniform decode.
    pub query_len: usize,
    /// Most padding, as the part of a recorded size that it divides: 8 for an eighth. A step that would need more is
    /// not padded and not recorded. `None` for any padding.
    pub max_padding: Option<usize>,
}

/// The run modes that are valid for a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValidModes {
    /// Whether one recording of the whole step may be replayed.
    pub full: bool,
    /// Whether recorded pieces may be replayed.
    pub piecewise: bool,
}

impl ValidModes {
    /// Any mode.
    pub const ALL: ValidModes = ValidModes {
        full: true,
        piecewise: true,
    };
    /// Only `None`: nothing may be replayed.
    pub const EAGER: ValidModes = ValidModes {
        full: false,
        piecewise: false,
    };
    /// All but `Full`, for a step whose attention cannot be recorded.
    pub const NOT_FULL: ValidModes = ValidModes {
        full: false,
        piecewise: true,
    };
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
            query_len,
            ..
        } = dispatcher.options.clone();
        for &size in sizes.as_slice() {
            let mixed = dispatcher.descriptor(size, false);
            match mode.mixed_mode() {
                RunMode::Full => dispatcher.full.insert(mixed),
                RunMode::Piecewise => dispatcher.piecewise.insert(mixed.relaxed()),
                _ => false,
            };
            let decodes = query_len..=query_len.saturating_mul(max_sequences);
            let divides = size.is_multiple_of(query_len);
            if mode.is_dual() && decodes.contains(&size) && divides {
                let uniform = dispatcher.descriptor(size, true);
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
            query_len: 1,
            max_padding: None,
        })
    }

    /// The mode whose steps are dispatched.
    pub fn mode(&self) -> RunMode {
        self.options.mode
    }

    /// Tokens of each sequence in a uniform decode.
    pub fn query_len(&self) -> usize {
        self.options.query_len
    }

    /// The key of a recorded size, without rows.
    fn descriptor(&self, tokens: usize, uniform: bool) -> BatchDescriptor {
        let sequences = match uniform {
            true => tokens / self.options.query_len,
            false => tokens,
        };
        BatchDescriptor {
            tokens,
            rows: 0,
            sequences: Some(sequences.min(self.options.max_sequences)),
            uniform,
        }
    }

    /// The mode and the recording of a step: `Full` before `Piecewise` before `None`. A step that no recording fits is
    /// run as it is.
    pub fn dispatch(&self, batch: BatchDescriptor, valid: ValidModes) -> Dispatch {
        let eager = Dispatch {
            mode: RunMode::None,
            batch: batch.relaxed(),
        };
        let Some(tokens) = self.options.sizes.padded(batch.tokens) else {
            return eager;
        };
        let padding = tokens - batch.tokens;
        let too_much = |part: usize| padding.saturating_mul(part) > tokens;
        if self.options.max_padding.is_some_and(too_much) {
            return eager;
        }
        let uniform = batch.uniform
            && self.options.mode.is_dual()
            && tokens.is_multiple_of(self.options.query_len);
        let key = self.descriptor(tokens, uniform);
        let with_rows = |key: BatchDescriptor| BatchDescriptor {
            rows: padded_rows(batch, tokens),
            ..key
        };
        if valid.full && self.full.contains(&key) {
            return Dispatch {
                mode: RunMode::Full,
                batch: with_rows(key),
            };
        }
        if valid.piecewise && self.piecewise.contains(&key.relaxed()) {
            return Dispatch {
                mode: RunMode::Piecewise,
                batch: with_rows(key.relaxed()),
            };
        }
        eager
    }

    /// All that is recorded, in the order in which it should be: pieces before whole steps, large before small. Rows
    /// are those of a decode: as many as tokens.
    pub fn captures(&self) -> Vec<Dispatch> {
        let of = |mode: RunMode, keys: &BTreeSet<BatchDescriptor>| {
            let mut keys: Vec<BatchDescriptor> = keys.iter().copied().collect();
            keys.sort_by_key(|key| (std::cmp::Reverse(key.tokens), !key.uniform));
            let dispatch = move |key: BatchDescriptor| Dispatch {
                mode,
                batch: BatchDescriptor {
                    rows: key.tokens,
                    ..key
                },
            };
            keys.into_iter().map(dispatch)
        };
        let pieces = of(RunMode::Piecewise, &self.piecewise);
        pieces.chain(of(RunMode::Full, &self.full)).collect()
    }

    /// How many descriptors steps can be dispatched to, those of different numbers of rows counted apart.
    pub fn descriptors(&self) -> usize {
        let keys = self.full.iter().chain(&self.piecewise);
        keys.map(|key| row_sizes(key.tokens).count()).sum()
    }

    /// Whether a descriptor is one of the dispatcher's, whatever its rows.
    pub fn knows(&self, mode: RunMode, batch: &BatchDescriptor) -> bool {
        match mode {
            RunMode::Full => self.full.contains(&batch.without_rows()),
            RunMode::Piecewise => self.piecewise.contains(&batch.without_rows()),
            _ => false,
        }
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
