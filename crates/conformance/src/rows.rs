//! `RowsCopy`: a copy of a sequence's rows.

use backend::{SavedLayer, SavedRows};
use kv::{CacheManager, CacheSession, KvError, Restorable, SeqId, Side};

/// A copy of a sequence's encoded rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowsCopy {
    len: u32,
    /// The positions after which recurrent layers have states.
    states: Vec<u32>,
    /// First position, keys and values of each layer.
    layers: Vec<(u32, [Vec<u8>; 2])>,
}

impl RowsCopy {
    /// Copies the rows of a sequence.
    pub fn take<K: CacheManager + Restorable>(
        session: &CacheSession<K>,
        seq: SeqId,
    ) -> Result<RowsCopy, KvError> {
        session.read_sequence(seq, |held, bytes| {
            let config = bytes.config();
            let side = |layer: usize, side: Side| -> Result<Vec<u8>, KvError> {
                let rows = config.layers[layer].kv_heads * held.row_count(layer);
                let mut copy = vec![0; rows * config.row_bytes(layer, side)];
                bytes.read_rows(layer, side, held.runs(layer), &mut copy)?;
                Ok(copy)
            };
            let layer = |i| {
                Ok((
                    held.first_position(i),
                    [side(i, Side::Key)?, side(i, Side::Value)?],
                ))
            };
            let layers: Result<_, KvError> = (0..held.layers()).map(layer).collect();
            let state = (0..held.layers()).find(|layer| config.layers[*layer].is_state());
            Ok(RowsCopy {
                len: held.len,
                states: state.map_or(vec![], |layer| held.positions(layer).collect()),
                layers: layers?,
            })
        })?
    }

    /// Tokens of the sequence.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether it has no tokens.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The positions after which recurrent layers have states, ascending.
    pub fn states(&self) -> &[u32] {
        &self.states
    }

    /// The rows in the form that restores them.
    pub fn saved(&self) -> SavedRows<'_> {
        let layers = self.layers.iter();
        let layers = layers.map(|(first, [keys, values])| SavedLayer {
            first: *first,
            keys,
            values,
        });
        SavedRows {
            len: self.len,
            states: &self.states,
            layers: layers.collect(),
        }
    }
}
