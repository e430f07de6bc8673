"""Times PyTorch on the shapes that kvark is timed on: bf16, layers compiled, decode in a CUDA graph. Prints JSON, medians."""

import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F

SHAPES = {
    "smollm2": dict(layers=30, width=576, ffn=1536, heads=9, kv_heads=3, vocab=49152),
    "8b": dict(layers=32, width=4096, ffn=14336, heads=32, kv_heads=8, vocab=128256),
}
CONTEXT = 2560


class Layer(torch.nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        self.dim = s["width"] // s["heads"]
        kv = self.dim * s["kv_heads"]
        weight = lambda n, k: torch.nn.Parameter(torch.randn(n, k, device="cuda", dtype=torch.bfloat16) * 0.02)
        self.qkv = weight(s["width"] + 2 * kv, s["width"])
        self.out = weight(s["width"], s["width"])
        self.gate_up = weight(2 * s["ffn"], s["width"])
        self.down = weight(s["width"], s["ffn"])
        self.norms = torch.nn.Parameter(torch.ones(2, s["width"], device="cuda", dtype=torch.bfloat16))
        shape = (1, s["kv_heads"], CONTEXT, self.dim)
        self.register_buffer("keys", torch.zeros(shape, device="cuda", dtype=torch.bfloat16))
        self.register_buffer("values", torch.zeros(shape, device="cuda", dtype=torch.bfloat16))

    def forward(self, x, position, mask, cos, sin, depth: int):
        s, tokens = self.s, x.shape[0]
        y = F.rms_norm(x, (s["width"],), self.norms[0], 1e-5) @ self.qkv.T
        q, k, v = y.split([s["width"], self.dim * s["kv_heads"], self.dim * s["kv_heads"]], -1)
        turn = lambda z, heads: z.view(tokens, heads, self.dim).transpose(0, 1)[None]
        rotate = lambda z: z * cos + torch.cat([-z[..., self.dim // 2 :], z[..., : self.dim // 2]], -1) * sin
        q, k, v = rotate(turn(q, s["heads"])), rotate(turn(k, s["kv_heads"])), turn(v, s["kv_heads"])
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v)
        keys, values = self.keys[:, :, :depth], self.values[:, :, :depth]
        a = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
        x = x + a[0].transpose(0, 1).reshape(tokens, -1) @ self.out.T
        gate, up = (F.rms_norm(x, (s["width"],), self.norms[1], 1e-5) @ self.gate_up.T).chunk(2, -1)
        return x + (F.silu(gate) * up) @ self.down.T


def median(run, repeats=30):
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


@torch.no_grad()
def measure(name):
    s = SHAPES[name]
    layers = [Layer(s) for _ in range(s["layers"])]
    compiled = torch.compile(Layer.forward, dynamic=False)
    head = torch.randn(s["vocab"], s["width"], device="cuda", dtype=torch.bfloat16) * 0.02
    dim = s["width"] // s["heads"]

    def runner(tokens, depth, masked):
        x = torch.randn(tokens, s["width"], device="cuda", dtype=torch.bfloat16)
        position = torch.arange(depth - tokens, depth, device="cuda")
        mask = torch.ones(tokens, depth, device="cuda", dtype=torch.bool) if masked else None
        cos = torch.randn(tokens, dim, device="cuda", dtype=torch.bfloat16)
        sin = torch.randn(tokens, dim, device="cuda", dtype=torch.bfloat16)

        def run():
            y = x
            for layer in layers:
                y = compiled(layer, y, position, mask, cos, sin, depth)
            return y[-1:] @ head.T

        for _ in range(3):
            run()
        return run

    decode = runner(1, 65, True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decode()
    found = {"decode_us": median(graph.replay), "prefill_2048_us": median(runner(2048, 2048, False), 10)}
    batch = runner(32, 96, True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        batch()
    found["batch_32_us"] = median(graph.replay)
    return found


print(json.dumps({"torch": torch.__version__} | {name: measure(name) for name in sys.argv[1:] or SHAPES}))
