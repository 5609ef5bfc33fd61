from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention import torch_ref
from engine.attention.base import AttentionBatch
from engine.attention.torch_ref import TorchAttention
from kernels import reference

BLOCK_SIZE, KV_HEADS, HEAD_DIM = 4, 2, 8


def attend(
    shapes: Sequence[tuple[int, int]], heads: int, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run (query_len, seq_len) sequences through the backend and the oracle.

    Whatever no sequence owns is NaN in the cache and nonsense in the block table.
    """
    gen = torch.Generator().manual_seed(seed)
    query_lens = np.array([q for q, _ in shapes])
    seq_lens = np.array([kv for _, kv in shapes])
    blocks_used = -(-seq_lens // BLOCK_SIZE)
    num_blocks = int(blocks_used.sum()) + 5
    order = torch.randperm(num_blocks, generator=gen, dtype=torch.int64).to(torch.int32)
    table = torch.full((len(shapes), int(blocks_used.max()) + 2), 2**30, dtype=torch.int32)
    shape = (2, num_blocks, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
    k_cache, v_cache = torch.full(shape, math.nan).unbind()
    slots, new_k, new_v, taken = [], [], [], 0
    for i, (query_len, seq_len) in enumerate(shapes):
        used = int(blocks_used[i])
        table[i, :used] = order[taken : taken + used]
        taken += used
        k, v = torch.randn(2, seq_len, KV_HEADS, HEAD_DIM, generator=gen).unbind()
        position = torch.arange(seq_len)
        where = table[i, position // BLOCK_SIZE].long() * BLOCK_SIZE + position % BLOCK_SIZE
        old = seq_len - query_len
        reference.write_kv(k[:old], v[:old], k_cache, v_cache, where[:old])
        slots.append(where[old:])
        new_k.append(k[old:])
        new_v.append(v[old:])
    q = torch.randn(int(query_lens.sum()), heads, HEAD_DIM, generator=gen)
    batch = AttentionBatch(query_lens, seq_lens, table, torch.cat(slots))
    step = TorchAttention(torch.device("cpu"), torch.float32).prepare(batch, BLOCK_SIZE)
    out = step(q, torch.cat(new_k), torch.cat(new_v), k_cache, v_cache, 0.4)
    expected = reference.paged_attention(
        q,
        k_cache,
        v_cache,
        table,
        torch.from_numpy(seq_lens),
        torch.from_numpy(np.concatenate(([0], query_lens.cumsum()))),
        scale=0.4,
    )
    return out, expected


@pytest.mark.parametrize("heads", [2, 6, 8])
@pytest.mark.parametrize(
    "shapes",
    [
        [(1, 1)],
        [(1, 9)],
        [(1, 8), (1, 8)],
        [(1, 3), (1, 17), (1, 4), (1, 30)],
        [(7, 7)],
        [(5, 21)],
        [(6, 6), (3, 3), (1, 1)],
        [(4, 12), (4, 12)],
        [(1, 12), (9, 9), (1, 2), (5, 33), (1, 40), (2, 13)],
    ],
)
def test_equals_the_oracle(shapes: list[tuple[int, int]], heads: int) -> None:
    out, expected = attend(shapes, heads)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)


@settings(max_examples=120, deadline=None)
@given(
    shapes=st.lists(
        st.tuples(st.sampled_from([1, 1, 1, 2, 5, 19]), st.integers(0, 60)), min_size=1, max_size=9
    ),
    group_cost=st.sampled_from([0, 300, torch_ref._GROUP_COST]),
    seed=st.integers(0, 100),
)
def test_any_batch_in_any_grouping_equals_the_oracle(
    shapes: list[tuple[int, int]], group_cost: int, seed: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_ref, "_GROUP_COST", group_cost)
        out, expected = attend([(q, q + past) for q, past in shapes], 4, seed)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 3000)), min_size=1, max_size=40),
)
def test_every_sequence_is_in_exactly_one_group(shapes: list[tuple[int, int]]) -> None:
    query_lens = np.array([q for q, _ in shapes])
    seq_lens = query_lens + np.array([past for _, past in shapes])
    groups = torch_ref._partition(query_lens, seq_lens)
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(shapes)))
    if len(groups) == 1:
        assert groups[0].tolist() == list(range(len(shapes)))


def test_a_long_prompt_is_not_padded_together_with_decodes() -> None:
    query_lens = np.array([1] * 20 + [500])
    seq_lens = np.array([100] * 20 + [500])
    groups = torch_ref._partition(query_lens, seq_lens)
    assert [len(group) for group in groups] == [20, 1]


def test_decodes_of_like_length_form_one_group() -> None:
    groups = torch_ref._partition(np.ones(64, np.int64), np.arange(200, 264))
    assert len(groups) == 1
