from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.messages import GenerateRequest
from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.scheduler.heap import RequestHeap
from tests.engine.scheduler.making import names


def make(arrival: int) -> Request:
    message = GenerateRequest(
        request_id=f"r{arrival}", prompt_token_ids=[1], params=SamplingParams()
    )
    return Request(
        message, arrival=arrival, arrival_s=0.0, max_total_tokens=9, eos_token_ids=frozenset()
    )


def drain(heap: RequestHeap) -> list[str]:
    order = []
    while (request := heap.peek()) is not None:
        order.append(request.request_id)
        heap.remove(request)
    return order


def test_dead_entries_do_not_pile_up() -> None:
    heap = RequestHeap()
    first = make(0)
    heap.push(0.0, first)
    for arrival in range(1, 1_000):
        request = make(arrival)
        heap.push(1.0, request)
        heap.remove(request)
    assert len(heap._heap) < 200
    assert heap.peek() is first


def test_those_that_come_and_go_do_not_pile_up() -> None:
    """As those that wait for others to compute their blocks do, behind one that is older."""
    heap, requests = RequestHeap(), [make(arrival) for arrival in range(21)]
    for arrival, request in enumerate(requests):
        heap.push(float(arrival), request)
    for _ in range(50):
        for request in requests[1:]:
            heap.remove(request)
            heap.push(float(request.arrival), request)
        assert len(heap._heap) == len(requests)
        assert heap.first(4) == requests[:4]
    assert drain(heap) == names(requests)


@settings(max_examples=40)
@given(st.sampled_from([3, 10, 40]), st.randoms(use_true_random=False), st.integers(0, 500))
def test_whoever_comes_and_goes_stands_where_it_came_last(
    num_requests: int, draw: Random, num_moves: int
) -> None:
    """The least key first, and arrival among equals."""
    heap, requests = RequestHeap(), [make(arrival) for arrival in range(num_requests)]
    keys: dict[int, float] = {}
    has_left = False
    for _ in range(num_moves):
        arrival, key = draw.randrange(num_requests), draw.randrange(3)
        if arrival in keys:
            heap.remove(requests[arrival])
            del keys[arrival]
            has_left = True
        else:
            heap.push(key, requests[arrival])
            keys[arrival] = key
        assert len(heap) == len(keys)
        assert (requests[arrival] in heap) == (arrival in keys)
        order = [f"r{i}" for i in sorted(keys, key=lambda i: (keys[i], i))]
        found = names(heap.first(3))
        assert found == order[: len(found)]
        assert len(found) >= min(1 if has_left else 3, len(order))
    assert drain(heap) == [f"r{i}" for i in sorted(keys, key=lambda i: (keys[i], i))]
    assert len(heap) == 0
