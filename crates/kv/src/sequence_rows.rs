//! Where the rows of one sequence lie: what is read when it is saved and written when it is restored.

use crate::plan::push_run;
use crate::{Cache, CacheConfig, KvError, KvErrorKind, LayerConfig, Run, SeqId, Side};
use std::ops::Range;

/// A cache whose sequences can be taken out and put back.
pub trait Restorable: Cache + Sized {
    /// Where the rows of a sequence lie. Only a sequence without gaps can be taken out.
    fn sequence_rows(&self, seq: SeqId) -> Result<SequenceRows, KvError>;

    /// The cache as it is once `seq` holds `len` tokens in the place of what it held, and where their rows go. Layer `i`
    /// has rows from position `first[i]` on. Changes nothing.
    fn plan_restore(
        &self,
        seq: SeqId,
        len: u32,
        first: &[u32],
    ) -> Result<(Self, SequenceRows), KvError>;

    /// The cache as it is once `seq` has given up the `dropped` tokens behind its first `keep` and the later ones have
    /// moved down, and where its rows lie then. Rows of the first `keep` stay where they are. Changes nothing.
    fn plan_shift(
        &self,
        seq: SeqId,
        keep: u32,
        dropped: u32,
    ) -> Result<(Self, SequenceRows), KvError>;

    /// Forgets all that a sequence holds, because its rows are unknown.
    fn forget(&mut self, seq: SeqId);
}

/// Where the rows of one sequence lie, layer by layer.
///
/// A layer holds the positions from some first one, which is 0 unless it has a window, to the end of the sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SequenceRows {
    /// Tokens of the sequence.
    pub len: u32,
    /// One entry for each numbering of cells.
    spaces: Vec<SpaceRuns>,
    /// Per layer, its numbering.
    space_of: Vec<u16>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct SpaceRuns {
    runs: Vec<Run>,
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

    /// Adds the numbering that follows: its runs in the order of positions, and the cells that must exist.
    pub(crate) fn push(&mut self, runs: impl Iterator<Item = Run>, cells: u32) {
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

    /// The runs of a layer: ascending, without gaps, up to the end of the sequence.
    pub fn runs(&self, layer: usize) -> &[Run] {
        &self.space(layer).runs
    }

    /// The first position that a layer holds; the length where it holds none.
    pub fn first_position(&self, layer: usize) -> u32 {
        let first = self.runs(layer).first();
        first.map_or(self.len, |run| run.position)
    }

    /// Rows of a head of a layer.
    pub fn row_count(&self, layer: usize) -> usize {
        (self.len - self.first_position(layer)) as usize
    }

    /// The runs of a layer at these positions.
    pub(crate) fn clipped(&self, layer: usize, positions: &Range<u32>) -> Vec<Run> {
        let runs = self.runs(layer).iter();
        runs.filter_map(|run| run.clip(positions)).collect()
    }

    /// The first position that each layer has left after a shift. What lies before `keep` can stay only where nothing
    /// between it and the later rows is lost.
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

    /// Most tokens that a shift can drop behind the first `keep`: layers with a window must go on seeing all of it.
    pub(crate) fn max_shift(&self, keep: u32, config: &CacheConfig) -> u32 {
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

    /// Cells of a layer that must exist.
    pub fn cells(&self, layer: usize) -> u32 {
        self.space(layer).cells
    }

    fn space(&self, layer: usize) -> &SpaceRuns {
        &self.spaces[usize::from(self.space_of[layer])]
    }
}

/// Encoded rows on their way into a layer's keys or values.
#[derive(Clone, Copy, Debug)]
pub struct RowBlock<'a> {
    /// Which layer.
    pub layer: usize,
    /// Keys or values.
    pub side: Side,
    /// The cells that take them.
    pub runs: &'a [Run],
    /// Cells that must exist.
    pub cells: u32,
    /// The rows of the first head, one after another in the order of the runs; those of the others begin `head_stride`
    /// bytes behind those of the head before.
    pub bytes: &'a [u8],
    /// Bytes from one head to the next.
    pub head_stride: usize,
}

/// What a shift moves: in every layer, the rows of the later positions down to lower ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowShift {
    /// Tokens that stay where they are.
    pub keep: u32,
    /// Tokens that are dropped behind them: how far the later ones move down.
    pub dropped: u32,
    before: SequenceRows,
    after: SequenceRows,
}

/// The rows of one layer that a shift moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedRows {
    /// The positions that they had.
    pub positions: Range<u32>,
    /// Where they lie.
    pub from: Vec<Run>,
    /// Where they go, in the same order. May overlap `from`.
    pub to: Vec<Run>,
    /// Cells of the layer that must exist.
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

    /// What moves in a layer.
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

/// The first position that layers of one policy can put back, of those that have rows from `first` on. `seen` is the
/// first position that the token behind the sequence sees.
pub(crate) fn first_restorable_position(
    first: impl Iterator<Item = (usize, u32)>,
    seen: u32,
) -> Result<u32, KvError> {
    let mut max = 0;
    for (layer, first) in first {
        if first > seen {
            return Err(KvErrorKind::SavedRows(format!(
                "layer {layer} begins at position {first}, and position {seen} is needed"
            ))
            .into());
        }
        max = max.max(first);
    }
    Ok(max)
}
