//! Writes a packed file of a model that does not fit into memory: each piece is packed, written and forgotten.

use super::{
    CHUNK, WRITE_CHUNK, WeightSource, checksums, file_name, free_bytes, head, key, origin,
    remove_stale_packed_files,
};
use base::atomic_write;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::SystemTime;

/// Packs panels of a weight, from this panel on, into the bytes, which have the size of whole panels.
type PackPanels<'a> = &'a mut dyn FnMut(&WeightSource<'_>, usize, &mut [u8]) -> io::Result<()>;

/// Packs the weights into a new file in the folder.
///
/// # Errors
/// The error of `pack` or of writing; `Unsupported` if the weights are not of one mapped file; `StorageFull` if the disk has too little
/// room. The old file is then unchanged.
pub(in super::super) fn write_in_pieces(
    folder: &Path,
    weights: &[WeightSource<'_>],
    pack: PackPanels<'_>,
) -> io::Result<()> {
    let unsupported = |reason| io::Error::new(io::ErrorKind::Unsupported, reason);
    let origin = origin(weights)
        .ok_or_else(|| unsupported("the weights are not those of one mapped model file"))?;
    let model = origin.path().to_str();
    let model = model.ok_or_else(|| unsupported("the path of the model is not UTF-8"))?;
    let sizes = weights.iter().map(|w| Some((key(w)?, w.packed_bytes())));
    let sizes: Vec<(u64, usize)> = sizes.collect::<Option<_>>().unwrap_or_default();
    fs::create_dir_all(folder)?;
    remove_stale_packed_files(folder);
    let total: usize = sizes.iter().map(|(_, len)| len).sum();
    if free_bytes(folder).is_some_and(|free| free < total as u64) {
        let reason = format!("it needs {}", base::size_text(total as u64));
        return Err(io::Error::new(io::ErrorKind::StorageFull, reason));
    }
    let chunks: usize = sizes.iter().map(|(_, len)| len.div_ceil(CHUNK)).sum();
    let (placeholder, _) = head(model, &sizes, &vec![0; 8 * chunks]);
    atomic_write(&file_name(folder, origin), |file| {
        file.write_all(&placeholder)?;
        let mut sums = Vec::with_capacity(8 * chunks);
        for weight in weights {
            write_weight(file, weight, pack, &mut sums)?;
        }
        let (head, seal) = head(model, &sizes, &sums);
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&head)?;
        file.sync_data()?;
        // Without a seal every start verifies the file.
        let _ = file.set_modified(seal.put_on(SystemTime::now()));
        Ok(())
    })
}

/// Packs and writes a weight, and appends its checksums. What was read of the model file is given back.
fn write_weight(
    file: &mut File,
    weight: &WeightSource<'_>,
    pack: PackPanels<'_>,
    sums: &mut Vec<u8>,
) -> io::Result<()> {
    let panel_bytes = weight.format.panel_bytes(weight.k).max(1);
    let panels = weight.packed_bytes() / panel_bytes;
    let at_a_time = (WRITE_CHUNK / panel_bytes).max(1);
    // Packed bytes that are not written yet; less than a chunk of them is left when more are packed.
    let mut piece: Vec<u8> = Vec::new();
    for first in (0..panels).step_by(at_a_time) {
        let count = at_a_time.min(panels - first);
        let start = piece.len();
        piece.resize(start + count * panel_bytes, 0);
        pack(weight, first, &mut piece[start..])?;
        weight.rows.release();
        let end = match first + count == panels {
            true => piece.len(),
            false => piece.len() - piece.len() % CHUNK,
        };
        sums.extend(checksums(&piece[..end]));
        file.write_all(&piece[..end])?;
        // Written pages must not fill the memory.
        file.sync_data()?;
        piece.drain(..end);
    }
    Ok(())
}
