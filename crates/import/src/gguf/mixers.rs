//! Reads what mixes tokens in each layer, and how wide its feed-forward block is, from a file's metadata.

use super::architecture::RecurrentRow;
use super::error::GgufError;
use super::metadata::Value;
use super::spec::SpecReader;
use crate::error::ImportError;
use crate::transformer::{AttentionSpec, LatentSpec, Mixer, ScanRule, ScanSpec};

impl SpecReader<'_> {
    /// The mixer of each layer.
    pub(super) fn mixers(
        &self,
        layers: usize,
        hidden_size: usize,
    ) -> Result<Vec<Mixer>, ImportError> {
        let Some(row) = self.architecture.recurrent else {
            let attention = self.attention(layers, hidden_size, |_| false)?;
            return Ok(attention
                .into_iter()
                .flatten()
                .map(Mixer::Attention)
                .collect());
        };
        let is_recurrent = self.recurrent_layers(row, layers)?;
        let mixer = match row {
            RecurrentRow::ShortConv => Mixer::ShortConv {
                taps: self.keys.size("shortconv.l_cache")?,
            },
            RecurrentRow::Scan(rule)
            | RecurrentRow::EveryScan(rule)
            | RecurrentRow::ListedScan(rule) => Mixer::Scan(self.scan(rule)?),
        };
        let attention = self.attention(layers, hidden_size, |layer| is_recurrent[layer])?;
        let mixers = attention.into_iter();
        let mixers = mixers.map(|a| a.map_or_else(|| mixer.clone(), Mixer::Attention));
        Ok(mixers.collect())
    }

    /// Whether each layer is recurrent.
    fn recurrent_layers(&self, row: RecurrentRow, layers: usize) -> Result<Vec<bool>, ImportError> {
        let keys = &self.keys;
        match row {
            RecurrentRow::EveryScan(_) => Ok(vec![true; layers]),
            RecurrentRow::ShortConv | RecurrentRow::Scan(_) => {
                let key = "attention.head_count_kv";
                let heads = keys.layer_counts(key, self.block_count()?)?;
                let heads = heads.ok_or_else(|| GgufError::missing(&keys.name(key)))?;
                Ok(heads[..layers].iter().map(|heads| *heads == 0).collect())
            }
            RecurrentRow::ListedScan(_) => {
                let name = keys.name("attention.recurrent_layers");
                if let Some(Value::Array(_)) = keys.metadata.get(&name)
                    && let Some(list) = keys.metadata.bools(&name)?
                {
                    let blocks = self.block_count()?;
                    if list.len() != blocks {
                        let reason = format!("has {} entries for {blocks} layers", list.len());
                        return Err(ImportError::value(name, reason));
                    }
                    return Ok(list[..layers].to_vec());
                }
                let period = keys.optional_size("full_attention_interval")?.unwrap_or(4);
                // Blocks behind the last layer attend.
                let own = self.layer_count()?;
                let attends = |layer: usize| layer >= own || (layer + 1).is_multiple_of(period);
                Ok((0..layers).map(|layer| !attends(layer)).collect())
            }
        }
    }

    /// The sizes of all scans of a model.
    fn scan(&self, rule: ScanRule) -> Result<ScanSpec, ImportError> {
        let keys = &self.keys;
        let inner = keys.size("ssm.inner_size")?;
        let heads = keys.size("ssm.time_step_rank")?;
        if !inner.is_multiple_of(heads) {
            let reason = format!("is {heads}, which does not divide the width {inner}");
            return Err(ImportError::value(keys.name("ssm.time_step_rank"), reason));
        }
        Ok(ScanSpec {
            rule,
            taps: keys.size("ssm.conv_kernel")?,
            groups: keys.size("ssm.group_count")?,
            heads,
            key_dim: keys.size("ssm.state_size")?,
            value_dim: inner / heads,
        })
    }

    /// The latent rows that keys and values are made from, with the width of those rows.
    pub(super) fn latent(&self) -> Result<Option<(LatentSpec, usize)>, ImportError> {
        if !self.architecture.latent {
            return Ok(None);
        }
        let keys = &self.keys;
        let rank = keys.size("attention.kv_lora_rank")?;
        let rotated_dim = keys.size("rope.dimension_count")?;
        // Files with one tensor for both matrices of a head state a head's sizes as those of the cached row.
        let own = |of_heads: &str, plain: &str| match keys.optional_size(of_heads)? {
            None => keys.size(plain),
            Some(size) => Ok(size),
        };
        let key = "attention.key_length_mla";
        let key_dim = own(key, "attention.key_length")?;
        let plain_dim = key_dim.checked_sub(rotated_dim).filter(|dim| *dim > 0);
        let plain_dim = plain_dim.ok_or_else(|| {
            let reason = format!("is {key_dim}, and {rotated_dim} elements of a key are rotated");
            ImportError::value(keys.name(key), reason)
        })?;
        let latent = LatentSpec {
            query_rank: match keys.count("attention.q_lora_rank")? {
                0 => None,
                _ => keys.optional_size("attention.q_lora_rank")?,
            },
            plain_dim,
            rotated_dim,
            head_value_dim: own("attention.value_length_mla", "attention.value_length")?,
        };
        Ok(Some((latent, rank)))
    }

    /// The width of each layer's feed-forward block; 0 where it has none.
    pub(super) fn mlp_sizes(&self, layers: usize) -> Result<Vec<usize>, ImportError> {
        let key = "feed_forward_length";
        if self.architecture.recurrent.is_none() {
            return self.layer_sizes(key, layers);
        }
        let blocks = self.block_count()?;
        let sizes = match self.keys.layer_counts(key, blocks)? {
            None => self
                .keys
                .layer_counts("expert_feed_forward_length", blocks)?,
            sizes => sizes,
        };
        let mut sizes = sizes.ok_or_else(|| GgufError::missing(&self.keys.name(key)))?;
        sizes.truncate(layers);
        Ok(sizes)
    }

    /// Leaves blocks of one part with that part: where the file gives blocks different feed-forward widths, those with a width have
    /// nothing else.
    pub(super) fn leave_single_blocks(&self, mixers: &mut [Mixer], mlp_sizes: &[usize]) {
        let name = self.keys.name("feed_forward_length");
        let listed = matches!(self.keys.metadata.get(&name), Some(Value::Array(_)));
        if self.architecture.recurrent.is_none() || !listed {
            return;
        }
        for (mixer, size) in mixers.iter_mut().zip(mlp_sizes) {
            if *size > 0 {
                *mixer = Mixer::Nothing;
            }
        }
    }
}

/// The attention of a layer that attends.
pub(super) fn attention_of(mixer: &Mixer) -> Option<AttentionSpec> {
    match mixer {
        Mixer::Attention(attention) => Some(attention.clone()),
        _ => None,
    }
}
