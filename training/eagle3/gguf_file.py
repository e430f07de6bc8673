"""Reads the tensors and metadata of a GGUF file, and writes a small one. numpy only."""

import struct

import numpy as np

ALIGNMENT = 32
F32, F16, Q4_0, Q4_1, Q8_0, I32 = 0, 1, 2, 3, 8, 26
# Elements of a block and its bytes.
BLOCKS = {F32: (1, 4), F16: (1, 2), Q4_0: (32, 18), Q4_1: (32, 20), Q8_0: (32, 34), I32: (1, 4)}
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9


class Reader:
    """A GGUF file: `metadata` by key and its `kinds`, those of arrays by their items; `tensor(name)` as float32."""

    def __init__(self, path):
        self.data = np.memmap(path, dtype=np.uint8, mode="r")
        self.at = 0
        magic, version, tensors, keys = struct.unpack("<4sIQQ", self._bytes(24))
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError(f"{path} is no GGUF file of version 2 or 3")
        self.metadata, self.kinds = {}, {}
        for _ in range(keys):
            key = self._string()
            self.kinds[key] = kind = self._scalar(4)
            self.metadata[key] = self._value(kind, key)
        self.tensors = {}
        for _ in range(tensors):
            name = self._string()
            dims = [self._scalar(10) for _ in range(self._scalar(4))]
            kind, offset = self._scalar(4), self._scalar(10)
            self.tensors[name] = (dims[::-1], kind, offset)
        align = self.metadata.get("general.alignment", ALIGNMENT)
        self.start = (self.at + align - 1) // align * align

    def _bytes(self, n):
        self.at += n
        return self.data[self.at - n : self.at].tobytes()

    def _scalar(self, kind):
        layout = SCALARS[kind]
        return struct.unpack(layout, self._bytes(struct.calcsize(layout)))[0]

    def _string(self):
        return self._bytes(self._scalar(10)).decode("utf-8", "surrogateescape")

    def _value(self, kind, key=None):
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            inner, count = self._scalar(4), self._scalar(10)
            if key:
                self.kinds[key] = inner
            return [self._value(inner) for _ in range(count)]
        return self._scalar(kind)

    def tensor(self, name):
        shape, kind, offset = self.tensors[name]
        count = int(np.prod(shape))
        elements, size = BLOCKS[kind]
        begin = self.start + offset
        raw = np.asarray(self.data[begin : begin + count // elements * size])
        if kind == F32:
            values = raw.view(np.float32)
        elif kind == F16:
            values = raw.view(np.float16).astype(np.float32)
        else:
            blocks = raw.reshape(-1, size)
            scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
            if kind == Q8_0:
                values = blocks[:, 2:].view(np.int8).astype(np.float32) * scale
            elif kind in (Q4_0, Q4_1):
                least = scale * -8 if kind == Q4_0 else blocks[:, 2:4].copy().view(np.float16).astype(np.float32)
                nibbles = blocks[:, size - 16 :]
                both = np.concatenate([nibbles & 15, nibbles >> 4], axis=1)
                values = both.astype(np.float32) * scale + least
            else:
                raise ValueError(f"{name} has type {kind}")
        return values.reshape(shape).copy()


def q8_0(values):
    """Blocks of 32 numbers: a half-precision scale and 8-bit integers."""
    blocks = values.astype(np.float32).reshape(-1, 32)
    scale = (np.abs(blocks).max(axis=1, keepdims=True) / 127).astype(np.float16)
    divisor = scale.astype(np.float32)
    inverse = np.divide(1, divisor, out=np.zeros_like(divisor), where=divisor > 0)
    ints = np.clip(np.rint(blocks * inverse), -127, 127).astype(np.int8)
    return np.concatenate([scale.view(np.uint8), ints.view(np.uint8)], axis=1).tobytes()


def q4_0(values):
    """Blocks of 32 numbers: a half-precision scale and 4-bit integers."""
    blocks = values.astype(np.float32).reshape(-1, 32)
    most = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1, keepdims=True), 1)
    scale = (most / -8).astype(np.float16)
    divisor = scale.astype(np.float32)
    inverse = np.divide(1, divisor, out=np.zeros_like(divisor), where=divisor != 0)
    ints = np.clip(np.floor(blocks * inverse + 8.5), 0, 15).astype(np.uint8)
    return np.concatenate([scale.view(np.uint8), ints[:, :16] | ints[:, 16:] << 4], axis=1).tobytes()


def write(path, metadata, tensors):
    """Writes a file. `metadata` has (key, kind, value); a list is (ARRAY, inner kind). `tensors` has (name, type, array)."""

    def string(text):
        data = text.encode()
        return struct.pack("<Q", len(data)) + data

    def value(kind, item):
        if kind == STRING:
            return string(item)
        return struct.pack(SCALARS[kind], item)

    head = [struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))]
    for key, kind, item in metadata:
        head.append(string(key))
        if isinstance(item, list):
            head.append(struct.pack("<IIQ", ARRAY, kind, len(item)))
            head.extend(value(kind, x) for x in item)
        else:
            head.append(struct.pack("<I", kind) + value(kind, item))
    parts, offset = [], 0
    for name, kind, array in tensors:
        blocks = {Q4_0: q4_0, Q8_0: q8_0}.get(kind)
        data = blocks(array) if blocks else array.astype({F32: np.float32, I32: np.int32}[kind]).tobytes()
        dims = array.shape[::-1]
        head.append(string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset))
        padding = -len(data) % ALIGNMENT
        parts.append(data + bytes(padding))
        offset += len(data) + padding
    head = b"".join(head)
    with open(path, "wb") as file:
        file.write(head + bytes(-len(head) % ALIGNMENT))
        file.writelines(parts)
