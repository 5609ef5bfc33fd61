"""Measuring what steps cost, so that drafts are checked only where that pays."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from engine.runner.inputs import ChunkFields
from engine.spec.adaptive import StepCosts

_BATCHES = (1, 4, 16, 64, 256)
_NUM_COMPUTED = 32
_REPEATS = 3


@torch.inference_mode()
def measure_step_costs(
    run: Callable[[ChunkFields], object],
    *,
    max_num_seqs: int,
    max_num_tokens: int,
    max_model_len: int,
    num_drafts: int,
    device: torch.device,
    all_or_none: bool = False,
) -> StepCosts:
    """``run`` executes a step up to its logits. Call it before any request has a row: the steps
    write into blocks that nobody holds."""
    limit = min(max_num_seqs, max(1, max_num_tokens // (num_drafts + 1)))
    batches = [*(batch for batch in _BATCHES if batch < limit), limit]
    computed = min(_NUM_COMPUTED, max(0, max_model_len - num_drafts - 1))

    def seconds(batch: int, num_tokens: int) -> float:
        lens = np.full(batch, num_tokens)
        fields = ChunkFields(np.arange(batch), np.full(batch, computed), lens, lens)
        best = float("inf")
        for _ in range(_REPEATS):
            _wait(device)
            start = time.perf_counter()
            run(fields)
            _wait(device)
            best = min(best, time.perf_counter() - start)
        return best

    return StepCosts(
        batches,
        [seconds(batch, 1) for batch in batches],
        [seconds(batch, 1 + num_drafts) for batch in batches],
        num_drafts,
        all_or_none,
    )


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
