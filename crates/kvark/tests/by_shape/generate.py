"""Writes models whose sizes no polynomial of the inputs' sizes gives, and what their own frameworks compute (`*.json`).

    PYTHONPATH=python python crates/kvark/tests/by_shape/generate.py

The ONNX model's outputs are ONNX Runtime's, the others' PyTorch's. Needs onnx 1.23.2, onnxruntime 1.31.1, torch 2.15.0 and
executorch 1.5.1.
"""

import json
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from kvark_export.archive import export_module

warnings.filterwarnings("ignore")
HERE = Path(__file__).parent
SHAPES = ((1, 3, 16, 20), (2, 3, 13, 9), (1, 3, 21, 33))


def tensor(array) -> dict:
    array = np.asarray(array)
    data = [float(f"{x:.8g}") for x in array.flatten().tolist()]
    return {"shape": list(array.shape), "data": data}


def golden(name, cases) -> None:
    cases = [{"inputs": [tensor(x) for x in inputs], "outputs": [tensor(y) for y in outputs]} for inputs, outputs in cases]
    (HERE / f"{name}.json").write_text(json.dumps(cases, separators=(",", ":")) + "\n")


def pyramid_onnx() -> None:
    """Strided windows, a resize to the size of another tensor, and a reshape of what follows from them."""
    noise = np.random.default_rng(7)
    weights = {
        "stem": noise.normal(0, 0.3, (8, 3, 3, 3)),
        "down": noise.normal(0, 0.2, (8, 8, 3, 3)),
        "head": noise.normal(0, 0.2, (5, 16, 1, 1)),
    }
    constants = {"two": [2], "end": [4], "scales": [], "split": [0, 5, -1]}
    initializers = [numpy_helper.from_array(w.astype(np.float32), name) for name, w in weights.items()]
    initializers += [
        numpy_helper.from_array(np.array(list_, np.float32 if name == "scales" else np.int64), name)
        for name, list_ in constants.items()
    ]
    strided = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["image", "stem"], ["fine"], **strided),
        helper.make_node("Relu", ["fine"], ["fine_on"]),
        helper.make_node("MaxPool", ["fine_on"], ["pooled"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        helper.make_node("Conv", ["pooled", "down"], ["coarse"], **strided),
        helper.make_node("Shape", ["coarse"], ["coarse_shape"]),
        helper.make_node("Shape", ["fine"], ["fine_shape"]),
        helper.make_node("Slice", ["coarse_shape", "zero", "two"], ["outer"]),
        helper.make_node("Slice", ["fine_shape", "two", "end"], ["inner"]),
        helper.make_node("Concat", ["outer", "inner"], ["sizes"], axis=0),
        helper.make_node("Resize", ["coarse", "", "scales", "sizes"], ["up"], mode="nearest",
                         coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        helper.make_node("Concat", ["fine_on", "up"], ["both"], axis=1),
        helper.make_node("Conv", ["both", "head"], ["scores"], kernel_shape=[1, 1]),
        helper.make_node("Reshape", ["scores", "split"], ["rows"]),
        helper.make_node("Softmax", ["rows"], ["classes"], axis=1),
    ]
    initializers.append(numpy_helper.from_array(np.array([0], np.int64), "zero"))
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, "height", "width"])
    classes = helper.make_tensor_value_info("classes", TensorProto.FLOAT, ["batch", 5, "places"])
    graph = helper.make_graph(nodes, "pyramid", [image], [classes], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    path = HERE / "pyramid.onnx"
    onnx.save(model, path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    cases = []
    for shape in SHAPES:
        x = noise.normal(0, 1, shape).astype(np.float32)
        cases.append(([x], session.run(None, {"image": x})))
    golden("pyramid_onnx", cases)


def branches_onnx() -> None:
    """A branch chosen by an integer that the caller gives."""
    value = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)  # noqa: E731
    double = helper.make_graph([helper.make_node("Add", ["x", "x"], ["twice"])], "double", [], [value("twice", ["n"])])
    negate = helper.make_graph([helper.make_node("Neg", ["x"], ["minus"])], "negate", [], [value("minus", ["n"])])
    nodes = [
        helper.make_node("Equal", ["rate", "wanted"], ["is_wanted"]),
        helper.make_node("If", ["is_wanted"], ["y"], then_branch=double, else_branch=negate),
    ]
    rate = helper.make_tensor_value_info("rate", TensorProto.INT64, [])
    wanted = numpy_helper.from_array(np.array(16000, np.int64), "wanted")
    graph = helper.make_graph(nodes, "branches", [value("x", ["n"]), rate], [value("y", ["n"])], [wanted])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, HERE / "branches.onnx")


def detect_onnx() -> None:
    """Boxes that remain of overlapping ones, the five best of them, and a branch that depends on whether there are any."""
    noise = np.random.default_rng(11)
    value = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)  # noqa: E731
    node = helper.make_node
    some = helper.make_graph([node("ReduceMax", ["conf"], ["some"], keepdims=0)], "some", [], [value("some", [])])
    none = helper.make_graph([node("Neg", ["one"], ["none"])], "none", [], [value("none", [])])
    constants = {
        "weight": noise.normal(0, 1, (6, 3)).astype(np.float32),
        "most": np.array([4]),
        "overlap": np.array([0.3], np.float32),
        "score": np.array([0.6], np.float32),
        "box": np.array([0, 2]),
        "five": np.array([5]),
        "zero": np.array(0),
        "one": np.array(1, np.float32),
    }
    nodes = [
        node("MatMul", ["features", "weight"], ["raw"]),
        node("Sigmoid", ["raw"], ["probability"]),
        node("Transpose", ["probability"], ["scores"], perm=[0, 2, 1]),
        node("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "score"], ["chosen"]),
        node("Gather", ["chosen", "box"], ["places"], axis=1),
        node("GatherND", ["boxes", "places"], ["picked"]),
        node("GatherND", ["scores", "chosen"], ["conf"]),
        node("Shape", ["conf"], ["count"]),
        node("Min", ["count", "five"], ["k"]),
        node("TopK", ["conf", "k"], ["top", "at"]),
        node("Gather", ["picked", "at"], ["best"], axis=0),
        node("ReduceSum", ["count"], ["all"], keepdims=0),
        node("Greater", ["all", "zero"], ["any"]),
        node("If", ["any"], ["highest"], then_branch=some, else_branch=none),
        node("Add", ["top", "highest"], ["raised"]),
    ]
    inputs = [value("boxes", ["batch", "boxes", 4]), value("features", ["batch", "boxes", 6])]
    outputs = [value("best", ["found", 4]), value("raised", ["found"]), value("highest", [])]
    stored = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "detect", inputs, outputs, stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    path = HERE / "detect.onnx"
    onnx.save(model, path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    cases = []
    for count, scale in ((12, 1), (12, 1), (12, 0), (30, 1), (1, 1)):
        centre, size = noise.uniform(0, 10, (2, count, 2)), noise.uniform(0.5, 4, (2, count, 2))
        boxes = np.concatenate([centre - size / 2, centre + size / 2], -1).astype(np.float32)
        features = scale * noise.normal(0, 1, (2, count, 6)).astype(np.float32)
        cases.append(([boxes, features], session.run(None, {"boxes": boxes, "features": features})))
    golden("detect", cases)


class Pyramid(nn.Module):
    """The same in PyTorch."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.down = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.head = nn.Conv2d(16, 5, 1)

    def forward(self, image):
        fine = torch.relu(self.norm(self.stem(image)))
        coarse = self.down(nn.functional.max_pool2d(fine, 3, stride=2, padding=1))
        up = nn.functional.interpolate(coarse, size=fine.shape[-2:], mode="nearest")
        scores = self.head(torch.cat((fine, up), 1))
        return scores.flatten(2).softmax(1), scores.mean((2, 3))


class Audio(nn.Module):
    """A waveform whose length is a multiple of a dynamic number."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv1d(1, 6, 8, stride=4), nn.Conv1d(6, 4, 3, stride=2)

    def forward(self, wave):
        frames = self.second(torch.tanh(self.first(wave)))
        return frames.transpose(1, 2).reshape(-1, 4)


def programs() -> None:
    torch.manual_seed(5)
    module = Pyramid().eval()
    with torch.no_grad():
        module.norm.running_mean.normal_(0, 0.2)
        module.norm.running_var.uniform_(0.5, 2)
    batch = torch.export.Dim("batch", min=1, max=8)
    height, width = (torch.export.Dim(name, min=9, max=64) for name in ("height", "width"))
    inputs = [(torch.randn(shape),) for shape in SHAPES]
    shapes = ({0: batch, 2: height, 3: width},)
    example = (torch.randn(2, 3, 24, 28),)
    with torch.no_grad():
        program = export_module(module, example, HERE / "pyramid.pt2", dynamic_shapes=shapes)
        golden("pyramid", [(args, module(*args)) for args in inputs])
    executorch(program, "pyramid")

    module, count = Audio().eval(), torch.export.Dim("count", min=4, max=500)
    inputs = [(torch.randn(1, 1, 16 * n),) for n in (5, 9, 32)]
    with torch.no_grad():
        export_module(module, (torch.randn(1, 1, 160),), HERE / "audio.pt2", dynamic_shapes=({2: 16 * count},))
        golden("audio", [(args, [module(*args)]) for args in inputs])


def executorch(program, name) -> None:
    from executorch.exir import EdgeCompileConfig, to_edge

    edge = to_edge(program, compile_config=EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True))
    (HERE / f"{name}.pte").write_bytes(edge.to_executorch().buffer)


if __name__ == "__main__":
    pyramid_onnx()
    branches_onnx()
    detect_onnx()
    programs()
