//! Reads which layers have experts, and how they are chosen, from a file's metadata.

use graph::ops::{ExpertGroups, ExpertScores};

use super::architecture::SharedExpert;
use super::error::GgufError;
use super::spec::SpecReader;
use crate::error::ImportError;
use crate::transformer::ExpertsSpec;

impl SpecReader<'_> {
    /// The experts of each layer that has a router.
    pub(super) fn experts(
        &self,
        mlp_sizes: &[usize],
    ) -> Result<Vec<Option<ExpertsSpec>>, ImportError> {
        let (row, keys) = (self.architecture.experts, &self.keys);
        let count = keys.count("expert_count")?;
        if count == 0 {
            return Ok(vec![None; mlp_sizes.len()]);
        }
        let Some(row) = row else {
            let what = format!("a mixture of experts ({})", keys.name("expert_count"));
            return Err(ImportError::unsupported(what));
        };
        let count = keys.size("expert_count")?;
        let used = keys.size("expert_used_count")?;
        let gating = keys.count("expert_gating_func")?;
        let scores = match gating {
            // 0 stands for the architecture's own function.
            0 if self.chooses_with_biases() => row.biased_scores,
            0 => row.scores,
            1 => ExpertScores::Softmax,
            2 => ExpertScores::Sigmoid,
            _ => {
                let what = format!("{} = {gating}", keys.name("expert_gating_func"));
                return Err(ImportError::unsupported(what));
            }
        };
        let normalise = keys.metadata.bool(&keys.name("expert_weights_norm"))?;
        let groups = keys.optional_size("expert_group_count")?;
        let groups = groups.filter(|groups| *groups > 1).map(|count| {
            let used = keys.size("expert_group_used_count")?;
            Ok::<_, ImportError>(ExpertGroups { count, used })
        });
        let groups = groups.transpose()?;
        if groups.is_some() && scores == ExpertScores::Softmax {
            // DeepSeek 2 compares groups by their best expert, other models by their two best.
            let what = format!(
                "{} of experts with softmax",
                keys.name("expert_group_count")
            );
            return Err(ImportError::unsupported(what));
        }
        let size = keys.optional_size("expert_feed_forward_length")?;
        let shared_size = match keys.count("expert_shared_feed_forward_length")? {
            0 => None,
            _ => keys.optional_size("expert_shared_feed_forward_length")?,
        };
        let counted = match row.shared {
            SharedExpert::Counted => self.counted_shared_size(size)?,
            _ => None,
        };
        let scale = keys.positive_or_zero("expert_weights_scale")?;
        let layer = |(i, mlp_size): (usize, &usize)| {
            let router = format!("blk.{i}.ffn_gate_inp.weight");
            self.source.file.tensor(&router)?;
            Some(ExpertsSpec {
                count,
                used,
                size: size.unwrap_or(*mlp_size),
                shared_size: match row.shared {
                    SharedExpert::Never => None,
                    SharedExpert::Stated => shared_size,
                    SharedExpert::Always => Some(shared_size.unwrap_or(*mlp_size)),
                    SharedExpert::Counted => counted,
                },
                scores,
                normalise: normalise.unwrap_or(row.normalise),
                gate: row.gate,
                scale: scale.unwrap_or(1.0),
                groups,
                beside_dense: row.beside_dense,
            })
        };
        Ok(mlp_sizes.iter().enumerate().map(layer).collect())
    }

    /// The width of all shared experts as one, which are as wide as the others; `None` without any.
    fn counted_shared_size(&self, size: Option<usize>) -> Result<Option<usize>, ImportError> {
        let keys = &self.keys;
        let name = "expert_shared_count";
        if keys.count(name)? == 0 {
            return Ok(None);
        }
        let length = "expert_feed_forward_length";
        let size = size.ok_or_else(|| GgufError::missing(&keys.name(length)))?;
        let whole = keys.size(name)?.checked_mul(size);
        whole.map(Some).ok_or_else(|| {
            let reason = format!("has too many experts of {size}");
            ImportError::value(keys.name(name), reason)
        })
    }

    /// Whether experts are chosen with biases.
    fn chooses_with_biases(&self) -> bool {
        let mut tensors = self.source.file.tensors.iter();
        tensors.any(|tensor| tensor.name.ends_with(".exp_probs_b.bias"))
    }
}
