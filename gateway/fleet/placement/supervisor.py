"""Keeps one engine running on the node where it was placed.

The engine is ``sluice engine``, as one starts it by hand. It is started again when it ends, and it
ends with its supervisor, even if that is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from engine.launch import import_path
from tenants.backoff import Backoff

MIN_PAUSE_S, MAX_PAUSE_S = 1.0, 30.0
STABLE_S = 60.0
"""After an engine has run this long, the pause before its next start is the shortest."""
STOP_S = 30.0
"""How long an engine may take to leave the fleet before it is killed."""
MAX_LINE, NUM_LINES = 4096, 20


class Spec(NamedTuple):
    """An engine to run."""

    name: str
    """Its id in the registry, which no other engine ever had."""
    model: str
    command: tuple[str, ...]
    """Arguments of Python."""
    resources: Mapping[str, float]
    """What it takes of its node, in Ray's names: ``CPU``, ``GPU``, others."""


class Report(NamedTuple):
    """What a supervisor says of its engine."""

    node_id: str
    node: str
    """As operators see it."""
    pid: int | None
    num_starts: int
    last_words: str
    """Of the process that ended last; empty if none did."""
    is_retiring: bool


class Supervisor:
    """Starts the engine in a thread of its own. Methods may be called by several threads."""

    def __init__(self, spec: Spec, *, node_id: str, host: str) -> None:
        """``host``: the node's address for gateways."""
        self._spec, self._node_id, self._host = spec, node_id, host
        self._node = f"{host} ({node_id[:8]})"
        self._ending = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._num_starts = 0
        self._last_words = ""
        self._is_retiring = False
        # The engine is tied to this thread, which lives as long as the process.
        self._keeper = threading.Thread(target=self._keep, name="engine keeper", daemon=True)
        self._keeper.start()

    def report(self) -> Report:
        process = self._process
        return Report(
            node_id=self._node_id,
            node=self._node,
            pid=None if process is None or process.poll() is not None else process.pid,
            num_starts=self._num_starts,
            last_words=self._last_words,
            is_retiring=self._is_retiring,
        )

    def retire(self, is_retiring: bool) -> None:
        """Note that the engine is to go once it has nothing to do. A controller that starts anew
        finds it here."""
        self._is_retiring = is_retiring

    def restart(self) -> None:
        """Have the engine leave the fleet, and start it anew, with the software that is installed
        then."""
        self._signal(signal.SIGTERM)

    def stop(self) -> None:
        """Have the engine leave the fleet, and wait until it has ended. Idempotent."""
        self._ending.set()
        self._signal(signal.SIGTERM)
        self._keeper.join(STOP_S)
        self._signal(signal.SIGKILL)
        self._keeper.join()

    def _signal(self, number: signal.Signals) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    def _keep(self) -> None:
        backoff = Backoff(MIN_PAUSE_S, MAX_PAUSE_S)
        while not self._ending.is_set():
            started_at = time.monotonic()
            try:
                words = self._run_once()
            except OSError as error:
                words = f"cannot be started: {error}"
            if self._ending.is_set():
                return
            self._last_words = words
            if time.monotonic() - started_at > STABLE_S:
                backoff.reset()
            self._ending.wait(backoff.next_s())

    def _run_once(self) -> str:
        """Run the engine until it ends; returns its last words."""
        named = {
            "SLUICE_FLEET_ENGINE_ID": json.dumps(self._spec.name),
            "SLUICE_FLEET_ENGINE_NODE": json.dumps(self._node),
            "SLUICE_FLEET_ENGINE_HOST": json.dumps(self._host),
        }
        python = (sys.executable, "-P")
        tied = (*python, "-m", "gateway.fleet.placement.tied", str(os.getpid()))
        self._num_starts += 1
        with subprocess.Popen(
            [*tied, *python, *self._spec.command],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, **named, "PYTHONPATH": import_path()},
            process_group=0,
        ) as process:
            self._process = process
            if self._ending.is_set():  # ``stop`` came before there was anything to stop.
                self._signal(signal.SIGTERM)
            assert process.stderr is not None
            lines: deque[str] = deque(maxlen=NUM_LINES)
            while line := process.stderr.readline(MAX_LINE):
                lines.append(line.decode(errors="replace").rstrip())
                sys.stderr.buffer.write(line)
                sys.stderr.flush()
            code = process.wait()
        last = next((line for line in reversed(lines) if line), "")
        return f"it ended with code {code}" + (f": {last}" if last else "")
