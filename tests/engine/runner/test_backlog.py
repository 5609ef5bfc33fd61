from __future__ import annotations

from engine.runner.backlog import Arrival, Backlog
from engine.sampling_params import SamplingParams
from engine.scheduler.plan import Admission, Chunk, StepPlan


def test_events_keep_their_order() -> None:
    backlog = Backlog(4)
    assert not backlog
    backlog.note(StepPlan(0, chunks=[Chunk(0, "a", 3, 1, True)]))
    assert not backlog, "nothing happened"
    plan = StepPlan(1, released_rows=[0], new_blocks=[(1, [8])])
    plan.admissions = [Admission(0, "b", [1] * 11, 11, [5, 6, 7], SamplingParams())]
    plan.chunks = [Chunk(1, "c", 4, 1, True), Chunk(0, "b", 9, 2, True)]
    backlog.note(plan)
    assert len(backlog) == 3
    assert backlog.take() == [0, Arrival(0, [5, 6, 7], 2, 11), (1, [8])]
    assert not backlog


def test_what_is_swapped_in_counts_as_new() -> None:
    backlog = Backlog(4)
    plan = StepPlan(0, swap_ins=[(5, 0)], chunks=[Chunk(0, "b", 9, 2, True)])
    plan.admissions = [Admission(0, "b", [1] * 11, 11, [5, 6, 7], SamplingParams())]
    backlog.note(plan)
    assert backlog.take() == [Arrival(0, [5, 6, 7], 0, 11)]
