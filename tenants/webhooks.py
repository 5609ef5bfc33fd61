"""Webhooks and their outbox: events that wait until their receivers have taken them.

Events are written by functions of the database (``webhook_event``), in the transaction of what they
report. A worker claims a webhook for a while and sends what is due, one event after the other; if
it dies, another one sends again what was not noted. So each event arrives at least once, and has
the same id each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal, get_args
from uuid import UUID, uuid4

import msgspec

from tenants import queries
from tenants.connections import Connections, Row
from tenants.errors import InvalidValue, ObjectNotFound
from tenants.postgres_upkeep import PostgresUpkeep

EventType = Literal[
    "budget.threshold_reached",
    "key.expiring",
    "engine.down",
    "engine.up",
    "batch.completed",
    "batch.failed",
    "batch.expired",
    "batch.cancelled",
]
EVENT_TYPES: tuple[str, ...] = get_args(EventType)
MAX_WEBHOOKS = 16
"""Of a tenant, and of the deployment."""
OLD_SECRET = timedelta(days=1)
"""How long the secret before the last rotation signs too."""

DeliveryState = Literal["pending", "delivered", "failed"]

_SQL = queries.load()


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """Where events are sent."""

    id: UUID
    tenant_id: UUID | None
    """None: the deployment's, which gets events of all tenants."""
    url: str
    events: tuple[str, ...]
    """The types that it gets; empty: all."""
    secret_version: int
    """The secret follows from the id and this number (``gateway.admin.webhooks``)."""
    old_secret_until: datetime | None
    created_at: datetime
    disabled_at: datetime | None


class Due(msgspec.Struct, frozen=True, kw_only=True):
    """An event to send."""

    event_id: UUID
    type: str
    body: str
    num_attempts: int
    """Those before."""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """An event that is sent to a webhook, or was in the last week."""

    event_id: UUID
    type: str
    state: DeliveryState
    num_attempts: int
    last_answer: str | None
    """The status of the last answer, or why there was none."""
    due_at: datetime
    """When it is tried again, if it is pending."""
    created_at: datetime
    ended_at: datetime | None


class Backlog(msgspec.Struct, frozen=True):
    """What waits for its receivers, of webhooks that are not disabled."""

    num_pending: int = 0
    oldest_s: float = 0.0
    """How long ago the oldest of these events was written."""


class Webhooks:
    """Uses the connections of a ``Store``, which closes them. Every method may raise
    ``StoreUnavailable``."""

    def __init__(self, connections: Connections, upkeep: PostgresUpkeep) -> None:
        self._connections = connections
        self._upkeep = upkeep

    async def create(self, tenant_id: UUID | None, url: str, events: Sequence[str]) -> Webhook:
        """Raises ``ObjectNotFound`` for a tenant that there is not, and ``InvalidValue``."""
        rows = await self._connections.fetch(
            _SQL["create_webhook"],
            (uuid4(), tenant_id, url, check_events(events), MAX_WEBHOOKS),
            violations={"webhook_tenant_id_fkey": ObjectNotFound("tenant", tenant_id)},
        )
        if not rows:
            raise InvalidValue("url", f"there are {MAX_WEBHOOKS} webhooks already; delete one")
        return _webhook(rows[0])

    async def all(self, tenant_id: UUID | None = None) -> Sequence[Webhook]:
        """All, or those of a tenant, the oldest first."""
        return [_webhook(row) for row in await self._all("list_webhooks", tenant_id)]

    async def update(
        self,
        webhook_id: UUID,
        *,
        url: str | None = None,
        events: Sequence[str] | None = None,
        disabled: bool | None = None,
    ) -> Webhook:
        """Change the fields that are not None. Raises ``ObjectNotFound``, ``InvalidValue``."""
        wanted = None if events is None else check_events(events)
        return _webhook(await self._one("update_webhook", webhook_id, url, wanted, disabled))

    async def rotate(self, webhook_id: UUID, old_for: timedelta = OLD_SECRET) -> Webhook:
        """Use another secret; the old one signs too for a while. Raises ``ObjectNotFound``."""
        return _webhook(await self._one("rotate_webhook", webhook_id, old_for))

    async def delete(self, webhook_id: UUID) -> None:
        """Delete it with its deliveries. Raises ``ObjectNotFound``."""
        await self._one("delete_webhook", webhook_id)

    async def test(self, webhook_id: UUID) -> UUID:
        """Send it an event of the type ``webhook.test``; returns the id. Raises
        ``ObjectNotFound``."""
        event_id: UUID = (await self._one("test_webhook", webhook_id, uuid4()))["event_id"]
        return event_id

    async def deliveries(
        self, webhook_id: UUID, *, after: tuple[datetime, UUID] | None = None, limit: int = 100
    ) -> Sequence[Delivery]:
        """Deliveries by ``created_at`` and id, the newest first; none of a webhook that there is
        not."""
        before, event_id = after or (None, UUID(int=0))
        rows = await self._all("list_deliveries", webhook_id, before, event_id, limit)
        return [Delivery(**row) for row in rows]

    async def claim(self, limit: int, lease: timedelta) -> Sequence[Webhook]:
        """Webhooks with events that are due; nobody else gets them before the lease is over."""
        return [_webhook(row) for row in await self._all("claim_webhooks", limit, lease)]

    async def due(self, webhook_id: UUID, limit: int) -> Sequence[Due]:
        """What is to be sent to a webhook now, the oldest first."""
        return [Due(**row) for row in await self._all("due_deliveries", webhook_id, limit)]

    async def note(
        self,
        webhook_id: UUID,
        event_id: UUID,
        *,
        state: DeliveryState,
        answer: str,
        again_in: timedelta | None,
    ) -> None:
        """How an attempt ended. ``again_in``: of a pending one, when it is tried again."""
        await self._all("note_delivery", webhook_id, event_id, state, answer, again_in)

    async def backlog(self) -> Backlog:
        return Backlog(**(await self._all("webhook_backlog"))[0])

    async def release(self, webhook_id: UUID, pause: timedelta) -> None:
        """Give a claimed webhook back; nobody gets it before the pause is over."""
        await self._all("release_webhook", webhook_id, pause)

    async def upkeep(self) -> int:
        """Write the events that only time causes, and delete deliveries that ended a week ago, a
        thousand at most; returns how many rows it has changed."""
        return await self._upkeep.webhooks()

    async def _all(self, name: str, *values: object) -> Sequence[Row]:
        return await self._connections.fetch(_SQL[name], values)

    async def _one(self, name: str, webhook_id: UUID, *values: object) -> Row:
        rows = await self._all(name, webhook_id, *values)
        if not rows:
            raise ObjectNotFound("webhook", webhook_id)
        return rows[0]


def check_events(events: Sequence[str]) -> Sequence[str]:
    """The types of events, each once. Raises ``InvalidValue``."""
    for name in events:
        if name not in EVENT_TYPES:
            raise InvalidValue("events", f"{name!r} is none of {', '.join(EVENT_TYPES)}")
    return [*dict.fromkeys(events)]


def _webhook(row: Row) -> Webhook:
    return Webhook(**{**row, "events": tuple(row["events"])})
