//! Which type each tensor gets when a model is quantised: the mixes of llama.cpp, by their names.

use base::DType;

use super::file::{Gguf, GgufTensor};
use crate::error::ImportError;

/// A quantisation that a model can be written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantisation {
    /// The name, such as `Q4_K_M`.
    pub name: &'static str,
    /// The type of most tensors.
    pub dtype: DType,
    /// `general.file_type` of its files.
    pub file_type: u32,
}

const fn mix(name: &'static str, dtype: DType, file_type: u32) -> Quantisation {
    Quantisation {
        name,
        dtype,
        file_type,
    }
}

/// All quantisations, best first.
pub const QUANTISATIONS: [Quantisation; 19] = [
    mix("F32", DType::F32, 0),
    mix("BF16", DType::BF16, 32),
    mix("F16", DType::F16, 1),
    mix("Q8_0", DType::Q8_0, 7),
    mix("Q6_K", DType::Q6_K, 18),
    mix("Q5_K_M", DType::Q5_K, 17),
    mix("Q5_K_S", DType::Q5_K, 16),
    mix("Q5_1", DType::Q5_1, 9),
    mix("Q5_0", DType::Q5_0, 8),
    mix("Q4_K_M", DType::Q4_K, 15),
    mix("Q4_K_S", DType::Q4_K, 14),
    mix("IQ4_NL", DType::IQ4_NL, 25),
    mix("IQ4_XS", DType::IQ4_XS, 30),
    mix("Q4_1", DType::Q4_1, 3),
    mix("Q4_0", DType::Q4_0, 2),
    mix("Q3_K_L", DType::Q3_K, 13),
    mix("Q3_K_M", DType::Q3_K, 12),
    mix("Q3_K_S", DType::Q3_K, 11),
    mix("Q2_K", DType::Q2_K, 10),
];

impl Quantisation {
    /// The quantisation with this name; case does not matter, and `Q4_K` means `Q4_K_M`.
    pub fn find(name: &str) -> Option<Quantisation> {
        let upper = name.to_ascii_uppercase();
        let medium = format!("{upper}_M");
        let mut all = QUANTISATIONS.into_iter();
        let own = all.clone().find(|q| q.name == upper);
        own.or_else(|| all.find(|q| q.name == medium))
    }

    fn is(&self, names: &[&str]) -> bool {
        names.contains(&self.name)
    }
}

/// Facts about a model that its mix depends on.
pub(super) struct MixFacts {
    falcon: bool,
    layers: usize,
    /// Layers with a tensor for values.
    with_values: Vec<usize>,
    /// Query heads for each head of keys and values.
    shared_heads: usize,
    experts: usize,
    /// Whether the embedding is the head too.
    tied: bool,
    /// The 70B model of Llama 2 and 3, and those like it.
    seventy: bool,
}

/// Whether the tensor is one for values, or has those for values in it.
fn has_values(name: &str) -> bool {
    ["attn_v.weight", "attn_qkv.weight", "attn_kv_b.weight"]
        .iter()
        .any(|end| name.ends_with(end))
}

/// The block that a tensor is in.
fn block_of(name: &str) -> Option<usize> {
    let (number, _) = name.strip_prefix("blk.")?.split_once('.')?;
    number.parse().ok()
}

impl MixFacts {
    pub(super) fn of(file: &Gguf) -> Result<MixFacts, ImportError> {
        let metadata = &file.metadata;
        let architecture = metadata.str("general.architecture")?.unwrap_or_default();
        let key = |key: &str| format!("{architecture}.{key}");
        let count = |name: &str| metadata.usize(&key(name));
        let layers = count("block_count")?.unwrap_or(0);
        // Lists of heads have one for each layer.
        let heads = |name: &str| match count(name) {
            Ok(heads) => heads,
            Err(_) => {
                let list = metadata.usizes(&key(name)).ok().flatten();
                list.and_then(|list| list.into_iter().find(|heads| *heads > 0))
            }
        };
        let queries = heads("attention.head_count").unwrap_or(1);
        let keys = heads("attention.head_count_kv").unwrap_or(queries).max(1);
        let names = file.tensors.iter().map(|tensor| &tensor.name[..]);
        let mut with_values: Vec<usize> = names
            .filter(|name| has_values(name))
            .filter_map(block_of)
            .collect();
        with_values.sort_unstable();
        Ok(MixFacts {
            falcon: architecture == "falcon",
            layers,
            with_values,
            shared_heads: queries / keys,
            experts: count("expert_count")?.unwrap_or(0),
            tied: file.tensor("output.weight").is_none(),
            seventy: architecture == "llama" && layers == 80 && queries != keys,
        })
    }

    /// Layers that gain most from more bits: the first and the last eighth, and every third between.
    fn wants_more_bits(at: usize, of: usize) -> bool {
        at < of / 8 || at >= 7 * of / 8 || (at - of / 8) % 3 == 2
    }

    /// The type of a tensor of the mix, before its shape is looked at.
    fn mixed(&self, name: &str, to: &Quantisation) -> DType {
        let base = to.dtype;
        let more = DType::Q6_K;
        let has = |part: &str| name.contains(part);
        let head = name == "output.weight" || (self.tied && name == "token_embd.weight");
        if head {
            return match base {
                _ if self.falcon => DType::Q8_0,
                DType::Q8_0 => DType::Q8_0,
                _ => more,
            };
        }
        let layer = block_of(name).unwrap_or(0);
        let eight = self.experts == 8;
        if has_values(name) {
            let at = self.with_values.iter().position(|own| *own == layer);
            let (at, of) = (at.unwrap_or(0), self.with_values.len());
            let chosen = match to.name {
                "Q2_K" if self.shared_heads >= 4 => DType::Q4_K,
                "Q2_K" => DType::Q3_K,
                "Q3_K_M" if at < 2 => DType::Q5_K,
                "Q3_K_M" => DType::Q4_K,
                "Q3_K_L" => DType::Q5_K,
                "IQ4_NL" | "IQ4_XS" if self.shared_heads >= 4 => DType::Q5_K,
                "Q4_K_M" | "Q5_K_M" if MixFacts::wants_more_bits(at, of) => more,
                "Q4_K_S" if at < 4 => DType::Q5_K,
                _ => base,
            };
            return match chosen {
                _ if eight => DType::Q8_0,
                DType::Q3_K | DType::Q4_K if self.seventy => DType::Q5_K,
                chosen => chosen,
            };
        }
        if name.ends_with("attn_k.weight") {
            return if eight { DType::Q8_0 } else { base };
        }
        if name.ends_with("attn_output.weight") {
            let eight_more = [
                "Q2_K", "Q3_K_S", "Q3_K_M", "IQ4_NL", "Q4_K_S", "Q4_K_M", "IQ4_XS",
            ];
            return match to.name {
                "Q3_K_L" if self.falcon => DType::Q4_K,
                _ if self.falcon => base,
                _ if eight && to.is(&eight_more) => DType::Q5_K,
                _ if eight => base,
                "Q2_K" => DType::Q3_K,
                "Q3_K_M" => DType::Q4_K,
                "Q3_K_L" => DType::Q5_K,
                _ => base,
            };
        }
        if has("ffn_down") {
            let (at, of) = (layer, self.layers);
            let more_bits = MixFacts::wants_more_bits(at, of);
            return match to.name {
                "Q2_K" => DType::Q3_K,
                "Q3_K_M" if at < of / 16 => DType::Q5_K,
                "Q3_K_M" if !self.falcon || more_bits => DType::Q4_K,
                "Q3_K_L" if self.falcon => DType::Q4_K,
                "Q3_K_L" => DType::Q5_K,
                "Q4_K_M" if self.falcon && at < of / 16 => more,
                "Q4_K_M" if self.falcon && more_bits => DType::Q5_K,
                "Q4_K_M" if !self.falcon && more_bits => more,
                "IQ4_NL" | "IQ4_XS" if at < of / 8 => DType::Q5_K,
                "Q5_K_M" if more_bits => more,
                "Q4_K_S" if !self.falcon && at < of / 8 => DType::Q5_K,
                _ => base,
            };
        }
        base
    }

    /// The type that a tensor is written in; `None` if it stays as it is.
    pub(super) fn dtype(&self, tensor: &GgufTensor, to: &Quantisation) -> Option<DType> {
        if !is_quantised(tensor) {
            return None;
        }
        if !to.dtype.is_quantised() {
            return Some(to.dtype);
        }
        let columns = tensor.shape.last().copied().unwrap_or(1);
        let fits = |dtype: DType| columns.is_multiple_of(dtype.block_len());
        // A head whose rows are no whole blocks of the mix has eight bits.
        let head = tensor.name == "output.weight" || tensor.name == "token_embd.weight";
        let wanted = match self.mixed(&tensor.name, to) {
            DType::Q6_K if head && !fits(to.dtype) => DType::Q8_0,
            wanted => wanted,
        };
        let other = match wanted {
            wanted if fits(wanted) => wanted,
            DType::IQ4_XS => DType::IQ4_NL,
            DType::Q2_K | DType::Q3_K => DType::Q4_0,
            DType::Q4_K => DType::Q5_0,
            DType::Q5_K => DType::Q5_1,
            DType::Q6_K => DType::Q8_0,
            wanted => wanted,
        };
        Some(if fits(other) { other } else { DType::F16 })
    }
}

/// Whether mixes quantise a tensor: matrices of weights that are neither small nor sensitive.
pub(super) fn is_quantised(tensor: &GgufTensor) -> bool {
    const KEPT: [&str; 10] = [
        "_norm.weight",
        "ffn_gate_inp.weight",
        "altup",
        "laurel",
        "per_layer_model_proj",
        "position_embd",
        "token_types",
        "ssm_conv1d",
        "shortconv.conv.weight",
        "attn_rel_b.weight",
    ];
    let name = &tensor.name;
    let matrix = tensor.shape.iter().filter(|size| **size > 1).count() >= 2;
    matrix && name.ends_with("weight") && !KEPT.iter().any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(layers: usize) -> MixFacts {
        MixFacts {
            falcon: false,
            layers,
            with_values: (0..layers).collect(),
            shared_heads: 4,
            experts: 0,
            tied: false,
            seventy: false,
        }
    }

    fn tensor(name: &str, shape: &[usize]) -> GgufTensor {
        GgufTensor {
            name: name.to_owned(),
            dtype: DType::F32,
            shape: shape.to_vec(),
            data: base::Bytes::from(&[][..]),
        }
    }

    #[test]
    fn tensors_get_the_types_of_the_mix() {
        let facts = facts(16);
        let chosen = |name: &str, columns: usize, mix: &str| {
            let to = Quantisation::find(mix).unwrap();
            facts.dtype(&tensor(name, &[8, columns]), &to)
        };
        let table = [
            ("blk.0.attn_v.weight", 256, "Q4_K_M", Some(DType::Q6_K)),
            ("blk.3.attn_v.weight", 256, "Q4_K_M", Some(DType::Q4_K)),
            ("blk.4.attn_v.weight", 256, "q4_k", Some(DType::Q6_K)),
            ("blk.15.ffn_down.weight", 512, "Q5_K_M", Some(DType::Q6_K)),
            ("blk.3.ffn_down.weight", 576, "Q4_K_M", Some(DType::Q5_0)),
            ("blk.3.ffn_up.weight", 256, "IQ4_XS", Some(DType::IQ4_XS)),
            ("blk.3.ffn_up.weight", 288, "IQ4_XS", Some(DType::IQ4_NL)),
            ("blk.3.ffn_up.weight", 20, "Q4_0", Some(DType::F16)),
            ("blk.3.ffn_up.weight", 20, "F16", Some(DType::F16)),
            ("output.weight", 256, "Q4_0", Some(DType::Q6_K)),
            ("output.weight", 576, "Q4_K_M", Some(DType::Q8_0)),
            ("token_embd.weight", 256, "Q4_0", Some(DType::Q4_0)),
            ("blk.3.attn_q_norm.weight", 256, "Q4_0", None),
            ("blk.3.ffn_gate_inp.weight", 256, "Q4_0", None),
            ("blk.3.attn_q.bias", 256, "Q4_0", None),
        ];
        for (name, columns, mix, expected) in table {
            assert_eq!(chosen(name, columns, mix), expected, "{name} {mix}");
        }
        assert!(Quantisation::find("Q9_K").is_none());
    }
}
