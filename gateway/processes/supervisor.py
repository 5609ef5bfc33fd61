"""Runs several gateway processes (``server.workers``) that share a port and the engines.

The kernel spreads connections over the workers (SO_REUSEPORT), PostgreSQL has the state that they
share, and the same engines serve them all. A worker that dies loses its connections and is
replaced; the others are not affected. A worker that hangs would still get its share of new
connections, so it is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec

from engine.client.client import EngineClient
from engine.client.fleets import Fleets
from engine.client.transport import private_socket_path
from engine.launch import import_path
from engine.messages import LoadProgress
from gateway import logs
from gateway.config import Config, ServerConfig
from gateway.errors import ConfigError, SetupError
from gateway.lifecycle import ABORT_S
from gateway.metrics import worker_metrics
from gateway.peers.peers import sweep
from gateway.processes import listening, server
from gateway.processes.fleet import num_engines, spawned_fleets
from gateway.processes.signals import ending_signals_sent_to
from gateway.processes.worker import BEATS, Ended, Launch, Retire, Started
from tenants.backoff import Backoff

logger = logging.getLogger(__name__)

MIN_BACKOFF_S, MAX_BACKOFF_S = 0.1, 30.0
STABLE_S = 30.0
"""After serving this long, a worker that dies is replaced with the shortest backoff."""
START_SILENCE_S = 120.0
"""The time without a beat that a worker is allowed until it serves, if that is longer than
``worker_hang_timeout_s``: it imports its code and reads the tokenizer before its event loop
runs."""
STOP_MARGIN_S = 10.0
"""Time beyond its own deadlines after which a worker that does not stop is killed."""


class Worker:
    """One gateway process."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        on_retire: Callable[[Retire], None] = lambda _: None,
    ) -> None:
        """``on_retire``: called when the worker says that an engine is to be started anew."""
        self._process = process
        self._on_retire = on_retire
        self._has_beaten = False
        self._start: asyncio.Future[Started | None] = asyncio.get_running_loop().create_future()
        """The worker's report of its start; None if it ended before."""
        self._hung = False
        self._listening = asyncio.create_task(self._listen(), name=f"beats of worker {self.pid}")

    @classmethod
    async def spawn(
        cls, launch: Launch, on_retire: Callable[[Retire], None] = lambda _: None
    ) -> Worker:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "gateway.processes.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": import_path()},
            start_new_session=True,  # Ctrl-C in a terminal must reach the supervisor only.
        )
        assert process.stdin is not None
        # The pipe stays open. Its end tells the worker that the supervisor has died.
        process.stdin.write(msgspec.json.encode(launch) + b"\n")
        return cls(process, on_retire)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def started(self) -> None:
        """Wait until the worker serves. Raises ``SetupError`` with its own message if it cannot."""
        started = await asyncio.shield(self._start)
        if started is None:
            code = await self._process.wait()
            how = "hung and was killed" if self._hung else f"ended with code {code}"
            raise SetupError(f"a gateway worker {how}: see its output above")
        if started.error is not None:
            await self._process.wait()
            raise SetupError(started.error)

    async def ended(self) -> int:
        """Its exit code, negative for a signal's number."""
        return await self._process.wait()

    async def kill_if_it_hangs(self, beat_s: float) -> None:
        """Kill the worker when ``BEATS`` more intervals of ``beat_s`` passed without a beat than
        with one; before it serves, when that lasts ``START_SILENCE_S`` if that is longer.

        One beat does not excuse a long silence: a loop that is flooded runs for a moment between
        two stalls.

        Missed beats are counted, and time is not measured, so that a pause of this process itself
        (a suspended machine) counts as one beat only.
        """
        num_missed = 0
        while num_missed < (most := self._max_missed(beat_s)):
            self._has_beaten = False
            await asyncio.sleep(beat_s)
            num_missed = max(0, num_missed - 1) if self._has_beaten else num_missed + 1
        logger.error(
            "worker %d is killed: its event loop has stood still for most of %g s",
            self.pid,
            most * beat_s,
        )
        self._hung = True
        self.signal(signal.SIGKILL)

    def _max_missed(self, beat_s: float) -> int:
        return BEATS if self._start.done() else max(BEATS, math.ceil(START_SILENCE_S / beat_s))

    async def _listen(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        try:
            while True:
                # Other lines are beats, or output of a library, which may be of any length.
                with contextlib.suppress(msgspec.DecodeError, ValueError):
                    if not (line := await stdout.readline()):
                        break
                    self._has_beaten = True
                    self._hear(line)
        finally:
            if not self._start.done():
                self._start.set_result(None)

    def _hear(self, line: bytes) -> None:
        """Raises ``msgspec.DecodeError`` if it is none of a worker's words."""
        if not self._start.done():
            self._start.set_result(msgspec.json.decode(line, type=Started))
        else:
            self._on_retire(msgspec.json.decode(line, type=Retire))

    def tell(self, ended: Ended) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(ended) + b"\n")

    async def stop(self, timeout_s: float) -> None:
        """Ask the worker to shut down, and kill it after ``timeout_s``."""
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(timeout_s):
                await self.ended()
        except TimeoutError:
            logger.error("a worker did not stop in %g s and is killed", timeout_s)
        finally:
            self.signal(signal.SIGKILL)
            self._listening.cancel()
        await self.ended()

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)


class Supervisor:
    """Keeps ``server.workers`` workers running."""

    def __init__(
        self, launch: Launch, on_retire: Callable[[Retire], None] = lambda _: None
    ) -> None:
        """``on_retire``: as of ``Worker``."""
        self._launch = launch
        self._on_retire = on_retire
        self._stop_timeout_s = launch.config.server.shutdown_timeout_s + ABORT_S + STOP_MARGIN_S
        self._workers: set[Worker] = set()
        self._first_start = asyncio.Barrier(launch.config.server.workers + 1)

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Keep workers running until cancelled. Raises ``SetupError`` if a worker cannot start the
        first time."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._launch.config.server.workers):
                group.create_task(self._keep_one())
            await self._first_start.wait()
            on_ready()

    def tell(self, engine: EngineClient) -> None:
        """Tell all workers how an engine has ended."""
        ended = Ended(engine=engine.name, epoch=engine.epoch, was_killed=bool(engine.was_killed))
        for worker in self._workers:
            worker.tell(ended)

    def hurry(self) -> None:
        """Abort the requests that the workers still wait for. Call it after ``run`` was
        cancelled."""
        for worker in self._workers:
            worker.signal(signal.SIGINT)

    async def _keep_one(self) -> None:
        """Run one worker, replacing it whenever it dies."""
        await self._live(self._first_start.wait)
        backoff = Backoff(MIN_BACKOFF_S, MAX_BACKOFF_S)
        while True:
            await asyncio.sleep(backoff.next_s())
            began = time.monotonic()
            try:
                await self._live()
            except SetupError as error:
                logger.error("a worker could not be replaced: %s", error)
            if time.monotonic() - began > STABLE_S:
                backoff.reset()

    async def _live(self, on_start: Callable[[], Awaitable[object]] | None = None) -> None:
        """Run one worker from start to end."""
        worker = await Worker.spawn(self._launch, self._on_retire)
        self._workers.add(worker)
        watching = asyncio.create_task(
            worker.kill_if_it_hangs(self._launch.beat_s), name=f"watch over worker {worker.pid}"
        )
        try:
            await worker.started()
            if on_start is not None:
                await on_start()
            code = await worker.ended()
            logger.error("worker %d ended with code %d and is replaced", worker.pid, code)
        finally:
            watching.cancel()
            await asyncio.shield(asyncio.create_task(worker.stop(self._stop_timeout_s)))
            self._workers.discard(worker)
            self._bury(worker)

    def _bury(self, worker: Worker) -> None:
        sweep(Path(tempfile.gettempdir()))  # If all stops now, nobody starts who would.
        try:
            worker_metrics.add_ended(Path(self._launch.metrics_folder), worker.pid)
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("what worker %d counted is not in the metrics: %s", worker.pid, error)


async def serve(
    config: Config,
    *,
    on_progress: Callable[[LoadProgress], None] | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """As ``server.serve``, with ``config.server.workers`` processes behind the port."""
    with (
        _reserved(config.server) as reserved,
        _shared_folder(num_engines(config)) as (addresses, metrics_folder),
    ):
        port = reserved.getsockname()[1]
        shared = msgspec.structs.replace(
            config, server=msgspec.structs.replace(config.server, port=port)
        )
        engine = spawned_fleets(config, on_progress=on_progress, addresses=addresses)
        supervisor = Supervisor(
            Launch(config=shared, engine_addresses=addresses, metrics_folder=str(metrics_folder)),
            lambda said: engine.retire(said.engine, said.epoch),
        )
        for one in engine.engines:
            one.on_ended = partial(supervisor.tell, one)

        def ready() -> None:
            has_tls = config.server.tls_certificate is not None
            url = server.url_of(reserved, has_tls=has_tls)
            logger.info("serving on %s with %d workers", url, config.server.workers)
            listening.notify("READY=1")
            if on_ready is not None:
                on_ready(url)

        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(engine.close)
            await _until_stopped(engine, supervisor, ready)


async def _until_stopped(
    engine: Fleets, supervisor: Supervisor, on_ready: Callable[[], None]
) -> None:
    """Run the engine and the workers until a signal or a failure. The workers end first."""
    signalled = asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        if signalled.is_set() and number is signal.SIGINT:
            supervisor.hurry()
        signalled.set()

    with ending_signals_sent_to(on_signal):
        starting = asyncio.create_task(engine.start(), name="engine start")
        working = asyncio.create_task(supervisor.run(on_ready), name="workers")
        stopping = asyncio.create_task(signalled.wait(), name="signals")
        try:
            await asyncio.wait((starting, working, stopping), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (starting, working, stopping):
                task.cancel()
            await asyncio.gather(starting, working, stopping, return_exceptions=True)
    _raise_failure(working)


def _raise_failure(working: asyncio.Task[None]) -> None:
    """Raise the first error of the workers' task group; do nothing if it was only cancelled."""
    if working.cancelled() or (failure := working.exception()) is None:
        return
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    raise failure


@contextlib.contextmanager
def _reserved(config: ServerConfig) -> Iterator[socket.socket]:
    """A socket that reserves the port for the workers. Raises ``AddressInUse`` if another server
    uses the port, even if that shares it."""
    if listening.is_activated():
        raise ConfigError(
            "systemd passes one socket, for one worker; set server.workers = 1, or start without "
            "the .socket unit"
        )
    with contextlib.closing(server.bound(config, shared=False)) as probe:
        port = probe.getsockname()[1]
    known = msgspec.structs.replace(config, port=port)
    with contextlib.closing(server.bound(known, shared=True)) as reserved:
        yield reserved


@contextlib.contextmanager
def _shared_folder(num_engines: int) -> Iterator[tuple[tuple[str, ...], Path]]:
    """A folder for the engines' sockets, and for the metrics of the workers."""
    folder, path = private_socket_path("engine")
    metrics_folder = folder / "metrics"
    metrics_folder.mkdir()
    try:
        yield tuple(f"ipc://{path}{number}" for number in range(num_engines)), metrics_folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(
    config: Config,
    *,
    on_progress: Callable[[LoadProgress], None] | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Run ``serve`` on an event loop of its own. Raises what it raises."""
    logs.configure(config.server.log_level, config.server.log_format, has_pid=True)
    asyncio.run(serve(config, on_progress=on_progress, on_ready=on_ready))
