//! Writes a model as a GGUF file in another quantisation.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use base::{DType, atomic_write, quant};
use graph::ops::RopeLayout;

use super::file::{Gguf, GgufTensor};
use super::metadata::Value;
use super::mix::{MixFacts, Quantisation};
use super::write::{self, DEFAULT_ALIGNMENT, TensorHeader};
use crate::error::ImportError;
use crate::gguf::architecture::Architecture;

/// Rows of a tensor that a thread encodes at a time.
const CHUNK_BYTES: usize = 1 << 18;

/// The plan of a tensor that will be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedTensor {
    /// The name.
    pub name: String,
    /// The type in the input.
    pub from: DType,
    /// The type in the output.
    pub to: DType,
    /// Bytes in the input.
    pub from_bytes: usize,
    /// Bytes in the output.
    pub to_bytes: usize,
}

/// A model that will be written in another quantisation.
pub struct QuantisePlan<'a> {
    file: &'a Gguf,
    quantisation: Option<Quantisation>,
    /// The tensors in order.
    pub tensors: Vec<PlannedTensor>,
    /// Heads whose rows are in another order than in files of the architecture: those of queries, and those of keys.
    reordered: Option<[usize; 2]>,
}

impl<'a> QuantisePlan<'a> {
    /// Plans the output. Without a quantisation, matrices keep their types.
    ///
    /// # Errors
    /// If a tensor is quantised already and would be again, unless `again` allows it, or if the file cannot be arranged as files of its
    /// architecture are.
    pub fn new(
        file: &'a Gguf,
        quantisation: Option<Quantisation>,
        again: bool,
    ) -> Result<QuantisePlan<'a>, ImportError> {
        let facts = MixFacts::of(file)?;
        let of_folder = file.rope.is_some() || file.made;
        let planned = |tensor: &GgufTensor| {
            let wanted = quantisation.and_then(|to| facts.dtype(tensor, &to));
            let small = super::mix::is_quantised(tensor);
            let to = match wanted {
                Some(to) => to,
                // Readers of GGUF want vectors and small matrices in f32.
                None if of_folder && !small => DType::F32,
                None => tensor.dtype,
            };
            if to != tensor.dtype && tensor.dtype.is_quantised() && !again {
                let what = format!(
                    "tensor {} is {} already: quantising it again loses more, and",
                    tensor.name, tensor.dtype
                );
                return Err(ImportError::unsupported(what));
            }
            if to != tensor.dtype && !quant::can_quantise(to) {
                return Err(ImportError::unsupported(format!("writing {to}")));
            }
            let columns = tensor.shape.last().copied().unwrap_or(1);
            let rows = tensor.len() / columns.max(1);
            let bytes = to.row_bytes(columns).and_then(|row| row.checked_mul(rows));
            let bytes = bytes.ok_or_else(|| {
                let reason = format!("has rows of {columns}, which are no whole blocks of {to}");
                ImportError::value(format!("tensor {}", tensor.name), reason)
            })?;
            Ok(PlannedTensor {
                name: tensor.name.clone(),
                from: tensor.dtype,
                to,
                from_bytes: tensor.data.len(),
                to_bytes: bytes,
            })
        };
        let tensors: Result<_, ImportError> = file.tensors.iter().map(planned).collect();
        Ok(QuantisePlan {
            file,
            quantisation,
            tensors: tensors?,
            reordered: reordered(file)?,
        })
    }

    /// Bytes of all tensors of the output.
    pub fn bytes(&self) -> u64 {
        self.tensors
            .iter()
            .map(|tensor| tensor.to_bytes as u64)
            .sum()
    }

    /// Writes the file with these further entries of metadata, on so many threads. `on` has the bytes of the input that are done, and
    /// says whether to go on.
    ///
    /// # Errors
    /// If the file cannot be written; of the kind `Interrupted` if `on` stopped it. Nothing is at `path` then, unless it was before.
    pub fn write(
        &self,
        path: &Path,
        further: Vec<(String, Value)>,
        threads: usize,
        on: &mut dyn FnMut(u64) -> bool,
    ) -> io::Result<()> {
        let mut further = further;
        if let Some(to) = self.quantisation {
            further.push(("general.file_type".to_owned(), Value::U32(to.file_type)));
            let key = "general.quantization_version".to_owned();
            further.push((key, Value::U32(2)));
        }
        let leave = |key: &str| {
            let again = further.iter().any(|(own, _)| own == key);
            again || key.starts_with("split.")
        };
        let metadata = &self.file.metadata;
        let alignment = metadata.usize("general.alignment").ok().flatten();
        let alignment = alignment.unwrap_or(DEFAULT_ALIGNMENT);
        let tensors = self.file.tensors.iter().zip(&self.tensors);
        let headers: Vec<TensorHeader<'_>> = tensors
            .map(|(tensor, planned)| TensorHeader {
                name: &tensor.name,
                dtype: planned.to,
                shape: &tensor.shape,
                bytes: planned.to_bytes,
            })
            .collect();
        atomic_write(path, |out| {
            let mut out = BufWriter::with_capacity(1 << 20, out);
            write::header(&mut out, metadata, leave, &further, &headers, alignment)?;
            let mut done = 0;
            for (tensor, planned) in self.file.tensors.iter().zip(&self.tensors) {
                self.write_tensor(&mut out, tensor, planned, threads)?;
                let padding = planned.to_bytes.next_multiple_of(alignment) - planned.to_bytes;
                out.write_all(&vec![0; padding])?;
                done += planned.from_bytes as u64;
                if !on(done) {
                    return Err(io::ErrorKind::Interrupted.into());
                }
            }
            out.flush()
        })
    }

    fn write_tensor(
        &self,
        out: &mut impl Write,
        tensor: &GgufTensor,
        planned: &PlannedTensor,
        threads: usize,
    ) -> io::Result<()> {
        let heads = self.heads_of(&tensor.name);
        if planned.to == tensor.dtype && heads.is_none() {
            return out.write_all(&tensor.data);
        }
        // A vector whose elements are reordered has one a row.
        let columns = match (heads, &tensor.shape[..]) {
            (Some(_), [_]) => 1,
            (_, shape) => shape.last().copied().unwrap_or(1),
        };
        let rows = tensor.len() / columns.max(1);
        let [from_row, to_row] = [tensor.dtype, planned.to].map(|dtype| dtype.row_bytes(columns));
        let (Some(from_row), Some(to_row)) = (from_row, to_row) else {
            return Err(io::Error::other("rows are no whole blocks"));
        };
        let encode = |first: usize, out: &mut [u8]| {
            let mut values = vec![0f32; columns];
            for (i, out) in out.chunks_exact_mut(to_row).enumerate() {
                let row = match heads {
                    Some(heads) => source_row(first + i, rows / heads.max(1)),
                    None => first + i,
                };
                let bytes = &tensor.data[row * from_row..(row + 1) * from_row];
                if planned.to == tensor.dtype {
                    out.copy_from_slice(bytes);
                    continue;
                }
                let failed = |error: quant::QuantError| io::Error::other(error.to_string());
                quant::dequantise(tensor.dtype, bytes, &mut values).map_err(failed)?;
                quant::quantise(planned.to, &values, out).map_err(failed)?;
            }
            Ok::<(), io::Error>(())
        };
        let mut encoded = vec![0; planned.to_bytes];
        let chunk_rows = (CHUNK_BYTES / to_row.max(1)).max(1);
        let chunks = encoded.chunks_mut(chunk_rows * to_row).enumerate();
        let chunks = std::sync::Mutex::new(chunks);
        std::thread::scope(|scope| {
            let work = || {
                loop {
                    let next = chunks.lock().expect("no thread panics with it").next();
                    let Some((i, out)) = next else {
                        return Ok(());
                    };
                    encode(i * chunk_rows, out)?;
                }
            };
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let own: io::Result<()> = work();
            let others = others.into_iter().map(|thread| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            others.fold(own, |all, one| all.and(one))
        })?;
        out.write_all(&encoded)
    }

    /// The heads of a tensor whose rows are reordered.
    fn heads_of(&self, name: &str) -> Option<usize> {
        let [queries, keys] = self.reordered?;
        let of = |part: &str| name.contains(part);
        match name {
            _ if of(".attn_q.") => Some(queries),
            _ if of(".attn_k.") => Some(keys),
            _ => None,
        }
    }
}

/// The row that is at a place of a file whose neighbours rotate together, in the order where the halves of a head do.
fn source_row(row: usize, head: usize) -> usize {
    let (start, inside) = (row / head * head, row % head);
    start + inside / 2 + inside % 2 * (head / 2)
}

/// The heads of queries and of keys, if rows must be reordered.
fn reordered(file: &Gguf) -> Result<Option<[usize; 2]>, ImportError> {
    let name = file
        .metadata
        .str("general.architecture")?
        .unwrap_or_default();
    let own = Architecture::find(name).and_then(|architecture| architecture.rope);
    if file.rope.is_none() || file.rope == own {
        return Ok(None);
    }
    let key = |key: &str| format!("{name}.{key}");
    let dim = file.metadata.usize(&key("rope.dimension_count"))?;
    let fused = file.tensors.iter().any(|t| t.name.contains("attn_qkv"));
    if (file.rope, own) != (Some(RopeLayout::Halves), Some(RopeLayout::Interleaved))
        || dim.is_some()
        || fused
    {
        let what = format!("writing a folder of {name} as GGUF, whose heads rotate in part,");
        return Err(ImportError::unsupported(what));
    }
    let heads = |name: &str| file.metadata.usize(&key(name));
    let queries = heads("attention.head_count")?.unwrap_or(1);
    let keys = heads("attention.head_count_kv")?.unwrap_or(queries);
    Ok(Some([queries, keys]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_head_are_found() {
        let rows: Vec<usize> = (0..8).map(|row| source_row(row, 4)).collect();
        assert_eq!(rows, [0, 2, 1, 3, 4, 6, 5, 7]);
    }
}
