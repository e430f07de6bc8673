"""`InferenceSession` on arrays: ONNX Runtime's interface, inputs that are not copied, outputs in the caller's memory."""

import os
import subprocess
import sys
import threading
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
TYPES = HERE / "types.onnx"


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
        first, second = binding.copy_outputs_to_cpu()
        np.testing.assert_array_equal(first, classes)
        assert second is memory
        assert [value.data_type() for value in binding.get_outputs()] == ["tensor(int64)", "tensor(float)"]
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
        (np.zeros((5, 10), np.int64), "numpy array of float32"),
        (np.zeros((5, 10), np.float64), "numpy array of float32"),
        (np.zeros((5, 10), ">f4"), "byte order"),
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
    # Unknown ones are skipped, and the CPU comes last.
    with pytest.warns(UserWarning, match="no provider"):
        session = kvark.InferenceSession(MODEL, providers=["TensorrtExecutionProvider"])
    assert session.get_providers() == ["CPUExecutionProvider"]
    session.set_providers(["CPUExecutionProvider"])
    available = kvark.get_available_providers()
    assert available[-1] == "CPUExecutionProvider"
    assert kvark.get_device() == ("GPU" if "CUDAExecutionProvider" in available else "CPU")
    if "CUDAExecutionProvider" not in available:
        # One that this machine lacks is skipped, too.
        with pytest.warns(UserWarning, match="not available"):
            session = kvark.InferenceSession(MODEL, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
        assert session.get_providers() == ["CPUExecutionProvider"]
        with pytest.raises(kvark.KvarkError):
            kvark.InferenceSession(MODEL, device="cuda")
    session = kvark.InferenceSession(MODEL, providers=[("CPUExecutionProvider", {})])
    assert session.get_providers() == ["CPUExecutionProvider"]


def test_a_model_may_be_bytes(session, image):
    found = kvark.InferenceSession(MODEL.read_bytes(), threads=2)
    for a, b in zip(found.run(None, {"image": image}), session.run(None, {"image": image}), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(kvark.KvarkError):
        kvark.InferenceSession(b"no model")


def test_what_a_file_says_about_its_model():
    about = kvark.InferenceSession(TYPES).get_modelmeta()
    assert (about.graph_name, about.graph_description) == ("types", "one identity for each type")
    assert (about.producer_name, about.domain, about.version) == ("generate.py", "test.kvark", 3)
    assert (about.description, about.custom_metadata_map) == ("types of elements", {"author": "nobody", "empty": ""})
    options = kvark.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = kvark.InferenceSession(TYPES, options)
    assert session.get_session_options() is options
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert session.get_provider_options() == {"CPUExecutionProvider": {}}


#: numpy's types, ONNX Runtime's names of them, and elements that each can hold.
ELEMENTS = [
    ("float32", "float", [0.5, -2.25]),
    ("float64", "double", [0.5, -2.25]),
    ("float16", "float16", [0.5, -65504.0]),
    ("uint8", "uint8", [0, 255]),
    ("int8", "int8", [-128, 127]),
    ("uint16", "uint16", [0, 65535]),
    ("int16", "int16", [-32768, 32767]),
    ("uint32", "uint32", [0, 2**32 - 1]),
    ("int32", "int32", [-(2**31), 2**31 - 1]),
    ("uint64", "uint64", [0, 2**63 - 1]),
    ("int64", "int64", [-(2**63), 2**63 - 1]),
    ("bool", "bool", [True, False]),
]

#: Types that kvark computes in.
NATIVE = {"float32", "int32", "int64", "bool"}


def test_arrays_have_the_types_that_the_file_declares():
    session = kvark.InferenceSession(TYPES)
    declared = [(arg.name, arg.type, arg.shape) for arg in session.get_inputs()]
    assert declared == [(name, f"tensor({kind})", ["n"]) for name, kind, _ in ELEMENTS]
    assert [arg.type for arg in session.get_outputs()] == [kind for _, kind, _ in declared]
    feed = {name: np.array(elements, name) for name, _, elements in ELEMENTS}
    for (name, _, _), array in zip(ELEMENTS, session.run(None, feed), strict=True):
        assert array.dtype == name
        np.testing.assert_array_equal(array, feed[name])
    # Lists and other byte orders are converted; arrays of another type are refused.
    lists = {name: elements for name, _, elements in ELEMENTS}
    lists["float32"] = np.array(lists["float32"], ">f4")
    for (name, _, _), array in zip(ELEMENTS, session.run(None, lists), strict=True):
        assert array.dtype == name
        np.testing.assert_array_equal(array, feed[name])
    for name, wrong in [("float16", "float32"), ("uint8", "int64"), ("float32", "float64"), ("bool", "uint8")]:
        with pytest.raises(kvark.errors.InvalidArgumentError, match=f"{name}.* is {wrong}, must be {name}"):
            session.run(None, feed | {name: feed[name].astype(wrong)})
    with pytest.raises(kvark.errors.InvalidArgumentError, match="2\\*\\*63"):
        session.run(None, feed | {"uint64": np.array([0, 2**63], np.uint64)})
    # Outputs are written to arrays of their types, also to some that are not in row-major order.
    outputs = {f"{name}_out": np.zeros(4, name)[::2] for name, _, _ in ELEMENTS if name not in NATIVE}
    session.run_into(feed, outputs)
    for name, array in outputs.items():
        np.testing.assert_array_equal(array, feed[name.removesuffix("_out")])
    with pytest.raises(kvark.errors.InvalidArgumentError, match="numpy array of float16"):
        session.run_into(feed, {"float16_out": np.zeros(2, np.float32)})
    with pytest.raises(kvark.errors.InvalidArgumentError, match="shape"):
        session.run_into(feed, {"float16_out": np.zeros(3, np.float16)})


def test_inputs_and_outputs_are_bound_by_address(session, image):
    probabilities, classes = session.run(None, {"image": image})
    memory = np.zeros(probabilities.shape, np.float32)
    binding = session.io_binding()
    binding.bind_input("image", "cpu", 0, np.float32, image.shape, image.ctypes.data)
    binding.bind_output("classes", "cpu")
    binding.bind_output("probabilities", "cpu", 0, 1, memory.shape, memory.ctypes.data)
    session.run_with_iobinding(binding, kvark.RunOptions())
    np.testing.assert_array_equal(memory, probabilities)
    np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), classes)
    assert session.input_addresses == {"image": address(image)}
    with pytest.raises(kvark.errors.InvalidArgumentError, match="'cuda'"):
        binding.bind_input("image", "cuda", 0, np.float32, image.shape, image.ctypes.data)


def test_tensors_of_onnx_runtime(session, image):
    truth = session.run(["probabilities"], {"image": image})[0]
    value = kvark.OrtValue.ortvalue_from_numpy(image)
    assert (value.shape(), value.data_type(), value.device_name()) == (list(image.shape), "tensor(float)", "cpu")
    assert value.data_ptr() == address(image)
    [found] = session.run_with_ort_values(["probabilities"], {"image": value})
    np.testing.assert_array_equal(found.numpy(), truth)
    np.testing.assert_array_equal(np.asarray(found), truth)
    output = kvark.OrtValue.ortvalue_from_shape_and_type(truth.shape, np.float32)
    binding = session.io_binding()
    binding.bind_ortvalue_input("image", value)
    binding.bind_ortvalue_output("probabilities", output)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(output.numpy(), truth)
    value.update_inplace(np.zeros_like(image))
    with pytest.raises(kvark.errors.InvalidArgumentError):
        value.update_inplace(np.zeros(1, np.float32))


def test_threads_may_run_one_session(session, image):
    parts = [image[at % 4 : at % 4 + 2].copy() for at in range(8)]
    truth = [session.run(None, {"image": part}) for part in parts]
    failures = []

    def work(at):
        for _ in range(20):
            found = session.run(None, {"image": parts[at]})
            for a, b in zip(found, truth[at], strict=True):
                if not np.array_equal(a, b):
                    failures.append(at)

    threads = [threading.Thread(target=work, args=[at]) for at in range(len(parts))]
    for thread in threads:
        thread.start()
    # Calls that look at the session wait for their turn without the interpreter's lock.
    for _ in range(20):
        assert session.get_states() == [] and session.arena_bytes >= 0
    for thread in threads:
        thread.join()
    assert not failures


def test_runs_of_one_session_go_on_beside_each_other(image):
    session = kvark.InferenceSession(MODEL, threads=1, executor="interpreted")
    truth = session.run(None, {"image": image})
    found = []

    def trace(_name, _op, _array):
        # The traced run is not over before the other one is.
        if not found:
            runner = threading.Thread(target=lambda: found.extend(session.run(None, {"image": image})))
            runner.start()
            runner.join()

    session.run_traced(None, {"image": image}, trace)
    for a, b in zip(found, truth, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_traced_run_does_not_block_the_interpreter(image):
    session = kvark.InferenceSession(MODEL, threads=1, executor="interpreted")
    reading = threading.Event()

    def read():
        reading.set()
        session.get_states()

    reader = threading.Thread(target=read)

    def trace(_name, _op, _array):
        # The reader waits for the session while this run has it; both need the interpreter.
        if not reader.is_alive() and not reading.is_set():
            reader.start()
            reading.wait()

    session.run_traced(None, {"image": image}, trace)
    reader.join()


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
