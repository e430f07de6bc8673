//! Canonicalises matrix products: folds scales and transposes into them, and turns constant products into `linear`.
//!
//! - Arithmetic with a constant number becomes `scale`, and a scale before or after a product becomes its `alpha`.
//! - A transposed operand is read in place, with `transpose_b`; a constant one is transposed here, once.
//! - A product with a constant matrix becomes a `linear` with the weight as `[N, K]`; a `linear` whose result is only
//!   sliced by columns is split into several with parts of the weight.
//! - A gather of rows of a constant table becomes `gather_rows`, which takes tables of any real type.

use super::rewrite::{GraphView, Patch, PatchBuilder, rewrite};
use crate::graph::{Graph, Node, TensorId};
use crate::ops::{
    Attention, Gather, GatherRows, Linear, MatMul, Op, Permute, Reshape, Scale, Slice,
};
use crate::{Dim, GraphError};
use base::DType;

pub(super) fn run(graph: &mut Graph) -> Result<bool, GraphError> {
    rewrite(graph, |view, node| match &node.op {
        Op::Binary(_) | Op::Scale(_) => arithmetic_to_scale(view, node),
        Op::MatMul(op) => transposed(view, node, op)
            .or_else(|| scaled_operand(view, node, op))
            .or_else(|| mat_mul_to_linear(view, node, op)),
        Op::Attention(op) => scaled_query(view, node, op),
        Op::Slice(op) => split_linear(view, node, op),
        Op::Gather(op) => gather_to_gather_rows(view, node, op),
        _ => None,
    })
}

/// Turns arithmetic with a constant into `scale`, merges two scales, and folds a scale after a product into it.
fn arithmetic_to_scale(view: &GraphView<'_>, node: &Node) -> Option<Patch> {
    if view.ty(node.output).dtype != DType::F32 {
        return None;
    }
    let (factor, x) = view.scaled(node.output)?;
    let patch = || PatchBuilder::new(view, node);
    let joined = match view.defining_op(x) {
        Some((Op::MatMul(op), &[a, b])) => {
            let alpha = op.alpha * factor;
            let op = op.clone();
            patch().fuse(MatMul { alpha, ..op }, &[a, b])
        }
        Some((Op::Scale(inner), operands)) => {
            let factor = inner.factor * factor;
            patch().replace(Scale { factor }, operands)
        }
        _ => None,
    };
    match node.op {
        Op::Scale(_) => joined,
        _ => joined.or_else(|| patch().replace(Scale { factor }, &[x])),
    }
}

/// Folds a permute of the second operand into `transpose_b`, if rows stay contiguous.
fn transposed(view: &GraphView<'_>, node: &Node, op: &MatMul) -> Option<Patch> {
    let (Op::Permute(permute), &[source]) = view.defining_op(node.inputs[1])? else {
        return None;
    };
    let rank = permute.axes.len();
    let swapped = permute.then(&Permute::transpose(rank));
    let rows_whole = |p: &Permute| p.axes[rank - 1] == rank - 1;
    if rows_whole(permute) || !rows_whole(&swapped) {
        return None;
    }
    let mut patch = PatchBuilder::new(view, node);
    let b = match swapped.is_identity() {
        true => source,
        false => patch.node(swapped, &[source])?,
    };
    let mut inputs = node.inputs.clone();
    inputs[1] = b;
    let transpose_b = !op.transpose_b;
    patch.replace(
        MatMul {
            transpose_b,
            ..op.clone()
        },
        &inputs,
    )
}

/// Folds a scale of either operand into the product.
fn scaled_operand(view: &GraphView<'_>, node: &Node, op: &MatMul) -> Option<Patch> {
    let &[a, b] = &node.inputs[..] else {
        return None;
    };
    let scaled = |id: TensorId| view.scaled(id).filter(|_| view.uses(id) == 1);
    let (factor, inputs) = match (scaled(a), scaled(b)) {
        (Some((factor, a)), _) => (factor, [a, b]),
        (_, Some((factor, b))) => (factor, [a, b]),
        _ => return None,
    };
    let alpha = op.alpha * factor;
    PatchBuilder::new(view, node).replace(
        MatMul {
            alpha,
            ..op.clone()
        },
        &inputs,
    )
}

/// Turns a product with a constant matrix into `linear`.
fn mat_mul_to_linear(view: &GraphView<'_>, node: &Node, op: &MatMul) -> Option<Patch> {
    let weight = node.inputs[1];
    let width = view.shape(node.inputs[0]).last().and_then(Dim::as_const);
    if !view.is_constant(weight) || view.rank(weight) != 2 || width.is_none() {
        return None;
    }
    let mut patch = PatchBuilder::new(view, node);
    let mut inputs = node.inputs.clone();
    if !op.transpose_b {
        let value = view.constant(weight)?;
        let shape = [value.shape[1], value.shape[0]];
        let turned = Op::from(Permute::transpose(2));
        let turned = turned
            .evaluate(&[&value], &shape, &Default::default())
            .ok()?;
        inputs[1] = patch.constant("weight", &turned);
    }
    if op.alpha == 1.0 {
        return patch.replace(Linear::default(), &inputs);
    }
    // `linear` has no `alpha`, and the factor must not scale the bias: scale the activations, the smaller operand.
    inputs[0] = patch.node(Scale { factor: op.alpha }, &[inputs[0]])?;
    patch.replace(Linear::default(), &inputs)
}

/// Turns a column slice of a linear into a linear with a row slice of the weight, without copying.
fn split_linear(view: &GraphView<'_>, node: &Node, op: &Slice) -> Option<Patch> {
    let whole = node.inputs[0];
    let (Op::Linear(linear), operands) = view.defining_op(whole)? else {
        return None;
    };
    let columns = |op: &Slice| {
        let along = op.step == 1 && op.axis + 1 == view.rank(whole);
        let (start, len) = op.start.as_const().zip(op.len.as_const())?;
        along.then_some(start..start + len)
    };
    // All readers must be slices that do not overlap, so that nothing is computed twice.
    let cuts = view.readers(whole).map(|reader| match &reader.op {
        Op::Slice(op) => columns(op),
        _ => None,
    });
    let mut cuts = cuts.collect::<Option<Vec<_>>>()?;
    cuts.sort_by_key(|cut| cut.start);
    let apart = cuts.windows(2).all(|pair| pair[0].end <= pair[1].start);
    if !apart || cuts.len() != view.uses(whole) {
        return None;
    }
    let range = columns(op)?;
    let mut patch = PatchBuilder::new(view, node);
    let mut inputs = operands.to_vec();
    for id in &mut inputs[1..] {
        *id = patch.rows(*id, range.clone())?;
    }
    patch.replace(linear.clone(), &inputs)
}

/// Turns a gather of rows of a constant table into `gather_rows`.
fn gather_to_gather_rows(view: &GraphView<'_>, node: &Node, op: &Gather) -> Option<Patch> {
    let &[table, indices] = &node.inputs[..] else {
        return None;
    };
    let is_table = view.is_constant(table) && view.rank(table) == 2 && op.axis == 0;
    if !is_table || !view.ty(table).dtype.is_real() {
        return None;
    }
    // All indices in a row, if their number can be written.
    let mut count = Dim::from(1);
    for dim in view.shape(indices) {
        count = match (count.as_const(), dim.as_const()) {
            (Some(n), _) => *dim * n,
            (_, Some(n)) => count * n,
            _ => return None,
        };
    }
    let mut patch = PatchBuilder::new(view, node);
    let shape = vec![count];
    let flat = patch.node(Reshape { shape }, &[indices])?;
    let rows = patch.node(GatherRows, &[table, flat])?;
    let shape = view.shape(node.output).to_vec();
    patch.replace(Reshape { shape }, &[rows])
}

/// Folds a scale of the queries into the scale of the scores.
fn scaled_query(view: &GraphView<'_>, node: &Node, op: &Attention) -> Option<Patch> {
    let mut inputs = node.inputs.clone();
    let factor = inputs[..2].iter_mut().find_map(|id| {
        let (factor, x) = view.scaled(*id).filter(|_| view.uses(*id) == 1)?;
        *id = x;
        Some(factor)
    })?;
    let scale = op.scale * factor;
    PatchBuilder::new(view, node).replace(
        Attention {
            scale,
            ..op.clone()
        },
        &inputs,
    )
}

#[cfg(test)]
mod tests {
    use super::run;
    use crate::ops::{Attention, Gather, Linear, MatMul, Scale};
    use crate::passes::testing::{TestGraphBuilder, after, tokens};

    #[test]
    fn linear_layers_come_out_of_transposed_products() {
        let mut s = TestGraphBuilder::new();
        let t = tokens(&mut s);
        let x = s.input("x", [t, 4.into()]);
        let y = s.linear("a", x, 3, false);
        let weight = s.weight("b", &[3, 5]);
        let y = s.mat_mul(y, weight);
        let y = s.times(y, 2.0);
        let y = s.op(Scale { factor: 3.0 }, &[y]);
        let expect = "\
graph g(x: f32[T, 4])
  n2: f32[T, 3] = linear(x, a.weight)
  n5.scale: f32[T, 3] = scale(n2) {factor: 6}
  n5: f32[T, 5] = linear(n5.scale, n5.weight)
  return n5
";
        assert_eq!(after(s.finish(&[y]), run), expect);
    }

    #[test]
    fn numbers_around_a_product_become_its_factor() {
        let mut s = TestGraphBuilder::new();
        let t = tokens(&mut s);
        let q = s.input("q", [2.into(), t, 4.into()]);
        let k = s.input("k", [t, 2.into(), 4.into()]);
        let q = s.times(q, 0.5);
        let turned = s.permute(k, &[1, 2, 0]);
        let y = s.mat_mul(q, turned);
        let two = s.number(2.0);
        let y = s.binary(crate::ops::BinaryFunction::Div, y, two);
        let expect = "\
graph g(q: f32[2, T, 4], k: f32[T, 2, 4])
  n4.permute: f32[2, T, 4] = permute(k) {axes: [1, 0, 2]}
  n4: f32[2, T, T] = mat_mul(q, n4.permute) {transpose_b, alpha: 0.25}
  return n4
";
        assert_eq!(after(s.finish(&[y]), run), expect);
    }

    #[test]
    fn what_others_read_stays() {
        let mut s = TestGraphBuilder::new();
        let t = tokens(&mut s);
        let q = s.input("q", [2.into(), t, 4.into()]);
        let half = s.times(q, 0.5);
        let op = Attention {
            scale: 1.0,
            causal: false,
            softcap: None,
            token_major: false,
        };
        let a = s.op(op.clone(), &[half, q, half]);
        let product = s.op(
            MatMul {
                transpose_b: true,
                alpha: 1.0,
            },
            &[q, q],
        );
        let doubled = s.times(product, 2.0);
        let expect = "\
graph g(q: f32[2, T, 4])
  n1: f32[2, T, 4] = scale(q) {factor: 0.5}
  n2: f32[2, T, 4] = attention(n1, q, n1) {scale: 1}
  n3: f32[2, T, T] = mat_mul(q, q) {transpose_b}
  n4: f32[2, T, T] = scale(n3) {factor: 2}
  return n2, n3, n4
";
        assert_eq!(after(s.finish(&[a, product, doubled]), run), expect);
    }

    #[test]
    fn a_layer_that_is_cut_is_several() {
        let mut s = TestGraphBuilder::new();
        let t = tokens(&mut s);
        let ids = s.builder.input("ids", base::DType::I64, [1.into(), t]);
        let table = s.weight("table", &[6, 4]);
        let x = s.op(Gather { axis: 0 }, &[table, ids]);
        let (weight, bias) = (s.weight("weight", &[6, 4]), s.weight("bias", &[6]));
        let y = s.op(Linear::default(), &[x, weight, bias]);
        let (a, b) = (s.slice(y, 2, 0, 2), s.slice(y, 2, 2, 4));
        let expect = "\
graph g(ids: i64[1, T])
  n1.reshape: i64[T] = reshape(ids)
  n1.gather_rows: f32[T, 4] = gather_rows(table, n1.reshape)
  n1: f32[1, T, 4] = reshape(n1.gather_rows)
  n3: f32[1, T, 2] = linear(n1, n3.weight, n3.bias)
  n4: f32[1, T, 4] = linear(n1, n4.weight, n4.bias)
  return n3, n4
";
        assert_eq!(after(s.finish(&[a, b]), run), expect);
    }
}
