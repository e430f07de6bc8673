"""The op in plain PyTorch against attention over the whole sequence."""

import pytest
import torch
import torch.nn.functional as F

from kvark_export import contiguous_cache, update_and_attend


def attend(steps, q, k, v, windows=None):
    out = []
    with contiguous_cache(windows):
        for start, end in steps:
            position = torch.arange(start, end).unsqueeze(-1)
            part = [t[:, :, start:end] for t in (q, k, v)]
            out.append(torch.ops.kvcache.update_and_attend(*part, position, 0, 0.3, torch.float32))
    return torch.cat(out, 2)


def truth(q, k, v, window=None):
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    mask = torch.ones(q.shape[2], k.shape[2]).tril().bool()
    if window:
        mask &= mask.triu(1 - window)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3)


@pytest.fixture
def qkv():
    torch.manual_seed(0)
    return torch.randn(1, 4, 7, 8), torch.randn(1, 2, 7, 8), torch.randn(1, 2, 7, 6)


@pytest.mark.parametrize("steps", [[(0, 7)], [(0, 3), (3, 7)], [(i, i + 1) for i in range(7)]])
def test_steps_do_not_matter(qkv, steps):
    torch.testing.assert_close(attend(steps, *qkv), truth(*qkv))


def test_windows(qkv):
    torch.testing.assert_close(attend([(0, 4), (4, 7)], *qkv, windows=[3]), truth(*qkv, window=3))


def test_a_position_may_go_back(qkv):
    q, k, v = qkv
    with contiguous_cache() as cache:

        def step(a, b):
            part = (t[:, :, a:b] for t in (q, k, v))
            return torch.ops.kvcache.update_and_attend(*part, torch.arange(a, b), 0, 0.3, torch.float32)

        step(0, 7)
        again = step(4, 7)
        assert cache.rows[0][0].shape[2] == 7
    torch.testing.assert_close(again, truth(*qkv)[:, :, 4:])


def test_what_a_contiguous_cache_refuses(qkv):
    q, k, v = (t[:, :, :2] for t in qkv)
    call = lambda position: update_and_attend(q, k, v, torch.tensor(position), 0, 0.3, torch.float32)
    with contiguous_cache():
        for position in ([1, 2], [0, 0], [0, 2]):
            with pytest.raises(ValueError):
                call(position)
    with pytest.raises(RuntimeError, match="cache"):
        call([0, 1])


def test_the_fake_kernel_knows_shape_and_type(qkv):
    with torch._subclasses.FakeTensorMode() as mode:
        q, k, v = (mode.from_tensor(t) for t in qkv)
        out = torch.ops.kvcache.update_and_attend(q, k, v, torch.arange(7), 0, 0.3, torch.float16)
    assert (tuple(out.shape), out.dtype) == ((1, 4, 7, 6), torch.float16)
