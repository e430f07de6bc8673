"""`python -m kvark_export MODEL -o model.pt2`."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from pathlib import Path


def layer_list(text: str) -> list[int]:
    """The layers of `2,15,27`."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of layers such as 2,15,27") from None


def main(arguments: list[str] | None = None) -> int:
    """Exports one model; 0 when it is written."""
    parser = argparse.ArgumentParser(
        prog="python -m kvark_export",
        description="Export a Hugging Face folder or a GGUF file (llama, qwen2, qwen3, gemma2, gemma3, gpt2) to a .pt2 for kvark.",
    )
    parser.add_argument("model", metavar="MODEL", type=Path, help="a folder with config.json and weights, or a .gguf file")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the .pt2 to write")
    parser.add_argument("--features", action="store_true", help="second output for Eagle3: inputs to layers 2, L/2, L-3")
    parser.add_argument("--feature-layers", type=layer_list, metavar="N,N,N", help="like --features, with the inputs to these layers")
    parser.add_argument("--max-step", type=int, default=2048, metavar="N", help="maximum number of tokens in one step (default 2048)")
    options = parser.parse_args(arguments)
    if options.output.suffix != ".pt2":
        parser.error(f"{options.output} does not end in .pt2")
    if options.max_step < 2:
        parser.error("--max-step must be at least 2")

    started = time.monotonic()

    def say(what: str) -> None:
        print(f"[{time.monotonic() - started:6.1f}s] {what}", file=sys.stderr, flush=True)

    warnings.filterwarnings("ignore")
    say("importing torch and transformers")
    # Slow to import, so imported after the arguments were checked.
    from transformers.utils import logging as transformers_logging

    from .decoder import ExportError
    from .export import export

    logging.getLogger("torch").setLevel(logging.ERROR)
    transformers_logging.set_verbosity_error()
    try:
        export(options.model, options.output, features=options.feature_layers or options.features, max_step=options.max_step, say=say)
    except (ExportError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    say(f"done: {options.output.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
