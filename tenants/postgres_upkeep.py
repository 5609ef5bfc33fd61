"""Upkeep of the store in PostgreSQL, over a connection that nothing else uses."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from uuid import UUID

from tenants import queries
from tenants.connections import Connections, Row
from tenants.errors import StoreUnavailable

logger = logging.getLogger(__name__)

SEEN_MONTHS = 3
"""For how many whole months after its own a request's id is remembered, if the ledger is kept as
long. A settlement that is repeated later is written twice."""
_MAX_AHEAD_S = 86_400.0
"""By how much PostgreSQL's clock may be ahead of this host's for months to be dropped by it."""
_ROLL_UP_ROWS = 5_000
_STRAYS, BLOCKS = 2_000, 16
"""Rows of the ledger, and blocks of the table of its requests, that a statement looks through."""
_TOUCHED_KEYS = 500
"""Keys per statement, which locks all of them until its end."""
_TRIES, _PAUSE_S = 100, 0.1
"""How often a statement is tried on a table that is in use. Each try holds up others for some
milliseconds at most."""

_SQL = queries.load()


class PostgresUpkeep:
    """What ``Store`` and ``SharedState`` say of its methods holds. They work in portions, each in a
    transaction of its own; between those of work that may be long they rest, so that settlements
    have the processor and the disk for at least half of the time."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def roll_up(self) -> None:
        while (await self._one("roll_up", _ROLL_UP_ROWS))["moved"] == _ROLL_UP_ROWS:
            pass

    async def delete_expired(self, conversation_days: int | None) -> int:
        expired: int = (await self._one("delete_expired", conversation_days))["num_rows"]
        purged: int = (await self._one("purge_deleted"))["num_rows"]
        return expired + purged

    async def purge(self, tenant_id: UUID) -> None:
        while (await self._one("purge_tenant", tenant_id))["num_rows"]:
            pass

    async def webhooks(self) -> int:
        num_rows: int = (await self._one("webhook_upkeep"))["num_rows"]
        return num_rows

    async def touch_keys(self, last_used: Mapping[UUID, datetime]) -> None:
        for portion in _portions(sorted(last_used), _TOUCHED_KEYS):
            async with _rest():
                await self._all("touch_keys", portion, [last_used[key_id] for key_id in portion])

    async def maintain(self, *, usage_retention_months: int | None = None) -> None:
        await self._when_free("add_partitions")
        if not await self._knows_the_month():
            return
        if usage_retention_months is not None:
            while (await self._when_free("drop_partition", "usage_event", usage_retention_months))[
                "dropped"
            ]:
                pass
            num_dropped = 1
            while num_dropped:
                async with _rest():
                    row = await self._one("drop_strays", usage_retention_months, _STRAYS)
                    num_dropped = row["dropped"]
        seen_months = min(SEEN_MONTHS, usage_retention_months or SEEN_MONTHS)
        while (await self._when_free("drop_partition", "usage_seen", seen_months))["dropped"]:
            pass
        block, num_blocks = 0, 1
        while block < num_blocks:
            async with _rest():
                pages = (block, 0), (block + BLOCKS, 0)
                num_blocks = (await self._one("forget_requests", seen_months, *pages))["num_blocks"]
            block += BLOCKS

    async def _knows_the_month(self) -> bool:
        """Whether the server's clock may decide which months are over: what it drops is gone."""
        server_now: datetime = (await self._one("clock", None))["now"]
        ahead_s = server_now.timestamp() - time.time()
        if ahead_s > _MAX_AHEAD_S:
            logger.error(
                "The ledger keeps its old months: PostgreSQL's clock is %.0f hours ahead of this"
                " host's. Set the one that is wrong",
                ahead_s / 3600,
            )
        return ahead_s <= _MAX_AHEAD_S

    async def _when_free(self, name: str, *values: object) -> Row:
        """As ``_one``, for a statement that gives up soon while others use its table."""
        for _ in range(_TRIES - 1):
            try:
                return await self._one(name, *values)
            except StoreUnavailable:
                await asyncio.sleep(_PAUSE_S)
        return await self._one(name, *values)

    async def _all(self, name: str, *values: object) -> Sequence[Row]:
        return await self._connections.fetch(_SQL[name], values)

    async def _one(self, name: str, *values: object) -> Row:
        (row,) = await self._all(name, *values)
        return row

    async def close(self) -> None:
        """Wait for the statement under way, then close the connection. Idempotent."""
        await self._connections.close()


@asynccontextmanager
async def _rest() -> AsyncIterator[None]:
    """Rest for as long as the block has taken."""
    began = time.monotonic()
    yield
    await asyncio.sleep(time.monotonic() - began)


def _portions(ids: Sequence[UUID], size: int) -> list[list[UUID]]:
    return [list(ids[start : start + size]) for start in range(0, len(ids), size)]
