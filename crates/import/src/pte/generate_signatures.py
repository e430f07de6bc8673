"""Writes signatures.rs: the argument names of the out-variants of all ops that the lowering rules know. Needs PyTorch.

    python crates/import/src/pte/generate_signatures.py > crates/import/src/pte/signatures.rs
"""

import re
from pathlib import Path

import torch

RULES = Path(__file__).parent.parent / "pt2/lower/table.rs"

HEADER = """//! Argument names of ops' out-variants, in order and without the results. Made by generate_signatures.py.

/// The argument names of an op, as `aten::mm.out`.
pub(super) fn names(op: &str) -> Option<&'static [&'static str]> {
    let found = SIGNATURES.binary_search_by_key(&op, |(op, _)| op);
    found.ok().map(|index| SIGNATURES[index].1)
}

#[rustfmt::skip]
const SIGNATURES: &[(&str, &[&str])] = &["""


def signatures():
    names = re.findall(r'"(\w+)"', RULES.read_text().split("// arithmetic", 1)[1])
    for name in set(names) | {f"{name}_copy" for name in names}:
        packet = getattr(torch.ops.aten, name, None)
        if packet is None:
            continue
        for overload in packet.overloads():
            schema = getattr(packet, overload)._schema
            if any(argument.is_out for argument in schema.arguments):
                yield f"aten::{name}.{overload}", [a.name for a in schema.arguments if not a.is_out]
    yield "dim_order_ops::_to_dim_order_copy.out", ["self", "non_blocking", "dim_order"]
    yield "dim_order_ops::_clone_dim_order.out", ["self", "non_blocking", "dim_order"]
    yield "executorch_prim::et_view.default", ["self", "size"]
    attention = ["q", "k", "v", "position", "layer_id", "scale", "out_dtype"]
    yield "kvcache::update_and_attend.out", attention
    yield "kvcache::update_and_attend.softcap_out", [*attention, "softcap"]


def main():
    print(HEADER)
    for op, names in sorted(signatures()):
        print(f"    ({quoted(op)}, &[{', '.join(map(quoted, names))}]),")
    print("];")


def quoted(text):
    return f'"{text}"'


if __name__ == "__main__":
    main()
