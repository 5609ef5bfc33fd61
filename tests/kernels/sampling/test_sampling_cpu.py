"""The CPU's sampling kernel draws exactly the tokens that the reference draws."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import cpu, reference
from tests.kernels.sampling.sampled import arguments
from tests.pairs import each_value

pytestmark = pytest.mark.skipif(not cpu.available(), reason="no compiler for CPU kernels")

LIMITS: list[dict[str, float]] = [
    {},
    {"temperature": 0.7},
    {"temperature": 0.0},
    {"temperature": 1e-4},
    {"temperature": 50.0},
    {"top_k": 1},
    {"top_k": 50},
    {"top_k": 50, "top_p": 0.95, "temperature": 0.8},
    {"top_p": 0.3},
    {"top_p": 1e-6},
    {"top_p": 0.999},
    {"top_p": 0.9, "temperature": 1.5},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"min_p": 1e-3, "temperature": 2.0},
    {"top_k": 2000, "top_p": 0.99, "min_p": 0.001, "temperature": 1.2},
]


def logits_of(rows: int, vocab: int, scale: float, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale


def assert_same(logits: torch.Tensor, how: tuple[Any, ...]) -> torch.Tensor:
    ours = cpu.sample_rows(logits, *how)
    assert torch.equal(ours, reference.sample_rows(logits, *how))
    return ours


@pytest.mark.parametrize(("limits", "scale"), each_value(LIMITS, [0.0, 0.3, 3.0, 12.0]))
def test_tokens_are_those_of_the_reference(limits: dict[str, Any], scale: float) -> None:
    for vocab in (1, 7, 203, 4096):
        assert_same(logits_of(60, vocab, scale), arguments(60, **limits))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_rows_together(data: st.DataObject) -> None:
    """Each with limits of its own, with ties and forbidden tokens."""
    rows = data.draw(st.integers(1, 6))
    vocab = data.draw(st.sampled_from([1, 5, 64, 65, 300]))
    values = st.sampled_from([-math.inf, -1e30, -40.0, -2.0, -0.0, 0.0, 0.5, 3.0])
    seed = data.draw(st.integers(0, 2**62))
    logits = logits_of(rows, vocab, 3.0, seed)
    for row in range(rows):
        for token in data.draw(st.lists(st.integers(0, vocab - 1), max_size=8)):
            logits[row, token] = data.draw(values)

    def column(numbers: st.SearchStrategy[Any]) -> list[Any]:
        return [data.draw(numbers) for _ in range(rows)]

    table, places, positions = arguments(
        rows,
        temperature=column(st.sampled_from([0.0, 0.5, 1.0, 1.7])),
        top_k=column(st.integers(1, vocab + 2)),
        top_p=column(st.floats(0.01, 1.0)),
        min_p=column(st.sampled_from([0.0, 0.01, 0.3])),
    )
    how = table, places.flip(0), positions
    together = assert_same(logits, how)
    for row in range(rows):
        alone = cpu.sample_rows(logits[row : row + 1], table, *(x[row : row + 1] for x in how[1:]))
        assert alone.tolist() == [together[row]]


def test_many_draws() -> None:
    """Enough of them to meet near-ties of the noise."""
    for scale in (0.01, 4.0):
        logits = logits_of(1, 4096, scale).expand(3000, 4096).contiguous()
        assert_same(logits, arguments(3000))
        assert_same(logits[:1000], arguments(1000, top_p=0.9, seed=9))


def test_draws_are_stored_but_for_padding() -> None:
    logits, tokens, host = logits_of(3, 100, 5.0), torch.full((5, 9), -7), torch.full((4,), -7)
    table, _, _ = arguments(5)
    rows, positions = torch.tensor([[4, -1, 2], [8, 3, 0]], dtype=torch.int32)
    for sample_rows in (cpu.sample_rows, reference.sample_rows):
        tokens.fill_(-7)
        drawn = sample_rows(logits, table, rows, positions, tokens, host)
        assert (tokens[4, 8], tokens[2, 0]) == (drawn[0], drawn[2])
        assert (tokens == -7).sum() == 43
        assert host[[0, 2, 3]].tolist() == [int(drawn[0]), int(drawn[2]), -7]


def test_threads_change_nothing() -> None:
    threads = torch.get_num_threads()
    logits, how = logits_of(40, 4096, 3.0), arguments(40, top_p=0.9)
    try:
        torch.set_num_threads(2)
        two = cpu.sample_rows(logits, *how)
        torch.set_num_threads(1)
        assert torch.equal(cpu.sample_rows(logits, *how), two)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("limits", [{}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.5}], ids=str)
def test_rows_without_a_distribution_end(limits: dict[str, Any]) -> None:
    for value in (math.nan, -math.inf, math.inf):
        token = cpu.sample_rows(torch.full((1, 300), value), *arguments(1, **limits))
        assert 0 <= int(token) < 300
    some = torch.tensor([[math.nan, 1.0, math.nan, 2.0]])
    assert int(cpu.sample_rows(some, *arguments(1, **limits))) in (1, 3)


def test_penalties_are_the_same_bits() -> None:
    gen = torch.Generator().manual_seed(0)
    for vocab in (7, 203, 4096):
        rows = 20
        logits = torch.randn(rows + 3, vocab, generator=gen) * 5
        tokens = torch.randint(0, min(vocab, 90), (rows + 1, 100), generator=gen)
        lengths = torch.randint(0, 100, (rows,), generator=gen)
        prompts = (lengths * torch.rand(rows, generator=gen)).long()
        places = (torch.randperm(rows + 3, generator=gen)[:rows], torch.arange(rows) + 1)
        where = torch.stack((*places, lengths, prompts))
        strengths = torch.rand(3, rows, generator=gen) * torch.tensor([[3.0], [4.0], [4.0]])
        strengths[1:] -= 2
        strengths[0, ::3] = 1.0
        theirs = logits.clone()
        reference.apply_penalties(theirs, tokens, where, strengths, max_len=100)
        for _ in range(2):  # it leaves its memory as it found it
            ours = logits.clone()
            cpu.apply_penalties(ours, tokens, where, strengths, max_len=100)
            assert torch.equal(ours, theirs)
