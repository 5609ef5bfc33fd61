"""``sluice demo`` as its user runs it: a process of its own, in a process group of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

START_TIMEOUT_S = 100.0
STOP_TIMEOUT_S = 60.0


class DemoProcess:
    """A running (or starting) demo. Use it as a context manager: nothing of it is left behind."""

    def __init__(
        self, data_dir: Path, *arguments: str, name: str = "demo", max_files: int | None = None
    ) -> None:
        """max_files: the hard limit on its open files."""
        self.data_dir = data_dir
        self._ready_file = data_dir.with_name(f"{name}-ready.json")
        self._output = data_dir.with_name(f"{name}-output.txt")
        self._ready_file.unlink(missing_ok=True)
        self._seen: dict[int, psutil.Process] = {}
        command = [
            *(sys.executable, "-m", "gateway", "demo", "--port", "0"),
            *("--data-dir", str(data_dir), "--ready-file", str(self._ready_file), *arguments),
        ]
        if max_files is not None:
            command = ["sh", "-c", f'ulimit -n {max_files}; exec "$@"', "sh", *command]
        self.started_at = time.monotonic()
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def __enter__(self) -> DemoProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        for process in self.survivors():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._ready_file.unlink(missing_ok=True)

    def wait_ready(self) -> dict[str, Any]:
        """The contents of the ready file, once it is there."""
        while not self._ready_file.exists():
            assert self.process.poll() is None, f"the demo ended: {self.output()}"
            assert time.monotonic() - self.started_at < START_TIMEOUT_S, self.output()
            time.sleep(0.02)
        self.ready_after_s = time.monotonic() - self.started_at
        self.look()
        ready: dict[str, Any] = json.loads(self._ready_file.read_text())
        return ready

    @property
    def ready_file(self) -> Path:
        return self._ready_file

    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def look(self) -> list[psutil.Process]:
        """All processes of the demo, this moment's remembered for ``survivors``."""
        try:
            family = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        self._seen.update({process.pid: process for process in family})
        return family

    def engine(self) -> psutil.Process:
        """The engine's process, by its command line. A child that it forks has the same one for
        a moment, and torch in its memory, too."""
        family = {process.pid: process for process in self.look() if is_engine(process)}
        (engine,) = [process for process in family.values() if parent_of(process) not in family]
        return engine

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
            raise AssertionError(f"the demo did not stop: {self.output()}") from None

    def survivors(self) -> list[psutil.Process]:
        """Processes of the demo that outlived it (given a moment to be reaped)."""
        alive = psutil.wait_procs(list(self._seen.values()), timeout=30)[1]
        return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def is_engine(process: psutil.Process) -> bool:
    try:
        return "engine.process" in process.cmdline()
    except psutil.Error:  # gone
        return False


def parent_of(process: psutil.Process) -> int | None:
    try:
        return process.ppid()
    except psutil.Error:
        return None


def maps_torch(pid: int) -> bool:
    """Whether a process has torch's library in its memory."""
    try:
        return "libtorch" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:  # another account's process, or gone
        return False
