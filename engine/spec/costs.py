"""What steps take, with drafts and without: as measured at start-up, corrected by what they take.

The table of the start-up knows short texts, an idle host and no scheduler. What a step takes later
is more, by some time that differs with the batch and with the drafts, as beside steps without
drafts the host's work is hidden. So each kind of step has a correction of its own.
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

# In place of a length: of a step in which requests have different numbers of drafts.
_MIXED = -1

# What one measured step weighs against the next one of its kind, and against the next of any.
_DECAY, _OVERALL_DECAY = 0.95, 0.98
# And how fast it is forgotten where none of its kind follow: by this in every other step.
_AGEING = 0.99
_PRIOR_WEIGHT = 2.0
# Of steps without drafts so many will do to know without what others take. As they are measured
# anew from time to time, that is not forgotten until then, and not all of it.
_SURE, _KEPT = 4, 0.2
# What a step counts for its kind whose difference was put down to the pace.
_PACED_SHARE = 0.1
# A step that takes this many times what was expected, or longer, counts as if it took just that:
# something else had the processor.
OUTLIER = 1.3
# But what was expected may be far off, by so many times, as where the host takes longer than the
# device: if the median of the first steps of a kind says so, it counts.
_FAR_OFF, _NUM_FIRST = 1.7, 8


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds that a step of so many requests takes, its drafting included, as measured when the
    engine started."""

    batches: Sequence[int]
    """Ascending."""
    lengths: Sequence[int]
    """Drafts for each request, ascending from 0."""
    taken_s: Sequence[Sequence[float]]
    """[lengths][batches]"""
    is_padded: bool = False
    """Whether a step takes as long as if all requests had as many drafts as the one with most, and
    as many as the next of ``lengths``. If not, only the number of drafts in all counts."""

    @property
    def choices(self) -> Sequence[int]:
        """The lengths worth a choice, ascending from 1."""
        return self.lengths[1:] if self.is_padded else range(1, self.lengths[-1] + 1)

    def kind(self, batch: int, longest: int, num_drafts: int) -> tuple[int, float]:
        """Which kind of step it is, even or not, and the mean length that it pays for."""
        if self.is_padded:
            length = self.lengths[bisect_left(self.lengths, longest)]
            return length, length
        is_uniform = num_drafts == batch * longest
        return longest if is_uniform else _MIXED, num_drafts / batch

    def seconds(self, batch: int, longest: int, num_drafts: int) -> float:
        """Of a step with ``num_drafts`` in all, at most ``longest`` for a request."""
        _, length = self.kind(batch, longest, num_drafts)
        return _interpolate(self.lengths, self.by_length(batch), length)

    def by_length(self, batch: int) -> list[float]:
        """[lengths]: of steps of this batch."""
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
    """Decaying means of measured and of expected seconds.

    What is above the expectation is taken to be added: the host's work, or longer texts. So a step
    that should take longer than the mean is off by no more seconds than that, and one that should
    take less by no larger a part. What is below is a part of it: the device is as much faster.
    """

    __slots__ = ("_expected_s", "_first", "_measured_s", "num_steps", "seen", "weight")

    def __init__(self) -> None:
        self._first: list[float] = []
        """What the first steps took beyond what the table says."""
        self._measured_s = self._expected_s = self.weight = 0.0
        self.num_steps = 0
        self.seen = 0
        """The number of the last step that counted."""

    def seconds(self, expected_s: float) -> float:
        """What a step takes of which the table expects this."""
        if not self.weight:
            return expected_s
        mean_s = self._expected_s / self.weight
        more_s = self._measured_s / self.weight - mean_s
        share = expected_s / mean_s
        return expected_s + more_s * (share if more_s < 0 else min(1.0, share))

    def blended(self, expected_s: float, prior_s: float, ageing: float = 1.0) -> float:
        """The same, if it is taken for ``prior_s`` until more is known. ageing: what is left of the
        weight."""
        weight = ageing * self.weight
        found = weight * self.seconds(expected_s) + _PRIOR_WEIGHT * prior_s
        return found / (weight + _PRIOR_WEIGHT)

    def begin(self, measured_s: float, expected_s: float, num_steps: int) -> float | None:
        """One of the first observations; returns what all of them say that such a step takes, if
        they are enough to say anything."""
        self._first += [measured_s - expected_s] * num_steps
        return expected_s + median_low(self._first) if len(self._first) > 1 else None

    def restart(self, measured_s: float, expected_s: float) -> None:
        """As if all of the first steps had taken this."""
        self.weight = len(self._first)
        self._measured_s, self._expected_s = self.weight * measured_s, self.weight * expected_s

    def observe(self, measured_s: float, expected_s: float, kept: float, added: float) -> None:
        """kept: of the weight of all before."""
        self._measured_s = kept * self._measured_s + added * measured_s
        self._expected_s = kept * self._expected_s + added * expected_s
        self.weight = kept * self.weight + added

    def weaken(self, share: float) -> None:
        """Leave so much of the weight."""
        self._measured_s *= share
        self._expected_s *= share
        self.weight *= share


def _weights(decay: float, num_steps: float) -> tuple[float, float]:
    """Kept and added, if the same happens so many times."""
    kept: float = decay**num_steps
    return kept, (1 - kept) / (1 - decay)


class LearnedCosts:
    """``StepCosts`` and what was learned of each kind of step: its batch, within a factor of two,
    and its length, if that is even. Kinds not seen yet are taken for as much off as those seen.

    What it says is to be compared: seconds at the usual ``pace``.
    """

    def __init__(self, table: StepCosts) -> None:
        assert table.lengths[0] == 0
        assert all(low < high for low, high in pairwise(table.lengths))
        self.table = table
        self._kinds: dict[tuple[int, int], _Correction] = {}
        self._plain, self._drafted = _Correction(), _Correction()
        self._latest: dict[int, _Correction] = {}
        """Of each size of batches, that of the last steps with drafts."""
        self._num_steps = 0
        self._pace = Pace()
        self._by_length: dict[int, list[float]] = {}
        """What the table says of batches seen: it is asked many times in a step."""
        self._known: dict[tuple[int, int, int], float] = {}
        """Likewise, what steps take, until more is learned."""

    @property
    def pace(self) -> float:
        """Times as long as usual that steps take now."""
        return self._pace.value

    def seconds(self, batch: int, longest: int, num_drafts: int) -> float:
        """As ``StepCosts.seconds``."""
        asked = batch, longest, num_drafts
        seconds = self._known.get(asked)
        if seconds is None:
            kind, length = self.table.kind(*asked)
            seconds = self._corrected(batch, kind, self._expected(batch, length))
            self._known[asked] = seconds
        return seconds

    def uniform(self, batch: int, length: int) -> float:
        return self.seconds(batch, length, batch * length)

    def hopeful(self, batch: int, length: int) -> float:
        """As ``even``, but if drafts turn out to be as far from the table as steps without them:
        what is not known is worth a try."""
        plain_too = self._corrected(batch, 0, self._expected(batch, length))
        return min(self.uniform(batch, length), plain_too)

    def num_seen(self, batch: int, longest: int, num_drafts: int) -> int:
        """Steps of this kind that were measured."""
        kind, _ = self.table.kind(batch, longest, num_drafts)
        of_kind = self._kinds.get(((batch - 1).bit_length(), kind))
        return 0 if of_kind is None else of_kind.num_steps

    def observe(
        self, batch: int, longest: int, num_drafts: int, seconds: float, num_steps: int = 1
    ) -> None:
        """So many steps took so long each, at whatever pace."""
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
            if num_drafts == 0:
                # What steps without drafts took long ago counts less than what they take now.
                of_kind.weaken(max(_KEPT, _AGEING ** (self._num_steps - num_steps - of_kind.seen)))
            share = _PACED_SHARE if is_paced else 1.0
            of_kind.observe(found_s, expected_s, *_weights(_DECAY, share * num_steps))
        of_kind.num_steps += num_steps
        of_kind.seen = self._num_steps
        if num_drafts:
            self._latest[(batch - 1).bit_length()] = of_kind
        overall = self._drafted if kind else self._plain
        overall.observe(found_s, expected_s, *_weights(_OVERALL_DECAY, num_steps))

    def _expected(self, batch: int, length: float) -> float:
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
            # Longer texts, say, make all steps of such a batch longer.
            prior_s = max(prior_s, plain.seconds(expected_s))
        if of_kind is None:
            return prior_s
        ageing = _AGEING ** (self._num_steps - of_kind.seen)
        return of_kind.blended(expected_s, prior_s, ageing)

    def _prior_s(self, size: int, kind: int, expected_s: float) -> float:
        """What is thought of a kind of which nothing is known: it is as far from the table as other
        numbers of drafts are now for such a batch, if these are known, or else for any."""
        # The table knows no host. Before any step without drafts was measured, those with drafts
        # tell of it: or else they would be compared with what nothing takes.
        overall = self._plain if kind == 0 and self._plain.weight else self._drafted
        prior_s = overall.blended(expected_s, expected_s)
        latest = self._latest.get(size) if kind else None
        if latest is not None and latest.num_steps >= _SURE:
            ageing = _AGEING ** (self._num_steps - latest.seen)
            prior_s = latest.blended(expected_s, prior_s, ageing)
        return prior_s
