from __future__ import annotations

from engine.scheduler.totals import DraftTotals


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
