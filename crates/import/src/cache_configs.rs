//! KV cache sizes derived from a graph's `update_and_attend` nodes.

use std::collections::BTreeMap;

use graph::Graph;
use graph::ops::Op;
use kv::LayerConfig;

use crate::error::ImportError;

/// Returns one cache configuration per cache id that the graph uses.
pub(crate) fn caches(graph: &Graph) -> Result<Vec<LayerConfig>, ImportError> {
    let mut caches: BTreeMap<u32, LayerConfig> = BTreeMap::new();
    for node in graph.nodes() {
        let Op::UpdateAndAttend(op) = &node.op else {
            continue;
        };
        let wrong = |reason: String| {
            ImportError::value(format!("cache {} of {}", op.cache_id, graph.name()), reason)
        };
        let dims = |operand: usize| {
            let shape = &graph.tensor(node.inputs[operand]).ty.shape;
            Some((shape.get(1)?.as_const()?, shape.get(2)?.as_const()?))
        };
        let (Some((kv_heads, key_dim)), Some((_, value_dim))) = (dims(1), dims(2)) else {
            return Err(wrong("must have constant head counts and sizes".into()));
        };
        let layer = LayerConfig {
            kv_heads,
            key_dim,
            value_dim,
            window: None,
        };
        let before = caches.insert(op.cache_id, layer);
        if before.is_some_and(|before| before != layer) {
            return Err(wrong("is used with two sizes".into()));
        }
    }
    let last = caches.keys().next_back().copied();
    if let Some(missing) = (0..last.unwrap_or(0)).find(|id| !caches.contains_key(id)) {
        let what = format!("cache {missing} of {}", graph.name());
        return Err(ImportError::value(
            what,
            "is used by no node, but a later one is",
        ));
    }
    Ok(caches.into_values().collect())
}
