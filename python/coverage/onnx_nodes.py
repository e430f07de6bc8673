"""Generates ONNX's node tests, runs them with `cargo xtask onnx-node` and writes which pass, are refused or wrong.

    pip install onnx==1.23.2
    python python/coverage/onnx_nodes.py [--folder DIR] [--table docs/coverage.md]

Tests are kept in the folder; delete it to make them again.
"""

import argparse
import collections
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from document import replace_section

VERSION = "1.23.2"

# Ops whose results an inference engine for tensors of numbers does not compute, and why.
WITHOUT_MEANING = {
    "training": ["Adagrad", "Adam", "Momentum", "Gradient"],
    "strings": ["StringConcat", "StringNormalizer", "StringSplit", "RegexFullMatch"],
    "files of images": ["ImageDecoder"],
    "random numbers": ["Bernoulli", "RandomUniform", "RandomUniformLike", "RandomNormal", "RandomNormalLike", "Multinomial"],
    "classic machine learning": ["ai.onnx.ml"],
}


def tensors(values, ports):
    """The messages of a data set's values, one for each port."""
    for value, port in zip(values, ports):
        if isinstance(value, onnx.TensorProto):
            yield value
        elif port.type.HasField("sequence_type"):
            yield numpy_helper.from_list(value, port.name)
        elif port.type.HasField("optional_type"):
            yield numpy_helper.from_optional(value, port.name)
        else:
            yield numpy_helper.from_array(np.asarray(value), port.name)


def generate(folder):
    """Writes a folder for each test, as `cmd_tools generate-data` does for model tests."""
    if onnx.__version__ != VERSION:
        sys.exit(f"the tests are those of onnx {VERSION}, not {onnx.__version__}")
    from onnx.backend.test.case.node import collect_testcases

    warnings.filterwarnings("ignore")
    for case in collect_testcases():
        test = folder / case.name
        test.mkdir(parents=True, exist_ok=True)
        for index, (inputs, outputs) in enumerate(case.data_sets):
            data = test / f"test_data_set_{index}"
            data.mkdir(exist_ok=True)
            for side, values, ports in (("input", inputs, case.model.graph.input), ("output", outputs, case.model.graph.output)):
                for place, message in enumerate(tensors(values, ports)):
                    (data / f"{side}_{place}.pb").write_bytes(message.SerializeToString())
        (test / "model.onnx").write_bytes(case.model.SerializeToString())


def nodes(graph):
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from nodes(attribute.g)


def trains(node):
    """Whether a node is in training mode."""
    return any(a.name == "training_mode" and a.i for a in node.attribute) or (
        node.op_type == "Dropout" and len(node.input) > 2
    )


def describe(test):
    """The op that a test is about, and why it has no meaning in inference, if so."""
    whole = test.with_name(re.sub(r"_expanded(_ver\d+)?$", "", test.name))
    if whole != test and whole.exists():
        return describe(whole)
    model = onnx.load(test / "model.onnx")
    found = list(nodes(model.graph))
    for why, ops in WITHOUT_MEANING.items():
        for node in found:
            if node.op_type in ops or node.domain in ops:
                return node.op_type, why
    for port in (*model.graph.input, *model.graph.output):
        if port.type.tensor_type.elem_type == onnx.TensorProto.STRING:
            return found[0].op_type, "strings"
    if any(trains(node) for node in found):
        return found[0].op_type, "training"
    return found[0].op_type, None


def run(folder):
    """Outcome and reason of every test, by name."""
    command = ["cargo", "xtask", "onnx-node", str(folder)]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout
    return parse(output)


def parse(output):
    results = {}
    for line in output.splitlines():
        match = re.match(r"(test_\S+) (passed|wrong|refused)(?:: (.*))?$", line)
        if match:
            results[match[1]] = (match[2], match[3] or "")
    return results


def shortened(reason):
    """A reason without names of nodes."""
    reason = re.sub(r"^\S*/model\.onnx: ", "", reason)
    reason = re.sub(r"node \S+ ?\([\w.:]+\):? ?", "", reason)
    reason = re.sub(r"the program has unsupported ops: ([\w.:]+) \(node [^)]*\)", r"\1 is not supported", reason)
    reason = re.sub(r'^(tensor )?"\w+" ', "a tensor ", reason)
    reason = reason.replace("a tensor is not a tensor of", "an input or output is not a tensor of")
    return reason.replace("|", "\\|").strip()


def table(results, described):
    counts = collections.Counter(outcome for outcome, _ in results.values())
    meaning = [name for name in results if described[name][1] is None]
    passed = sum(results[name][0] == "passed" for name in meaning)
    excluded = collections.Counter(described[name][1] for name in results if described[name][1])
    lines = [
        "## ONNX's node tests",
        "",
        f"`python/coverage/onnx_nodes.py` generates the node tests of onnx {VERSION} and runs them on the CPU backend: of {len(results)} tests",
        f"**{counts['passed']} pass, {counts['refused']} are refused by name, {counts['wrong']} are wrong**. {len(meaning)} are about ops with a meaning in inference;",
        f"{passed} of these pass ({100 * passed / max(1, len(meaning)):.1f} %). The others are "
        + ", ".join(f"{why} ({count})" for why, count in excluded.most_common())
        + ".",
        "A model whose sizes depend on data runs in stages. Tolerances are those of onnx's own runner (relative 0.001), wider for results",
        "in half width and of Fourier transforms (absolute 0.000001).",
        "",
        "| op | tests | pass | refused | why |",
        "|---|---|---|---|---|",
    ]
    by_op = collections.defaultdict(list)
    for name, (outcome, reason) in results.items():
        by_op[described[name][0]].append((outcome, reason))
    complete = []
    for op, outcomes in sorted(by_op.items()):
        good = sum(outcome == "passed" for outcome, _ in outcomes)
        if good == len(outcomes):
            complete.append(f"{op} ({good})")
            continue
        reasons = collections.Counter(shortened(reason) for outcome, reason in outcomes if outcome != "passed")
        text = "; ".join(f"{reason} ({count})" if count > 1 else reason for reason, count in reasons.most_common(3))
        if len(reasons) > 3:
            text += "; …"
        lines.append(f"| {op} | {len(outcomes)} | {good} | {len(outcomes) - good} | {text} |")
    lines += ["", f"All tests of these {len(complete)} ops pass: {', '.join(complete)}."]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("target/onnx-nodes"))
    parser.add_argument("--log", type=Path, help="read the outcomes from this output of `cargo xtask onnx-node` instead of running it")
    parser.add_argument("--table", type=Path, help="write the section of this page")
    args = parser.parse_args()
    if not args.folder.exists():
        generate(args.folder)
    results = parse(args.log.read_text()) if args.log else run(args.folder.absolute())
    described = {name: describe(args.folder / name) for name in results}
    missing = [test.name for test in args.folder.iterdir() if test.name not in results]
    if missing:
        sys.exit(f"{len(missing)} tests have no outcome, such as {missing[0]}")
    counts = collections.Counter(outcome for outcome, _ in results.values())
    print(", ".join(f"{counts[outcome]} {outcome}" for outcome in ("passed", "refused", "wrong")))
    for name, (outcome, reason) in results.items():
        if outcome == "wrong":
            print(f"wrong: {name}: {reason}")
    if args.table:
        replace_section(args.table, table(results, described))
    sys.exit(bool(counts["wrong"]))


if __name__ == "__main__":
    main()
