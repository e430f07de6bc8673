//! Lowers exported decoders to the form that runners call.
//!
//! A program that attends over caches with `kvcache::update_and_attend` takes tokens `[1, T]` and positions, and returns
//! the logits of every token. Runners call `forward(tokens [T], position [T], rows [R]) -> logits [R, vocab]` (see
//! [`crate::transformer`]), so the inputs are reshaped and the requested rows are gathered at the end. A second output has
//! the features of every token; it is dropped if they are not wanted.

use std::collections::BTreeMap;

use base::DType;
use graph::ops::GatherRows;
use graph::{Dim, Graph, Symbol};
use kv::LayerConfig;
use kv::metadata::{CacheFacts, MetadataValue};

use super::extra_files::ExtraFiles;
use super::file::Program;
use super::lower::op_traits::origin;
use super::lower::{Pt2Lowering, user_inputs};
use super::schema::{SymInt, TensorMeta};
use crate::cache_configs::caches;
use crate::error::ImportError;
use crate::lowered::{FeatureLayers, ImportOptions, Method};
use crate::model_facts::{DEFAULT_CONTEXT_LENGTH, ModelFacts};

/// The ops that make a program a decoder.
const ATTENTION: [&str; 2] = [
    "kvcache.update_and_attend.default",
    "kvcache.update_and_attend.softcap",
];

/// The inputs of a program that are tokens and positions.
pub(super) struct DecoderSignature<'a> {
    tokens: &'a str,
    position: &'a str,
    /// The file's symbol for the number of tokens.
    symbol: String,
}

/// The signature of a decoder; `None` if the program attends over no cache or has other inputs.
pub(super) fn shape(program: &Program) -> Option<DecoderSignature<'_>> {
    let inputs = user_inputs(program).ok()?;
    let position = position(program)?;
    let others: Vec<&str> = inputs
        .into_iter()
        .filter(|name| *name != position)
        .collect();
    let [tokens] = others[..] else {
        return None;
    };
    let symbol = only_symbol(program.graph.tensor_values.get(tokens)?)?;
    let same = only_symbol(program.graph.tensor_values.get(position)?)?;
    (symbol == same).then_some(DecoderSignature {
        tokens,
        position,
        symbol,
    })
}

/// The input that all attention nodes take their positions from.
pub(super) fn position(program: &Program) -> Option<&str> {
    let nodes = program.graph.nodes.iter();
    let attention = nodes.filter(|node| ATTENTION.contains(&node.op()));
    let mut inputs = attention.map(|node| {
        let position = node.inputs.iter().find(|input| input.name == "position")?;
        let names = position.arg.names();
        Some(origin(program, names.first()?))
    });
    let first = inputs.next()??;
    inputs.all(|name| name == Some(first)).then_some(first)
}

/// The one dynamic size of an integer input whose other sizes are 1.
fn only_symbol(meta: &TensorMeta) -> Option<String> {
    let mut symbol = None;
    for size in &meta.sizes {
        match size {
            SymInt::AsInt(1) => {}
            SymInt::AsExpr(expr) if symbol.is_none() => {
                let size = super::size_expr::SizeExpr::parse(&expr.expr_str).ok()?;
                symbol = Some(size.as_symbol()?.to_owned());
            }
            _ => return None,
        }
    }
    let dtype = super::tensor::kind(meta.dtype).ok()?.dtype();
    symbol.filter(|_| matches!(dtype, DType::I32 | DType::I64))
}

/// Lowers the program as a decoder.
pub(super) fn lower(
    program: &Program,
    shape: &DecoderSignature<'_>,
    extra: &ExtraFiles,
    options: &ImportOptions,
) -> Result<(Graph, ModelFacts), ImportError> {
    let names = BTreeMap::from([(shape.symbol.clone(), "T")]);
    let mut lower = Pt2Lowering::new(program, &names)?;
    lower.refuse_states()?;
    let tokens = lower.symbols[&shape.symbol];
    let rows = lower.builder.symbol("R");
    input(&mut lower, "tokens", shape.tokens, tokens)?;
    let position = input(&mut lower, "position", shape.position, tokens)?;
    lower.position = Some((shape.position.to_owned(), position));
    let wanted = lower.builder.input("rows", DType::I32, [rows]);
    lower.nodes()?;

    let mut outputs = lower.outputs()?;
    let has_features = outputs.len() > 1;
    // Nodes that only features need are dead code without them.
    outputs.truncate(if options.feature_layers.is_empty() {
        1
    } else {
        2
    });
    let wrong = |reason: String| {
        let what = format!("the first output of {}", program.name);
        ImportError::value(what, reason)
    };
    let mut results = vec![];
    for (index, id) in outputs.into_iter().enumerate() {
        let width = lower.builder.ty(id).shape.last().copied();
        let width =
            width.ok_or_else(|| wrong("is a scalar, must have one row per token".into()))?;
        let name = if index == 0 { "logits" } else { "features" };
        lower.begin_node(name);
        let by_token = lower.reshape(id, vec![tokens, width]).map_err(wrong)?;
        let result = match index {
            0 => lower.emit(GatherRows, &[by_token, wanted]).map_err(wrong)?,
            _ => by_token,
        };
        lower.own_name(result, name);
        results.push(result);
    }
    let logits = lower.builder.ty(results[0]).clone();
    let vocab = logits.shape.last().and_then(Dim::as_const);
    let vocab = vocab.ok_or_else(|| wrong("must have a constant vocabulary size".into()))?;
    let graph = lower.into_builder().finish(&results)?;
    let facts = facts(&graph, extra, vocab)?;
    check_features(&options.feature_layers, has_features, extra, &facts)?;
    Ok((graph, facts))
}

/// The key of the archive's metadata that lists the layers whose inputs are the features.
const FEATURE_LAYERS: &str = "kvark.feature_layers";

/// Returns an error unless the program was exported with the features that are wanted.
fn check_features(
    wanted: &FeatureLayers,
    exported: bool,
    extra: &ExtraFiles,
    facts: &ModelFacts,
) -> Result<(), ImportError> {
    if wanted.is_empty() {
        return Ok(());
    }
    if let FeatureLayers::WithKeysAndValues(_) = wanted {
        let what = "a draft head that attends to the model's keys and values, for a .pt2 file";
        return Err(ImportError::unsupported(what));
    }
    let layers = facts.caches.len();
    let wanted = wanted.resolve(layers)?;
    let list: Vec<String> = wanted.iter().map(usize::to_string).collect();
    let advice = format!("export it with --feature-layers {}", list.join(","));
    if !exported {
        let reason = format!("was exported without the features of a draft head: {advice}");
        return Err(ImportError::value("the model", reason));
    }
    // Exporters before the key had the standard layers.
    let stated = match extra.metadata.get(FEATURE_LAYERS) {
        Some(MetadataValue::Ints(list)) => {
            let layer = |id: &i64| usize::try_from(*id).ok();
            list.iter().map(layer).collect()
        }
        Some(MetadataValue::Int(_)) => None,
        None => Some(FeatureLayers::Standard.resolve(layers)?),
    };
    let stated =
        stated.ok_or_else(|| ImportError::value(FEATURE_LAYERS, "is not a list of layers"))?;
    if stated != wanted {
        let reason = format!(
            "was exported with the features of layers {stated:?}, and the draft head needs those of {wanted:?}: {advice}"
        );
        return Err(ImportError::value("the model", reason));
    }
    Ok(())
}

/// Adds the input `name: i32[T]` and defines the program's input `exported` from it, in the exported shape and type.
fn input(
    lower: &mut Pt2Lowering<'_>,
    name: &str,
    exported: &str,
    tokens: Dim,
) -> Result<graph::TensorId, ImportError> {
    let (dtype, shape) = lower.input_type(exported, lower.input_meta(exported)?)?;
    let id = lower.builder.input(name, DType::I32, [tokens]);
    lower.begin_node(name);
    let wrong = |reason| ImportError::value(format!("input {exported:?}"), reason);
    let form = lower.cast(id, dtype).map_err(wrong)?;
    let form = lower.reshape(form, shape).map_err(wrong)?;
    lower.values.insert(exported.to_owned(), form);
    Ok(id)
}

fn wrong_metadata(reason: String) -> ImportError {
    ImportError::value("the archive's cache metadata", reason)
}

/// Reads the facts about the caches from the archive's metadata.
fn stated(extra: &ExtraFiles) -> Result<Option<CacheFacts>, ImportError> {
    kv::metadata::read(&extra.metadata).map_err(|error| wrong_metadata(error.to_string()))
}

/// The caches that a graph uses, with the windows that the metadata states for them.
fn joined(
    seen: Vec<LayerConfig>,
    stated: Option<&CacheFacts>,
) -> Result<Vec<LayerConfig>, ImportError> {
    let Some(stated) = stated else {
        return Ok(seen);
    };
    if stated.layers.len() != seen.len() {
        let (stated, seen) = (stated.layers.len(), seen.len());
        return Err(wrong_metadata(format!(
            "lists {stated} caches, but the graph uses {seen}"
        )));
    }
    let join = |(index, (stated, seen)): (usize, (&LayerConfig, LayerConfig))| {
        if (stated.kv_heads, stated.key_dim) != (seen.kv_heads, seen.key_dim) {
            return Err(wrong_metadata(format!(
                "states {} heads of size {} for cache {index}, but the graph has {} of size {}",
                stated.kv_heads, stated.key_dim, seen.kv_heads, seen.key_dim
            )));
        }
        let window = stated.window;
        Ok(LayerConfig { window, ..seen })
    };
    let pairs = stated.layers.iter().zip(seen).enumerate();
    pairs.map(join).collect()
}

/// Facts from the archive's metadata, checked against the graph.
fn facts(graph: &Graph, extra: &ExtraFiles, vocab_size: usize) -> Result<ModelFacts, ImportError> {
    let stated = stated(extra)?;
    let caches = joined(caches(graph)?, stated.as_ref())?;
    let config: Option<serde_json::Value> = extra
        .config
        .as_ref()
        .and_then(|bytes| serde_json::from_slice(bytes).ok());
    let number = |keys: &[&str]| {
        let found = keys
            .iter()
            .find_map(|key| config.as_ref()?.get(key)?.as_u64());
        found
            .and_then(|n| usize::try_from(n).ok())
            .filter(|n| *n > 0)
    };
    let chunk = stated.as_ref().and_then(|stated| stated.prefill_chunk);
    let context = stated
        .and_then(|stated| stated.max_context)
        .map(|n| n as usize);
    let context = context.or_else(|| number(&["max_position_embeddings", "n_positions"]));
    let most = *graph.symbols()[TOKENS.0 as usize].range.end();
    Ok(ModelFacts {
        pooling: None,
        caches,
        context_length: context.unwrap_or(DEFAULT_CONTEXT_LENGTH),
        context_stated: context.is_some(),
        vocab_size,
        hidden_size: number(&["hidden_size", "n_embd"]).unwrap_or(0),
        max_step: longest_step(most, chunk),
        context_limit: None,
    })
}

/// The number of tokens, which is the first symbol: a decoder's inputs have no other.
const TOKENS: Symbol = Symbol(0);

/// The facts of a model that is not a decoder: only its caches, if it has any.
pub(super) fn bare_facts(
    methods: &[Method],
    extra: &ExtraFiles,
) -> Result<ModelFacts, ImportError> {
    let mut caches = vec![];
    for method in methods {
        let found = crate::cache_configs::caches(&method.graph)?;
        if found.len() > caches.len() {
            caches = found;
        }
    }
    // Metadata of caches that the graphs do not use says nothing about them.
    if !caches.is_empty() {
        caches = joined(caches, stated(extra)?.as_ref())?;
    }
    Ok(ModelFacts {
        pooling: None,
        caches,
        ..ModelFacts::none()
    })
}

/// The longest step of a graph with steps of up to `most` tokens: the prefill chunk that its file states, if that is shorter.
/// `None` without a limit.
fn longest_step(most: usize, prefill_chunk: Option<u32>) -> Option<usize> {
    let chunk = prefill_chunk.map_or(usize::MAX, |chunk| chunk as usize);
    Some(most.min(chunk)).filter(|most| *most < usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::longest_step;

    #[test]
    fn a_stated_prefill_chunk_limits_steps() {
        for (most, chunk, expected) in [
            (usize::MAX, None, None),
            (usize::MAX, Some(128), Some(128)),
            (512, Some(128), Some(128)),
            (32, Some(128), Some(32)),
            (32, None, Some(32)),
        ] {
            assert_eq!(longest_step(most, chunk), expected, "{most}, {chunk:?}");
        }
    }
}
