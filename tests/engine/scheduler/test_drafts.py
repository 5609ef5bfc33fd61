from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cache.manager import CacheManager
from engine.cache.table import PrefixHit
from engine.request import Request, RequestState
from engine.scheduler.drafts import fitting_drafts, judge_drafts
from engine.scheduler.plan import Chunk
from engine.scheduler.tenants import Totals
from tests.engine.scheduler.making import make_request

BLOCK_SIZE = 4


def decoding(cache: CacheManager, num_known: int, num_drafts: int, **fields: int) -> Request:
    """A request with only its last token to compute, and the blocks of its known tokens."""
    request = make_request(
        0, num_prompt_tokens=num_known, running=True, num_computed_tokens=num_known - 1, **fields
    )
    cache.admit(request.block_table, PrefixHit(), num_known)
    request.draft_token_ids = list(range(50, 50 + num_drafts))
    return request


@given(
    num_known=st.integers(1, 13),
    num_drafts=st.integers(0, 9),
    num_free=st.integers(0, 3),
    num_missing=st.integers(0, 3),
    limit=st.integers(-1, 10),
    max_tokens=st.integers(1, 12),
)
def test_as_many_drafts_as_there_is_room_for(
    num_known: int, num_drafts: int, num_free: int, num_missing: int, limit: int, max_tokens: int
) -> None:
    """In the budget, in the request's own limit, behind its tokens in its last block, and in blocks
    that are free and that no running request waits for."""
    num_own = -(-num_known // BLOCK_SIZE)
    cache = CacheManager(num_own + num_free, BLOCK_SIZE)
    request = decoding(cache, num_known, num_drafts, max_tokens=max_tokens)
    places = (num_own + max(0, num_free - num_missing)) * BLOCK_SIZE
    most = max(0, min(limit, max_tokens - 1, places - num_known))
    fitting = fitting_drafts(request, cache, limit, num_missing)
    assert fitting == tuple(request.draft_token_ids[:most])
    assert cache.num_free_blocks == num_free, "nothing is taken yet"


def test_before_the_last_token_there_are_none() -> None:
    cache = CacheManager(4, BLOCK_SIZE)
    request = decoding(cache, 6, 2)
    request.num_computed_tokens -= 1
    assert fitting_drafts(request, cache, 9, 0) == ()


@pytest.mark.parametrize(
    ("num_sampled", "num_taken", "expected"),
    [
        (1, 1, (3, 0)),
        (3, 3, (1, 2)),
        (4, 4, (0, 3)),
        (4, 2, (0, 2)),  # a stop, which was the second draft
        (3, 1, (1, 1)),
    ],
)
def test_wrong_drafts_are_taken_back(
    num_sampled: int, num_taken: int, expected: tuple[int, int]
) -> None:
    request, totals = decoding(CacheManager(8, BLOCK_SIZE), 6, 3), Totals()
    request.num_computed_tokens += 4
    request.num_drafts_in_flight = 3
    chunk = Chunk(0, "r0", 5, 4, True, False, (50, 51, 52))
    num_rejected, num_accepted = judge_drafts(request, chunk, num_sampled, num_taken, totals)
    assert (num_rejected, num_accepted) == expected
    assert request.num_computed_tokens == 9 - num_rejected
    assert request.num_drafts_in_flight == 0
    assert (request.num_draft_tokens, request.num_accepted_tokens) == (3, num_accepted)
    drafts = totals.drafts
    assert (drafts.num_drafts, drafts.num_draft_tokens) == (1, 3)
    assert drafts.num_accepted_tokens == num_accepted


def test_of_what_left_the_batch_nothing_is_taken_back() -> None:
    """Its progress was given up when it left."""
    request = decoding(CacheManager(8, BLOCK_SIZE), 6, 3)
    request.enter(RequestState.PREEMPTED)
    request.num_computed_tokens = 0
    chunk = Chunk(0, "r0", 5, 4, True, False, (50, 51, 52))
    assert judge_drafts(request, chunk, 2, 2, Totals()) == (2, 1)
    assert request.num_computed_tokens == 0
