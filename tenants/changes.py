"""Reports changes by administrators to every worker, through LISTEN on a connection of its own.

A notification that is sent while nobody listens is lost. So when the connection breaks, and again
when there is a new one, everything counts as changed. While connected, a query once a second proves
that the connection is alive; ``age_s`` reports how long ago that was last known.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

import asyncpg

from tenants.backoff import Backoff
from tenants.dsn import check_dsn, describe
from tenants.outage import OutageLog

logger = logging.getLogger(__name__)

CHANNEL = "sluice_changes"
CONNECT_TIMEOUT_S = 5.0
_BROKEN = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a query while the connection is being lost: asyncpg issue 784
)


class Change(NamedTuple):
    """What has changed: a key, all keys of a tenant, or everything if all fields are None.

    ``request_id``: no change, but a request that is to be ended. ``adapter_id``: an adapter that
    was deleted. ``engine_id``: of the registry.
    """

    public_id: str | None = None
    tenant_id: UUID | None = None
    request_id: UUID | None = None
    adapter_id: UUID | None = None
    engine_id: str | None = None


EVERYTHING = Change()


def parse(payload: str) -> Change:
    """Parse a notification. An unknown one, of a newer version, means that everything changed."""
    kind, _, name = payload.partition(" ")
    try:
        if kind == "key":
            return Change(public_id=name)
        if kind == "engine":
            return Change(engine_id=name)
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
    """Calls ``on_change`` in the event loop for each change, as long as ``run`` runs.

    ``dsn`` must not lead to a pooler in transaction mode, because LISTEN belongs to a session.
    """

    def __init__(
        self,
        dsn: str,
        on_change: Callable[[Change], None],
        *,
        check_interval_s: float = 1.0,
        max_backoff_s: float = 2.0,
    ) -> None:
        self._dsn = check_dsn(dsn)
        self._on_change = on_change
        self._check_interval_s = check_interval_s
        self._backoff = Backoff(0.05, max_backoff_s, has_jitter=True)
        self._outage = OutageLog(logger)
        self._heard_at = time.monotonic()
        self._num_connects = 0

    @property
    def age_s(self) -> float:
        """Seconds since the connection was last known to be alive."""
        return time.monotonic() - self._heard_at

    @property
    def num_connects(self) -> int:
        """How often a connection was made; each time, everything was forgotten."""
        return self._num_connects

    async def run(self) -> None:
        """Listen until cancelled, and connect again whenever the connection breaks."""
        while True:
            try:
                connection = await asyncpg.connect(
                    self._dsn,
                    timeout=CONNECT_TIMEOUT_S,
                    server_settings={"application_name": "sluice listen"},
                )
                self._backoff.reset()
                try:
                    await self._listen(connection)
                finally:
                    connection.terminate()
                    self._on_change(EVERYTHING)
            except _BROKEN as error:
                reason = str(error) or type(error).__name__
                self._outage.failed("Not listening to %s: %s", describe(self._dsn), reason)
            await asyncio.sleep(self._backoff.next_s())

    async def _listen(self, connection: asyncpg.Connection) -> None:
        await connection.add_listener(CHANNEL, self._hear)
        self._num_connects += 1
        self._on_change(EVERYTHING)
        while True:
            await connection.execute("SELECT 1", timeout=CONNECT_TIMEOUT_S)
            self._heard_at = time.monotonic()
            self._outage.succeeded("Listening to %s again", describe(self._dsn))
            await asyncio.sleep(self._check_interval_s)

    def _hear(self, _connection: object, _pid: int, _channel: str, payload: str) -> None:
        self._heard_at = time.monotonic()
        self._on_change(parse(payload))
