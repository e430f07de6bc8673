//! Saving, restoring and shifting the rows of a sequence.

use crate::KeyRotations;
use kv::{
    CacheConfig, CacheOperations, CellRun, KvBytes, KvError, KvErrorKind, RowBlock, RowShift,
    SavedPositions, SeqId, SequenceRows, Side,
};
use std::ops::Range;

/// The saved rows of a sequence: for every layer and side the encoded rows `[heads, rows, row]`.
#[derive(Clone, Debug, Default)]
pub struct SavedRows<'a> {
    /// Tokens of the sequence.
    pub len: u32,
    /// The positions after which recurrent layers have states, ascending: their rows.
    pub states: &'a [u32],
    /// One entry per cache id.
    pub layers: Vec<SavedLayer<'a>>,
}

/// The rows of one layer.
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
    /// Replaces the content of `seq` by the first `len` saved tokens. An error leaves the cache unchanged, except that
    /// a device error leaves `seq` empty.
    pub fn restore(
        &self,
        cache: &dyn CacheOperations,
        seq: SeqId,
        len: u32,
    ) -> Result<(), KvError> {
        self.check(&cache.config()?)?;
        if len > self.len {
            let reason = format!("{len} tokens are requested, and {} are saved", self.len);
            return Err(KvErrorKind::SavedRows(reason).into());
        }
        let first: Vec<u32> = self.layers.iter().map(|layer| layer.first).collect();
        let saved = SavedPositions {
            first: &first,
            states: self.states,
        };
        cache.write_rows(seq, len, saved, &mut |rows, bytes| {
            let blocks = self.blocks(bytes.config(), rows);
            bytes.write_rows(&blocks)
        })
    }

    /// Appends the saved tokens from the end of `seq`, which has the first `held` of them, up to `len`. An error leaves the cache
    /// unchanged, except that a device error leaves `seq` empty.
    pub fn append(
        &self,
        cache: &dyn CacheOperations,
        seq: SeqId,
        held: u32,
        len: u32,
    ) -> Result<(), KvError> {
        self.check(&cache.config()?)?;
        let first: Vec<u32> = self.layers.iter().map(|layer| layer.first).collect();
        cache.append_rows(seq, len, &first, &mut |rows, bytes| {
            let new = |layer: usize| {
                let runs = rows.runs(layer).iter();
                runs.filter_map(|run| run.clip(&(held..len))).collect()
            };
            let runs: Vec<Vec<CellRun>> = (0..self.layers.len()).map(new).collect();
            let config = bytes.config();
            let blocks: Vec<RowBlock<'_>> = sides(self.layers.len())
                .map(|(layer, side)| {
                    let cells = rows.cells(layer);
                    self.block(config, (layer, side), &runs[layer], cells)
                })
                .collect();
            bytes.write_rows(&blocks)
        })
    }

    /// Returns an error if the saved rows do not match a cache of this configuration.
    fn check(&self, config: &CacheConfig) -> Result<(), KvError> {
        let bad = |reason: String| Err(KvErrorKind::SavedRows(reason).into());
        if self.layers.len() != config.layers.len() {
            let (found, wanted) = (self.layers.len(), config.layers.len());
            return bad(format!("they have {found} layers, the cache has {wanted}"));
        }
        for (i, (saved, layer)) in self.layers.iter().zip(&config.layers).enumerate() {
            let rows = self.rows(config, i);
            let bytes = |side: Side| {
                let heads = rows?.checked_mul(layer.kv_heads)?;
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

    /// The number of rows that one head of a layer has.
    fn rows(&self, config: &CacheConfig, layer: usize) -> Option<usize> {
        match config.layers[layer].is_state() {
            true => Some(self.states.len()),
            false => Some(self.len.checked_sub(self.layers[layer].first)? as usize),
        }
    }

    /// The row of a layer that belongs to a position.
    fn row_of(&self, config: &CacheConfig, layer: usize, position: u32) -> usize {
        match config.layers[layer].is_state() {
            true => self.states.partition_point(|state| *state < position),
            false => (position - self.layers[layer].first) as usize,
        }
    }

    /// The saved rows as blocks to write to these cells.
    fn blocks<'b>(&'b self, config: &CacheConfig, to: &'b SequenceRows) -> Vec<RowBlock<'b>> {
        sides(self.layers.len())
            .map(|at| self.block(config, at, to.runs(at.0), to.cells(at.0)))
            .collect()
    }

    /// The saved rows of a side as a block to write to these cells, of which the pool has `cells`.
    fn block<'b>(
        &'b self,
        config: &CacheConfig,
        (layer, side): (usize, Side),
        runs: &'b [CellRun],
        cells: u32,
    ) -> RowBlock<'b> {
        let (saved, row) = (&self.layers[layer], config.row_bytes(layer, side));
        let bytes = match side {
            Side::Key => saved.keys,
            Side::Value => saved.values,
        };
        // Restored rows are consecutive in the saved bytes, states too: only the earliest are left out.
        let first = runs.first().map_or(self.len, |run| run.position);
        let skipped = self.row_of(config, layer, first) * row;
        RowBlock {
            layer,
            side,
            runs,
            cells,
            bytes: &bytes[skipped.min(bytes.len())..],
            head_stride: self.rows(config, layer).unwrap_or(0) * row,
        }
    }
}

/// Every layer's keys and values.
fn sides(layers: usize) -> impl Iterator<Item = (usize, Side)> + Clone {
    (0..layers).flat_map(|layer| [(layer, Side::Key), (layer, Side::Value)])
}

impl KeyRotations {
    /// Moves the rows of a shift to their new cells and rotates the keys to their new positions.
    pub fn shift(&self, shift: &RowShift, bytes: &mut dyn KvBytes) -> Result<(), KvError> {
        let config = bytes.config().clone();
        shift_rows(shift, bytes, |layer, positions, rows| {
            let to = positions.start - shift.dropped;
            self.rotate(&config, layer, positions, to, rows);
        })
    }
}

/// Moves the rows of a shift to their new cells. `rotate` receives a layer, the old positions of its moved keys, and
/// the encoded keys `[heads, rows, row]`, which it rotates to the new positions.
///
/// # Errors
/// `OutOfMemory` before any row has moved; `Device` possibly later.
pub fn shift_rows(
    shift: &RowShift,
    bytes: &mut dyn KvBytes,
    mut rotate: impl FnMut(usize, Range<u32>, &mut [u8]),
) -> Result<(), KvError> {
    let config = bytes.config().clone();
    let moves: Vec<_> = (0..shift.layers())
        .map(|layer| shift.layer(layer))
        .collect();
    let size = |(layer, side): (usize, Side)| {
        let rows = config.layers[layer].kv_heads * moves[layer].positions.len();
        rows * config.row_bytes(layer, side)
    };
    let most = sides(moves.len()).map(size).max().unwrap_or(0);
    let mut rows = Vec::new();
    base::fallible(|| rows.try_reserve_exact(most)).map_err(|_| KvErrorKind::OutOfMemory(most))?;
    let block = |layer: usize, side: Side| RowBlock {
        layer,
        side,
        runs: &[],
        cells: moves[layer].cells,
        bytes: &[],
        head_stride: 0,
    };
    let places: Vec<_> = sides(moves.len()).map(|(i, side)| block(i, side)).collect();
    bytes.write_rows(&places)?;
    for (layer, side) in sides(moves.len()) {
        let moved = &moves[layer];
        let stride = moved.positions.len() * config.row_bytes(layer, side);
        rows.resize(config.layers[layer].kv_heads * stride, 0);
        bytes.read_rows(layer, side, &moved.from, &mut rows)?;
        if side == Side::Key {
            rotate(layer, moved.positions.clone(), &mut rows);
        }
        let block = RowBlock {
            runs: &moved.to,
            bytes: &rows,
            head_stride: stride,
            ..block(layer, side)
        };
        bytes.write_rows(&[block])?;
    }
    Ok(())
}
