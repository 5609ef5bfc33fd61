from __future__ import annotations

import time

import torch

from engine.runner.inputs import ChunkFields
from engine.runner.step_costs import measure_step_costs

SIZES = {
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

    costs = measure_step_costs(run, None, None, lengths=(0, 1, 3), **SIZES)
    assert costs.batches == [1, 4, 8, 16, 25]  # 25 requests of four tokens are 100 tokens.
    assert costs.lengths == (0, 1, 3)
    assert costs.uneven_s is None
    assert all(s > 0 for row in costs.even_s for s in row)
    ways = {(batch, 1 + length) for batch in costs.batches for length in costs.lengths}
    assert {(batch, n) for batch, n, _ in ran} == ways
    assert {computed for _, _, computed in ran} == {16}, "the last place is inside the model's"


def test_drafting_counts_and_steps_of_the_other_kind_have_their_own_times() -> None:
    drafted: list[tuple[int, int]] = []

    def draft(batch: int, length: int) -> None:
        drafted.append((batch, length))
        time.sleep(0.002)

    costs = measure_step_costs(
        lambda fields: None, lambda fields: time.sleep(0.004), draft, lengths=(0, 2), **SIZES
    )
    assert {length for _, length in drafted} == {2}
    assert {batch for batch, _ in drafted} == set(costs.batches)
    assert costs.uneven_s is not None
    assert min(costs.even_s[1]) >= 0.002 > max(costs.even_s[0])
    assert min(costs.uneven_s[1]) >= 0.006 > min(costs.uneven_s[0]) >= 0.004


def test_long_steps_are_not_repeated() -> None:
    calls = 0

    def run(fields: ChunkFields) -> None:
        nonlocal calls
        calls += 1
        time.sleep(0.11)

    measure_step_costs(run, None, None, lengths=(0, 1), **{**SIZES, "max_num_seqs": 1})
    assert calls == 2
