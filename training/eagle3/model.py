"""The target (a llama-like decoder from GGUF) and the Eagle3 head, in PyTorch."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

# Stands for minus infinity in scores: its exponential is zero, and no difference of two of them is NaN.
UNSEEN = -1e4


def rope_tables(longest, dim, theta, device, dtype):
    """Cosines and sines of [longest, dim / 2] angles."""
    frequencies = theta ** (-torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim)
    angles = torch.arange(longest, device=device, dtype=torch.float32)[:, None] * frequencies
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x, cos, sin):
    """Rotates the halves of heads; x is [batch, heads, time, dim], the tables [time, dim / 2]."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def rms(x, weight, eps):
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), eps)


def full_logits(hidden, output):
    """Logits in single precision: those of bf16 are too coarse to compare near-equal tokens."""
    if hidden.is_cuda:
        return torch.mm(hidden, output.T, out_dtype=torch.float32)
    return hidden.float() @ output.T.float()


def unpermute(weight, heads):
    """GGUF of llama has rows of q and k in pairs; PyTorch has halves."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def permute(weight, heads):
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def decoder_layer(x, attn_norm, qkv, out, ffn_norm, gate_up, down, cos, sin, heads, kv_heads, eps):
    """One layer of the target over whole sequences, padded at the end: causal attention needs no other mask."""
    batch, time, _ = x.shape
    dim = qkv.shape[0] // (heads + 2 * kv_heads)
    projected = F.linear(rms(x, attn_norm, eps), qkv).view(batch, time, heads + 2 * kv_heads, dim).transpose(1, 2)
    q, k, v = projected.split([heads, kv_heads, kv_heads], 1)
    q, k = rotate(q, cos, sin), rotate(k, cos, sin)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    x = x + F.linear(y.transpose(1, 2).reshape(batch, time, -1), out)
    gate, up = F.linear(rms(x, ffn_norm, eps), gate_up).chunk(2, -1)
    return x + F.linear(F.silu(gate) * up, down)


class Target:
    """The target with the weights that the runtime has: dequantised, then bf16."""

    def __init__(self, file, device, dtype=torch.bfloat16):
        meta = {k.split(".", 1)[1]: v for k, v in file.metadata.items() if k.startswith("llama.")}
        self.layers = meta["block_count"]
        self.heads, self.kv_heads = meta["attention.head_count"], meta["attention.head_count_kv"]
        self.hidden = meta["embedding_length"]
        self.dim = self.hidden // self.heads
        self.mlp = meta["feed_forward_length"]
        self.eps = meta["attention.layer_norm_rms_epsilon"]
        self.theta = meta["rope.freq_base"]
        self.device, self.dtype = device, dtype
        self.layer = decoder_layer

        def load(name, heads=None):
            values = file.tensor(name)
            if heads:
                values = unpermute(values, heads)
            return torch.from_numpy(np.ascontiguousarray(values)).to(device, dtype)

        self.embedding = load("token_embd.weight")
        self.output = load("output.weight") if "output.weight" in file.tensors else self.embedding
        self.norm = load("output_norm.weight")
        self.blocks = []
        for i in range(self.layers):
            p = f"blk.{i}."
            qkv = torch.cat([load(p + "attn_q.weight", self.heads), load(p + "attn_k.weight", self.kv_heads), load(p + "attn_v.weight")])
            gate_up = torch.cat([load(p + "ffn_gate.weight"), load(p + "ffn_up.weight")])
            self.blocks.append(
                (load(p + "attn_norm.weight"), qkv, load(p + "attn_output.weight"), load(p + "ffn_norm.weight"), gate_up, load(p + "ffn_down.weight"))
            )

    def compile(self):
        """Compiles the layer, once for all layers."""
        self.layer = torch.compile(decoder_layer, dynamic=False)

    def tap_layers(self):
        """Layers whose inputs are the features."""
        return [2, self.layers // 2, self.layers - 3]

    @torch.no_grad()
    def features(self, tokens):
        """Hidden states after the last norm, and the inputs of the tapped layers, of whole sequences."""
        x = self.embedding[tokens]
        cos, sin = rope_tables(tokens.shape[1], self.dim, self.theta, x.device, self.dtype)
        kept = []
        for i, block in enumerate(self.blocks):
            if i in self.tap_layers():
                kept.append(x)
            x = self.layer(x, *block, cos, sin, self.heads, self.kv_heads, self.eps)
        return rms(x, self.norm, self.eps), torch.cat(kept, -1)


class Head(nn.Module):
    """One decoder layer over (embedding, feature) pairs, and a head over a reduced vocabulary."""

    def __init__(self, target, vocab):
        super().__init__()
        hidden, self.heads, self.kv_heads, self.dim = target.hidden, target.heads, target.kv_heads, target.dim
        self.eps, self.theta = target.eps, target.theta
        linear = lambda rows, columns: nn.Linear(columns, rows, bias=False)
        self.fc = linear(hidden, 3 * hidden)
        self.input_norm = nn.Parameter(torch.ones(hidden))
        self.hidden_norm = nn.Parameter(torch.ones(hidden))
        self.q = linear(self.heads * self.dim, 2 * hidden)
        self.k = linear(self.kv_heads * self.dim, 2 * hidden)
        self.v = linear(self.kv_heads * self.dim, 2 * hidden)
        self.o = linear(hidden, self.heads * self.dim)
        self.ffn_norm = nn.Parameter(torch.ones(hidden))
        self.gate, self.up = linear(target.mlp, hidden), linear(target.mlp, hidden)
        self.down = linear(hidden, target.mlp)
        self.norm = nn.Parameter(torch.ones(hidden))
        self.lm_head = linear(vocab, hidden)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)

    def compile(self):
        """Compiles the parts between attentions, each once for all steps of a shape."""
        for name in ("prepare", "finish", "step_loss"):
            setattr(self, name, torch.compile(getattr(self, name), dynamic=False))

    def prepare(self, h, normed, cos, sin):
        """Rotated queries, keys and values of a step."""
        x = torch.cat([normed, rms(h, self.hidden_norm, self.eps)], -1)
        project = lambda layer: F.linear(x, layer.weight.to(x.dtype)).view(*x.shape[:2], -1, self.dim).transpose(1, 2)
        return rotate(project(self.q), cos, sin) * self.dim**-0.5, rotate(project(self.k), cos, sin), project(self.v)

    def attend(self, q, keys, values, step):
        """Attention to the true features up to t - step, then to the head's own rows on the diagonal."""
        batch, _, time, dim = q.shape
        kv, group = self.kv_heads, self.heads // self.kv_heads
        index = torch.arange(time, device=q.device)
        hidden = index[None] > index[:, None] - step
        grouped = q.reshape(batch, kv, group, time, dim)
        scores = (grouped.view(batch, kv, group * time, dim) @ keys[0].transpose(-1, -2)).view(batch, kv, group, time, time)
        scores = scores.masked_fill(hidden, UNSEEN)
        own = [(grouped * k[:, :, None]).sum(-1, keepdim=True) for k in keys[1:]]
        weights = torch.cat([scores, *own], -1).softmax(-1)
        y = (weights[..., :time].reshape(batch, kv, group * time, time) @ values[0]).view(batch, kv, group, time, dim)
        for i, v in enumerate(values[1:]):
            y = y + weights[..., time + i : time + i + 1] * v[:, :, None]
        return y.view(batch, kv * group, time, dim)

    def finish(self, h, y):
        """The output of a step from its input and its attention."""
        linear = lambda layer, x: F.linear(x, layer.weight.to(x.dtype))
        x = h + linear(self.o, y.transpose(1, 2).reshape(*h.shape[:2], -1))
        z = rms(x, self.ffn_norm, self.eps)
        return x + linear(self.down, F.silu(linear(self.gate, z)) * linear(self.up, z))

    def outputs(self, embedded, features, steps):
        """The outputs of every unrolled step before the last norm. `embedded` has the next token at each position, `features`
        the target's. Step i at position t works on the head's own output of step i - 1 at t - 1."""
        cos, sin = rope_tables(embedded.shape[1], self.dim, self.theta, embedded.device, embedded.dtype)
        normed = rms(embedded, self.input_norm, self.eps)
        h = F.linear(features, self.fc.weight.to(features.dtype))
        keys, values, outputs = [], [], []
        later = lambda x: torch.cat([x[:, :, :1], x[:, :, :-1]], 2)
        for step in range(steps):
            q, k, v = self.prepare(h, normed, cos, sin)
            # Keys and values of earlier steps move on with the position that reads them.
            keys = keys[:1] + [later(x) for x in keys[1:]] + [k]
            values = values[:1] + [later(x) for x in values[1:]] + [v]
            out = self.finish(h, self.attend(q, keys, values, step))
            outputs.append(out)
            # The output at t - 1 stands for the target's feature at t.
            h = torch.cat([out[:, :1], out[:, :-1]], 1)
        return outputs

    def logits(self, out):
        return F.linear(rms(out, self.norm, self.eps), self.lm_head.weight.to(out.dtype)).float()

    def step_loss(self, out, wanted, chosen, weight):
        """Cross entropy with the target's distributions `wanted` at the flat positions `chosen`."""
        logits = self.logits(out.flatten(0, 1)[chosen])
        return ((logits.logsumexp(-1) - (wanted * logits).sum(-1)) * weight).sum() / weight.sum()

    def loss(self, embedded, features, wanted, chosen, weight, steps):
        """The losses of all steps; later steps count less."""
        outputs = self.outputs(embedded, features, steps)
        return sum(0.8**i * self.step_loss(out, wanted, chosen, weight) for i, out in enumerate(outputs))
