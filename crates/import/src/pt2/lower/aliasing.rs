//! Whether a node's result shares memory with an operand in PyTorch, as its op and the strides that the file states say.

use super::call::Call;
use super::op_traits;
use crate::pt2::schema::{Argument, Graph, Node, ScalarType, SymInt, TensorMeta};
use crate::pt2::size_expr::SizeExpr;

/// Whether the result of an op shares memory with its first operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pt2) enum Aliasing {
    /// The result has memory of its own.
    Fresh,
    /// The result is a view.
    View,
    /// The file does not say: an op that writes into one of them is refused if the other is read later.
    Unknown,
}

/// How an op's result relates to its first operand, by the op's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pt2) enum AliasRule {
    /// No result shares memory.
    Fresh,
    /// All results are views.
    View,
    /// The result is a view if its strides fit those of the operand, else a copy.
    Reshape,
    /// The result is the operand if it has the wanted type and order, else a copy.
    Convert,
    /// The result is the operand, except in training.
    Dropout,
    /// Not known.
    Unknown,
}

/// The rule for an op, by PyTorch's name without `torch.ops.`. Ops that write into their operand are not views.
pub(in crate::pt2) fn rule(op: &str) -> AliasRule {
    let Some(name) = op
        .strip_prefix("aten.")
        .and_then(|rest| rest.split('.').next())
    else {
        return AliasRule::Fresh;
    };
    match name {
        "view" | "_unsafe_view" | "_reshape_alias" | "unflatten" | "unsqueeze" | "squeeze"
        | "view_as" => AliasRule::View,
        _ if op_traits::PERMUTATIONS.contains(&name)
            || op_traits::EXPANSIONS.contains(&name)
            || op_traits::SPLITS.contains(&name) =>
        {
            AliasRule::View
        }
        "hsplit" | "vsplit" | "dsplit" | "unbind" => AliasRule::View,
        "slice" | "narrow" | "select" | "diagonal" | "linalg_diagonal" | "unfold"
        | "as_strided" => AliasRule::View,
        "alias" | "detach" | "detach_" | "lift" | "lift_fresh" | "positive" | "conj" | "_conj"
        | "resolve_conj" | "resolve_neg" | "real" | "_neg_view" => AliasRule::View,
        "reshape" | "reshape_as" | "flatten" | "ravel" => AliasRule::Reshape,
        "to" | "type_as" | "_cast_Float" | "float" | "contiguous" | "cpu" | "cuda"
        | "pin_memory" => AliasRule::Convert,
        "dropout" | "feature_dropout" | "alpha_dropout" | "feature_alpha_dropout" | "rrelu" => {
            AliasRule::Dropout
        }
        // These rearrange by views and copy only where they must.
        "einsum" | "channel_shuffle" | "pixel_shuffle" | "pixel_unshuffle" | "imag"
        | "coalesce" | "view_as_real" | "view_as_complex" | "atleast_1d" | "atleast_2d"
        | "atleast_3d" | "meshgrid" | "broadcast_tensors" | "squeeze_copy" | "sum_to_size"
        | "values" | "indices" | "as_tensor" | "__getitem__" => AliasRule::Unknown,
        _ => AliasRule::Fresh,
    }
}

/// Whether the results of a node share memory with its first operand.
pub(in crate::pt2) fn of(graph: &Graph, node: &Node) -> Aliasing {
    let rule = rule(node.op());
    let definite = match rule {
        AliasRule::Fresh => return Aliasing::Fresh,
        AliasRule::View => return Aliasing::View,
        AliasRule::Unknown => return Aliasing::Unknown,
        AliasRule::Dropout => {
            let call = Call::of(node);
            let trains = call
                .flag("train", false)
                .and_then(|train| Ok(train && call.float("p", 0.5)? > 0.0));
            return match trains {
                Ok(false) => Aliasing::View,
                Ok(true) => Aliasing::Fresh,
                Err(_) => Aliasing::Unknown,
            };
        }
        AliasRule::Reshape => reshapes_in_place,
        AliasRule::Convert => converts_nothing,
    };
    let meta = |name: &str| graph.tensor_values.get(name);
    let result = node
        .outputs
        .first()
        .and_then(|output| output.names().first().copied());
    let metas = op_traits::first_name(node)
        .and_then(meta)
        .zip(result.and_then(meta));
    match metas.and_then(|(from, to)| definite(node, from, to)) {
        Some(true) => Aliasing::View,
        Some(false) => Aliasing::Fresh,
        None => Aliasing::Unknown,
    }
}

/// Whether a conversion returns its operand itself; `None` if that is not known.
fn converts_nothing(node: &Node, from: &TensorMeta, to: &TensorMeta) -> Option<bool> {
    let ScalarType(before) = from.dtype;
    let ScalarType(after) = to.dtype;
    let copies = node
        .inputs
        .iter()
        .any(|input| input.name == "copy" && matches!(input.arg, Argument::AsBool(true)));
    if before != after || copies {
        return Some(false);
    }
    // A copy made for the order of its elements has other strides.
    Some(expressions(&from.strides)? == expressions(&to.strides)?)
}

/// Whether a reshape is a view of its operand; `None` if that is not known.
fn reshapes_in_place(_: &Node, from: &TensorMeta, to: &TensorMeta) -> Option<bool> {
    if let (Some(sizes), Some(strides), Some(wanted)) = (
        numbers(&from.sizes),
        numbers(&from.strides),
        numbers(&to.sizes),
    ) {
        return Some(is_view_of(&sizes, &strides, &wanted));
    }
    let (sizes, strides) = (expressions(&from.sizes)?, expressions(&from.strides)?);
    let one = SizeExpr::number(1);
    let mut wanted = one.clone();
    for (size, stride) in sizes.iter().zip(&strides).rev() {
        if *size != one && *stride != wanted {
            return None;
        }
        wanted = wanted.multiply(size)?;
    }
    Some(true)
}

/// Whether a tensor of these sizes and strides can be seen in other sizes without a copy.
fn is_view_of(sizes: &[i64], strides: &[i64], wanted: &[i64]) -> bool {
    if sizes.contains(&0) {
        return true;
    }
    // Axes of the operand that are contiguous with each other are one block; every block must be covered by whole axes.
    let mut wanted = wanted.iter().rev().copied().peekable();
    let mut axes = sizes
        .iter()
        .zip(strides)
        .rev()
        .filter(|(size, _)| **size != 1)
        .peekable();
    while let Some((size, stride)) = axes.next() {
        let (mut block, mut last) = (*size, (*size, *stride));
        while let Some((size, stride)) = axes.next_if(|(_, stride)| **stride == last.0 * last.1) {
            block *= size;
            last = (*size, *stride);
        }
        let mut covered = 1;
        while covered < block {
            match wanted.next() {
                Some(size) => covered *= size,
                None => return false,
            }
        }
        if covered != block {
            return false;
        }
    }
    wanted.all(|size| size == 1)
}

fn numbers(list: &[SymInt]) -> Option<Vec<i64>> {
    let number = |size: &SymInt| match size {
        SymInt::AsInt(n) => Some(*n),
        SymInt::AsExpr(_) => None,
    };
    list.iter().map(number).collect()
}

fn expressions(list: &[SymInt]) -> Option<Vec<SizeExpr>> {
    let expression = |size: &SymInt| match size {
        SymInt::AsInt(n) => Some(SizeExpr::number(*n)),
        SymInt::AsExpr(expr) => SizeExpr::parse(&expr.expr_str).ok(),
    };
    list.iter().map(expression).collect()
}

#[cfg(test)]
mod tests {
    use super::{AliasRule, is_view_of, rule};
    use crate::pt2::lower::table;

    /// The ops whose schemas say that a result may share memory with an operand, as `aliasing.py` lists them.
    const ALIASING: &str = include_str!("aliasing.txt");

    #[test]
    fn every_op_that_may_alias_has_a_rule() {
        let ops: Vec<&str> = ALIASING
            .lines()
            .filter(|line| !line.starts_with('#'))
            .collect();
        assert!(ops.len() > 60, "{}", ops.len());
        for name in ops {
            let lowered = ["default", "Tensor", "int", "dim", "self_int"]
                .iter()
                .any(|overload| table::rule(&format!("aten.{name}.{overload}")).is_some());
            let op = format!("aten.{name}.default");
            assert!(!lowered || rule(&op) != AliasRule::Fresh, "{name}");
        }
    }

    #[test]
    fn reshapes_are_views_where_strides_allow() {
        // Sizes and strides of the operand, and the sizes that are wanted.
        type Reshape = ([&'static [i64]; 3], bool);
        let table: [Reshape; 9] = [
            ([&[2, 3], &[3, 1], &[6]], true),
            ([&[2, 3], &[1, 2], &[6]], false),
            ([&[2, 3], &[1, 2], &[2, 3, 1]], true),
            ([&[2, 6], &[1, 2], &[2, 2, 3]], true),
            ([&[4, 2, 3], &[12, 3, 1], &[4, 6]], true),
            ([&[4, 2, 3], &[12, 3, 1], &[8, 3]], false),
            ([&[2, 1, 3], &[3, 99, 1], &[6]], true),
            ([&[], &[], &[1, 1]], true),
            ([&[3, 4], &[0, 1], &[12]], false),
        ];
        for ([sizes, strides, wanted], view) in table {
            assert_eq!(
                is_view_of(sizes, strides, wanted),
                view,
                "{sizes:?} {strides:?} {wanted:?}"
            );
        }
    }
}
