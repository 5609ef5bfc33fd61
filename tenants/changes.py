"""What administrators change reaches every worker: PostgreSQL's LISTEN, on a connection of its own.

A notification that is sent while nobody listens is lost. So when the line breaks, and again when
there is a new one, everything counts as changed; and while connected a query proves once a second
that the line is alive: ``age_s`` is how long ago it last was, for the metrics.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

import asyncpg

from tenants.dsn import check_dsn, describe
from tenants.outage import OutageLog

logger = logging.getLogger(__name__)

CHANNEL = "sluice_changes"
_BROKEN = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a query while the news of the end arrives: asyncpg issue 784
)


class Change(NamedTuple):
    """What to forget: a key, all keys of a tenant or, when all fields are None, everything.

    With a ``request_id``, nothing is forgotten: that request is to be ended. An ``adapter_id`` is
    for the engine to forget.
    """

    public_id: str | None = None
    tenant_id: UUID | None = None
    request_id: UUID | None = None
    adapter_id: UUID | None = None


EVERYTHING = Change()


def parse(payload: str) -> Change:
    """Parse a notification. What a newer version may send is taken to mean that everything
    changed."""
    kind, _, name = payload.partition(" ")
    try:
        if kind == "key":
            return Change(public_id=name)
        if kind == "tenant":
            return Change(tenant_id=UUID(name))
        if kind == "request":
            return Change(request_id=UUID(name))
        if kind == "adapter":
            return Change(adapter_id=UUID(name))
    except ValueError:
        pass
    return EVERYTHING


class ChangeListener:
    """Hands changes to ``on_change``, in the event loop, for as long as ``run`` runs.

    Not through a pooler in transaction mode: LISTEN belongs to a session.
    """

    def __init__(
        self,
        dsn: str,
        on_change: Callable[[Change], None],
        *,
        connect_timeout_s: float = 5.0,
        check_interval_s: float = 1.0,
        max_backoff_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dsn = check_dsn(dsn)
        self._on_change = on_change
        self._connect_timeout_s = connect_timeout_s
        self._check_interval_s = check_interval_s
        self._max_backoff_s = max_backoff_s
        self._clock = clock
        self._outage = OutageLog(logger, clock=clock)
        self._heard_at = clock()
        self._num_connects = 0

    @property
    def age_s(self) -> float:
        """Seconds since the line was last known to be alive."""
        return self._clock() - self._heard_at

    @property
    def num_connects(self) -> int:
        """How often a connection was made; each time, everything was forgotten."""
        return self._num_connects

    async def run(self) -> None:
        """Listen until cancelled; connect again whenever the line breaks."""
        backoff_s = 0.05
        while True:
            try:
                connection = await asyncpg.connect(
                    self._dsn,
                    timeout=self._connect_timeout_s,
                    server_settings={"application_name": "sluice listen"},
                )
                backoff_s = 0.05
                try:
                    await self._listen(connection)
                finally:
                    connection.terminate()
                    self._on_change(EVERYTHING)
            except _BROKEN as error:
                reason = str(error) or type(error).__name__
                self._outage.failed("Not listening to %s: %s", describe(self._dsn), reason)
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
            backoff_s = min(self._max_backoff_s, backoff_s * 2)

    async def _listen(self, connection: asyncpg.Connection) -> None:
        await connection.add_listener(CHANNEL, self._hear)
        self._num_connects += 1
        self._on_change(EVERYTHING)
        while True:
            await connection.execute("SELECT 1", timeout=self._connect_timeout_s)
            self._heard_at = self._clock()
            self._outage.succeeded("Listening to %s again", describe(self._dsn))
            await asyncio.sleep(self._check_interval_s)

    def _hear(self, _connection: object, _pid: int, _channel: str, payload: str) -> None:
        self._heard_at = self._clock()
        self._on_change(parse(payload))
