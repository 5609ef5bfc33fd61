from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from engine.runner.graphs.decode import DecodeGraphs, adapted_sizes, capture_sizes
from engine.runner.graphs.sized import SizedGraphs
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


def chunk(n: int, *, samples: bool = True) -> Chunk:
    return Chunk(
        row=0, request_id="a", num_computed_tokens=5, num_scheduled_tokens=n, samples=samples
    )


@pytest.mark.parametrize(
    ("chunks", "fits"),
    [
        ([chunk(1)], True),
        ([chunk(1)] * 4, True),
        ([chunk(1)] * 5, False),
        ([chunk(1), chunk(2)], False),
        ([chunk(1), chunk(1, samples=False)], False),
    ],
)
def test_only_steps_of_one_sampled_token_each_fit(chunks: list[Chunk], fits: bool) -> None:
    graphs = object.__new__(DecodeGraphs)
    graphs.max_batch = 4
    graphs._adapters = None
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
    graphs = object.__new__(DecodeGraphs)
    both = False, True
    kinds = itertools.product(both, both, both)
    graphs._families = {kind: sized([1, 2, 4, 8]) for kind in kinds}
    graphs._as_one = {False: sized([1, 2, 4]), True: sized([1, 2, 4])}
    graphs._max_tokens = {1: 10, 2: 40, 4: 0}
    fields = ChunkFields.read([replace(chunk(1), num_computed_tokens=n) for n in computed])
    kind = {"shared": shared, "adapted": adapted, "resting": resting}
    layers = graphs._families[shared, adapted, resting]
    is_one = computed in ([0], [9], [0, 0], [30, 8]) and not (shared or adapted)
    expected = graphs._as_one[resting] if is_one else layers
    assert graphs._family(fields, **kind) is expected
    graphs._as_one = {}
    assert graphs._family(fields, **kind) is layers


def sized(sizes: list[int]) -> SizedGraphs:
    return SizedGraphs(sizes, torch.zeros)
