"""Records when keys were last used."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from uuid import UUID

from tenants.noted import Noted
from tenants.store import Store


class LastUsed(Noted[UUID, datetime]):
    """The last use of each key; given to the authenticator."""

    failure = "%d last uses of keys not written: %s"
    recovery = "Last uses of keys are written again"

    def __init__(
        self,
        store: Store,
        *,
        interval_s: float = 60.0,
        max_keys: int = 100_000,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        super().__init__(interval_s, max_keys)
        self._store = store
        self._now = now

    def note(self, key_id: UUID) -> None:
        """Record that the key is used now."""
        if self._has_room(key_id):
            self._noted[key_id] = self._now()

    async def _write(self, noted: dict[UUID, datetime]) -> None:
        await self._store.touch_keys(noted)

    def _joined(self, earlier: datetime, later: datetime) -> datetime:
        return later
