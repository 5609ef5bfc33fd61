"""The table in ``grammar/README.md`` is what the code says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import grammar
from grammar.audit import BACKENDS, audit
from grammar.schema import formats
from grammar.schema.forms import CONSTRAINTS
from grammar.schema.paths import child

README = Path(grammar.__file__).with_name("README.md").read_text()
ROW = re.compile(r"^\| `(\S+)` \| `(.*)` \| (.) \| (.) \| (.) \|$", re.MULTILINE)


def test_every_row_is_true() -> None:
    rows = ROW.findall(README)
    assert len(rows) > 35
    for keyword, example, *marks in rows:
        items = audit(json.loads(example)).keywords
        item = next(item for item in items if item.path == child("$", keyword))
        expected = ["✓" if backend in item.enforced_by else "–" for backend in BACKENDS]
        assert marks == expected, (keyword, example)


def test_every_keyword_has_a_row() -> None:
    explained_with_another = {"then", "else", "minContains", "maxContains", "maximum"}
    explained_with_another |= {"exclusiveMinimum"}
    assert {keyword for keyword, *_ in ROW.findall(README)} == CONSTRAINTS - explained_with_another


def test_the_table_of_formats_is_that_of_the_code() -> None:
    rows = re.findall(
        r"^\| (`[a-z`, 0-9-]+`) \| (exactly|a subset) \| (.+) \|$", README, re.MULTILINE
    )
    told = {
        name: left_out for names, _, left_out in rows for name in re.findall("`([^`]+)`", names)
    }
    known = {name: formats.lookup(name) for name in formats.ENFORCED}
    assert told == {name: found.left_out or "–" for name, found in known.items() if found}
    assert all((left_out == "–") == (how == "exactly") for _, how, left_out in rows)
