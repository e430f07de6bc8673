//! Reads a [`TransformerSpec`] from a file's metadata.

use std::cell::RefCell;
use std::collections::HashSet;

use super::architecture::{Architecture, LogitScale, RopeLayers};
use super::architecture_keys::Keys;
use super::error::GgufError;
use super::file::Gguf;
use super::metadata::Value;
use super::mixers::attention_of;
use crate::error::{ImportError, ImportErrorDetail};
use crate::lowered::ImportOptions;
use crate::model_facts::Pooling;
use crate::transformer::{
    AttentionSpec, ContextMode, KvSource, LayerSpec, Norm, NormKind, NormPlacement, RopeScaling,
    RopeSpec, TransformerSpec, Weight, floats,
};

/// Tensor lookup that records which tensors were used.
pub(super) struct TrackedTensors<'a> {
    pub(super) file: &'a Gguf,
    used: RefCell<HashSet<String>>,
}

impl<'a> TrackedTensors<'a> {
    pub(super) fn new(file: &'a Gguf) -> TrackedTensors<'a> {
        let used = RefCell::default();
        TrackedTensors { file, used }
    }

    pub(super) fn weight(&self, name: &str) -> Option<Weight> {
        let tensor = self.file.tensor(name)?;
        self.used.borrow_mut().insert(name.to_owned());
        Some(Weight {
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            data: Some(tensor.data.clone()),
        })
    }

    /// Marks the tensors of blocks from `first` on as used.
    pub(super) fn skip_blocks(&self, first: usize) {
        let block = |name: &str| name.strip_prefix("blk.")?.split('.').next()?.parse().ok();
        let names = self.file.tensors.iter().map(|tensor| &tensor.name);
        let skipped = names.filter(|name| block(name).is_some_and(|block: usize| block >= first));
        self.used.borrow_mut().extend(skipped.cloned());
    }

    /// The first unused tensor. The file's model then differs from the one that was built.
    pub(super) fn unused(&self) -> Option<&str> {
        self.unused_of(|_| true)
    }

    /// The first unused tensor whose name is one of these.
    pub(super) fn unused_of(&self, of: impl Fn(&str) -> bool) -> Option<&str> {
        let used = self.used.borrow();
        let mut names = self.file.tensors.iter().map(|t| t.name.as_str());
        names.find(|name| of(name) && !used.contains(*name))
    }
}

/// Reads the metadata of one model.
pub(super) struct SpecReader<'a> {
    pub(super) architecture: Architecture,
    pub(super) keys: Keys<'a>,
    pub(super) source: &'a TrackedTensors<'a>,
}

impl SpecReader<'_> {
    /// The spec and its maximum number of positions.
    pub(super) fn read(
        &self,
        options: &ImportOptions,
    ) -> Result<(TransformerSpec, usize), ImportError> {
        self.read_blocks(options, self.layer_count()?)
    }

    /// The spec of the MTP head and its maximum number of positions: the layer behind the model's last one.
    pub(super) fn read_mtp(
        &self,
        options: &ImportOptions,
    ) -> Result<(TransformerSpec, usize), ImportError> {
        let block = self.layer_count()?;
        let (mut spec, context) = self.read_blocks(options, block + 1)?;
        spec.layers.drain(..block);
        Ok((spec, context))
    }

    /// The number of the block that is the MTP head, if the file carries one.
    pub(super) fn mtp_block(&self) -> Result<Option<usize>, ImportError> {
        let block = self.layer_count()?;
        let tensor = mtp_tensor(block);
        let carries = block < self.block_count()? && self.source.file.tensor(&tensor).is_some();
        Ok(carries.then_some(block))
    }

    /// The spec of the first blocks.
    pub(super) fn read_blocks(
        &self,
        options: &ImportOptions,
        layers: usize,
    ) -> Result<(TransformerSpec, usize), ImportError> {
        let (row, keys) = (&self.architecture, &self.keys);
        let hidden_size = keys.size("embedding_length")?;
        let trained_context = keys.size("context_length")?;
        let context = options.context_length.unwrap_or(trained_context);
        let context = context.min(trained_context);
        let mut mixers = self.mixers(layers, hidden_size)?;
        let mlp_sizes = self.mlp_sizes(layers)?;
        self.leave_single_blocks(&mut mixers, &mlp_sizes);
        let attention = mixers.iter().map(attention_of);
        let attention: Vec<Option<AttentionSpec>> = attention.collect();
        let (ropes, rope_of) = self.ropes(&attention, trained_context, context)?;
        let experts = self.experts(&mlp_sizes)?;
        let sources = self.kv_sources(&attention)?;

        let (_, final_softcap) = row.softcaps.unzip();
        let layers = mixers
            .into_iter()
            .zip(rope_of)
            .zip(mlp_sizes)
            .zip(experts)
            .zip(sources);
        let spec = TransformerSpec {
            vocab_size: self.vocab_size()?,
            hidden_size,
            embedding_scale: match row.scale_embedding {
                true => Some((hidden_size as f64).sqrt() as f32),
                false => keys.positive_or_zero("embedding_scale")?,
            },
            learned_positions: row.rope.is_none().then_some(trained_context),
            embedding_norm: row.embedding_norm,
            context: self.context(options)?,
            norm: self.norm()?,
            norm_places: self.norm_places()?,
            qk_norm: row.qk_norm,
            value_norm: row.value_norm,
            per_layer_input: match keys.count("embedding_length_per_layer_input")? {
                0 => None,
                _ => keys.optional_size("embedding_length_per_layer_input")?,
            },
            layer_scales: row.layer_scales,
            sinks: row.sinks,
            biases: row.biases,
            mlp: row.mlp,
            ropes,
            residual_scale: keys.positive_or_zero("residual_scale")?,
            logit_scale: self.logit_scale()?,
            final_softcap: self.softcap("final_logit_softcapping", final_softcap)?,
            layers: layers
                .map(|((((mixer, rope), mlp_size), experts), kv)| LayerSpec {
                    mixer,
                    rope,
                    mlp_size,
                    experts,
                    kv,
                })
                .collect(),
        };
        Ok((spec, context))
    }

    /// Context mode of the architecture; the file may confirm it but not change it.
    fn context(&self, options: &ImportOptions) -> Result<ContextMode, ImportError> {
        let own = self.architecture.context;
        let name = self.keys.name("attention.causal");
        let causal = own != ContextMode::Uncached { causal: false };
        if let Some(other) = self.keys.metadata.bool(&name)?.filter(|c| *c != causal) {
            return Err(ImportError::unsupported(format!("{name} = {other}")));
        }
        Ok(match options.hidden_states {
            true => ContextMode::Uncached { causal },
            false => own,
        })
    }

    /// Pooling of hidden states. The default is the mean for bidirectional attention, else the last token.
    pub(super) fn pooling(&self) -> Result<Pooling, ImportError> {
        let name = self.keys.name("pooling_type");
        match self.keys.metadata.u32(&name)? {
            None | Some(0) if self.architecture.context == ContextMode::Cached => Ok(Pooling::Last),
            None | Some(0 | 1) => Ok(Pooling::Mean),
            Some(2) => Ok(Pooling::Cls),
            Some(3) => Ok(Pooling::Last),
            Some(4) => Err(ImportError::unsupported(format!(
                "a model that ranks ({name} = 4)"
            ))),
            Some(other) => Err(ImportError::value(
                name,
                format!("is {other}, must be from 0 to 4"),
            )),
        }
    }

    /// Layers of the model, without the blocks behind them that predict further tokens.
    pub(super) fn layer_count(&self) -> Result<usize, ImportError> {
        let blocks = self.block_count()?;
        let key = "nextn_predict_layers";
        let further = self.keys.count(key)?;
        let layers = blocks.checked_sub(further).filter(|layers| *layers > 0);
        layers.ok_or_else(|| {
            let reason = format!("is {further}, but there are {blocks} blocks");
            ImportError::value(self.keys.name(key), reason)
        })
    }

    pub(super) fn block_count(&self) -> Result<usize, ImportError> {
        let layers = self.keys.size("block_count")?;
        let tensors = self.source.file.tensors.len();
        if layers > tensors {
            let reason = format!("is {layers}, but the file has {tensors} tensors");
            return Err(ImportError::value(self.keys.name("block_count"), reason));
        }
        Ok(layers)
    }

    /// Rows of the embedding. All other vocabulary sizes in the file must agree.
    fn vocab_size(&self) -> Result<usize, ImportError> {
        let name = "token_embd.weight";
        let embedding = self.source.weight(name);
        let embedding = embedding.ok_or_else(|| ImportError::missing_tensor(name))?;
        let &[rows, _] = &embedding.shape[..] else {
            let reason = format!("has shape {:?}, must be a matrix", embedding.shape);
            return Err(ImportError::value(format!("tensor {name}"), reason));
        };
        let tokens = "tokenizer.ggml.tokens";
        let listed = match self.keys.metadata.get(tokens) {
            Some(Value::Array(array)) => Some(array.len()),
            _ => None,
        };
        let counts = [
            (
                self.keys.name("vocab_size"),
                self.keys.optional_size("vocab_size")?,
            ),
            (tokens.to_owned(), listed),
        ];
        for (key, count) in counts {
            if let Some(count) = count.filter(|count| *count != rows) {
                let reason = format!("counts {count} tokens, but tensor {name} has {rows} rows");
                return Err(ImportError::value(key, reason));
            }
        }
        Ok(rows)
    }

    /// Where layers normalise; a file may say that its blocks are parallel, and must then agree with its tensors.
    fn norm_places(&self) -> Result<NormPlacement, ImportError> {
        let row = &self.architecture;
        if !row.parallel_without_ffn_norm {
            return Ok(row.norm_places);
        }
        let tensor = "blk.0.ffn_norm.weight";
        let parallel = self.source.file.tensor(tensor).is_none();
        let name = self.keys.name("use_parallel_residual");
        match self.keys.metadata.bool(&name)? {
            Some(true) if !parallel => {
                let reason = format!("is true, but the file has tensor {tensor}");
                Err(ImportError::value(name, reason))
            }
            Some(false) if parallel => Err(ImportError::missing_tensor(tensor)),
            _ if parallel => Ok(NormPlacement::Parallel),
            _ => Ok(row.norm_places),
        }
    }

    /// Factor on logits.
    fn logit_scale(&self) -> Result<Option<f32>, ImportError> {
        let scale = self.keys.positive_or_zero("logit_scale")?;
        Ok(match self.architecture.logit_scale {
            LogitScale::Factor => scale,
            LogitScale::Divisor => scale.map(|scale| 1.0 / scale),
        })
    }

    fn norm(&self) -> Result<Norm, ImportError> {
        let kind = self.architecture.norm;
        let key = match kind {
            NormKind::Rms => "attention.layer_norm_rms_epsilon",
            NormKind::Layer | NormKind::LayerUnbiased => "attention.layer_norm_epsilon",
        };
        let eps = match self.keys.positive(key)? {
            None if kind == NormKind::Rms => self.keys.positive("attention.layer_norm_epsilon")?,
            eps => eps,
        };
        let eps = eps.ok_or_else(|| GgufError::missing(&self.keys.name(key)))?;
        Ok(Norm { kind, eps })
    }

    pub(super) fn attention(
        &self,
        layers: usize,
        hidden_size: usize,
        is_recurrent: impl Fn(usize) -> bool,
    ) -> Result<Vec<Option<AttentionSpec>>, ImportError> {
        let (row, keys) = (&self.architecture, &self.keys);
        let blocks = self.block_count()?;
        let count = |key: &str| match row.recurrent {
            Some(_) => keys.layer_counts(key, blocks),
            None => keys.layer_sizes(key, blocks),
        };
        let heads = count("attention.head_count")?;
        let key = keys.name("attention.head_count");
        let heads = heads.ok_or_else(|| GgufError::missing(&key))?;
        let kv_heads = count("attention.head_count_kv")?;
        let kv_heads = kv_heads.unwrap_or_else(|| heads.clone());
        let key_length = keys.optional_size("attention.key_length")?;
        let value_length = keys.optional_size("attention.value_length")?;
        let windowed_key_length = keys.optional_size("attention.key_length_swa")?;
        let windowed_value_length = keys.optional_size("attention.value_length_swa")?;
        let scale = keys.positive_or_zero("attention.scale")?;
        let scale = scale.or(row.attention_scale);
        let (softcap, _) = row.softcaps.unzip();
        let softcap = self.softcap("attn_logit_softcapping", softcap)?;

        let latent = self.latent()?;

        let mut result = Vec::with_capacity(layers);
        let each = heads.into_iter().zip(kv_heads).zip(self.windows(layers)?);
        for (i, ((heads, kv_heads), window)) in each.enumerate() {
            if is_recurrent(i) {
                result.push(None);
                continue;
            }
            if heads == 0 || kv_heads == 0 {
                let reason = format!("is {kv_heads} of {heads}, and the layer attends");
                let key = keys.name("attention.head_count_kv");
                return Err(layer_value(&key, i, reason));
            }
            if !heads.is_multiple_of(kv_heads) {
                let reason = format!("is {kv_heads}, which does not divide {heads} heads");
                return Err(layer_value(
                    &keys.name("attention.head_count_kv"),
                    i,
                    reason,
                ));
            }
            let own = |length: Option<usize>, windowed: Option<usize>| match window {
                Some(_) => windowed.or(length),
                None => length,
            };
            let key_length = own(key_length, windowed_key_length);
            let value_length = own(value_length, windowed_value_length);
            let share = hidden_size / heads;
            if (key_length.is_none() || value_length.is_none()) && share * heads != hidden_size {
                let reason = format!("is {heads}, which does not divide the width {hidden_size}");
                return Err(layer_value(&keys.name("attention.head_count"), i, reason));
            }
            let key_dim = key_length.unwrap_or(share);
            let scaled_by = match row.hidden_scale_layers == Some(layers) {
                true => share.max(1),
                false => key_dim,
            };
            if let Some((latent, rank)) = latent {
                let key_dim = latent.plain_dim + latent.rotated_dim;
                result.push(Some(AttentionSpec {
                    heads,
                    kv_heads: 1,
                    key_dim: rank + latent.rotated_dim,
                    value_dim: rank,
                    window,
                    scale: (f64::from(self.latent_score_growth()?) / (key_dim as f64).sqrt())
                        as f32,
                    softcap,
                    output_gate: false,
                    latent: Some(latent),
                }));
                continue;
            }
            result.push(Some(AttentionSpec {
                heads,
                kv_heads,
                key_dim,
                value_dim: value_length.unwrap_or(share),
                window,
                scale: scale.unwrap_or_else(|| (1.0 / (scaled_by as f64).sqrt()) as f32),
                softcap,
                output_gate: row.output_gate,
                latent: None,
            }));
        }
        Ok(result)
    }

    /// Where each layer's keys and values come from. The last `attention.shared_kv_layers` layers share those of the last
    /// layer before them with the same window.
    fn kv_sources(
        &self,
        attention: &[Option<AttentionSpec>],
    ) -> Result<Vec<KvSource>, ImportError> {
        if self.architecture.given_kv {
            let windowed =
                |layer: &Option<AttentionSpec>| layer.as_ref().map(|a| a.window.is_some());
            let any = attention.iter().any(|layer| windowed(layer) == Some(true));
            // Caches of layers with a window come first.
            let given = |layer| KvSource::Given(usize::from(any && windowed(layer) == Some(false)));
            return Ok(attention.iter().map(given).collect());
        }
        let key = "attention.shared_kv_layers";
        let shared = self.keys.count(key)?;
        let Some(owners) = attention.len().checked_sub(shared) else {
            let reason = format!("is {shared}, but there are {} layers", attention.len());
            return Err(ImportError::value(self.keys.name(key), reason));
        };
        let source = |(i, layer): (usize, &Option<AttentionSpec>)| {
            let Some(layer) = layer else {
                return Ok(KvSource::Projected);
            };
            if i < owners {
                let is_missing = |name: &str| self.source.file.tensor(name).is_none();
                let keys_only = self.architecture.value_norm
                    && is_missing(&format!("blk.{i}.attn_v.weight"))
                    && is_missing(&format!("blk.{i}.attn_qkv.weight"));
                return Ok(match keys_only {
                    true => KvSource::KeysAsValues,
                    false => KvSource::Projected,
                });
            }
            let alike = |owner: &AttentionSpec| owner.window == layer.window;
            let owner = attention[..owners]
                .iter()
                .rposition(|owner| owner.as_ref().is_some_and(alike));
            owner.map(KvSource::Layer).ok_or_else(|| {
                let reason = "shares keys and values, but no layer before it has its window";
                layer_value(&self.keys.name(key), i, reason.to_owned())
            })
        };
        attention.iter().enumerate().map(source).collect()
    }

    /// Attention window of each layer.
    fn windows(&self, layers: usize) -> Result<Vec<Option<u32>>, ImportError> {
        let name = self.keys.name("attention.sliding_window");
        let window = self.keys.metadata.u32(&name)?.or(self.architecture.window);
        let Some(window) = window.filter(|window| *window > 0) else {
            return Ok(vec![None; layers]);
        };
        if self.architecture.context != ContextMode::Cached {
            // A bidirectional window is not supported.
            return Err(ImportError::unsupported(format!("{name} of an encoder")));
        }
        let pattern = self.keys.name("attention.sliding_window_pattern");
        if let Some(Value::Array(_)) = self.keys.metadata.get(&pattern)
            && let Some(local) = self.keys.metadata.bools(&pattern)?
        {
            if local.len() != layers {
                let reason = format!("has {} entries for {layers} layers", local.len());
                return Err(ImportError::value(pattern, reason));
            }
            return Ok(local.iter().map(|local| local.then_some(window)).collect());
        }
        let period = self.keys.metadata.usize(&pattern)?;
        let period = period.unwrap_or(self.architecture.window_period);
        let local = |i: usize| !(i + 1).is_multiple_of(period);
        Ok((0..layers).map(|i| local(i).then_some(window)).collect())
    }

    /// The distinct rotary embeddings and, for each layer, the index of its own.
    fn ropes(
        &self,
        attention: &[Option<AttentionSpec>],
        trained_context: usize,
        context: usize,
    ) -> Result<(Vec<RopeSpec>, Vec<Option<usize>>), ImportError> {
        let finetuned = self.keys.name("rope.scaling.finetuned");
        let untrained = self.architecture.rope_layers == RopeLayers::Finetuned
            && self.keys.metadata.bool(&finetuned)? == Some(false);
        let any = attention.iter().flatten().next();
        let rope = self.architecture.rope;
        let Some(layout) = rope.filter(|_| !untrained && any.is_some()) else {
            return Ok((Vec::new(), vec![None; attention.len()]));
        };
        // Layers with a window may have heads of another size.
        let [global, local] = [false, true].map(|windowed| {
            let mut dims = attention
                .iter()
                .flatten()
                .filter(|a| a.window.is_some() == windowed)
                .map(|a| a.key_dim);
            let first = dims.next();
            (first, dims.all(|dim| Some(dim) == first))
        });
        if !global.1 || !local.1 {
            return Err(ImportError::unsupported(
                "a rotary embedding over heads of different sizes",
            ));
        }
        let key_dim = global.0.or(local.0).unwrap_or(0);
        let local_dim = local.0.unwrap_or(key_dim);
        let name = "rope.dimension_count";
        let dim = self.keys.optional_size(name)?.unwrap_or(key_dim);
        if dim > key_dim || !dim.is_multiple_of(2) {
            let reason = format!("is {dim}, must be even and at most the key length {key_dim}");
            return Err(ImportError::value(self.keys.name(name), reason));
        }
        let sections = self.keys.name("rope.dimension_sections");
        if let Some(sizes) = self.keys.metadata.usizes(&sections)? {
            let pairs = sizes.iter().fold(0, |sum: usize, n| sum.saturating_add(*n));
            if pairs != dim / 2 {
                let reason = format!("has {pairs} pairs, must have {} in all", dim / 2);
                return Err(ImportError::value(sections, reason));
            }
        }
        let base = self.keys.positive("rope.freq_base")?.unwrap_or(10000.0);
        let (scaling, attention_factor) = self.scaling(dim, trained_context, context)?;
        let mut ropes = vec![RopeSpec {
            layout,
            dim,
            base,
            scaling,
            attention_factor,
        }];
        let local_base = self.keys.positive("rope.freq_base_swa")?;
        let local_base = local_base.or(self.architecture.window_rope_base);
        let distinct = self.architecture.window_rope_unscaled || local_dim != key_dim;
        let local_base = local_base.or(distinct.then_some(base));
        let Some(base) = local_base else {
            return Ok((ropes, self.rope_layers(attention, |_| 0)));
        };
        let name = "rope.dimension_count_swa";
        let same = if local_dim == key_dim { dim } else { local_dim };
        let local_rotated = self.keys.optional_size(name)?.unwrap_or(same);
        if local_rotated > local_dim || !local_rotated.is_multiple_of(2) {
            let reason =
                format!("is {local_rotated}, must be even and at most the key length {local_dim}");
            return Err(ImportError::value(self.keys.name(name), reason));
        }
        // Windowed layers never attend beyond their window, so their positions need no context scaling.
        let local = RopeSpec {
            layout,
            dim: local_rotated,
            base,
            scaling: RopeScaling::None,
            attention_factor: 1.0,
        };
        if !attention.iter().flatten().any(|a| a.window.is_some()) || local == ropes[0] {
            return Ok((ropes, self.rope_layers(attention, |_| 0)));
        }
        ropes.push(local);
        let own = |a: &AttentionSpec| usize::from(a.window.is_some());
        Ok((ropes, self.rope_layers(attention, own)))
    }

    /// The rotary embedding of each layer that rotates, as `own` names it.
    fn rope_layers(
        &self,
        attention: &[Option<AttentionSpec>],
        own: impl Fn(&AttentionSpec) -> usize,
    ) -> Vec<Option<usize>> {
        let mut all = attention.iter().flatten();
        let windows = all.any(|layer| layer.window.is_some());
        let rotates = |i: usize, layer: &AttentionSpec| match self.architecture.rope_layers {
            RopeLayers::All | RopeLayers::Finetuned => true,
            RopeLayers::Windowed => !windows || layer.window.is_some(),
            RopeLayers::AllBut(period) => !(i + 1).is_multiple_of(period),
        };
        let each = attention.iter().enumerate();
        each.map(|(i, layer)| {
            let layer = layer.as_ref()?;
            rotates(i, layer).then(|| own(layer))
        })
        .collect()
    }

    /// RoPE scaling of the file, and the factor on the table.
    fn scaling(
        &self,
        dim: usize,
        trained_context: usize,
        context: usize,
    ) -> Result<(RopeScaling, f32), ImportError> {
        let keys = &self.keys;
        let divided = self.factors("rope_freqs.weight", dim)?;
        let long = self.factors("rope_factors_long.weight", dim)?;
        let short = self.factors("rope_factors_short.weight", dim)?;
        let attention_factor = keys.positive("rope.scaling.attn_factor")?;
        let kind = keys.str("rope.scaling.type")?.unwrap_or("none");
        let original = || keys.size("rope.scaling.original_context_length");

        let scaling = match (kind, divided, long, short) {
            ("none", None, None, None) => match keys.positive("rope.scale_linear")? {
                Some(factor) => RopeScaling::Linear { factor },
                None => RopeScaling::None,
            },
            ("none", Some(factors), None, None) => RopeScaling::Divided { factors },
            ("none" | "longrope" | "su", None, Some(long), Some(short)) => {
                let original = original()?;
                let factor = attention_factor
                    .unwrap_or_else(|| longrope_magnitude(trained_context, original));
                let factors = if context > original { long } else { short };
                return Ok((RopeScaling::Stretched { factors }, factor));
            }
            ("linear", None, None, None) => RopeScaling::Linear {
                factor: self.scaling_factor()?,
            },
            ("yarn", None, None, None) => {
                let yarn = self.yarn(original()?)?;
                // Scores grow in the table's place.
                let factor = match self.yarn_log_multiplier()? {
                    Some(_) => (f64::from(attention_factor.unwrap_or(1.0)) / yarn.growth()) as f32,
                    None => attention_factor.unwrap_or(1.0),
                };
                return Ok((yarn, factor));
            }
            (kind, ..) => {
                let name = keys.name("rope.scaling.type");
                return Err(ImportError::unsupported(format!(
                    "{name} {kind:?} with this file's frequency factors"
                )));
            }
        };
        Ok((scaling, attention_factor.unwrap_or(1.0)))
    }

    fn yarn(&self, original_context: usize) -> Result<RopeScaling, ImportError> {
        let keys = &self.keys;
        // Other values belong to architectures that also scale their scores.
        let log = "rope.scaling.yarn_log_multiplier";
        let fixed = [
            (log, 0.0),
            ("rope.scaling.yarn_ext_factor", 1.0),
            ("rope.scaling.yarn_attn_factor", 1.0),
        ];
        for (key, only) in fixed {
            if key == log && self.architecture.latent {
                continue;
            }
            let name = keys.name(key);
            if let Some(value) = keys.metadata.f32(&name)?.filter(|value| *value != only) {
                return Err(ImportError::unsupported(format!("{name} = {value}")));
            }
        }
        let fast = keys.positive("rope.scaling.yarn_beta_fast")?;
        let slow = keys.positive("rope.scaling.yarn_beta_slow")?;
        Ok(RopeScaling::Yarn {
            factor: self.scaling_factor()?,
            original_context,
            beta_fast: fast.unwrap_or(32.0),
            beta_slow: slow.unwrap_or(1.0),
            whole_pairs: self.architecture.yarn_whole_pairs,
        })
    }

    /// How many tenths of the logarithm of YaRN's factor the scores of latent attention grow by, twice.
    fn yarn_log_multiplier(&self) -> Result<Option<f32>, ImportError> {
        match self.architecture.latent {
            true => self
                .keys
                .positive_or_zero("rope.scaling.yarn_log_multiplier"),
            false => Ok(None),
        }
    }

    /// YaRN's factor on the scores of latent attention.
    fn latent_score_growth(&self) -> Result<f32, ImportError> {
        let yarn = self.keys.str("rope.scaling.type")? == Some("yarn");
        let Some(multiplier) = self.yarn_log_multiplier()?.filter(|_| yarn) else {
            return Ok(1.0);
        };
        // Files have a tenth of the model's number, which is the factor on a tenth of the logarithm.
        let growth = 1.0 + multiplier * self.scaling_factor()?.max(1.0).ln();
        Ok(growth * growth)
    }

    fn scaling_factor(&self) -> Result<f32, ImportError> {
        let factor = self.keys.positive("rope.scaling.factor")?;
        Ok(factor.ok_or_else(|| GgufError::missing(&self.keys.name("rope.scaling.factor")))?)
    }

    /// Reads one factor per rotated pair from a tensor.
    fn factors(&self, name: &str, dim: usize) -> Result<Option<Vec<f32>>, ImportError> {
        let Some(weight) = self.source.weight(name) else {
            return Ok(None);
        };
        if weight.shape != [dim / 2] {
            return Err(ImportErrorDetail::Shape {
                name: name.to_owned(),
                found: weight.shape,
                wanted: vec![dim / 2],
            }
            .into());
        }
        let factors = floats(name, &weight)?;
        if let Some(bad) = factors.iter().find(|f| !(f.is_finite() && **f > 0.0)) {
            let reason = format!("holds {bad}, must hold finite numbers above 0");
            return Err(ImportError::value(format!("tensor {name}"), reason));
        }
        Ok(Some(factors))
    }

    pub(super) fn layer_sizes(&self, key: &str, layers: usize) -> Result<Vec<usize>, ImportError> {
        let sizes = self.keys.layer_sizes(key, layers)?;
        Ok(sizes.ok_or_else(|| GgufError::missing(&self.keys.name(key)))?)
    }

    /// An optional soft cap; 0 turns it off.
    fn softcap(&self, key: &str, default: Option<f32>) -> Result<Option<f32>, ImportError> {
        match self.keys.metadata.get(&self.keys.name(key)) {
            None => Ok(default),
            Some(_) => self.keys.positive_or_zero(key),
        }
    }
}

/// The tensor that every MTP head has.
pub(super) fn mtp_tensor(block: usize) -> String {
    format!("blk.{block}.nextn.eh_proj.weight")
}

/// LongRoPE's factor on the table if the file states none.
fn longrope_magnitude(context: usize, original: usize) -> f32 {
    let (context, original) = (context as f64, original as f64);
    if context <= original || original <= 1.0 {
        return 1.0;
    }
    (1.0 + (context / original).ln() / original.ln()).sqrt() as f32
}

fn layer_value(key: &str, layer: usize, reason: String) -> ImportError {
    ImportError::value(format!("{key} of layer {layer}"), reason)
}
