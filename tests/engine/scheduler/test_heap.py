from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.messages import GenerateRequest
from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.scheduler.heap import RequestHeap


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
    first, second = make(0), make(1)
    heap.push(0.0, first)
    heap.push(1.0, second)
    heap.remove(second)
    heap.push(2.0, second)
    assert drain(heap) == ["r0", "r1"]
