from __future__ import annotations

import pytest

from engine.cache.table import PrefixHit
from engine.messages import Grant
from engine.request import Request
from engine.scheduler.fcfs import FcfsPolicy
from engine.scheduler.waiting import WaitingQueue
from tests.engine.scheduler.making import make_request

MISS = PrefixHit()
KEY = b"of the first block"


def make_queue(*requests: Request, max_loras: int = 1) -> tuple[WaitingQueue, FcfsPolicy]:
    policy = FcfsPolicy()
    waiting = WaitingQueue(policy, max_loras)
    for request in requests:
        waiting.add(request)
    return waiting, policy


def sharing(arrival: int) -> Request:
    request = make_request(arrival)
    request.block_table.keys.append(KEY)
    return request


def order(waiting: WaitingQueue) -> list[int]:
    """Of admission, if nobody has to wait for anything else."""
    found = []
    while (request := waiting.head()) is not None:
        found.append(request.arrival)
        waiting.admit(request)
    return found


def test_those_behind_a_request_without_a_grant_go_first() -> None:
    poor, other = make_request(0, num_granted_tokens=0), make_request(1)
    waiting, policy = make_queue(poor, other)
    assert waiting.head() is other
    assert len(policy) == 1
    waiting.check_integrity(idle=True)
    grant = Grant(poor.request_id, 4, is_last=False)
    poor.grant(grant)
    with pytest.raises(AssertionError, match="it may generate"):
        waiting.check_integrity(idle=True)
    waiting.grant(poor, grant)
    waiting.note_grant(other)  # It did not wait for a grant: nothing changes.
    waiting.check_integrity(idle=True)
    assert order(waiting) == [0, 1]


def test_a_request_in_flight_keeps_its_place_although_it_lacks_a_grant() -> None:
    first = make_request(0, num_granted_tokens=0)
    first.num_in_flight = 1  # Its last token may be a stop token.
    waiting, _ = make_queue(first, make_request(1))
    assert waiting.head() is first


def test_followers_come_back_when_their_block_is_there() -> None:
    leader, second, other = sharing(0), sharing(1), make_request(2)
    waiting, _ = make_queue(leader, second, other)
    assert not waiting.wait_for_prefix(leader, MISS)
    waiting.admit(leader)
    waiting.prefix_waits.expect([KEY])
    assert waiting.wait_for_prefix(second, MISS)
    assert waiting.head() is other
    with pytest.raises(AssertionError, match="a step that is over"):
        waiting.check_integrity(idle=True)
    waiting.end_prefix_waits([KEY])
    waiting.check_integrity(idle=True)
    assert order(waiting) == [1, 2]


def test_who_must_not_read_the_cache_follows_nobody() -> None:
    request = sharing(0)
    request.block_table.skip_reading = True
    waiting, _ = make_queue(request)
    waiting.prefix_waits.expect([KEY])
    assert not waiting.wait_for_prefix(request, MISS)


def test_only_so_many_follow() -> None:
    requests = [sharing(arrival) for arrival in range(33)]
    waiting, _ = make_queue(*requests)
    waiting.prefix_waits.expect([KEY])
    for request in requests:
        assert not waiting.has_too_many_prefix_waits
        assert waiting.wait_for_prefix(request, MISS)
    assert waiting.has_too_many_prefix_waits


def test_adapters_wait_for_a_slot() -> None:
    running, queued = make_request(0), make_request(1)
    running.adapter_digest, queued.adapter_digest = "a", "b"
    waiting, _ = make_queue(queued, make_request(2))
    assert waiting.adapter_slots.must_wait(queued, [running])
    assert waiting.hold_for_adapter_slot(queued)
    waiting.free_adapter_slots([running])
    assert order(waiting) == [2]
    waiting.free_adapter_slots([])
    assert order(waiting) == [1]


@pytest.mark.parametrize("lacks", ["nothing", "a grant", "an adapter slot", "a block"])
def test_a_request_can_be_taken_out_wherever_it_waits(lacks: str) -> None:
    request = sharing(0)
    waiting, policy = make_queue(request)
    match lacks:
        case "a grant":
            request.token_limit = request.num_tokens
            assert waiting.head() is None
        case "an adapter slot":
            assert waiting.hold_for_adapter_slot(request)
        case "a block":
            waiting.prefix_waits.expect([KEY])
            assert waiting.wait_for_prefix(request, MISS)
    assert len(policy) == (lacks == "nothing")
    waiting.discard(request)
    waiting.free_adapter_slots([])
    waiting.end_prefix_waits([KEY])
    assert waiting.head() is None
    waiting.check_integrity(idle=True)
