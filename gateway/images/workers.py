"""The processes that decode pictures: started when needed, killed when a job hangs, replaced when
they have died."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from functools import partial
from uuid import UUID

from engine.launch import import_path
from gateway.errors import Draining, Unavailable
from gateway.images.jobs import LENGTH, Answer, Job, Prepare, Refused, Setup, answer_decoder, framed
from gateway.logs import LogThrottle
from tenants.lanes import Lanes

logger = logging.getLogger(__name__)

_WALL_PER_CPU = 20.0
"""The time that a job may take for each second of processor time: on a busy machine it waits."""
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")
_TRIES = 2
"""A job whose process dies is tried once more: something else may have killed it."""
_TOO_LONG = Refused("image_too_large", "the image takes too long to be decoded")


class Workers:
    """At most ``number`` processes, of which one tenant has all but one at most."""

    def __init__(self, number: int, setup: Setup) -> None:
        self._setup = setup
        self._free = asyncio.Semaphore(number)
        self._idle: list[Process] = []
        self._all: set[Process] = set()
        self._lanes = Lanes(max(1, number - 1))
        self._deaths = LogThrottle(burst=5, per_s=0.1)
        self._closed = False

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._all]

    async def start(self) -> None:
        """Start one now, so that the first picture need not wait for it."""
        async with self._free:
            self._idle.append(await self._started())

    async def do(self, job: Job, tenant: UUID) -> Answer:
        """Do a job at its tenant's turn. If the caller is cancelled it goes on, and its file is
        removed. Raises ``Unavailable``."""
        work: list[asyncio.Task[Answer]] = []

        def start() -> asyncio.Task[Answer]:
            work.append(asyncio.create_task(self._tried(job), name="image"))
            return work[0]

        try:
            return await self._lanes.run(tenant, start)
        except asyncio.CancelledError:
            if work and isinstance(job, Prepare):
                work[0].add_done_callback(partial(_discard, job.file))
            raise

    async def _tried(self, job: Job) -> Answer:
        for _ in range(_TRIES):
            async with self._free:
                answer = await self._attempt(job)
            if answer is not None:
                return answer
        return Refused("image_parse_error", "the process that decoded the image has died of it")

    async def _attempt(self, job: Job) -> Answer | None:
        """None if the process has died, not for its limits."""
        process = self._idle.pop() if self._idle else await self._started()
        wall_s = self._setup.timeout_s * _WALL_PER_CPU
        try:
            async with asyncio.timeout(wall_s):
                answer = await _ask(process, job)
        except TimeoutError:
            await self._end(process)
            return _TOO_LONG
        except (OSError, asyncio.IncompleteReadError):
            code = await self._end(process)
            if code == -signal.SIGPROF:
                return _TOO_LONG
            if not self._closed and self._deaths.admit(code) is not None:
                logger.warning("a process that decodes images has ended with code %d", code)
            return None
        except BaseException:
            await self._end(process)
            raise
        self._idle.append(process)
        return answer

    async def _started(self) -> Process:
        """A new process. Raises ``Unavailable``."""
        self._check_open()
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "gateway.images.worker"),
                stdin=PIPE,
                stdout=PIPE,
                env=_environment(),
                start_new_session=True,  # Ctrl-C in a terminal must not reach it.
            )
        except OSError as error:  # no memory, no process ids, no file descriptors
            logger.error("no process to decode images starts: %s", error)
            raise Unavailable("No image can be decoded at the moment.", retry_after_s=5) from None
        self._all.add(process)
        if self._closed:
            await self._end(process)
        self._check_open()
        _send(process, self._setup)
        return process

    def _check_open(self) -> None:
        if self._closed:
            raise Draining("The server is shutting down.", retry_after_s=1)

    async def close(self) -> None:
        """End all; jobs under way fail. Idempotent."""
        self._closed = True
        self._idle.clear()
        await asyncio.gather(*map(self._end, list(self._all)))

    async def _end(self, process: Process) -> int:
        """Returns how it ended, as ``Process.returncode``."""
        self._all.discard(process)
        if process.stdout is not None and process.stdout.at_eof():
            await process.wait()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        return await process.wait()


def _environment() -> dict[str, str]:
    """No more than it needs: the gateway's own holds secrets."""
    given = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return {**given, "PYTHONPATH": import_path(), "OMP_NUM_THREADS": "1"}


def _discard(file: str, _: asyncio.Task[Answer]) -> None:
    with contextlib.suppress(OSError):
        os.unlink(file)


def _send(process: Process, message: Setup | Job) -> asyncio.StreamWriter:
    assert process.stdin is not None
    for part in framed(message):
        process.stdin.write(part)
    return process.stdin


async def _ask(process: Process, job: Job) -> Answer:
    assert process.stdout is not None
    await _send(process, job).drain()
    head = await process.stdout.readexactly(LENGTH.size)
    return answer_decoder.decode(await process.stdout.readexactly(LENGTH.unpack(head)[0]))
