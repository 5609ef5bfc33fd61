"""Supervisors with a program in place of ``sluice engine``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from gateway.fleet.placement import supervisor
from gateway.fleet.placement.supervisor import Spec, Supervisor

ENGINE = """
import json, os, signal, sys, time
def leave(*_):
    open(sys.argv[1] + ".left", "w").write("")
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
names = ("ID", "NODE", "HOST")
told = {name: os.environ["SLUICE_FLEET_ENGINE_" + name] for name in names}
with open(sys.argv[1] + ".tmp", "w") as file:
    json.dump({"pid": os.getpid(), **told}, file)
os.rename(sys.argv[1] + ".tmp", sys.argv[1])
print("an engine says why", file=sys.stderr)
time.sleep(600)
"""
PARENT = """
import sys, time
from gateway.fleet.placement.supervisor import Spec, Supervisor
spec = Spec("m-1", "m", ("-c", sys.argv[1], sys.argv[2]), {})
Supervisor(spec, node_id="0" * 8, host="127.0.0.1")
time.sleep(600)
"""


def until(found: Callable[[], object], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the engine says that it runs."""
    return tmp_path / "engine"


@pytest.fixture
def running(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    monkeypatch.setattr(supervisor, "MIN_PAUSE_S", 0.05)
    spec = Spec("chat-1e500", "chat", ("-c", ENGINE, str(place)), {})
    one = Supervisor(spec, node_id="0123456789", host="127.0.0.1")
    until(place.exists)
    yield one
    one.stop()


def test_the_engine_is_started_again_and_leaves_in_the_end(
    running: Supervisor, place: Path
) -> None:
    first = json.loads(place.read_text())
    # As settings: a number would be one otherwise.
    assert json.loads(first["ID"]) == "chat-1e500"
    assert json.loads(first["NODE"]) == "127.0.0.1 (01234567)"
    assert running.report().pid == first["pid"]
    place.unlink()
    os.kill(first["pid"], signal.SIGKILL)
    until(place.exists)
    report = running.report()
    assert report.num_starts == 2
    assert report.last_words == "it ended with code -9: an engine says why"
    assert not report.is_retiring
    place.unlink()
    running.restart()
    until(place.exists)
    assert running.report().num_starts == 3
    assert place.with_suffix(".left").exists()
    place.with_suffix(".left").unlink()
    running.retire(True)
    assert running.report().is_retiring
    running.stop()
    assert running.report().pid is None
    assert place.with_suffix(".left").exists()  # it was asked to, not killed
    running.stop()


def test_one_that_does_not_leave_is_killed(
    running: Supervisor, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "STOP_S", 0.2)
    process = psutil.Process(json.loads(place.read_text())["pid"])
    process.suspend()
    running.stop()
    assert not process.is_running()


def test_what_cannot_run_is_tried_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "MIN_PAUSE_S", 0.01)
    spec = Spec("m-1", "m", ("-c", "import sys; sys.exit('no such model')"), {})
    one = Supervisor(spec, node_id="0", host="127.0.0.1")
    until(lambda: one.report().num_starts > 2)
    assert one.report().last_words == "it ended with code 1: no such model"
    one.stop()


def test_nothing_is_left_of_a_supervisor_that_was_killed(place: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, ENGINE, str(place)])
    until(place.exists)
    engine = psutil.Process(json.loads(place.read_text())["pid"])
    parent.kill()
    parent.wait()
    until(lambda: not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE)
    assert place.with_suffix(".left").exists()  # in order, with its requests moved
