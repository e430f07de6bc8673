//! Moves `gather_rows` above row-wise ops, so that the head only computes the selected rows.

use super::rewrite::{GraphView, Patch, PatchBuilder, rewrite};
use crate::graph::{Graph, Node, TensorId};
use crate::ops::{Dependence, GatherRows, Op, Reshape};
use crate::{Dim, GraphError};

pub(super) fn run(graph: &mut Graph) -> Result<bool, GraphError> {
    rewrite(graph, |view, node| match node.op {
        Op::GatherRows(_) => before_rows(view, node),
        _ => None,
    })
}

/// `rows(f(x))` as `f(rows(x))`. Between the two may be a reshape that drops axes of size one before the rows.
fn before_rows(view: &GraphView<'_>, node: &Node) -> Option<Patch> {
    let &[table, index] = &node.inputs[..] else {
        return None;
    };
    if view.uses(table) != 1 {
        return None;
    }
    let inner = match view.defining_op(table)? {
        (Op::Reshape(_), &[x]) if view.uses(x) == 1 && is_rows(view, x, view.shape(table)[0]) => x,
        _ => table,
    };
    let (op, operands) = view.defining_op(inner)?;
    let rows = view.shape(table)[0];
    let x = by_row(view, op, operands).filter(|x| is_rows(view, *x, rows))?;
    let mut patch = PatchBuilder::new(view, node);
    let shape = vec![rows, *view.shape(x).last()?];
    let flat = match view.rank(x) {
        2 => x,
        _ => patch.node(Reshape { shape }, &[x])?,
    };
    let chosen = patch.node(GatherRows, &[flat, index])?;
    let put = |id: &TensorId| if *id == x { chosen } else { *id };
    let operands: Vec<TensorId> = operands.iter().map(put).collect();
    patch.replace(op.clone(), &operands)
}

/// The one operand with a row per result row, if all other operands are independent of the row.
fn by_row(view: &GraphView<'_>, op: &Op, operands: &[TensorId]) -> Option<TensorId> {
    match op.dependence() {
        Dependence::Row => operands.first().copied(),
        Dependence::Element => {
            let mut by_row = operands.iter().filter(|id| view.rank(**id) > 1);
            by_row.next().filter(|_| by_row.next().is_none()).copied()
        }
        Dependence::All => None,
    }
}

/// Whether a tensor is `[1, .., 1, rows, D]`.
fn is_rows(view: &GraphView<'_>, id: TensorId, rows: Dim) -> bool {
    match view.shape(id) {
        [ones @ .., r, _] => *r == rows && ones.iter().all(|d| d.as_const() == Some(1)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::run;
    use crate::ops::{GatherRows, Linear, RmsNorm, SoftCap};
    use crate::passes::testing::{TestGraphBuilder, after, tokens};
    use base::DType;

    #[test]
    fn rows_are_chosen_before_the_head() {
        let mut s = TestGraphBuilder::new();
        let t = tokens(&mut s);
        let r = s.builder.symbol("R");
        let a = s.input("a", [1.into(), t, 4.into()]);
        let b = s.input("b", [1.into(), t, 4.into()]);
        let rows = s.builder.input("rows", DType::I32, [r]);
        let x = s.add(a, b);
        let (norm, head) = (s.weight("norm", &[4]), s.weight("head", &[6, 4]));
        let x = s.op(RmsNorm { eps: 1e-5 }, &[x, norm]);
        let x = s.op(Linear::default(), &[x, head]);
        let x = s.op(SoftCap { cap: 30.0 }, &[x]);
        let x = s.reshape(x, [t, 6.into()]);
        let y = s.op(GatherRows, &[x, rows]);
        let text = after(s.finish(&[y]), run);
        assert_eq!(text.matches("gather_rows(").count(), 1, "{text}");
        let order = ["gather_rows(", "rms_norm(", "linear(", "soft_cap("].map(|op| text.find(op));
        assert!(order.is_sorted() && order[0].is_some(), "{text}");
    }
}
