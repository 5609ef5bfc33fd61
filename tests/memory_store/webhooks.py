"""``Webhooks`` in memory, which behaves as ``tenants.webhooks`` does, but has no events: functions
of the database write those."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import msgspec

from tenants.errors import InvalidValue, ObjectNotFound
from tenants.webhooks import (
    MAX_WEBHOOKS,
    OLD_SECRET,
    Backlog,
    Delivery,
    Webhook,
    Webhooks,
    check_events,
)


class MemoryWebhooks(Webhooks):
    """For the gateways of one process."""

    def __init__(self, now: Callable[[], datetime], tenants: Container[UUID]) -> None:
        self._now = now
        self._tenants = tenants
        self._kept: dict[UUID, Webhook] = {}

    async def create(self, tenant_id: UUID | None, url: str, events: Sequence[str]) -> Webhook:
        wanted = check_events(events)
        if tenant_id is not None and tenant_id not in self._tenants:
            raise ObjectNotFound("tenant", tenant_id)
        if sum(one.tenant_id == tenant_id for one in self._kept.values()) >= MAX_WEBHOOKS:
            raise InvalidValue("url", f"there are {MAX_WEBHOOKS} webhooks already; delete one")
        made = Webhook(
            id=uuid4(),
            tenant_id=tenant_id,
            url=url,
            events=tuple(wanted),
            secret_version=1,
            old_secret_until=None,
            created_at=self._now(),
            disabled_at=None,
        )
        self._kept[made.id] = made
        return made

    async def all(self, tenant_id: UUID | None = None) -> Sequence[Webhook]:
        return [one for one in self._kept.values() if tenant_id in (None, one.tenant_id)]

    async def update(
        self,
        webhook_id: UUID,
        *,
        url: str | None = None,
        events: Sequence[str] | None = None,
        disabled: bool | None = None,
    ) -> Webhook:
        found = self._find(webhook_id)
        disabled_at = (found.disabled_at or self._now()) if disabled else None
        self._kept[webhook_id] = changed = msgspec.structs.replace(
            found,
            url=found.url if url is None else url,
            events=found.events if events is None else tuple(check_events(events)),
            disabled_at=found.disabled_at if disabled is None else disabled_at,
        )
        return changed

    async def rotate(self, webhook_id: UUID, old_for: timedelta = OLD_SECRET) -> Webhook:
        found = self._find(webhook_id)
        self._kept[webhook_id] = changed = msgspec.structs.replace(
            found,
            secret_version=found.secret_version + 1,
            old_secret_until=self._now() + old_for,
        )
        return changed

    async def delete(self, webhook_id: UUID) -> None:
        self._find(webhook_id)
        del self._kept[webhook_id]

    async def test(self, webhook_id: UUID) -> UUID:
        self._find(webhook_id)
        return uuid4()

    async def deliveries(
        self, webhook_id: UUID, *, after: tuple[datetime, UUID] | None = None, limit: int = 100
    ) -> Sequence[Delivery]:
        return []

    async def claim(self, limit: int, lease: timedelta) -> Sequence[Webhook]:
        return []

    async def backlog(self) -> Backlog:
        return Backlog()

    async def upkeep(self) -> int:
        return 0

    def _find(self, webhook_id: UUID) -> Webhook:
        if webhook_id not in self._kept:
            raise ObjectNotFound("webhook", webhook_id)
        return self._kept[webhook_id]
