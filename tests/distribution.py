"""How ``make test`` spreads the suite over processes: over how many, and in which order.

Each file runs whole in one process (pytest-xdist's ``--dist loadfile``): what it starts for its
module is started once. A process takes the next file when it is nearly through with the last one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
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


def in_order(
    items: Iterable[pytest.Item], runs_programs: Callable[[pytest.Item], bool]
) -> list[pytest.Item]:
    """Files with slow tests first, so that at the end nobody waits for one of them.

    Of the others those that run programs, and so wait, are spread evenly among those that compute.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    slow, waiting, computing = [], [], []
    for tests in files.values():
        if any(item.get_closest_marker("slow") for item in tests):
            slow.append(tests)
        elif any(map(runs_programs, tests)):
            waiting.append(tests)
        else:
            computing.append(tests)
    return [item for tests in [*slow, *_spread(waiting, computing)] for item in tests]


def _spread(
    some: list[list[pytest.Item]], others: list[list[pytest.Item]]
) -> list[list[pytest.Item]]:
    """Both in their order, each as evenly over the whole as it goes."""
    placed = [
        ((place + 0.5) / len(files), tests)
        for files in (some, others)
        for place, tests in enumerate(files)
    ]
    return [tests for _, tests in sorted(placed, key=lambda pair: pair[0])]
