"""Records who was refused and why, with one statement per interval."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from uuid import UUID

from tenants.errors import TenantsError
from tenants.outage import OutageLog
from tenants.store import Store
from tenants.types import ApiKey, Refused

logger = logging.getLogger(__name__)


class RefusalLog:
    """Counts refusals; ``run`` writes them. One per process."""

    def __init__(
        self, store: Store, *, interval_s: float = 10.0, max_entries: int = 100_000
    ) -> None:
        """``max_entries``: the most kinds of refusals, of all keys, in memory while the store is
        away; others are dropped."""
        self._store = store
        self._interval_s = interval_s
        self._max_entries = max_entries
        self._noted = Counter[tuple[UUID, UUID, str]]()
        self._outage = OutageLog(logger)

    def note(self, key: ApiKey, code: str) -> None:
        """Count a request of the key that is refused now, with this code."""
        entry = key.tenant_id, key.id, code
        if entry in self._noted or len(self._noted) < self._max_entries:
            self._noted[entry] += 1

    async def run(self) -> None:
        """Write every ``interval_s`` until cancelled, and once more then."""
        try:
            while True:
                await asyncio.sleep(self._interval_s)
                await self.flush()
        finally:
            await self.flush()

    async def flush(self) -> None:
        """Write what was counted, or keep it for the next time if the store fails."""
        noted, self._noted = self._noted, Counter()
        if not noted:
            return
        try:
            await self._store.note_refusals([Refused(*one, times) for one, times in noted.items()])
        except TenantsError as error:
            self._noted.update(noted)
            self._outage.failed("%d kinds of refusals not written: %s", len(noted), error)
        else:
            self._outage.succeeded("Refusals are written again")
