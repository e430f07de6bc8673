//! Checks a spec before a graph is built from it.

use super::{AttentionSpec, KvSource, LayerSpec, Mixer, RopeScaling, ScanSpec, TransformerSpec};
use crate::error::ImportError;

/// Checks the numbers of a spec that the builder indexes with or divides by.
pub(super) fn check(spec: &TransformerSpec) -> Result<(), ImportError> {
    for rope in &spec.ropes {
        let pairs = rope.dim / 2;
        let factors = match &rope.scaling {
            RopeScaling::Divided { factors } | RopeScaling::Stretched { factors } => factors.len(),
            _ => pairs,
        };
        if rope.dim == 0 || !rope.dim.is_multiple_of(2) || factors != pairs {
            let reason = format!(
                "rotates {} elements with {factors} factors; must be even, with one factor a pair",
                rope.dim
            );
            return Err(ImportError::value("the rotary embedding", reason));
        }
    }
    for (i, layer) in spec.layers.iter().enumerate() {
        let what = || format!("layer {i}");
        if layer.rope.is_some_and(|rope| rope >= spec.ropes.len()) {
            return Err(ImportError::value(what(), "has no such rotary embedding"));
        }
        // Leaves headroom for sums of a few products.
        let countable = |n: usize| n <= isize::MAX as usize / 4;
        let fits = |widths: &[Option<usize>]| widths.iter().all(|w| w.is_some_and(countable));
        if !countable(layer.mlp_size) {
            let reason = format!("cannot have a width of {}", layer.mlp_size);
            return Err(ImportError::value(what(), reason));
        }
        match &layer.mixer {
            Mixer::Attention(attention) => {
                let dim = attention.key_dim.max(attention.value_dim);
                let (heads, kv_heads) = (attention.heads, attention.kv_heads);
                if !fits(&[heads.checked_mul(2 * dim), kv_heads.checked_mul(dim)]) {
                    let reason = format!("cannot have {heads} and {kv_heads} heads of {dim}");
                    return Err(ImportError::value(what(), reason));
                }
                if let Some(latent) = attention.latent {
                    let (plain, value) = (latent.plain_dim, latent.head_value_dim);
                    let own = plain.checked_add(latent.rotated_dim);
                    let rows = own.and_then(|own| own.checked_add(value));
                    let rows = rows.and_then(|rows| rows.checked_mul(heads));
                    let matrices = rows.and_then(|rows| rows.checked_mul(attention.key_dim));
                    let whole = latent.rotated_dim + attention.value_dim == attention.key_dim;
                    if !fits(&[matrices]) || !whole || kv_heads != 1 || attention.output_gate {
                        let reason =
                            format!("cannot attend to latent rows of this size: {latent:?}");
                        return Err(ImportError::value(what(), reason));
                    }
                }
            }
            Mixer::ShortConv { taps } => {
                if *taps < 2 || !fits(&[taps.checked_mul(3 * spec.hidden_size)]) {
                    let reason = format!("cannot have a convolution of {taps} taps");
                    return Err(ImportError::value(what(), reason));
                }
            }
            Mixer::Scan(scan) => {
                let ScanSpec {
                    groups,
                    heads,
                    key_dim,
                    value_dim,
                    taps,
                    ..
                } = *scan;
                let divides = groups > 0 && heads > 0 && heads.is_multiple_of(groups);
                let keys = groups.checked_mul(key_dim).and_then(|n| n.checked_mul(4));
                let values = heads.checked_mul(value_dim);
                let channels = keys.zip(values).and_then(|(k, v)| k.checked_add(v));
                let widths = [
                    channels.and_then(|n| n.checked_mul(taps.max(1))),
                    values.and_then(|n| n.checked_mul(key_dim)),
                ];
                if !divides || key_dim == 0 || value_dim == 0 || taps < 2 || !fits(&widths) {
                    let reason = format!("cannot have a scan of this size: {scan:?}");
                    return Err(ImportError::value(what(), reason));
                }
            }
            Mixer::Nothing => {}
        }
        if layer.attention().is_none() && !spec.decodes() {
            let what = "hidden states of a model with recurrent layers";
            return Err(ImportError::unsupported(what));
        }
        if let Some(experts) = &layer.experts {
            let widths = [experts.size, experts.shared_size.unwrap_or(1)];
            let all = widths.map(|width| experts.count.checked_mul(width.max(spec.hidden_size)));
            if !all.iter().all(|all| all.is_some_and(countable)) {
                let reason = format!("cannot have {} experts of {}", experts.count, experts.size);
                return Err(ImportError::value(what(), reason));
            }
        }
        let Some(attention) = layer.attention() else {
            continue;
        };
        if layer.kv == KvSource::KeysAsValues && attention.key_dim != attention.value_dim {
            let reason = format!(
                "has values of {} for keys of {}, and one projection",
                attention.value_dim, attention.key_dim
            );
            return Err(ImportError::value(what(), reason));
        }
        if let KvSource::Layer(source) = layer.kv {
            let owner = spec.layers[..i].get(source).filter(|l| l.owns_kv());
            let owner = owner.and_then(LayerSpec::attention);
            let sizes = |a: &AttentionSpec| (a.kv_heads, a.key_dim, a.value_dim, a.window);
            if owner.is_none_or(|owner| sizes(owner) != sizes(attention)) {
                let reason = format!("cannot share the keys and values of layer {source}");
                return Err(ImportError::value(what(), reason));
            }
        }
    }
    let width = spec.per_layer_input.unwrap_or(0);
    if width
        .checked_mul(spec.layers.len().max(1))
        .is_none_or(|all| all > i32::MAX as usize)
    {
        let reason = format!("cannot have a width of {width}");
        return Err(ImportError::value("the per-layer input", reason));
    }
    Ok(())
}
