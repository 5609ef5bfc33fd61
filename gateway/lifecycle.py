"""The gateway's start, and its shutdown in named stages under one deadline.

    1 refuse       nothing new is admitted, /readyz is 503
    2 tell         WebSockets accept no more work; idle ones close
    3 wait         running requests end by themselves, until the deadline; so do readers of
                   streams, which may run at another worker
    4 abort        requests and readers that are left end with an error
    5 settle       the usage of all requests is written to the ledger, or to its journal
    6 close        the background tasks, the grammar compiler, the engine, the journal, the store

``drain`` does 1 to 4, and ``close`` 5 and 6; each acts once. Our server calls ``drain`` before it
closes connections. The ASGI lifespan calls both, so that other servers shut down in order, too.
``start`` queues the settlements of dead processes, and starts the background tasks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.client.fleets import Fleets
from gateway.admission.admission import Admission
from gateway.concurrency.background import Background
from gateway.concurrency.owned_tasks import OwnedTasks
from gateway.errors import ApiError, Draining
from gateway.generation.generation import Generations
from gateway.images.images import Images
from gateway.streams.keyed_reader import Readers
from grammar.compiler import GrammarChecker
from tenants.journal import Journal
from tenants.store import Store
from tenants.types import Principal
from tenants.usage import Ledger

logger = logging.getLogger(__name__)

WARM_UP_AFTER_S = 1.0
"""When the worker processes of the grammar checkers are started: after everything else."""
ABORT_S = 2.0
"""Time after the deadline for aborted requests to send their error, and to be settled."""


class Session(Protocol):
    """A WebSocket session."""

    def drain(self) -> None:
        """Accept no more turns, and close when the last one has ended."""

    @property
    def principal(self) -> Principal | None:
        """Who opened it; None until it is authenticated."""

    def refuse(self, error: ApiError) -> None:
        """Send the error, and close."""


@dataclass(kw_only=True, eq=False)
class Lifecycle:
    """Starts and stops the parts of the gateway in the right order."""

    engine: Fleets
    store: Store
    ledger: Ledger
    journal: Journal
    background: Background
    sessions: set[Session]
    readers: Readers
    admission: Admission
    generations: Generations
    compilers: Sequence[GrammarChecker]
    images: Images | None
    """None if no model sees."""
    timeout_s: float

    def __post_init__(self) -> None:
        self._hurried = asyncio.Event()
        self._closed = False
        self._warm_ups: list[asyncio.TimerHandle] = []
        self._warming = OwnedTasks()

    @property
    def draining(self) -> bool:
        return self.admission.draining

    @property
    def failing(self) -> Sequence[str]:
        """The work beside the requests that is down for long, by name."""
        return self.background.down

    def start(self) -> None:
        """Start the background work. The event loop must be running."""
        try:
            if (num_events := self.ledger.replay()) > 0:
                logger.info("startup: settle %d requests of dead processes", num_events)
        except OSError as error:
            logger.error("startup: settlements of dead processes stay in their files: %s", error)
        self.background.start()
        loop = asyncio.get_running_loop()
        self._warm_ups = [
            loop.call_later(WARM_UP_AFTER_S, compiler.start) for compiler in self.compilers
        ]
        if self.images is not None:
            self._warming.start(self.images.start(), name="start of the image workers")

    async def drain(self) -> None:
        if self.draining:
            return
        logger.info("shutdown: refuse")
        self.admission.drain()
        logger.info("shutdown: tell %d WebSockets", len(self.sessions))
        for session in list(self.sessions):
            session.drain()
        logger.info("shutdown: wait for %d requests", len(self.generations))
        await self._wait_idle_or_hurry()
        error = Draining("The server is shutting down.", retry_after_s=1)
        if len(self.generations):
            logger.warning("shutdown: abort %d requests", len(self.generations))
            self.generations.fail_all(error)
            await self.generations.wait_idle(ABORT_S)
        self.readers.refuse_all(error)

    def hurry(self) -> None:
        """Abort at once the requests that ``drain`` waits for."""
        self._hurried.set()

    async def _wait_idle_or_hurry(self) -> None:
        waiting = (
            asyncio.create_task(self._wait_idle()),
            asyncio.create_task(self._hurried.wait()),
        )
        try:
            await asyncio.wait(waiting, timeout=self.timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()

    async def _wait_idle(self) -> None:
        await self.generations.wait_idle(self.timeout_s)
        await self.readers.wait_empty()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + max(ABORT_S, self.timeout_s / 2)
        logger.info("shutdown: settle")
        await self.generations.drain(deadline - time.monotonic())
        await self.ledger.drain(max(0.0, deadline - time.monotonic()))
        logger.info("shutdown: close")
        await self.background.stop()  # Not before, because it renews the leases of reservations.
        for warm_up in self._warm_ups:
            warm_up.cancel()
        for compiler in self.compilers:
            await asyncio.to_thread(compiler.close)
        self.admission.prompt_threads.close()
        if self.images is not None:
            await self.images.close()
        await self.engine.close()
        # Only the end of a hanging engine ends the requests that it did not answer.
        await self.generations.wait_idle(ABORT_S)
        await self.generations.drain(ABORT_S)
        self.generations.close()
        await self.ledger.close()
        self.journal.close()
        await self.store.close()
