"""A decoding engine in virtual time: what ``AdaptiveLength`` decides, and what comes of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from engine.spec.adaptive import AdaptiveLength
from engine.spec.costs import StepCosts
from engine.spec.planned_step import PlannedStep

BATCHES = (1, 8, 32, 64, 128, 256)
LENGTHS = (0, 1, 2, 3, 4, 5)
# An 8B model on an H200, milliseconds: as measured up to a batch of 64 for 0, 3, 4 and 5 drafts of
# an EAGLE-3 head, and as its products grow for the rest. Above 128 there are no graphs.
H200_MS = (
    (4.31, 4.62, 5.40, 6.31, 8.80, 13.5),
    (4.75, 5.60, 6.80, 8.80, 14.0, 26.0),
    (4.97, 6.40, 8.00, 11.0, 18.5, 36.0),
    (5.19, 7.20, 9.18, 13.3, 24.0, 46.0),
    (5.57, 8.09, 10.9, 16.8, 30.0, 57.0),
    (5.76, 9.00, 12.1, 18.9, 35.0, 68.0),
)
H200 = StepCosts(BATCHES, LENGTHS, [[ms / 1000 for ms in row] for row in H200_MS])


def padded(costs: StepCosts) -> StepCosts:
    """Where steps run as graphs."""
    return replace(costs, is_padded=True)


Rates = Callable[[float], Sequence[float]]
"""From the seconds gone by to the chance of each draft if those before it are right."""


def constant(*rates: float) -> Rates:
    return lambda now: rates


def tokens_a_step(rates: Sequence[float], length: int) -> float:
    tokens = chance = 1.0
    for place in range(length):
        chance *= rates[min(place, len(rates) - 1)]
        tokens += chance
    return tokens


@dataclass
class Run:
    """Every request of a batch drafts, as with a network."""

    table: StepCosts
    """What the engine measured when it started."""
    batch: int
    rates: Rates
    true: StepCosts | None = None
    """What steps really take; None: as the table says."""
    jitter: float = 0.05
    transition_s: float = 0.002
    """What the first step with drafts takes longer, after others: nothing was overlapped."""
    seed: int = 0
    now: float = 0.0
    num_tokens: float = 0.0
    """On average, as ``now`` is the time that steps take on average: luck is for what is learned,
    not for the score."""
    num_probes: int = 0
    steps: list[int] = field(default_factory=list)
    """Drafts for each request."""

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.adaptive = AdaptiveLength(self.table, by_request=False)

    def mean_s(self, step: PlannedStep) -> float:
        true = self.true or self.table
        seconds = true.seconds(step.batch, step.length, step.num_drafts)
        if step.length and self.steps and not self.steps[-1]:
            seconds += self.transition_s
        return seconds

    def measured(self, seconds: float) -> float:
        if self.rng.random() < 0.01:
            seconds *= 4  # Something else had the processor.
        return seconds * self.rng.uniform(1 - self.jitter, 1 + self.jitter)

    def step(self, fixed: int | None = None) -> None:
        most, batch = self.table.lengths[-1], self.batch
        length = self.adaptive.uniform_length(batch, most) if fixed is None else fixed
        num_drafting, is_probe = batch, False
        if length == 0 and fixed is None and (probe := self.adaptive.probe_length(batch, most)):
            length, is_probe, num_drafting = probe, True, min(batch, 8)
        step = PlannedStep(batch, length, num_drafting * length, self.now, is_probe)
        self.adaptive.planned(step)
        outcomes = [(str(i), length, self._right(length)) for i in range(num_drafting) if length]
        seconds = self.mean_s(step)
        self.now += seconds
        self.num_tokens += batch + num_drafting * self._mean_right(length)
        self.num_probes += is_probe
        self.steps.append(length)
        self.adaptive.observe(step, self.measured(seconds), outcomes)

    def _mean_right(self, length: int) -> float:
        return tokens_a_step(self.rates(self.now), length) - 1

    def _right(self, length: int) -> int:
        rates = self.rates(self.now)
        for place in range(length):
            if self.rng.random() >= rates[min(place, len(rates) - 1)]:
                return place
        return length

    def speed(self, until: float, fixed: int | None = None) -> float:
        """Tokens a second from now on."""
        began, before = self.now, self.num_tokens
        while self.now < until:
            self.step(fixed)
        return (self.num_tokens - before) / (self.now - began)


def best_fixed(true: StepCosts, batch: int, rates: Sequence[float]) -> tuple[float, int]:
    """Tokens a second on average of the best length, and that length."""

    def speed(length: int) -> float:
        return batch * tokens_a_step(rates, length) / true.seconds(batch, length, batch * length)

    return max((speed(length), length) for length in range(true.lengths[-1] + 1))
