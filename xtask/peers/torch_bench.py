"""PyTorch's side of `cargo xtask bench-torch`: one JSON object a line in, one out.

    {"do": "export", "folder": F}            exports every model with an input and PyTorch's output of it
    {"do": "time", "case": C, "side": S, "seconds": T}   S is eager, sdpa or compile
    {"do": "check", "case": C, "file": F}    the largest difference of an output from PyTorch's
"""

import json
import math
import os
import platform
import sys
import time

import numpy
import torch
import torch.nn.functional as F
from torch import nn

HEADS = 4


class Mlp(nn.Module):
    """Three linear layers with ReLU between them."""

    def __init__(self, dim):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x):
        return self.third(F.relu(self.second(F.relu(self.first(x)))))


class Block(nn.Module):
    """A transformer block: attention and a feed-forward network of four times the width with GELU (erf), each behind a
    layer norm and with a residual."""

    def __init__(self, dim, sdpa):
        super().__init__()
        self.sdpa = sdpa
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        batch, tokens, dim = x.shape
        y = self.norm1(x)

        def heads(z):
            return z.view(batch, tokens, HEADS, dim // HEADS).transpose(1, 2)

        q, k, v = heads(self.q(y)), heads(self.k(y)), heads(self.v(y))
        if self.sdpa:
            attended = F.scaled_dot_product_attention(q, k, v)
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(dim // HEADS)
            attended = F.softmax(scores, dim=-1) @ v
        x = x + self.o(attended.transpose(1, 2).reshape(batch, tokens, dim))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def make(case, sdpa=False):
    """A case's module and input: always the same numbers."""
    torch.manual_seed(1)
    family, sizes = case.split("-")
    sizes = [int(size) for size in sizes.split("x")]
    module = Mlp(sizes[-1]) if family == "mlp" else Block(sizes[-1], sdpa)
    return module.eval(), torch.randn(*sizes)


def export(folder, cases):
    os.makedirs(folder, exist_ok=True)
    for case in cases:
        module, x = make(case)
        program = torch.export.export(module, (x,))
        torch.export.save(program, os.path.join(folder, f"{case}.pt2"))
        numpy.save(os.path.join(folder, f"{case}.x.npy"), x.numpy())
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "mkl": torch.backends.mkl.is_available(),
    }


class Sides:
    """Modules that are ready to run, made when they are first asked for."""

    def __init__(self):
        self.ready = {}

    def get(self, case, side):
        if (case, side) not in self.ready:
            module, x = make(case, sdpa=side == "sdpa")
            if side == "compile":
                module = torch.compile(module)
            for _ in range(10):
                module(x)
            self.ready[case, side] = module, x
        return self.ready[case, side]

    def time(self, case, side, seconds):
        module, x = self.get(case, side)
        module(x)
        times = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(times) < 5:
            start = time.perf_counter()
            module(x)
            times.append(time.perf_counter() - start)
        times.sort()
        return {"median": times[len(times) // 2] * 1e6, "least": times[0] * 1e6, "runs": len(times)}


def check(case, file):
    module, x = make(case)
    found = numpy.load(file)
    expect = module(x).numpy()
    if found.shape != expect.shape:
        return {"error": f"shape {found.shape}, expected {expect.shape}"}
    return {"difference": float(numpy.abs(found - expect).max())}


def main():
    torch.set_num_threads(int(sys.argv[1]))
    sides = Sides()
    with torch.inference_mode(False), torch.no_grad():
        for line in sys.stdin:
            ask = json.loads(line)
            if ask["do"] == "export":
                answer = export(ask["folder"], ask["cases"])
            elif ask["do"] == "time":
                answer = sides.time(ask["case"], ask["side"], ask["seconds"])
            else:
                answer = check(ask["case"], ask["file"])
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
