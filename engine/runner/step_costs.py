"""Measuring what steps cost, so that drafts are checked only where that pays."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from engine.runner.inputs import ChunkFields
from engine.spec.costs import StepCosts

_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_NUM_COMPUTED = 32
_REPEATS = 3
# Beyond, once will do: noise is a small part of it.
_LONG_S = 0.1


@torch.inference_mode()
def measure_step_costs(
    run: Callable[[ChunkFields], object],
    draft: Callable[[int, int], object] | None,
    *,
    lengths: Sequence[int],
    max_num_seqs: int,
    max_num_tokens: int,
    max_model_len: int,
    device: torch.device,
    is_padded: bool = False,
) -> StepCosts:
    """Call it before any request has a row: the steps write into blocks that nobody holds.

    ``run`` executes a step up to its logits; ``draft(batch, length)`` drafts, if that takes time.
    lengths: drafts for each request, ascending from 0. is_padded: as in ``StepCosts``.
    """
    longest = lengths[-1]
    limit = min(max_num_seqs, max(1, max_num_tokens // (longest + 1)))
    batches = [*(batch for batch in _BATCHES if batch < limit), limit]
    computed = min(_NUM_COMPUTED, max(0, max_model_len - longest - 1))

    def step(batch: int, length: int) -> None:
        if length and draft is not None:
            draft(batch, length)
        lens = np.full(batch, 1 + length)
        run(ChunkFields(np.arange(batch), np.full(batch, computed), lens, lens))

    taken_s = [
        [_seconds(partial(step, batch, length), device) for batch in batches] for length in lengths
    ]
    return StepCosts(batches, lengths, taken_s, is_padded)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    best = float("inf")
    for _ in range(_REPEATS):
        wait_for(device)
        start = time.perf_counter()
        work()
        wait_for(device)
        best = min(best, time.perf_counter() - start)
        if best > _LONG_S:
            break
    return best


def wait_for(device: torch.device) -> None:
    """Until it has nothing left to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
