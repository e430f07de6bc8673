//! `SequenceRows`: the location of the rows of one sequence, for saving, restoring and shifting it.

use crate::plan::push_run;
use crate::{Cache, CacheConfig, CellRun, KvError, KvErrorKind, LayerConfig, SeqId, Side};
use std::ops::Range;

/// A cache whose sequences can be saved, restored and shifted. The `plan_*` functions do not change the cache.
pub trait Restorable: Cache + Sized {
    /// The location of the rows of a sequence.
    ///
    /// # Errors
    /// `Gap` if a position is missing between others.
    fn sequence_rows(&self, seq: SeqId) -> Result<SequenceRows, KvError>;

    /// Plans to replace the content of `seq` by `len` tokens of which this was saved. Returns the cache after the change and the
    /// location of the new rows. Recurrent layers get the state after the last token, and as many of the earlier ones as have
    /// room.
    fn plan_restore(
        &self,
        seq: SeqId,
        len: u32,
        saved: SavedPositions<'_>,
    ) -> Result<(Self, SequenceRows), KvError>;

    /// Plans to drop the `dropped` tokens after the first `keep` of `seq` and to move the later tokens to lower
    /// positions. The rows of the first `keep` tokens stay in their cells. Returns the cache after the change and the
    /// new location of the rows.
    fn plan_shift(
        &self,
        seq: SeqId,
        keep: u32,
        dropped: u32,
    ) -> Result<(Self, SequenceRows), KvError> {
        let held = self.sequence_rows(seq)?;
        let first = held.first_positions_after_shift(keep, dropped)?;
        let saved = SavedPositions {
            first: &first,
            states: &[],
        };
        self.plan_restore(seq, held.len - dropped, saved)
    }

    /// Plans to append tokens to `seq`, up to `len`, whose rows the caller has: `first` says for each layer the position that they begin
    /// at, which is the end of the sequence or a later one. The rows before it stay in their cells. Returns the cache after the
    /// change and the location of all rows.
    fn plan_append(
        &self,
        seq: SeqId,
        len: u32,
        first: &[u32],
    ) -> Result<(Self, SequenceRows), KvError> {
        let held = self.sequence_rows(seq)?;
        let first = held.first_positions_after_append(len, first)?;
        let saved = SavedPositions {
            first: &first,
            states: &[],
        };
        self.plan_restore(seq, len, saved)
    }

    /// Removes a sequence whose rows are undefined after a device error.
    fn forget(&mut self, seq: SeqId);
}

/// The positions of which a saved sequence has rows and states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SavedPositions<'a> {
    /// For every layer, the first position that it has rows of. Recurrent layers have states instead.
    pub first: &'a [u32],
    /// The positions after which recurrent layers have states, ascending.
    pub states: &'a [u32],
}

/// The location of the rows of one sequence: cell runs in position order, layer by layer.
///
/// A layer holds the positions from a first one, which is 0 except in ring layers, to the end of the sequence. A recurrent layer
/// holds states after some positions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SequenceRows {
    /// Tokens of the sequence.
    pub len: u32,
    /// One entry per cell space.
    spaces: Vec<SpaceRuns>,
    /// The cell space of each layer.
    space_of: Vec<u16>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct SpaceRuns {
    runs: Vec<CellRun>,
    cells: u32,
}

impl SequenceRows {
    pub(crate) fn new(len: u32, space_of: Vec<u16>) -> SequenceRows {
        SequenceRows {
            len,
            spaces: vec![],
            space_of,
        }
    }

    /// Appends the runs of the next cell space, in position order, and the number of cells that must exist.
    pub(crate) fn push(&mut self, runs: impl Iterator<Item = CellRun>, cells: u32) {
        let mut joined = vec![];
        runs.for_each(|run| push_run(&mut joined, run));
        self.spaces.push(SpaceRuns {
            runs: joined,
            cells,
        });
    }

    /// Layers of the cache.
    pub fn layers(&self) -> usize {
        self.space_of.len()
    }

    /// The runs of a layer: ascending, and but for states without gaps, up to the end of the sequence.
    pub fn runs(&self, layer: usize) -> &[CellRun] {
        &self.space(layer).runs
    }

    /// The first position that a layer holds; the length if it holds none.
    pub fn first_position(&self, layer: usize) -> u32 {
        let first = self.runs(layer).first();
        first.map_or(self.len, |run| run.position)
    }

    /// Whether a layer lacks rows between those that it holds: it has sinks and has evicted the rows after them.
    pub(crate) fn has_gap(&self, layer: usize) -> bool {
        let runs = self.runs(layer);
        runs.windows(2)
            .any(|pair| pair[0].positions().end != pair[1].position)
    }

    /// The number of rows that one head of a layer holds.
    pub fn row_count(&self, layer: usize) -> usize {
        self.runs(layer).iter().map(|run| run.len as usize).sum()
    }

    /// The positions of which a layer holds rows, or after which it holds states.
    pub fn positions(&self, layer: usize) -> impl Iterator<Item = u32> + '_ {
        self.runs(layer).iter().flat_map(CellRun::positions)
    }

    /// The runs of a layer at these positions.
    pub(crate) fn clipped(&self, layer: usize, positions: &Range<u32>) -> Vec<CellRun> {
        let runs = self.runs(layer).iter();
        runs.filter_map(|run| run.clip(positions)).collect()
    }

    /// The first position that each layer holds after a shift. A layer keeps the rows before `keep` only if it holds
    /// all rows from there to the end.
    pub(crate) fn first_positions_after_shift(
        &self,
        keep: u32,
        dropped: u32,
    ) -> Result<Vec<u32>, KvError> {
        if dropped == 0 || keep.checked_add(dropped).is_none_or(|end| end > self.len) {
            let len = self.len;
            return Err(KvErrorKind::Shift { keep, dropped, len }.into());
        }
        let first = |layer| match self.first_position(layer) {
            first if first <= keep => first,
            first => first.saturating_sub(dropped).max(keep),
        };
        Ok((0..self.layers()).map(first).collect())
    }

    /// The first position that each layer holds after rows from `first` on were appended.
    pub(crate) fn first_positions_after_append(
        &self,
        len: u32,
        first: &[u32],
    ) -> Result<Vec<u32>, KvError> {
        if len <= self.len || first.len() != self.layers() {
            let (end, layers) = (self.len, first.len());
            let reason = format!("{layers} layers up to {len} cannot be appended at {end}");
            return Err(KvErrorKind::SavedRows(reason).into());
        }
        let first = first.iter().enumerate();
        let first = first.map(|(layer, first)| match *first <= self.len {
            true => self.first_position(layer),
            false => *first,
        });
        Ok(first.collect())
    }

    /// The maximum number of tokens that a shift can drop after the first `keep`, so that ring layers still hold a full
    /// window.
    pub(crate) fn max_shift(&self, keep: u32, config: &CacheConfig) -> u32 {
        if config.has_states() {
            return 0;
        }
        let max = |(i, layer): (usize, &LayerConfig)| match (self.first_position(i), layer.window) {
            (0, _) | (_, None) => u32::MAX,
            (first, Some(window)) => {
                let behind = window.saturating_add(first.min(keep));
                (self.len + 1).saturating_sub(behind)
            }
        };
        let windows = config.layers.iter().enumerate().map(max).min();
        let rest = self.len.saturating_sub(keep);
        windows.unwrap_or(u32::MAX).min(rest)
    }

    /// Cells that the pool of a layer must have.
    pub fn cells(&self, layer: usize) -> u32 {
        self.space(layer).cells
    }

    fn space(&self, layer: usize) -> &SpaceRuns {
        &self.spaces[usize::from(self.space_of[layer])]
    }
}

/// Encoded rows to write to the keys or values of a layer.
#[derive(Clone, Copy, Debug)]
pub struct RowBlock<'a> {
    /// The layer.
    pub layer: usize,
    /// Keys or values.
    pub side: Side,
    /// The target cells.
    pub runs: &'a [CellRun],
    /// Cells that the pool must have before the write.
    pub cells: u32,
    /// The rows of the first head in the order of the runs, followed by the rows of the other heads at intervals of
    /// `head_stride` bytes.
    pub bytes: &'a [u8],
    /// Bytes from the rows of one head to those of the next.
    pub head_stride: usize,
}

/// The row moves of a shift: in every layer, rows of later positions move to lower ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowShift {
    /// Tokens at the start of the sequence that do not move.
    pub keep: u32,
    /// Tokens dropped after them; the later positions decrease by this number.
    pub dropped: u32,
    before: SequenceRows,
    after: SequenceRows,
}

/// The rows of one layer that a shift moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedRows {
    /// Their positions before the shift.
    pub positions: Range<u32>,
    /// The source cells.
    pub from: Vec<CellRun>,
    /// The target cells, in the same order. May overlap `from`.
    pub to: Vec<CellRun>,
    /// Cells that the pool of the layer must have.
    pub cells: u32,
}

impl RowShift {
    pub(crate) fn new(
        keep: u32,
        dropped: u32,
        before: SequenceRows,
        after: SequenceRows,
    ) -> RowShift {
        RowShift {
            keep,
            dropped,
            before,
            after,
        }
    }

    /// Layers of the cache.
    pub fn layers(&self) -> usize {
        self.after.layers()
    }

    /// The rows that move in a layer.
    pub fn layer(&self, layer: usize) -> MovedRows {
        let to = self.after.first_position(layer).max(self.keep)..self.after.len;
        let positions = to.start + self.dropped..self.before.len;
        MovedRows {
            from: self.before.clipped(layer, &positions),
            to: self.after.clipped(layer, &to),
            cells: self.after.cells(layer),
            positions,
        }
    }
}

/// The first position that all layers of one class can restore. `first` lists the layers with the first position that
/// each has rows for; `seen` is the first position that the next token attends to.
///
/// # Errors
/// `SavedRows` if a layer lacks rows from `seen` on.
pub(crate) fn first_restorable_position(
    first: impl Iterator<Item = (usize, u32)>,
    seen: u32,
) -> Result<u32, KvError> {
    let mut max = 0;
    for (layer, first) in first {
        if first > seen {
            return Err(KvErrorKind::SavedRows(format!(
                "layer {layer} has rows from position {first} on, and position {seen} is needed"
            ))
            .into());
        }
        max = max.max(first);
    }
    Ok(max)
}

#[cfg(test)]
mod tests;
