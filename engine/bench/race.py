"""Compares engines whose speeds differ by less than a machine's speed does from minute to minute.

Engines take turns in short rounds of the same work, so that other load slows a whole round down.
Each round gives one ratio for each engine, and rounds are repeated until the median of the ratios
is known well enough. A second engine of the kind that all are compared with shows how much is
noise.
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
"""Standard deviations of a normal distribution within which 95 % lie."""
_NUM_CORES = 4
"""The most CPU cores that an engine's process uses."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The result of one engine."""

    tok_s: float
    """Tokens per second; the median of the rounds."""
    speed_up: float
    """The ratio to the baseline's speed in the same round; the median of the rounds."""
    interval: tuple[float, float]
    """The confidence interval (95 %) of that median."""
    in_all: float
    """The ratio by the time of all rounds, in which rare events count, and noise as well."""
    num_rounds: int

    def num_rounds_for(self, precision: float) -> int:
        """About how many rounds of such noise make half of ``interval`` as narrow as ``precision``:
        it shrinks with the square root of their number."""
        low, high = self.interval
        return math.ceil(self.num_rounds * ((high - low) / 2 / precision) ** 2)


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
    """Compare engines. Each one does the work of a round, given its number, and returns the number
    of tokens generated.

    baseline: the names of the engines that all are compared with, by the mean of their times; these
    themselves are compared with the first of them. Rounds are repeated until half of each
    ``interval`` is at most ``precision``, or ``max_s`` seconds have passed, but at least
    ``min_rounds`` times.
    """
    taken: dict[str, list[float]] = {name: [] for name in engines}
    """The seconds per token in each round, by engine."""
    names = list(engines)
    end = clock() + max_s
    number = -num_warm_up
    while True:
        # The order changes, so that each engine runs after each other one.
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
            len(found),
        )
    return standings


def median_interval(ordered: Sequence[float]) -> tuple[float, float]:
    """The confidence interval (95 %) of the median of the distribution that these were drawn from,
    whatever its form: two of them, at a distance from the middle that follows from the binomial
    distribution (Conover, "Practical Nonparametric Statistics", 3.2). ordered: ascending."""
    count = len(ordered)
    place = max(0, math.floor((count - _DEVIATIONS * math.sqrt(count)) / 2))
    return ordered[place], ordered[count - 1 - place]


def settle_down(*, on_gpu: bool) -> None:
    """Reduce what makes rounds differ in this process: garbage collection of everything that was
    loaded and, with a GPU, moves between the cores of a large host. Call it when everything is
    loaded."""
    tune_collector()
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if on_gpu and len(cores) >= 2 * _NUM_CORES:
        # Interrupts and other processes tend to run on the first ones.
        os.sched_setaffinity(0, cores[-_NUM_CORES:])
