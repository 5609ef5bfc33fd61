from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from grammar import survey


def test_sources_are_counted_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}}
    tests = [
        {"data": {"a": 1, "b": 2}, "valid": True},
        {"data": {"b": 1, "a": 2}, "valid": True},
        {"data": {"a": "x"}, "valid": False},
    ]
    (tmp_path / "one---1.json").write_text(json.dumps({"schema": schema, "tests": tests}))
    (tmp_path / "one---2.json").write_text(json.dumps({"type": "array", "uniqueItems": True}))
    (tmp_path / "suite").mkdir()
    groups = [{"description": "a", "schema": {"not": {"type": "null"}}, "tests": []}] * 2
    (tmp_path / "suite" / "not.json").write_text(json.dumps(groups))
    arguments = ["survey", str(tmp_path), "--vocab-size", "60000"]
    monkeypatch.setattr(sys, "argv", arguments)
    survey.main()
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split()[1:7] for line in lines[1:4]}
    assert rows == {
        "one": ["2", "50.0", "1", "0", "2", "1"],
        f"{tmp_path.name}/suite"[:24]: ["2", "100.0", "0", "0", "0", "0"],
        "all": ["4", "75.0", "1", "0", "2", "1"],
    }
    assert lines[-1].split() == ["1", "uniqueItems"]
