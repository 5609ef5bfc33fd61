from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from engine.runner.inputs import ChunkFields
from engine.runner.step_costs import measure_step_costs

SIZES: dict[str, Any] = {
    "max_num_seqs": 40,
    "max_num_tokens": 100,
    "max_model_len": 20,
    "device": torch.device("cpu"),
}


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def test_it_times_steps_of_growing_batches_and_lengths() -> None:
    ran: list[tuple[int, int, int]] = []

    def run(fields: ChunkFields) -> None:
        assert (fields.num_sampled == fields.query_lens).all()
        ran.append((len(fields.rows), int(fields.query_lens[0]), int(fields.computed[0])))

    costs = measure_step_costs(run, None, lengths=(0, 1, 3), **SIZES)
    assert costs.batches == [1, 4, 8, 16, 25]  # 25 requests of four tokens are 100 tokens.
    assert costs.lengths == (0, 1, 3)
    assert not costs.is_padded
    assert all(s > 0 for row in costs.taken_s for s in row)
    ways = {(batch, 1 + length) for batch in costs.batches for length in costs.lengths}
    assert {(batch, n) for batch, n, _ in ran} == ways
    assert {computed for _, _, computed in ran} == {16}, "the last place is inside the model's"


def test_drafting_counts() -> None:
    clock = Clock()
    drafted: list[tuple[int, int]] = []

    def run(fields: ChunkFields) -> None:
        clock.now += 0.003

    def draft(batch: int, length: int) -> None:
        drafted.append((batch, length))
        clock.now += 0.002

    costs = measure_step_costs(run, draft, lengths=(0, 2), is_padded=True, clock=clock, **SIZES)
    assert costs.is_padded
    assert {length for _, length in drafted} == {2}
    assert {batch for batch, _ in drafted} == set(costs.batches)
    assert costs.taken_s[0] == pytest.approx([0.003] * len(costs.batches))
    assert costs.taken_s[1] == pytest.approx([0.005] * len(costs.batches))


def test_the_least_time_counts() -> None:
    clock = Clock()
    times = iter([0.02, 0.01, 0.03])

    def run(fields: ChunkFields) -> None:
        clock.now += next(times)

    costs = measure_step_costs(run, None, lengths=(0,), clock=clock, **{**SIZES, "max_num_seqs": 1})
    assert [*costs.taken_s[0]] == [pytest.approx(0.01)]


def test_long_steps_are_not_repeated() -> None:
    clock = Clock()
    calls = 0

    def run(fields: ChunkFields) -> None:
        nonlocal calls
        calls += 1
        clock.now += 0.11

    sizes = {**SIZES, "max_num_seqs": 1}
    costs = measure_step_costs(run, None, lengths=(0, 1), clock=clock, **sizes)
    assert calls == 2
    assert [s for row in costs.taken_s for s in row] == [pytest.approx(0.11)] * 2
