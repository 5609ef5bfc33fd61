from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gateway.commands.tables import Table, time_of

ID = "57838f5a-d148-44fe-abe3-1106dc81fe25"


def tenants() -> Table:
    table = Table("name", "id", "weight")
    table.add_row("acme", ID, "1")
    return table


def test_on_a_narrow_terminal_an_id_is_wrapped_not_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # for rich this is a terminal
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "44")
    tenants().show()
    rows = [line.split("│") for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert len(rows) > 1
    assert "".join(row[2].strip() for row in rows) == ID


def test_a_pipe_gets_lines_of_fields(capsys: pytest.CaptureFixture[str]) -> None:
    tenants().show()
    assert capsys.readouterr().out == f"acme\t{ID}\t1\n"


def test_times_are_to_the_minute() -> None:
    assert time_of(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)) == "2026-01-02 03:04"
    assert time_of(None) == ""
