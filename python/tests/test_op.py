"""The op in plain PyTorch against attention over the whole sequence."""

import pytest
import torch
import torch.nn.functional as F

from kvark_export import cell_cache, contiguous_cache, ring_cache, update_and_attend


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


def step(qkv, indices, at, layer=0):
    """One call of the op with these tokens of a sequence, at these positions."""
    part = (t[:, :, indices] for t in qkv)
    return torch.ops.kvcache.update_and_attend(*part, torch.tensor(at).unsqueeze(-1), layer, 0.3, torch.float32)


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


def test_a_ring_keeps_the_rows_of_its_window(qkv):
    with ring_cache([3, 0], slack=1) as cache:
        for start, end in ((0, 2), (2, 6), (6, 7)):
            indices = list(range(start, end))
            for layer, window in ((0, 3), (1, None)):
                found = step(qkv, indices, indices, layer)
                torch.testing.assert_close(found, truth(*qkv, window=window)[:, :, start:end])
        assert [cache.rows[layer][0].shape[2] for layer in (0, 1)] == [3 - 1 + 1, 7]
        # One token back is the slack; two need a row that is gone.
        torch.testing.assert_close(step(qkv, [6], [6]), truth(*qkv, window=3)[:, :, 6:])
        with pytest.raises(ValueError, match="go back to position 4"):
            step(qkv, [4, 5, 6], [4, 5, 6])


def test_cells_hold_sequences_that_share_a_prefix(qkv):
    whole, short = truth(*qkv), truth(*qkv, window=2)
    with cell_cache([0, 2]) as cache:
        # Sequences 0 and 1 in one step: both begin with token 0.
        cache.begin_step([0, 0, 1])
        for layer, expected in enumerate((whole, short)):
            found = step(qkv, [0, 1, 0], [0, 1, 0], layer)
            torch.testing.assert_close(found, expected[:, :, [0, 1, 0]])
        # Sequence 2 shares the cells of 0; each goes on alone.
        cache.seq_cp(0, 2)
        cache.begin_step([2, 0])
        for layer, expected in enumerate((whole, short)):
            torch.testing.assert_close(step(qkv, [2, 2], [2, 2], layer), expected[:, :, [2, 2]])
        assert len(cache.owners) == 5 and [cache.seq_len(s) for s in (0, 1, 2)] == [3, 1, 3]
        # Cells of a removed sequence are used again; those that another sequence has are not.
        cache.seq_rm(0)
        cache.begin_step([2, 2])
        torch.testing.assert_close(step(qkv, [3, 4], [3, 4]), whole[:, :, 3:5])
        assert len(cache.owners) == 6 and cache.seq_len(2) == 5


def test_what_cells_refuse(qkv):
    with cell_cache(capacity=3) as cache:
        with pytest.raises(RuntimeError, match="begin_step"):
            step(qkv, [0], [0])
        cache.begin_step([0, 0])
        with pytest.raises(ValueError, match="declared 2 tokens, the forward has 1"):
            step(qkv, [0], [0])
        step(qkv, [0, 1], [0, 1])
        with pytest.raises(RuntimeError, match="begin_step"):
            step(qkv, [2], [2])
        with pytest.raises(ValueError, match="3 cells"):
            cache.begin_step([0, 0])


def test_scores_are_capped(qkv):
    q, k, v = qkv
    cap = 0.5
    with contiguous_cache():
        found = torch.ops.kvcache.update_and_attend.softcap(q, k, v, torch.arange(7), 0, 0.3, torch.float32, cap)
    keys, values = (t.repeat_interleave(2, 1) for t in (k, v))
    scores = cap * torch.tanh(q @ keys.transpose(-1, -2) * 0.3 / cap)
    scores = scores.masked_fill(torch.ones(7, 7).triu(1).bool(), float("-inf"))
    torch.testing.assert_close(found, scores.softmax(-1) @ values)
    assert (found - truth(*qkv)).abs().max() > 0.01


@pytest.mark.parametrize("out_dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("in_dtype", [torch.float32, torch.bfloat16])
def test_the_result_has_the_type_that_is_asked_for(qkv, in_dtype, out_dtype):
    q, k, v = (t.to(in_dtype) for t in qkv)
    with contiguous_cache():
        found = torch.ops.kvcache.update_and_attend(q, k, v, torch.arange(7), 0, 0.3, out_dtype)
    assert found.dtype == out_dtype
    expected = truth(q.float(), k.float(), v.float()).to(out_dtype)
    torch.testing.assert_close(found, expected, atol=1e-2, rtol=1e-2)


def test_the_fake_kernel_knows_shape_and_type(qkv):
    with torch._subclasses.FakeTensorMode() as mode:
        q, k, v = (mode.from_tensor(t) for t in qkv)
        out = torch.ops.kvcache.update_and_attend(q, k, v, torch.arange(7), 0, 0.3, torch.float16)
    assert (tuple(out.shape), out.dtype) == ((1, 4, 7, 6), torch.float16)
