"""How ``make test`` spreads the suite over processes: over how many, and in which order.

Each file runs whole in one process (pytest-xdist's ``--dist loadfile``): what it starts for its
module is started once. A process takes the next file when it is nearly through with the last one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil
import pytest

MAX_WORKERS = 4
"""A container may show more cores than it may use; too many servers at once start too slowly."""
WORKER_MEMORY_BYTES = 4 * 2**30
"""What a worker's programs take at most, and room beside them."""


def num_workers() -> int:
    """One more than the cores, as the tests of whole programs mostly wait; 1 beside a GPU.

    The tests on a GPU take most of its memory, one after the other.
    """
    if Path("/dev/nvidiactl").exists():
        return 1
    fitting = psutil.virtual_memory().available // WORKER_MEMORY_BYTES
    return max(1, min((os.cpu_count() or 1) + 1, MAX_WORKERS, fitting))


def in_order(items: Iterable[pytest.Item], seconds: Mapping[str, float]) -> list[pytest.Item]:
    """Files that take long first, so that at the end nobody waits for one of them."""

    def taken(item: pytest.Item) -> float:
        return -seconds.get(item.nodeid.partition("::")[0], 0.0)

    return sorted(items, key=taken)
