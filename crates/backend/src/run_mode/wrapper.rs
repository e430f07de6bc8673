//! Records work once for each descriptor and replays it from then on.

use super::{BatchDescriptor, Dispatch, RunMode};
use std::collections::HashMap;

/// Work that can be run as it is, or recorded and replayed.
pub trait Replay {
    /// The type of a recording.
    type Recording;
    /// The error type of the work.
    type Error: From<ReplayError>;

    /// Runs the work without recording it.
    fn run(&mut self) -> Result<(), Self::Error>;

    /// Records the work. It may or may not also execute it: the recording is replayed afterwards.
    fn record(&mut self) -> Result<Self::Recording, Self::Error>;

    /// Does the work again, on the inputs of this call.
    fn replay(&mut self, recording: &mut Self::Recording) -> Result<(), Self::Error>;

    /// Where the inputs of this call lie. A recording that cannot follow them must find them where they were; debug
    /// builds compare.
    fn input_addresses(&self) -> Vec<usize> {
        vec![]
    }
}

/// Why a step cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// A new descriptor came after the time to record.
    #[error("{batch:?} was not recorded at start-up, and nothing is recorded after it")]
    CaptureDisabled {
        /// The descriptor that the step was dispatched to.
        batch: BatchDescriptor,
    },
}

/// Counts of a wrapper's captures, replays and passed calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayCounts {
    /// Recordings made.
    pub captures: usize,
    /// Recordings replayed, the first time included.
    pub replays: usize,
    /// Calls handed through because they were of another mode.
    pub passed: usize,
}

/// Recordings of one mode, by descriptor. Wrappers nest: a `Full` one may hold work that a `Piecewise` one wraps.
#[derive(Debug)]
pub struct ReplayWrapper<R> {
    mode: RunMode,
    recordings: HashMap<BatchDescriptor, Entry<R>>,
    capturing: bool,
    counts: ReplayCounts,
}

#[derive(Debug)]
struct Entry<R> {
    recording: R,
    /// The addresses at the time of the recording; only kept in debug builds.
    addresses: Vec<usize>,
}

impl<R> ReplayWrapper<R> {
    /// A wrapper of calls that are dispatched to `mode`, which must be `Piecewise` or `Full`.
    pub fn new(mode: RunMode) -> ReplayWrapper<R> {
        assert!(
            matches!(mode, RunMode::Piecewise | RunMode::Full),
            "nothing is recorded in mode {mode}"
        );
        ReplayWrapper {
            mode,
            recordings: HashMap::default(),
            capturing: true,
            counts: ReplayCounts::default(),
        }
    }

    /// From now on a descriptor without a recording is an error.
    pub fn disable_capture(&mut self) {
        self.capturing = false;
    }

    /// The counts so far.
    pub fn counts(&self) -> ReplayCounts {
        self.counts
    }

    /// How many recordings there are.
    pub fn len(&self) -> usize {
        self.recordings.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.recordings.is_empty()
    }

    /// Whether this descriptor has been recorded.
    pub fn contains(&self, batch: &BatchDescriptor) -> bool {
        self.recordings.contains_key(batch)
    }

    /// Forgets all recordings, as when what they refer to has moved.
    pub fn clear(&mut self) {
        self.recordings.clear();
    }

    /// Records a descriptor before it is needed, if it has not been. `addresses` are where its inputs will lie, as
    /// [`Replay::input_addresses`] gives them.
    ///
    /// # Errors
    /// `CaptureDisabled` after start-up, and what `record` fails with.
    pub fn capture<E: From<ReplayError>>(
        &mut self,
        batch: BatchDescriptor,
        addresses: Vec<usize>,
        record: impl FnOnce() -> Result<R, E>,
    ) -> Result<(), E> {
        if self.recordings.contains_key(&batch) {
            return Ok(());
        }
        if !self.capturing {
            return Err(ReplayError::CaptureDisabled { batch }.into());
        }
        let recording = record()?;
        self.counts.captures += 1;
        let entry = Entry {
            recording,
            addresses,
        };
        self.recordings.insert(batch, entry);
        Ok(())
    }

    /// Replays the recording of a dispatched call, which is made if it is new. A call without a dispatch or of another
    /// mode is run as it is.
    pub fn run<W: Replay<Recording = R>>(
        &mut self,
        dispatch: Option<Dispatch>,
        work: &mut W,
    ) -> Result<(), W::Error> {
        let Some(Dispatch { batch, .. }) = dispatch.filter(|d| d.mode == self.mode) else {
            self.counts.passed += 1;
            return work.run();
        };
        let addresses = match cfg!(debug_assertions) {
            true => work.input_addresses(),
            false => vec![],
        };
        self.capture(batch, addresses.clone(), || work.record())?;
        let entry = self.recordings.get_mut(&batch).expect("just captured");
        debug_assert_eq!(
            entry.addresses, addresses,
            "the inputs of {batch:?} have moved since it was recorded"
        );
        self.counts.replays += 1;
        work.replay(&mut entry.recording)
    }
}

#[cfg(test)]
mod tests;
