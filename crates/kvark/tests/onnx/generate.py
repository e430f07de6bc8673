"""Makes ONNX decoders with mobius, random weights and no network, and records what ONNX Runtime computes with them.

    pip install -r requirements.txt
    python generate.py            # the small ones, into this folder
    python generate.py --full DIR # larger ones, of every architecture and cache form, into DIR

Each NAME.onnx has a NAME.json beside it: the token ids and the logits of every token, fed at once, in chunks, one by one,
and with a rewind in the middle after which other tokens follow. `folder` is a GenAI folder.
"""

import argparse
import dataclasses
import json
import logging
import math
import pathlib
import zlib

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from mobius import ArchitectureConfig, build_from_module, registry
from mobius._configs import Gemma4Config
from mobius._flags import flags
from mobius.tasks import CausalLMTask
from mobius.tasks._gemma4 import Gemma4TextCausalLMTask

SMALL = dict(
    vocab_size=32,
    max_position_embeddings=32,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    hidden_act="silu",
    head_dim=8,
    pad_token_id=0,
    rope_type="default",
    rms_norm_eps=1e-5,
)
FULL = SMALL | dict(vocab_size=256, hidden_size=96, intermediate_size=160, num_hidden_layers=3, head_dim=32)

GEMMA = dict(
    hidden_act="gelu_pytorch_tanh",
    num_hidden_layers=3,
    layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    sliding_window=5,
)


@dataclasses.dataclass
class Case:
    """A model to build: what differs from the common sizes, and how its cache is exported."""

    architecture: str
    differences: dict = dataclasses.field(default_factory=dict)
    static: bool = True
    # Whether the static cache's attention gets a mask as a float bias.
    bias: bool = False
    # mobius emits Attention with past inputs for "default", GroupQueryAttention for "cpu", and for "qnn" Concat,
    # MatMul and Softmax.
    provider: str = "default"
    # Whether the positions are computed from the mask instead of being an input.
    counts: bool = False
    # Whether it is checked in.
    small: bool = True


CASES = {
    "llama": Case("llama"),
    "qwen2": Case("qwen2", dict(attn_qkv_bias=True)),
    "qwen3": Case("qwen3", dict(attn_qk_norm=True)),
    "mistral": Case("mistral", dict(sliding_window=5), small=False),
    "mistral_bias": Case("mistral", dict(sliding_window=5), bias=True),
    "gemma4": Case(
        "gemma4_text",
        GEMMA
        | dict(
            global_head_dim=16,
            # The last layer attends over the first one's cache; mobius 0.1.0 cannot share a static cache.
            num_kv_shared_layers=1,
            final_logit_softcapping=30.0,
            hidden_size_per_layer_input=8,
            vocab_size_per_layer_input=None,
        ),
    ),
    "llama_past": Case("llama", static=False),
    "llama_gqa": Case("llama", dict(head_dim=16), static=False, provider="cpu"),
    "llama_concat": Case("llama", static=False, provider="qnn", counts=True),
    "qwen2_past": Case("qwen2", dict(attn_qkv_bias=True), static=False, small=False),
    "qwen3_gqa": Case("qwen3", dict(attn_qk_norm=True, head_dim=16), static=False, provider="cpu", small=False),
    "qwen3_concat": Case("qwen3", dict(attn_qk_norm=True), static=False, provider="qnn", small=False),
    "mistral_gqa": Case("mistral", dict(sliding_window=5, head_dim=16), static=False, provider="cpu", small=False),
    "gemma3_past": Case(
        "gemma3_text",
        GEMMA | dict(attn_qk_norm=True, rope_local_base_freq=10_000.0, rope_theta=1_000_000.0),
        static=False,
        small=False,
    ),
}

MAX_SEQ_LEN = 16


def build(case: Case, sizes: dict, seed: int) -> onnx.ModelProto:
    differences = dict(case.differences)
    if "vocab_size_per_layer_input" in differences:
        differences["vocab_size_per_layer_input"] = sizes["vocab_size"]
    gemma4 = case.architecture.startswith("gemma4")
    config = (Gemma4Config if gemma4 else ArchitectureConfig)(**(sizes | differences))
    options = dict(static_cache=True, max_seq_len=MAX_SEQ_LEN) if case.static else {}
    task = (Gemma4TextCausalLMTask if gemma4 else CausalLMTask)(**options)
    flags.static_cache_bias = case.bias
    module = registry.get(case.architecture)(config)
    model = build_from_module(module, config, task, execution_provider=case.provider)["model"]
    fill(model, np.random.default_rng(seed))
    proto = ir.to_proto(model)
    strip(proto)
    if case.counts:
        count_positions(proto)
    return proto


def count_positions(proto: onnx.ModelProto) -> None:
    """Computes position_ids as transformers does: the mask's running sum, of which the last tokens are new."""
    graph = proto.graph
    inputs = [value for value in graph.input if value.name != "position_ids"]
    del graph.input[:]
    graph.input.extend(inputs)
    for name, value in [("zero", 0), ("one", 1), ("axis", [1]), ("end", [2**62])]:
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(value, np.int64), f"count.{name}"))
    node = onnx.helper.make_node
    nodes = [
        node("CumSum", ["attention_mask", "count.one"], ["count.sum"]),
        node("Sub", ["count.sum", "count.one"], ["count.all"]),
        node("Equal", ["attention_mask", "count.zero"], ["count.pad"]),
        node("Where", ["count.pad", "count.one", "count.all"], ["count.filled"]),
        node("Shape", ["input_ids"], ["count.tokens"], start=1, end=2),
        node("Neg", ["count.tokens"], ["count.start"]),
        node("Slice", ["count.filled", "count.start", "count.end", "count.axis"], ["position_ids"]),
    ]
    for index, made in enumerate(nodes):
        graph.node.insert(index, made)


def strip(proto: onnx.ModelProto) -> None:
    """Drops what only says where in mobius a node came from."""
    for node in proto.graph.node:
        node.ClearField("doc_string")
        node.ClearField("metadata_props")
    for value in [*proto.graph.value_info, *proto.graph.initializer]:
        value.ClearField("doc_string")
        value.ClearField("metadata_props")
    proto.graph.ClearField("value_info")


def fill(model: ir.Model, rng: np.random.Generator) -> None:
    """Gives every weight without a value a random one of a size that keeps activations near 1."""
    for name, value in model.graph.initializers.items():
        if value.const_value is not None:
            continue
        shape = tuple(value.shape.numpy())
        data = rng.standard_normal(shape)
        if len(shape) > 1:
            data /= math.sqrt(shape[-1]) if "embed" not in name else 1.0
        else:
            data = 0.1 * data + (1.0 if "norm" in name or "scalar" in name else 0.0)
        value.const_value = ir.tensor(data.astype(value.dtype.numpy()), name=name)


class Decoder:
    """One sequence on ONNX Runtime, whatever form its cache has."""

    def __init__(self, model: onnx.ModelProto):
        options = ort.SessionOptions()
        options.log_severity_level = 3
        self.session = ort.InferenceSession(model.SerializeToString(), options)
        self.inputs = {i.name: i for i in self.session.get_inputs()}
        outputs = [o.name for o in self.session.get_outputs()]
        self.outputs, self.caches, self.length = outputs, {}, 0
        # Every cache with the output that is its next state.
        self.present = {}
        for name, info in self.inputs.items():
            if name.startswith(("key_cache.", "value_cache.")):
                self.present[name] = f"updated_{name}"
                shape = [1, *info.shape[1:]]
            elif name.startswith("past_key_values."):
                self.present[name] = name.replace("past_key_values", "present")
                shape = [1, info.shape[1], 0, info.shape[3]]
            else:
                continue
            self.caches[name] = np.zeros(shape, np.float32)

    def step(self, ids: list[int]) -> np.ndarray:
        end = self.length + len(ids)
        feeds = {
            "input_ids": np.array([ids], np.int64),
            "position_ids": np.arange(self.length, end, dtype=np.int64)[None],
            "attention_mask": np.ones((1, end), np.int64),
            "write_indices": np.array([self.length], np.int64),
            "nonpad_kv_seqlen": np.array([end], np.int64),
        }
        feeds = {name: feed for name, feed in feeds.items() if name in self.inputs}
        found = dict(zip(self.outputs, self.session.run(None, feeds | self.caches)))
        self.caches = {name: found[present] for name, present in self.present.items()}
        self.length = end
        return found["logits"][0]

    def rewind(self, length: int) -> None:
        self.length = length
        for name in self.caches:
            if name.startswith("past_key_values."):
                self.caches[name] = self.caches[name][:, :, :length]


def record(model: onnx.ModelProto, vocab: int, rng: np.random.Generator) -> dict:
    ids, other = (rng.integers(1, vocab, n).tolist() for n in (MAX_SEQ_LEN, 6))
    runs = {"at_once": [MAX_SEQ_LEN], "chunks": [7, 4, 5], "one_by_one": [1] * MAX_SEQ_LEN}
    result = {"vocab": vocab, "ids": ids}
    for run, sizes in runs.items():
        decoder, rows, at = Decoder(model), [], 0
        for size in sizes:
            rows.append(decoder.step(ids[at : at + size]))
            at += size
        result[run] = {"sizes": sizes, "logits": rounded(np.concatenate(rows))}
    decoder = Decoder(model)
    decoder.step(ids[:8]), decoder.step(ids[8:9])
    decoder.rewind(5)
    rows = [decoder.step(other[:4]), decoder.step(other[4:5]), decoder.step(other[5:])]
    result["rewound"] = {"before": 9, "to": 5, "ids": other, "sizes": [4, 1, 1], "logits": rounded(np.concatenate(rows))}
    return result


def rounded(logits: np.ndarray) -> list[list[float]]:
    return [[float(f"{x:.8g}") for x in row] for row in logits]


def write_folder(folder: pathlib.Path) -> None:
    """A folder as ONNX Runtime GenAI has them, with a tokenizer of letters."""
    folder.mkdir(exist_ok=True)
    model = build(CASES["llama"], SMALL | dict(num_hidden_layers=1), seed=5)
    onnx.save(model, folder / "model.onnx")
    special = ["<pad>", "<s>", "</s>", "<|start|>", "<|end|>"]
    letters = ["\u0120", *map(chr, range(ord("a"), ord("z") + 1))]
    config = {
        "model": {
            "type": "llama",
            "bos_token_id": 1,
            "eos_token_id": [2, 4],
            "pad_token_id": 0,
            "vocab_size": len(special + letters),
            "context_length": MAX_SEQ_LEN,
            "decoder": {
                "filename": "model.onnx",
                "inputs": {"past_key_names": "key_cache.%d", "past_value_names": "value_cache.%d"},
                "outputs": {
                    "present_key_names": "updated_key_cache.%d",
                    "present_value_names": "updated_value_cache.%d",
                },
            },
        },
        "search": {"do_sample": False, "top_k": 7, "max_length": MAX_SEQ_LEN},
    }
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": text, "special": True, "normalized": False} for i, text in enumerate(special)
        ],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(special + letters)}, "merges": []},
    }
    tokenizer_config = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    template = (
        "{% for m in messages %}<|start|>{{ m.role }} {{ m.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|start|>{% endif %}"
    )
    (folder / "genai_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config) + "\n")
    (folder / "chat_template.jinja").write_text(template)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", metavar="DIR", type=pathlib.Path)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    folder = args.full or pathlib.Path(__file__).parent
    folder.mkdir(parents=True, exist_ok=True)
    if not args.full:
        write_folder(folder / "folder")
    for name, case in CASES.items():
        if not (case.small or args.full):
            continue
        sizes = FULL if args.full else SMALL
        seed = zlib.crc32(name.encode())
        model = build(case, sizes, seed)
        onnx.save(model, folder / f"{name}.onnx")
        expected = record(model, sizes["vocab_size"], np.random.default_rng(seed + 1))
        (folder / f"{name}.json").write_text(json.dumps(expected))
        print(f"{name}: {len(model.graph.node)} nodes, {(folder / f'{name}.onnx').stat().st_size} bytes")


if __name__ == "__main__":
    main()
