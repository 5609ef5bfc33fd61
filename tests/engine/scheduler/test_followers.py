from __future__ import annotations

import pytest

from engine.scheduler.followers import Followers
from tests.engine.scheduler.making import make_request


def test_those_who_wait_come_back_when_the_step_is_over() -> None:
    followers = Followers()
    one, two, three = (make_request(i) for i in range(3))
    followers.expect([b"a", b"b"])
    assert followers.expects(b"a")
    assert not followers.expects(b"c")
    followers.hold(one, b"a")
    followers.hold(two, b"b")
    followers.hold(three, b"a")
    assert one in followers
    assert len(followers) == 3
    assert followers.release([b"a", b"b"]) == [one, three, two]
    assert len(followers) == 0
    assert not followers.expects(b"a")


def test_two_steps_may_compute_the_same_block() -> None:
    followers = Followers()
    request = make_request(0)
    followers.expect([b"a"])
    followers.hold(request, b"a")
    followers.expect([b"a"])
    assert followers.release([b"a"]) == [request]
    assert followers.release([b"a"]) == []


def test_nobody_waits_for_a_block_that_no_step_computes() -> None:
    followers = Followers()
    followers.expect([b"a"])
    followers.release([b"a"])
    with pytest.raises(AssertionError, match="forever"):
        followers.hold(make_request(0), b"a")


def test_who_ends_meanwhile_is_forgotten() -> None:
    followers = Followers()
    request = make_request(0)
    followers.expect([b"a"])
    followers.hold(request, b"a")
    followers.hold(other := make_request(1), b"a")
    followers.discard(request)
    assert request not in followers
    followers.discard(other)
    assert len(followers) == 0
    assert followers.release([b"a"]) == []
