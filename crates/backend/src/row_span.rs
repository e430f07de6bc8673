//! `RowSpan`: the rows of consecutive tokens of a sequence, to be used at other positions of another one.

use crate::KeyRotations;
use kv::{
    CacheOperations, CellRun, KvBytes, KvError, KvErrorKind, RowBlock, SeqId, SequenceRows, Side,
};
use std::ops::Range;

/// The encoded rows of consecutive tokens of a sequence.
#[derive(Clone, Debug)]
pub struct RowSpan {
    positions: Range<u32>,
    layers: Vec<SpanLayer>,
}

#[derive(Clone, Debug)]
struct SpanLayer {
    /// The first position that it has rows of.
    first: u32,
    /// Keys and values, `[heads, rows, row]`.
    sides: [Vec<u8>; 2],
}

const SIDES: [Side; 2] = [Side::Key, Side::Value];

impl RowSpan {
    /// Reads the rows of these positions of a sequence.
    ///
    /// # Errors
    /// `SavedRows` if the sequence ends before, `Unsupported` for a cache whose rows cannot be read.
    pub fn read(
        cache: &dyn CacheOperations,
        seq: SeqId,
        positions: Range<u32>,
    ) -> Result<RowSpan, KvError> {
        let mut layers = Ok(vec![]);
        cache.read_rows(seq, &mut |held, bytes| {
            layers = read_layers(held, bytes, &positions);
        })?;
        Ok(RowSpan {
            layers: layers?,
            positions,
        })
    }

    /// Appends the rows to a sequence of `len` tokens, with keys that are rotated to their new positions.
    ///
    /// # Errors
    /// Those of [`CacheOperations::append_rows`]. The sequence is then unchanged, but for a device error, which leaves it empty.
    pub fn append(
        mut self,
        rotations: &KeyRotations,
        cache: &dyn CacheOperations,
        seq: SeqId,
        len: u32,
    ) -> Result<(), KvError> {
        let config = cache.config()?;
        let start = self.positions.start;
        for (i, layer) in self.layers.iter_mut().enumerate() {
            let (positions, to) = (layer.first..self.positions.end, len + (layer.first - start));
            rotations.rotate(&config, i, positions, to, &mut layer.sides[0]);
            layer.first = to;
        }
        let first: Vec<u32> = self.layers.iter().map(|layer| layer.first).collect();
        let end = len + self.positions.len() as u32;
        cache.append_rows(seq, end, &first, &mut |rows, bytes| {
            let layers = self.layers.iter().enumerate();
            let runs = layers.map(|(i, layer)| {
                let new = layer.first.max(rows.first_position(i))..end;
                clipped(rows, i, &new)
            });
            let runs: Vec<Vec<CellRun>> = runs.collect();
            let block = |(layer, side): (usize, usize)| {
                let (from, row) = (
                    &self.layers[layer],
                    bytes.config().row_bytes(layer, SIDES[side]),
                );
                let skipped = runs[layer]
                    .first()
                    .map_or(0, |run| run.position - from.first);
                let held = &from.sides[side];
                RowBlock {
                    layer,
                    side: SIDES[side],
                    runs: &runs[layer],
                    cells: rows.cells(layer),
                    bytes: &held[(skipped as usize * row).min(held.len())..],
                    head_stride: (end - from.first) as usize * row,
                }
            };
            let sides = (0..self.layers.len()).flat_map(|layer| [(layer, 0), (layer, 1)]);
            let blocks: Vec<RowBlock<'_>> = sides.map(block).collect();
            bytes.write_rows(&blocks)
        })
    }
}

fn read_layers(
    held: &SequenceRows,
    bytes: &dyn KvBytes,
    positions: &Range<u32>,
) -> Result<Vec<SpanLayer>, KvError> {
    if positions.start > positions.end || positions.end > held.len {
        let Range { start, end } = positions;
        let reason = format!("rows {start} to {end} of {} tokens", held.len);
        return Err(KvErrorKind::SavedRows(reason).into());
    }
    let config = bytes.config();
    let layer = |(i, facts): (usize, &kv::LayerConfig)| {
        let first = held.first_position(i).clamp(positions.start, positions.end);
        let runs = clipped(held, i, positions);
        let heads_rows = facts.kv_heads * (positions.end - first) as usize;
        let side = |side: Side| {
            let mut rows = vec![0; heads_rows * config.row_bytes(i, side)];
            bytes.read_rows(i, side, &runs, &mut rows).map(|()| rows)
        };
        let sides = [side(Side::Key)?, side(Side::Value)?];
        Ok(SpanLayer { first, sides })
    };
    config.layers.iter().enumerate().map(layer).collect()
}

/// The runs of a layer at these positions.
fn clipped(held: &SequenceRows, layer: usize, positions: &Range<u32>) -> Vec<CellRun> {
    let runs = held.runs(layer).iter();
    runs.filter_map(|run| run.clip(positions)).collect()
}
