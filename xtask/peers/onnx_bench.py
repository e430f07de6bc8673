"""Measures ONNX Runtime on request: one JSON object a line on stdin, one a line on stdout.

{"do": "build", "folder": F, "context": N, "tiny": B}   builds F/f32.onnx and F/int4.onnx unless they are there
{"do": "score", "weights": W, "ids": [...]}             log-probabilities of the given next tokens
{"do": "time", "weights": W, "last": B, "kind": "pp" | "tg", "n": N, "depth": D, "threads": T}   tokens per second

Past and present of every cache are one buffer. With "last" only the last token's logits are computed.
"""

import json
import pathlib
import sys
import time

import numpy as np
import onnx
import onnxruntime as ort

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "crates/kvark/tests/onnx"))

SHAPE = dict(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    head_dim=64,
    rope_theta=100_000.0,
)
TINY = SHAPE | dict(vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=2)
TINY |= dict(num_attention_heads=4, num_key_value_heads=2, head_dim=32)


def build(folder, context, tiny):
    import generate

    shape = TINY if tiny else SHAPE
    folder.mkdir(parents=True, exist_ok=True)
    note = folder / "built.json"
    wanted = json.dumps(dict(shape, context=context, mobius=generate.__doc__))
    if not note.exists() or note.read_text() != wanted:
        generate.MAX_SEQ_LEN = context
        sizes = generate.SMALL | shape | dict(max_position_embeddings=context)
        model = generate.build(generate.Case("llama"), sizes, seed=1)
        fold_transposes(model)
        quantised = in_int4(model)
        write(model, folder, "f32")
        write(quantised, folder, "int4")
        note.write_text(wanted)
    sizes = ", ".join(f"{key} {value}" for key, value in shape.items())
    return {"model": f"llama, {sizes}, static cache of {context}, random weights", "version": version()}


def version():
    return f"ONNX Runtime {ort.__version__} (CPU) from PyPI"


def fold_transposes(model):
    """Stores weights as MatMul takes them; ONNX Runtime would do so when it loads them, and quantisation needs it."""
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    kept = []
    for node in model.graph.node:
        if node.op_type == "Transpose" and node.input[0] in weights:
            data = onnx.numpy_helper.to_array(weights[node.input[0]])
            perm = list(node.attribute[0].ints)
            tensor = onnx.numpy_helper.from_array(np.ascontiguousarray(data.transpose(perm)), node.output[0])
            model.graph.initializer.append(tensor)
        else:
            kept.append(node)
    del model.graph.node[:]
    model.graph.node.extend(kept)
    used = {name for node in kept for name in node.input}
    stay = [tensor for tensor in model.graph.initializer if tensor.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(stay)


def in_int4(model):
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    quantizer = MatMulNBitsQuantizer(copy, block_size=32, is_symmetric=True, accuracy_level=4)
    quantizer.process()
    return quantizer.model.model


def write(model, folder, weights):
    onnx.save(model, folder / f"{weights}.onnx")
    only_last(model)
    onnx.save(model, folder / f"{weights}-last.onnx")


def only_last(model):
    """Cuts the hidden states to the last token in front of the head."""
    graph = model.graph
    head = next(node for node in graph.node if node.output[0] == "logits")
    for name, value in [("last.start", [-1]), ("last.end", [2**31 - 1]), ("last.axis", [1])]:
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(value, np.int64), name))
    names = [head.input[0], "last.start", "last.end", "last.axis"]
    cut = onnx.helper.make_node("Slice", names, ["last.hidden"])
    head.input[0] = "last.hidden"
    graph.node.insert(list(graph.node).index(head), cut)
    graph.output[0].type.tensor_type.shape.dim[1].dim_value = 1


class Decoder:
    """A model with its caches in one buffer each."""

    def __init__(self, path, threads, last):
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self.session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.last = last
        self.caches = {}
        for info in self.session.get_inputs():
            if "cache" in info.name:
                zeros = np.zeros([1, *info.shape[1:]], np.float32)
                self.caches[info.name] = ort.OrtValue.ortvalue_from_numpy(zeros)
        self.vocab = self.session.get_outputs()[0].shape[2]
        self.length, self.logits = 0, {}
        # Caches are bound once; a step only binds what is new in it.
        self.binding = self.session.io_binding()
        for name, value in self.caches.items():
            self.binding.bind_ortvalue_input(name, value)
            self.binding.bind_ortvalue_output(f"updated_{name}", value)

    def feed(self, ids):
        n, end, binding = len(ids), self.length + len(ids), self.binding
        feeds = {
            "input_ids": np.array([ids], np.int64),
            "position_ids": np.arange(self.length, end, dtype=np.int64)[None],
            "write_indices": np.array([self.length], np.int64),
            "nonpad_kv_seqlen": np.array([end], np.int64),
        }
        for name, value in feeds.items():
            binding.bind_cpu_input(name, value)
        rows = 1 if self.last else n
        if rows not in self.logits:
            zeros = np.zeros([1, rows, self.vocab], np.float32)
            self.logits[rows] = ort.OrtValue.ortvalue_from_numpy(zeros)
        binding.bind_ortvalue_output("logits", self.logits[rows])
        self.session.run_with_iobinding(binding)
        self.length = end
        return self.logits[rows]


class Decoders:
    """The decoder used last; loading another frees it."""

    def __init__(self):
        self.key, self.decoder = None, None

    def get(self, folder, weights, threads, last):
        key = (weights, threads, last)
        if key != self.key:
            self.decoder = None
            path = folder / f"{weights}{'-last' if last else ''}.onnx"
            self.key, self.decoder = key, Decoder(path, threads, last)
        return self.decoder


def score(decoder, ids):
    decoder.length = 0
    logits = decoder.feed(ids).numpy()[0].astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return {"logprob": [float(row[next_id]) for row, next_id in zip(logits, ids[1:])]}


def measure(decoder, kind, n, depth):
    # The very ids that `kvark bench` feeds.
    tokens = [i * 2654435761 % 2**32 % decoder.vocab for i in range(depth + n)]
    if depth:
        decoder.length = 0
        decoder.feed(tokens[:depth])
    for _ in range(2):
        decoder.length = depth
        start = time.perf_counter()
        if kind == "pp":
            decoder.feed(tokens[depth:])
        else:
            for token in tokens[depth:]:
                decoder.feed([token])
        seconds = time.perf_counter() - start
    # Let the workers' spinning after the last parallel section run out before the other side's turn.
    time.sleep(0.1)
    return {"tokens_per_second": n / seconds}


def main():
    folder, decoders = None, Decoders()
    for line in sys.stdin:
        ask = json.loads(line)
        if ask["do"] == "build":
            folder = pathlib.Path(ask["folder"])
            answer = build(folder, ask["context"], ask["tiny"])
        elif ask["do"] == "score":
            answer = score(decoders.get(folder, ask["weights"], 1, False), ask["ids"])
        else:
            decoder = decoders.get(folder, ask["weights"], ask["threads"], ask["last"])
            answer = measure(decoder, ask["kind"], ask["n"], ask["depth"])
        print(json.dumps(answer), flush=True)


main()
