"""A program as users of ONNX Runtime write it. `test_inference.py` runs it with the import changed to kvark.

    python python/tests/ort_script/script.py MODEL INPUTS.npz OUTPUTS.npz
"""

import sys

import numpy as np
import onnxruntime as ort

path, inputs_path, outputs_path = sys.argv[1:4]

options = ort.SessionOptions()
options.intra_op_num_threads = 2
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
assert "CPUExecutionProvider" in ort.get_available_providers()
session = ort.InferenceSession(path, sess_options=options, providers=["CPUExecutionProvider"])
assert session.get_providers() == ["CPUExecutionProvider"]

stored = np.load(inputs_path)
types = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
feed = {}
for node in session.get_inputs():
    feed[node.name] = stored[node.name].astype(types[node.type])
    assert len(node.shape) == feed[node.name].ndim
names = [node.name for node in session.get_outputs()]

everything = session.run(None, feed)
assert [np.asarray(array).dtype for array in everything] == [types[node.type] for node in session.get_outputs()]
[last] = session.run([names[-1]], feed)
np.testing.assert_array_equal(last, everything[-1])
swapped = session.run(names[::-1], feed)
for first, second in zip(swapped, everything[::-1]):
    np.testing.assert_array_equal(first, second)

binding = session.io_binding()
for name, array in feed.items():
    binding.bind_cpu_input(name, array)
for name in names:
    binding.bind_output(name)
session.run_with_iobinding(binding)
for bound, plain in zip(binding.copy_outputs_to_cpu(), everything):
    np.testing.assert_array_equal(bound, plain)

np.savez(outputs_path, **dict(zip(names, everything)))
