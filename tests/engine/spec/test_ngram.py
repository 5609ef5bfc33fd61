from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.request import Request
from engine.spec.ngram import NgramProposer, copy_from
from tests.engine.scheduler.making import make_request


def request_of(token_ids: list[int], number: int = 0) -> Request:
    request = make_request(number, num_prompt_tokens=1)
    request.token_ids[:] = token_ids
    return request


@pytest.mark.parametrize(
    ("token_ids", "drafts"),
    [
        ([1, 2, 3, 4, 5, 9, 1, 2], [3, 4, 5]),  # what followed before
        ([1, 2, 7, 7, 1, 2, 8, 8, 1, 2], [8, 8, 1]),  # the latest of equals
        ([5, 1, 2, 7, 7, 7, 6, 1, 2, 8, 8, 8, 5, 1, 2], [7, 7, 7]),  # but the longest first
        ([4, 4, 4], [4, 4, 4]),  # a loop goes on
        ([1, 2, 3, 1, 2, 3, 1, 2], [3, 1, 2]),
        ([1, 2, 3, 4], []),  # nothing occurred before
        ([1], []),
    ],
)
def test_it_drafts(token_ids: list[int], drafts: list[int]) -> None:
    assert NgramProposer(2, 3).continue_text(request_of(token_ids), 3) == drafts


def test_a_shorter_run_than_the_minimum_says_nothing() -> None:
    request = request_of([1, 2, 9, 3, 2])
    assert NgramProposer(2, 4).continue_text(request, 3) == []
    assert NgramProposer(1, 4).continue_text(request, 3) == [9, 3, 2]


def naive(token_ids: list[int], low: int, high: int, count: int) -> list[int]:
    for length in range(min(high, len(token_ids) - 1), low - 1, -1):
        run = token_ids[-length:]
        for end in range(len(token_ids) - 1, length - 1, -1):
            if token_ids[end - length : end] == run:
                longer = list(token_ids)
                for i in range(count):
                    longer.append(longer[end + i])
                return longer[len(token_ids) :]
    return []


@given(
    tokens=st.lists(st.integers(0, 2), min_size=1, max_size=14),
    grown=st.lists(st.integers(0, 2), max_size=6),
    low=st.integers(1, 3),
    more=st.integers(0, 2),
    count=st.integers(1, 5),
)
def test_it_finds_what_a_search_of_everything_finds(
    tokens: list[int], grown: list[int], low: int, more: int, count: int
) -> None:
    proposer, request = NgramProposer(low, low + more), request_of(tokens)
    for token_id in [None, *grown]:
        if token_id is not None:
            request.token_ids.append(token_id)
        drafts = proposer.continue_text(request, count)
        assert drafts == naive(request.token_ids, low, low + more, count)


def test_requests_do_not_see_each_other() -> None:
    proposer = NgramProposer(2, 3)
    assert proposer.continue_text(request_of([1, 2, 3, 1, 2], 0), 2) == [3, 1]
    assert proposer.continue_text(request_of([9, 1, 2], 1), 2) == []


def test_a_finished_request_is_forgotten() -> None:
    proposer, request = NgramProposer(2, 3), request_of([1, 2, 3, 1, 2])
    proposer.continue_text(request, 2)
    proposer.drop(request)
    proposer.drop(request)
    assert not proposer._indexes


def test_a_copy_may_read_itself() -> None:
    assert copy_from([1, 2, 3], 1, 5) == [2, 3, 2, 3, 2]
    assert copy_from([1, 2, 3], 0, 2) == [1, 2]
