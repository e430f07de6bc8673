"""Writes a GGUF decoder with random weights, of the shape of a known model, to measure speed without its files."""

import argparse
import struct

import numpy as np

SHAPES = {
    "smollm2": dict(layers=30, width=576, ffn=1536, heads=9, kv_heads=3, vocab=49152, embedding="q8_0"),
    "1b": dict(layers=16, width=2048, ffn=8192, heads=32, kv_heads=8, vocab=128256, embedding="q6_k"),
    "8b": dict(layers=32, width=4096, ffn=14336, heads=32, kv_heads=8, vocab=128256),
    # Experts, of which a token uses some: 8.8 billion parameters of which it reads 1.4, and a quarter of those layers.
    "8b-a1b": dict(layers=24, width=2048, ffn=1792, heads=32, kv_heads=8, vocab=65536, embedding="q6_k", experts=32, used=4),
    "2b-a0.5b": dict(layers=6, width=2048, ffn=1792, heads=32, kv_heads=8, vocab=65536, embedding="q6_k", experts=32, used=4),
    "tiny": dict(layers=2, width=256, ffn=512, heads=4, kv_heads=2, vocab=512),
}
# Type number of the file format, elements and bytes of a block.
FORMATS = {
    "f32": (0, 1, 4),
    "router": (0, 1, 4),
    "q4_0": (2, 32, 18),
    "q4_1": (3, 32, 20),
    "q8_0": (8, 32, 34),
    "q4_k": (12, 256, 144),
    "q6_k": (14, 256, 210),
    "bf16": (30, 1, 2),
}


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key, value):
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    if isinstance(value, float):
        return text(key) + struct.pack("<If", 6, value)
    return text(key) + struct.pack("<II", 4, value)


def blocks(rng, name, elements):
    """Random bytes of a format whose values are small."""
    _, length, size = FORMATS[name]
    count = elements // length
    if name == "f32":
        return np.ones(elements, np.float32).tobytes()
    if name == "router":
        return rng.standard_normal(elements, np.float32).tobytes()
    if name == "bf16":
        values = rng.standard_normal(elements, np.float32) * 0.02
        return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    data = rng.integers(0, 256, (count, size), np.uint8)
    if name in ("q4_k", "q6_k"):
        at, scale = (0, 1e-4) if name == "q4_k" else (208, 1e-5)
        data[:, at : at + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
        if name == "q4_k":
            data[:, 2:4] = np.frombuffer(np.float16(7.5 * scale).tobytes(), np.uint8)
        return data.tobytes()
    scale = np.float16({"q4_0": 0.003, "q4_1": 0.003, "q8_0": 0.0002}[name])
    data[:, 0:2] = np.frombuffer(scale.tobytes(), np.uint8)
    if name == "q4_1":
        data[:, 2:4] = np.frombuffer(np.float16(-7.5 * scale).tobytes(), np.uint8)
    return data.tobytes()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--format", choices=[*(f for f in FORMATS if f != "router"), "q4_k_m"], default="q4_0", help="q4_k_m has q6_k where llama.cpp's has")
    arguments = parser.parse_args()
    s, weight = SHAPES[arguments.shape], arguments.format
    mixed = weight == "q4_k_m"
    weight = "q4_k" if mixed else weight
    kv_width = s["width"] // s["heads"] * s["kv_heads"]
    tensors = [("token_embd.weight", s.get("embedding", weight), (s["vocab"], s["width"]))]
    for i in range(s["layers"]):
        b = f"blk.{i}."
        # Half of the layers have values and down projections of more bits.
        wide = "q6_k" if mixed and i % 2 == 0 else weight
        tensors += [
            (b + "attn_norm.weight", "f32", (s["width"],)),
            (b + "attn_q.weight", weight, (s["width"], s["width"])),
            (b + "attn_k.weight", weight, (kv_width, s["width"])),
            (b + "attn_v.weight", wide, (kv_width, s["width"])),
            (b + "attn_output.weight", weight, (s["width"], s["width"])),
            (b + "ffn_norm.weight", "f32", (s["width"],)),
        ]
        experts = (s["experts"],) if "experts" in s else ()
        end = "_exps.weight" if experts else ".weight"
        tensors += [(b + "ffn_gate_inp.weight", "router", (s["experts"], s["width"]))] if experts else []
        tensors += [
            (b + "ffn_gate" + end, weight, (*experts, s["ffn"], s["width"])),
            (b + "ffn_up" + end, weight, (*experts, s["ffn"], s["width"])),
            (b + "ffn_down" + end, wide, (*experts, s["width"], s["ffn"])),
        ]
    tensors += [("output_norm.weight", "f32", (s["width"],))]
    if "embedding" not in s:
        tensors += [("output.weight", "q6_k" if mixed else weight, (s["vocab"], s["width"]))]
    facts = {
        "general.architecture": "llama",
        "general.name": f"random weights of the shape {arguments.shape}",
        "llama.block_count": s["layers"],
        "llama.context_length": 32768,
        "llama.embedding_length": s["width"],
        "llama.feed_forward_length": s["ffn"],
        "llama.attention.head_count": s["heads"],
        "llama.attention.head_count_kv": s["kv_heads"],
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 500000.0,
        "llama.rope.dimension_count": s["width"] // s["heads"],
        "llama.vocab_size": s["vocab"],
        "tokenizer.ggml.model": "none",
    }
    if "experts" in s:
        facts |= {"llama.expert_count": s["experts"], "llama.expert_used_count": s["used"]}
    head = struct.pack("<IIQQ", 0x46554747, 3, len(tensors), len(facts))
    head += b"".join(entry(key, value) for key, value in facts.items())
    offset = 0
    for name, kind, shape in tensors:
        number, length, size = FORMATS[kind]
        head += text(name) + struct.pack("<I", len(shape))
        head += b"".join(struct.pack("<Q", n) for n in reversed(shape))
        head += struct.pack("<IQ", number, offset)
        offset += -(-int(np.prod(shape)) // length * size // 32) * 32
    rng = np.random.default_rng(1)
    cache = {}
    with open(arguments.out, "wb") as file:
        file.write(head + bytes(-len(head) % 32))
        for _, kind, shape in tensors:
            # Layers repeat the same bytes: speed does not depend on them.
            data = cache.get((kind, shape)) or blocks(rng, kind, int(np.prod(shape)))
            cache[(kind, shape)] = data
            file.write(data + bytes(-len(data) % 32))


if __name__ == "__main__":
    main()
