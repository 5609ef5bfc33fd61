from __future__ import annotations

from engine.runner.drafts.feature_holes import FeatureHoles
from engine.runner.drafts.row_changes import RowChanges
from engine.sampling_params import SamplingParams
from engine.scheduler.plan import Admission, Chunk, StepPlan


class Engine:
    """Plans steps of what it is told, and remembers how far each row is."""

    def __init__(self, *, puts_off: bool = True) -> None:
        self.holes = FeatureHoles()
        self._changes, self._puts_off = RowChanges(1), puts_off
        self._computed: dict[int, int] = {}

    def step(
        self, *rows: int, keeps: bool, new: dict[int, int] | None = None, gone: tuple[int, ...] = ()
    ) -> None:
        """new: prompt lengths of rows that are admitted, and computed as a whole."""
        new = new or {}
        plan = StepPlan(0, released_rows=list(gone), keeps_features=keeps)
        for row, num_tokens in new.items():
            params = SamplingParams()
            plan.admissions.append(
                Admission(row, str(row), [1] * num_tokens, num_tokens, [[row]], params)
            )
            plan.chunks.append(Chunk(row, str(row), 0, num_tokens, True))
            self._computed[row] = num_tokens
        for row in rows:
            plan.chunks.append(Chunk(row, str(row), self._computed[row], 1, True))
            self._computed[row] += 1
        if self._puts_off and self.holes.are_open and not keeps:
            self._changes.note(plan)
            return
        self.holes.follow(self._changes.take())
        self.holes.apply(plan)


def test_where_all_is_kept_there_are_none() -> None:
    engine = Engine()
    engine.step(new={0: 5, 1: 3}, keeps=True)
    engine.step(0, 1, keeps=True)
    assert engine.holes.take([0, 1]) == []


def test_while_nothing_is_kept_plans_need_not_be_followed_at_once() -> None:
    """Nor are those of requests that come and go meanwhile."""
    for puts_off in (False, True):
        engine = Engine(puts_off=puts_off)
        engine.step(new={0: 5, 1: 3, 2: 4}, keeps=True)
        assert not engine.holes.are_open
        engine.step(0, 1, 2, keeps=False)
        assert engine.holes.are_open
        engine.step(0, new={1: 7}, gone=(1, 2), keeps=False)
        engine.step(0, 1, new={2: 8}, keeps=False)
        engine.step(0, 2, new={1: 9}, gone=(1,), keeps=False)
        engine.step(1, gone=(0, 2), keeps=False)
        engine.step(1, new={0: 6}, keeps=True)
        assert not engine.holes.are_open
        assert engine.holes.take([0, 1, 2]) == [(1, 9, 10)]
        engine.step(new={2: 2}, keeps=False)
        engine.step(2, keeps=True)
        assert engine.holes.take([2]) == []


def test_a_hole_goes_from_the_first_step_that_kept_nothing_to_the_next_that_does() -> None:
    engine = Engine()
    engine.step(new={0: 5, 1: 3}, keeps=True)
    engine.step(0, 1, keeps=True)
    for _ in range(4):
        engine.step(0, 1, keeps=False)
    assert engine.holes.take([0, 1]) == [], "they may still grow"
    engine.step(0, 1, keeps=True)
    assert engine.holes.take([1]) == [(1, 4, 8)]
    assert engine.holes.take([0, 1]) == [(0, 6, 10)], "each is told once"


def test_prompts_are_kept_in_any_case() -> None:
    engine = Engine()
    engine.step(new={0: 5}, keeps=True)
    engine.step(0, keeps=False)
    engine.step(0, new={1: 30}, keeps=False)
    engine.step(0, 1, keeps=False)
    engine.step(0, 1, keeps=True)
    assert engine.holes.take([0, 1]) == [(0, 5, 8), (1, 30, 31)]
    other = Engine()
    other.step(new={0: 5}, keeps=False)
    other.step(0, keeps=True)
    assert other.holes.take([0]) == []


def test_a_row_has_as_many_holes_as_times_without_features() -> None:
    engine = Engine()
    engine.step(new={0: 2}, keeps=True)
    for keeps in (False, True, False, False, True):
        engine.step(0, keeps=keeps)
    assert engine.holes.take([0]) == [(0, 2, 3), (0, 4, 6)]


def test_rows_that_sat_out_are_looked_up_when_they_go_on() -> None:
    engine = Engine()
    engine.step(new={0: 2, 1: 2}, keeps=True)
    engine.step(0, 1, keeps=False)
    engine.step(0, keeps=True)
    assert engine.holes.take([0, 1]) == [(0, 2, 3)]
    engine.step(0, 1, keeps=True)
    assert engine.holes.take([0, 1]) == [(1, 2, 3)]


def test_a_row_forgets_with_its_request() -> None:
    engine = Engine()
    engine.step(new={0: 2, 1: 2}, keeps=True)
    engine.step(0, 1, keeps=False)
    engine.step(0, 1, keeps=True)
    engine.step(1, keeps=False)
    engine.step(new={0: 9, 1: 7}, gone=(0, 1), keeps=True)
    assert engine.holes.take([0, 1]) == []
    engine.step(0, 1, keeps=True)
    assert engine.holes.take([0, 1]) == []
