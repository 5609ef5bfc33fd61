from __future__ import annotations

import pytest

from engine.scheduler.prefix_waits import PrefixWaits
from tests.engine.scheduler.making import make_request


def test_those_who_wait_come_back_when_the_step_is_over() -> None:
    waits = PrefixWaits()
    one, two, three = (make_request(i) for i in range(3))
    waits.expect([b"a", b"b"])
    assert waits.expects(b"a")
    assert not waits.expects(b"c")
    waits.hold(one, b"a")
    waits.hold(two, b"b")
    waits.hold(three, b"a")
    assert one in waits
    assert len(waits) == 3
    assert waits.release([b"a", b"b"]) == [one, three, two]
    assert len(waits) == 0
    assert not waits.expects(b"a")


def test_two_steps_may_compute_the_same_block() -> None:
    waits = PrefixWaits()
    request = make_request(0)
    waits.expect([b"a"])
    waits.hold(request, b"a")
    waits.expect([b"a"])
    assert waits.release([b"a"]) == [request]
    assert waits.release([b"a"]) == []


def test_nobody_waits_for_a_block_that_no_step_computes() -> None:
    waits = PrefixWaits()
    waits.expect([b"a"])
    waits.release([b"a"])
    with pytest.raises(AssertionError, match="forever"):
        waits.hold(make_request(0), b"a")


def test_who_ends_meanwhile_is_forgotten() -> None:
    waits = PrefixWaits()
    request = make_request(0)
    waits.expect([b"a"])
    waits.hold(request, b"a")
    waits.hold(other := make_request(1), b"a")
    waits.discard(request)
    assert request not in waits
    waits.discard(other)
    assert len(waits) == 0
    assert waits.release([b"a"]) == []
