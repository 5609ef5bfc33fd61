"""How ``make test`` spreads the suite over processes: over how many, and in which order.

Each file runs whole in one process (pytest-xdist's ``--dist loadfile``): what it starts for its
module is started once. So does each folder whose tests share a server. A process takes the next
file when it is nearly through with the last one.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil
import pytest
from xdist.scheduler import LoadFileScheduling

TOGETHER = ("tests/e2e/on_one_demo/", "tests/e2e/on_one_gateway/")
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


def compile_in_turn(root: Path, number: int, count: int) -> None:
    """Import the test files that are not compiled yet, process ``number`` of ``count`` beginning
    with its part of them: so each is compiled once, not once in each process of a fresh clone.

    pytest rewrites their assertions meanwhile, which takes half a minute of CPU time in all.
    """
    files = [path for path in sorted((root / "tests").rglob("test_*.py")) if not _is_compiled(path)]
    for path in from_its_part(files, number, count):
        # What cannot be imported is told by the collection.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts))


def _is_compiled(path: Path) -> bool:
    return any((path.parent / "__pycache__").glob(f"{path.stem}.*-pytest-*.pyc"))


def from_its_part(files: Sequence[Path], number: int, count: int) -> list[Path]:
    begin = len(files) * number // count
    return [*files[begin:], *files[:begin]]


def unit_of(nodeid: str) -> str:
    """What runs whole in one process: the test's file, or its folder."""
    file = nodeid.partition("::")[0]
    return next((folder for folder in TOGETHER if file.startswith(folder)), file)


class ByUnit(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def in_order(items: Iterable[pytest.Item], seconds: Mapping[str, float]) -> list[pytest.Item]:
    """What takes long first, so that at the end nobody waits for it."""
    of_units: dict[str, float] = defaultdict(float)
    for file, taken in seconds.items():
        of_units[unit_of(file)] += taken
    return sorted(items, key=lambda item: -of_units[unit_of(item.nodeid)])
