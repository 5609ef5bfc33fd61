from __future__ import annotations

import time
from typing import Any

import torch

from engine.runner.inputs import ChunkFields
from engine.runner.step_costs import measure_step_costs

SIZES: dict[str, Any] = {
    "max_num_seqs": 40,
    "max_num_tokens": 100,
    "max_model_len": 20,
    "device": torch.device("cpu"),
}


def test_it_times_steps_of_growing_batches_and_lengths() -> None:
    ran: list[tuple[int, int, int]] = []

    def run(fields: ChunkFields) -> None:
        assert (fields.num_places == fields.query_lens).all()
        ran.append((len(fields.rows), int(fields.query_lens[0]), int(fields.computed[0])))

    costs = measure_step_costs(run, None, lengths=(0, 1, 3), **SIZES)
    assert costs.batches == [1, 2, 4, 8, 16, 25]  # 25 requests of four tokens are 100 tokens.
    assert costs.lengths == (0, 1, 3)
    assert not costs.is_padded
    assert all(s > 0 for row in costs.taken_s for s in row)
    ways = {(batch, 1 + length) for batch in costs.batches for length in costs.lengths}
    assert {(batch, n) for batch, n, _ in ran} == ways
    assert {computed for _, _, computed in ran} == {16}, "the last place is inside the model's"


def test_drafting_counts() -> None:
    drafted: list[tuple[int, int]] = []

    def draft(batch: int, length: int) -> None:
        drafted.append((batch, length))
        time.sleep(0.002)

    costs = measure_step_costs(lambda fields: None, draft, lengths=(0, 2), is_padded=True, **SIZES)
    assert costs.is_padded
    assert {length for _, length in drafted} == {2}
    assert {batch for batch, _ in drafted} == set(costs.batches)
    assert min(costs.taken_s[1]) >= 0.002 > max(costs.taken_s[0])


def test_long_steps_are_not_repeated() -> None:
    calls = 0

    def run(fields: ChunkFields) -> None:
        nonlocal calls
        calls += 1
        time.sleep(0.11)

    measure_step_costs(run, None, lengths=(0, 1), **{**SIZES, "max_num_seqs": 1})
    assert calls == 2
