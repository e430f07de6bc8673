//! The tensors of a folder by the names that GGUF files have for them.

/// A tensor's name inside its layer (or outside the layers) without `weight` and `bias`, with `{}` in the place of a number, and
/// what it is stored as.
pub(super) type Names = &'static [(&'static str, Stored)];

/// The tensors of GGUF that one of a folder holds. Their names are inside a layer, and without `weight` and `bias` where the folder's tensor
/// has this ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// The same tensor; a numbered one is one row or matrix of it.
    Is(&'static str),
    /// The same tensor with its last two dimensions exchanged.
    Transposed(&'static str),
    /// Two tensors, one below the other.
    OneBelowOther([&'static str; 2]),
    /// Two tensors whose elements take turns along the last dimension; with the last two dimensions exchanged if true.
    InTurns([&'static str; 2], bool),
    /// Nothing that the model computes with.
    NotNeeded,
}

use Stored::{Is, NotNeeded};

/// Names in layers that most model types have.
const LAYER: Names = &[
    ("input_layernorm", Is("attn_norm")),
    ("post_attention_layernorm", Is("ffn_norm")),
    ("self_attn.q_proj", Is("attn_q")),
    ("self_attn.k_proj", Is("attn_k")),
    ("self_attn.v_proj", Is("attn_v")),
    ("self_attn.o_proj", Is("attn_output")),
    ("self_attn.q_norm", Is("attn_q_norm")),
    ("self_attn.k_norm", Is("attn_k_norm")),
    ("self_attn.sinks", Is("attn_sinks.weight")),
    ("self_attn.rotary_emb.inv_freq", NotNeeded),
    ("mlp.gate_proj", Is("ffn_gate")),
    ("mlp.up_proj", Is("ffn_up")),
    ("mlp.down_proj", Is("ffn_down")),
    ("mlp.gate", Is("ffn_gate_inp")),
    ("mlp.gate.e_score_correction_bias", Is("exp_probs_b.bias")),
    (
        "mlp.moe_statics.e_score_correction_bias",
        Is("exp_probs_b.bias"),
    ),
    ("mlp.experts.{}.gate_proj", Is("ffn_gate_exps")),
    ("mlp.experts.{}.up_proj", Is("ffn_up_exps")),
    ("mlp.experts.{}.down_proj", Is("ffn_down_exps")),
    ("mlp.experts.gate_up_proj", Is("ffn_gate_up_exps.weight")),
    ("mlp.experts.down_proj", Is("ffn_down_exps.weight")),
    ("mlp.shared_expert.gate_proj", Is("ffn_gate_shexp")),
    ("mlp.shared_expert.up_proj", Is("ffn_up_shexp")),
    ("mlp.shared_expert.down_proj", Is("ffn_down_shexp")),
    ("mlp.shared_experts.gate_proj", Is("ffn_gate_shexp")),
    ("mlp.shared_experts.up_proj", Is("ffn_up_shexp")),
    ("mlp.shared_experts.down_proj", Is("ffn_down_shexp")),
    ("mlp.shared_expert_gate", Is("ffn_gate_inp_shexp")),
    ("block_sparse_moe.gate", Is("ffn_gate_inp")),
    (
        "block_sparse_moe.e_score_correction_bias",
        Is("exp_probs_b.bias"),
    ),
    ("block_sparse_moe.experts.{}.w1", Is("ffn_gate_exps")),
    ("block_sparse_moe.experts.{}.w2", Is("ffn_down_exps")),
    ("block_sparse_moe.experts.{}.w3", Is("ffn_up_exps")),
];

/// Names outside the layers.
const OUTSIDE: Names = &[
    ("embed_tokens", Is("token_embd")),
    ("norm", Is("output_norm")),
    ("lm_head", Is("output")),
    ("wte", Is("token_embd")),
    ("wpe", Is("position_embd")),
    ("ln_f", Is("output_norm")),
    ("embedding_norm", Is("token_embd_norm")),
    ("embeddings.word_embeddings", Is("token_embd")),
    ("embeddings.position_embeddings", Is("position_embd")),
    ("embeddings.token_type_embeddings", Is("token_types")),
    ("embeddings.LayerNorm", Is("token_embd_norm")),
    ("embeddings.position_ids", NotNeeded),
    ("rotary_emb.inv_freq", NotNeeded),
    // Heads of BERT that embeddings do not use.
    ("pooler.dense", NotNeeded),
    ("cls.predictions", NotNeeded),
    ("cls.predictions.decoder", NotNeeded),
    ("cls.predictions.transform.dense", NotNeeded),
    ("cls.predictions.transform.LayerNorm", NotNeeded),
    ("cls.seq_relationship", NotNeeded),
];

/// The text before the names of a text model's tensors.
const MODELS: [&str; 7] = [
    "model.language_model.",
    "language_model.model.",
    "language_model.",
    "model.",
    "transformer.",
    "bert.",
    "",
];
/// The lists of layers.
const LISTS: [&str; 3] = ["layers.", "h.", "encoder.layer."];
/// Parts of a model for images, which the text decoder does not use.
const OTHER_PARTS: [&str; 4] = [
    "vision_tower.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
];

/// Where a tensor of a folder belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The layer, if it is in one.
    pub(super) layer: Option<usize>,
    pub(super) stored: Stored,
    /// `weight` or `bias`, if the name ends so.
    pub(super) kind: Option<&'static str>,
    /// The number inside the name: that of an expert or a head.
    pub(super) number: Option<usize>,
}

impl Place {
    /// The place of a tensor; `own` are the names of the model type. `None` if the name is not known.
    pub(super) fn find(name: &str, own: Names) -> Option<Place> {
        if OTHER_PARTS.iter().any(|part| name.starts_with(part)) {
            return Some(Place {
                layer: None,
                stored: NotNeeded,
                kind: None,
                number: None,
            });
        }
        let rest = MODELS.iter().find_map(|model| name.strip_prefix(model))?;
        let layer = LISTS.iter().find_map(|list| {
            let (number, rest) = rest.strip_prefix(list)?.split_once('.')?;
            Some((number.parse().ok()?, rest))
        });
        let (layer, inner) = layer.map_or((None, rest), |(layer, inner)| (Some(layer), inner));
        let (number, inner) = numbered(inner);
        let table = match layer {
            Some(_) => [own, LAYER],
            None => [OUTSIDE, &[]],
        };
        let find = |stem: &str| {
            let mut rows = table.iter().flat_map(|rows| rows.iter());
            rows.find(|(name, _)| *name == stem)
                .map(|(_, stored)| *stored)
        };
        let endings = ["weight", "bias"].into_iter();
        let mut ended = endings.filter_map(|kind| {
            let stem = inner.strip_suffix(kind)?.strip_suffix('.')?;
            Some((stem, Some(kind)))
        });
        let (stem, kind) = ended.next().unwrap_or((&inner, None));
        let stored = find(stem)?;
        Some(Place {
            layer,
            stored,
            kind,
            number,
        })
    }

    /// The full name in GGUF of one of the tensors.
    pub(super) fn name(&self, stored: &str) -> String {
        let layer = self.layer.map(|layer| format!("blk.{layer}."));
        let kind = self.kind.filter(|_| !is_whole(stored));
        let kind = kind.map(|kind| format!(".{kind}"));
        [
            layer.as_deref().unwrap_or(""),
            stored,
            kind.as_deref().unwrap_or(""),
        ]
        .concat()
    }
}

/// Whether a name of GGUF has its ending already.
fn is_whole(name: &str) -> bool {
    name.ends_with(".weight") || name.ends_with(".bias")
}

/// The number in a name, and the name with `{}` in its place.
fn numbered(name: &str) -> (Option<usize>, String) {
    let mut number = None;
    let parts = name.split('.').map(|part| match part.parse() {
        Ok(found) if number.is_none() => {
            number = Some(found);
            "{}"
        }
        _ => part,
    });
    let name = parts.collect::<Vec<&str>>().join(".");
    (number, name)
}

/// The name that a folder has for a tensor of GGUF; `prefixes` stand before names in layers (in the place of `{}` is their number) and
/// before the others. `None` if no row has it.
pub(super) fn stored_name(name: &str, own: Names, prefixes: [&str; 2]) -> Option<String> {
    let [of_layer, of_model] = prefixes;
    let in_layer = name
        .strip_prefix("blk.")
        .and_then(|rest| rest.split_once('.'));
    let (inner, tables) = match in_layer {
        Some((_, inner)) => (inner, [own, LAYER]),
        None => (name, [OUTSIDE, &[]]),
    };
    let (stem, kind) = inner.rsplit_once('.').unwrap_or((inner, ""));
    let holds = |stored: &Stored| {
        let is = |one: &str| one == stem || one == inner;
        match stored {
            Is(one) | Stored::Transposed(one) => is(one),
            Stored::OneBelowOther(two) | Stored::InTurns(two, _) => two.iter().any(|one| is(one)),
            NotNeeded => false,
        }
    };
    let mut rows = tables.iter().flat_map(|rows| rows.iter());
    let (found, stored) = rows.find(|(_, stored)| holds(stored))?;
    let ends = !matches!(stored, Is(one) if is_whole(one)) && !kind.is_empty();
    let ending = if ends {
        format!(".{kind}")
    } else {
        String::new()
    };
    let found = found.replace("{}", "0");
    Some(match in_layer {
        Some((layer, _)) => format!("{}{found}{ending}", of_layer.replace("{}", layer)),
        None if found == "lm_head" => format!("{found}{ending}"),
        None => format!("{of_model}{found}{ending}"),
    })
}

/// The text before a tensor's name in its layer, with `{}` in the place of the layer's number; `None` outside the layers.
pub(super) fn layer_prefix(name: &str) -> Option<String> {
    let model = MODELS.iter().find(|model| name.starts_with(**model))?;
    let rest = &name[model.len()..];
    let list = LISTS.iter().find(|list| rest.starts_with(**list))?;
    Some(format!("{model}{list}{{}}."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_wherever_the_model_is() {
        let table = [
            (
                "model.layers.3.self_attn.q_proj.weight",
                "blk.3.attn_q.weight",
            ),
            (
                "model.language_model.layers.0.self_attn.k_proj.bias",
                "blk.0.attn_k.bias",
            ),
            (
                "layers.1.mlp.experts.17.up_proj.weight",
                "blk.1.ffn_up_exps.weight",
            ),
            ("model.layers.0.self_attn.sinks", "blk.0.attn_sinks.weight"),
            ("bert.embeddings.LayerNorm.bias", "token_embd_norm.bias"),
            ("lm_head.weight", "output.weight"),
            ("wte.weight", "token_embd.weight"),
        ];
        for (stored, gguf) in table {
            let place = Place::find(stored, &[]).unwrap();
            let Is(name) = place.stored else {
                panic!("{stored}")
            };
            assert_eq!(place.name(name), gguf);
        }
        let expert = Place::find("model.layers.0.mlp.experts.5.up_proj.weight", &[]);
        assert_eq!(expert.unwrap().number, Some(5));
        for unknown in [
            "model.layers.x.mlp.up_proj.weight",
            "score.weight",
            "model.layers.0.novel.weight",
        ] {
            assert_eq!(Place::find(unknown, &[]), None, "{unknown}");
        }
    }

    #[test]
    fn a_name_of_gguf_leads_back() {
        let prefixes = ["model.layers.{}.", "model."];
        let table = [
            (
                "blk.7.ffn_down.weight",
                "model.layers.7.mlp.down_proj.weight",
            ),
            (
                "blk.0.ffn_up_exps.weight",
                "model.layers.0.mlp.experts.0.up_proj.weight",
            ),
            ("token_embd.weight", "model.embed_tokens.weight"),
            ("output.weight", "lm_head.weight"),
        ];
        for (gguf, stored) in table {
            assert_eq!(stored_name(gguf, &[], prefixes).as_deref(), Some(stored));
        }
        let own: Names = &[("ln_1", Is("attn_norm"))];
        let found = stored_name("blk.0.attn_norm.bias", own, ["h.{}.", ""]);
        assert_eq!(found.as_deref(), Some("h.0.ln_1.bias"));
    }
}
