"""Continues many prompts with the target: a fixed number of slots, each refilled with the next prompt when its text ends."""

import time

import torch
import torch.nn.functional as F

from model import full_logits, rms, rope_tables, rotate

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

FORCED, FINISHED = 1 << 16, 1 << 17

if triton:

    @triton.jit
    def attend_kernel(
        qkv, keys, values, cos, sin, position, out, scale,
        HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, LONGEST: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """Attention of one new token of a slot, for the queries of one key head: rotates, stores the new key and value, and
        reads as many cells as the slot has."""
        DIM: tl.constexpr = 2 * HALF
        GROUP: tl.constexpr = HEADS // KV_HEADS
        row, kv = tl.program_id(0), tl.program_id(1)
        at = tl.load(position + row).to(tl.int32)
        half, member = tl.arange(0, HALF), tl.arange(0, 16)
        c = tl.load(cos + at * HALF + half).to(tl.float32)
        s = tl.load(sin + at * HALF + half).to(tl.float32)
        base = qkv + row * (HEADS + 2 * KV_HEADS) * DIM
        q_at = base + (kv * GROUP + member)[:, None] * DIM + half[None, :]
        there = member[:, None] < GROUP
        qa = tl.load(q_at, mask=there, other=0.0).to(tl.float32)
        qb = tl.load(q_at + HALF, mask=there, other=0.0).to(tl.float32)
        dtype = keys.dtype.element_ty
        q_first, q_second = (qa * c - qb * s).to(dtype), (qb * c + qa * s).to(dtype)
        k_at = base + (HEADS + kv) * DIM + half
        ka, kb = tl.load(k_at).to(tl.float32), tl.load(k_at + HALF).to(tl.float32)
        k_first, k_second = (ka * c - kb * s).to(dtype), (kb * c + ka * s).to(dtype)
        v_at = base + (HEADS + KV_HEADS + kv) * DIM + half
        v_first, v_second = tl.load(v_at), tl.load(v_at + HALF)
        cell = (row * KV_HEADS + kv).to(tl.int64) * LONGEST * DIM
        tl.store(keys + cell + at * DIM + half, k_first)
        tl.store(keys + cell + at * DIM + HALF + half, k_second)
        tl.store(values + cell + at * DIM + half, v_first)
        tl.store(values + cell + at * DIM + HALF + half, v_second)
        # The new token sees itself first; then the running softmax takes blocks of older cells.
        both = q_first.to(tl.float32) * k_first.to(tl.float32) + q_second.to(tl.float32) * k_second.to(tl.float32)
        most = tl.sum(both, 1) * scale
        total = tl.full([16], 1.0, tl.float32)
        y_first = tl.zeros([16, HALF], tl.float32) + v_first.to(tl.float32)[None, :]
        y_second = tl.zeros([16, HALF], tl.float32) + v_second.to(tl.float32)[None, :]
        for begin in range(0, at, BLOCK):
            n = begin + tl.arange(0, BLOCK)
            seen = n < at
            cells = cell + n[:, None] * DIM + half[None, :]
            k1 = tl.load(keys + cells, mask=seen[:, None], other=0.0)
            k2 = tl.load(keys + cells + HALF, mask=seen[:, None], other=0.0)
            score = (tl.dot(q_first, tl.trans(k1)) + tl.dot(q_second, tl.trans(k2))) * scale
            score = tl.where(seen[None, :], score, -1e30)
            higher = tl.maximum(most, tl.max(score, 1))
            weight = tl.exp(score - higher[:, None])
            less = tl.exp(most - higher)
            v1 = tl.load(values + cells, mask=seen[:, None], other=0.0)
            v2 = tl.load(values + cells + HALF, mask=seen[:, None], other=0.0)
            total = total * less + tl.sum(weight, 1)
            y_first = y_first * less[:, None] + tl.dot(weight.to(dtype), v1)
            y_second = y_second * less[:, None] + tl.dot(weight.to(dtype), v2)
            most = higher
        y_at = out + row * HEADS * DIM + (kv * GROUP + member)[:, None] * DIM + half[None, :]
        tl.store(y_at, (y_first / total[:, None]).to(dtype), mask=there)
        tl.store(y_at + HALF, (y_second / total[:, None]).to(dtype), mask=there)

    @triton.jit
    def sample_kernel(logits, temperature, seed, out, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
        """A draw a row by the Gumbel trick; temperature 0 takes the most likely token."""
        row = tl.program_id(0)
        t = tl.load(temperature + row)
        key = tl.load(seed).to(tl.int32)
        best = tl.full([BLOCK], -float("inf"), tl.float32)
        where = tl.zeros([BLOCK], tl.int32)
        for begin in range(0, VOCAB, BLOCK):
            n = begin + tl.arange(0, BLOCK)
            x = tl.load(logits + row.to(tl.int64) * VOCAB + n, mask=n < VOCAB, other=-float("inf")).to(tl.float32)
            u = tl.minimum(tl.maximum(tl.rand(key, row * VOCAB + n), 1e-7), 0.9999999)
            x = x - t * tl.log(-tl.log(u))
            better = x > best
            best, where = tl.where(better, x, best), tl.where(better, n, where)
        lane = tl.argmax(best, 0)
        tl.store(out + row, tl.sum(tl.where(tl.arange(0, BLOCK) == lane, where, 0), 0).to(tl.int64))


def attend_plain(qkv, keys, values, cos, sin, position, heads, kv_heads):
    """What `attend_kernel` computes, for machines without Triton."""
    slots, dim, longest = qkv.shape[0], keys.shape[-1], keys.shape[2]
    q, k, v = qkv.view(slots, -1, 1, dim).split([heads, kv_heads, kv_heads], 1)
    c, s = cos[position][:, None, None], sin[position][:, None, None]
    row = torch.arange(slots, device=qkv.device)
    keys[row, :, position] = rotate(k, c, s)[:, :, 0]
    values[row, :, position] = v[:, :, 0]
    seen = torch.arange(longest, device=qkv.device)[None] <= position[:, None]
    group = heads // kv_heads
    scores = rotate(q, c, s) @ keys.repeat_interleave(group, 1).transpose(-1, -2) * dim**-0.5
    weights = scores.masked_fill(~seen[:, None, None], -1e30).float().softmax(-1).to(values.dtype)
    return (weights @ values.repeat_interleave(group, 1)).reshape(slots, heads * dim)


def sample_plain(logits, temperature):
    noise = -torch.log(-torch.log(torch.rand_like(logits).clamp(1e-7, 0.9999999)))
    return (logits + temperature[:, None] * noise).argmax(-1)


class Generator:
    """Slots with a cache each. All texts begin with `prefix`, whose cells are never written again."""

    def __init__(self, target, slots, longest, prefix, end, most_steps=24000):
        self.target, self.slots, self.longest, self.prefix, self.end = target, slots, longest, prefix, end
        device = target.device
        self.fast = device.type == "cuda" and triton is not None
        shape = (target.layers, slots, target.kv_heads, longest, target.dim)
        self.keys = torch.zeros(shape, dtype=target.dtype, device=device)
        self.values = torch.zeros(shape, dtype=target.dtype, device=device)
        self.cos, self.sin = rope_tables(longest, target.dim, target.theta, device, target.dtype)
        whole = lambda: torch.zeros(slots, dtype=torch.long, device=device)
        self.token, self.position, self.index, self.sampled = whole(), whole(), whole(), whole()
        self.counter = torch.zeros(1, dtype=torch.long, device=device)
        self.next_prompt = torch.zeros(1, dtype=torch.long, device=device)
        self.seed = torch.zeros(1, dtype=torch.long, device=device)
        self.log = torch.zeros(most_steps, slots, dtype=torch.int32, device=device)
        self.log_index = torch.zeros(most_steps, slots, dtype=torch.int32, device=device)
        for at, token in enumerate(prefix):
            self.token.fill_(token)
            self.position.fill_(at)
            self._hidden()

    def _hidden(self):
        """Hidden states of one new token a slot."""
        t = self.target
        x = t.embedding[self.token]
        for i, (attn_norm, qkv, out, ffn_norm, gate_up, down) in enumerate(t.blocks):
            projected = F.linear(rms(x, attn_norm, t.eps), qkv)
            if self.fast:
                y = torch.empty(self.slots, t.heads * t.dim, dtype=t.dtype, device=x.device)
                attend_kernel[(self.slots, t.kv_heads)](
                    projected, self.keys[i], self.values[i], self.cos, self.sin, self.position, y, t.dim**-0.5,
                    t.heads, t.kv_heads, t.dim // 2, self.longest, 64, num_warps=2,
                )  # fmt: skip
            else:
                y = attend_plain(projected, self.keys[i], self.values[i], self.cos, self.sin, self.position, t.heads, t.kv_heads)
            x = x + F.linear(y, out)
            gate, up = F.linear(rms(x, ffn_norm, t.eps), gate_up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, down)
        return rms(x, t.norm, t.eps)

    def _step(self):
        logits = full_logits(self._hidden(), self.target.output)
        temperature = self.temperature[self.index]
        if self.fast:
            sample_kernel[(self.slots,)](logits, temperature, self.seed, self.sampled, logits.shape[1], 2048, num_warps=8)
        else:
            self.sampled.copy_(sample_plain(logits, temperature))
        at = self.position + 1
        forced = at < self.prompt_length[self.index]
        given = self.table[self.index, at.clamp(max=self.table.shape[1] - 1)]
        token = torch.where(forced, given, self.sampled)
        finished = ~forced & ((token == self.end) | (at >= self.limit))
        self.log.index_copy_(0, self.counter, (token + forced * FORCED + finished * FINISHED).int()[None])
        self.log_index.index_copy_(0, self.counter, self.index.int()[None])
        refill = (self.next_prompt + finished.cumsum(0) - 1) % self.table.shape[0]
        self.next_prompt += finished.sum()
        self.index.copy_(torch.where(finished, refill, self.index))
        # A new text begins with the last token of the prefix.
        self.token.copy_(torch.where(finished, self.prefix[-1], token))
        self.position.copy_(torch.where(finished, len(self.prefix) - 1, at))
        self.counter += 1
        self.seed += 1

    @torch.no_grad()
    def run(self, prompts, temperatures, limit, until, enough):
        """Continues prompts (lists of ids that begin with the prefix) up to `limit` tokens, until the clock says `until` or
        `enough` prompts were begun. Returns ids [texts, longest], where the new ids begin, lengths and prompt numbers."""
        device = self.target.device
        self.table = torch.zeros(len(prompts), max(map(len, prompts)), dtype=torch.long)
        for row, prompt in enumerate(prompts):
            self.table[row, : len(prompt)] = torch.tensor(prompt)
        self.table = self.table.to(device)
        self.prompt_length = torch.tensor([len(p) for p in prompts], device=device)
        self.temperature = torch.tensor(temperatures, device=device, dtype=torch.float32)
        self.limit = min(limit, self.longest) - 1
        self.token.fill_(self.prefix[-1])
        self.position.fill_(len(self.prefix) - 1)
        self.index.copy_(torch.arange(self.slots, device=device) % len(prompts))
        self.next_prompt.fill_(self.slots)
        self.counter.zero_()
        replay, steps = self._step, 0
        if self.fast:
            self._step()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._step()
            replay, steps = graph.replay, 1
        while steps < self.log.shape[0] and time.time() < until and int(self.next_prompt) < enough:
            for _ in range(min(32, self.log.shape[0] - steps)):
                replay()
                steps += 1
        return self._texts(steps)

    def _texts(self, steps):
        """Cuts the logs into texts; the unfinished ones at the end stay if they have 48 new tokens."""
        log = self.log[:steps].T.contiguous()
        device, prefix = log.device, len(self.prefix)
        ends = (log & FINISHED) > 0
        finished = ends.clone()
        ends[:, -1] = True
        flat = log.flatten()
        last = ends.flatten().nonzero()[:, 0]
        lengths = torch.diff(last, prepend=torch.tensor([-1], device=device))
        ids = torch.zeros(len(last), self.longest, dtype=torch.int32, device=device)
        ids[:, :prefix] = torch.tensor(self.prefix, dtype=torch.int32, device=device)
        column = torch.arange(self.longest, device=device)[None] - prefix
        ids[(column >= 0) & (column < lengths[:, None])] = flat & 0xFFFF
        forced = torch.cat([torch.zeros(1, dtype=torch.long, device=device), ((flat & FORCED) > 0).long().cumsum(0)])
        starts = forced[last + 1] - forced[last + 1 - lengths]
        index = self.log_index[:steps].T.flatten()[last]
        keep = finished.flatten()[last] | (lengths - starts >= 48)
        return ids[keep], (starts + prefix)[keep], (lengths + prefix)[keep], index[keep].long()


def cut_loops(ids, starts, lengths, run=48, longest_period=80):
    """Lengths of texts up to where `run` tokens have repeated what is one period before them."""
    column = torch.arange(ids.shape[1], device=ids.device)[None]
    inside = (column >= starts[:, None]) & (column < lengths[:, None])
    for period in range(1, longest_period + 1):
        same = (ids[:, period:] == ids[:, :-period]) & inside[:, :-period] & inside[:, period:]
        count = same.int().cumsum(1, dtype=torch.int16)
        if count.shape[1] <= run:
            break
        repeated = (count[:, run:] - count[:, :-run]) == run
        first = repeated.int().argmax(1) + run + period + 1
        lengths = torch.where(repeated.any(1), torch.minimum(lengths, first), lengths)
    return lengths
