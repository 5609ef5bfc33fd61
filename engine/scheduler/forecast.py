"""How much of the cache the running requests will need before they end.

Admitting whatever fits *now* fills the cache with requests that grow, and then each new token
preempts somebody: half the work of an overloaded engine can go into computing again. So a request
is admitted only if the cache is expected to hold at the worst moment to come. The idea is that of
Gong et al., "Past-Future Scheduler for LLM Serving under SLA Guarantees" (ASPLOS 2025).
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from engine.request import Request

    Floats = npt.NDArray[np.float64]

# Finished outputs that are remembered.
_MAX_LENGTHS = 512
# What an output is expected to reach at least while none has been seen that got so far.
_PRIOR_LENGTH = 256.0


class GrowthForecast:
    """Predicts output lengths from those seen lately, and from them the peak of the cache."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._lengths: deque[int] = deque(maxlen=_MAX_LENGTHS)
        self._sorted: Floats = np.empty(0)
        self._sums: Floats = np.zeros(1)
        """Of ``_sorted`` from each index on."""
        self._outdated = False
        self._batch: Floats = np.empty((3, 0))
        self._candidate: Floats = self._batch

    def observe(self, num_generated: int) -> None:
        """An output came to its own end at this length."""
        self._lengths.append(num_generated)
        self._outdated = True

    def begin_step(self, running: Iterable[Request]) -> None:
        """Forecast these; ``admit`` adds to them."""
        size = self._block_size
        self._batch = self._columns(
            [
                (
                    (num_tokens := len(request.token_ids)) - request.num_prompt_tokens,
                    request.max_total_tokens - num_tokens,
                    (num_held := len(request.block_table.block_ids) * size),
                    num_tokens - num_held,
                )
                for request in running
            ]
        )

    def peak_blocks(self, request: Request, num_slots: int) -> int:
        """Blocks needed beyond those held now, if ``request`` came in and held ``num_slots``."""
        num_tokens = len(request.token_ids)
        row = (
            num_tokens - request.num_prompt_tokens,
            request.max_total_tokens - num_tokens,
            num_slots,
            num_tokens - num_slots,
        )
        self._candidate = np.hstack([self._batch, self._columns([row])])
        return math.ceil(peak_growth(*self._candidate) / self._block_size)

    def admit(self) -> None:
        """The request asked about last came in."""
        self._batch = self._candidate

    def _columns(self, rows: list[tuple[int, int, int, int]]) -> Floats:
        """From (generated, limit, held, lacking) to (remaining, held, lacking): [3, n]"""
        generated, limits, held, lacking = np.array(rows, dtype=np.float64).reshape(-1, 4).T
        remaining = np.minimum(self.expected_length(generated) - generated, limits)
        # At any moment the last block of a request is half empty, on average.
        return np.stack([remaining, held, lacking + self._block_size / 2])

    def expected_length(self, generated: Floats) -> Floats:
        """E[length | length > generated]: the mean of those lengths seen that are greater."""
        if self._outdated:
            self._outdated = False
            self._sorted = np.sort(np.array(self._lengths, dtype=np.float64))
            self._sums = np.append(np.cumsum(self._sorted[::-1])[::-1], 0.0)
        first = np.searchsorted(self._sorted, generated, side="right")
        counts = len(self._sorted) - first
        # Longer than any: expect that it lasts as long again.
        unseen = np.maximum(2.0 * generated, _PRIOR_LENGTH)
        return np.where(counts > 0, self._sums[first] / np.maximum(counts, 1), unseen)


def peak_growth(remaining: Floats, held: Floats, lacking: Floats) -> float:
    """Slots needed beyond those in use now, at the worst moment to come; all float64, [n].

    Each request is ``lacking`` some slots (or has some to spare, if negative), grows by a slot a
    step for ``remaining`` steps, and then gives back what it ``held`` and what it got since. In the
    order of their ends, r_1 <= ... <= r_n: just before the k-th ends, those from k on have grown by
    r_k each, and those before it have given back what they held. So the peak is the largest
    (n - k + 1) r_k + (lacking_k + ... + lacking_n) - (held_1 + ... + held_{k-1}).
    """
    order = np.argsort(remaining)
    ends, given, owed = remaining[order], held[order], lacking[order]
    num_left = np.arange(len(ends), 0, -1)
    owed_after = np.cumsum(owed[::-1])[::-1]
    given_before = np.cumsum(given) - given
    return float(np.max(num_left * ends + owed_after - given_before))
