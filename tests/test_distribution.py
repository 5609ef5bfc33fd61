"""The order in which several processes take the files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tests.distribution import TOGETHER, from_its_part, in_order, unit_of


def test_files_that_take_long_are_first_and_stay_whole() -> None:
    ids = ["a.py::one", "a.py::two", "b.py::one", "c.py::one", "c.py::two"]
    items = cast(Any, [SimpleNamespace(nodeid=node) for node in ids])
    ordered = [item.nodeid for item in in_order(items, {"c.py": 60, "b.py": 2})]
    assert ordered == ["c.py::one", "c.py::two", "b.py::one", "a.py::one", "a.py::two"]


def test_a_folder_that_shares_a_server_stays_whole() -> None:
    folder = TOGETHER[0]
    ids = ["a.py::one", f"{folder}b.py::one", f"{folder}c.py::one"]
    assert [unit_of(node) for node in ids] == ["a.py", folder, folder]
    items = cast(Any, [SimpleNamespace(nodeid=node) for node in ids])
    seconds = {"a.py": 15, f"{folder}b.py": 10, f"{folder}c.py": 10}
    assert [item.nodeid for item in in_order(items, seconds)] == [*ids[1:], ids[0]]


def test_processes_begin_with_parts_of_their_own_and_compile_everything() -> None:
    files = [Path(name) for name in "abcdefg"]
    parts = [from_its_part(files, number, 3) for number in range(3)]
    assert ["".join(map(str, part)) for part in parts] == ["abcdefg", "cdefgab", "efgabcd"]
