"""The target (a llama-like decoder from GGUF) and the Eagle3 head, in PyTorch."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def rope_tables(positions, dim, theta, dtype):
    frequencies = theta ** (-torch.arange(0, dim, 2, device=positions.device, dtype=torch.float32) / dim)
    angles = positions.float()[..., None] * frequencies
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x, cos, sin):
    """Rotates the halves of heads; x is [batch, heads, time, dim], the tables [batch, time, dim]."""
    a, b = x.chunk(2, dim=-1)
    return x * cos[:, None] + torch.cat([-b, a], dim=-1) * sin[:, None]


def rms(x, weight, eps):
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
    return (y * weight.float()).to(x.dtype)


def unpermute(weight, heads):
    """GGUF of llama has rows of q and k in pairs; PyTorch has halves."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def permute(weight, heads):
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


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
                dict(
                    attn_norm=load(p + "attn_norm.weight"),
                    qkv=qkv,
                    out=load(p + "attn_output.weight"),
                    ffn_norm=load(p + "ffn_norm.weight"),
                    gate_up=gate_up,
                    down=load(p + "ffn_down.weight"),
                )
            )

    def tap_layers(self):
        """Layers whose inputs are the features."""
        return [2, self.layers // 2, self.layers - 3]

    def forward(self, tokens, positions, mask, cache=None, at=0, taps=()):
        """Hidden states after the last norm, and the inputs of the tapped layers. `cache` is [layers, 2, batch, heads, time,
        dim]; rows from `at` on are written."""
        batch, time = tokens.shape
        x = self.embedding[tokens]
        cos, sin = rope_tables(positions, self.dim, self.theta, self.dtype)
        kept = []
        for i, block in enumerate(self.blocks):
            if i in taps:
                kept.append(x)
            h = rms(x, block["attn_norm"], self.eps)
            q, k, v = (h @ block["qkv"].T).split([self.heads * self.dim, self.kv_heads * self.dim, self.kv_heads * self.dim], -1)
            shape = lambda t: t.view(batch, time, -1, self.dim).transpose(1, 2)
            q, k, v = rotate(shape(q), cos, sin), rotate(shape(k), cos, sin), shape(v)
            if cache is not None:
                cache[i, 0, :, :, at : at + time] = k
                cache[i, 1, :, :, at : at + time] = v
                k, v = cache[i, 0, :, :, : at + time], cache[i, 1, :, :, : at + time]
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
            x = x + y.transpose(1, 2).reshape(batch, time, -1) @ block["out"].T
            h = rms(x, block["ffn_norm"], self.eps)
            gate, up = (h @ block["gate_up"].T).chunk(2, -1)
            x = x + (F.silu(gate) * up) @ block["down"].T
        features = torch.cat(kept, -1) if kept else None
        return rms(x, self.norm, self.eps), features

    @torch.no_grad()
    def generate(self, prompts, new_tokens, temperature, stop):
        """Continues prompts (lists of ids); `temperature` is one number a prompt, 0 for the most likely token. Returns one
        list of new ids a prompt, with the stop token."""
        batch, longest = len(prompts), max(map(len, prompts))
        device = self.device
        tokens = torch.zeros(batch, longest, dtype=torch.long, device=device)
        valid = torch.zeros(batch, longest + new_tokens, dtype=torch.bool, device=device)
        for row, prompt in enumerate(prompts):
            tokens[row, longest - len(prompt) :] = torch.tensor(prompt, device=device)
            valid[row, longest - len(prompt) : longest] = True
        positions = (valid[:, :longest].cumsum(-1) - 1).clamp(min=0)
        causal = torch.ones(longest, longest, dtype=torch.bool, device=device).tril()
        mask = causal[None] & valid[:, None, :longest]
        mask |= torch.eye(longest, dtype=torch.bool, device=device)[None]
        cache = torch.empty(self.layers, 2, batch, self.kv_heads, longest + new_tokens, self.dim, dtype=self.dtype, device=device)
        hidden, _ = self.forward(tokens, positions, mask[:, None], cache)
        hidden = hidden[:, -1]
        lengths = positions[:, -1] + 1
        done = torch.zeros(batch, dtype=torch.bool, device=device)
        temperature = torch.tensor(temperature, device=device)[:, None]
        greedy = temperature[:, 0] == 0
        new = torch.full((batch, new_tokens), stop, dtype=torch.long, device=device)
        for step in range(new_tokens):
            logits = (hidden @ self.output.T).float()
            best = logits.argmax(-1)
            # A draw by the Gumbel trick.
            noise = -torch.log(-torch.log(torch.rand_like(logits).clamp(1e-9, 1 - 1e-7)))
            drawn = (logits / temperature.clamp(min=1e-3) + noise).argmax(-1)
            token = torch.where(greedy, best, drawn)
            token = torch.where(done, stop, token)
            new[:, step] = token
            done |= token == stop
            if step % 32 == 31 and bool(done.all()):
                break
            at = longest + step
            valid[:, at] = True
            hidden, _ = self.forward(token[:, None], (lengths + step)[:, None], valid[:, None, None, : at + 1], cache, at)
            hidden = hidden[:, -1]
        rows = new.tolist()
        return [row[: row.index(stop) + 1] if stop in row else row for row in rows]


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

    def forward(self, embedded, features, steps, valid):
        """Logits of every unrolled step: a list of [batch, time, vocab]. `embedded` has the next token at each position,
        `features` the target's. Step i at position t works on the head's own output of step i − 1 at t − 1."""
        batch, time, hidden = embedded.shape
        positions = torch.arange(time, device=embedded.device)[None].expand(batch, -1)
        cos, sin = rope_tables(positions, self.dim, self.theta, embedded.dtype)
        index = torch.arange(time, device=embedded.device)
        normed = rms(embedded, self.input_norm, self.eps)
        h = self.fc(features)
        keys, values, outputs = [], [], []
        group = self.heads // self.kv_heads
        for step in range(steps):
            x = torch.cat([normed, rms(h, self.hidden_norm, self.eps)], -1)
            shape = lambda t: t.view(batch, time, -1, self.dim).transpose(1, 2)
            q, k = rotate(shape(self.q(x)), cos, sin), rotate(shape(self.k(x)), cos, sin)
            v = shape(self.v(x))
            keys.append(k.repeat_interleave(group, 1))
            values.append(v.repeat_interleave(group, 1))
            # True features up to t − step, then the head's own rows on the diagonal.
            scores = q @ keys[0].transpose(-1, -2) * self.dim**-0.5
            seen = index[None] <= index[:, None] - step
            scores = scores.masked_fill(~(seen[None, None] & valid[:, None, None]), float("-inf"))
            diagonal = []
            for j in range(1, step + 1):
                row = keys[j].roll(step - j, 2)
                score = (q * row).sum(-1, keepdim=True) * self.dim**-0.5
                diagonal.append(score)
            weights = torch.cat([scores, *diagonal], -1).float()
            weights = torch.nan_to_num(weights.softmax(-1)).to(q.dtype)
            y = weights[..., :time] @ values[0]
            for j in range(1, step + 1):
                y = y + weights[..., time + j - 1 : time + j] * values[j].roll(step - j, 2)
            x = h + self.o(y.transpose(1, 2).reshape(batch, time, -1))
            z = rms(x, self.ffn_norm, self.eps)
            out = x + self.down(F.silu(self.gate(z)) * self.up(z))
            outputs.append(self.lm_head(rms(out, self.norm, self.eps)))
            # The output at t − 1 stands for the target's feature at t.
            h = torch.cat([out[:, :1], out[:, :-1]], 1)
        return outputs
