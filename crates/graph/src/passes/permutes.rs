//! Removes identities, merges reshapes and permutes, and moves them until they cancel.

use super::rewrite::{GraphView, Patch, PatchBuilder, rewrite};
use crate::graph::{Graph, Node, TensorId};
use crate::ops::{Attention, Dependence, Op, Permute, Reshape};
use crate::{Dim, GraphError};
use base::DType;

pub(super) fn run(graph: &mut Graph) -> Result<bool, GraphError> {
    rewrite(graph, |view, node| {
        identity(view, node).or_else(|| match &node.op {
            Op::Reshape(op) => reshaped(view, node, op),
            Op::Permute(op) => permuted(view, node, op),
            Op::Attention(op) => token_major(view, node, op),
            _ => bypass_index_cast(view, node),
        })
    })
}

/// Removes ops that change nothing.
fn identity(view: &GraphView<'_>, node: &Node) -> Option<Patch> {
    let [x, ..] = node.inputs[..] else {
        return None;
    };
    let is_number = |operand: usize, number| view.is_number(node.inputs[operand], number);
    let unchanged = view.ty(x) == view.ty(node.output) && node.op.keeps_operand(&is_number);
    unchanged
        .then(|| PatchBuilder::new(view, node).redirect(x))
        .flatten()
}

/// Reads an index before its i32-to-i64 cast: index operands may have either type.
fn bypass_index_cast(view: &GraphView<'_>, node: &Node) -> Option<Patch> {
    let first = match node.op {
        Op::Gather(_) | Op::GatherElements(_) | Op::GatherRows(_) | Op::Index(_) => 1,
        Op::RopeTable(_) => 0,
        _ => return None,
    };
    let source = |id: TensorId| match view.defining_op(id) {
        Some((Op::Cast(_), &[x])) if view.ty(x).dtype == DType::I32 => Some(x),
        _ => None,
    };
    let mut inputs = node.inputs.clone();
    let indices = inputs.iter_mut().skip(first);
    let narrow = indices.filter(|id| view.ty(**id).dtype == DType::I64);
    let changed = narrow.filter_map(|id| source(*id).map(|x| *id = x)).count();
    (changed > 0).then(|| PatchBuilder::new(view, node).replace(node.op.clone(), &inputs))?
}

/// Merges a reshape of a reshape, and moves other reshapes up: above a permute if they only drop or add axes of size one,
/// above row-wise ops if they keep rows, and above elementwise functions.
fn reshaped(view: &GraphView<'_>, node: &Node, op: &Reshape) -> Option<Patch> {
    let (before, operands) = view.defining_op(node.inputs[0])?;
    let &[x, ..] = operands else {
        return None;
    };
    let mut patch = PatchBuilder::new(view, node);
    if let Op::Reshape(_) = before {
        return patch.replace(op.clone(), &[x]);
    }
    if view.uses(node.inputs[0]) != 1 {
        return None;
    }
    if let Op::Permute(permute) = before {
        let (shape, permute) = unit_axes_first(view.shape(x), permute, &op.shape)?;
        let x = patch.node(Reshape { shape }, &[x])?;
        return patch.replace(permute, &[x]);
    }
    let shape = match before.dependence() {
        Dependence::Row => {
            let (last, outer) = op.shape.split_last()?;
            let rows_stay = view.shape(node.inputs[0]).last() == Some(last);
            let width = view.shape(x).last().filter(|_| rows_stay)?;
            [outer, &[*width]].concat()
        }
        Dependence::Element if operands.len() == 1 => op.shape.clone(),
        _ => return None,
    };
    let mut operands = operands.to_vec();
    operands[0] = patch.node(Reshape { shape }, &[x])?;
    patch.replace(before.clone(), &operands)
}

/// Exchanges a permute and a following reshape to `target` that only drops or adds axes of size one: returns the reshape
/// and the permute to apply in this order.
fn unit_axes_first(
    source: &[Dim],
    permute: &Permute,
    target: &[Dim],
) -> Option<(Vec<Dim>, Permute)> {
    let is_long = |dim: &Dim| dim.as_const() != Some(1);
    // Source axes of size other than one, in the order of the target.
    let mut long = permute.axes.iter().filter(|axis| is_long(&source[**axis]));
    let mut origin = Vec::with_capacity(target.len());
    for dim in target {
        origin.push(match is_long(dim) {
            true => Some(*long.next().filter(|axis| source[**axis] == *dim)?),
            false => None,
        });
    }
    if long.next().is_some() {
        return None;
    }
    // New axes of size one go first; the others keep the order of the source.
    let mut order: Vec<usize> = (0..target.len()).collect();
    order.sort_by_key(|i| origin[*i].map(|axis| axis + 1));
    let shape = order.iter().map(|i| target[*i]).collect();
    let axes = Permute { axes: order }.inverse();
    Some((shape, axes))
}

/// Merges a permute of a permute, turns a permute of unit axes into a reshape, and cancels a permute after elementwise ops
/// whose operands all have the inverse permute.
fn permuted(view: &GraphView<'_>, node: &Node, op: &Permute) -> Option<Patch> {
    let x = node.inputs[0];
    let long = |axis: &&usize| view.shape(x)[**axis].as_const() != Some(1);
    let mut patch = PatchBuilder::new(view, node);
    if op.axes.iter().filter(long).is_sorted() {
        let shape = view.shape(node.output).to_vec();
        return patch.replace(Reshape { shape }, &[x]);
    }
    let (before, operands) = view.defining_op(x)?;
    match (before, operands) {
        (Op::Permute(first), &[source]) => patch.replace(first.then(op), &[source]),
        (Op::Reshape(between), &[turned]) => {
            let (Op::Permute(first), &[source]) = view.defining_op(turned)? else {
                return None;
            };
            let (shape, first) = unit_axes_first(view.shape(source), first, &between.shape)?;
            let source = patch.node(Reshape { shape }, &[source])?;
            patch.replace(first.then(op), &[source])
        }
        _ if view.uses(x) == 1 => {
            let operands = cancel_permutes(view, &mut patch, op, (before, operands))?;
            patch.replace(before.clone(), &operands)
        }
        _ => None,
    }
}

/// If q, k and v are all permuted from token-major to head-major, runs attention token-major on their sources and permutes
/// the result instead; that permute usually cancels with the one after attention.
fn token_major(view: &GraphView<'_>, node: &Node, op: &Attention) -> Option<Patch> {
    let heads = view.rank(node.output).checked_sub(3)?;
    let mut axes: Vec<usize> = (0..heads + 3).collect();
    axes.swap(heads, heads + 1);
    let turn = Permute { axes };
    let mut inputs = node.inputs.clone();
    for id in &mut inputs[..3] {
        *id = match view.defining_op(*id)? {
            (Op::Permute(first), &[source]) if *first == turn && !op.token_major => source,
            _ => return None,
        };
    }
    let mut patch = PatchBuilder::new(view, node);
    let op = Attention {
        token_major: true,
        ..op.clone()
    };
    let attended = patch.node(op, &inputs)?;
    patch.replace(turn, &[attended])
}

/// Returns a tensor equal to `id` permuted by `op` if the permutes of its operands cancel; constants are permuted when they
/// are folded.
fn cancel_permute(
    view: &GraphView<'_>,
    patch: &mut PatchBuilder<'_, '_>,
    op: &Permute,
    id: TensorId,
) -> Option<TensorId> {
    let (rank, full) = (view.rank(id), op.axes.len());
    if rank < full {
        // The operand broadcasts over leading axes; the permute must not move them.
        let stays = (full - rank..full).all(|axis| op.axes[axis] == axis);
        return stays.then_some(id);
    }
    if view.is_constant(id) {
        return patch.node(op.clone(), &[id]);
    }
    match view.defining_op(id)? {
        (Op::Permute(first), &[source]) if first.then(op).is_identity() => Some(source),
        (inner, operands) if view.uses(id) == 1 => {
            let operands = cancel_permutes(view, patch, op, (inner, operands))?;
            patch.node(inner.clone(), &operands)
        }
        _ => None,
    }
}

/// The operands of an op whose result is then permuted by `op`, if their permutes cancel and the op commutes with it.
fn cancel_permutes(
    view: &GraphView<'_>,
    patch: &mut PatchBuilder<'_, '_>,
    op: &Permute,
    (inner, operands): (&Op, &[TensorId]),
) -> Option<Vec<TensorId>> {
    let permuted = match inner.dependence() {
        Dependence::Element => operands.len(),
        Dependence::Row if op.axes.last() == Some(&(op.axes.len() - 1)) => 1,
        _ => return None,
    };
    let (permuted, others) = operands.split_at_checked(permuted)?;
    let cancelled = permuted
        .iter()
        .map(|id| cancel_permute(view, patch, op, *id));
    let others = others.iter().map(|id| Some(*id));
    cancelled.chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::run;
    use crate::ops::{Attention, Cast, GatherRows, Linear, RmsNorm, Scale};
    use crate::passes::testing::{TestGraphBuilder, after, tokens};
    use base::DType;

    #[test]
    fn permutes_meet_and_cancel() {
        let mut s = TestGraphBuilder::new();
        let t = tokens(&mut s);
        let x = s.input("x", [1.into(), t, 2.into(), 4.into()]);
        let heads = s.permute(x, &[0, 2, 1, 3]);
        let doubled = s.op(Scale { factor: 2.0 }, &[heads]);
        let sum = s.add(heads, doubled);
        // Over a reshape that drops an axis of one.
        let flat = s.reshape(heads, [2.into(), t, 4.into()]);
        let flat = s.permute(flat, &[1, 0, 2]);
        let same = s.op(Cast { to: DType::F32 }, &[flat]);
        let ones = s.weight("ones", &[4]);
        let normed = s.op(RmsNorm { eps: 1e-5 }, &[same, ones]);
        let expect = "\
graph g(x: f32[1, T, 2, 4])
  n1: f32[1, 2, T, 4] = permute(x) {axes: [0, 2, 1, 3]}
  n2: f32[1, 2, T, 4] = scale(n1) {factor: 2}
  n3: f32[1, 2, T, 4] = add(n1, n2)
  n5.reshape: f32[T, 2, 4] = reshape(x)
  n7: f32[T, 2, 4] = rms_norm(n5.reshape, ones) {eps: 1e-5}
  return n3, n7
";
        assert_eq!(after(s.finish(&[sum, normed]), run), expect);
    }

    #[test]
    fn an_elementwise_op_between_two_permutes_loses_them() {
        let mut s = TestGraphBuilder::new();
        let t = tokens(&mut s);
        let x = s.input("x", [t, 2.into(), 4.into()]);
        let y = s.input("y", [t, 2.into(), 4.into()]);
        let (a, b) = (s.permute(x, &[1, 0, 2]), s.permute(y, &[1, 0, 2]));
        let sum = s.add(a, b);
        let sum = s.plus(sum, 1.0);
        let sum = s.silu(sum);
        let back = s.permute(sum, &[1, 0, 2]);
        let expect = "\
graph g(x: f32[T, 2, 4], y: f32[T, 2, 4])
  n6.add: f32[T, 2, 4] = add(x, y)
  n6.add.2: f32[T, 2, 4] = add(n6.add, c1)
  n6: f32[T, 2, 4] = unary(n6.add.2) {function: silu}
  return n6
";
        assert_eq!(after(s.finish(&[back]), run), expect);
    }

    #[test]
    fn attention_reads_heads_where_they_are() {
        let mut s = TestGraphBuilder::new();
        let t = tokens(&mut s);
        let x = s.input("x", [1.into(), t, 2.into(), 4.into()]);
        let heads = s.permute(x, &[0, 2, 1, 3]);
        let attention = Attention {
            scale: 0.5,
            causal: true,
            softcap: None,
            token_major: false,
        };
        let y = s.op(attention, &[heads, heads, heads]);
        let y = s.permute(y, &[0, 2, 1, 3]);
        let expect = "\
graph g(x: f32[1, T, 2, 4])
  n2.attention: f32[1, T, 2, 4] = attention(x, x, x) {scale: 0.5, causal, token_major}
  n3: f32[1, T, 2, 4] = reshape(n2.attention)
  return n3
";
        assert_eq!(after(s.finish(&[y]), run), expect);
    }

    #[test]
    fn reshapes_join_and_moves_of_single_axes_are_reshapes() {
        let mut s = TestGraphBuilder::new();
        let t = tokens(&mut s);
        let x = s.input("x", [t, 8.into()]);
        let y = s.reshape(x, [1.into(), t, 2.into(), 4.into()]);
        let y = s.reshape(y, [t, 1.into(), 8.into()]);
        let y = s.permute(y, &[1, 0, 2]);
        let expect = "\
graph g(x: f32[T, 8])
  n3: f32[1, T, 8] = reshape(x)
  return n3
";
        assert_eq!(after(s.finish(&[y]), run), expect);
    }

    #[test]
    fn reshapes_move_up_and_indices_stay_narrow() {
        let mut s = TestGraphBuilder::new();
        let t = tokens(&mut s);
        let ids = s.builder.input("ids", DType::I32, [t]);
        let table = s.weight("table", &[6, 8]);
        let wide = s.op(Cast { to: DType::I64 }, &[ids]);
        let x = s.op(GatherRows, &[table, wide]);
        let x = s.reshape(x, [1.into(), t, 8.into()]);
        let x = s.silu(x);
        let x = s.reshape(x, [t, 8.into()]);
        let weight = s.weight("weight", &[4, 8]);
        let x = s.op(Linear::default(), &[x, weight]);
        let y = s.reshape(x, [1.into(), t, 4.into()]);
        let expect = "\
graph g(ids: i32[T])
  n2: f32[T, 8] = gather_rows(table, ids)
  n7.reshape.reshape: f32[1, T, 8] = reshape(n2)
  n7.reshape: f32[1, T, 8] = unary(n7.reshape.reshape) {function: silu}
  n7: f32[1, T, 4] = linear(n7.reshape, weight)
  return n7
";
        assert_eq!(after(s.finish(&[y]), run), expect);
    }
}
