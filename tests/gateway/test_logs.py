from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator

import pytest

from gateway import logs


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json")
    logging.getLogger("a.b").info("said %s", "hi", extra={"fields": {"n": 1, "who": "é\n"}})
    logging.getLogger("a.b").debug("unheard")
    line = json.loads(capsys.readouterr().err)
    assert line["level"] == "info"
    assert line["logger"] == "a.b"
    assert line["message"] == "said hi"
    assert (line["n"], line["who"]) == (1, "é\n")
    assert line["time"].endswith("+00:00")


def test_json_keeps_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json")
    try:
        raise ValueError("boom")
    except ValueError:
        logging.getLogger("x").exception("failed")
    (text,) = capsys.readouterr().err.splitlines()
    assert "ValueError: boom" in json.loads(text)["exception"]


def test_text_lines(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "text")
    logging.getLogger("a").warning("careful", extra={"fields": {"path": "/x", "status": 200}})
    line = capsys.readouterr().err.strip()
    assert line.endswith("WARNING a: careful path=/x status=200")


def test_lines_of_several_processes_name_theirs(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "text", has_pid=True)
    logging.getLogger("a").warning("careful")
    assert capsys.readouterr().err.endswith(f"WARNING [{os.getpid()}] a: careful\n")
    logs.configure("info", "json", has_pid=True)
    logging.getLogger("a").warning("careful")
    assert json.loads(capsys.readouterr().err)["pid"] == os.getpid()
    logs.configure("info", "json")
    logging.getLogger("a").warning("careful")
    assert "pid" not in json.loads(capsys.readouterr().err)


def test_a_field_cannot_forge_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "text")
    fields = {"path": "/x\n12:00:00 INFO forged", "user": "a status=200", "empty": ""}
    logging.getLogger("a").info("request", extra={"fields": fields})
    (line,) = capsys.readouterr().err.splitlines()
    assert 'user="a status=200"' in line
    assert 'empty=""' in line
    assert r"\n12:00:00" in line


def test_talkative_libraries_stay_quiet() -> None:
    logs.configure("debug", "text")
    assert logging.getLogger("uvicorn.access").disabled
    assert not logging.getLogger("uvicorn.error").isEnabledFor(logging.INFO)
    assert not logging.getLogger("websockets.server").isEnabledFor(logging.INFO)
    assert not logging.getLogger("asyncpg.pool").isEnabledFor(logging.WARNING)
