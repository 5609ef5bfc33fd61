from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grammar.schema.paths import ROOT, child, pointer


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("a", "$.a"),
        ("$defs", "$.$defs"),
        ("a-b_1", "$.a-b_1"),
        (0, "$[0]"),
        ("0", "$['0']"),
        ("a b", "$['a b']"),
        ("it's\\", "$['it\\'s\\\\']"),
        ("", "$['']"),
        ("é", "$['é']"),
    ],
)
def test_child(key: str | int, path: str) -> None:
    assert child(ROOT, key) == path


@given(st.lists(st.text(max_size=4) | st.integers(0, 99), max_size=4))
def test_a_path_as_a_pointer_leads_to_the_same_place(steps: list[str | int]) -> None:
    value: object = "found"
    for step in reversed(steps):
        value = {step: value} if isinstance(step, str) else [None] * step + [value]
    path = ROOT
    for step in steps:
        path = child(path, step)
    found: Any = value
    for part in pointer(path).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        found = found[int(name)] if isinstance(found, list) else found[name]
    assert found == "found"
