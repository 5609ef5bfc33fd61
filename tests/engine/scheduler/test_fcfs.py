from __future__ import annotations

from engine.scheduler.fcfs import FcfsPolicy
from tests.engine.scheduler.making import drain, make_request, names


def test_by_arrival_whatever_the_priority() -> None:
    policy = FcfsPolicy()
    for arrival in (2, 0, 1):
        policy.enqueue(make_request(arrival, priority=-arrival))
    assert len(policy) == 3
    assert drain(policy) == ["r0", "r1", "r2"]


def test_a_preempted_request_returns_to_its_place() -> None:
    policy = FcfsPolicy()
    first, second, third = (make_request(i) for i in range(3))
    for request in (first, second, third):
        policy.enqueue(request)
    policy.dequeue(first)
    policy.dequeue(second)
    policy.enqueue(second)
    assert drain(policy) == ["r1", "r2"]


def test_the_last_comer_gives_way_and_nobody_is_displaced() -> None:
    policy = FcfsPolicy()
    running = [make_request(i, running=True, priority=9) for i in (4, 1, 3)]
    assert names(policy.ranked(running)) == ["r1", "r3", "r4"]
    policy.enqueue(make_request(0, priority=-9))
    assert list(policy.claims(running)) == []


def test_nothing_is_charged() -> None:
    policy = FcfsPolicy()
    request = make_request(0)
    policy.enqueue(request)
    policy.charge_prompt(request, 100, 100)
    policy.charge_output(request, 100)
    assert policy.spread() == 0.0
