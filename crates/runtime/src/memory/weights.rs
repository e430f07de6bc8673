//! `WeightSection`: the constants of a model, grouped by layer.

use graph::{Graph, TensorId};

/// The constants of one part of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightSection {
    /// Common prefix of their names: up to the layer number (`blk.3`), or the name of the tensor (`output_norm`).
    pub name: String,
    /// The number of constants.
    pub tensors: usize,
    /// Bytes in the file.
    pub bytes: usize,
    /// Bytes of the file that stay resident: of weights that are read where they are mapped, without those of a head that are
    /// its model's.
    pub resident: usize,
    /// Bytes of the same weights packed by the backend.
    pub packed: usize,
}

/// Groups the constants into sections, in the order of their first tensor in the graph.
pub(super) fn sections(
    graph: &Graph,
    is_weight: &dyn Fn(TensorId) -> bool,
    is_shared: &dyn Fn(TensorId) -> bool,
    packed: &[(TensorId, usize)],
    mapped: &[(TensorId, usize)],
) -> Vec<WeightSection> {
    let mut sections: Vec<WeightSection> = vec![];
    for (id, tensor) in (0..).map(TensorId).zip(graph.tensors()) {
        if !is_weight(id) {
            continue;
        }
        let name = section(&tensor.name);
        let at = sections.iter().rposition(|section| section.name == name);
        let at = at.unwrap_or_else(|| {
            sections.push(WeightSection {
                name: name.to_owned(),
                tensors: 0,
                bytes: 0,
                resident: 0,
                packed: 0,
            });
            sections.len() - 1
        });
        let section = &mut sections[at];
        section.tensors += 1;
        let bytes = tensor.ty.bytes(&Default::default()).unwrap_or(0);
        section.bytes += bytes;
        if is_shared(id) {
            continue;
        }
        let resident = mapped.iter().find(|(mapped, _)| *mapped == id);
        section.resident += resident.map_or(bytes, |(_, resident)| *resident);
        let again = packed.iter().filter(|(packed, _)| *packed == id);
        section.packed += again.map(|(_, bytes)| bytes).sum::<usize>();
    }
    sections
}

fn section(name: &str) -> &str {
    let mut end = 0;
    for part in name.split('.') {
        end += part.len();
        if !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) {
            return &name[..end];
        }
        end += 1;
    }
    name.rsplit_once('.').map_or(name, |(before, _)| before)
}

#[cfg(test)]
mod tests {
    use super::section;

    #[test]
    fn a_layer_is_a_section() {
        let table = [
            ("blk.3.attn_q.weight", "blk.3"),
            ("model.layers.11.mlp.up_proj.weight", "model.layers.11"),
            ("token_embd.weight", "token_embd"),
            ("rope.frequency", "rope"),
            ("bias", "bias"),
            ("", ""),
        ];
        for (name, expected) in table {
            assert_eq!(section(name), expected);
        }
    }
}
