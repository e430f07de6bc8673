"""Writes reproducible `.pt2` archives, without paths, stack traces and time stamps."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch.export.pt2_archive._package import package_pt2

#: Extra files that kvark looks for; see `crates/import/src/pt2/extra.rs`.
METADATA = "kvark/metadata.json"
SIZE_NAMES = "kvark/size_names.json"
#: Fields of a node that are of use to Python's debuggers only, and hold absolute paths.
DEBUG_FIELDS = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node")


def export_module(
    module: torch.nn.Module,
    args: tuple,
    path: str | os.PathLike,
    *,
    kwargs: dict | None = None,
    dynamic_shapes: Any = None,
    metadata: dict | None = None,
    extra_files: dict[str, str] | None = None,
) -> torch.export.ExportedProgram:
    """Exports a module unchanged and saves it for kvark; returns the program, for comparisons."""
    with torch.no_grad():
        program = torch.export.export(module.eval(), args, kwargs, dynamic_shapes=dynamic_shapes)
    names = size_names(program, dynamic_shapes)
    extra = {**({SIZE_NAMES: json.dumps({"forward": names})} if names else {}), **(extra_files or {})}
    save(program, path, metadata=metadata, extra_files=extra)
    return program


def size_names(program: torch.export.ExportedProgram, dynamic_shapes: Any) -> dict[str, str]:
    """The names that the caller's `Dim`s give to the program's symbols, which PyTorch's file has no place for."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    inputs = [values.get(name) for name in program.graph_signature.user_inputs]
    specs = list(dynamic_shapes.values()) if isinstance(dynamic_shapes, dict) else list(dynamic_shapes or ())
    if len(specs) != len(inputs):
        return {}
    names = {}
    for value, spec in zip(inputs, specs):
        axes = spec.items() if isinstance(spec, dict) else enumerate(spec) if isinstance(spec, (list, tuple)) else ()
        for axis, dim in axes:
            size = value.shape[axis] if isinstance(value, torch.Tensor) and isinstance(axis, int) else None
            # A multiple of a `Dim` has that as its root.
            name = getattr(getattr(dim, "root", dim), "__name__", None)
            if isinstance(size, torch.SymInt) and isinstance(name, str):
                symbols = size.node.expr.free_symbols
                names.update({str(symbol): name for symbol in symbols if len(symbols) == 1})
    return names if len(set(names.values())) == len(names) else {}


def save(
    programs: torch.export.ExportedProgram | dict[str, torch.export.ExportedProgram],
    path: str | os.PathLike,
    *,
    metadata: dict | None = None,
    extra_files: dict[str, str] | None = None,
) -> None:
    """Saves one program, or several as methods by name, with metadata and extra files inside."""
    extra = dict(extra_files or {})
    if metadata:
        extra[METADATA] = json.dumps(metadata, indent=1)
    path = Path(path)
    raw = path.with_name(path.name + ".part.pt2")
    try:
        package_pt2(raw, exported_programs=programs, extra_files=extra or None)
        rewrite(raw, path)
    finally:
        raw.unlink(missing_ok=True)


def rewrite(source: Path, target: Path) -> None:
    """Copies an archive without stack traces and time stamps; weights stay aligned to 64 bytes."""
    root = target.stem
    partial = target.with_name(target.name + ".part")
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as new:
        for info in old.infolist():
            # The archive's first folder is named after the file.
            name = info.filename.split("/", 1)[-1]
            if name == ".data/serialization_id":
                continue
            data = old.read(info)
            if name.startswith("models/") and name.endswith(".json"):
                data = json.dumps(strip(json.loads(data)), separators=(",", ":")).encode()
            entry = zipfile.ZipInfo(f"{root}/{name}", date_time=(1980, 1, 1, 0, 0, 0))
            align(new, entry)
            new.writestr(entry, data)
    os.replace(partial, target)


def align(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, to: int = 64) -> None:
    """Pads an entry's extra field so that its data begins at a multiple of `to` bytes."""
    header = 30 + len(entry.filename.encode()) + 4
    missing = -(archive.fp.tell() + header) % to
    # "FB" is the field that PyTorch's own writer pads with.
    entry.extra = b"FB" + missing.to_bytes(2, "little") + b"Z" * missing


def strip(value: Any) -> Any:
    """Removes Python debug fields from a model's JSON."""
    if isinstance(value, dict):
        return {
            key: {k: v for k, v in inner.items() if k not in DEBUG_FIELDS}
            if key == "metadata" and isinstance(inner, dict)
            else strip(inner)
            for key, inner in value.items()
            if key != "guards_code"
        }
    if isinstance(value, list):
        return [strip(inner) for inner in value]
    return value
