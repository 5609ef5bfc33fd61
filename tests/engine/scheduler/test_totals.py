from __future__ import annotations

import pytest

from engine.messages import QUEUE_TIME_BUCKETS_S
from engine.scheduler.totals import DraftTotals, SchedulerStats


def test_drafts_are_counted_by_place() -> None:
    totals = DraftTotals()
    for num_drafts, num_accepted in [(3, 2), (1, 1), (4, 0)]:
        totals.observe(num_drafts, num_accepted)
    assert (totals.num_drafts, totals.num_draft_tokens, totals.num_accepted_tokens) == (3, 8, 3)
    assert totals.num_accepted_tokens_per_pos == [2, 1, 0, 0]


def test_totals_of_two_are_added() -> None:
    totals, other = DraftTotals(), DraftTotals()
    totals.observe(1, 1)
    other.observe(3, 2)
    totals.add(other)
    assert totals == DraftTotals(2, 4, 3, [0, 1, 1, 0])
    assert totals.num_accepted_tokens_per_pos == [2, 1, 0]
    assert other == DraftTotals(1, 3, 2, [0, 0, 1, 0])


def test_a_wait_counts_up_to_its_bound() -> None:
    totals = SchedulerStats()
    for bound_s in QUEUE_TIME_BUCKETS_S:
        for waited_s in (0.99 * bound_s, bound_s):
            totals.admit(3, waited_s)
    totals.admit(3, 1e6)
    assert totals.queue_time_counts == [2] * len(QUEUE_TIME_BUCKETS_S) + [1]
    assert totals.prompt_tokens == 3 * sum(totals.queue_time_counts)
    assert totals.queue_time_sum_s == pytest.approx(1.99 * sum(QUEUE_TIME_BUCKETS_S) + 1e6)
