"""Work on the store that no request waits for: sums, retention, partitions, last uses of keys.

It has tasks of its own (``run``), and in PostgreSQL a connection of its own, so that nothing of it
holds up a lease or a settlement. Every process does it; PostgreSQL lets one at a time do the same.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from tenants.errors import StoreUnavailable
from tenants.outage import OutageLog
from tenants.store import Store

logger = logging.getLogger(__name__)

ROLL_UP_S = 2.0
EXPIRE_S = 60.0
MAINTAIN_S = 6 * 3600.0
_RETRY_S = 10.0


async def run(
    store: Store,
    *,
    usage_retention_months: int | None = None,
    conversation_days: int | None = None,
    roll_up_s: float = ROLL_UP_S,
    expire_s: float = EXPIRE_S,
    maintain_s: float = MAINTAIN_S,
) -> None:
    """Do all of it periodically, until cancelled. usage_retention_months: as for
    ``Store.maintain``; conversation_days: as for ``SharedState.delete_expired``."""

    async def delete_expired() -> None:
        while await store.shared.delete_expired(conversation_days):
            pass

    async def report() -> None:
        while await store.webhooks.upkeep():
            pass

    async def maintain() -> None:
        await store.maintain(usage_retention_months=usage_retention_months)

    async with asyncio.TaskGroup() as group:
        for what, work, every_s in (
            ("Sums of usage", store.roll_up, roll_up_s),
            ("Deleting what has expired", delete_expired, expire_s),
            ("Alerts of keys that expire", report, expire_s),
            ("Maintaining the ledger", maintain, maintain_s),
        ):
            group.create_task(_repeat(what, work, every_s), name=what)


async def _repeat(what: str, work: Callable[[], Awaitable[None]], every_s: float) -> None:
    outage = OutageLog(logger)
    while True:
        try:
            await work()
        except StoreUnavailable as error:
            outage.failed("%s: waits for the store: %s", what, error)
            pause_s = min(every_s, _RETRY_S)
        else:
            outage.succeeded("%s: goes on again", what)
            pause_s = every_s
        # Random, so that workers that start together do not act together.
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
