from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.runner.graphs import DecodeGraphs, adapted_sizes, capture_sizes
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
