"""When the store trims what a tenant keeps in it."""

from __future__ import annotations

from uuid import UUID


class TrimSchedule:
    """Trims a tenant once it has added a sixteenth of its limit: trimming at every write would cost
    more than the small excess."""

    def __init__(self) -> None:
        self._added: dict[UUID, int] = {}
        """What each tenant has added since it was trimmed."""

    def is_due(self, tenant_id: UUID, added: int, limit: int) -> bool:
        """Count what a tenant adds; returns whether it is to be trimmed to ``limit`` now."""
        total = self._added.pop(tenant_id, 0) + added
        if total > limit // 16:
            return True
        self._added[tenant_id] = total
        return False
