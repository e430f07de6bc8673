//! Moves the rows of a cache to another storage: of another type, of another kind of cache, or on another device.

use crate::row_codec;
use base::parallel;
use kv::{KvBytes, KvError, KvErrorKind, KvStorage, MigratedRows, RowBlock, Side};

/// Rows that one job encodes.
const ROWS_PER_JOB: usize = 64;

/// Moves rows from one storage to another, layer by layer. Rows of equal types keep their bytes; others are decoded and encoded
/// again. With `same_device`, the memory of each layer is given back once it has moved. Between devices, whose transfers can fail, the
/// old rows stay.
///
/// # Errors
/// `OutOfMemory` before any row has moved; `Device`, with the old rows in place.
pub fn migrate_rows(
    layers: &[MigratedRows],
    from: &mut dyn KvBytes,
    to: &mut dyn KvBytes,
    same_device: bool,
) -> Result<(), KvError> {
    let sides = |layer: usize| [Side::Key, Side::Value].map(|side| (layer, side));
    let all = || (0..layers.len()).flat_map(sides);
    let place = |(layer, side): (usize, Side)| RowBlock {
        layer,
        side,
        runs: &[],
        cells: layers[layer].cells,
        bytes: &[],
        head_stride: 0,
    };
    let buffer_for = |storage: &dyn KvBytes| {
        let config = storage.config();
        let size = |(layer, side): (usize, Side)| {
            let rows = config.layers[layer].kv_heads * row_count(&layers[layer]);
            rows * config.row_bytes(layer, side)
        };
        buffer(all().map(size).max().unwrap_or(0))
    };
    let (mut read, mut encoded) = (buffer_for(from)?, buffer_for(to)?);
    let places: Vec<_> = all().map(place).collect();
    to.write_rows(&places)?;
    for (layer, rows) in layers.iter().enumerate() {
        for (layer, side) in sides(layer) {
            let facts = from.config().layers[layer];
            let dim = match side {
                Side::Key => facts.key_dim,
                Side::Value => facts.value_dim,
            };
            let count = facts.kv_heads * row_count(rows);
            let types = [&*from, &*to].map(|storage| storage.config().storage(layer, side));
            let row_bytes = types.map(|storage| storage.row_bytes(dim));
            read.resize(count * row_bytes[0], 0);
            from.read_rows(layer, side, &rows.from, &mut read)?;
            let bytes = match types[0] == types[1] {
                true => &read,
                false => {
                    encoded.resize(count * row_bytes[1], 0);
                    transcode_rows(types, dim, &read, &mut encoded);
                    &encoded
                }
            };
            to.write_rows(&[RowBlock {
                runs: &rows.to,
                bytes,
                head_stride: row_count(rows) * row_bytes[1],
                ..place((layer, side))
            }])?;
        }
        if same_device {
            from.release_layer(layer);
        }
    }
    Ok(())
}

/// The number of rows of one head.
fn row_count(rows: &MigratedRows) -> usize {
    rows.from.iter().map(|run| run.len as usize).sum()
}

/// An empty buffer with capacity for `bytes` bytes.
fn buffer(bytes: usize) -> Result<Vec<u8>, KvError> {
    let mut buffer = Vec::new();
    base::fallible(|| buffer.try_reserve_exact(bytes))
        .map_err(|_| KvErrorKind::OutOfMemory(bytes))?;
    Ok(buffer)
}

/// Decodes rows of `dim` elements and encodes them in another type, on all cores.
pub fn transcode_rows([from, to]: [KvStorage; 2], dim: usize, rows: &[u8], out: &mut [u8]) {
    if dim == 0 {
        return;
    }
    let jobs = rows.chunks(ROWS_PER_JOB * from.row_bytes(dim));
    let mut jobs: Vec<_> = jobs
        .zip(out.chunks_mut(ROWS_PER_JOB * to.row_bytes(dim)))
        .collect();
    parallel::for_each(rows.len(), &mut jobs, |(rows, out)| {
        let mut row = vec![0.0; dim];
        let pairs = rows.chunks_exact(from.row_bytes(dim));
        for (bytes, out) in pairs.zip(out.chunks_exact_mut(to.row_bytes(dim))) {
            row_codec::decode(from, bytes, &mut row);
            // The bytes after a row's elements are zero.
            out.fill(0);
            row_codec::encode(to, &row, out);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use conformance::TestRng;

    /// Rows in another type are those that the decoded rows are encoded to.
    #[test]
    fn rows_are_encoded_as_if_they_were_new() {
        let mut noise = TestRng::new(5);
        for dim in [16, 20, 64] {
            let rows: Vec<Vec<f32>> = (0..300).map(|_| noise.units(dim)).collect();
            for from in KvStorage::ALL {
                let mut encoded = vec![0; 300 * from.row_bytes(dim)];
                let mut decoded = rows.clone();
                for (i, bytes) in encoded.chunks_exact_mut(from.row_bytes(dim)).enumerate() {
                    row_codec::encode(from, &rows[i], bytes);
                    row_codec::decode(from, bytes, &mut decoded[i]);
                }
                for to in KvStorage::ALL {
                    let mut found = vec![9; 300 * to.row_bytes(dim)];
                    transcode_rows([from, to], dim, &encoded, &mut found);
                    let mut wanted = vec![0; to.row_bytes(dim)];
                    for (row, found) in decoded.iter().zip(found.chunks_exact(to.row_bytes(dim))) {
                        wanted.fill(0);
                        row_codec::encode(to, row, &mut wanted);
                        assert_eq!(found, wanted, "{from} to {to}, {dim}");
                    }
                }
            }
        }
    }
}
