"""`kvark.export`: PyTorch models to `.pt2` files, by the package `kvark_export`."""

from __future__ import annotations

import importlib
from os import PathLike
from typing import Any


def export(model: Any, path: str | PathLike[str], args: tuple[Any, ...] | None = None, **options: Any) -> Any:
    """Exports a Hugging Face decoder, a folder, a GGUF file, or any module with example `args`; returns the program.

    The options are those of `kvark_export.export.export`: `dynamic_shapes`, `features`, `max_step`, `say`.
    """
    try:
        exporter = importlib.import_module("kvark_export.export")
    except ModuleNotFoundError as error:
        hint = "kvark.export needs PyTorch: pip install 'PATH/TO/KVARK[export]'"
        raise ModuleNotFoundError(f"{hint} ({error})", name=error.name) from error
    return exporter.export(model, path, args, **options)
