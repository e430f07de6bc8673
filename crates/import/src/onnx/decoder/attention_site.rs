//! Finds every group of nodes that attends over a cache, as a fused op or decomposed.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::cache_inputs::CacheInputs;
use crate::error::ImportErrorDetail;
use crate::onnx::file::{Node, Onnx};
use crate::onnx::schema::AttributeValue;

/// Keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheSide {
    Key,
    Value,
}

/// A tensor that holds a cache after the step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Present<'a> {
    pub(super) cache: usize,
    side: CacheSide,
    /// The rows that the step adds.
    fresh: &'a str,
}

impl Present<'_> {
    pub(super) fn side(&self) -> CacheSide {
        self.side
    }
}

/// Attention over a cache.
#[derive(Clone, Debug)]
pub(in crate::onnx) struct AttentionSite<'a> {
    /// The node that gives the result, and the result's name.
    pub(in crate::onnx) node: usize,
    pub(in crate::onnx) result: &'a str,
    /// Which cache.
    pub(in crate::onnx) cache: usize,
    /// Queries, and the step's own keys and values.
    pub(in crate::onnx) operands: AttentionOperands<'a>,
    /// Query heads and heads of keys and values, where an attribute says so.
    pub(in crate::onnx) heads: Option<(usize, usize)>,
    /// Score scale; `None` for 1/√head_dim.
    pub(in crate::onnx) scale: Option<f32>,
    pub(in crate::onnx) softcap: Option<f32>,
    pub(in crate::onnx) rotary: Option<Rotary<'a>>,
    pub(super) mask: MaskSource<'a>,
    /// Keys and values that are read through a view of the cache.
    pub(super) views: Vec<CacheView<'a>>,
}

impl<'a> AttentionSite<'a> {
    /// Whether the attention is decomposed: a softmax between two products.
    pub(super) fn is_decomposed(&self) -> bool {
        matches!(self.mask, MaskSource::Scores { .. })
    }
}

#[derive(Clone, Copy, Debug)]
pub(in crate::onnx) enum AttentionOperands<'a> {
    Separate {
        q: &'a str,
        k: &'a str,
        v: &'a str,
    },
    /// Concatenated along the last axis.
    Packed(&'a str),
}

/// Tables that queries and keys are rotated with.
#[derive(Clone, Copy, Debug)]
pub(in crate::onnx) struct Rotary<'a> {
    pub(in crate::onnx) cos: &'a str,
    pub(in crate::onnx) sin: &'a str,
    pub(in crate::onnx) interleaved: bool,
}

/// What determines the keys that a query sees.
#[derive(Clone, Copy, Debug)]
pub(super) enum MaskSource<'a> {
    /// An operand, and attributes.
    Operand {
        name: Option<&'a str>,
        causal: bool,
        /// Keys before the query's own that it sees.
        left: Option<usize>,
    },
    /// Computation on the scores between the product and the softmax.
    Scores { from: &'a str, to: &'a str },
    /// The lengths that GroupQueryAttention takes, and how many keys a query sees.
    Lengths {
        last: &'a str,
        total: &'a str,
        /// Where its rotation takes positions from, if not from the lengths.
        positions: Option<&'a str>,
        window: Option<usize>,
    },
}

/// A view of a cache's contents that attention reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheView<'a> {
    pub(super) operand: &'a str,
    pub(super) present: &'a str,
    pub(super) side: CacheSide,
    /// Whether the view is the right operand of the score product, with rows as the last axis.
    pub(super) transposed: bool,
}

/// Finds all attention over the given caches.
pub(super) fn sites<'a>(
    file: &'a Onnx,
    caches: &'a [CacheInputs],
) -> Result<(Vec<AttentionSite<'a>>, HashMap<&'a str, Present<'a>>), ImportErrorDetail> {
    let mut model = SiteFinder::new(file, caches);
    for (index, node) in file.nodes.iter().enumerate() {
        let found = model.update(node).and_then(|()| model.site(index, node));
        let site = found.map_err(|reason| ImportErrorDetail::Op {
            node: node.label.clone(),
            op: node.op.clone(),
            reason,
        })?;
        model.sites.extend(site);
    }
    Ok((model.sites, model.presents))
}

struct SiteFinder<'a> {
    file: &'a Onnx,
    /// The inputs that are caches.
    inputs: BTreeMap<&'a str, (usize, CacheSide)>,
    /// The node that gives each tensor.
    makers: HashMap<&'a str, usize>,
    presents: HashMap<&'a str, Present<'a>>,
    sites: Vec<AttentionSite<'a>>,
}

impl<'a> SiteFinder<'a> {
    fn new(file: &'a Onnx, caches: &'a [CacheInputs]) -> SiteFinder<'a> {
        let mut inputs = BTreeMap::new();
        for (index, cache) in caches.iter().enumerate() {
            inputs.insert(&cache.key[..], (index, CacheSide::Key));
            inputs.insert(&cache.value[..], (index, CacheSide::Value));
        }
        let mut makers = HashMap::new();
        for (index, node) in file.nodes.iter().enumerate() {
            makers.extend(node.outputs.iter().map(|name| (&name[..], index)));
        }
        SiteFinder {
            file,
            inputs,
            makers,
            presents: HashMap::new(),
            sites: vec![],
        }
    }

    /// Records the tensor that holds a cache after a node has updated it.
    fn update(&mut self, node: &'a Node) -> Result<(), String> {
        let (past, fresh, results): (&[usize], &[usize], &[usize]) = match &node.op[..] {
            "TensorScatter" => (&[0], &[1], &[0]),
            "Concat" if node.inputs.len() == 2 => (&[0], &[1], &[0]),
            "Attention" => (&[4, 5], &[1, 2], &[1, 2]),
            _ => return Ok(()),
        };
        for ((past, fresh), result) in past.iter().zip(fresh).zip(results) {
            let cache = node.operand(*past).and_then(|past| self.inputs.get(past));
            let (Some(&(cache, side)), Some(fresh)) = (cache, node.operand(*fresh)) else {
                continue;
            };
            if node.op == "TensorScatter" && node.text("mode").is_some_and(|mode| mode != "linear")
            {
                return Err("has a TensorScatter mode other than \"linear\", which is not supported for a cache".into());
            }
            if node.op == "Concat" && !matches!(node.int("axis"), Some(2 | -2)) {
                return Err("appends to a cache along an axis that is not its rows".into());
            }
            if let Some(name) = node.outputs.get(*result).filter(|name| !name.is_empty()) {
                self.presents.insert(name, Present { cache, side, fresh });
            }
        }
        Ok(())
    }

    fn site(&self, index: usize, node: &'a Node) -> Result<Option<AttentionSite<'a>>, String> {
        match &node.op[..] {
            "Attention" => self.attention(index, node),
            "com.microsoft::GroupQueryAttention" => self.grouped(index, node),
            "Softmax" => self.decomposed(node),
            _ => Ok(None),
        }
    }

    /// ONNX's own op.
    fn attention(&self, index: usize, node: &'a Node) -> Result<Option<AttentionSite<'a>>, String> {
        let operands = (node.operand(0), node.operand(1), node.operand(2));
        let (Some(q), Some(k), Some(v)) = operands else {
            return Ok(None);
        };
        let past = node.operand(4).and_then(|past| self.inputs.get(past));
        let mut views = vec![];
        let (cache, k, v) = match past {
            Some((cache, _)) => (*cache, k, v),
            None => {
                let Some((key, value)) = self.origin(k).zip(self.origin(v)) else {
                    return Ok(None);
                };
                views.extend(self.viewed(k, key, false));
                views.extend(self.viewed(v, value, false));
                self.pair(key, value)?
            }
        };
        let count = |name: &str| node.int(name).and_then(|n| usize::try_from(n).ok());
        Ok(Some(AttentionSite {
            node: index,
            result: node.outputs.first().ok_or("has no result")?,
            cache,
            operands: AttentionOperands::Separate { q, k, v },
            heads: count("q_num_heads").zip(count("kv_num_heads")),
            scale: node.float("scale"),
            softcap: node.float("softcap").filter(|cap| *cap > 0.0),
            rotary: None,
            mask: MaskSource::Operand {
                name: node.operand(3),
                causal: node.int("is_causal") == Some(1),
                left: count("left_window_size"),
            },
            views,
        }))
    }

    /// ONNX Runtime's op.
    fn grouped(&self, index: usize, node: &'a Node) -> Result<Option<AttentionSite<'a>>, String> {
        let Some((cache, _)) = node.operand(3).and_then(|past| self.inputs.get(past)) else {
            return Ok(None);
        };
        let q = node.operand(0).ok_or("has no queries")?;
        let operands = match node.operand(1).zip(node.operand(2)) {
            Some((k, v)) => AttentionOperands::Separate { q, k, v },
            None => AttentionOperands::Packed(q),
        };
        let count = |name: &str| node.int(name).and_then(|n| usize::try_from(n).ok());
        let heads = count("num_heads").zip(count("kv_num_heads"));
        if node.operand(10).is_some()
            || node.operand(11).is_some()
            || node.int("smooth_softmax") == Some(1)
        {
            return Err("has a bias or sinks, which are not supported over a cache".into());
        }
        let rotary = match (node.int("do_rotary"), node.operand(7).zip(node.operand(8))) {
            (Some(1), Some((cos, sin))) => Some(Rotary {
                cos,
                sin,
                interleaved: node.int("rotary_interleaved") == Some(1),
            }),
            (Some(1), None) => return Err("rotates without tables".into()),
            _ => None,
        };
        let lengths = node.operand(5).zip(node.operand(6));
        let (last, total) = lengths.ok_or("has no lengths")?;
        Ok(Some(AttentionSite {
            node: index,
            result: node.outputs.first().ok_or("has no result")?,
            cache: *cache,
            operands,
            heads: Some(heads.ok_or("does not state its number of heads")?),
            scale: node.float("scale").filter(|scale| *scale != 0.0),
            softcap: node.float("softcap").filter(|cap| *cap > 0.0),
            rotary,
            mask: MaskSource::Lengths {
                last,
                total,
                positions: node.operand(9),
                window: count("local_window_size").filter(|n| *n > 0),
            },
            views: vec![],
        }))
    }

    /// A softmax between two products, the first with the keys and the second with the values of a cache.
    fn decomposed(&self, softmax: &'a Node) -> Result<Option<AttentionSite<'a>>, String> {
        let (Some(to), Some(weights)) = (softmax.operand(0), softmax.outputs.first()) else {
            return Ok(None);
        };
        let Some((scores, key)) = self.scores(to) else {
            return Ok(None);
        };
        let product = self.file.nodes.iter().position(|node| {
            let first = node.operand(0).map(|name| self.unconverted(name));
            node.op == "MatMul" && first == Some(&weights[..])
        });
        let product = product.ok_or("its attention weights are not multiplied with values")?;
        let node = &self.file.nodes[product];
        let operand = node
            .operand(1)
            .ok_or("the product with its attention weights has one operand")?;
        let value = self
            .origin(operand)
            .ok_or("its attention weights are not multiplied with cached values")?;
        let (q, k) = scores
            .operand(0)
            .zip(scores.operand(1))
            .ok_or("has no scores")?;
        let (cache, fresh_key, fresh_value) = self.pair(key, value)?;
        let view = |operand, present, side, transposed| CacheView {
            operand,
            present,
            side,
            transposed,
        };
        Ok(Some(AttentionSite {
            node: product,
            result: node.outputs.first().ok_or("has no result")?,
            cache,
            operands: AttentionOperands::Separate {
                q,
                k: fresh_key,
                v: fresh_value,
            },
            heads: None,
            scale: Some(1.0),
            softcap: None,
            rotary: None,
            mask: MaskSource::Scores {
                from: &scores.outputs[0],
                to,
            },
            views: vec![
                view(k, key, CacheSide::Key, true),
                view(operand, value, CacheSide::Value, false),
            ],
        }))
    }

    fn maker(&self, name: &str) -> Option<&'a Node> {
        Some(&self.file.nodes[*self.makers.get(name)?])
    }

    /// Traces a tensor back through additions, scales and selections to a product with cached keys.
    fn scores(&self, name: &'a str) -> Option<(&'a Node, &'a str)> {
        let mut seen = HashSet::from([name]);
        let mut open = vec![name];
        while let Some(name) = open.pop() {
            let Some(node) = self.maker(name) else {
                continue;
            };
            match &node.op[..] {
                "MatMul" => {
                    let key = node.operand(1).and_then(|key| self.origin(key));
                    if let Some(key) = key.filter(|key| self.presents[key].side == CacheSide::Key) {
                        return Some((node, key));
                    }
                }
                "Add" | "Sub" | "Mul" | "Div" | "Where" | "Cast" | "CastLike" | "Identity"
                | "Reshape" => {
                    let inputs = node.inputs.iter().map(|input| &input[..]);
                    open.extend(inputs.filter(|input| seen.insert(input)));
                }
                _ => {}
            }
        }
        None
    }

    /// Skips casts: the tensor that was converted.
    fn unconverted(&self, mut name: &'a str) -> &'a str {
        while let Some(node) = self.maker(name) {
            match (&node.op[..], node.operand(0)) {
                ("Cast" | "CastLike" | "Identity" | "Dropout", Some(input)) => name = input,
                _ => break,
            }
        }
        name
    }

    /// The updated cache that a tensor is a view of.
    fn origin(&self, mut name: &'a str) -> Option<&'a str> {
        while !self.presents.contains_key(name) {
            let node = self.maker(name)?;
            match &node.op[..] {
                "Transpose" | "Reshape" | "Unsqueeze" | "Squeeze" | "Expand" | "Identity"
                | "Cast" | "Mul" | "Div" => name = node.operand(0)?,
                _ => return None,
            }
        }
        Some(name)
    }

    fn viewed(
        &self,
        operand: &'a str,
        present: &'a str,
        transposed: bool,
    ) -> Option<CacheView<'a>> {
        (operand != present).then_some(CacheView {
            operand,
            present,
            side: self.presents[present].side,
            transposed,
        })
    }

    /// The cache of a key and a value tensor that belong together, and the rows the step adds.
    fn pair(&self, key: &'a str, value: &'a str) -> Result<(usize, &'a str, &'a str), String> {
        let (k, v) = (self.presents[key], self.presents[value]);
        if k.cache != v.cache || (k.side, v.side) != (CacheSide::Key, CacheSide::Value) {
            return Err(format!(
                "attends {key} with {value}, which are not of one cache"
            ));
        }
        Ok((k.cache, k.fresh, v.fresh))
    }
}

impl Node {
    /// Name of an operand; `None` if it is omitted.
    fn operand(&self, index: usize) -> Option<&str> {
        let name = self.inputs.get(index)?;
        Some(&name[..]).filter(|name| !name.is_empty())
    }

    fn attribute(&self, name: &str) -> Option<&AttributeValue> {
        let found = self.attributes.iter().find(|a| a.name == name);
        found.map(|a| &a.value)
    }

    fn int(&self, name: &str) -> Option<i64> {
        match self.attribute(name)? {
            AttributeValue::Int(n) => Some(*n),
            _ => None,
        }
    }

    fn float(&self, name: &str) -> Option<f32> {
        match self.attribute(name)? {
            AttributeValue::Float(x) => Some(*x),
            _ => None,
        }
    }

    fn text(&self, name: &str) -> Option<&str> {
        match self.attribute(name)? {
            AttributeValue::Text(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }
}
