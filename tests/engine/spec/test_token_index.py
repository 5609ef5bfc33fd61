from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.spec import token_index
from engine.spec.token_index import TokenIndex, match_length


def scanned(token_ids: list[int], covered: int, suffix: list[int], width: int) -> list[int]:
    run = suffix[-width:]
    ends = range(width, covered + 1)
    return [end for end in reversed(ends) if token_ids[end - width : end] == run]


@given(
    tokens=st.lists(st.integers(0, 2), max_size=60),
    width=st.integers(1, 4),
    cuts=st.lists(st.integers(0, 60), max_size=6),
    limit=st.integers(1, 8),
    max_recent=st.sampled_from([1, 3, 1024]),
)
def test_it_finds_what_a_scan_finds(
    tokens: list[int], width: int, cuts: list[int], limit: int, max_recent: int
) -> None:
    before, token_index._MAX_RECENT = token_index._MAX_RECENT, max_recent
    try:
        growing: list[int] = []
        index = TokenIndex(growing, width)
        for cut in [*sorted(cuts), len(tokens)]:
            growing += tokens[len(growing) : cut]
            covered = max(0, len(growing) - 1)
            index.cover(covered)
            suffix = growing[-5:]
            expected = scanned(growing, covered, suffix, width) if len(suffix) >= width else []
            assert index.ends(suffix, limit) == expected[:limit]
    finally:
        token_index._MAX_RECENT = before


@pytest.mark.parametrize("length", [10, 5000])
def test_a_long_list_is_covered_at_once(length: int) -> None:
    rng = random.Random(0)
    tokens = [rng.randrange(50) for _ in range(length)]
    index = TokenIndex(tokens, 2)
    index.cover(length - 1)
    assert index.ends(tokens, 100) == scanned(tokens, length - 1, tokens, 2)[:100]


@given(
    tokens=st.lists(st.integers(0, 1), max_size=12),
    suffix=st.lists(st.integers(0, 1), max_size=6),
    data=st.data(),
)
def test_match_length(tokens: list[int], suffix: list[int], data: st.DataObject) -> None:
    end = data.draw(st.integers(0, len(tokens)))
    length = match_length(tokens, end, suffix)
    assert length <= min(end, len(suffix))
    assert tokens[end - length : end] == suffix[len(suffix) - length :]
    if length < min(end, len(suffix)):
        assert tokens[end - length - 1] != suffix[-length - 1]
