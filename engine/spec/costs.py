"""The time of a step, with and without drafts: measured at start-up, and corrected while running.

The table from the start-up is of short texts and an idle host, without a scheduler. Real steps take
longer, by a time that depends on the batch and on the drafts: beside steps without drafts, for
instance, the host's work is hidden. So each kind of step has a correction of its own.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_low
from typing import TYPE_CHECKING

from engine.spec.pace import Pace

if TYPE_CHECKING:
    from collections.abc import Sequence

# The kind of a step in which requests have different numbers of drafts.
_MIXED = -1

# What is left of a correction's weight after a step of its kind; and of the overall correction's.
_DECAY, _OVERALL_DECAY = 0.95, 0.98
# What is left of a correction's weight after a step of another kind.
_AGEING = 0.99
# Weight of the prior, in steps.
_PRIOR_WEIGHT = 2.0
# With this many steps without drafts, their correction is used without a prior. It does not age
# until such steps are measured anew; then at least this part of its weight is kept.
_SURE, _KEPT = 4, 0.2
# If the last steps with drafts of a kind are more steps ago than this, what they took counts for as
# little as this, at least, beside what such steps take now.
_LONG_AGO, _KEPT_DRAFTED = 32, 0.05
# What a step counts for the correction of its kind, if it was used to update the pace.
_PACED_SHARE = 0.1
# A step that takes longer than this many times the expected time counts as if it took just that:
# another process had the processor.
OUTLIER = 1.3
# But the expectation itself may be wrong by this factor or more, for instance where the host is
# slower than the device. The median of the first steps of a kind tells: then the correction starts
# from it.
_FAR_OFF, _NUM_FIRST = 1.7, 8


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

    def kind(self, batch: int, longest: int, num_drafts: int) -> tuple[int, float]:
        """(kind, length): the drafts of each request, or ``_MIXED`` if they differ; and the mean
        number of drafts for which the step takes the time."""
        if self.is_padded:
            length = self.lengths[bisect_left(self.lengths, longest)]
            return length, length
        is_uniform = num_drafts == batch * longest
        return longest if is_uniform else _MIXED, num_drafts / batch

    def seconds(self, batch: int, longest: int, num_drafts: int) -> float:
        """Seconds of a step of ``batch`` requests with ``num_drafts`` drafts in all, at most
        ``longest`` for a request."""
        _, length = self.kind(batch, longest, num_drafts)
        return _interpolate(self.lengths, self.by_length(batch), length)

    def by_length(self, batch: int) -> list[float]:
        """[lengths]: seconds of steps of this batch."""
        return [_at(self.batches, row, batch) for row in self.taken_s]


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


class _Correction:
    """Corrects the expected seconds of a kind of step by decaying means of measured and of expected
    seconds.

    If steps take longer than expected, the difference is assumed to be a constant: the host's work,
    or longer texts. For a step with a larger expectation than the mean, as many seconds are added;
    for one with a smaller, the same share. If steps take less than expected, the ratio is assumed
    to be constant: the device is that much faster."""

    __slots__ = ("_expected_s", "_first", "_measured_s", "num_steps", "seen", "weight")

    def __init__(self) -> None:
        self._first: list[float] = []
        """Measured minus expected seconds of the first steps."""
        self._measured_s = self._expected_s = self.weight = 0.0
        self.num_steps = 0
        """Steps that were measured."""
        self.seen = 0
        """Number of the last of these, among the steps of all kinds."""

    def seconds(self, expected_s: float) -> float:
        """The corrected seconds of a step for which the table says ``expected_s``."""
        if not self.weight:
            return expected_s
        mean_s = self._expected_s / self.weight
        more_s = self._measured_s / self.weight - mean_s
        share = expected_s / mean_s
        return expected_s + more_s * (share if more_s < 0 else min(1.0, share))

    def blended(self, expected_s: float, prior_s: float, ageing: float = 1.0) -> float:
        """As ``seconds``, with a prior. ageing: the part of the weight that is left by now."""
        weight = ageing * self.weight
        found = weight * self.seconds(expected_s) + _PRIOR_WEIGHT * prior_s
        return found / (weight + _PRIOR_WEIGHT)

    def begin(self, measured_s: float, expected_s: float, num_steps: int) -> float | None:
        """Note some of the first steps; returns the seconds that their median implies for
        ``expected_s``, or None if there was only one so far."""
        self._first += [measured_s - expected_s] * num_steps
        return expected_s + median_low(self._first) if len(self._first) > 1 else None

    def restart(self, measured_s: float, expected_s: float) -> None:
        """Start anew, as if each of the first steps had taken ``measured_s``."""
        self.weight = len(self._first)
        self._measured_s, self._expected_s = self.weight * measured_s, self.weight * expected_s

    def observe(self, measured_s: float, expected_s: float, kept: float, added: float) -> None:
        """Add a measurement. kept: the part of the earlier weight that is left; added: its own."""
        self._measured_s = kept * self._measured_s + added * measured_s
        self._expected_s = kept * self._expected_s + added * expected_s
        self.weight = kept * self.weight + added

    def weaken(self, share: float) -> None:
        """Multiply the weight by ``share``."""
        self._measured_s *= share
        self._expected_s *= share
        self.weight *= share


def _weights(decay: float, num_steps: float) -> tuple[float, float]:
    """(kept, added) of ``_Correction.observe`` for ``num_steps`` equal measurements at once."""
    kept: float = decay**num_steps
    return kept, (1 - kept) / (1 - decay)


class LearnedCosts:
    """``StepCosts`` with corrections for each kind of step: by its batch, rounded up to a power of
    two, and its drafts per request. Kinds without measurements get the corrections of the others.

    All results are seconds at the usual ``pace``, so that they can be compared.
    """

    def __init__(self, table: StepCosts) -> None:
        assert table.lengths[0] == 0
        assert all(low < high for low, high in pairwise(table.lengths))
        self.table = table
        self._kinds: dict[tuple[int, int], _Correction] = {}
        self._plain, self._drafted = _Correction(), _Correction()
        self._latest: dict[int, _Correction] = {}
        """By size of the batch: the correction of the last steps with drafts."""
        self._num_steps = 0
        self._pace = Pace()
        self._by_length: dict[int, list[float]] = {}
        """Cache of ``table.by_length``, which is needed many times a step."""
        self._known: dict[tuple[int, int, int], float] = {}
        """Cache of ``seconds``, cleared by every observation."""

    @property
    def pace(self) -> float:
        """How many times as long as usual steps take now, see ``Pace``."""
        return self._pace.value

    def seconds(self, batch: int, longest: int, num_drafts: int) -> float:
        """As ``StepCosts.seconds``, corrected."""
        asked = batch, longest, num_drafts
        seconds = self._known.get(asked)
        if seconds is None:
            kind, length = self.table.kind(*asked)
            seconds = self._corrected(batch, kind, self._expected(batch, length))
            self._known[asked] = seconds
        return seconds

    def uniform(self, batch: int, length: int) -> float:
        """Seconds of a step in which each request has ``length`` drafts."""
        return self.seconds(batch, length, batch * length)

    def hopeful(self, batch: int, length: int) -> float:
        """As ``uniform``, but optimistic: as if steps with drafts needed no more correction than
        those without. What is not known yet is worth a try."""
        plain_too = self._corrected(batch, 0, self._expected(batch, length))
        return min(self.uniform(batch, length), plain_too)

    def num_seen(self, batch: int, longest: int, num_drafts: int) -> int:
        """How many steps of this kind were measured."""
        kind, _ = self.table.kind(batch, longest, num_drafts)
        of_kind = self._kinds.get(((batch - 1).bit_length(), kind))
        return 0 if of_kind is None else of_kind.num_steps

    def observe(
        self, batch: int, longest: int, num_drafts: int, seconds: float, num_steps: int = 1
    ) -> None:
        """``num_steps`` steps took ``seconds`` each, at the present pace."""
        kind, length = self.table.kind(batch, longest, num_drafts)
        known_s, surprise = self.seconds(batch, longest, num_drafts), OUTLIER**num_steps
        self._known.clear()
        self._num_steps += num_steps
        of_kind = self._kinds.setdefault(((batch - 1).bit_length(), kind), _Correction())
        slowdown = min(max(seconds / self.pace / known_s, 1 / surprise), surprise)
        is_paced = self._pace.observe(
            slowdown, num_steps, of_kind.num_steps, has_drafts=num_drafts > 0
        )
        expected_s = self._expected(batch, length)
        likely_s: float | None = None
        if of_kind.num_steps < _NUM_FIRST:
            likely_s = of_kind.begin(seconds / self.pace, expected_s, num_steps)
        if likely_s is not None and not known_s / _FAR_OFF < likely_s < known_s * _FAR_OFF:
            found_s = max(0.0, likely_s)
            of_kind.restart(found_s, expected_s)
        else:
            found_s = min(max(seconds / self.pace, known_s / surprise), known_s * surprise)
            age = self._num_steps - num_steps - of_kind.seen
            if num_drafts == 0:
                # Measurements of steps without drafts do not age: reduce their weight now.
                of_kind.weaken(max(_KEPT, _AGEING**age))
            elif age > _LONG_AGO:
                of_kind.weaken(max(_KEPT_DRAFTED, _AGEING**age))
            share = _PACED_SHARE if is_paced else 1.0
            of_kind.observe(found_s, expected_s, *_weights(_DECAY, share * num_steps))
        of_kind.num_steps += num_steps
        of_kind.seen = self._num_steps
        if num_drafts:
            self._latest[(batch - 1).bit_length()] = of_kind
        overall = self._drafted if kind else self._plain
        overall.observe(found_s, expected_s, *_weights(_OVERALL_DECAY, num_steps))

    def _expected(self, batch: int, length: float) -> float:
        """What the table says."""
        row = self._by_length.get(batch)
        if row is None:
            row = self._by_length[batch] = self.table.by_length(batch)
        return _interpolate(self.table.lengths, row, length)

    def _corrected(self, batch: int, kind: int, expected_s: float) -> float:
        size = (batch - 1).bit_length()
        plain, of_kind = self._kinds.get((size, 0)), self._kinds.get((size, kind))
        knows_plain = plain is not None and plain.num_steps >= _SURE
        if kind == 0 and plain is not None and knows_plain:
            return plain.seconds(expected_s)
        prior_s = self._prior_s(size, kind, expected_s)
        if kind and plain is not None and knows_plain:
            # A step with drafts takes no less than one without; longer texts slow both.
            prior_s = max(prior_s, plain.seconds(expected_s))
        if of_kind is None:
            return prior_s
        ageing = _AGEING ** (self._num_steps - of_kind.seen)
        return of_kind.blended(expected_s, prior_s, ageing)

    def _prior_s(self, size: int, kind: int, expected_s: float) -> float:
        """The prior of a kind: the correction of the latest steps with drafts of such a batch, if
        known, else that of all steps."""
        # The table leaves out the host's work. Until a step without drafts was measured, the
        # correction of those with drafts is used for both: else the comparison would be unfair.
        overall = self._plain if kind == 0 and self._plain.weight else self._drafted
        prior_s = overall.blended(expected_s, expected_s)
        latest = self._latest.get(size) if kind else None
        if latest is not None and latest.num_steps >= _SURE:
            ageing = _AGEING ** (self._num_steps - latest.seen)
            prior_s = latest.blended(expected_s, prior_s, ageing)
        return prior_s
