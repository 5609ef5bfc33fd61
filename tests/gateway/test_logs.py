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
    logging.getLogger("uvicorn.error").filters.clear()


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


class TestTrickle:
    def test_some_at_once_then_one_from_time_to_time(self) -> None:
        clock = iter(range(1000)).__next__
        throttle = logs.LogThrottle(burst=3, per_s=0.25, clock=clock)
        admitted = [throttle.admit("kind") for _ in range(20)]
        assert admitted[:5] == [0, 0, 0, None, 1], "a line a second, room for one in four"
        assert [n for n in admitted[5:] if n is not None] == [3, 3, 3]

    def test_what_was_quiet_may_come_at_once_again(self) -> None:
        now = 0.0
        throttle = logs.LogThrottle(burst=3, per_s=1.0, clock=lambda: now)
        assert [throttle.admit("kind") for _ in range(5)] == [0, 0, 0, None, None]
        now = 60.0
        assert [throttle.admit("kind") for _ in range(5)] == [2, 0, 0, None, None]

    def test_kinds_do_not_hide_each_other(self) -> None:
        throttle = logs.LogThrottle(burst=1, per_s=1.0, clock=lambda: 0.0)
        assert [throttle.admit(kind) for kind in "aabb"] == [0, None, 0, None]

    def test_kinds_are_bounded(self) -> None:
        throttle = logs.LogThrottle(burst=1, per_s=1.0, clock=lambda: 0.0)
        for kind in range(3 * throttle.MAX_KINDS):
            throttle.admit("often")
            throttle.admit(kind)
        assert len(throttle._kinds) == throttle.MAX_KINDS
        assert throttle.admit("often") is None


def test_requests_that_are_not_http_do_not_fill_the_log(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("info", "json")
    server = logging.getLogger("uvicorn.error")
    for number in range(100):
        server.warning("Invalid HTTP request received.")
        server.error("Another message %d", number)
    lines = [json.loads(line)["message"] for line in capsys.readouterr().err.splitlines()]
    assert lines.count("Invalid HTTP request received.") == 10
    assert len(lines) == 20
    (seldom,) = server.filters
    assert isinstance(seldom, logs.SeldomFilter)
    seldom._throttle._clock = lambda: float("inf")
    server.warning("Invalid HTTP request received.")
    assert json.loads(capsys.readouterr().err)["left_out"] == 90
