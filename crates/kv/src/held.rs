//! Where the rows of one sequence lie: what is read when it is saved and written when it is restored.

use crate::plan::push_run;
use crate::{Cache, CacheConfig, KvError, KvErrorKind, LayerConfig, Run, SeqId, Side};
use std::ops::Range;

/// A cache whose sequences can be taken out and put back.
pub trait Restorable: Cache + Sized {
    /// Where the rows of a sequence lie. Only a sequence without gaps can be taken out.
    fn held(&self, seq: SeqId) -> Result<Held, KvError>;

    /// The cache as it is once `seq` holds `len` tokens in the place of what it held, and where their rows go. Layer `i`
    /// has rows from position `first[i]` on. Changes nothing.
    fn restored(&self, seq: SeqId, len: u32, first: &[u32]) -> Result<(Self, Held), KvError>;

    /// The cache as it is once `seq` has given up the `dropped` tokens behind its first `keep` and the later ones have
    /// moved down, and where its rows lie then. Rows of the first `keep` stay where they are. Changes nothing.
    fn shifted(&self, seq: SeqId, keep: u32, dropped: u32) -> Result<(Self, Held), KvError>;
}

/// Where the rows of one sequence lie, layer by layer.
///
/// A layer holds the positions from some first one, which is 0 unless it has a window, to the end of the sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Tokens of the sequence.
    pub len: u32,
    /// One entry for each numbering of cells.
    places: Vec<Place>,
    /// Per layer, its numbering.
    place_of: Vec<u16>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Place {
    runs: Vec<Run>,
    cells: u32,
}

impl Held {
    pub(crate) fn new(len: u32, place_of: Vec<u16>) -> Held {
        Held {
            len,
            places: vec![],
            place_of,
        }
    }

    /// Adds the numbering that follows: its runs in the order of positions, and the cells that must exist.
    pub(crate) fn push(&mut self, runs: impl Iterator<Item = Run>, cells: u32) {
        let mut joined = vec![];
        runs.for_each(|run| push_run(&mut joined, run));
        self.places.push(Place {
            runs: joined,
            cells,
        });
    }

    /// Layers of the cache.
    pub fn layers(&self) -> usize {
        self.place_of.len()
    }

    /// The runs of a layer: ascending, without gaps, up to the end of the sequence.
    pub fn runs(&self, layer: usize) -> &[Run] {
        &self.place(layer).runs
    }

    /// The first position that a layer holds; the length where it holds none.
    pub fn first(&self, layer: usize) -> u32 {
        let first = self.runs(layer).first();
        first.map_or(self.len, |run| run.position)
    }

    /// Rows of a head of a layer.
    pub fn rows(&self, layer: usize) -> usize {
        (self.len - self.first(layer)) as usize
    }

    /// The runs of a layer at these positions.
    pub(crate) fn clipped(&self, layer: usize, positions: &Range<u32>) -> Vec<Run> {
        let runs = self.runs(layer).iter();
        runs.filter_map(|run| run.clip(positions)).collect()
    }

    /// The first position that each layer has left after a shift. What lies before `keep` can stay only where nothing
    /// between it and the later rows is lost.
    pub(crate) fn shifted_first(&self, keep: u32, dropped: u32) -> Result<Vec<u32>, KvError> {
        if dropped == 0 || keep.checked_add(dropped).is_none_or(|end| end > self.len) {
            let len = self.len;
            return Err(KvErrorKind::Shift { keep, dropped, len }.into());
        }
        let first = |layer| match self.first(layer) {
            first if first <= keep => first,
            first => first.saturating_sub(dropped).max(keep),
        };
        Ok((0..self.layers()).map(first).collect())
    }

    /// Most tokens that a shift can drop behind the first `keep`: layers with a window must go on seeing all of it.
    pub(crate) fn droppable(&self, keep: u32, config: &CacheConfig) -> u32 {
        let most = |(i, layer): (usize, &LayerConfig)| match (self.first(i), layer.window) {
            (0, _) | (_, None) => u32::MAX,
            (first, Some(window)) => {
                let behind = window.saturating_add(first.min(keep));
                (self.len + 1).saturating_sub(behind)
            }
        };
        let windows = config.layers.iter().enumerate().map(most).min();
        let rest = self.len.saturating_sub(keep);
        windows.unwrap_or(u32::MAX).min(rest)
    }

    /// Cells of a layer that must exist.
    pub fn cells(&self, layer: usize) -> u32 {
        self.place(layer).cells
    }

    fn place(&self, layer: usize) -> &Place {
        &self.places[usize::from(self.place_of[layer])]
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

/// A sequence that was taken out of a cache: `[heads, rows, row]` of every layer and side, in storage type.
#[derive(Clone, Debug, Default)]
pub struct SavedRows<'a> {
    /// Tokens of the sequence.
    pub len: u32,
    /// One entry per cache id.
    pub layers: Vec<SavedLayer<'a>>,
}

/// What was taken out of one layer.
#[derive(Clone, Copy, Debug)]
pub struct SavedLayer<'a> {
    /// The position of the first row.
    pub first: u32,
    /// Keys.
    pub keys: &'a [u8],
    /// Values.
    pub values: &'a [u8],
}

impl SavedRows<'_> {
    /// The first position of every layer.
    pub(crate) fn first(&self) -> Vec<u32> {
        self.layers.iter().map(|layer| layer.first).collect()
    }

    /// Refuses rows that are not those of such a cache.
    pub(crate) fn check(&self, config: &CacheConfig) -> Result<(), KvError> {
        let bad = |reason: String| Err(KvErrorKind::SavedRows(reason).into());
        if self.layers.len() != config.layers.len() {
            let (found, wanted) = (self.layers.len(), config.layers.len());
            return bad(format!("they have {found} layers, the cache {wanted}"));
        }
        for (i, (saved, layer)) in self.layers.iter().zip(&config.layers).enumerate() {
            let rows = self.len.checked_sub(saved.first);
            let bytes = |side: Side| {
                let rows = usize::try_from(rows?).ok()?;
                let heads = rows.checked_mul(layer.kv_heads)?;
                heads.checked_mul(config.row_bytes(i, side))
            };
            let wanted = [bytes(Side::Key), bytes(Side::Value)];
            if wanted != [Some(saved.keys.len()), Some(saved.values.len())] {
                let first = saved.first;
                let (keys, values) = (saved.keys.len(), saved.values.len());
                return bad(format!(
                    "layer {i} has {keys} and {values} bytes from position {first} on"
                ));
            }
        }
        Ok(())
    }

    /// The rows that go to these places.
    pub(crate) fn blocks<'b>(&'b self, config: &CacheConfig, to: &'b Held) -> Vec<RowBlock<'b>> {
        let block = |layer: usize, side: Side| {
            let (saved, row) = (&self.layers[layer], config.row_bytes(layer, side));
            let bytes = match side {
                Side::Key => saved.keys,
                Side::Value => saved.values,
            };
            let skipped = (to.first(layer) - saved.first) as usize * row;
            RowBlock {
                layer,
                side,
                runs: to.runs(layer),
                cells: to.cells(layer),
                bytes: &bytes[skipped.min(bytes.len())..],
                head_stride: (self.len - saved.first) as usize * row,
            }
        };
        let layers = 0..self.layers.len();
        layers
            .flat_map(|layer| [block(layer, Side::Key), block(layer, Side::Value)])
            .collect()
    }
}

/// The first position that layers of one policy can put back, of those that have rows from `first` on. `seen` is the
/// first position that the token behind the sequence sees.
pub(crate) fn common_first(
    first: impl Iterator<Item = (usize, u32)>,
    seen: u32,
) -> Result<u32, KvError> {
    let mut most = 0;
    for (layer, first) in first {
        if first > seen {
            return Err(KvErrorKind::SavedRows(format!(
                "layer {layer} begins at position {first}, and position {seen} is needed"
            ))
            .into());
        }
        most = most.max(first);
    }
    Ok(most)
}
