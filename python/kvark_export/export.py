"""`export`: a model from a notebook, a folder or a file to a `.pt2`. The command line calls the same function."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from .archive import export_module, save
from .decoder import export_decoder, facts
from .load import load


def export(
    model: torch.nn.Module | str | os.PathLike,
    path: str | os.PathLike,
    args: tuple | None = None,
    *,
    dynamic_shapes: Any = None,
    features: bool | Sequence[int] = False,
    max_step: int = 2048,
    say: Callable[[str], None] = lambda text: None,
) -> torch.export.ExportedProgram:
    """Exports a model and returns its program.

    A Hugging Face decoder, or the path of a folder or GGUF file, becomes a decoder on kvark's caches. Any other module is
    exported as it is, with example `args`. `features` adds an output for a draft head: the inputs of these layers, or of
    layers 2, L/2 and L-3 if it is `True`. `say` is told what is being done.
    """
    extra = None
    if not isinstance(model, torch.nn.Module):
        say(f"loading {model}")
        model, extra = load(Path(model))
    if isinstance(model, PreTrainedModel) and args is None:
        config = model.config
        say(f"{config.model_type} with {config.num_hidden_layers} layers; tracing")
        _, program = export_decoder(model, features=features, max_step=max_step)
        say(f"{len(program.graph.nodes)} nodes; writing {path}")
        steps = min(max_step, config.max_position_embeddings)
        save(program, path, metadata=facts(config, steps, features), extra_files=extra)
        return program
    if args is None:
        raise ValueError("a module that is not a Hugging Face decoder is exported with example args")
    return export_module(model, args, path, dynamic_shapes=dynamic_shapes)
