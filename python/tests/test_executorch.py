"""kvark's caches behind ExecuTorch's op, where its own reference caches cannot judge: rewind, rings that evict, trees."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("executorch")
pytest.importorskip("kvark")

import kvark.executorch  # noqa: E402
from executorch.extension.llm.cache.reference_cache import CacheConfig, LayerPolicy, attend  # noqa: E402
from executorch.extension.llm.cache.update_and_attend import REGISTRY, update_and_attend  # noqa: E402

HEADS, KV_HEADS, DIM = 4, 2, 8


def config(capacity=32, layers=(LayerPolicy.flat(),)):
    return CacheConfig(n_layers=len(layers), n_kv_heads=KV_HEADS, head_dim=DIM, capacity=capacity, layers=layers)


class Tokens:
    """Random queries, keys and values of a sequence."""

    def __init__(self, n):
        torch.manual_seed(0)
        self.q = torch.randn(1, HEADS, n, DIM)
        self.k = torch.randn(1, KV_HEADS, n, DIM)
        self.v = torch.randn(1, KV_HEADS, n, DIM)

    def run(self, cache, indices, positions):
        position = torch.tensor(positions).unsqueeze(-1)
        k, v, spec = cache.update_and_fetch(0, self.k[:, :, indices], self.v[:, :, indices], position)
        return attend(self.q[:, :, indices], k, v, spec, DIM**-0.5, torch.float32)

    def expected(self, index, seen):
        """Attention of one query over the keys with these indices."""
        k, v = (side[:, :, seen].repeat_interleave(HEADS // KV_HEADS, dim=1) for side in (self.k, self.v))
        query = self.q[:, :, [index]]
        return torch.nn.functional.scaled_dot_product_attention(query, k, v, scale=DIM**-0.5)


def assert_row(out, row, expected):
    torch.testing.assert_close(out[:, :, [row]], expected, atol=1e-5, rtol=1e-5)


def test_a_rewind_forgets_what_came_after():
    tokens = Tokens(8)
    cache = kvark.executorch.ContiguousCache(config())
    tokens.run(cache, [0, 1, 2, 3, 4], [0, 1, 2, 3, 4])
    cache.rewind(3)
    out = tokens.run(cache, [5, 6], [3, 4])
    assert_row(out, 0, tokens.expected(5, [0, 1, 2, 5]))
    assert_row(out, 1, tokens.expected(6, [0, 1, 2, 5, 6]))
    with pytest.raises(kvark.errors.CacheError):
        tokens.run(cache, [7], [9])


def test_a_ring_keeps_only_its_window():
    tokens = Tokens(40)
    cache = kvark.executorch.RingCache(config(64, (LayerPolicy.ring(4),)), slack=4)
    for start in range(0, 40, 4):
        indices = list(range(start, start + 4))
        out = tokens.run(cache, indices, indices)
        for row, index in enumerate(indices):
            assert_row(out, row, tokens.expected(index, list(range(max(0, index - 3), index + 1))))
    rows = cache._cache.update_and_fetch(0, tokens.k[0, :, :1].numpy(), tokens.v[0, :, :1].numpy(), [40])[0]
    assert rows.shape[1] == 4 - 1 + 4


def test_siblings_of_a_tree_do_not_see_each_other():
    tokens = Tokens(10)
    cache = kvark.executorch.TreeCache(config())
    tokens.run(cache, [0, 1], [0, 1])
    # Two candidates behind the committed tokens; the first has a child.
    cache.propose([None, None, 0])
    out = tokens.run(cache, [2, 3, 4], [2, 2, 3])
    assert_row(out, 0, tokens.expected(2, [0, 1, 2]))
    assert_row(out, 1, tokens.expected(3, [0, 1, 3]))
    assert_row(out, 2, tokens.expected(4, [0, 1, 2, 4]))
    cache.commit([0, 2])
    cache.propose([None])
    out = tokens.run(cache, [5], [4])
    assert_row(out, 0, tokens.expected(5, [0, 1, 2, 4, 5]))


def test_install_puts_a_cache_behind_the_op():
    tokens = Tokens(3)
    kvark.executorch.install("mine", "cells", config()).begin_step([0, 0, 1])
    position = torch.tensor([[0], [1], [0]])
    with REGISTRY.active("mine"):
        out = update_and_attend(tokens.q, tokens.k, tokens.v, position, 0, DIM**-0.5, torch.float32)
    REGISTRY.uninstall("mine")
    assert_row(out, 1, tokens.expected(1, [0, 1]))
    assert_row(out, 2, tokens.expected(2, [2]))
    with pytest.raises(kvark.errors.InvalidArgumentError, match="paged"):
        kvark.executorch.install("mine", "paged", config())
