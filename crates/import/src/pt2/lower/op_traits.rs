//! Properties of ATen ops that follow from their names, and of programs that follow from their ops.

use super::aliasing::{self, AliasRule};
use crate::pt2::file::Program;
use crate::pt2::schema::{Argument, Node};

/// Ops that permute the axes of their operand.
pub(super) const PERMUTATIONS: [&str; 12] = [
    "permute",
    "transpose",
    "swapaxes",
    "swapdims",
    "t",
    "numpy_T",
    "mT",
    "mH",
    "adjoint",
    "matrix_H",
    "movedim",
    "moveaxis",
];
/// Ops that see their operand in a larger shape without a copy.
pub(super) const EXPANSIONS: [&str; 3] = ["expand", "expand_as", "broadcast_to"];
/// Ops that divide their operand along an axis.
pub(super) const SPLITS: [&str; 7] = [
    "split",
    "split_with_sizes",
    "chunk",
    "tensor_split",
    "unsafe_split",
    "unsafe_split_with_sizes",
    "unsafe_chunk",
];

/// Whether the shape of an op's result depends on the operand's elements.
pub(in crate::pt2) fn is_data_dependent(op: &str) -> bool {
    let name = op.split('.').nth(1).unwrap_or_default();
    matches!(
        name,
        "nonzero"
            | "nonzero_numpy"
            | "item"
            | "_local_scalar_dense"
            | "masked_select"
            | "unique"
            | "_unique2"
            | "unique_consecutive"
            | "argwhere"
            | "bincount"
    )
}

/// Whether an op only changes the shape or the integer type of its operand.
pub(super) fn keeps_elements(op: &str) -> bool {
    let name = op.split('.').nth(1).unwrap_or_default();
    matches!(
        name,
        "view"
            | "reshape"
            | "flatten"
            | "unsqueeze"
            | "squeeze"
            | "to"
            | "_to_copy"
            | "contiguous"
            | "clone"
            | "alias"
            | "detach"
            | "detach_"
    )
}

/// Whether all integers of an op's results are integers of its operands, if these have one type. Results of all other ops wrap.
pub(super) fn keeps_range(op: &str) -> bool {
    let name = op.split('.').nth(1).unwrap_or_default();
    aliasing::rule(op) == AliasRule::View
        || matches!(
            name,
            "reshape"
                | "reshape_as"
                | "flatten"
                | "ravel"
                | "contiguous"
                | "clone"
                | "dropout"
                | "view_copy"
                | "lift_fresh_copy"
                | "repeat"
                | "tile"
                | "repeat_interleave"
                | "cat"
                | "concat"
                | "concatenate"
                | "stack"
                | "flip"
                | "roll"
                | "maximum"
                | "minimum"
                | "max"
                | "min"
                | "amax"
                | "amin"
                | "sign"
                | "sgn"
                | "relu"
                | "where"
                | "gather"
                | "take_along_dim"
                | "index"
                | "index_select"
                | "embedding"
                | "topk"
                | "sort"
                | "argsort"
                | "argmax"
                | "argmin"
                | "pixel_shuffle"
                | "pixel_unshuffle"
                | "channel_shuffle"
                | "zeros"
                | "zeros_like"
                | "new_zeros"
                | "zero"
                | "ones"
                | "ones_like"
                | "new_ones"
                | "eye"
                | "triu"
                | "tril"
        )
}

/// The op's name without the `_` of ops that write into their operand.
pub(super) fn in_place(op: &str) -> Option<String> {
    let (name, overload) = op.rsplit_once('.')?;
    let name = name.strip_suffix('_').filter(|name| !name.ends_with('_'))?;
    Some(format!("{name}.{overload}"))
}

/// Whether an op has no effect on tensors: assertions, and size arithmetic, whose results the file states.
pub(super) fn is_silent(op: &str) -> bool {
    op.starts_with("aten._assert_")
        || op.starts_with("aten.sym_")
        || op.starts_with("_operator.")
        || op.starts_with("aten.sym_constrain_range")
        || matches!(
            op,
            "math.trunc" | "torch.sym_float" | "aten._assert_async.msg"
        )
}

/// The tensor that a node writes into, for ops named like `aten.add_.Tensor`.
pub(super) fn written(node: &Node) -> Option<&str> {
    let plain = in_place(node.op())?;
    (plain != "aten.detach.default").then(|| first_name(node))?
}

/// Whether an op named like `aten.t_.default` changes the shape of its operand, not its elements.
pub(super) fn reshapes_operand(plain: &str) -> bool {
    let name = plain.split('.').nth(1).unwrap_or_default();
    matches!(
        name,
        "t" | "transpose"
            | "swapaxes"
            | "swapdims"
            | "squeeze"
            | "unsqueeze"
            | "as_strided"
            | "resize"
            | "resize_as"
            | "set"
    )
}

/// The first tensor among a node's arguments.
pub(super) fn first_name(node: &Node) -> Option<&str> {
    node.inputs.first()?.arg.names().first().copied()
}

/// Traces a tensor back through ops that keep its elements, to an input, a weight or another op's result.
pub(in crate::pt2) fn origin<'a>(program: &'a Program, name: &'a str) -> &'a str {
    let mut name = name;
    for node in program.graph.nodes.iter().rev() {
        let gives = node
            .outputs
            .iter()
            .flat_map(Argument::names)
            .any(|n| n == name);
        let same = keeps_elements(node.op());
        let from = node
            .inputs
            .first()
            .and_then(|input| input.arg.names().first().copied());
        if let (true, true, Some(from)) = (gives, same, from) {
            name = from;
        }
    }
    name
}
