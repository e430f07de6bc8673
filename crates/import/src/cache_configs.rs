//! KV cache sizes derived from a graph's nodes with memory.

use std::collections::BTreeMap;

use graph::Graph;
use kv::LayerConfig;

use crate::error::ImportError;

/// Returns one cache configuration per cache id that the graph uses.
pub(crate) fn caches(graph: &Graph) -> Result<Vec<LayerConfig>, ImportError> {
    let mut caches: BTreeMap<u32, LayerConfig> = BTreeMap::new();
    for node in graph.nodes() {
        let operands: Vec<_> = node.inputs.iter().map(|id| &graph.tensor(*id).ty).collect();
        let Some(cache) = node.op.cache(&operands) else {
            continue;
        };
        let wrong = |reason: String| {
            ImportError::value(format!("cache {} of {}", cache.id, graph.name()), reason)
        };
        let Some([kv_heads, key_dim, value_dim]) = cache.dims else {
            return Err(wrong("must have constant head counts and sizes".into()));
        };
        let layer = LayerConfig {
            kv_heads,
            key_dim,
            value_dim,
            window: None,
            sinks: 0,
        };
        let before = caches.insert(cache.id, layer);
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
