"""Compares engines that do the same steps: a stall of the host in some of them decides nothing.

A round's time has all in it that happens to the host, such as others on its cores. Step by step it
has hundreds of times, so what it usually takes is known better: of each kind of step the median,
as often as there are such steps. What happens in few steps only, as probes do, does not count.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from engine.core import EngineCore
    from engine.messages import RequestOutput
    from engine.scheduler.plan import StepPlan

_NUM_RESAMPLES = 1000
_TAIL = 2.5
"""Per cent of the resamples on each side of the interval."""


class Kind(NamedTuple):
    """Steps that take about as long."""

    has_newcomers: bool
    size: int
    """Its requests, rounded up to a power of two; 0: nothing to compute."""


class Step(NamedTuple):
    kind: Kind
    seconds: float


class StepTimes:
    """Notes what each step of a core takes."""

    def __init__(self, core: EngineCore, clock: Callable[[], float] = time.perf_counter) -> None:
        self._steps: list[Step] = []
        self._kind = Kind(has_newcomers=False, size=0)
        self._clock = clock
        self._step, self._forward = core.step, core._runner.forward
        core.step = self._timed_step  # type: ignore[method-assign]
        core._runner.forward = self._noted_forward  # type: ignore[method-assign]

    def _noted_forward(self, plan: StepPlan) -> None:
        size = 1 << (len(plan.chunks) - 1).bit_length() if plan.chunks else 0
        self._kind = Kind(bool(plan.admissions), size)
        self._forward(plan)

    def _timed_step(self) -> list[RequestOutput]:
        self._kind = Kind(has_newcomers=False, size=0)
        began = self._clock()
        outputs = self._step()
        self._steps.append(Step(self._kind, self._clock() - began))
        return outputs

    def take(self) -> list[Step]:
        """Returns and forgets the steps since the last time."""
        steps, self._steps = self._steps, []
        return steps


@dataclass(frozen=True, slots=True)
class StepStanding:
    """The result of one engine."""

    speed_up: float
    """The ratio to the baseline's speed: the median of the rounds."""
    interval: tuple[float, float]
    """The confidence interval (95 %), from rounds drawn anew (a bootstrap)."""
    num_rounds: int
    """Rounds in which it did the same steps as the baseline."""


def compare_steps(
    rounds: Sequence[Mapping[str, Sequence[Step]]], baseline: Sequence[str], *, seed: int = 0
) -> dict[str, StepStanding]:
    """Compare each engine with those of the baseline; these with the first of them.

    rounds: of each the steps by engine. Engines that do other steps than the baseline in most
    rounds are left out: drafts that are right make other steps.
    """
    rng = np.random.default_rng(seed)
    found = {}
    for name in rounds[0] if rounds else ():
        usual = list(baseline[:1]) if name in baseline else list(baseline)
        alike = [each for each in rounds if _are_alike([each[n] for n in (name, *usual)])]
        if len(alike) * 2 < len(rounds):
            continue
        # Not with their mean: of two engines one is stalled more often than a single one is.
        ratios = np.array(
            [[_usual_s(each[u]) / _usual_s(each[name]) for u in usual] for each in alike]
        )
        drawn = rng.integers(len(alike), size=(_NUM_RESAMPLES, len(alike)))
        medians = np.median(ratios[drawn].reshape(_NUM_RESAMPLES, -1), axis=1)
        low, high = np.percentile(medians, [_TAIL, 100 - _TAIL])
        found[name] = StepStanding(float(np.median(ratios)), (float(low), float(high)), len(alike))
    return found


def _are_alike(engines: Sequence[Sequence[Step]]) -> bool:
    """Whether they did the same steps."""
    first, *others = ([step.kind for step in steps] for steps in engines)
    return all(kinds == first for kinds in others)


def _usual_s(steps: Sequence[Step]) -> float:
    """Seconds of a round in which each step takes what is usual for its kind."""
    by_kind: defaultdict[Kind, list[float]] = defaultdict(list)
    for step in steps:
        by_kind[step.kind].append(step.seconds)
    return sum(len(each) * statistics.median(each) for each in by_kind.values())
