"""For which steps one kernel behind each attention (``JoinedProducts``) is faster than the layers.

Measured before graphs are captured, which are then recorded with the one or the other. It depends
on how many tokens a step has. Long sequences need no limit: what is gained behind their attention
only counts for less (on an H200, nothing is left of it with 64 of 8,192 tokens).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import chain

logger = logging.getLogger(__name__)

_STEP = 16
"""Rows of which the products of the layers have their choices."""


def measured_sizes(joinable: range, most: int) -> list[int]:
    """Numbers of tokens that stand for those before them. joinable: for which the model has such
    kernels; most: of a step."""
    last = min(joinable.stop - 1, most)
    if last not in joinable:
        return []
    return sorted({*range(-(-joinable.start // _STEP) * _STEP, last, _STEP), last})


def faster_tokens(joinable: range, most: int, is_faster: Callable[[int], bool]) -> frozenset[int]:
    """The numbers of tokens of a step, up to ``most``, for which ``is_faster`` says so of the next
    that is measured."""
    sizes = measured_sizes(joinable, most)
    starts = [joinable.start, *(size + 1 for size in sizes)]
    faster = [
        range(start, size + 1)
        for start, size in zip(starts, sizes, strict=False)
        if is_faster(size)
    ]
    if faster:
        named = ", ".join(f"{tokens[0]} to {tokens[-1]}" for tokens in faster)
        logger.info("one kernel behind each attention in steps of %s tokens", named)
    elif sizes:
        logger.info("layer by layer, steps of %d to %d tokens are as fast", starts[0], sizes[-1])
    return frozenset(chain.from_iterable(faster))
