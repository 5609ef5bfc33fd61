from __future__ import annotations

from engine.runner.drafts.row_changes import RowChanges
from engine.sampling_params import SamplingParams
from engine.scheduler.plan import Admission, Chunk, StepPlan


def arriving(row: int, block_ids: list[int], num_tokens: int, num_computed: int) -> StepPlan:
    admission = Admission(row, "b", [1] * num_tokens, num_tokens, [block_ids], SamplingParams())
    chunk = Chunk(row, "b", num_computed, num_tokens - num_computed, True)
    return StepPlan(0, admissions=[admission], chunks=[Chunk(9, "c", 4, 1, True), chunk])


def test_of_who_comes_and_goes_next_to_nothing_is_kept() -> None:
    noted = RowChanges(4)
    assert noted.is_empty
    noted.note(arriving(0, [5, 6, 7], 11, 9))
    assert not noted.is_empty
    noted.note(StepPlan(1, new_blocks=[(0, 0, [8]), (0, 1, [9, 10]), (1, 1, [11])]))
    plan = arriving(0, [5, 4], 7, 5)
    plan.released_rows.append(0)
    noted.note(plan)
    changes = noted.take()
    assert noted.is_empty
    assert changes.arrivals == {0: 7}, "who has the row now"
    assert list(changes.fresh) == [7, 8, 9, 10, 4], "5 and 6 are shared"
    assert plan.admissions[0].block_ids == [[5, 4]], "the plan is not changed"
    assert noted.take().fresh == []


def test_newcomers_without_a_chunk_share_nothing() -> None:
    noted = RowChanges(4)
    plan = arriving(0, [5, 6], 7, 4)
    plan.chunks.reverse()
    noted.note(plan)
    assert list(noted.take().fresh) == [5, 6]


def test_what_is_swapped_in_counts_as_new() -> None:
    noted = RowChanges(4)
    plan = arriving(0, [5, 6, 7], 11, 9)
    plan.swap_ins = [(5, 0)]
    noted.note(plan)
    assert list(noted.take().fresh) == [5, 6, 7]


def test_it_does_not_grow_with_the_number_of_requests() -> None:
    noted = RowChanges(4)
    for _ in range(5000):
        plan = arriving(0, [5, 6, 7], 11, 0)
        plan.released_rows.append(0)
        noted.note(plan)
    changes = noted.take()
    assert len(changes.fresh) < 9000
    assert set(changes.fresh) == {5, 6, 7}
    assert len(changes.arrivals) == 1
