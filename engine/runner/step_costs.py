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
"""Tokens that each request has before the step."""
_REPEATS = 3
# A step that takes longer is measured once: noise is a small part of its time.
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
    clock: Callable[[], float] = time.perf_counter,
    agree: Callable[[float], float] = float,
) -> StepCosts:
    """Time steps of several batch sizes and numbers of drafts. Call it before any request has a
    row, because the steps write to rows and blocks.

    run: executes a step up to its logits. draft: ``draft(batch, length)`` drafts, if that takes
    time. lengths: drafts for each request, ascending from 0. is_padded: as in ``StepCosts``. clock:
    in seconds. agree: what all ranks take a time to be, which each measured for itself."""
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
        [_seconds(partial(step, batch, length), device, clock, agree) for batch in batches]
        for length in lengths
    ]
    return StepCosts(batches, lengths, taken_s, is_padded)


def _seconds(
    work: Callable[[], object],
    device: torch.device,
    clock: Callable[[], float],
    agree: Callable[[float], float],
) -> float:
    """The least time of a few runs."""
    best = float("inf")
    for _ in range(_REPEATS):
        wait_for(device)
        start = clock()
        work()
        wait_for(device)
        best = agree(min(best, clock() - start))
        if best > _LONG_S:
            break
    return best


def wait_for(device: torch.device) -> None:
    """Return once the device has nothing left to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
