"""Where runs of tokens occurred before: what prompt lookup and suffix decoding search."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

# A multiplier with no structure of its own (that of splitmix64), and the words it wraps in.
_MULTIPLIER = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1
# Runs kept in a dictionary before they are sorted in: sorting takes about 0.1 us for each.
_MAX_RECENT = 1024


class TokenIndex:
    """Finds the runs of ``width`` tokens in a growing list.

    Old runs are sorted by hash (12 bytes each, built at numpy's speed), new ones are in a
    dictionary, so that a long prompt costs milliseconds once and a token costs a microsecond.
    """

    def __init__(self, token_ids: Sequence[int], width: int) -> None:
        """``token_ids`` may grow, and only grow, while the index is in use."""
        assert width >= 1
        self._token_ids = token_ids
        self._width = width
        self._num_covered = 0
        self._sorted_keys: npt.NDArray[np.uint64] = np.empty(0, np.uint64)
        self._sorted_ends: npt.NDArray[np.int32] = np.empty(0, np.int32)
        self._recent: dict[int, list[int]] = {}
        self._num_recent = 0

    def cover(self, end: int) -> None:
        """Include the runs that end at or before position ``end`` (exclusive)."""
        first = max(self._num_covered + 1, self._width)
        if end - first >= _MAX_RECENT or self._num_recent > _MAX_RECENT:
            self._sort(end)
        else:
            for run_end in range(first, end + 1):
                key = self._key(self._token_ids[run_end - self._width : run_end])
                self._recent.setdefault(key, []).append(run_end)
                self._num_recent += 1
        self._num_covered = max(self._num_covered, end)

    def ends(self, suffix: Sequence[int], limit: int) -> list[int]:
        """Where the covered occurrences of the last ``width`` tokens of ``suffix`` end (the
        position after each), the latest first, at most ``limit``. Rarely one is of another run with
        the same hash."""
        if len(suffix) < self._width:
            return []
        key = self._key(suffix[-self._width :])
        found = self._recent.get(key, [])[: -limit - 1 : -1]
        if len(found) < limit and len(self._sorted_keys):
            low = int(np.searchsorted(self._sorted_keys, np.uint64(key), "left"))
            high = int(np.searchsorted(self._sorted_keys, np.uint64(key), "right"))
            low = max(low, high - limit + len(found))
            found += self._sorted_ends[low:high][::-1].tolist()
        return found

    def _key(self, run: Sequence[int]) -> int:
        key = 0
        for token_id in run:
            key = (key * _MULTIPLIER + token_id + 1) & _WORD
        return key

    def _sort(self, end: int) -> None:
        """Build the sorted part anew from all runs that end at or before ``end``."""
        tokens = np.array(self._token_ids[:end], np.uint64) + np.uint64(1)
        count = end - self._width + 1
        keys = np.zeros(count, np.uint64)
        for offset in range(self._width):
            keys = keys * np.uint64(_MULTIPLIER) + tokens[offset : offset + count]
        order = np.argsort(keys, kind="stable")
        self._sorted_keys = keys[order]
        self._sorted_ends = (order + self._width).astype(np.int32)
        self._recent, self._num_recent = {}, 0


def match_length(token_ids: Sequence[int], end: int, suffix: Sequence[int]) -> int:
    """How many tokens before ``end`` equal the last ones of ``suffix``."""
    limit = min(end, len(suffix))
    length = 0
    while length < limit and token_ids[end - 1 - length] == suffix[-1 - length]:
        length += 1
    return length
