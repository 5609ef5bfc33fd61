"""Records when keys were last used, with one statement per interval."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from uuid import UUID

from tenants.errors import TenantsError
from tenants.outage import OutageLog
from tenants.store import Store

logger = logging.getLogger(__name__)


class LastUsed:
    """Collects uses of keys; ``run`` writes them. One per process, given to the authenticator."""

    def __init__(
        self,
        store: Store,
        *,
        interval_s: float = 60.0,
        max_keys: int = 100_000,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """``max_keys``: the most keys in memory while the store is away; uses of others are
        dropped."""
        self._store = store
        self._interval_s = interval_s
        self._max_keys = max_keys
        self._now = now
        self._noted: dict[UUID, datetime] = {}
        self._outage = OutageLog(logger)

    def note(self, key_id: UUID) -> None:
        """Record that the key is used now."""
        if key_id in self._noted or len(self._noted) < self._max_keys:
            self._noted[key_id] = self._now()

    async def run(self) -> None:
        """Write every ``interval_s`` until cancelled, and once more then."""
        try:
            while True:
                await asyncio.sleep(self._interval_s)
                await self.flush()
        finally:
            await self.flush()

    async def flush(self) -> None:
        """Write the recorded uses, or keep them for the next time if the store fails."""
        noted, self._noted = self._noted, {}
        if not noted:
            return
        try:
            await self._store.touch_keys(noted)
        except TenantsError as error:
            self._noted = {**noted, **self._noted}
            self._outage.failed("%d last uses of keys not written: %s", len(noted), error)
        else:
            self._outage.succeeded("Last uses of keys are written again")
