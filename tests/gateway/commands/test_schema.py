from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli import app


def check(schema: object, tmp_path: Path, *options: str) -> Result:
    file = tmp_path / "schema.json"
    file.write_text(schema if isinstance(schema, str) else json.dumps(schema))
    return CliRunner().invoke(app, ["schema", "check", str(file), *options])


def test_a_schema_that_is_enforced(tmp_path: Path) -> None:
    result = check({"not": {"required": ["a"]}}, tmp_path)
    assert result.exit_code == 0
    assert result.output.startswith("all of it is enforced (")


def test_what_is_not_is_named_with_its_place(tmp_path: Path) -> None:
    result = check({"items": {"uniqueItems": True}}, tmp_path)
    assert result.exit_code == 1
    assert result.output.startswith("/items/uniqueItems: uniqueItems cannot be enforced: ")
    assert "strict: true refuses it" in result.output
    report = json.loads(check({"items": {"uniqueItems": True}}, tmp_path, "--json").output)
    assert [found["pointer"] for found in report["unenforced"]] == ["/items/uniqueItems"]


def test_what_is_wrong_is_named_with_its_place(tmp_path: Path) -> None:
    result = check({"items": {"type": "text"}}, tmp_path)
    assert result.exit_code == 1
    assert result.output.startswith("/items/type: type must be one or several of")


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_what_is_no_schema(text: str, tmp_path: Path) -> None:
    result = check(text, tmp_path)
    assert result.exit_code == 1
