"""``-n NUMBER``, or ``-n auto`` as in ``make test``: tests run in several forks of the process that
has collected them, so that all that is imported and collected is so once.

Each file runs whole in one fork: what it starts for its module is started once. So does each folder
whose tests share a server. A fork asks for the next file before it begins the last test of one, so
that what both need stays.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import sys
import time
import traceback
import warnings
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

import psutil
import pytest
from _pytest._io import TerminalWriter

TOGETHER = ("tests/e2e/on_one_demo/", "tests/e2e/on_one_gateway/")
MAX_WORKERS = 4
"""A container may show more cores than it may use; too many servers at once start too slowly."""
WORKER_MEMORY_BYTES = 4 * 2**30
"""What a fork's programs take at most, and room beside them."""
PATIENCE_S = 20.0
"""How long forks may take to end after Ctrl-C."""
_SIZE_BYTES = 4


def num_workers(wanted: str) -> int:
    """For ``auto`` one more than the cores, as the tests of whole programs mostly wait; 1 beside a
    GPU, as the tests on it take most of its memory, one after the other."""
    if wanted != "auto":
        return int(wanted)
    if Path("/dev/nvidiactl").exists():
        return 1
    fitting = psutil.virtual_memory().available // WORKER_MEMORY_BYTES
    return max(1, min((os.cpu_count() or 1) + 1, MAX_WORKERS, fitting))


def unit_of(nodeid: str) -> str:
    """What runs whole in one fork: the test's file, or its folder."""
    file = nodeid.partition("::")[0]
    return next((folder for folder in TOGETHER if file.startswith(folder)), file)


def units_of(nodeids: Sequence[str], seconds: Mapping[str, float]) -> list[list[int]]:
    """The tests' indices by unit. What takes long comes first, so that at the end nobody waits for
    it. seconds: by file."""
    of_units: dict[str, float] = defaultdict(float)
    for file, taken in seconds.items():
        of_units[unit_of(file)] += taken
    units: dict[str, list[int]] = defaultdict(list)
    for index, nodeid in enumerate(nodeids):
        units[unit_of(nodeid)].append(index)
    return [units[name] for name in sorted(units, key=lambda name: -of_units[name])]


class Meter(Protocol):
    """What each fork measures of itself, and what is done with that at the end."""

    def begin(self) -> None: ...

    def told(self) -> object: ...

    def add(self, told: Any) -> None: ...


class Worker:
    """A fork, seen from the process that has made it."""

    def __init__(self, session: pytest.Session, meter: Meter, number: int) -> None:
        self.socket, theirs = socket.socketpair()
        self.is_stopping = self.is_finished = False
        self.given: deque[int] = deque()
        """Tests that it has not finished; the first may be running."""
        self.how_ended: str | None = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside other threads
            self.pid = os.fork()
        if self.pid == 0:
            self.socket.close()
            _work(session, theirs, meter, number)
        theirs.close()

    def has_ended(self) -> bool:
        if self.how_ended is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid != 0:
                code = os.waitstatus_to_exitcode(status)
                self.how_ended = f"signal {-code}" if code < 0 else f"code {code}"
        return self.how_ended is not None

    def is_silent(self) -> bool:
        """Whether nothing more is there to be heard."""
        if not select.select([self.socket], (), (), 0)[0]:
            return True
        try:
            return self.socket.recv(1, socket.MSG_PEEK) == b""
        except ConnectionError:  # it has not read all that it was told
            return True

    def stop(self) -> None:
        """After the test that runs."""
        if not self.is_stopping:
            self.is_stopping = True
            with contextlib.suppress(OSError):
                _send(self.socket, None)


class Spread:
    """A plugin for the process that collects."""

    def __init__(
        self, config: pytest.Config, count: int, meter: Meter, seconds: Mapping[str, float]
    ) -> None:
        """seconds: that each file took when they were recorded."""
        self._config = config
        self._count = count
        self._meter = meter
        self._seconds = seconds
        self._waiting: deque[list[int]] = deque()
        self._workers: list[Worker] = []
        self._num_started = 0

    def pytest_sessionstart(self) -> None:
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            reporter.showfspath = False  # files alternate

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        option = self._config.option
        if option.collectonly or (session.testsfailed and not option.continue_on_collection_errors):
            return None
        self._waiting.extend(units_of([item.nodeid for item in session.items], self._seconds))
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        try:
            for _ in range(min(self._count, len(self._waiting))):
                self._start(session)
            while self._workers:
                self._listen(session)
        finally:
            self._end()
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        return True

    def _start(self, session: pytest.Session) -> None:
        self._workers.append(Worker(session, self._meter, self._num_started))
        self._num_started += 1

    def _listen(self, session: pytest.Session) -> None:
        by_socket = {worker.socket: worker for worker in self._workers}
        for ready in select.select(list(by_socket), (), (), 1.0)[0]:
            worker = by_socket[ready]
            if not worker.is_silent():
                self._hear(session, worker, *_receive(ready))
        for worker in [*self._workers]:
            if worker.has_ended() and worker.is_silent():
                self._workers.remove(worker)
                worker.socket.close()
                if not worker.is_finished:
                    self._replace(session, worker)
        if session.shouldfail or session.shouldstop:
            self._waiting.clear()
            for worker in self._workers:
                worker.stop()

    def _hear(self, session: pytest.Session, worker: Worker, kind: str, said: Any) -> None:
        hook = self._config.hook
        if kind == "next":
            unit = self._waiting.popleft() if self._waiting else None
            worker.given.extend(unit or ())
            if not worker.is_stopping:
                worker.is_stopping = unit is None
                _send(worker.socket, unit)
        elif kind == "report":
            report = hook.pytest_report_from_serializable(config=self._config, data=said)
            hook.pytest_runtest_logreport(report=report)
        elif kind == "test finished":
            worker.given.popleft()
            item = session.items[said]
            hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        elif kind == "finished":
            worker.is_finished = True
            self._meter.add(said)
        else:
            raise RuntimeError(f"a fork cannot go on:\n{said}")

    def _replace(self, session: pytest.Session, worker: Worker) -> None:
        """A test that ends its process has failed; another fork goes on with the next."""
        if not worker.given:
            raise RuntimeError(f"a fork has ended with {worker.how_ended}")
        item = session.items[worker.given.popleft()]
        words = f"its process has ended with {worker.how_ended}"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", words, "call")
        self._config.hook.pytest_runtest_logreport(report=report)
        if worker.given:
            self._waiting.appendleft(list(worker.given))
        if self._waiting and not (session.shouldfail or session.shouldstop):
            self._start(session)

    def _end(self) -> None:
        """They have heard Ctrl-C, too, if that is why."""
        for worker in self._workers:
            worker.stop()
        deadline = time.monotonic() + PATIENCE_S
        for worker in self._workers:
            while not worker.has_ended():
                if time.monotonic() > deadline:
                    os.kill(worker.pid, signal.SIGKILL)
                time.sleep(0.02)
            worker.socket.close()
        self._workers.clear()


class _Reporting:
    """A plugin for a fork: what others would write down is told to the process that has made it."""

    def __init__(self, config: pytest.Config, told: socket.socket) -> None:
        self._config = config
        self._told = told

    @property
    def _tw(self) -> TerminalWriter:
        """Where a test that takes too long says where it was, before it fails: beside its own
        words. It is asked for by this name of the plugin that we replace."""
        return TerminalWriter(sys.stderr)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        _send(self._told, ("report", data))


def _work(session: pytest.Session, asked: socket.socket, meter: Meter, number: int) -> NoReturn:
    code = 1
    try:
        cleanups = _begin(session, asked, number)
        meter.begin()
        for index, following in _indices(session, asked):
            nextitem = None if following is None else session.items[following]
            session.config.hook.pytest_runtest_protocol(
                item=session.items[index], nextitem=nextitem
            )
            _send(asked, ("test finished", index))
            if session.shouldfail or session.shouldstop or _is_told_to_stop(asked):
                break
        session._setupstate.teardown_exact(None)
        cleanups.close()
        _send(asked, ("finished", meter.told()))
        code = 0
    except BaseException:
        with contextlib.suppress(Exception):
            session._setupstate.teardown_exact(None)
            cleanups.close()
        with contextlib.suppress(OSError):
            _send(asked, ("failed", traceback.format_exc()))
    finally:
        sys.stdout.flush()
        os._exit(code)


def _begin(session: pytest.Session, asked: socket.socket, number: int) -> contextlib.ExitStack:
    """Become a process of its own. Returns what its tests will leave to clean up."""
    config: Any = session.config
    manager = config.pluginmanager
    manager.unregister(name="terminalreporter")
    manager.register(_Reporting(config, asked), "terminalreporter")
    config._cleanup_stack = contextlib.ExitStack()
    capture = manager.getplugin("capturemanager")
    capture.stop_global_capturing()  # into files that all forks would share
    capture.start_global_capturing()
    capture.suspend_global_capture()
    factory = config._tmp_path_factory
    factory._basetemp = factory.getbasetemp() / f"fork{number}"
    factory._basetemp.mkdir(mode=0o700)
    cleanups: contextlib.ExitStack = config._cleanup_stack
    return cleanups


def _indices(session: pytest.Session, asked: socket.socket) -> Iterator[tuple[int, int | None]]:
    """Of the tests to run, each with the next."""
    todo: deque[int] = deque()
    is_more = True
    while is_more or todo:
        if is_more and len(todo) < 2:
            _send(asked, ("next", None))
            unit = _receive(asked)
            is_more = unit is not None
            todo.extend(unit or ())
        elif todo:
            index = todo.popleft()
            yield index, todo[0] if todo else None


def _is_told_to_stop(asked: socket.socket) -> bool:
    return bool(select.select([asked], (), (), 0)[0])


def _send(to: socket.socket, message: object) -> None:
    data = pickle.dumps(message)
    to.sendall(len(data).to_bytes(_SIZE_BYTES, "big") + data)


def _receive(source: socket.socket) -> Any:
    """Raises ``EOFError`` if the other has gone."""
    size = int.from_bytes(_exactly(source, _SIZE_BYTES), "big")
    return pickle.loads(_exactly(source, size))


def _exactly(source: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        try:
            piece = source.recv(size - len(data))
        except ConnectionError:
            piece = b""
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)
