from __future__ import annotations

import itertools
from typing import cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.runner.graphs.sized import SizedGraphs, adapted_sizes, capture_sizes
from engine.runner.graphs.static_inputs import SequenceBuffers
from engine.runner.graphs.steps import Kind, StepGraphs
from engine.runner.inputs import ChunkFields
from engine.scheduler.plan import Chunk


@given(st.integers(1, 2000))
def test_sizes_ascend_to_the_largest_batch_and_waste_little(max_num_seqs: int) -> None:
    sizes = capture_sizes(max_num_seqs)
    assert sizes == sorted(set(sizes))
    assert sizes[0] == 1
    assert sizes[-1] == max_num_seqs
    for smaller, larger in itertools.pairwise(sizes):
        assert larger <= max(2 * smaller, smaller + 32)
        assert larger - smaller - 1 <= max(7, larger // 4)


@given(st.integers(1, 2000))
def test_there_are_fewer_graphs_with_adapters(max_num_seqs: int) -> None:
    every = capture_sizes(max_num_seqs)
    sizes = adapted_sizes(every)
    assert set(sizes) <= set(every)
    assert sizes[-1] == max_num_seqs
    assert len(sizes) <= 8 + max_num_seqs // 64
    for smaller, larger in itertools.pairwise(sizes):
        assert larger <= max(2 * smaller, smaller + 64)


def chunk(n: int, *, samples: bool = True, drafts: int = 0, computed: int = 5) -> Chunk:
    return Chunk(0, "a", computed, n, samples, draft_token_ids=(7,) * drafts)


@pytest.mark.parametrize(
    ("chunks", "num_drafts", "fits"),
    [
        ([chunk(1)], 0, True),
        ([chunk(1)] * 4, 0, True),
        ([chunk(1)] * 5, 0, False),
        ([chunk(1), chunk(2)], 0, False),
        ([chunk(1), chunk(2)], 2, False),
        ([chunk(1), chunk(1, samples=False)], 0, False),
        ([chunk(1), chunk(3, drafts=2)], 2, True),
        ([chunk(3, drafts=2)] * 3, 2, False),
        ([chunk(4, drafts=3)], 2, False),
        ([chunk(3, drafts=2, computed=0), chunk(1, computed=1)], 2, False),
        ([chunk(3, drafts=2, computed=0), chunk(1, computed=2)], 2, True),
    ],
)
def test_only_steps_that_sample_after_every_token_fit(
    chunks: list[Chunk], num_drafts: int, fits: bool
) -> None:
    graphs = object.__new__(StepGraphs)
    graphs.lengths = [2] if num_drafts else []
    graphs._buffers = dict.fromkeys([1, 3], cast(SequenceBuffers, None))
    graphs._families = {Kind(1): sized([1, 2, 4]), Kind(3): sized([1, 2])}
    fields = ChunkFields.read(chunks)
    assert graphs.fits(fields) is fits
    assert not graphs.fits(fields, adapted=True)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("resting", [False, True])
@pytest.mark.parametrize("computed", [[0], [9], [10], [0, 0], [30, 8], [30, 9], [0] * 3, [0] * 5])
def test_one_kernel_is_for_few_sequences_that_are_not_too_long(
    computed: list[int], shared: bool, adapted: bool, resting: bool
) -> None:
    graphs = object.__new__(StepGraphs)
    kind = Kind(1, shared, adapted, resting)
    graphs._families = {kind: sized([1, 2, 4, 8])}
    graphs._fused = {Kind(): sized([1, 2, 4]), Kind(resting=True): sized([1, 2, 4])}
    graphs._max_tokens = {(1, 1): 10, (1, 2): 40, (1, 4): 0}
    fields = ChunkFields.read([chunk(1, computed=n) for n in computed])
    is_one = computed in ([0], [9], [0, 0], [30, 8]) and not (shared or adapted)
    expected = graphs._fused[kind] if is_one else graphs._families[kind]
    assert graphs._choose(fields, kind) is expected
    graphs._fused = {}
    assert graphs._choose(fields, kind) is graphs._families[kind]


def sized(sizes: list[int]) -> SizedGraphs:
    return SizedGraphs(sizes, torch.zeros)
