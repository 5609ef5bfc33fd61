"""The order in which several processes take the files."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tests.distribution import in_order


def test_files_that_take_long_are_first_and_stay_whole() -> None:
    ids = ["a.py::one", "a.py::two", "b.py::one", "c.py::one", "c.py::two"]
    items = cast(Any, [SimpleNamespace(nodeid=node) for node in ids])
    ordered = [item.nodeid for item in in_order(items, {"c.py": 60, "b.py": 2})]
    assert ordered == ["c.py::one", "c.py::two", "b.py::one", "a.py::one", "a.py::two"]
