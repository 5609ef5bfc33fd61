from __future__ import annotations

from tenants.backoff import Backoff


def test_each_pause_is_twice_the_one_before_up_to_the_longest() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.next_s() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert backoff.next_s() == 0.5
    assert Backoff(5.0, 3.0).next_s() == 3.0


def test_jitter_cuts_pauses_by_up_to_a_half() -> None:
    backoff = Backoff(1.0, 1.0, has_jitter=True)
    pauses = [backoff.next_s() for _ in range(100)]
    assert 0.5 <= min(pauses) < max(pauses) <= 1.0
