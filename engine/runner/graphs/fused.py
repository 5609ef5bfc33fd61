"""Whether steps of few tokens are faster by the fused executor.

Measured with the graphs that would run: how fast a kernel reads the keys of long sequences, and
what a model loses between kernels, differs from GPU to GPU.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median

import torch

from engine.layers.attention import KVCache
from engine.runner.graphs.sized import SizedGraphs
from engine.runner.rows import RowTable
from engine.runner.step_costs import wait_for

logger = logging.getLogger(__name__)

SHORT = 512
"""Tokens of a sequence whose keys hardly count."""
LEAD = 0.98
"""Of the time that the layers take one by one: less gain is not worth results that differ in
near-ties between batches of few sequences and of more."""
_ROUNDS = 5
_ROUND_S = 0.01
"""Of one after the other: what the host adds must not count."""


def measure_most_tokens(
    fused: SizedGraphs,
    layers: SizedGraphs,
    size: int,
    prepare: Callable[[int], object],
    table: RowTable,
    kv_cache: KVCache,
) -> int:
    """Known tokens of all sequences of a step together for which its graph with ``fused`` is
    faster, at most; 0: for none.

    ``prepare`` sends rows 0 to ``size``, each with so many tokens. Call it before any request has a
    row: the steps write into blocks that nobody holds.
    """
    # As far as possible rows have blocks that no other row has: keys that are read twice would come
    # from the L2.
    tables, max_model_len = table.block_table[:size], table.tokens.shape[1]
    num_blocks, block_size = kv_cache[0][0].shape[:2]
    firsts = torch.arange(size, device=tables.device)[:, None] * (num_blocks // size)
    blocks = firsts + torch.arange(tables.shape[1], device=tables.device)
    tables.copy_(blocks % num_blocks)
    max_len = min(max_model_len, max(1, num_blocks // size * block_size))
    longest = longest_faster(
        partial(fused.replay, size),
        partial(layers.replay, size),
        prepare,
        max_len=max_len,
        device=tables.device,
    )
    tables.zero_()
    return size * (max_model_len if longest == max_len else longest)


@torch.inference_mode()
def longest_faster(
    fused: Callable[[], object],
    layers: Callable[[], object],
    prepare: Callable[[int], object],
    *,
    max_len: int,
    device: torch.device,
) -> int:
    """Tokens of the longest sequences for which ``fused`` takes less time than ``layers``; 0
    unless it does clearly for short ones.

    Both run the step for which ``prepare`` was called last, with the tokens of each sequence. The
    answer is ``max_len``, or that halved some times.
    """

    def ratio(seq_len: int) -> float:
        """What one of ``fused`` takes, in times of one of ``layers``."""
        prepare(seq_len)
        num_replays = 1 + int(_ROUND_S / _seconds(layers, 1, device))
        rounds = [
            [_seconds(steps, num_replays, device) for steps in (fused, layers)]
            for _ in range(_ROUNDS)
        ]
        our_s, their_s = (median(times) for times in zip(*rounds, strict=True))
        return float(our_s / their_s)

    lengths = [max_len]
    while lengths[0] > SHORT:
        lengths.insert(0, max(SHORT, lengths[0] // 2))
    if ratio(lengths[0]) > LEAD:
        return 0
    return lengths[bisect_right(lengths, 1.0, lo=1, key=ratio) - 1]


def log_faster(steps: str, max_tokens: Mapping[str, int]) -> None:
    """steps: their kind. max_tokens: by size, of all sequences of a step, up to which one kernel
    serves it; 0: never."""
    served = [f"{size} (up to {most} tokens)" for size, most in max_tokens.items() if most]
    if served:
        logger.info("one kernel computes all layers of %s of %s", steps, ", ".join(served))
    else:
        logger.info("layer by layer, %s of all sizes are as fast as by one kernel", steps)


def _seconds(replay: Callable[[], object], times: int, device: torch.device) -> float:
    wait_for(device)
    start = time.perf_counter()
    for _ in range(times):
        replay()
    wait_for(device)
    return time.perf_counter() - start
