from __future__ import annotations

import pytest

from grammar.schema.paths import ROOT, child


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
