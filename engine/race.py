"""Which engine is faster, where they differ by less than a machine does from minute to minute.

Engines take turns in short rounds of the same work, so what slows the machine down slows a round
down as a whole. A round gives one ratio for each engine, and there are rounds until the median of
these is known well enough. A second engine of the kind that all are compared with says what of that
is noise.
"""

from __future__ import annotations

import gc
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from engine.garbage import tune_collector

_DEVIATIONS = 1.96
"""Of a normal law: 95 % lie within so many."""
_NUM_CORES = 4
"""That an engine's process has use for."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Of one engine."""

    tok_s: float
    """Tokens a second: the median of the rounds."""
    speed_up: float
    """Times as fast as the baseline of the same round: the median, too."""
    interval: tuple[float, float]
    """Where that lies with a confidence of 95 %."""
    in_all: float
    """Times as fast by the time of all rounds: what is seldom counts, and so does noise."""


def race(
    engines: Mapping[str, Callable[[int], int]],
    baseline: Sequence[str],
    *,
    precision: float,
    max_s: float,
    min_rounds: int = 8,
    num_warm_up: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Standing]:
    """Each engine does the work of a round, given its number, and returns how many tokens it made.

    baseline: the names of those that all are compared with: by the mean of what they take, but
    they themselves by what the first takes. There are rounds until half of each ``interval`` is at
    most ``precision``, or ``max_s`` seconds have passed, but at least ``min_rounds``.
    """
    taken: dict[str, list[float]] = {name: [] for name in engines}
    """Of each round, seconds for a token."""
    names = list(engines)
    end = clock() + max_s
    number = -num_warm_up
    while True:
        # Everybody follows everybody else, and in both orders.
        first = number // 2 % len(names)
        order = names[first:] + names[:first]
        for name in order if number % 2 else reversed(order):
            began = clock()
            num_tokens = engines[name](number)
            if number >= 0:
                taken[name].append((clock() - began) / num_tokens)
        gc.collect(0)
        number += 1
        if number >= min_rounds:
            standings = _judge(taken, baseline)
            widths = [high - low for low, high in (s.interval for s in standings.values())]
            if max(widths) <= 2 * precision or clock() >= end:
                return standings


def _judge(taken: Mapping[str, Sequence[float]], baseline: Sequence[str]) -> dict[str, Standing]:
    first = taken[baseline[0]]
    of_all = [statistics.mean(each) for each in zip(*(taken[name] for name in baseline))]  # noqa: B905 - as many rounds each
    standings = {}
    for name, found in taken.items():
        usual = first if name in baseline else of_all
        ratios = sorted(a / b for a, b in zip(usual, found, strict=True))
        standings[name] = Standing(
            1 / statistics.median(found),
            statistics.median(ratios),
            median_interval(ratios),
            sum(usual) / sum(found),
        )
    return standings


def median_interval(ordered: Sequence[float]) -> tuple[float, float]:
    """Where the median of what these were drawn from lies with a confidence of 95 %, whatever its
    law: between two of them, as many places from the middle as a fair coin is off in that many
    throws (Conover, "Practical Nonparametric Statistics", 3.2). ordered: ascending."""
    count = len(ordered)
    place = max(0, math.floor((count - _DEVIATIONS * math.sqrt(count)) / 2))
    return ordered[place], ordered[count - 1 - place]


def settle_down(*, on_gpu: bool) -> None:
    """Take from a process what makes one round longer than the next: the search for garbage among
    all that was loaded and, beside a GPU, moves between the cores of a large host. Call it once
    everything is loaded."""
    tune_collector()
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if on_gpu and len(cores) >= 2 * _NUM_CORES:
        # Interrupts and what others start tend to be on the first ones.
        os.sched_setaffinity(0, cores[-_NUM_CORES:])
