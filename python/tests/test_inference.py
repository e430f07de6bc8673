"""`InferenceSession` on arrays: ONNX Runtime's interface, inputs that are not copied, outputs in the caller's memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

try:
    import kvark
    import numpy as np
except ModuleNotFoundError as error:
    if error.name not in ("kvark", "numpy"):
        raise
    pytest.skip(f"{error.name} is not installed (pip install .)", allow_module_level=True)

HERE = Path(__file__).parent / "ort_script"
MODEL = HERE / "classifier.onnx"


@pytest.fixture
def session():
    return kvark.InferenceSession(MODEL, threads=2)


@pytest.fixture
def image():
    return np.load(HERE / "inputs.npz")["image"]


def address(array):
    return array.__array_interface__["data"][0]


def test_a_script_for_onnx_runtime_runs_with_the_import_changed(tmp_path):
    script = (HERE / "script.py").read_text()
    assert "import onnxruntime as ort" in script
    changed = tmp_path / "script.py"
    changed.write_text(script.replace("import onnxruntime as ort", "import kvark as ort"))
    out = tmp_path / "outputs.npz"
    run = subprocess.run(
        [sys.executable, changed, MODEL, HERE / "inputs.npz", out], capture_output=True, text=True, env=os.environ
    )
    assert run.returncode == 0, run.stderr
    found, truth = np.load(out), np.load(HERE / "outputs.npz")
    assert set(found.files) == set(truth.files)
    np.testing.assert_allclose(found["probabilities"], truth["probabilities"], atol=1e-5)
    np.testing.assert_array_equal(found["classes"], truth["classes"])


def test_inputs_are_read_where_they_are(session, image):
    session.run(None, {"image": image})
    assert session.input_addresses == {"image": address(image)}
    # A part of an array that is in row-major order is not copied either.
    part = image[2:4]
    session.run(None, {"image": part})
    assert session.input_addresses == {"image": address(part)}
    # Another order is.
    turned = np.asfortranarray(image)
    first = session.run(None, {"image": turned})
    assert session.input_addresses != {"image": address(turned)}
    second = session.run(None, {"image": image})
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


class Shared:
    """An array of another library."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_dlpack_objects_are_read_where_they_are(session, image):
    truth = session.run(None, {"image": image})
    found = session.run(None, {"image": Shared(image)})
    assert session.input_addresses == {"image": address(image)}
    for a, b in zip(found, truth, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_binding_writes_to_the_callers_arrays(session, image):
    probabilities, classes = session.run(None, {"image": image})
    memory = np.zeros((5, 10), np.float32)
    binding = session.io_binding()
    binding.bind_cpu_input("image", image)
    binding.bind_output("classes")
    binding.bind_output("probabilities", memory)
    for _ in range(2):
        memory[:] = 0
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(memory, probabilities)
        first, second = binding.get_outputs()
        np.testing.assert_array_equal(first, classes)
        assert second is memory
    # Only what is bound is given.
    binding.clear_binding_outputs()
    binding.bind_output("classes", np.zeros((5, 3), np.int64))
    session.run_with_iobinding(binding)
    assert len(binding.get_outputs()) == 1


def test_memory_that_does_not_fit_is_refused(session, image):
    frozen = np.zeros((5, 10), np.float32)
    frozen.flags.writeable = False
    table = [
        (np.zeros((5, 9), np.float32), r"shape \[5, 9\], must be \[5, 10\]"),
        (np.zeros((5, 10), np.int64), "is i64, must be f32"),
        (np.zeros((5, 10), np.float64), "float32, int64, int32 or bool"),
        (np.zeros((10, 5), np.float32).T, "row-major"),
        (frozen, "read-only"),
    ]
    for array, message in table:
        with pytest.raises(kvark.errors.InvalidArgumentError, match=message):
            session.run_into({"image": image}, {"probabilities": array})
    with pytest.raises(kvark.errors.InvalidArgumentError, match="no output"):
        session.run_into({"image": image}, {"nothing": None})
    # An input must not change while it is read.
    square = np.zeros((5, 10), np.float32)
    with pytest.raises(kvark.KvarkError):
        session.run_into({"image": square}, {"probabilities": square})


def test_providers_are_named():
    with pytest.raises(kvark.errors.InvalidArgumentError, match="no provider"):
        kvark.InferenceSession(MODEL, providers=["TensorrtExecutionProvider"])
    session = kvark.InferenceSession(MODEL, providers=[("CPUExecutionProvider", {})])
    assert session.get_providers() == ["CPUExecutionProvider"]


def test_a_decoder_with_static_buffers_continues_and_rewinds():
    path = Path(__file__).parents[2] / "crates/kvark/tests/onnx/llama.onnx"
    whole = kvark.ScatterDecoder(path, threads=2).feed([[3, 14, 15, 9]])["logits"]
    decoder = kvark.ScatterDecoder(path, sequences=2, threads=2)
    decoder.feed([[3, 14, 15], [7]])
    assert decoder.lengths == [3, 1]
    first = decoder.feed([[9], [8]])["logits"]
    assert first.shape == (2, 1, 32)
    np.testing.assert_allclose(first[0, 0], whole[0, 3], atol=1e-5)
    decoder.rewind(0, 3)
    assert decoder.lengths == [3, 2]
    np.testing.assert_array_equal(decoder.feed([[9], [1]])["logits"][0], first[0])
    with pytest.raises(kvark.KvarkError, match="max_seq_len"):
        decoder.feed([[1] * 17, []])
    with pytest.raises(kvark.KvarkError, match="no static buffers"):
        kvark.ScatterDecoder(path.with_name("llama_past.onnx"))


def test_buffers_that_a_model_writes_to_are_states():
    fixtures = Path(__file__).parents[2] / "crates/import/tests/fixtures/pt2"
    session = kvark.InferenceSession(fixtures / "states.pt2", method="counter", threads=1)
    x = {"x": np.zeros(2, np.float32)}
    assert [(arg.name, arg.shape) for arg in session.get_states()] == [("n", [])]
    assert [session.run(None, x)[0][0] for _ in range(3)] == [1, 2, 3]
    saved = session.state_dict()
    assert saved["n"] == 3
    assert session.run(None, x)[0][0] == 4
    session.load_state_dict(saved)
    assert session.run(None, x)[0][0] == 4
    with pytest.raises(kvark.errors.KvarkError, match="there|does not exist"):
        session.load_state_dict({"n": np.array(7), "m": np.array(7)})
    with pytest.raises(kvark.errors.KvarkError):
        session.run_into(x, {session.get_outputs()[0].name: np.zeros(3, np.float32)})
    assert session.state_dict()["n"] == 4
    session.reset_states()
    assert session.run(None, x)[0][0] == 1
