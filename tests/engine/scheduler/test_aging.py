from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.scheduler.aging import aged_priority, outranked
from tests.engine.scheduler.making import make_request, names

CASES = st.tuples(st.integers(-5, 5), st.floats(0, 1000))


@given(CASES, CASES, st.floats(1000, 5000), st.floats(0.5, 100))
def test_the_fixed_key_orders_like_the_priority_at_any_time(
    one: tuple[int, float], two: tuple[int, float], now: float, aging_s: float
) -> None:
    def effective(case: tuple[int, float]) -> float:
        return case[0] - (now - case[1]) / aging_s

    keys = [
        aged_priority(make_request(0, priority=priority, arrival_s=arrival_s), aging_s)
        for priority, arrival_s in (one, two)
    ]
    difference = effective(one) - effective(two)
    if abs(difference) > 1e-6:
        assert (keys[0] < keys[1]) == (difference < 0)


def test_only_lower_classes_are_outranked_the_lowest_and_latest_first() -> None:
    running = [
        make_request(i, running=True, priority=priority, arrival_s=0.0)
        for i, priority in enumerate([0, 5, 2, 5, 1])
    ]
    request = make_request(9, priority=1, arrival_s=0.0)
    assert names(outranked(request, running, 10.0)) == ["r3", "r1", "r2"]


def test_whoever_came_later_stays_unless_its_class_is_lower() -> None:
    """To have waited long improves a place in the queue, and takes no running request's."""
    request = make_request(0, priority=1, arrival_s=0.0)
    same = make_request(1, running=True, priority=1, arrival_s=500.0)
    higher = make_request(2, running=True, priority=0, arrival_s=500.0)
    lower = make_request(3, running=True, priority=2, arrival_s=500.0)
    assert outranked(request, [same, higher, lower], 10.0) == [lower]


def test_a_request_that_has_waited_long_enough_stays() -> None:
    old = make_request(0, running=True, priority=2, arrival_s=0.0)
    assert outranked(make_request(1, priority=0, arrival_s=19.0), [old], 10.0) == [old]
    assert outranked(make_request(1, priority=0, arrival_s=21.0), [old], 10.0) == []
