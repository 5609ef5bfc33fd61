"""One of several gateway processes on one port, with engines that the supervisor owns.

The supervisor runs ``python -m gateway.processes.worker``. The first line of its stdin is a
``Launch``, each further one says how an engine ended (``Ended``); the end of that pipe means that
the supervisor has ended, and stops the worker. It writes one line to stdout when it serves or
cannot start (``Started``), one for each engine that is to be started anew (``Retire``), and
periodically empty lines, *beats*, which tell the supervisor that its event loop runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from engine.errors import EngineError
from engine.garbage import return_large_blocks, tune_collector
from gateway import logs
from gateway.config import Config
from gateway.errors import SetupError
from gateway.processes import server
from gateway.processes.fleet import attached_fleets
from tenants.errors import TenantsError

BEATS = 10
"""Beats in ``worker_hang_timeout_s``."""
TICKS, TICK_S = 20, 0.1
"""Timers in a beat, which show how late the event loop is, and the least time between two."""
MIN_LATE_S = 0.5
"""A beat is sent if the loop was late for less than this, however short the beat is: on a busy
machine every timer is late."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker reads from stdin, as JSON."""

    config: Config
    """The settings; ``server.port`` is the port of the supervisor's socket."""
    engine_addresses: tuple[str, ...]
    metrics_folder: str

    @property
    def beat_s(self) -> float:
        """Time from one beat to the next."""
        return self.config.server.worker_hang_timeout_s / BEATS


class Started(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker writes to stdout, as JSON: that it serves, or why not."""

    error: str | None = None


class Retire(msgspec.Struct, frozen=True, kw_only=True):
    """That an engine is to be started anew, which the registry says. All workers write it."""

    engine: str
    """Its name."""
    epoch: int
    """Which is to end; there may be a later one already."""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """What the supervisor writes to all workers, as JSON: how an engine ended."""

    engine: str
    epoch: int
    was_killed: bool
    """As of ``EngineClient``."""


async def serve(launch: Launch) -> None:
    """Serve until SIGTERM; raises as ``server.serve`` does."""

    def retire(name: str) -> None:
        (found,) = [one for one in engine.engines if one.name == name]
        _say(Retire(engine=name, epoch=found.info.epoch))

    engine = attached_fleets(launch.config, launch.engine_addresses, retire)

    def hear(line: bytes) -> None:
        said = msgspec.json.decode(line, type=Ended)
        engine.learn(said.engine, said.epoch, was_killed=said.was_killed)

    _follow_the_supervisor(hear)

    def begin(_url: str) -> None:
        tune_collector()
        return_large_blocks()
        _say(Started())

    beating = asyncio.create_task(_beat(launch.beat_s), name="beats")
    try:
        with contextlib.closing(server.bind(launch.config.server, shared=True)) as listener:
            await server.serve_on(
                listener,
                launch.config,
                engine,
                begin,
                metrics_folder=Path(launch.metrics_folder),
            )
    finally:
        beating.cancel()


async def _beat(beat_s: float) -> None:
    """Send a beat after each ``beat_s`` in which the loop was late for less than half of the time.

    A loop that stands still for seconds, and runs for a moment between, serves nobody either.
    """
    loop, stdout = asyncio.get_running_loop(), sys.stdout.fileno()
    tick_s = min(beat_s, max(TICK_S, beat_s / TICKS))
    most_s = max(beat_s / 2, MIN_LATE_S)
    late_s = 0.0
    while True:
        if late_s < most_s:
            # The write must not block: a supervisor that hangs must not stop its workers.
            os.set_blocking(stdout, False)
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(stdout, b"\n")
            os.set_blocking(stdout, True)
        began_s, late_s = loop.time(), 0.0
        while (now_s := loop.time()) < began_s + beat_s:
            await asyncio.sleep(tick_s)
            late_s += loop.time() - now_s - tick_s


def _say(what: Started | Retire) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(what) + b"\n")
    sys.stdout.buffer.flush()


def _follow_the_supervisor(hear: Callable[[bytes], None]) -> None:
    """Have the event loop hear each line of the supervisor, and stop with it."""
    loop = asyncio.get_running_loop()

    def watch() -> None:
        rest = b""
        while data := os.read(0, 1024):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                with contextlib.suppress(RuntimeError):  # The loop is closed.
                    loop.call_soon_threadsafe(hear, line)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="supervisor-watch", daemon=True).start()


def main() -> int:
    import uvloop

    launch = msgspec.json.decode(sys.stdin.buffer.readline(), type=Launch)
    logs.configure(launch.config.server.log_level, launch.config.server.log_format, has_pid=True)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(launch))
    except (SetupError, TenantsError, EngineError, OSError) as error:
        _say(Started(error=str(error)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
