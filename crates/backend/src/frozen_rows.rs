//! The rows of a frozen prefix as attention reads them, for backends that copy them.

use crate::RowLayout;
use base::Bytes;
use kv::{CacheConfig, CellRun, KvBytes, KvError, RowBlock, Side};

/// A configuration of storage for these cells of each layer and no more.
pub(crate) fn storage_config(config: &CacheConfig, cells: &[u32]) -> CacheConfig {
    let capacity = cells.iter().copied().max().unwrap_or(0).max(1);
    let mut own = CacheConfig {
        capacity,
        initial_cells: capacity,
        ring: None,
        ..config.clone()
    };
    own.states.slots = 2;
    own
}

/// Copies rows in [`RowLayout`] to the first cells of each layer.
pub(crate) fn write(
    kv: &mut dyn KvBytes,
    cells: &[u32],
    rows: &[[Bytes; 2]],
) -> Result<(), KvError> {
    let config = kv.config().clone();
    for (layer, (&cells, sides)) in cells.iter().zip(rows).enumerate() {
        for (side, from) in [Side::Key, Side::Value].into_iter().zip(sides) {
            let layout = RowLayout::of(&config, layer, side);
            let head_stride = cells as usize * layout.row_bytes();
            let mut bytes = vec![0; from.len()];
            let heads = from.chunks_exact(head_stride.max(1));
            for (from, to) in heads.zip(bytes.chunks_exact_mut(head_stride.max(1))) {
                layout.get_rows(from, 0, to);
            }
            let run = CellRun {
                position: 0,
                cell: 0,
                len: cells,
            };
            kv.write_rows(&[RowBlock {
                layer,
                side,
                runs: &[run],
                cells,
                bytes: &bytes,
                head_stride,
            }])?;
        }
    }
    Ok(())
}
