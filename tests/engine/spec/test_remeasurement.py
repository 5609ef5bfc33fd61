from __future__ import annotations

from engine.spec.remeasurement import Remeasurement

CLOSE, CLEAR, KNOWN = 1.1, 2.0, 100


def measurements(gain: float, num_known: int, num_steps: int) -> list[int]:
    """How many steps with drafts came before each, and how many it took in all."""
    measuring, intervals, count, num_plain = Remeasurement(), [], 0, 0
    for _ in range(num_steps):
        has_drafts = not measuring.is_due(gain, num_known)
        num_plain += not has_drafts
        if measuring.count(has_drafts=has_drafts, num_known=num_known):
            intervals.append(count)
            count = 0
        count += has_drafts
    return [*intervals, num_plain]


def test_after_ever_more_steps_with_drafts() -> None:
    *intervals, num_plain = measurements(CLOSE, KNOWN, 1100)
    assert intervals == [16, 32, 64, 128, 256, 256, 256]
    assert num_plain == 4 * len(intervals)


def test_seldom_where_drafts_are_clearly_faster() -> None:
    *intervals, num_plain = measurements(CLEAR, KNOWN, 2100)
    assert intervals == [64, 128, 256, 512, 1024]
    assert num_plain == 4 * len(intervals)


def test_longer_and_soon_where_nothing_is_known() -> None:
    *intervals, num_plain = measurements(CLEAR, 0, 200)
    assert intervals == [16, 32, 64]
    assert num_plain == 8 * len(intervals)


def test_where_drafts_are_not_made_there_is_nothing_to_do() -> None:
    measuring = Remeasurement()
    for _ in range(15):
        measuring.count(has_drafts=True, num_known=KNOWN)
    assert not measuring.is_idle
    assert not measuring.count(has_drafts=False, num_known=KNOWN)
    assert measuring.is_idle
    assert not measuring.is_due(CLOSE, KNOWN)


def test_one_that_is_interrupted_begins_anew() -> None:
    """By forced tokens, for instance. The first step behind drafts is not a usual one."""
    measuring = Remeasurement()
    over = [
        measuring.count(has_drafts=has_drafts, num_known=KNOWN)
        for has_drafts in [True] * 16 + [False] * 3 + [True] + [False] * 4
    ]
    assert over == [False] * 23 + [True]
