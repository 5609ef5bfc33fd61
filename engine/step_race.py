"""Compares engines that do the same steps: a stall of the host in one of them decides nothing.

A round's time has all that happens to the host in it, such as others on its cores: for a second
everything takes twice as long. Step by step such a round has hundreds of times to compare. Step i
of a round is the same work for each engine, so its times differ by what the engines differ by, and
by noise; the median of such differences, of each kind of step, knows little of noise.
"""

from __future__ import annotations

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

_NUM_RESAMPLES = 400
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
    """The ratio to the baseline's speed, by the median of each kind of step."""
    interval: tuple[float, float]
    """The confidence interval (95 %), from rounds drawn anew (a bootstrap)."""
    num_rounds: int
    """Rounds in which it did the same steps as the baseline."""


def compare_steps(
    rounds: Sequence[Mapping[str, Sequence[Step]]], baseline: Sequence[str], *, seed: int = 0
) -> dict[str, StepStanding]:
    """Compare each engine with those of the baseline; these with the first of them.

    rounds: of each the steps by engine. Left out are engines with other steps than the baseline, as
    drafts that are right make them; what is expected is that none are.
    """
    rng = np.random.default_rng(seed)
    found = {}
    for name in rounds[0] if rounds else ():
        usual = list(baseline[:1]) if name in baseline else list(baseline)
        alike = [each for each in rounds if _are_alike([each[n] for n in (name, *usual)])]
        if len(alike) * 2 < len(rounds):
            continue
        by_kind = _pair(alike, name, usual)
        drawn = rng.integers(len(alike), size=(_NUM_RESAMPLES, len(alike)))
        ratios = [_ratio(by_kind, np.bincount(one, minlength=len(alike))) for one in drawn]
        low, high = np.percentile(ratios, [_TAIL, 100 - _TAIL])
        ratio = _ratio(by_kind, np.ones(len(alike), np.int64))
        found[name] = StepStanding(ratio, (float(low), float(high)), len(alike))
    return found


def _are_alike(engines: Sequence[Sequence[Step]]) -> bool:
    """Whether they did the same steps."""
    first, *others = ([step.kind for step in steps] for steps in engines)
    return all(kinds == first for kinds in others)


class _Pairs(NamedTuple):
    """Steps of one kind: [num_steps] each."""

    rounds: np.ndarray[tuple[int], np.dtype[np.int64]]
    usual_s: np.ndarray[tuple[int], np.dtype[np.float64]]
    """Of the baseline."""
    more_s: np.ndarray[tuple[int], np.dtype[np.float64]]
    """What the engine takes beyond that."""


def _pair(
    rounds: Sequence[Mapping[str, Sequence[Step]]], name: str, usual: Sequence[str]
) -> list[_Pairs]:
    by_kind: defaultdict[Kind, list[tuple[int, float, float]]] = defaultdict(list)
    for number, each in enumerate(rounds):
        for other in usual:
            # Not with their mean: of two engines one is stalled more often than a single one is.
            for step, usual_step in zip(each[name], each[other], strict=True):
                usual_s = usual_step.seconds
                by_kind[step.kind].append((number, usual_s, step.seconds - usual_s))
    return [
        _Pairs(*(np.array(column) for column in zip(*pairs, strict=True)))
        for pairs in by_kind.values()
    ]


def _ratio(by_kind: Sequence[_Pairs], counts: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float:
    """counts: how often each round counts."""
    usual_s = more_s = 0.0
    for pairs in by_kind:
        weights = counts[pairs.rounds]
        if total := int(weights.sum()):
            usual_s += total * float(np.median(np.repeat(pairs.usual_s, weights)))
            more_s += total * float(np.median(np.repeat(pairs.more_s, weights)))
    return usual_s / (usual_s + more_s)
