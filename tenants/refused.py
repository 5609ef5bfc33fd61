"""Records who was refused and why."""

from __future__ import annotations

from uuid import UUID

from tenants.noted import Noted
from tenants.store import Store
from tenants.types import ApiKey, Refused


class RefusalLog(Noted[tuple[UUID, UUID, str], int]):
    """How often each key was refused with each code."""

    failure = "%d kinds of refusals not written: %s"
    recovery = "Refusals are written again"

    def __init__(
        self, store: Store, *, interval_s: float = 10.0, max_entries: int = 100_000
    ) -> None:
        super().__init__(interval_s, max_entries)
        self._store = store

    def note(self, key: ApiKey, code: str) -> None:
        """Count a request of the key that is refused now, with this code."""
        entry = key.tenant_id, key.id, code
        if self._has_room(entry):
            self._noted[entry] = self._noted.get(entry, 0) + 1

    async def _write(self, noted: dict[tuple[UUID, UUID, str], int]) -> None:
        await self._store.note_refusals([Refused(*one, times) for one, times in noted.items()])

    def _joined(self, earlier: int, later: int) -> int:
        return earlier + later
