"""Compares engines whose speeds differ by less than a machine's speed does from minute to minute.

Engines take turns in short rounds of the same work, so that other load slows a whole round down.
Each round gives one ratio for each engine, and rounds are repeated until the median of the ratios
is known well enough. A second engine of the kind that all are compared with shows how much is
noise. Rounds in which the CPU core was slow are left out (``Core``).
"""

from __future__ import annotations

import gc
import math
import os
import statistics
import time
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from engine.garbage import tune_collector

_DEVIATIONS = 1.96
"""Standard deviations of a normal distribution within which 95 % lie."""
_MIN_CORES = 8
"""With fewer CPU cores there is no choice."""
_NUM_TESTS = 3
_DISTURBED = 1.25
"""A core that takes so many times as long as usual is disturbed."""


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
    num_disturbed: int = 0
    """Rounds that were left out of all this."""

    def num_rounds_for(self, precision: float) -> int:
        """About how many rounds of such noise make half of ``interval`` as narrow as ``precision``:
        it shrinks with the square root of their number."""
        low, high = self.interval
        return math.ceil(self.num_rounds * ((high - low) / 2 / precision) ** 2)


def _test() -> float:
    """Seconds of a bit of work of Python's: the least of a few times."""
    least = math.inf
    for _ in range(_NUM_TESTS):
        began, table = time.perf_counter(), dict[int, tuple[int, list[int]]]()
        for number in range(1500):
            table[number & 1023] = number, [number]
            table.get(number * 7 & 1023)
        least = min(least, time.perf_counter() - began)
    return least


class Core:
    """Keeps this thread on a CPU core that nothing slows down, and tells if something does.

    Where others use the second thread of a core of a shared host, the first one takes twice as
    long, for a second at a time; that is a hundred times what engines differ by. What decides is
    a bit of work that has nothing to do with them, so rounds that are left out for it are left out
    by chance.
    """

    def __init__(
        self,
        cores: Sequence[int],
        test: Callable[[], float] = _test,
        move: Callable[[int], None] = lambda core: os.sched_setaffinity(0, {core}),
    ) -> None:
        """cores: to choose from; the first is preferred. test: seconds of a bit of work. move: this
        thread to a core."""
        self._cores, self._test, self._move = cores, test, move
        self._found: list[float] = []
        """What the tests took, ascending."""
        for core in reversed(cores):
            move(core)
            self.is_quiet()

    def is_quiet(self) -> bool:
        """Whether the core is about as quick as in the best quarter of the tests so far."""
        found = self._test()
        insort(self._found, found)
        return found <= _DISTURBED * self._found[len(self._found) // 4]

    def seek(self) -> None:
        """Stay on this core if it is quiet; else move to one that is, if there is one."""
        if self.is_quiet():
            return
        for core in self._cores:
            self._move(core)
            if self.is_quiet():
                return


def race(
    engines: Mapping[str, Callable[[int], int]],
    baseline: Sequence[str],
    *,
    precision: float,
    max_s: float,
    min_rounds: int = 8,
    num_warm_up: int = 2,
    core: Core | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Standing]:
    """Compare engines. Each one does the work of a round, given its number, and returns the number
    of tokens generated.

    baseline: the names of the engines that all are compared with, by the mean of their times; these
    themselves are compared with the first of them. Rounds are repeated until half of each
    ``interval`` is at most ``precision``, or ``max_s`` seconds have passed, but at least
    ``min_rounds`` times. core: whose disturbances are left out, if as many rounds had none.
    """
    taken: dict[str, list[float]] = {name: [] for name in engines}
    """The seconds per token in each round, by engine."""
    quiet: list[int] = []
    """The rounds without disturbances."""
    names = list(engines)
    end = clock() + max_s
    number = -num_warm_up
    while True:
        # The order changes, so that each engine runs after each other one.
        first = number // 2 % len(names)
        order = names[first:] + names[:first]
        is_quiet = True
        if core is not None:
            core.seek()
        for name in order if number % 2 else reversed(order):
            began = clock()
            num_tokens = engines[name](number)
            if number >= 0:
                taken[name].append((clock() - began) / num_tokens)
            is_quiet = is_quiet and (core is None or core.is_quiet())
        if number >= 0 and is_quiet:
            quiet.append(number)
        gc.collect(0)
        number += 1
        if number >= min_rounds:
            are_enough = len(quiet) >= min_rounds
            standings = _judge(taken, baseline, quiet if are_enough else range(number))
            widths = [high - low for low, high in (s.interval for s in standings.values())]
            if (are_enough and max(widths) <= 2 * precision) or clock() >= end:
                return standings


def _judge(
    taken: Mapping[str, Sequence[float]], baseline: Sequence[str], rounds: Sequence[int]
) -> dict[str, Standing]:
    """rounds: those that count."""
    num_disturbed = len(taken[baseline[0]]) - len(rounds)
    taken = {name: [found[number] for number in rounds] for name, found in taken.items()}
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
            num_disturbed,
        )
    return standings


def median_interval(ordered: Sequence[float]) -> tuple[float, float]:
    """The confidence interval (95 %) of the median of the distribution that these were drawn from,
    whatever its form: two of them, at a distance from the middle that follows from the binomial
    distribution (Conover, "Practical Nonparametric Statistics", 3.2). ordered: ascending."""
    count = len(ordered)
    place = max(0, math.floor((count - _DEVIATIONS * math.sqrt(count)) / 2))
    return ordered[place], ordered[count - 1 - place]


def settle_down(*, on_gpu: bool) -> Core | None:
    """Reduce what makes rounds differ in this process: garbage collection of everything that was
    loaded and, with a GPU, moves between the cores of a large host. Call it when everything is
    loaded. Returns the core for ``race``, if there are several to choose from."""
    tune_collector()
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if not on_gpu or len(cores) < _MIN_CORES:
        return None  # Without a GPU, an engine's own threads need the cores.
    # Interrupts and other processes tend to run on the first ones.
    return Core(cores[: -len(cores) // 2 - 1 : -1])
