from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
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


def test_least_key_first_and_arrival_among_equals() -> None:
    heap = RequestHeap()
    for arrival, key in [(3, 1.0), (1, 2.0), (2, 1.0), (0, 5.0)]:
        heap.push(key, make(arrival))
    assert len(heap) == 4
    assert drain(heap) == ["r2", "r3", "r1", "r0"]
    assert len(heap) == 0


@given(st.lists(st.integers(-3, 3), max_size=300), st.randoms(use_true_random=False))
def test_removal_in_the_middle_keeps_the_order(keys: list[int], rng: object) -> None:
    heap = RequestHeap()
    requests = [make(i) for i in range(len(keys))]
    for key, request in zip(keys, requests, strict=True):
        heap.push(key, request)
    gone = {r.request_id for r in requests if rng.random() < 0.7}  # type: ignore[attr-defined]
    for request in requests:
        if request.request_id in gone:
            heap.remove(request)
    want = sorted((key, i) for i, key in enumerate(keys) if f"r{i}" not in gone)
    assert drain(heap) == [f"r{i}" for _, i in want]


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=60), st.integers(1, 8), st.data())
def test_the_first_few_in_order(keys: list[int], count: int, data: st.DataObject) -> None:
    heap = RequestHeap()
    requests = [make(i) for i in range(len(keys))]
    for key, request in zip(keys, requests, strict=True):
        heap.push(key, request)
    gone = data.draw(st.sets(st.sampled_from(range(len(keys))), max_size=len(keys) - 1))
    for i in gone:
        heap.remove(requests[i])
    found = [request.request_id for request in heap.first(count)]
    assert 1 <= len(found) <= count
    assert found == drain(heap)[: len(found)]
    if not gone:
        assert len(found) == min(count, len(keys))


def test_the_first_of_none() -> None:
    assert RequestHeap().first(3) == []


def test_dead_entries_do_not_pile_up() -> None:
    heap = RequestHeap()
    first = make(0)
    heap.push(0.0, first)
    for arrival in range(1, 10_000):
        request = make(arrival)
        heap.push(1.0, request)
        heap.remove(request)
    assert len(heap._heap) < 200
    assert heap.peek() is first


def test_a_request_may_come_back_while_its_old_entry_is_still_there() -> None:
    heap = RequestHeap()
    for arrival in range(4):
        heap.push(float(arrival), make(arrival))
    second = heap.first(2)[1]
    for key in (9.0, 2.5):
        heap.remove(second)
        heap.push(key, second)
    assert names(heap.first(4)) == ["r0", "r2", "r1", "r3"]
    heap.remove(second)
    assert names(heap.first(4)) == ["r0", "r2", "r3"]
    heap.push(0.5, second)
    assert drain(heap) == ["r0", "r1", "r2", "r3"]


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


@pytest.mark.parametrize("num_requests", [5, 40])
@given(st.randoms(use_true_random=False), st.integers(0, 400))
def test_whoever_comes_and_goes_stands_where_it_came_last(
    num_requests: int, draw: Random, num_moves: int
) -> None:
    heap, requests = RequestHeap(), [make(arrival) for arrival in range(num_requests)]
    keys: dict[int, float] = {}
    for _ in range(num_moves):
        arrival, key = draw.randrange(num_requests), draw.randrange(3)
        if arrival in keys:
            heap.remove(requests[arrival])
            del keys[arrival]
        else:
            heap.push(key, requests[arrival])
            keys[arrival] = key
        assert len(heap) == len(keys)
        order = [f"r{i}" for i in sorted(keys, key=lambda i: (keys[i], i))]
        found = names(heap.first(3))
        assert found == order[: len(found)]
        assert len(found) >= min(1, len(order))
    assert drain(heap) == [f"r{i}" for i in sorted(keys, key=lambda i: (keys[i], i))]
