"""Makes the models of this folder and what ONNX Runtime gives for them, in the form of ONNX's node tests.

    pip install onnx==1.23.2 onnxruntime==1.31.1
    python generate.py
"""

import pathlib
import shutil

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

HERE = pathlib.Path(__file__).parent
RNG = np.random.default_rng(7)
MS = "com.microsoft"


def noise(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def save(name, nodes, inputs, outputs, initializers=None, dims=None, functions=(), opset=23, other=(), run=None):
    """`inputs` are arrays by name, `outputs` element types by name, `dims` symbolic shapes of inputs by name."""
    dims = dims or {}
    kinds = {np.dtype(k): v for k, v in ((np.float32, T.FLOAT), (np.int64, T.INT64), (np.int32, T.INT32), (np.bool_, T.BOOL),
             (np.uint8, T.UINT8), (np.int8, T.INT8))}
    graph = h.make_graph(
        nodes,
        name,
        [h.make_tensor_value_info(n, kinds[a.dtype], dims.get(n, a.shape)) for n, a in inputs.items()],
        [h.make_tensor_value_info(n, kind, None) for n, kind in outputs.items()],
        [numpy_helper.from_array(a, n) for n, a in (initializers or {}).items()],
    )
    opsets = [h.make_opsetid("", opset), h.make_opsetid(MS, 1)] + [h.make_opsetid(d, 1) for d in other]
    model = h.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=10, producer_name="kvark")
    if run is None:
        session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        results = session.run(list(outputs), inputs)
    else:
        results = run(model, list(outputs), inputs)
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    data = folder / "test_data_set_0"
    data.mkdir(parents=True)
    onnx.save(model, folder / "model.onnx")
    for side, arrays in (("input", inputs.items()), ("output", zip(outputs, results))):
        for i, (n, array) in enumerate(arrays):
            (data / f"{side}_{i}.pb").write_bytes(numpy_helper.from_array(np.asarray(array), n).SerializeToString())


def tables(rows, half):
    angles = np.outer(np.arange(rows), 10000.0 ** (-np.arange(half) / half))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def gqa(name, tokens, past, lengths, heads=4, kv=2, dim=16, packed=False, rotary=True, **attributes):
    batch = len(lengths)
    cos, sin = tables(64, dim // 2)
    inputs = {}
    if packed:
        inputs["q"] = noise(batch, tokens, (heads + 2 * kv) * dim)
    else:
        inputs["q"] = noise(batch, tokens, heads * dim)
        inputs["k"] = noise(batch, tokens, kv * dim)
        inputs["v"] = noise(batch, tokens, kv * dim)
    inputs["past_k"] = noise(batch, kv, past, dim)
    inputs["past_v"] = noise(batch, kv, past, dim)
    inputs["lengths"] = np.array(lengths, np.int32) - 1
    inputs["total"] = np.array(past + tokens, np.int32)
    names = ["q"] + (["", ""] if packed else ["k", "v"]) + ["past_k", "past_v", "lengths", "total"]
    if rotary:
        names += ["cos", "sin"]
    node = h.make_node(
        "GroupQueryAttention", names, ["y", "present_k", "present_v"], domain=MS,
        num_heads=heads, kv_num_heads=kv, do_rotary=int(rotary), **attributes,
    )
    dims = {n: list(a.shape) for n, a in inputs.items()}
    for n in ("q", "k", "v"):
        if n in dims:
            dims[n][1] = "sequence_length"
    for n in ("past_k", "past_v"):
        dims[n][2] = "past_sequence_length"
    outputs = {"y": T.FLOAT, "present_k": T.FLOAT, "present_v": T.FLOAT}
    save(name, [node], inputs, outputs, {"cos": cos, "sin": sin} if rotary else {}, dims)


gqa("gqa_prompt", 5, 0, [5])
gqa("gqa_decode", 1, 6, [7])
gqa("gqa_chunk", 3, 6, [9])
gqa("gqa_packed", 2, 4, [6], packed=True)
gqa("gqa_window", 3, 9, [12], local_window_size=4)
gqa("gqa_window_prompt", 9, 0, [9], local_window_size=3)
gqa("gqa_softcap_scale", 1, 5, [6], softcap=2.0, scale=0.5)
gqa("gqa_interleaved", 1, 3, [4], rotary_interleaved=1)
gqa("gqa_plain", 1, 3, [4], rotary=False)


def nbits(name, bits, block, rows=24, depth=64, zeros=None, bias=False, half_scales=True):
    blocks = -(-depth // block)
    quants = RNG.integers(0, 1 << bits, (rows, blocks, block), dtype=np.uint8)
    packed = quants if bits == 8 else quants[..., ::2] | quants[..., 1::2] << 4
    scales = RNG.uniform(0.01, 0.1, rows * blocks).astype(np.float32)
    if half_scales:
        scales = scales.astype(np.float16).astype(np.float32)
    initializers = {"w": packed, "scales": scales}
    names = ["x", "w", "scales"]
    if zeros == "packed":
        points = RNG.integers(0, 1 << bits, (rows, blocks), dtype=np.uint8)
        if bits == 4:
            points = np.pad(points, [(0, 0), (0, blocks % 2)])
            points = points[:, ::2] | points[:, 1::2] << 4
        initializers["zeros"] = points.reshape(-1)
        names.append("zeros")
    if bias:
        initializers["bias"] = noise(rows)
        names += [""] * (5 - len(names)) + ["bias"]
    node = h.make_node("MatMulNBits", names, ["y"], domain=MS, K=depth, N=rows, bits=bits, block_size=block)
    save(name, [node], {"x": noise(2, 3, depth)}, {"y": T.FLOAT}, initializers, {"x": [2, "T", depth]})


nbits("nbits_4_block_32", 4, 32)
nbits("nbits_4_block_128", 4, 128, depth=256)
nbits("nbits_4_zero_points", 4, 32, zeros="packed", depth=96)
nbits("nbits_4_block_16", 4, 16, half_scales=False)
nbits("nbits_4_ragged", 4, 32, depth=80, half_scales=False)
nbits("nbits_4_bias", 4, 32, bias=True)
nbits("nbits_8", 8, 32)
nbits("nbits_8_zero_points", 8, 32, zeros="packed", half_scales=False)

x, skip, gamma, bias = noise(2, 3, 16), noise(2, 3, 16), noise(16), noise(16)
node = h.make_node("SkipSimplifiedLayerNormalization", ["x", "skip", "gamma"], ["y", "", "", "sum"], domain=MS, epsilon=1e-6)
save("skip_simplified", [node], {"x": x, "skip": skip}, {"y": T.FLOAT, "sum": T.FLOAT}, {"gamma": gamma})
node = h.make_node("SkipSimplifiedLayerNormalization", ["x", "skip", "gamma", "bias"], ["y"], domain=MS, epsilon=1e-5)
save("skip_simplified_bias", [node], {"x": x, "skip": skip}, {"y": T.FLOAT}, {"gamma": gamma, "bias": bias})
node = h.make_node("SkipLayerNormalization", ["x", "skip", "gamma", "beta", "bias"], ["y", "", "", "sum"], domain=MS, epsilon=1e-5)
save("skip_layer_norm", [node], {"x": x, "skip": skip}, {"y": T.FLOAT, "sum": T.FLOAT}, {"gamma": gamma, "bias": bias, "beta": noise(16)})
node = h.make_node("SimplifiedLayerNormalization", ["x", "gamma"], ["y"], axis=-1, epsilon=1e-5, stash_type=1)
save("simplified", [node], {"x": x}, {"y": T.FLOAT}, {"gamma": gamma})

cos, sin = tables(32, 8)
for name, positions, attributes in (
    ("rotary_first_position", np.array([5], np.int64), {}),
    ("rotary_each_position", np.array([[4, 9, 2], [0, 1, 2]], np.int64), {"interleaved": 1}),
    ("rotary_partial", np.array([[4, 9, 2], [0, 1, 2]], np.int64), {"rotary_embedding_dim": 16, "num_heads": 2}),
):
    width = 2 * 24 if "rotary_embedding_dim" in attributes else 2 * 16
    node = h.make_node("RotaryEmbedding", ["x", "positions", "cos", "sin"], ["y"], domain=MS, **attributes)
    save(name, [node], {"x": noise(2, 3, width), "positions": positions}, {"y": T.FLOAT}, {"cos": cos, "sin": sin})

# The classic form of a cache: past in, present out, and a mask over both.
HEADS, DIM, PAST, NOW = 2, 8, 3, 2
classic = [
    h.make_node("Shape", ["ids"], ["ids_shape"]),
    h.make_node("Constant", [], ["one"], value_int=1),
    h.make_node("Constant", [], ["zero"], value_int=0),
    h.make_node("Constant", [], ["minus_one"], value_ints=[-1]),
    h.make_node("Constant", [], ["heads"], value_ints=[HEADS]),
    h.make_node("Constant", [], ["dim"], value_ints=[DIM]),
    h.make_node("Gather", ["ids_shape", "zero"], ["batch"], axis=0),
    h.make_node("Gather", ["ids_shape", "one"], ["now"], axis=0),
    h.make_node("Constant", [], ["axis_0"], value_ints=[0]),
    h.make_node("Unsqueeze", ["batch", "axis_0"], ["batch_1"]),
    h.make_node("Unsqueeze", ["now", "axis_0"], ["now_1"]),
    h.make_node("Concat", ["batch_1", "now_1", "heads", "dim"], ["apart"], axis=0),
    h.make_node("Gather", ["table", "ids"], ["x"], axis=0),
    h.make_node("MatMul", ["x", "wq"], ["q_flat"]),
    h.make_node("MatMul", ["x", "wk"], ["k_flat"]),
    h.make_node("Reshape", ["q_flat", "apart"], ["q_apart"]),
    h.make_node("Reshape", ["k_flat", "apart"], ["k_apart"]),
    h.make_node("Transpose", ["q_apart"], ["q"], perm=[0, 2, 1, 3]),
    h.make_node("Transpose", ["k_apart"], ["k"], perm=[0, 2, 1, 3]),
    h.make_node("Concat", ["past", "k"], ["present"], axis=2),
    h.make_node("Transpose", ["present"], ["k_t"], perm=[0, 1, 3, 2]),
    h.make_node("MatMul", ["q", "k_t"], ["raw"]),
    # Which key each query may see: its place, and the mask.
    h.make_node("Shape", ["past"], ["past_shape"]),
    h.make_node("Constant", [], ["two"], value_int=2),
    h.make_node("Gather", ["past_shape", "two"], ["past_len"], axis=0),
    h.make_node("Add", ["past_len", "now"], ["total"]),
    h.make_node("Range", ["past_len", "total", "one"], ["query"]),
    h.make_node("Range", ["zero", "total", "one"], ["key"]),
    h.make_node("Unsqueeze", ["query", "minus_one"], ["query_column"]),
    h.make_node("LessOrEqual", ["key", "query_column"], ["causal"]),
    h.make_node("Cast", ["mask"], ["mask_bool"], to=T.BOOL),
    h.make_node("Constant", [], ["axes_12"], value_ints=[1, 2]),
    h.make_node("Unsqueeze", ["mask_bool", "axes_12"], ["mask_4d"]),
    h.make_node("And", ["causal", "mask_4d"], ["seen"]),
    # As exporters write `expand(-1, …)`: a shape with its -1 replaced.
    h.make_node("Shape", ["raw"], ["raw_shape"]),
    h.make_node("ConstantOfShape", ["four"], ["ones"], value=h.make_tensor("v", T.INT64, [1], [1])),
    h.make_node("Equal", ["raw_shape", "minus_one"], ["open"]),
    h.make_node("Where", ["open", "ones", "raw_shape"], ["wide"]),
    h.make_node("Expand", ["seen", "wide"], ["seen_wide"]),
    h.make_node("Constant", [], ["hidden"], value_float=-1e9),
    h.make_node("Where", ["seen_wide", "raw", "hidden"], ["scores"]),
    h.make_node("Softmax", ["scores"], ["weights"], axis=-1),
    h.make_node("MatMul", ["weights", "present"], ["mixed"]),
    h.make_node("Transpose", ["mixed"], ["mixed_t"], perm=[0, 2, 1, 3]),
    h.make_node("Constant", [], ["flat"], value_ints=[0, 0, -1]),
    h.make_node("Reshape", ["mixed_t", "flat"], ["y"]),
]
save(
    "classic_cache",
    classic,
    {
        "ids": RNG.integers(0, 11, (2, NOW)),
        "mask": np.array([[1, 1, 1, 1, 1], [0, 1, 1, 1, 1]], np.int64),
        "past": noise(2, HEADS, PAST, DIM),
    },
    {"y": T.FLOAT, "present": T.FLOAT},
    {"table": noise(11, 16), "wq": noise(16, 16), "wk": noise(16, 16), "four": np.array([4], np.int64)},
    {
        "ids": ["batch", "sequence_length"],
        "mask": ["batch", "total_sequence_length"],
        "past": ["batch", HEADS, "past_sequence_length", DIM],
    },
    opset=17,
)

# Functions in functions, with an attribute that is passed on and one that has a default.
inner = h.make_function(
    "test", "Scaled", ["a", "b"], ["c"],
    [
        h.make_node("LeakyRelu", ["a"], ["t"]),
        h.make_node("Mul", ["t", "b"], ["c"]),
    ],
    [h.make_opsetid("", 17)], ["slope"],
)
inner.node[0].attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT))
outer = h.make_function(
    "test", "Twice", ["a"], ["c"],
    [
        h.make_node("Scaled", ["a", "a"], ["t"], domain="test", slope=0.25),
        h.make_node("Scaled", ["t", "a"], ["c"], domain="test", slope=0.5),
    ],
    [h.make_opsetid("", 17), h.make_opsetid("test", 1)],
)
save(
    "functions", [h.make_node("Twice", ["x"], ["t"], domain="test"), h.make_node("Twice", ["t"], ["y"], domain="test")],
    {"x": noise(3, 4)}, {"y": T.FLOAT}, functions=[inner, outer], opset=17, other=["test"],
)


def one(name, op, inputs, result=T.FLOAT, initializers=None, results=1, dims=None, opset=21, **attributes):
    """A model of one node; its operands are the inputs, then the initialisers."""
    initializers = initializers or {}
    outputs = {f"y{i}" if i else "y": T.INT64 if i else result for i in range(results)}
    node = h.make_node(op, [*inputs, *initializers], list(outputs), **attributes)
    save(name, [node], inputs, outputs, initializers, dims, opset=opset)


BATCH = {"x": ["N", 4, 6, 7]}
one("conv_2d", "Conv", {"x": noise(2, 4, 6, 7)}, initializers={"w": noise(3, 4, 3, 3), "b": noise(3)}, dims=BATCH,
    pads=[1, 0, 1, 2], strides=[2, 1])
one("conv_groups", "Conv", {"x": noise(2, 4, 6, 7)}, initializers={"w": noise(6, 2, 3, 2)}, dims=BATCH, group=2,
    dilations=[2, 1])
one("conv_depthwise", "Conv", {"x": noise(2, 4, 6, 7)}, initializers={"w": noise(4, 1, 3, 3), "b": noise(4)}, dims=BATCH,
    group=4, auto_pad="SAME_UPPER")
one("conv_same_lower", "Conv", {"x": noise(1, 2, 7)}, initializers={"w": noise(3, 2, 4)}, auto_pad="SAME_LOWER", strides=[2])
one("conv_transpose", "ConvTranspose", {"x": noise(1, 4, 3, 4)}, initializers={"w": noise(4, 3, 3, 3), "b": noise(6)},
    group=2, strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1])
one("pool_max", "MaxPool", {"x": noise(2, 3, 7, 8)}, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1])
one("pool_max_ceil", "MaxPool", {"x": noise(1, 2, 5, 6)}, kernel_shape=[2, 2], strides=[2, 3], ceil_mode=1)
one("pool_average", "AveragePool", {"x": noise(2, 3, 6, 6)}, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
one("pool_average_pad", "AveragePool", {"x": noise(2, 3, 6, 6)}, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)
one("pool_global", "GlobalAveragePool", {"x": noise(2, 3, 5, 4)})
one("batch_norm", "BatchNormalization", {"x": noise(2, 3, 4, 5)},
    initializers={"s": noise(3), "b": noise(3), "m": noise(3), "v": np.abs(noise(3)) + 0.5}, epsilon=1e-3)
one("instance_norm", "InstanceNormalization", {"x": noise(2, 3, 4, 5)}, initializers={"s": noise(3), "b": noise(3)})
one("group_norm", "GroupNormalization", {"x": noise(2, 4, 3, 5)}, initializers={"s": noise(4), "b": noise(4)}, num_groups=2)
one("top_k", "TopK", {"x": noise(3, 6)}, initializers={"k": np.array([2], np.int64)}, results=2)
one("top_k_smallest", "TopK", {"x": noise(5, 2)}, initializers={"k": np.array([3], np.int64)}, results=2, axis=0, largest=0)
INDEX = np.array([[0, 1], [2, 3], [-1, 0]], np.int64)
one("scatter_nd", "ScatterND", {"x": noise(3, 4, 2), "i": INDEX, "u": noise(3, 2)})
one("scatter_nd_add", "ScatterND", {"x": noise(3, 4), "i": np.array([[1], [1]], np.int64), "u": noise(2, 4)}, reduction="add")
one("scatter_elements", "ScatterElements",
    {"x": noise(3, 4), "i": np.array([[0, 3], [1, -1]], np.int64), "u": noise(2, 2)}, axis=1)
one("scatter_elements_max", "ScatterElements",
    {"x": noise(3, 4), "i": np.array([[0, 0], [1, 1]], np.int64), "u": noise(2, 2)}, axis=1, reduction="max")
one("depth_to_space", "DepthToSpace", {"x": noise(1, 8, 2, 3)}, blocksize=2, mode="CRD")
one("depth_to_space_dcr", "DepthToSpace", {"x": noise(1, 8, 2, 3)}, blocksize=2)
one("space_to_depth", "SpaceToDepth", {"x": noise(1, 2, 4, 6)}, blocksize=2)
one("prelu", "PRelu", {"x": noise(2, 3, 4)}, initializers={"s": noise(3, 1)})


def resize(name, scales=None, sizes=None, **attributes):
    initializers = {"scales": np.array(scales, np.float32)} if scales else {"sizes": np.array(sizes, np.int64)}
    names = ["x", "", "scales"] if scales else ["x", "", "", "sizes"]
    node = h.make_node("Resize", names, ["y"], **attributes)
    save(name, [node], {"x": noise(1, 2, 4, 5)}, {"y": T.FLOAT}, initializers, opset=21)


resize("resize_nearest", scales=[1, 1, 2, 3], mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
resize("resize_nearest_half", sizes=[1, 2, 7, 3], mode="nearest")
resize("resize_linear", sizes=[1, 2, 7, 3], mode="linear", coordinate_transformation_mode="pytorch_half_pixel")
resize("resize_corners", sizes=[1, 2, 7, 9], mode="linear", coordinate_transformation_mode="align_corners")
resize("resize_cubic", scales=[1, 1, 1.5, 2], mode="cubic")


def branch(name, op, captured, weight):
    nodes = [h.make_node(op, [captured, f"{name}_w"], [f"{name}_t"]), h.make_node("Neg", [f"{name}_t"], ["out"])]
    return h.make_graph(
        nodes, name, [], [h.make_tensor_value_info("out", T.FLOAT, None)], [numpy_helper.from_array(weight, f"{name}_w")]
    )


def condition(name, nodes, cond, initializers):
    """An `If` whose branches use the same names and read a tensor of the model."""
    both = {"then_branch": branch("first", "Add", "t", noise(4)), "else_branch": branch("second", "Mul", "t", noise(4))}
    nodes = [h.make_node("Relu", ["x"], ["t"]), *nodes, h.make_node("If", [cond], ["c"], **both), h.make_node("Exp", ["c"], ["y"])]
    save(name, nodes, {"x": noise(3, 4)}, {"y": T.FLOAT}, initializers, {"x": ["N", 4]}, opset=21)


condition("if_stored", [], "cond", {"cond": np.array(False)})
shape = [
    h.make_node("Shape", ["t"], ["shape"]),
    h.make_node("Gather", ["shape", "one"], ["width"]),
    h.make_node("Equal", ["width", "four"], ["cond"]),
]
condition("if_computed", shape, "cond", {"one": np.array(1, np.int64), "four": np.array(4, np.int64)})


def grid_sample(name, x, points, **attributes):
    grid = (1.4 * np.tanh(noise(x[0], *points, len(points)))).astype(np.float32)
    one(name, "GridSample", {"x": noise(*x), "grid": grid}, **attributes)


for mode in ("linear", "nearest", "cubic"):
    for padding in ("zeros", "border", "reflection"):
        for align in (0, 1):
            grid_sample(f"grid_sample_{mode}_{padding}_{align}", (2, 3, 4, 5), (3, 7), mode=mode, padding_mode=padding, align_corners=align)
grid_sample("grid_sample_volume", (1, 2, 3, 4, 5), (2, 3, 2), mode="linear", padding_mode="border")


def integers(name, dtype):
    """Narrow integers wrap; what is computed from shapes and places of them does not."""
    info = np.iinfo(dtype)
    kind = h.np_dtype_to_tensor_dtype(np.dtype(dtype))
    wide = np.array([info.min, info.min + 1, 3, 7, info.max - 1, info.max], np.int64)
    nodes = [
        h.make_node("Cast", ["wide"], ["x"], to=kind),
        h.make_node("Cast", ["shifted"], ["y"], to=kind),
        h.make_node("Add", ["x", "y"], ["add"]),
        h.make_node("Mul", ["x", "y"], ["mul"]),
        h.make_node("Sub", ["c", "x"], ["sub"]),
        h.make_node("ArgMax", ["x"], ["place"], axis=0),
        h.make_node("Add", ["place", "many"], ["far"]),
        h.make_node("Shape", ["x"], ["shape"]),
        h.make_node("Mul", ["shape", "many"], ["large"]),
        h.make_node("Size", ["x"], ["size"]),
        h.make_node("Mul", ["size", "many"], ["larger"]),
        h.make_node("OneHot", ["x", "depth", "values"], ["hot"]),
        h.make_node("Add", ["hot", "many"], ["hotter"]),
    ]
    names = ["add", "mul", "sub"]
    nodes += [h.make_node("Cast", [n], [n + "_wide"], to=T.INT64) for n in names]
    outputs = {n + "_wide": T.INT64 for n in names} | dict.fromkeys(["far", "large", "larger", "hotter"], T.INT64)
    constants = {
        "c": np.array([1], dtype),
        "many": np.array([70000], np.int64),
        "depth": np.array(4, np.int64),
        "values": np.array([5, 300], np.int64),
    }
    # ONNX Runtime has no arithmetic on most of these types.
    truth(name, nodes, {"wide": wide, "shifted": np.roll(wide, 2)}, outputs, constants)


def truth(name, nodes, inputs, outputs, constants):
    """As `save`, with the outputs of ONNX's reference implementation."""
    from onnx.reference import ReferenceEvaluator

    def run(model, names, feed):
        with np.errstate(over="ignore"):
            return ReferenceEvaluator(model).run(names, feed)

    save(name, nodes, inputs, outputs, constants, run=run)


for dtype in (np.uint8, np.int8, np.int16, np.uint16, np.uint32):
    integers(f"wraps_{np.dtype(dtype).name}", dtype)


def layer(name, op, gates, steps=4, batch=2, size=3, hidden=5, lengths=None, peepholes=False, **attributes):
    """A recurrent layer with all its results."""
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    initializers = {
        "w": 0.5 * noise(directions, gates * hidden, size),
        "r": 0.5 * noise(directions, gates * hidden, hidden),
        "b": noise(directions, 2 * gates * hidden),
    }
    names = ["x", "w", "r", "b", "lengths" if lengths else "", "h"]
    inputs = {"x": noise(steps, batch, size), "h": noise(directions, batch, hidden)}
    if lengths:
        inputs["lengths"] = np.array(lengths, np.int32)
    outputs = {"y": T.FLOAT, "y_h": T.FLOAT}
    if op == "LSTM":
        inputs["c"] = noise(directions, batch, hidden)
        names.append("c")
        outputs["y_c"] = T.FLOAT
        if peepholes:
            initializers["p"] = noise(directions, 3 * hidden)
            names.append("p")
    node = h.make_node(op, names, list(outputs), hidden_size=hidden, **attributes)
    save(name, [node], inputs, outputs, initializers, opset=21)


layer("rnn_reverse", "RNN", 1, direction="reverse", activations=["Relu"])
layer("gru", "GRU", 3)
layer("gru_reset_last", "GRU", 3, linear_before_reset=1, direction="bidirectional")
layer("gru_lengths", "GRU", 3, lengths=[2, 4])
layer("lstm", "LSTM", 4)
layer("lstm_lengths", "LSTM", 4, lengths=[4, 1], direction="bidirectional")
layer("lstm_peepholes", "LSTM", 4, peepholes=True)

for name, equation, *shapes in (
    ("einsum_heads", "bthd,bshd->bhts", (2, 3, 2, 4), (2, 5, 2, 4)),
    ("einsum_implicit", "ij,jk", (3, 4), (4, 2)),
    ("einsum_ellipsis", "...ij,...jk->...ik", (2, 3, 4), (1, 4, 5)),
    ("einsum_three", "ab,bc,cd->ad", (2, 3), (3, 4), (4, 2)),
    ("einsum_trace", "bii->bi", (2, 3, 3)),
    ("einsum_sum", "abc,bd->ad", (2, 3, 4), (3, 2)),
):
    one(name, "Einsum", {"xuv"[i]: noise(*shape) for i, shape in enumerate(shapes)}, opset=12, equation=equation)


def bytes_of(kind, *shape):
    info = np.iinfo(kind)
    return RNG.integers(info.min, info.max + 1, shape).astype(kind)


one("mat_mul_integer", "MatMulInteger", {"x": bytes_of(np.uint8, 3, 7), "w": bytes_of(np.int8, 7, 4)}, T.INT32,
    {"xz": np.array(130, np.uint8), "wz": np.array([3, -2, 0, 100], np.int8)})
# More products than f32 adds up exactly.
one("mat_mul_integer_deep", "MatMulInteger", {"x": bytes_of(np.uint8, 2, 3000)}, T.INT32, {"w": bytes_of(np.uint8, 3000, 3)})
one("conv_integer", "ConvInteger", {"x": bytes_of(np.uint8, 1, 3, 5, 6)}, T.INT32,
    {"w": bytes_of(np.uint8, 2, 3, 3, 3), "xz": np.array(7, np.uint8), "wz": np.array(200, np.uint8)}, pads=[1, 1, 1, 1])
one("conv_integer_deep", "ConvInteger", {"x": bytes_of(np.uint8, 1, 300, 4, 4)}, T.INT32, {"w": bytes_of(np.uint8, 2, 300, 3, 3)})
scalar = lambda x: np.array(x, np.float32)  # noqa: E731
one("q_linear_mat_mul", "QLinearMatMul", {"x": bytes_of(np.uint8, 3, 7)}, T.UINT8,
    {"xs": scalar(0.01), "xz": np.array(130, np.uint8), "w": bytes_of(np.int8, 7, 4), "ws": scalar(0.02),
     "wz": np.array(3, np.int8), "ys": scalar(0.1), "yz": np.array(120, np.uint8)})
one("q_linear_conv", "QLinearConv", {"x": bytes_of(np.uint8, 1, 3, 5, 6)}, T.UINT8,
    {"xs": scalar(0.01), "xz": np.array(130, np.uint8), "w": bytes_of(np.int8, 2, 3, 3, 3),
     "ws": np.array([0.02, 0.01], np.float32), "wz": np.array([0, 0], np.int8), "ys": scalar(0.1),
     "yz": np.array(120, np.uint8), "b": np.array([500, -900], np.int32)}, strides=[2, 1])
node = h.make_node("DynamicQuantizeLinear", ["x"], ["y", "scale", "zero"])
save("dynamic_quantize", [node], {"x": 3 * noise(4, 5)}, {"y": T.UINT8, "scale": T.FLOAT, "zero": T.UINT8}, opset=11)

one("dft", "DFT", {"x": noise(2, 6, 3, 1)}, initializers={"n": np.array(8, np.int64), "axis": np.array(1, np.int64)}, opset=20)
one("dft_inverse", "DFT", {"x": noise(2, 6, 2)}, initializers={"n": np.array(6, np.int64), "axis": np.array(1, np.int64)},
    opset=20, inverse=1)
one("stft", "STFT", {"x": noise(2, 20, 1)},
    initializers={"step": np.array(3, np.int64), "window": noise(8), "n": np.array(8, np.int64)}, opset=17)
boxes = np.array([[0, 0, 6, 5], [1.5, 2, 4, 7], [-2, -1, 3, 20]], np.float32)
for mode in ("half_pixel", "output_half_pixel"):
    one(f"roi_align_{mode}", "RoiAlign", {"x": noise(2, 3, 8, 9), "boxes": boxes},
        initializers={"batch": np.array([0, 1, 1], np.int64)}, opset=16, coordinate_transformation_mode=mode,
        output_height=2, output_width=3, sampling_ratio=2, spatial_scale=0.8)
one("affine_grid", "AffineGrid", {"x": noise(2, 2, 3)}, initializers={"size": np.array([2, 1, 3, 4], np.int64)}, opset=20)
one("col2im", "Col2Im", {"x": noise(1, 2 * 6, 9)},
    initializers={"image": np.array([5, 5], np.int64), "block": np.array([2, 3], np.int64)}, opset=18, strides=[2, 2], pads=[1, 1, 0, 1])
one("lrn", "LRN", {"x": noise(2, 5, 3, 3)}, opset=13, size=3, alpha=0.3, beta=0.6, bias=1.5)
one("lp_pool", "LpPool", {"x": noise(1, 2, 6, 7)}, opset=18, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1], p=3)
one("reverse_sequence", "ReverseSequence", {"x": noise(5, 3, 2)}, initializers={"n": np.array([5, 2, 1], np.int64)}, opset=10)
one("hardmax", "Hardmax", {"x": noise(3, 4)}, opset=13, axis=0)
one("lp_normalization", "LpNormalization", {"x": noise(3, 4)}, opset=1, axis=0, p=1)
one("shrink", "Shrink", {"x": noise(20)}, opset=9, lambd=0.7, bias=0.2)
labels = np.array([[1, 0, 3], [2, 2, 1]], np.int64)
for reduction in ("none", "sum", "mean"):
    one(f"cross_entropy_{reduction}", "SoftmaxCrossEntropyLoss", {"x": noise(2, 4, 3), "labels": labels},
        initializers={"w": np.abs(noise(4))}, opset=13, reduction=reduction, ignore_index=2)
one("bit_shift", "BitShift", {"x": bytes_of(np.uint8, 9)}, T.UINT8, {"n": np.arange(9, dtype=np.uint8)}, opset=11, direction="LEFT")
one("bitwise_not", "BitwiseNot", {"x": bytes_of(np.uint8, 9)}, T.UINT8, opset=18)

value = lambda name, kind, shape=None: h.make_tensor_value_info(name, kind, shape)  # noqa: E731
body = h.make_graph(
    [
        h.make_node("Cast", ["i"], ["step"], to=T.FLOAT),
        h.make_node("Add", ["state", "step"], ["t"]),
        h.make_node("Mul", ["t", "factor"], ["next"]),
        h.make_node("Identity", ["going"], ["still"]),
        h.make_node("Neg", ["next"], ["seen"]),
    ],
    "body",
    [value("i", T.INT64, []), value("going", T.BOOL, []), value("state", T.FLOAT)],
    [value("still", T.BOOL, []), value("next", T.FLOAT), value("seen", T.FLOAT)],
)
save("loop", [h.make_node("Loop", ["count", "", "x"], ["y", "all"], body=body)], {"x": noise(2, 3), "factor": noise(3)},
     {"y": T.FLOAT, "all": T.FLOAT}, {"count": np.array(4, np.int64)}, opset=21)
body = h.make_graph(
    [
        h.make_node("Less", ["i", "last"], ["still"]),
        h.make_node("SequenceInsert", ["list", "x"], ["longer"]),
    ],
    "body",
    [value("i", T.INT64, []), value("going", T.BOOL, []),
     h.make_value_info("list", h.make_sequence_type_proto(h.make_tensor_type_proto(T.FLOAT, None)))],
    [value("still", T.BOOL, []),
     h.make_value_info("longer", h.make_sequence_type_proto(h.make_tensor_type_proto(T.FLOAT, None)))],
)
save("loop_sequence",
     [h.make_node("SequenceEmpty", [], ["none"]), h.make_node("Loop", ["", "yes", "none"], ["list"], body=body),
      h.make_node("ConcatFromSequence", ["list"], ["y"], axis=0)],
     {"x": noise(2, 3)}, {"y": T.FLOAT}, {"yes": np.array(True), "last": np.array(2, np.int64)}, opset=21)
body = h.make_graph(
    [h.make_node("Mul", ["state", "decay"], ["t"]), h.make_node("Add", ["t", "row"], ["next"]), h.make_node("Exp", ["next"], ["seen"])],
    "body",
    [value("state", T.FLOAT, [3]), value("row", T.FLOAT, [3])],
    [value("next", T.FLOAT, [3]), value("seen", T.FLOAT, [3])],
)
save("scan", [h.make_node("Scan", ["s", "x"], ["y", "all"], body=body, num_scan_inputs=1, scan_input_axes=[1],
                          scan_input_directions=[1], scan_output_axes=[1])],
     {"s": noise(3), "x": noise(3, 4), "decay": noise(3)}, {"y": T.FLOAT, "all": T.FLOAT}, opset=21)


def contrib(name, op, inputs, outputs, initializers=None, names=None, **attributes):
    """A fused op of ONNX Runtime."""
    initializers = initializers or {}
    names = names or [*inputs, *initializers]
    node = h.make_node(op, names, list(outputs), domain=MS, **attributes)
    save(name, [node], inputs, outputs, initializers, opset=17)


rows = {"q": noise(2, 3, 16), "k": noise(2, 5, 16), "v": noise(2, 5, 16)}
padding = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
contrib("mha", "MultiHeadAttention", rows, {"y": T.FLOAT}, num_heads=4)
contrib("mha_masked", "MultiHeadAttention", rows | {"mask": padding, "scores": noise(1, 4, 3, 5)}, {"y": T.FLOAT},
        {"bias": noise(48)}, ["q", "k", "v", "bias", "mask", "scores"], num_heads=4)
past = {"past_k": noise(2, 4, 6, 4), "past_v": noise(2, 4, 6, 4)}
same = {name: noise(2, 3, 16) for name in "qkv"}
contrib("mha_past", "MultiHeadAttention", same | past, {"y": T.FLOAT, "new_k": T.FLOAT, "new_v": T.FLOAT}, None,
        ["q", "k", "v", "", "", "", "past_k", "past_v"], num_heads=4, unidirectional=1)
contrib("packed_attention", "Attention", {"x": noise(2, 5, 16), "mask": padding}, {"y": T.FLOAT},
        {"w": 0.3 * noise(16, 48), "b": noise(48)}, ["x", "w", "b", "mask"], num_heads=4)
contrib("packed_attention_lengths", "Attention", {"x": noise(2, 5, 16), "mask": np.array([5, 2], np.int32)}, {"y": T.FLOAT},
        {"w": 0.3 * noise(16, 48), "b": noise(48)}, ["x", "w", "b", "mask"], num_heads=4)
ids = {"ids": np.array([[1, 4, 2], [0, 3, 3]], np.int32), "segments": np.array([[0, 0, 1], [0, 1, 1]], np.int32)}
contrib("embed_layer_norm", "EmbedLayerNormalization", ids | {"mask": np.array([[1, 1, 1], [1, 1, 0]], np.int32)},
        {"y": T.FLOAT, "counts": T.INT32},
        {"words": noise(5, 8), "places": noise(4, 8), "kinds": noise(2, 8), "gamma": noise(8), "beta": noise(8)},
        ["ids", "segments", "words", "places", "kinds", "gamma", "beta", "mask"], epsilon=1e-5)
contrib("bias_gelu", "BiasGelu", {"x": noise(2, 3, 8)}, {"y": T.FLOAT}, {"b": noise(8)})
contrib("fused_mat_mul", "FusedMatMul", {"x": noise(2, 4, 3), "w": noise(2, 5, 4)}, {"y": T.FLOAT}, transA=1, transB=1, alpha=0.5)
contrib("mat_mul_integer_to_float", "MatMulIntegerToFloat", {"x": bytes_of(np.uint8, 3, 7)}, {"y": T.FLOAT},
        {"w": bytes_of(np.int8, 7, 4), "xs": np.array(0.02, np.float32), "ws": np.array([0.01, 0.03, 0.02, 0.05], np.float32),
         "xz": np.array(120, np.uint8), "wz": np.array([1, 0, -3, 4], np.int8), "b": noise(4)})
contrib("dynamic_quantize_mat_mul", "DynamicQuantizeMatMul", {"x": noise(3, 8)}, {"y": T.FLOAT},
        {"w": bytes_of(np.int8, 8, 4), "ws": np.array([0.01], np.float32), "wz": np.array([0], np.int8), "b": noise(4)})
one("compress", "Compress", {"x": noise(4, 3)}, initializers={"c": np.array([True, False, True])}, opset=11, axis=0)
scales = {"xs": scalar(0.03), "xz": np.array(128, np.uint8)}
for op in ("QLinearAdd", "QLinearMul"):
    contrib("q_linear_" + op[7:].lower(), op, {"x": bytes_of(np.uint8, 3, 4), "u": bytes_of(np.uint8, 4)}, {"y": T.UINT8},
            scales | {"us": scalar(0.05), "uz": np.array(100, np.uint8), "ys": scalar(0.07), "yz": np.array(120, np.uint8)},
            ["x", "xs", "xz", "u", "us", "uz", "ys", "yz"])
for op in ("QLinearSigmoid", "QLinearLeakyRelu", "QLinearGlobalAveragePool"):
    shape = (1, 2, 3, 4) if op.endswith("Pool") else (3, 5)
    attributes = {"alpha": 0.1} if op.endswith("Relu") else {}
    contrib("q_linear_" + op[7:].lower(), op, {"x": bytes_of(np.uint8, *shape)}, {"y": T.UINT8},
            scales | {"ys": scalar(0.013), "yz": np.array(20, np.uint8)}, **attributes)
contrib("q_linear_softmax", "QLinearSoftmax", {"x": bytes_of(np.uint8, 3, 5)}, {"y": T.UINT8},
        scales | {"ys": scalar(1 / 256), "yz": np.array(0, np.uint8)}, axis=-1, opset=13)
contrib("q_linear_concat", "QLinearConcat", {"x": bytes_of(np.uint8, 2, 3), "u": bytes_of(np.uint8, 2, 2)}, {"y": T.UINT8},
        scales | {"us": scalar(0.05), "uz": np.array(100, np.uint8), "ys": scalar(0.0613), "yz": np.array(120, np.uint8)},
        ["ys", "yz", "x", "xs", "xz", "u", "us", "uz"], axis=1)
node = h.make_node("MaxPool", ["x"], ["y", "places"], kernel_shape=[2, 3], strides=[2, 1], pads=[0, 1, 1, 1], dilations=[1, 1])
save("pool_max_places", [node], {"x": noise(2, 3, 5, 6)}, {"y": T.FLOAT, "places": T.INT64}, opset=21)
resize("resize_antialias", sizes=[1, 2, 2, 3], mode="linear", antialias=1)
resize("resize_cubic_inside", scales=[1, 1, 1.5, 0.8], mode="cubic", exclude_outside=1)
resize("resize_not_larger", sizes=[7, 6], mode="linear", keep_aspect_ratio_policy="not_larger", axes=[2, 3])


def quantised_layer(name, count=1, batch=1, kind=np.int8, by_gate=False, bias=True, first=False, size=5, hidden=6, **attributes):
    """`DynamicQuantizeLSTM`; `count` directions."""
    scales = (count, 4 * hidden) if by_gate else (count,)
    middle = 0 if kind == np.int8 else 125
    # ONNX Runtime takes one zero point for all gates.
    zeros = {n: np.full(scales, middle if by_gate else middle + 3, kind) for n in ("wz", "rz")}
    weights = {n: (middle + RNG.integers(-100, 100, (count, rows, 4 * hidden))).astype(kind) for n, rows in (("w", size), ("r", hidden))}
    factors = {n: RNG.uniform(0.003, 0.008, scales).astype(np.float32) for n in ("ws", "rs")}
    stored = weights | zeros | factors | ({"b": noise(count, 8 * hidden)} if bias else {})
    inputs = {"x": noise(4, batch, size)} | ({n: noise(count, batch, hidden) for n in ("h0", "c0")} if first else {})
    names = ["x", "w", "r", "b" if bias else "", "", *(("h0", "c0") if first else ("", "")), "", "ws", "wz", "rs", "rz"]
    contrib(name, "DynamicQuantizeLSTM", inputs, {"y": T.FLOAT, "h": T.FLOAT, "c": T.FLOAT}, stored, names, hidden_size=hidden, **attributes)


quantised_layer("dynamic_quantize_lstm")
quantised_layer("dynamic_quantize_lstm_both", 2, direction="bidirectional", first=True)
quantised_layer("dynamic_quantize_lstm_unsigned", kind=np.uint8, by_gate=True, bias=False, direction="reverse")


def packed(values):
    """Two values of four bits in a byte."""
    return (values[..., 0::2] | (values[..., 1::2] << 4)).astype(np.uint8)


def mixture(name, bits=4, block=32, zeros=False, bias=True, experts=4, depth=64, inner=32, tokens=(5,), **attributes):
    """`QMoE` with gates and ups in alternate rows."""
    stored, names = {}, ["x", "router"] + [""] * 11
    for at, (rows, columns) in enumerate(((2 * inner, depth), (depth, inner))):
        values = RNG.integers(0, 1 << bits, (experts, rows, columns)).astype(np.uint8)
        blocks = columns // block if block else 1
        scales = RNG.uniform(0.01, 0.03, (experts, rows, blocks)).astype(np.float32)
        tensors = [values if bits == 8 else packed(values), scales if block else scales[..., 0]]
        if bias:
            tensors.append(noise(experts, rows))
        if zeros:
            places = RNG.integers(0, 16, (experts, rows, blocks + blocks % 2)).astype(np.uint8)
            stored[f"z{at}"], names[11 + at] = packed(places), f"z{at}"
        for kind, (label, tensor) in enumerate(zip("wsb", tensors)):
            stored[f"{label}{at}"], names[2 + 3 * at + kind] = tensor, f"{label}{at}"
    while names[-1] == "":
        names.pop()
    attributes |= {"block_size": block} if block else {}
    inputs = {"x": noise(*tokens, depth), "router": noise(int(np.prod(tokens)), experts)}
    contrib(name, "QMoE", inputs, {"y": T.FLOAT}, stored, names, k=2, expert_weight_bits=bits, activation_type="swiglu",
            swiglu_fusion=1, normalize_routing_weights=1, **attributes)


swiglu = {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 7.0}
mixture("nbits_experts", **swiglu)
mixture("nbits_experts_rows", block=0, bias=False, tokens=(1, 5), **swiglu)
mixture("nbits_experts_zeros", zeros=True, block=16, **swiglu)
mixture("nbits_experts_silu", activation_alpha=1.0, activation_beta=0.0)


def quantised_table(name, kind=T.UINT8, bits=4, block=32, zeros=False, rows=9, depth=64):
    """`GatherBlockQuantized`."""
    values = RNG.integers(0, 1 << bits, (rows, depth)).astype(np.uint8)
    places = RNG.integers(0, 1 << bits, (rows, depth // block)).astype(np.uint8)

    def table(label, array):
        if kind == T.UINT8:
            return numpy_helper.from_array(array if bits == 8 else packed(array), label)
        return h.make_tensor(label, kind, array.shape, packed(array).tobytes(), raw=True)

    scales = numpy_helper.from_array(RNG.uniform(0.01, 0.03, (rows, depth // block)).astype(np.float32), "s")
    tensors = [table("t", values), scales] + ([table("z", places)] if zeros else [])
    attributes = {"gather_axis": 0, "quantize_axis": 1, "block_size": block} | ({"bits": bits} if kind == T.UINT8 else {})
    node = h.make_node("GatherBlockQuantized", ["t", "i", "s"] + (["z"] if zeros else []), ["y"], domain=MS, **attributes)

    def run(model, names, inputs):
        model.graph.initializer.extend(tensors)
        return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(names, inputs)

    save(name, [node], {"i": np.array([[3, 0], [8, 3]])}, {"y": T.FLOAT}, dims={"i": ["a", "b"]}, opset=21, run=run)


quantised_table("nbits_table")
quantised_table("nbits_table_zeros", zeros=True)
quantised_table("nbits_table_bytes", bits=8, block=16, zeros=True)
quantised_table("nbits_table_signed", T.INT4, zeros=True)
quantised_table("nbits_table_unsigned", T.UINT4)


def branched(name, condition, op):
    """An `If` on what a model computes, of which one branch has a size that depends on data."""
    then = h.make_graph(
        [h.make_node("NonZero", ["t"], ["places"]), h.make_node("Transpose", ["places"], ["rows"]), h.make_node("GatherND", ["x", "rows"], ["taken"]),
         h.make_node("ReduceSum", ["taken"], ["sum"], keepdims=0), h.make_node("Mul", ["x", "sum"], ["out"])],
        "then", [], [h.make_tensor_value_info("out", T.FLOAT, None)])
    other = h.make_graph([h.make_node("Exp", ["x"], ["out"])], "else", [], [h.make_tensor_value_info("out", T.FLOAT, None)])
    nodes = [h.make_node("Relu", ["x"], ["t"]), h.make_node("ReduceSum", ["x"], ["all"], keepdims=0), h.make_node(op, ["all", "zero"], ["cond"]),
             h.make_node("If", ["cond"], ["chosen"], then_branch=then, else_branch=other), h.make_node("Add", ["chosen", "t"], ["y"])]
    save(name, nodes, {"x": condition}, {"y": T.FLOAT}, {"zero": scalar(0.0)}, {"x": ["n", 4]}, opset=21)


branched("if_on_data", np.abs(noise(3, 4)), "Greater")
branched("if_on_data_not", np.abs(noise(3, 4)), "Less")
nodes = [
    h.make_node("Greater", ["x", "zero"], ["c"]), h.make_node("Reshape", ["c", "flat"], ["list"]), h.make_node("Compress", ["x", "list"], ["above"]),
    h.make_node("Mul", ["above", "above"], ["square"]), h.make_node("Less", ["square", "one"], ["low"]),
    h.make_node("Compress", ["square", "low"], ["small"], axis=0), h.make_node("Concat", ["above", "small"], ["y"], axis=0),
]
for name, x in (("compress_computed", noise(6, 3)), ("compress_to_nothing", -np.abs(noise(2, 3)))):
    save(name, nodes, {"x": x}, {"y": T.FLOAT}, {"zero": scalar(0.0), "flat": np.array([-1]), "one": scalar(1.0)}, {"x": ["n", 3]}, opset=21)
nodes = [
    h.make_node("Unique", ["ids"], ["u", "first", "back", "counts"], sorted=1), h.make_node("Gather", ["table", "u"], ["rows"]),
    h.make_node("Cast", ["counts"], ["weights"], to=T.FLOAT), h.make_node("Unsqueeze", ["weights", "axis"], ["column"]),
    h.make_node("Mul", ["rows", "column"], ["scaled"]), h.make_node("Gather", ["scaled", "back"], ["y"]),
]
save("unique_rows", nodes, {"ids": np.array([4, 1, 4, 2, 1])}, {"y": T.FLOAT, "first": T.INT64},
     {"table": noise(6, 3), "axis": np.array([1])}, {"ids": ["n"]}, opset=21)
body = h.make_graph(
    [h.make_node("Add", ["s", "step"], ["next"]), h.make_node("ReduceSum", ["next"], ["sum"], keepdims=0), h.make_node("Less", ["sum", "limit"], ["going"])],
    "body", [h.make_tensor_value_info("i", T.INT64, []), h.make_tensor_value_info("c", T.BOOL, []), h.make_tensor_value_info("s", T.FLOAT, [3])],
    [h.make_tensor_value_info("going", T.BOOL, []), h.make_tensor_value_info("next", T.FLOAT, [3])])
save("loop_while", [h.make_node("Abs", ["x"], ["a"]), h.make_node("Loop", ["", "yes", "a"], ["last"], body=body), h.make_node("Add", ["last", "x"], ["y"])],
     {"x": noise(3)}, {"y": T.FLOAT}, {"step": np.abs(noise(3)), "yes": np.array(True), "limit": scalar(9.0)}, opset=21)
# A size that is dynamic in the file and 1 in the run.
save("squeeze_dynamic", [h.make_node("Squeeze", ["x"], ["s"]), h.make_node("Exp", ["s"], ["y"])], {"x": noise(1, 1, 4)}, {"y": T.FLOAT},
     dims={"x": ["n", 1, 4]}, opset=21)
