"""How much of the cache the running requests will need before they end.

Admitting whatever fits *now* fills the cache with requests that grow, and then each new token
preempts somebody: half the work of an overloaded engine can go into computing again. So a request
is admitted only if the cache is expected to hold at the worst moment to come. The idea is that of
Gong et al., "Past-Future Scheduler for LLM Serving under SLA Guarantees" (ASPLOS 2025).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import numpy.typing as npt

    from engine.request import Request

    Floats = npt.NDArray[np.float64]

# Finished outputs that are remembered.
_MAX_LENGTHS = 512
# What an output is expected to reach at least while none has been seen that got so far.
_PRIOR_LENGTH = 256.0


class GrowthForecast:
    """Predicts output lengths from those seen lately, and from them the peak of the cache."""

    def __init__(self, block_size: int, windows: Sequence[int | None] = (None,)) -> None:
        """windows: of the layer groups; each group needs a slot for every token that it sees."""
        self._block_size = block_size
        self._num_full = sum(window is None for window in windows)
        # The block in which a window begins is held completely.
        self._spans = [window + block_size for window in windows if window is not None]
        # On average the last block of a request is half empty.
        self._unused = len(windows) * block_size / 2
        self._lengths: deque[int] = deque(maxlen=_MAX_LENGTHS)
        self._sorted: Floats = np.empty(0)
        self._sums: Floats = np.zeros(1)
        """Sums of ``_sorted`` from each index to its end."""
        self._outdated = False
        self._known: dict[int, float] = {}
        """Cache of expected lengths, valid until the next observation."""
        self._columns: tuple[Floats, Floats, Floats] = (np.empty(0), np.empty(0), np.empty(0))
        """What ``Growth.of`` takes, for the running requests but ``_admitted``."""
        self._admitted: list[tuple[float, float, float]] = []
        self._growth: Growth | None = None
        """Of all running requests; None until it is asked for."""
        self._bound = 0.0
        """What the running requests need at most."""
        self._candidate = (0.0, 0.0, 0.0)
        self._candidate_bound = 0.0

    def observe(self, num_generated: int) -> None:
        """Record that an output ended by itself at this length."""
        self._lengths.append(num_generated)
        self._outdated = True

    def begin_step(self, running: Collection[Request]) -> None:
        """Start a forecast with these running requests; ``admit`` adds to them."""
        num_tokens = _floats([len(request.token_ids) for request in running])
        generated = num_tokens - _floats([request.num_prompt_tokens for request in running])
        limits = _floats([request.max_total_tokens for request in running]) - num_tokens
        held = _floats([request.block_table.num_held for request in running])
        held *= self._block_size
        remaining = np.minimum(self.expected_length(generated) - generated, limits)
        lacking = self._num_full * num_tokens - held + self._unused
        for span in self._spans:
            lacking += np.minimum(num_tokens + remaining, span)
        growing = self._num_full * remaining
        self._columns = (growing, held, lacking)
        self._admitted.clear()
        self._growth = None
        # Whoever ends gives back what it has, so the peak is no more than all get in the end.
        self._bound = float(np.maximum(growing + lacking, 0.0).sum())

    def peak_blocks(self, request: Request, num_slots: int, num_enough: int = -1) -> int:
        """Most blocks ever needed beyond those held now, if ``request`` came in and took
        ``num_slots``.

        num_enough: a peak up to this many blocks need not be exact. Then an upper bound is
        returned that is no more than ``num_enough`` either, wherever that is quicker.
        """
        num_tokens = len(request.token_ids)
        generated = num_tokens - request.num_prompt_tokens
        remaining = min(
            self._expected_length_of_one(generated) - generated,
            request.max_total_tokens - num_tokens,
        )
        lacking = self._num_full * num_tokens - num_slots + self._unused
        for span in self._spans:
            lacking += min(num_tokens + remaining, span)
        growing = self._num_full * remaining
        self._candidate = (growing, num_slots, lacking)
        self._candidate_bound = self._bound + max(growing + lacking, 0.0)
        if self._candidate_bound > num_enough * self._block_size:
            peak = self._growth_of_all().peak_with(growing, num_slots, lacking)
            self._candidate_bound = max(peak, 0.0)
            return math.ceil(peak / self._block_size)
        return math.ceil(self._candidate_bound / self._block_size)

    def admit(self) -> None:
        """The request that ``peak_blocks`` was last asked about was admitted."""
        self._admitted.append(self._candidate)
        self._growth = None
        self._bound = self._candidate_bound

    def _growth_of_all(self) -> Growth:
        if self._admitted:
            new = np.array(self._admitted, dtype=np.float64).T
            growing, held, lacking = np.concatenate((self._columns, new), axis=1)
            self._columns = (growing, held, lacking)
            self._admitted.clear()
        if self._growth is None:
            self._growth = Growth.of(*self._columns)
        return self._growth

    def _expected_length_of_one(self, generated: int) -> float:
        if self._outdated:
            self._known.clear()
        known = self._known.get(generated)
        if known is None:
            known = float(self.expected_length(np.array([generated], dtype=np.float64))[0])
            self._known[generated] = known
        return known

    def expected_length(self, generated: Floats) -> Floats:
        """E[length | length > generated]: the mean of those lengths seen that are greater."""
        if self._outdated:
            self._outdated = False
            self._known.clear()
            self._sorted = np.sort(np.array(self._lengths, dtype=np.float64))
            self._sums = np.append(np.cumsum(self._sorted[::-1])[::-1], 0.0)
        first = np.searchsorted(self._sorted, generated, side="right")
        counts = len(self._sorted) - first
        # Longer than any seen: expect as many tokens again.
        unseen = np.maximum(2.0 * generated, _PRIOR_LENGTH)
        return np.where(counts > 0, self._sums[first] / np.maximum(counts, 1), unseen)


def _floats(numbers: list[int]) -> Floats:
    return np.array(numbers, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Growth:
    """Slots that n requests need beyond those in use now, at the end of each; all float64, [n].

    Each request is ``lacking`` some slots (or has some to spare, if negative), grows by a slot a
    step for ``remaining`` steps, and then gives back what it ``held`` and what it got since. In the
    order of their ends, r_1 <= ... <= r_n: just before the k-th ends, those from k on have grown by
    r_k each, and those before it have given back what they held. So what is needed then is

        need_k = (n - k + 1) r_k + (lacking_k + ... + lacking_n) - (held_1 + ... + held_{k-1})

    and the peak is the largest of them. One more request, between p and p + 1, adds r_k + lacking
    to those up to p, and takes what it held from those after: so the largest of both halves are
    kept, and a candidate costs next to nothing.
    """

    ends: Floats
    """r_k"""
    owed: Floats
    """lacking_k + ... + lacking_n; one more element, 0, at the end."""
    given: Floats
    """held_1 + ... + held_{k-1}; one more element, the sum of all, at the end."""
    peak_before: Floats
    """max(need_j + r_j for j <= k)"""
    peak_after: Floats
    """max(need_j for j >= k)"""

    @classmethod
    def of(cls, remaining: Floats, held: Floats, lacking: Floats) -> Growth:
        order = np.argsort(remaining)
        zero = np.zeros(1)
        ends = remaining[order]
        owed = np.concatenate((np.cumsum(lacking[order][::-1])[::-1], zero))
        given = np.concatenate((zero, np.cumsum(held[order])))
        need = np.arange(len(ends), 0, -1) * ends + owed[:-1] - given[:-1]
        peak_before = np.maximum.accumulate(need + ends)
        peak_after = np.maximum.accumulate(need[::-1])[::-1]
        return cls(ends, owed, given, peak_before, peak_after)

    def peak_with(self, remaining: float, held: float, lacking: float) -> float:
        """The peak if one more request came in."""
        place = int(self.ends.searchsorted(remaining, side="right"))
        num_left = len(self.ends) - place + 1
        peak = num_left * remaining + float(self.owed[place]) + lacking - float(self.given[place])
        if place > 0:
            peak = max(peak, float(self.peak_before[place - 1]) + lacking)
        if place < len(self.ends):
            peak = max(peak, float(self.peak_after[place]) - held)
        return peak
