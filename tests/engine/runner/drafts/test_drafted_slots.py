from __future__ import annotations

import random

import numpy as np
import torch

from engine.runner.drafts.drafted_slots import DraftedSlots
from engine.runner.drafts.row_changes import RowChanges
from engine.runner.rows import RowTable
from engine.sampling_params import SamplingParams
from engine.scheduler.plan import Admission, Chunk, StepPlan

SIZE = 4


class Slots(DraftedSlots):
    """With the row table, which follows every plan at once."""

    def __init__(self) -> None:
        self.table = RowTable(3, 60 * SIZE, SIZE, torch.device("cpu"))
        super().__init__(num_blocks=60, block_size=SIZE, table=self.table)
        self.noted = RowChanges(SIZE)

    def apply(self, plan: StepPlan) -> None:
        self.table.apply(plan.admissions, plan.new_blocks)
        self.catch_up()
        super().apply(plan)

    def put_off(self, plan: StepPlan) -> None:
        self.table.apply(plan.admissions, plan.new_blocks)
        self.noted.note(plan)

    def catch_up(self) -> None:
        if not self.noted.is_empty:
            self.follow(self.noted.take())

    def filled(self, block_ids: list[int]) -> list[int]:
        """The leading slots of each block that have keys."""
        return [self._filled[block_id] for block_id in block_ids]


def slots() -> Slots:
    return Slots()


def admission(row: int, block_ids: list[int], num_tokens: int = 8) -> Admission:
    return Admission(row, "r", [0] * num_tokens, num_tokens, [block_ids], SamplingParams())


def chunk(row: int, start: int, num_tokens: int) -> Chunk:
    return Chunk(row, "r", start, num_tokens, True)


def fill(slots: Slots, row: int, end: int) -> None:
    slots.fill(np.array([row]), np.array([end]))


def test_a_new_row_has_nothing() -> None:
    made = slots()
    made.apply(StepPlan(0, admissions=[admission(0, [3, 4])], chunks=[chunk(0, 0, 8)]))
    assert made.start(0) == 0
    assert made.room(0) == 8
    made.apply(StepPlan(1, new_blocks=[(0, 0, [7])], chunks=[chunk(0, 8, 1)]))
    assert made.room(0) == 12


def test_a_row_goes_on_where_it_was() -> None:
    made = slots()
    made.apply(StepPlan(0, admissions=[admission(0, [3, 4, 5])], chunks=[chunk(0, 0, 8)]))
    fill(made, 0, 9)
    assert made.start(0) == 9
    # The ninth token is computed now; its keys were made when it was known.
    made.apply(StepPlan(1, chunks=[chunk(0, 8, 3)]))
    assert made.start(0) == 9


def test_a_shared_prefix_is_known_by_its_blocks() -> None:
    made = slots()
    made.apply(StepPlan(0, admissions=[admission(0, [3, 4, 5])], chunks=[chunk(0, 0, 8)]))
    fill(made, 0, 9)
    shared = StepPlan(1, admissions=[admission(1, [3, 4, 9])], chunks=[chunk(1, 8, 2)])
    made.apply(shared)
    assert made.start(1) == 8
    half = StepPlan(2, admissions=[admission(2, [3, 10])], chunks=[chunk(2, 4, 2)])
    made.apply(half)
    assert made.start(2) == 4


def test_a_prefix_whose_keys_were_never_made_is_made_late() -> None:
    made = slots()
    made.apply(StepPlan(0, admissions=[admission(0, [3, 4, 5])], chunks=[chunk(0, 0, 8)]))
    fill(made, 0, 6)
    made.apply(StepPlan(1, admissions=[admission(1, [3, 4, 9])], chunks=[chunk(1, 8, 2)]))
    assert made.start(1) == 6


def test_a_block_that_changes_hands_starts_at_zero() -> None:
    made = slots()
    made.apply(StepPlan(0, admissions=[admission(0, [3, 4])], chunks=[chunk(0, 0, 8)]))
    fill(made, 0, 8)
    made.apply(StepPlan(1, admissions=[admission(1, [4, 3])], chunks=[chunk(1, 0, 8)]))
    assert made.start(1) == 0
    made.apply(StepPlan(2, admissions=[admission(2, [4])], chunks=[chunk(2, 4, 1)]))
    assert made.start(2) == 0


def test_a_copied_block_has_what_its_source_has() -> None:
    made = slots()
    made.apply(StepPlan(0, admissions=[admission(0, [3, 4])], chunks=[chunk(0, 0, 8)]))
    fill(made, 0, 8)
    plan = StepPlan(
        1,
        admissions=[admission(1, [3, 9])],
        block_copies=[(4, 9, 3)],
        chunks=[chunk(1, 7, 1)],
    )
    made.apply(plan)
    assert made.start(1) == 7


def test_what_was_swapped_in_is_made_anew() -> None:
    made = slots()
    made.apply(StepPlan(0, admissions=[admission(0, [3, 4])], chunks=[chunk(0, 0, 8)]))
    fill(made, 0, 8)
    plan = StepPlan(
        1, admissions=[admission(0, [3, 4])], swap_ins=[(3, 0), (4, 1)], chunks=[chunk(0, 8, 1)]
    )
    made.apply(plan)
    assert made.start(0) == 0


def test_who_has_gone_has_not_changed() -> None:
    """Else every step would look for a chunk of theirs."""
    made = slots()
    plan = StepPlan(0, admissions=[admission(0, [3, 4]), admission(1, [5, 6])])
    plan.chunks = [chunk(0, 0, 8), chunk(1, 0, 8)]
    made.apply(plan)
    assert not made.changed
    made.fill(np.array([0, 1]), np.array([8, 8]))
    assert made.changed == {0, 1}
    made.apply(StepPlan(1, released_rows=[1], chunks=[chunk(0, 8, 1)]))
    assert not made.changed
    made.apply(StepPlan(2, released_rows=[0], admissions=[admission(0, [7])]))
    assert made.changed == {0}, "another took the row at once"


def test_what_happens_in_a_rest_may_be_followed_behind_it() -> None:
    made = slots()
    made.apply(StepPlan(0, admissions=[admission(0, [3, 4])], chunks=[chunk(0, 0, 8)]))
    fill(made, 0, 8)
    made.apply(StepPlan(1, chunks=[chunk(0, 8, 1)]))
    made.put_off(StepPlan(2, new_blocks=[(0, 0, [5])], chunks=[chunk(0, 9, 1)]))
    # One shares the first block and goes; another gets what was its own, and shares it, too.
    gone = StepPlan(3, admissions=[admission(1, [3, 6])], chunks=[chunk(1, 4, 4)])
    stays = StepPlan(4, admissions=[admission(2, [3, 6])], chunks=[chunk(2, 4, 4)])
    stays.released_rows = [1]
    for plan in (gone, stays, StepPlan(5, new_blocks=[(0, 2, [7])], chunks=[chunk(2, 8, 1)])):
        made.put_off(plan)
    made.catch_up()
    assert made.noted.is_empty
    assert (made.start(0), made.room(0)) == (8, 12), "it is as before"
    assert (made.start(2), made.room(2)) == (4, 12)
    fill(made, 2, 9)
    made.apply(StepPlan(6, admissions=[admission(1, [3, 6, 7, 8])], chunks=[chunk(1, 12, 1)]))
    assert made.start(1) == 9, "the blocks of the second row"


def test_the_step_that_ends_a_rest_may_bring_blocks() -> None:
    made = slots()
    made.apply(StepPlan(0))
    made.put_off(StepPlan(1, admissions=[admission(0, [3, 4])], chunks=[chunk(0, 0, 8)]))
    made.apply(StepPlan(2, new_blocks=[(0, 0, [5])], chunks=[chunk(0, 8, 1)]))
    made.apply(StepPlan(3, new_blocks=[(0, 0, [6])], chunks=[chunk(0, 9, 1)]))
    fill(made, 0, 14)
    assert made.filled([3, 4, 5, 6]) == [4, 4, 4, 2]


def random_plans(seed: int) -> list[tuple[bool, StepPlan]]:
    """Requests come, share blocks of others, grow and go: (whether drafts are made, plan)."""
    rng = random.Random(seed)
    plans: list[tuple[bool, StepPlan]] = []
    free, held, lengths = list(range(60)), dict[int, list[int]](), dict[int, int]()
    for number in range(60):
        plan = StepPlan(number)
        for row in [row for row in held if rng.random() < 0.15]:
            plan.released_rows.append(row)
            blocks = held.pop(row)
            free += [block for block in blocks if not any(block in of for of in held.values())]
        for row, blocks in held.items():
            plan.chunks.append(chunk(row, lengths[row], 1))
            lengths[row] += 1
            if lengths[row] > len(blocks) * SIZE:
                blocks.append(free.pop())
                plan.new_blocks.append((0, row, blocks[-1:]))
        for row in {0, 1, 2} - held.keys():
            if rng.random() < 0.4:
                of = rng.choice([[], *held.values()])
                shared = of[: rng.randrange(len(of))] if of else []
                held[row] = [*shared, free.pop()]
                lengths[row] = len(held[row]) * SIZE
                start = len(shared) * SIZE
                plan.admissions.append(admission(row, list(held[row]), lengths[row]))
                plan.chunks.append(chunk(row, start, lengths[row] - start))
        plans.append((number // 10 % 2 == 0, plan))
    return plans


def test_put_off_or_not_it_comes_to_the_same() -> None:
    for seed in range(40):
        at_once, later = slots(), slots()
        known: dict[int, int] = {}
        for drafts, plan in random_plans(seed):
            at_once.apply(plan)
            if not drafts and not later.changed:
                later.put_off(plan)
            else:
                later.apply(plan)
            known |= {each.row: each.num_computed_tokens + 1 for each in plan.chunks}
            if drafts:
                for each in plan.chunks:
                    assert later.start(each.row) == at_once.start(each.row)
                    assert later.room(each.row) == at_once.room(each.row)
                    fill(at_once, each.row, known[each.row])
                    fill(later, each.row, known[each.row])
                    blocks = later.table.blocks(each.row)
                    assert later.filled(blocks) == at_once.filled(blocks)
