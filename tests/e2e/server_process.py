"""A program that serves, as its user runs it: in a process of its own, and a process group of its
own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

START_TIMEOUT_S = 100.0
STOP_TIMEOUT_S = 60.0
ENGINES = {"engine.process", "engine.replay"}


class ServerProcess:
    """A running (or starting) server. Use it as a context manager: nothing of it is left behind."""

    def __init__(
        self,
        *arguments: str,
        output: Path,
        env: Mapping[str, str] | None = None,
        max_files: int | None = None,
        cwd: Path | None = None,
    ) -> None:
        """arguments: of Python. env: beside this process's own environment. max_files: the hard
        limit on its open files."""
        self._output = output
        self._seen: dict[int, psutil.Process] = {}
        command = [sys.executable, *arguments]
        if max_files is not None:
            command = ["sh", "-c", f'ulimit -n {max_files}; exec "$@"', "sh", *command]
        self.started_at = time.monotonic()
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                cwd=cwd,
                env={**os.environ, **(env or {})},
            )

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        for process in self.survivors():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def is_starting(self) -> None:
        """Wait a moment. Raises ``AssertionError`` if it has ended or takes too long."""
        assert self.process.poll() is None, f"the server ended: {self.output()}"
        assert time.monotonic() - self.started_at < START_TIMEOUT_S, self.output()
        time.sleep(0.02)

    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def look(self) -> list[psutil.Process]:
        """All processes of the server, this moment's remembered for ``survivors``."""
        try:
            family = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        self._seen.update({process.pid: process for process in family})
        return family

    def engine(self) -> psutil.Process:
        """The only engine's process."""
        (engine,) = self.engines()
        return engine

    def engines(self) -> list[psutil.Process]:
        """The engines' processes, by their command lines. A child that one forks has the same one
        for a moment, and torch in its memory, too."""
        family = {process.pid: process for process in self.look() if is_engine(process)}
        return [process for process in family.values() if parent_of(process) not in family]

    def interrupt_group(self) -> None:
        """As Ctrl-C in a terminal: SIGINT to every process of the group."""
        self.look()
        os.killpg(self.process.pid, signal.SIGINT)

    def stop(self) -> int:
        """SIGTERM, then the exit code."""
        self.look()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the server did not stop: {self.output()}") from None

    def survivors(self) -> list[psutil.Process]:
        """Processes of the server that outlived it (given a moment to be reaped)."""
        alive = psutil.wait_procs(list(self._seen.values()), timeout=30)[1]
        return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def is_engine(process: psutil.Process) -> bool:
    return not ENGINES.isdisjoint(command_of(process))


def command_of(process: psutil.Process) -> list[str]:
    """Its command line; nothing if it is gone."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def parent_of(process: psutil.Process) -> int | None:
    try:
        return process.ppid()
    except psutil.Error:
        return None
