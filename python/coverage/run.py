"""Exports common architectures with tiny random weights, runs them in kvark's `InferenceSession` and compares with PyTorch.

    python python/coverage/run.py [--folder DIR] [--table docs/coverage.md] [NAME ...]

Needs `kvark`, torch, transformers and timm. Exports are kept in the folder; delete it to make them again.
"""

import argparse
import re
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch

from architectures import ARCHITECTURES
from document import replace_section

TOLERANCE = 1e-4


def slug(name):
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def export(name, folder):
    """Writes the program and PyTorch's outputs, unless they are there."""
    path, golden = folder / f"{slug(name)}.pt2", folder / f"{slug(name)}.pt"
    if path.exists() and golden.exists():
        return path, golden
    module, args = ARCHITECTURES[name][1]()
    with torch.no_grad():
        outputs = module(*args)
        program = torch.export.export(module, args)
    outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    torch.export.save(program, path)
    torch.save({"args": args, "outputs": tuple(outputs)}, golden)
    return path, golden


def difference(found, truth):
    """The largest difference, in standard deviations of the truth where they are above 1."""
    scale = max(1.0, float(truth.std())) if truth.size > 1 else 1.0
    return float(np.abs(found - truth).max()) / scale


def run(path, golden):
    import kvark

    stored = torch.load(golden)
    session = kvark.InferenceSession(str(path))
    names = [arg.name for arg in session.get_inputs()]
    if len(names) != len(stored["args"]):
        raise ValueError(f"has {len(names)} inputs, must have {len(stored['args'])}")
    feed = {name: value.numpy() for name, value in zip(names, stored["args"])}
    start = time.perf_counter()
    outputs = session.run(None, feed)
    seconds = time.perf_counter() - start
    truths = [truth.numpy() for truth in stored["outputs"]]
    worst = 0.0
    for found, truth in zip(outputs, truths, strict=True):
        if found.shape != truth.shape:
            raise ValueError(f"an output has shape {found.shape}, must be {truth.shape}")
        worst = max(worst, difference(found, truth))
    if not worst <= TOLERANCE:
        raise ValueError(f"differs from PyTorch by {worst:.2g}")
    return worst, seconds


def reason(error):
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="architectures; all by default")
    parser.add_argument("--folder", type=Path, default=Path("target/coverage"))
    parser.add_argument("--table", type=Path, help="write the table of results to this file")
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in ARCHITECTURES]
    if unknown:
        sys.exit(f"no architecture {', '.join(unknown)}; there are {', '.join(ARCHITECTURES)}")
    warnings.filterwarnings("ignore")
    args.folder.mkdir(parents=True, exist_ok=True)
    rows, passed = [], 0
    for name in args.names or ARCHITECTURES:
        family = ARCHITECTURES[name][0]
        try:
            files = export(name, args.folder)
        except Exception as error:
            rows.append((name, family, "not exported", reason(error)))
        else:
            try:
                worst, seconds = run(*files)
                rows.append((name, family, "runs", f"{worst:.1e}"))
                passed += 1
            except Exception as error:
                rows.append((name, family, "does not run", reason(error)))
        print(" | ".join(rows[-1]), flush=True)
    print(f"{passed} of {len(rows)} run")
    if args.table:
        replace_section(args.table, table(rows, passed))


def table(rows, passed):
    import timm
    import transformers

    lines = [
        "# Which architectures run",
        "",
        "`python/coverage/run.py` exports these architectures of transformers and timm with `torch.export` and tiny random weights,",
        f"runs the `.pt2` files in `kvark.InferenceSession` and compares the outputs with PyTorch's: {passed} of {len(rows)} run within",
        f"{TOLERANCE:g} (of a standard deviation of the output where that is above 1). torch {torch.__version__.split('+')[0]},",
        f"transformers {transformers.__version__}, timm {timm.__version__}.",
        "",
        "| architecture | kind | result | largest difference, or why not |",
        "|---|---|---|---|",
    ]
    lines += [f"| {name} | {family} | {result} | {note} |" for name, family, result, note in rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
