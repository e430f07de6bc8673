//! Which pages of the model's file a run needs: those of weights that are read where they are mapped.
//!
//! Packed weights are read from their file once, when they are packed, or never, if the packed file has them. A table of which a step
//! gathers rows is needed row by row; around each row the system maps up to sixteen pages, which add up to the whole table in a long
//! context. So both give their pages back: the next access maps them again, from the system's cache of the file.

use super::weight_layouts::WeightLayouts;
use base::Bytes;
use graph::ops::Op;
use graph::{Bindings, Graph, TensorId};

/// Rows that are gathered before the pages of the tables are given back.
const MAX_ROWS: usize = 32;
/// Bytes of a page; larger ones only make the count too small by a few rows.
const PAGE_BYTES: usize = 4096;

/// Bytes that stay resident where the file is mapped, of every weight that no call reads there as a whole: none of a packed weight,
/// and of a table the pages of a step's rows.
pub(crate) fn mapped_bytes(
    graph: &Graph,
    bindings: Bindings,
    layouts: &WeightLayouts,
    is_weight: &dyn Fn(TensorId) -> bool,
) -> Vec<(TensorId, usize)> {
    let weights = (0..graph.tensors().len()).map(|i| TensorId(i as u32));
    let weights = weights.filter(|id| is_weight(*id));
    let resident = |id: TensorId| {
        let indices = Readers::of(graph, layouts, id)?.indices;
        let rows = |index: TensorId| {
            let dims = graph.tensor(index).ty.dims(&bindings);
            dims.map_or(usize::MAX, |dims| dims.iter().product())
        };
        let ty = &graph.tensor(id).ty;
        let bytes = ty.bytes(&bindings)?;
        let row = bytes / ty.dims(&bindings)?.first()?.max(&1);
        let pages = indices.into_iter().map(|index| {
            let rows = rows(index).max(MAX_ROWS);
            rows.saturating_mul(row.next_multiple_of(PAGE_BYTES))
        });
        let pages = pages.fold(0, usize::saturating_add);
        Some((id, bytes.min(pages)))
    };
    weights.filter_map(resident).collect()
}

/// The nodes that read a weight, if none of them reads all of it where it is mapped.
struct Readers {
    /// The indices of the nodes that gather rows of it.
    indices: Vec<TensorId>,
}

impl Readers {
    fn of(graph: &Graph, layouts: &WeightLayouts, id: TensorId) -> Option<Readers> {
        let mut indices = Vec::new();
        let mut is_packed = false;
        for node in graph.nodes().iter().filter(|n| n.inputs.contains(&id)) {
            match (&node.op, &node.inputs[..]) {
                (Op::GatherRows(_), &[table, index]) if table == id && index != id => {
                    indices.push(index);
                }
                (Op::Linear(_), &[x, weight, ..])
                    if weight == id && x != id && layouts.has_quantised_panels(id) =>
                {
                    is_packed = true;
                }
                (Op::Experts(_), [x, router, weights @ ..])
                    if ![x, router].contains(&&id) && layouts.has_quantised_panels(id) =>
                {
                    is_packed |= weights.contains(&id);
                }
                _ => return None,
            }
        }
        let is_read = is_packed || !indices.is_empty();
        (is_read && !graph.outputs().contains(&id)).then_some(Readers { indices })
    }
}

/// The weights of a graph whose pages are given back.
pub(crate) struct MappedWeights {
    tables: Vec<Bytes>,
    /// Rows that were gathered of each since.
    rows: usize,
}

impl MappedWeights {
    /// Gives back what packing has read.
    pub(crate) fn new(graph: &Graph, layouts: &WeightLayouts) -> MappedWeights {
        let mut tables = Vec::new();
        for (i, tensor) in graph.tensors().iter().enumerate() {
            let constant = tensor.constant().filter(|bytes| bytes.is_mapped());
            let readers = Readers::of(graph, layouts, TensorId(i as u32));
            let Some((bytes, readers)) = constant.zip(readers) else {
                continue;
            };
            bytes.release();
            if !readers.indices.is_empty() {
                tables.push(bytes.clone());
            }
        }
        MappedWeights { tables, rows: 0 }
    }

    /// Counts the rows that a step gathered, and gives their pages back when there are enough.
    pub(crate) fn gathered(&mut self, rows: usize) {
        self.rows += rows;
        if self.rows >= MAX_ROWS {
            self.rows = 0;
            self.tables.iter().for_each(Bytes::release);
        }
    }
}
