"""Measures the time from a client's leaving to the abort in the engine. Both use the same clock."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from gateway.bench.stream import Sample

WAIT_S = 2.0
"""Time for the last aborts to arrive."""


class Aborts:
    """The aborts that a replaying engine writes to a file, which ``ABORTS_ENV`` names."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def latencies_s(self, samples: Sequence[Sample]) -> list[float]:
        """The latencies for requests whose clients left; infinite if the engine was not told."""
        left = [one for one in samples if one.left_at_s == one.left_at_s and one.error is None]
        deadline = time.monotonic() + WAIT_S
        while True:
            heard = self._heard()
            missing = [one for one in left if one.request_id not in heard]
            if not missing or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        never = float("inf")
        return [heard.get(one.request_id or "", never) - one.left_at_s for one in left]

    def _heard(self) -> dict[str, float]:
        if not self._path.exists():
            return {}
        lines = [line.split() for line in self._path.read_text().splitlines()]
        return {name.partition("-")[0]: float(at) for at, name in lines}
