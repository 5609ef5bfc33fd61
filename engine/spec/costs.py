"""What a step costs with and without drafts: measured at start-up, and compared while running.

The table from start-up is of the device alone. In a running engine a step with drafts takes longer
than that, because the host's work is not hidden behind the step before, and because a draft network
must catch up with new prompts. What this comes to follows from steps with and without drafts that
were timed shortly after each other, so that it does not depend on how fast the machine is now."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from engine.scheduler.plan import Chunk

LOOK = 8
"""Steps of a batch size and kind that make one measurement."""
# Measurements with and without drafts are compared if no more timed steps lie between their ends.
_MAX_APART = 128
# A step counts as no longer than so many times the median, as another process may have had the
# processor.
_OUTLIER = 4.0
# About so many of the latest comparisons count; of one size of batches, beside so many of all.
_MAX_COMPARED, _PRIOR_WEIGHT = 4.0, 2.0
# What is believed less of a ratio whenever it is doubted.
_DOUBT = 0.2
# No comparison counts as less: the host's work for drafts may hide, but does not vanish.
_LEAST_RATIO = 0.8
# About so many of the latest newcomers count. Until there were ``_FEW``, with and without drafts,
# they are taken to cost the same with drafts; at most, they cost so many steps more.
_MEMORY, _FEW, _MAX_MORE = 64.0, 2.0, 4.0
# What is left of the numbers of newcomers and of tokens after a timed step.
_KEPT = 0.98
# The weight of the latest time in what beginning to draft costs, and the most steps that it counts
# as: the first time may take far longer.
_LATEST, _MAX_START = 0.25, 8.0


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of steps as measured at start-up, drafting included."""

    batches: Sequence[int]
    """Numbers of requests, ascending."""
    lengths: Sequence[int]
    """Drafts for each request, ascending from 0."""
    taken_s: Sequence[Sequence[float]]
    """[lengths][batches]: seconds of a step."""
    is_padded: bool = False
    """Whether all requests are padded to the longest, and that to the next of ``lengths``, as in
    CUDA graphs. If not, the time depends on the number of drafts of all requests together."""

    @property
    def choices(self) -> Sequence[int]:
        """The numbers of drafts to choose from, ascending."""
        return self.lengths[1:] if self.is_padded else range(1, self.lengths[-1] + 1)

    def seconds(self, batch: int, longest: int, num_drafts: int) -> float:
        """Seconds of a step of ``batch`` requests with ``num_drafts`` drafts in all, at most
        ``longest`` for a request."""
        by_length = [_at(self.batches, row, batch) for row in self.taken_s]
        if self.is_padded:
            return by_length[bisect_left(self.lengths, longest)]
        return _interpolate(self.lengths, by_length, num_drafts / batch)


def _at(xs: Sequence[int], ys: Sequence[float], x: int) -> float:
    return ys[-1] * x / xs[-1] if x > xs[-1] else _interpolate(xs, ys, x)


def _interpolate(xs: Sequence[int], ys: Sequence[float], x: float) -> float:
    index = bisect_left(xs, x)
    if index == 0:
        return ys[0]
    if index == len(xs):
        return ys[-1]
    share = (x - xs[index - 1]) / (xs[index] - xs[index - 1])
    return ys[index - 1] + share * (ys[index] - ys[index - 1])


_ALL = -1


class Noted(NamedTuple):
    """A step that is learned from."""

    chunks: Sequence[Chunk]
    forced: set[str]
    """Ids of the requests whose drafts a grammar forced: their acceptance says nothing."""
    began_s: float
    """When the core began to plan it, or the first of several that follow without a pause."""
    has_drafts: bool
    """It has drafts, or was planned late in order to have some."""
    drafting: bool
    """Drafts are made at this time, if not in this step."""
    newcomers: float
    """Requests that have a prompt in it or had one in the step before, each of which counts as
    half."""
    is_usual: bool
    """Neither it nor the step before has prompts, and both have drafts or both have none."""


class _Kind(NamedTuple):
    """A kind of steps that are measured together."""

    size: int
    """Of the batch: the power of two, rounded up."""
    drafting: bool
    is_mixed: bool
    """Whether steps with prompts, and those after them, count as well."""


class _Mean(NamedTuple):
    factor: float
    """How many times as long as a step without drafts in the table such a step takes, less what
    its drafts cost the device according to the table."""
    at: int
    """The number of timed steps by then."""


class _Ratio:
    """How many times as long as a step without drafts one with drafts takes, apart from what the
    drafts cost the device."""

    __slots__ = ("value", "weight")

    def __init__(self) -> None:
        self.value, self.weight = 1.0, 0.0

    def add(self, found: float) -> None:
        self.weight = min(self.weight + 1, _MAX_COMPARED)
        self.value += (found - self.value) / self.weight

    def blended(self, prior: float) -> float:
        return (self.weight * self.value + _PRIOR_WEIGHT * prior) / (self.weight + _PRIOR_WEIGHT)

    def doubt(self) -> None:
        self.value -= _DOUBT * (self.value - 1)
        self.weight = min(self.weight, 1.0)


@dataclass(slots=True)
class _Newcomers:
    """Decayed sums over requests that were admitted while drafts were made, or while none were."""

    number: float = 0.0
    steps: float = 0.0
    """What they cost beyond the usual time, in steps without drafts."""

    def add(self, number: float, steps: float) -> None:
        self.number += number
        self.steps += steps
        if self.number > _MEMORY:
            self.steps *= _MEMORY / self.number
            self.number = _MEMORY


class LearnedCosts:
    """Compares steps with and without drafts."""

    def __init__(self, table: StepCosts) -> None:
        self.table = table
        self._num_steps = 0
        self._recent: dict[_Kind, list[float]] = {}
        """Factors of the timed steps that make the next measurement, see ``_Mean``."""
        self._means: dict[_Kind, _Mean] = {}
        self._ratios: dict[bool, defaultdict[int, _Ratio]] = {
            is_mixed: defaultdict(_Ratio) for is_mixed in (False, True)
        }
        """By ``_Kind.is_mixed`` and ``size``; that of all sizes is at ``_ALL``."""
        self._plain: dict[int, float] = {}
        """By size: how many times as long as the table says a step without drafts takes."""
        self._newcomers = {True: _Newcomers(), False: _Newcomers()}
        """By whether drafts were made."""
        self.start = 0.0
        """How much longer the first step with drafts takes than those after it, in steps without
        drafts: a network catches up with what was generated meanwhile."""
        self._came: defaultdict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
        """By size: decayed sums of newcomers and of tokens over timed steps. Where none come, as
        after many that came at once, drafts do not make them wait."""
        self._more = lru_cache(4096)(self._more_in_table)

    def _more_in_table(self, batch: int, longest: int, num_drafts: int) -> float:
        seconds = self.table.seconds
        return seconds(batch, longest, num_drafts) / seconds(batch, 0, 0) - 1

    def _of_drafts(self, batch: int, longest: int, num_drafts: int) -> float:
        """What drafts cost the device, in steps without drafts in the table. Where steps are
        shorter than in the table, the device is faster, and drafts cost less, too; where they are
        longer, that may be due to the host or to long texts."""
        faster = min(1.0, _nearest(self._plain, _size(batch)))
        return faster * self._more(batch, longest, num_drafts)

    def plain_s(self, batch: int) -> float:
        """Seconds of a step without drafts."""
        factor = _nearest(self._plain, _size(batch))
        return factor * self.table.seconds(batch, 0, 0)

    def relative(self, batch: int, longest: int, num_drafts: int) -> float:
        """What a step with such drafts takes, in steps without drafts."""
        size = _size(batch)
        drafts = self._of_drafts(batch, longest, num_drafts) / _nearest(self._plain, size)
        return max(1.0, self._ratio(size) + drafts)

    def _ratio(self, size: int) -> float:
        # The time of steps without prompts says more, where there are such steps.
        known = self._ratios[False] or self._ratios[True]
        if not known:
            return 1.0
        overall = known[_ALL].value
        return known[size].blended(overall) if size in known else overall

    def doubt(self) -> None:
        """What was learned about steps with drafts is old."""
        for known in self._ratios.values():
            for ratio in known.values():
                ratio.doubt()

    def of_newcomers(self, batch: int) -> float:
        """What newcomers cost more while drafts are made, for each token of every request of the
        batch, in steps without drafts."""
        with_drafts, without = self._newcomers[True], self._newcomers[False]
        if not self._ratios[False] or min(with_drafts.number, without.number) < _FEW:
            return 0.0
        more = with_drafts.steps / with_drafts.number - without.steps / without.number
        num_came, num_tokens = self._came[_size(batch)]
        return batch * min(max(more, 0.0), _MAX_MORE) * num_came / max(num_tokens, 1.0)

    def observe(self, step: Noted, seconds: float, num_right: int) -> None:
        """A step is over. num_right: its accepted drafts."""
        self._num_steps += 1
        batch = len(step.chunks)
        size = _size(batch)
        factor = seconds / self.table.seconds(batch, 0, 0)
        if step.has_drafts:
            drafts = [len(chunk.draft_token_ids) for chunk in step.chunks]
            factor -= self._of_drafts(batch, max(drafts), sum(drafts))
        if step.is_usual:
            self._add(_Kind(size, step.has_drafts, is_mixed=False), factor)
        self._add(_Kind(size, step.drafting, is_mixed=True), factor)
        num_came, num_tokens = self._came[size]
        self._came[size] = [
            _KEPT * num_came + step.newcomers,
            _KEPT * num_tokens + batch + num_right,
        ]
        usual = self._means.get(_Kind(size, step.has_drafts, is_mixed=False))
        if usual is None or step.is_usual:
            return
        more = (factor - usual.factor) / _nearest(self._plain, size)
        if step.newcomers:
            self._newcomers[step.drafting].add(step.newcomers, more)
        elif step.has_drafts:
            self.start += _LATEST * (min(max(more, 0.0), _MAX_START) - self.start)

    def _add(self, kind: _Kind, factor: float) -> None:
        recent = self._recent.setdefault(kind, [])
        recent.append(factor)
        if len(recent) == (2 * LOOK if kind.is_mixed else LOOK):
            del self._recent[kind]
            mean = median(recent)
            if kind.is_mixed:  # Prompts must count, too.
                mean = sum(min(each, _OUTLIER * mean) for each in recent) / len(recent)
            mean = max(mean, 1e-9)
            self._means[kind] = _Mean(mean, self._num_steps)
            if not (kind.drafting or kind.is_mixed):
                self._plain[kind.size] = mean
            self._compare(kind)

    def _compare(self, kind: _Kind) -> None:
        size, is_mixed = kind.size, kind.is_mixed
        plain = self._means.get(_Kind(size, drafting=False, is_mixed=is_mixed))
        drafted = self._means.get(_Kind(size, drafting=True, is_mixed=is_mixed))
        if plain is None or drafted is None or abs(plain.at - drafted.at) > _MAX_APART:
            return
        found = max(drafted.factor / plain.factor, _LEAST_RATIO)
        self._ratios[is_mixed][size].add(found)
        self._ratios[is_mixed][_ALL].add(found)


def _size(batch: int) -> int:
    return (batch - 1).bit_length()


def _nearest(known: Mapping[int, float], size: int) -> float:
    """What is known of the most similar size; 1 if nothing is."""
    return known[min(known, key=lambda other: abs(other - size))] if known else 1.0
