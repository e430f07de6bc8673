"""Compares `kvark score --json` with a Llama-shaped GGUF model computed in fp32 by PyTorch.

Usage: fp32_scores.py MODEL.gguf SCORE.json...
"""

import json
import struct
import sys

import numpy as np
import torch
import torch.nn.functional as F

torch.backends.cuda.matmul.allow_tf32 = False
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d"}


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        value = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value[0] if len(value) == 1 else value

    def text(self):
        length = self.take("<Q")
        self.at += length
        return self.data[self.at - length : self.at].decode("utf8", "replace")

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            kind, count = self.take("<IQ")
            return [self.value(kind) for _ in range(count)]
        return self.take(SCALARS[kind])


def halves(blocks, start):
    return blocks[:, start : start + 2].copy().view(np.float16).astype(np.float32)


def dequantised(data, kind, count, at):
    if kind == 0:
        return np.frombuffer(data, np.float32, count, at)
    if kind == 1:
        return np.frombuffer(data, np.float16, count, at).astype(np.float32)
    size = {2: 18, 3: 20, 8: 34}[kind]
    blocks = np.frombuffer(data, np.uint8, count // 32 * size, at).reshape(-1, size)
    if kind == 8:
        return halves(blocks, 0) * blocks[:, 2:].copy().view(np.int8).astype(np.float32)
    codes = blocks[:, size - 16 :]
    codes = np.concatenate([codes & 15, codes >> 4], 1).astype(np.float32)
    return halves(blocks, 0) * (codes - 8) if kind == 2 else halves(blocks, 0) * codes + halves(blocks, 2)


def load(path):
    reader = Reader(open(path, "rb").read())
    _, _, tensors, entries = reader.take("<IIQQ")
    facts = {}
    for _ in range(entries):
        key = reader.text()
        facts[key] = reader.value(reader.take("<I"))
    infos = []
    for _ in range(tensors):
        name = reader.text()
        shape = [reader.take("<Q") for _ in range(reader.take("<I"))][::-1]
        infos.append((name, shape, *reader.take("<IQ")))
    align = facts.get("general.alignment", 32)
    base = -(-reader.at // align) * align
    weights = {
        name: torch.from_numpy(dequantised(reader.data, kind, int(np.prod(shape)), base + at).reshape(shape).copy()).cuda()
        for name, shape, kind, at in infos
    }
    return facts, weights


@torch.no_grad()
def log_probabilities(facts, w, ids):
    heads, kv_heads = facts["llama.attention.head_count"], facts["llama.attention.head_count_kv"]
    eps, base = facts["llama.attention.layer_norm_rms_epsilon"], facts.get("llama.rope.freq_base", 10000.0)
    x = w["token_embd.weight"][torch.tensor(ids, device="cuda")]
    tokens, width = x.shape
    dim = width // heads
    frequency = base ** (-torch.arange(0, dim, 2, device="cuda").double() / dim)
    angle = torch.arange(tokens, device="cuda").double()[:, None] * frequency[None]
    cos, sin = angle.cos().float()[:, None], angle.sin().float()[:, None]
    norm = lambda y, weight: y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps) * weight

    def rotate(y):
        a, b = y[..., 0::2], y[..., 1::2]
        return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)

    mask = torch.full((tokens, tokens), float("-inf"), device="cuda").triu(1)
    for layer in range(facts["llama.block_count"]):
        weight = lambda name: w[f"blk.{layer}.{name}.weight"]
        y = norm(x, weight("attn_norm"))
        q = rotate((y @ weight("attn_q").T).view(tokens, heads, dim))
        k = rotate((y @ weight("attn_k").T).view(tokens, kv_heads, dim)).repeat_interleave(heads // kv_heads, 1)
        v = (y @ weight("attn_v").T).view(tokens, kv_heads, dim).repeat_interleave(heads // kv_heads, 1)
        scores = torch.softmax(torch.einsum("qhd,khd->hqk", q, k) * dim**-0.5 + mask, -1)
        x = x + torch.einsum("hqk,khd->qhd", scores, v).reshape(tokens, width) @ weight("attn_output").T
        y = norm(x, weight("ffn_norm"))
        x = x + (F.silu(y @ weight("ffn_gate").T) * (y @ weight("ffn_up").T)) @ weight("ffn_down").T
    logits = norm(x, w["output_norm.weight"]) @ w.get("output.weight", w["token_embd.weight"]).T
    return torch.log_softmax(logits, -1)


def main():
    facts, weights = load(sys.argv[1])
    for path in sys.argv[2:]:
        score = json.load(open(path))
        ids = score["ids"]
        expected = log_probabilities(facts, weights, ids)[:-1]
        count = len(expected)
        known = expected[torch.arange(count), torch.tensor(ids[1:], device="cuda")].cpu().numpy()
        delta = np.abs(np.array(score["logprob"][-count:], float) - known)
        best = expected.topk(2)
        sure = (best.values[:, 0] - best.values[:, 1] > 0.05).cpu().numpy()
        other = np.array(score["argmax"][:count]) != best.indices[:, 0].cpu().numpy()
        print(
            f"{path}: {count} tokens, mean |delta log p| {delta.mean():.4f}, at most {delta.max():.4f}; most likely token other than "
            f"in fp32 at {other.sum()}, at {other[sure].sum()} of the {sure.sum()} where the best two differ by more than 0.05"
        )


main()
