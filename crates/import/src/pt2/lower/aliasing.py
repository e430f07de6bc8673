"""Writes `aliasing.txt` beside it: the ATen ops whose result may share memory with an operand.

    python crates/import/src/pt2/lower/aliasing.py

Most are marked in their schemas. Composite ops are not; those that return a view of their operand are found by calling them.
"""

from pathlib import Path

import torch

X = torch.arange(24.0).reshape(2, 3, 4)
SQUARE = torch.arange(9.0).reshape(3, 3)
IMAGE = torch.arange(4.0).reshape(1, 4, 1, 1)
A = torch.ops.aten
# Calls of ops without a mark, on operands for which they have nothing to compute.
UNMARKED = {
    "_cast_Float": lambda: (X, A._cast_Float(X)),
    "_unsafe_view": lambda: (X, A._unsafe_view(X, [6, 4])),
    "alpha_dropout": lambda: (X, A.alpha_dropout(X, 0.5, False)),
    "atleast_1d": lambda: (X, A.atleast_1d(X)),
    "atleast_2d": lambda: (X, A.atleast_2d(X)),
    "atleast_3d": lambda: (X, A.atleast_3d(X)),
    "broadcast_tensors": lambda: (X, A.broadcast_tensors([X, X])[0]),
    "channel_shuffle": lambda: (IMAGE, A.channel_shuffle(IMAGE, 1)),
    "clone": lambda: (X, A.clone(X)),
    "constant_pad_nd": lambda: (X, A.constant_pad_nd(X, [0, 0])),
    "dropout": lambda: (X, A.dropout(X, 0.5, False)),
    "einsum": lambda: (SQUARE, A.einsum("ij->ji", [SQUARE])),
    "feature_dropout": lambda: (X, A.feature_dropout(X, 0.5, False)),
    "flip": lambda: (X, A.flip(X, [])),
    "lift": lambda: (X, A.lift(X)),
    "meshgrid": lambda: (X[0, 0], A.meshgrid([X[0, 0]])[0]),
    "pad": lambda: (X, A.pad(X, [0, 0])),
    "pixel_shuffle": lambda: (IMAGE, A.pixel_shuffle(IMAGE, 1)),
    "pixel_unshuffle": lambda: (IMAGE, A.pixel_unshuffle(IMAGE, 1)),
    "repeat": lambda: (X, A.repeat(X, [1, 1, 1])),
    "repeat_interleave": lambda: (X, A.repeat_interleave(X, 1, 0)),
    "roll": lambda: (X, A.roll(X, [0], [0])),
    "sum_to_size": lambda: (X, A.sum_to_size(X, X.shape)),
    "tile": lambda: (X, A.tile(X, [1])),
    "type_as": lambda: (X, A.type_as(X, X)),
    "unsafe_chunk": lambda: (X, A.unsafe_chunk(X, 2)[0]),
    "unsafe_split": lambda: (X, A.unsafe_split(X, 1)[0]),
}

names = set()
for schema in torch._C._jit_get_all_schemas():
    namespace, name = schema.name.split("::", 1)
    marks = (r.alias_info for r in schema.returns)
    if namespace == "aten" and any(m is not None and not m.is_write for m in marks):
        names.add(name)
for name, call in UNMARKED.items():
    try:
        before, after = call()
    except Exception as error:
        print(f"{name}: {error}")
        continue
    if before.untyped_storage().data_ptr() == after.untyped_storage().data_ptr():
        names.add(name)
lines = [f"# torch {torch.__version__.split('+')[0]}, by aliasing.py", *sorted(names)]
Path(__file__).with_suffix(".txt").write_text("\n".join(lines) + "\n")
