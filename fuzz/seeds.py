"""Writes small valid files for the fuzz targets to start from: corpus/TARGET/*.

Run in this folder, then `cargo +nightly fuzz run gguf` (or another target). Only the standard library is needed.
"""

import os
import shutil
import struct
import zipfile
from pathlib import Path

# Type number: (elements in a block, bytes in a block).
TENSOR_TYPES = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210),
    20: (32, 18), 23: (256, 136), 24: (1, 1), 26: (1, 4), 27: (1, 8), 30: (1, 2),
}  # fmt: skip
# Value type number: struct code.
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


def string(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key, kind, value):
    body = string(value) if kind == STRING else struct.pack("<" + NUMBERS[kind], value)
    return string(key) + struct.pack("<I", kind) + body


def array(key, kind, values):
    if kind == STRING:
        body = b"".join(map(string, values))
    else:
        body = struct.pack(f"<{len(values)}{NUMBERS[kind]}", *values)
    return string(key) + struct.pack("<IIQ", ARRAY, kind, len(values)) + body


def gguf(entries=(), tensors=(), version=3, alignment=32):
    """`tensors`: (name, dimensions innermost first, type number)."""
    directory, data = b"", b""
    for name, dims, kind in tensors:
        data += bytes(-len(data) % alignment)
        directory += string(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        directory += struct.pack("<IQ", kind, len(data))
        length, size = TENSOR_TYPES[kind]
        elements = 1
        for dim in dims:
            elements *= dim
        data += bytes(i % 251 for i in range(elements // length * size))
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(entries))
    head += b"".join(entries) + directory
    return head + bytes(-len(head) % alignment) + data


scalars = [entry(f"n{kind}", kind, 1) for kind in NUMBERS]
arrays = [array(f"v{kind}", kind, [1, 0, 1]) for kind in NUMBERS]
vocabulary = array("tokenizer.ggml.tokens", STRING, ["<s>", "a", "\u00e9", b"\xe2\x96", ""])
model = [entry("general.architecture", STRING, "llama"), entry("llama.block_count", 4, 1)]
files = {
    "empty": gguf(),
    "version2": gguf(model, version=2),
    "scalars": gguf(scalars),
    "arrays": gguf(arrays),
    "vocabulary": gguf([*model, vocabulary]),
    "shapes": gguf([], [("s", [], 0), ("v", [3], 0), ("m", [3, 2], 1), ("t", [2, 3, 2, 2], 30)]),
    "aligned": gguf([entry("general.alignment", 4, 8)], [("a", [1], 0), ("b", [1], 0)], alignment=8),
    "types": gguf(model, [(f"t{k}", [TENSOR_TYPES[k][0]], k) for k in TENSOR_TYPES]),
}
for kind, (length, _) in TENSOR_TYPES.items():
    files[f"type{kind}"] = gguf([], [("w", [length, 2], kind), ("norm", [4], 0)])

os.makedirs("corpus/gguf", exist_ok=True)
for name, data in files.items():
    with open(f"corpus/gguf/{name}.gguf", "wb") as file:
        file.write(data)

# Exported programs: whole archives behind a 1, programs alone behind a 0.
os.makedirs("corpus/pt2", exist_ok=True)
fixtures = os.path.join("..", "crates", "import", "tests", "fixtures", "pt2")
for name in sorted(os.listdir(fixtures)):
    if not name.endswith(".pt2") or os.path.getsize(os.path.join(fixtures, name)) > 170_000:
        continue
    with open(os.path.join(fixtures, name), "rb") as file:
        archive = file.read()
    if len(archive) < 30_000:
        with open(f"corpus/pt2/{name}", "wb") as file:
            file.write(b"\1" + archive)
    with zipfile.ZipFile(os.path.join(fixtures, name)) as members:
        for member in members.namelist():
            if "/models/" in member:
                seed = f"{name}.{os.path.basename(member)}"
                with open(f"corpus/pt2/{seed}", "wb") as file:
                    file.write(b"\0" + members.read(member))

# Models beside their truths.
os.makedirs("corpus/onnx", exist_ok=True)
models = os.path.join("..", "crates", "kvark", "tests", "onnx_node", "own")
for name in sorted(os.listdir(models)):
    path = os.path.join(models, name, "model.onnx")
    if os.path.exists(path):
        with open(path, "rb") as source, open(f"corpus/onnx/{name}.onnx", "wb") as file:
            file.write(source.read())

# Snapshots. The target sets the head's checksum right; no rows have the checksum of nothing.
NOTHING = 0xEF46DB3751D8E999


def snapshot(tokens, layers, notes, rows=b""):
    """`layers`: (heads, key elements, value elements, window, first position)."""
    head = b"KVARKSNP" + struct.pack("<IIQQ8s8sIIQ", 1, len(layers), 0, 7, b"f16", b"q8", len(tokens), 0, len(notes))
    head += struct.pack(f"<{len(tokens)}I", *tokens)
    for layer in layers:
        head += struct.pack("<6IQQ", *layer, 0, NOTHING, NOTHING)
    head += notes
    return head + bytes(-(len(head) + 8) % 64) + bytes(8) + rows


os.makedirs("corpus/snapshot", exist_ok=True)
for name, data in {
    "empty": snapshot([], [], b""),
    "no_tokens": snapshot([], [(2, 64, 64, 0, 0), (1, 20, 36, 17, 0)], b"{}"),
    "windows": snapshot([1, 2, 3], [(2, 8, 8, 2, 3)], b"notes"),
    "rows": snapshot([5, 6], [(1, 8, 8, 0, 0)], b"", bytes(2 * (16 + 20))),
    # As a prefix: a layer without rows, whose window needs none.
    "prefix": snapshot([5, 6], [(1, 8, 8, 1, 2)], b"{}"),
}.items():
    with open(f"corpus/snapshot/{name}.kv", "wb") as file:
        file.write(data)

# ExecuTorch programs: the fixtures.
os.makedirs("corpus/pte", exist_ok=True)
for path in sorted(Path("../crates/import/tests/fixtures/pte").rglob("*.pte")):
    shutil.copy(path, f"corpus/pte/{path.name}")

# Draft heads: two bytes of length, the configuration, and the file.
os.makedirs("corpus/safetensors", exist_ok=True)
for folder in sorted(Path("../crates/import/tests/fixtures/eagle3").iterdir()):
    if folder.is_dir():
        config = (folder / "config.json").read_bytes()
        data = struct.pack("<H", len(config)) + config + (folder / "model.safetensors").read_bytes()
        Path(f"corpus/safetensors/{folder.name}").write_bytes(data)

# Grammars: a byte for the kind, and the text.
os.makedirs("corpus/grammar", exist_ok=True)
for name, data in {
    "gbnf": b'\x00root ::= move ("," ws move){1,3} "\\n"\nmove ::= [a-h] [1-8] | "O-O" ("-O")?\nws ::= [ \\t]* | ""\n',
    "regex": b"\x01(yes|no)[a-z]{2,5}\\d+",
    "lark": b'\x02start: a+ b?\na: "x" | /[0-9]/\nb: %json {"type": "object"}\n',
    "schema": b'\x03{"type":"object","properties":{"a":{"type":"integer"},"b":{"$ref":"#/$defs/c"}},"required":["a"],'
    b'"$defs":{"c":{"type":"array","items":{"enum":["x",null]},"maxItems":3}}}',
    "tool": b'\x04{"anyOf":[{"properties":{"name":{"const":"look"}},"required":["name"]}]}',
}.items():
    Path(f"corpus/grammar/{name}").write_bytes(data)
