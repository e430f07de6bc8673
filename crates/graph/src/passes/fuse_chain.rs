//! Fuses bias and activation into products, what follows convolutions into them, and product, softmax and product into
//! `attention`.

use super::fuse_conv;
use super::rewrite::{GraphView, Patch, PatchBuilder, rewrite};
use crate::graph::{Graph, Node, TensorId};
use crate::ops::{
    Attention, BinaryFunction, Linear, MatMul, Op, Permute, Reshape, Softmax, Unary, UnaryFunction,
    Where,
};
use crate::{Dim, GraphError, Value};

/// A score bias at or below this value hides a key: its softmax weight is zero in f32.
pub(super) const MASKED_SCORE: f32 = -1e4;

pub(super) fn run(graph: &mut Graph) -> Result<bool, GraphError> {
    rewrite(graph, |view, node| match &node.op {
        Op::Binary(op) if op.function == BinaryFunction::Add => with_bias(view, node)
            .or_else(|| fuse_conv::by_channel(view, node, op))
            .or_else(|| fuse_conv::with_residual(view, node)),
        Op::Binary(op) => fuse_conv::by_channel(view, node, op),
        Op::Unary(op) => with_activation(view, node, op.function)
            .or_else(|| fuse_conv::with_activation(view, node, op.function)),
        Op::MatMul(op) => attention(view, node, op),
        Op::Attention(op) => shared_heads(view, node, op),
        _ => None,
    })
}

/// Fuses `product + bias`.
fn with_bias(view: &GraphView<'_>, node: &Node) -> Option<Patch> {
    view.either(node.output, BinaryFunction::Add)
        .find_map(|(product, bias)| {
            let (op, &[x, weight]) = view.defining_op(product)? else {
                return None;
            };
            match op {
                Op::Linear(Linear { activation: None }) | Op::MatMul(_) => {}
                _ => return None,
            }
            let width = *view.shape(node.output).last()?;
            let mut patch = PatchBuilder::new(view, node);
            let bias = match view.shape(bias) {
                [only] if *only == width => bias,
                [ones @ .., last] if *last == width && ones.iter().all(is_one) => {
                    patch.node(Reshape { shape: vec![width] }, &[bias])?
                }
                _ => return None,
            };
            patch.fuse(op.clone(), &[x, weight, bias])
        })
}

/// Fuses `activation(linear)`, unless the activation is part of a gate, which is another fusion.
fn with_activation(view: &GraphView<'_>, node: &Node, function: UnaryFunction) -> Option<Patch> {
    let UnaryFunction::Activation(activation) = function else {
        return None;
    };
    let (Op::Linear(Linear { activation: None }), operands) = view.defining_op(node.inputs[0])?
    else {
        return None;
    };
    let gates = |reader: &Node| view.binary(reader.output, BinaryFunction::Mul).is_some();
    if view.readers(node.output).any(gates) {
        return None;
    }
    let activation = Some(activation);
    PatchBuilder::new(view, node).fuse(Linear { activation }, operands)
}

/// Fuses `softmax(mask(q · kᵀ)) · v` into attention.
fn attention(view: &GraphView<'_>, node: &Node, values: &MatMul) -> Option<Patch> {
    let &[weights, v] = &node.inputs[..] else {
        return None;
    };
    let rank = view.rank(weights);
    let (Op::Softmax(Softmax { axis, log: false }), &[scores]) = view.defining_op(weights)? else {
        return None;
    };
    if *axis != rank - 1 || values.alpha != 1.0 {
        return None;
    }
    let mut patch = PatchBuilder::new(view, node);
    let masked = ScoreModifiers::find(view, scores, &mut patch)?;
    let (Op::MatMul(product), &[q, k]) = view.defining_op(masked.scores)? else {
        return None;
    };
    let turned = |patch: &mut PatchBuilder<'_, '_>, turn: bool, id: TensorId| match turn {
        true => patch.node(Permute::transpose(view.rank(id)), &[id]),
        false => Some(id),
    };
    let k = turned(&mut patch, !product.transpose_b, k)?;
    let v = turned(&mut patch, values.transpose_b, v)?;
    let op = Attention {
        scale: product.alpha * masked.scale,
        causal: false,
        softcap: masked.softcap,
        token_major: false,
    };
    if rank >= 3 {
        let mut inputs = vec![q, k, v];
        inputs.extend(masked.mask);
        return patch.fuse(op, &inputs);
    }
    // A single head without a head axis.
    let headed = |patch: &mut PatchBuilder<'_, '_>, id: TensorId| {
        let mut shape = patch.ty(id).shape.clone();
        shape.insert(0, Dim::from(1));
        patch.node(Reshape { shape }, &[id])
    };
    let mut inputs = vec![
        headed(&mut patch, q)?,
        headed(&mut patch, k)?,
        headed(&mut patch, v)?,
    ];
    inputs.extend(masked.mask);
    let result = patch.node(op, &inputs)?;
    let shape = view.shape(node.output).to_vec();
    patch.fuse(Reshape { shape }, &[result])
}

/// Raw scores of a product with the scale, soft cap and mask applied before the softmax.
struct ScoreModifiers {
    scores: TensorId,
    scale: f32,
    softcap: Option<f32>,
    mask: Option<TensorId>,
}

impl ScoreModifiers {
    fn find(
        view: &GraphView<'_>,
        scores: TensorId,
        patch: &mut PatchBuilder<'_, '_>,
    ) -> Option<ScoreModifiers> {
        let (scores, mask) = ScoreModifiers::mask(view, scores, patch);
        let (softcap, scores) = match view.defining_op(scores)? {
            (Op::SoftCap(op), &[inner]) => (Some(op.cap), inner),
            _ => (None, scores),
        };
        let (scale, scores) = view.scaled(scores).unwrap_or((1.0, scores));
        Some(ScoreModifiers {
            scores,
            scale,
            softcap,
            mask,
        })
    }

    /// Matches masked scores: an added mask, or a `where` between scores and a masking value.
    fn mask(
        view: &GraphView<'_>,
        masked: TensorId,
        patch: &mut PatchBuilder<'_, '_>,
    ) -> (TensorId, Option<TensorId>) {
        let is_score = |id: TensorId| {
            let bare = view.scaled(id).map_or(id, |(_, x)| x);
            matches!(
                view.defining_op(bare),
                Some((Op::MatMul(_) | Op::SoftCap(_), _))
            )
        };
        let added = view
            .either(masked, BinaryFunction::Add)
            .find(|(scores, mask)| {
                is_score(*scores) && view.ty(*scores) == view.ty(masked) && mask != scores
            });
        if let Some((scores, mask)) = added {
            return (scores, Some(mask));
        }
        let hidden = |id: TensorId| view.scalar(id).filter(|x| *x <= MASKED_SCORE);
        let same = |id: TensorId| view.ty(id) == view.ty(masked);
        let Some((Op::Where(_), &[condition, a, b])) = view.defining_op(masked) else {
            return (masked, None);
        };
        let (scores, low, seen) = match (hidden(a), hidden(b)) {
            (None, Some(low)) if same(a) => (a, low, true),
            (Some(low), None) if same(b) => (b, low, false),
            _ => return (masked, None),
        };
        let mask = match (low == f32::NEG_INFINITY, seen) {
            (true, true) => Some(condition),
            (true, false) => {
                let function = UnaryFunction::Not;
                patch.node(Unary { function }, &[condition])
            }
            // A fully masked query then averages all values; only an additive mask preserves that.
            (false, _) => {
                let zero = patch.constant("zero", &Value::f32([], vec![0.0]));
                let choices = if seen { [zero, b] } else { [a, zero] };
                patch.node(Where, &[condition, choices[0], choices[1]])
            }
        };
        (scores, mask)
    }
}

/// Removes a repeat of key and value heads: attention supports grouped query heads.
fn shared_heads(view: &GraphView<'_>, node: &Node, op: &Attention) -> Option<Patch> {
    if op.token_major {
        return None;
    }
    let mut patch = PatchBuilder::new(view, node);
    let mut inputs = node.inputs.clone();
    for id in &mut inputs[1..3] {
        *id = unrepeated(view, &mut patch, *id)?;
    }
    patch.replace(op.clone(), &inputs)
}

/// Source `[.., Hkv, S, D]` of a tensor `[.., H, S, D]` whose heads are consecutive repeats.
fn unrepeated(
    view: &GraphView<'_>,
    patch: &mut PatchBuilder<'_, '_>,
    repeated: TensorId,
) -> Option<TensorId> {
    let heads = view.rank(repeated).checked_sub(3)?;
    match view.defining_op(repeated)? {
        (Op::Reshape(_), &[expanded]) => {
            let (Op::Expand(_), &[single]) = view.defining_op(expanded)? else {
                return None;
            };
            // [.., Hkv, 1, S, D] -> [.., Hkv, G, S, D] -> [.., H, S, D]
            let group = heads + 1;
            let mut grown = view.shape(single).to_vec();
            if grown.len() != heads + 4 || !is_one(&grown[group]) {
                return None;
            }
            grown[group] = *view.shape(expanded).get(group)?;
            let mut joined = grown.clone();
            joined[heads] = grown[heads] * joined.remove(group).as_const()?;
            let fits = view.shape(expanded) == grown && view.shape(repeated) == joined;
            let mut shape = view.shape(single).to_vec();
            shape.remove(group);
            fits.then(|| patch.node(Reshape { shape }, &[single]))?
        }
        (Op::Gather(op), &[x, indices]) if op.axis == heads => {
            let value = view.constant(indices)?;
            let indices: Vec<i64> = match (value.as_i64(), value.as_i32()) {
                (Some(v), _) => v.to_vec(),
                (_, Some(v)) => v.iter().map(|i| i64::from(*i)).collect(),
                _ => return None,
            };
            let count = view.shape(x)[heads].as_const()?;
            let group = indices.len().checked_div(count)?.max(1);
            let in_place = |(i, index): (usize, &i64)| *index == (i / group) as i64;
            let whole = indices.len() == group * count && value.shape.len() == 1;
            (whole && indices.iter().enumerate().all(in_place)).then_some(x)
        }
        _ => None,
    }
}

fn is_one(dim: &Dim) -> bool {
    dim.as_const() == Some(1)
}

#[cfg(test)]
mod tests {
    use super::run;
    use crate::Dim;
    use crate::graph::TensorId;
    use crate::ops::{
        Activation, Attention, CompareFunction, Gather, MatMul, Range, SoftCap, Where,
    };
    use crate::passes::testing::{TestGraphBuilder, after, tokens};
    use crate::{Value, passes::permutes};

    #[test]
    fn products_take_bias_and_activation() {
        let mut s = TestGraphBuilder::new();
        let t = tokens(&mut s);
        let x = s.input("x", [1.into(), t, 4.into()]);
        let b = s.input("b", [1.into(), 4.into(), 3.into()]);
        let (weight, bias) = (s.weight("weight", &[3, 4]), s.weight("bias", &[1, 1, 3]));
        let y = s.op(crate::ops::Linear::default(), &[x, weight]);
        let y = s.add(bias, y);
        let y = s.unary(Activation::Relu, y);
        let z = s.mat_mul(x, b);
        let row = s.weight("row", &[3]);
        let z = s.add(z, row);
        let expect = "\
graph g(x: f32[1, T, 4], b: f32[1, 4, 3])
  n2.reshape: f32[3] = reshape(bias)
  n3: f32[1, T, 3] = linear(x, weight, n2.reshape) {activation: relu}
  n5: f32[1, T, 3] = mat_mul(x, b, row)
  return n3, n5
";
        assert_eq!(after(s.finish(&[y, z]), run), expect);
    }

    #[test]
    fn what_others_read_and_gates_stay() {
        let mut s = TestGraphBuilder::new();
        let x = s.input("x", [2.into(), 4.into()]);
        let weight = s.weight("weight", &[3, 4]);
        let bias = s.weight("bias", &[3]);
        let y = s.op(crate::ops::Linear::default(), &[x, weight]);
        let z = s.add(y, bias);
        let gate = s.op(crate::ops::Linear::default(), &[x, weight, bias]);
        let gate = s.silu(gate);
        let gated = s.mul(gate, z);
        let expect = "\
graph g(x: f32[2, 4])
  n1: f32[2, 3] = linear(x, weight)
  n2: f32[2, 3] = add(n1, bias)
  n3: f32[2, 3] = linear(x, weight, bias)
  n4: f32[2, 3] = unary(n3) {function: silu}
  n5: f32[2, 3] = mul(n4, n2)
  return n1, n5
";
        assert_eq!(after(s.finish(&[y, gated]), run), expect);
    }

    /// Scores of `q` and `k`, both `[2, T, 4]`.
    fn scores(s: &mut TestGraphBuilder) -> (TensorId, TensorId, Dim) {
        let t = tokens(s);
        let q = s.input("q", [2.into(), t, 4.into()]);
        let k = s.input("k", [2.into(), t, 4.into()]);
        let product = MatMul {
            transpose_b: true,
            alpha: 0.5,
        };
        (s.op(product, &[q, k]), k, t)
    }

    #[test]
    fn attention_with_every_mask() {
        // Added, and with a cap on the scores.
        let mut s = TestGraphBuilder::new();
        let (x, v, t) = scores(&mut s);
        let mask = s.input("mask", [1.into(), t, t]);
        let x = s.op(SoftCap { cap: 3.0 }, &[x]);
        let x = s.add(mask, x);
        let x = s.softmax(x);
        let y = s.mat_mul(x, v);
        let expect = "\
graph g(q: f32[2, T, 4], k: f32[2, T, 4], mask: f32[1, T, T])
  n5: f32[2, T, 4] = attention(q, k, k, mask) {scale: 0.5, softcap: 3}
  return n5
";
        assert_eq!(after(s.finish(&[y]), run), expect);

        // The condition selects the scores that are seen, or those that are hidden.
        for (hide, low) in [
            (false, f32::MIN),
            (true, f32::MIN),
            (false, f32::NEG_INFINITY),
        ] {
            let mut s = TestGraphBuilder::new();
            let (x, v, t) = scores(&mut s);
            let index = |s: &mut TestGraphBuilder| {
                let (start, len) = (0.into(), t);
                let dtype = base::DType::I64;
                s.op(
                    Range {
                        start,
                        step: 1,
                        len,
                        dtype,
                    },
                    &[],
                )
            };
            let row = index(&mut s);
            let row = s.reshape(row, [t, 1.into()]);
            let column = index(&mut s);
            let condition = s.compare(CompareFunction::Ge, row, column);
            let low = s.number(low);
            let operands = match hide {
                true => [condition, low, x],
                false => [condition, x, low],
            };
            let x = s.op(Where, &operands);
            let x = s.softmax(x);
            let y = s.mat_mul(x, v);
            let text = after(s.finish(&[y]), run);
            assert!(
                text.contains("attention(") && !text.contains("softmax("),
                "{text}"
            );
        }
    }

    #[test]
    fn a_single_head_gets_an_axis() {
        let mut s = TestGraphBuilder::new();
        let t = tokens(&mut s);
        let x = s.input("x", [t, 4.into()]);
        let product = MatMul {
            transpose_b: true,
            alpha: 1.0,
        };
        let weights = s.op(product, &[x, x]);
        let weights = s.softmax(weights);
        let y = s.mat_mul(weights, x);
        let text = after(s.finish(&[y]), run);
        assert!(
            text.contains("attention(") && !text.contains("softmax("),
            "{text}"
        );
    }

    #[test]
    fn repeated_heads_are_read_by_the_group() {
        let attention = Attention {
            scale: 1.0,
            causal: true,
            softcap: None,
            token_major: false,
        };
        for spelling in 0..3 {
            let mut s = TestGraphBuilder::new();
            let t = tokens(&mut s);
            let q = s.input("q", [1.into(), 4.into(), t, 8.into()]);
            let k = s.input("k", [1.into(), 2.into(), t, 8.into()]);
            let repeated = match spelling {
                0 => {
                    let heads = s.value(&Value::i64([4], vec![0, 0, 1, 1]));
                    s.op(Gather { axis: 1 }, &[k, heads])
                }
                _ => {
                    // A permute between is what moving reshapes up leaves.
                    let grouped = match spelling {
                        1 => s.reshape(k, [1.into(), 2.into(), 1.into(), t, 8.into()]),
                        _ => {
                            let grouped = s.reshape(k, [1.into(), 1.into(), 2.into(), t, 8.into()]);
                            s.permute(grouped, &[0, 2, 1, 3, 4])
                        }
                    };
                    let grouped = s.expand(grouped, [1.into(), 2.into(), 2.into(), t, 8.into()]);
                    s.reshape(grouped, [1.into(), 4.into(), t, 8.into()])
                }
            };
            let y = s.op(attention.clone(), &[q, repeated, repeated]);
            let text = after(s.finish(&[y]), |g| Ok(run(g)? | permutes::run(g)?));
            assert!(
                text.contains("attention(q, k, k) {scale: 1, causal}"),
                "{text}"
            );
        }
    }
}
