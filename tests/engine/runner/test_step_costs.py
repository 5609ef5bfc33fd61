from __future__ import annotations

import torch

from engine.runner.inputs import ChunkFields
from engine.runner.step_costs import measure_step_costs


def test_it_times_plain_and_checking_steps_of_growing_batches() -> None:
    ran: list[tuple[int, int, int]] = []

    def run(fields: ChunkFields) -> None:
        assert (fields.num_places == fields.query_lens).all()
        ran.append((len(fields.rows), int(fields.query_lens[0]), int(fields.computed[0])))

    costs = measure_step_costs(
        run,
        max_num_seqs=40,
        max_num_tokens=100,
        max_model_len=20,
        num_drafts=3,
        device=torch.device("cpu"),
    )
    assert costs.batches == [1, 4, 16, 25]  # 25 requests of four tokens are 100 tokens.
    assert len(costs.plain_s) == len(costs.checking_s) == 4
    assert all(s > 0 for s in (*costs.plain_s, *costs.checking_s))
    assert {(batch, n) for batch, n, _ in ran} == {(b, n) for b in costs.batches for n in (1, 4)}
    assert {computed for _, _, computed in ran} == {16}, "the last place is inside the model's"
