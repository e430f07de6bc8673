"""Runs ONNX files in kvark and in ONNX Runtime by turns and prints a table of times, ratios and differences.

    python python/coverage/onnx_speed.py [--threads 1,2] [--rounds 7] [--size NAME=N ...] FILE.onnx ...

Inputs are random f32 numbers; a size that a file leaves open is that of --size, or else 1. Needs `kvark`, numpy, onnx and
onnxruntime. Both runtimes get the same threads and no other options; nothing else should run on the machine.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import kvark
import numpy as np
import onnx
import onnxruntime


def with_fixed_sizes(path, sizes, folder):
    """A copy of the file whose inputs have constant sizes."""
    model = onnx.load(path)
    weights = {tensor.name for tensor in model.graph.initializer}
    for tensor in model.graph.input:
        if tensor.name in weights:
            continue
        for dim in tensor.type.tensor_type.shape.dim:
            if dim.WhichOneof("value") != "dim_value" or dim.dim_value < 1:
                dim.dim_value = sizes.get(dim.dim_param, 1)
    for tensor in model.graph.output:
        tensor.type.tensor_type.ClearField("shape")
    copy = Path(folder) / Path(path).name
    onnx.save(model, copy)
    return str(copy)


def sessions(path, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    other = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    own = kvark.SessionOptions()
    own.intra_op_num_threads = threads
    return kvark.InferenceSession(path, own), other


def seconds(run):
    # The other runtime's threads spin for a while after a run.
    time.sleep(0.1)
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def difference(found, truth):
    """The largest difference of an output, relative to its largest magnitude."""
    pairs = [(a.astype("f8"), b.astype("f8")) for a, b in zip(found, truth) if b.size]
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) for a, b in pairs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--threads", default="1,2", help="numbers of threads (default: 1,2)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--size", action="append", default=[], metavar="NAME=N")
    args = parser.parse_args()
    sizes = {name: int(number) for name, number in (size.split("=") for size in args.size)}
    print("| file | threads | kvark (ms) | ONNX Runtime (ms) | ratio | least to most | difference |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        for path in args.files:
            copy = with_fixed_sizes(path, sizes, folder)
            for threads in map(int, args.threads.split(",")):
                try:
                    own, other = sessions(copy, threads)
                except Exception as error:
                    print(f"| {Path(path).name} | {threads} | refused: {error} | | | | |", flush=True)
                    break
                noise = np.random.default_rng(1)
                feed = {i.name: noise.standard_normal(i.shape).astype("f4") for i in other.get_inputs()}
                far = difference(own.run(None, feed), other.run(None, feed))
                pairs = [
                    (seconds(lambda: own.run(None, feed)), seconds(lambda: other.run(None, feed)))
                    for _ in range(args.rounds)
                ]
                mine, theirs = (statistics.median(side) * 1e3 for side in zip(*pairs))
                ratios = sorted(a / b for a, b in pairs)
                print(
                    f"| {Path(path).name} | {threads} | {mine:.1f} | {theirs:.1f} | {statistics.median(ratios):.2f} "
                    f"| {ratios[0]:.2f} to {ratios[-1]:.2f} | {far:.0e} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
