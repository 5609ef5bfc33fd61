"""Windows of Qwen2.5-VL, and what is computed together."""

from __future__ import annotations

from itertools import accumulate, groupby, pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from engine.models.vision.base import Segments
from engine.models.vision.qwen2_5_vl import _windows

GRIDS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=3)


@given(GRIDS, st.integers(1, 3), st.integers(1, 4))
def test_windows_are_those_of_transformers(
    tokens: list[tuple[int, int]], merge: int, side: int
) -> None:
    """In an order of their own, in which equal ones of a picture are neighbours."""
    from transformers.vision_utils import get_vision_window_index

    grids = [(rows * merge, columns * merge) for rows, columns in tokens]
    order, lens = _windows(grids, merge, side)
    ends = list(accumulate(lens))
    ours = [frozenset(order[end - n : end].tolist()) for n, end in zip(lens, ends, strict=True)]
    index, bounds = get_vision_window_index(
        torch.tensor([(1, *grid) for grid in grids]), merge, side * merge * 8, 8
    )
    cuts = (bounds // merge**2).tolist()
    theirs = [frozenset(index[a:b].tolist()) for a, b in pairwise(cuts)]
    assert sorted(map(sorted, ours)) == sorted(map(sorted, theirs))
    start = 0
    for rows, columns in tokens:
        end = start + rows * columns
        sizes = [len(window) for window in ours if start <= min(window) < end]
        assert len(list(groupby(sizes))) == len(set(sizes))
        start = end


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_segments_see_themselves_alone(lens: list[int]) -> None:
    qkv = torch.randn(3, sum(lens), 2, 4, generator=torch.Generator().manual_seed(0))
    found = Segments(lens).attend(qkv, 0.5)
    owner = torch.arange(len(lens)).repeat_interleave(torch.tensor(lens))
    q, k, v = qkv.transpose(1, 2)
    mask = owner[:, None] == owner
    expected = F.scaled_dot_product_attention(q, k, v, mask, scale=0.5)
    torch.testing.assert_close(found, expected.transpose(0, 1).flatten(1))
