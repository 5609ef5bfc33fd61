"""What steps take, with drafts and without: as measured at start-up, corrected by what they take.

The table of the start-up knows short texts, an idle host and no scheduler. What a step takes later
is more by a factor that differs with the batch and with the drafts, as beside steps without drafts
the host's work is hidden. So each kind of step has a ratio of measured to expected seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# In place of a length: of a step in which requests have different numbers of drafts.
_UNEVEN = -1

# What one measured step weighs against the next one of its kind, and against the next of any.
_DECAY, _OVERALL_DECAY = 0.95, 0.98
# And how fast it is forgotten where none of its kind follow: by this in every other step.
_AGEING = 0.99
_PRIOR_WEIGHT = 2.0
# A step that takes this many times what was expected, or longer, counts as if it took just that:
# something else had the processor.
OUTLIER = 1.3


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
        is_even = num_drafts == batch * longest
        return longest if is_even else _UNEVEN, num_drafts / batch

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


class _Ratio:
    """A decaying mean of measured over expected seconds."""

    __slots__ = ("num_steps", "seen", "total", "weight")

    def __init__(self) -> None:
        self.total = self.weight = 0.0
        self.num_steps = 0
        self.seen = 0
        """The number of the last step that counted."""

    def value(self, prior: float, ageing: float = 1.0) -> float:
        return (ageing * self.total + _PRIOR_WEIGHT * prior) / (
            ageing * self.weight + _PRIOR_WEIGHT
        )

    def observe(self, ratio: float, decay: float, num_steps: int = 1) -> None:
        """The same so many times."""
        kept = decay**num_steps
        added = (1 - kept) / (1 - decay)
        self.total = kept * self.total + added * ratio
        self.weight = kept * self.weight + added
        self.num_steps += num_steps


class LearnedCosts:
    """``StepCosts`` times what was learned of each kind of step: its batch, within a factor of two,
    and its length, if that is even. Kinds not seen yet are taken for as much off as those seen."""

    def __init__(self, table: StepCosts) -> None:
        assert table.lengths[0] == 0
        assert all(low < high for low, high in pairwise(table.lengths))
        self.table = table
        self._kinds: dict[tuple[int, int], _Ratio] = {}
        self._plain, self._drafted = _Ratio(), _Ratio()
        self._num_steps = 0
        self._by_length: dict[int, list[float]] = {}
        """What the table says of batches seen: it is asked many times in a step."""

    def seconds(self, batch: int, longest: int, num_drafts: int) -> float:
        """As ``StepCosts.seconds``."""
        kind, length = self.table.kind(batch, longest, num_drafts)
        return self._expected(batch, length) * self._ratio(batch, kind)

    def even(self, batch: int, length: int) -> float:
        return self.seconds(batch, length, batch * length)

    def hopeful(self, batch: int, length: int) -> float:
        """As ``even``, but if drafts turn out to be as much below the table as steps without them:
        what is not known is worth a try."""
        best = min(self._ratio(batch, length), self._ratio(batch, 0))
        return best * self._expected(batch, length)

    def num_seen(self, batch: int, longest: int, num_drafts: int) -> int:
        """Steps of this kind that were measured."""
        kind, _ = self.table.kind(batch, longest, num_drafts)
        of_kind = self._kinds.get(((batch - 1).bit_length(), kind))
        return 0 if of_kind is None else of_kind.num_steps

    def observe(
        self, batch: int, longest: int, num_drafts: int, seconds: float, num_steps: int = 1
    ) -> None:
        """So many steps took so long each."""
        self._num_steps += num_steps
        kind, length = self.table.kind(batch, longest, num_drafts)
        known = self._ratio(batch, kind)
        ratio = seconds / self._expected(batch, length)
        of_kind = self._kinds.setdefault(((batch - 1).bit_length(), kind), _Ratio())
        surprise = OUTLIER**num_steps
        ratio = min(max(ratio, known / surprise), known * surprise)
        of_kind.observe(ratio, _DECAY, num_steps)
        of_kind.seen = self._num_steps
        overall = self._drafted if kind else self._plain
        overall.observe(ratio, _OVERALL_DECAY, num_steps)

    def _expected(self, batch: int, length: float) -> float:
        row = self._by_length.get(batch)
        if row is None:
            row = self._by_length[batch] = self.table.by_length(batch)
        return _interpolate(self.table.lengths, row, length)

    def _ratio(self, batch: int, kind: int) -> float:
        overall = (self._drafted if kind else self._plain).value(1.0)
        of_kind = self._kinds.get(((batch - 1).bit_length(), kind))
        if of_kind is None:
            return overall
        return of_kind.value(overall, _AGEING ** (self._num_steps - of_kind.seen))
