"""Two small decoders in PyTorch: a hybrid of gated delta nets and attention (`qwen35`), and a mixture of experts (`qwen3moe`).

Parameters have the names and shapes that GGUF files of these architectures have, so a file is the parameters as they are.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

EPS = 1e-6
THETA = 10000.0
CHUNK = 64
BLOCK = 32


class Rounded(torch.autograd.Function):
    """A weight as Q4_0 stores it; the gradient passes as if it were not rounded."""

    @staticmethod
    def forward(ctx, weight):
        blocks = weight.reshape(-1, BLOCK)
        most = blocks.gather(1, blocks.abs().argmax(1, keepdim=True))
        scale = (most / -8).half().float()
        inverse = torch.where(scale == 0, 0, 1 / scale)
        return ((blocks * inverse + 8.5).floor().clamp(0, 15) - 8).mul(scale).reshape(weight.shape)

    @staticmethod
    def backward(ctx, grad):
        return grad


def norm(x, weight):
    return F.rms_norm(x.float(), (x.shape[-1],), weight, EPS).to(x.dtype)


def rotate(x, rotated):
    """Rotates the first dimensions of heads, in halves; x is [batch, heads, time, dim]."""
    half = rotated // 2
    frequencies = THETA ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = torch.arange(x.shape[2], device=x.device, dtype=torch.float32)[:, None] * frequencies
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b, rest = x.split([half, half, x.shape[-1] - rotated], -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


def linear(x, weight):
    return F.linear(x, weight.to(x.dtype))


def split_heads(x, weight, dim):
    return linear(x, weight).unflatten(-1, (-1, dim)).transpose(1, 2)


def attend(q, k, v):
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return y.transpose(1, 2).flatten(2)


def delta_rule(q, k, v, decay, beta):
    """The gated delta rule in chunks, in single precision; [batch, heads, time, dim], decay and beta without the last."""
    batch, heads, time, dim = q.shape
    split = lambda t: t.reshape(batch, heads, time // CHUNK, CHUNK, *t.shape[3:])
    q, k, v, decay, beta = map(split, (q * dim**-0.5, k, v, decay, beta))
    total = decay.cumsum(-1)
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    # exp of differences of which only those below the diagonal are used, and those are at most zero.
    ratio = (total[..., :, None] - total[..., None, :]).masked_fill(~lower, -torch.inf).exp()
    weighted = k * beta[..., None]
    within = (weighted @ k.transpose(-1, -2) * ratio).tril(-1)
    both = torch.cat([v * beta[..., None], weighted * total.exp()[..., None]], -1)
    identity = torch.eye(CHUNK, device=q.device)
    both = torch.linalg.solve_triangular(identity + within, both, upper=False, unitriangular=True)
    values, keys = both.split([v.shape[-1], dim], -1)
    scores = q @ k.transpose(-1, -2) * ratio
    entering = q * total.exp()[..., None]
    leaving = k * (total[..., -1:] - total).exp()[..., None]
    state, out = torch.zeros(batch, heads, dim, v.shape[-1], device=q.device), []
    for i in range(time // CHUNK):
        new = values[:, :, i] - keys[:, :, i] @ state
        out.append(entering[:, :, i] @ state + scores[:, :, i] @ new)
        state = state * total[:, :, i, -1, None, None].exp() + leaving[:, :, i].transpose(-1, -2) @ new
    return torch.cat(out, 2)


class Student(nn.Module):
    """What both have: embeddings that are also the head, blocks, and rounding of their matrices."""

    def __init__(self, vocab, hidden):
        super().__init__()
        self.vocab, self.hidden, self.rounds = vocab, hidden, False
        self.tensors = nn.ParameterDict()
        self.matrix("token_embd.weight", vocab, hidden, scale=0.02)
        self.vector("output_norm.weight", hidden)

    def matrix(self, name, *shape, scale=None):
        scale = scale or 0.7 / math.sqrt(shape[-1])
        self.tensors[name.replace(".", "/")] = nn.Parameter(torch.randn(shape) * scale)

    def vector(self, name, size, value=1.0):
        self.tensors[name.replace(".", "/")] = nn.Parameter(torch.full((size,), value))

    def stored(self, name):
        """Whether a file has the tensor in blocks."""
        shape = self.tensors[name.replace(".", "/")].shape
        small = "ssm_" in name and not name.endswith("ssm_out.weight") or "_inp" in name
        return len(shape) > 1 and shape[-1] % BLOCK == 0 and not small

    def get(self, name):
        weight = self.tensors[name.replace(".", "/")]
        return Rounded.apply(weight) if self.rounds and self.stored(name) else weight

    def embedding(self):
        return self.get("token_embd.weight")

    def forward(self, ids, dtype):
        """Hidden states after the last norm. Blocks take their weights by short names, so that one compiled block serves all layers."""
        x = F.embedding(ids, self.embedding()).to(dtype)
        self.shares = []
        for i in range(self.layers):
            prefix = f"blk/{i}/"
            names = [name.replace("/", ".") for name in self.tensors if name.startswith(prefix)]
            x, share = self.block(x, {name[len(prefix) :]: self.get(name) for name in names})
            self.shares.append(share)
        return norm(x, self.get("output_norm.weight"))

    def balance(self):
        return 0.0


class Hybrid(Student):
    """Every fourth layer attends with gated outputs; the others are gated delta nets."""

    ARCH = "qwen35"

    def __init__(self, vocab, hidden=192, layers=8, ffn=576, heads=4, kv_heads=2, dim=64, delta_heads=4, delta_dim=64):
        super().__init__(vocab, hidden)
        self.layers, self.ffn, self.head_count, self.kv_heads, self.dim = layers, ffn, heads, kv_heads, dim
        self.delta_heads, self.delta_dim = delta_heads, delta_dim
        inner = delta_heads * delta_dim
        for i in range(layers):
            p = f"blk.{i}."
            self.vector(p + "attn_norm.weight", hidden)
            self.vector(p + "post_attention_norm.weight", hidden)
            self.matrix(p + "ffn_gate.weight", ffn, hidden)
            self.matrix(p + "ffn_up.weight", ffn, hidden)
            self.matrix(p + "ffn_down.weight", hidden, ffn)
            if self.attends(i):
                self.matrix(p + "attn_q.weight", 2 * heads * dim, hidden)
                self.matrix(p + "attn_k.weight", kv_heads * dim, hidden)
                self.matrix(p + "attn_v.weight", kv_heads * dim, hidden)
                self.matrix(p + "attn_output.weight", hidden, heads * dim)
                self.vector(p + "attn_q_norm.weight", dim)
                self.vector(p + "attn_k_norm.weight", dim)
            else:
                self.matrix(p + "attn_qkv.weight", 3 * inner, hidden)
                self.matrix(p + "attn_gate.weight", inner, hidden)
                self.matrix(p + "ssm_conv1d.weight", 3 * inner, 4, scale=0.3)
                self.matrix(p + "ssm_alpha.weight", delta_heads, hidden)
                self.matrix(p + "ssm_beta.weight", delta_heads, hidden)
                self.vector(p + "ssm_dt.bias", delta_heads, -3.0)
                # Files have minus the exponential of what is learned.
                self.vector(p + "ssm_a", delta_heads, 0.0)
                self.vector(p + "ssm_norm.weight", delta_dim)
                self.matrix(p + "ssm_out.weight", hidden, inner)

    def attends(self, i):
        return i % 4 == 3

    def attention(self, x, w):
        q, gate = split_heads(x, w["attn_q.weight"], 2 * self.dim).split(self.dim, -1)
        k, v = (split_heads(x, w[f"attn_{n}.weight"], self.dim) for n in "kv")
        q, k = norm(q, w["attn_q_norm.weight"]), norm(k, w["attn_k_norm.weight"])
        y = attend(rotate(q, self.dim // 4), rotate(k, self.dim // 4), v)
        return linear(y * gate.transpose(1, 2).flatten(2).sigmoid(), w["attn_output.weight"])

    def delta_net(self, x, w):
        time = x.shape[1]
        mixed = linear(x, w["attn_qkv.weight"]).transpose(1, 2)
        kernel = w["ssm_conv1d.weight"].to(x.dtype)
        mixed = F.silu(F.conv1d(F.pad(mixed, (3, 0)), kernel[:, None], groups=len(kernel)))
        q, k, v = mixed.float().unflatten(1, (3, self.delta_heads, self.delta_dim)).transpose(-1, -2).unbind(1)
        q, k = (t * torch.rsqrt(t.pow(2).sum(-1, keepdim=True) + EPS) for t in (q, k))
        alpha = F.linear(x.float(), w["ssm_alpha.weight"])
        beta = F.linear(x.float(), w["ssm_beta.weight"]).sigmoid().transpose(1, 2)
        decay = (-w["ssm_a"].exp() * F.softplus(alpha + w["ssm_dt.bias"])).transpose(1, 2)
        padding = -time % CHUNK
        q, k, v = (F.pad(t, (0, 0, 0, padding)) for t in (q, k, v))
        y = delta_rule(q, k, v, F.pad(decay, (0, padding)), F.pad(beta, (0, padding)))[:, :, :time]
        z = split_heads(x, w["attn_gate.weight"], self.delta_dim)
        y = norm(y, w["ssm_norm.weight"]) * F.silu(z.float())
        return linear(y.transpose(1, 2).flatten(2).to(x.dtype), w["ssm_out.weight"])

    def block(self, x, w):
        mixer = self.delta_net if "ssm_a" in w else self.attention
        x = x + mixer(norm(x, w["attn_norm.weight"]), w)
        y = norm(x, w["post_attention_norm.weight"])
        y = F.silu(linear(y, w["ffn_gate.weight"])) * linear(y, w["ffn_up.weight"])
        return x + linear(y, w["ffn_down.weight"]), None

    def keys(self):
        return {
            "attention.head_count": self.head_count, "attention.head_count_kv": self.kv_heads,
            "attention.key_length": self.dim, "attention.value_length": self.dim, "feed_forward_length": self.ffn,
            "rope.dimension_count": self.dim // 4, "rope.dimension_sections": [3, 3, 2, 0], "full_attention_interval": 4,
            "ssm.conv_kernel": 4, "ssm.inner_size": self.delta_heads * self.delta_dim, "ssm.state_size": self.delta_dim,
            "ssm.time_step_rank": self.delta_heads, "ssm.group_count": self.delta_heads,
        }  # fmt: skip


class Experts(Student):
    """Attention with normalised heads, and 8 of 32 experts in every layer."""

    ARCH = "qwen3moe"

    def __init__(self, vocab, hidden=192, layers=4, ffn=64, experts=32, used=8, heads=3, kv_heads=1, dim=64):
        super().__init__(vocab, hidden)
        self.layers, self.ffn, self.experts, self.used = layers, ffn, experts, used
        self.head_count, self.kv_heads, self.dim = heads, kv_heads, dim
        for i in range(layers):
            p = f"blk.{i}."
            self.vector(p + "attn_norm.weight", hidden)
            self.vector(p + "ffn_norm.weight", hidden)
            self.matrix(p + "attn_q.weight", heads * dim, hidden)
            self.matrix(p + "attn_k.weight", kv_heads * dim, hidden)
            self.matrix(p + "attn_v.weight", kv_heads * dim, hidden)
            self.matrix(p + "attn_output.weight", hidden, heads * dim)
            self.vector(p + "attn_q_norm.weight", dim)
            self.vector(p + "attn_k_norm.weight", dim)
            self.matrix(p + "ffn_gate_inp.weight", experts, hidden)
            self.matrix(p + "ffn_gate_exps.weight", experts, ffn, hidden)
            self.matrix(p + "ffn_up_exps.weight", experts, ffn, hidden)
            self.matrix(p + "ffn_down_exps.weight", experts, hidden, ffn, scale=1.5 / math.sqrt(ffn))

    def block(self, x, w):
        y = norm(x, w["attn_norm.weight"])
        q, k, v = (split_heads(y, w[f"attn_{n}.weight"], self.dim) for n in "qkv")
        q, k = norm(q, w["attn_q_norm.weight"]), norm(k, w["attn_k_norm.weight"])
        x = x + linear(attend(rotate(q, self.dim), rotate(k, self.dim), v), w["attn_output.weight"])
        y = norm(x, w["ffn_norm.weight"])
        chances = F.linear(y.float(), w["ffn_gate_inp.weight"]).softmax(-1)
        weights, chosen = chances.topk(self.used, -1)
        weights = torch.zeros_like(chances).scatter(-1, chosen, weights / weights.sum(-1, keepdim=True))
        share = ((weights > 0).float().flatten(0, -2).mean(0) * chances.flatten(0, -2).mean(0)).sum()
        # All experts of all rows: those that were not chosen have the weight zero.
        gate, up = (w[f"ffn_{n}_exps.weight"].flatten(0, 1) for n in ("gate", "up"))
        h = (F.silu(linear(y, gate)) * linear(y, up)).unflatten(-1, (self.experts, self.ffn))
        h = (h * weights[..., None].to(h.dtype)).flatten(-2)
        return x + linear(h, w["ffn_down_exps.weight"].transpose(0, 1).flatten(1)), share

    def keys(self):
        return {
            "attention.head_count": self.head_count, "attention.head_count_kv": self.kv_heads,
            "attention.key_length": self.dim, "attention.value_length": self.dim, "feed_forward_length": self.ffn,
            "expert_count": self.experts, "expert_used_count": self.used, "expert_feed_forward_length": self.ffn,
        }  # fmt: skip

    def balance(self):
        """At its least, which is the share of used experts, if all experts are chosen alike."""
        return sum(self.shares) * self.experts / self.used / len(self.shares)


STUDENTS = {"hybrid": Hybrid, "experts": Experts}
