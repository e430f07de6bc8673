"""Makes classifier.onnx, its inputs and what `script.py` saves with ONNX Runtime, and types.onnx.

    pip install numpy onnx==1.23.2 onnxruntime==1.31.1
    python python/tests/ort_script/generate.py
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

HERE = Path(__file__).parent
RNG = np.random.default_rng(3)


def noise(*shape):
    return (RNG.standard_normal(shape) * 0.5).astype(np.float32)


def main():
    """A small convolutional classifier whose batch is dynamic: probabilities, and the three best classes."""
    nodes = [
        h.make_node("Conv", ["image", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        h.make_node("Relu", ["c1"], ["r1"]),
        h.make_node("MaxPool", ["r1"], ["p1"], kernel_shape=[2, 2], strides=[2, 2]),
        h.make_node("Conv", ["p1", "w2"], ["c2"], group=4, pads=[1, 1, 1, 1]),
        h.make_node("GlobalAveragePool", ["c2"], ["p2"]),
        h.make_node("Flatten", ["p2"], ["f"]),
        h.make_node("Gemm", ["f", "w3", "b3"], ["logits"], transB=1),
        h.make_node("Softmax", ["logits"], ["probabilities"], axis=-1),
        h.make_node("TopK", ["probabilities", "k"], ["best", "classes"], axis=-1),
    ]
    weights = {
        "w1": noise(4, 3, 3, 3), "b1": noise(4), "w2": noise(8, 1, 3, 3), "w3": noise(10, 8), "b3": noise(10),
        "k": np.array([3], np.int64),
    }
    graph = h.make_graph(
        nodes, "classifier",
        [h.make_tensor_value_info("image", T.FLOAT, ["batch", 3, 8, 8])],
        [
            h.make_tensor_value_info("probabilities", T.FLOAT, ["batch", 10]),
            h.make_tensor_value_info("classes", T.INT64, ["batch", 3]),
        ],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 21)], ir_version=10, producer_name="kvark")
    onnx.checker.check_model(model)
    onnx.save(model, HERE / "classifier.onnx")
    np.savez(HERE / "inputs.npz", image=noise(5, 3, 8, 8))
    arguments = [HERE / "classifier.onnx", HERE / "inputs.npz", HERE / "outputs.npz"]
    subprocess.run([sys.executable, HERE / "script.py", *arguments], check=True)


def types():
    """An identity for each element type, and all that a file says about its model."""
    kinds = [
        T.FLOAT, T.DOUBLE, T.FLOAT16, T.UINT8, T.INT8, T.UINT16, T.INT16, T.UINT32, T.INT32, T.UINT64, T.INT64, T.BOOL,
    ]
    named = {h.tensor_dtype_to_np_dtype(kind).name: kind for kind in kinds}
    graph = h.make_graph(
        [h.make_node("Identity", [name], [f"{name}_out"]) for name in named],
        "types",
        [h.make_tensor_value_info(name, kind, ["n"]) for name, kind in named.items()],
        [h.make_tensor_value_info(f"{name}_out", kind, ["n"]) for name, kind in named.items()],
        doc_string="one identity for each type",
    )
    model = h.make_model(
        graph, opset_imports=[h.make_opsetid("", 21)], ir_version=10, producer_name="generate.py", producer_version="1",
        domain="test.kvark", model_version=3, doc_string="types of elements",
    )
    h.set_model_props(model, {"author": "nobody", "empty": ""})
    onnx.checker.check_model(model)
    onnx.save(model, HERE / "types.onnx")


if __name__ == "__main__":
    main()
    types()
