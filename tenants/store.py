"""The store in PostgreSQL, through asyncpg. Every statement is in ``sql``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

import msgspec

from tenants.batch_queue import BatchQueue
from tenants.batches import Batcher, send_each
from tenants.chats import Chats
from tenants.connections import Connections
from tenants.conversations import Conversations
from tenants.directory import Directory
from tenants.errors import InvalidValue, ObjectNotFound
from tenants.files import Files
from tenants.limits import (
    Balance,
    BudgetUse,
    Limits,
    MonthLeft,
    QuotaAnswer,
    QuotaRequest,
    ScopeKind,
    ScopePolicy,
)
from tenants.names import (
    check_bucket,
    check_groups,
    check_range,
    normalize_name,
)
from tenants.postgres_upkeep import PostgresUpkeep
from tenants.rows import (
    answer_of,
    budget_of,
    event_values,
    month_left_of,
    policy_of,
    request_values,
)
from tenants.shared import SharedState
from tenants.types import (
    Refused,
    RunningRequest,
    UsageBucket,
    UsageEvent,
    UsageFilter,
    UsageGroup,
    UsageSum,
)
from tenants.webhooks import Webhooks

NO_TIME = timedelta()
MAX_BATCH = 64
"""The most items of a batch. Larger ones are slower, because the planner joins them as if they were
small."""

MAX_PATIENCE_S = 0.1
"""The most patience that is used. More would add few requests to a batch, and a caller whose
estimate was wrong must not wait for long."""

UPKEEP_TIMEOUT_S = 60.0
"""For statements that no request waits for."""


class _More(NamedTuple):
    """The arguments of ``extend``."""

    request_id: UUID
    tenant_id: UUID
    tokens: int
    generated: int
    lease: timedelta


class Store(Directory):
    """Tenants, limits, reservations and the ledger in PostgreSQL, over a pool of connections.
    Made by ``connect``."""

    def __init__(
        self,
        connections: Connections,
        upkeep: PostgresUpkeep,
        now: Callable[[], datetime | None],
    ) -> None:
        super().__init__(connections, upkeep.purge)
        self._upkeep = upkeep
        self._now = now
        self.shared = SharedState(connections, upkeep)
        """Other state that gateway workers share."""
        self.conversations = Conversations(connections)
        self.chats = Chats(connections)
        self.webhooks = Webhooks(connections, upkeep)
        self.files = Files(connections)
        self.batch_queue = BatchQueue(connections)
        # With two batches of each kind, connections are left for key lookups even if the ledger is
        # slow.
        self._reservations = Batcher(self._reserve_many, identity=_request_id, max_items=MAX_BATCH)
        self._extensions = Batcher(
            self._extend_many, identity=lambda more: more.request_id, max_items=MAX_BATCH
        )
        self._settlements = Batcher(self._settle_many, identity=_request_id, max_items=MAX_BATCH)

    @classmethod
    async def connect(
        cls,
        dsn: str,
        *,
        min_size: int = 1,
        max_size: int = 8,
        connect_timeout_s: float = 5.0,
        command_timeout_s: float = 5.0,
        is_pooled: bool = False,
        now: Callable[[], datetime | None] = lambda: None,
    ) -> Store:
        """Open the pool. Raises ``InvalidValue`` (the DSN), ``StoreUnavailable``.

        ``command_timeout_s`` bounds each statement on both sides: the client stops waiting, and the
        server stops working on it. ``is_pooled``: the DSN leads to a pooler in transaction mode.
        ``now`` is the clock of limits and leases; None is the server's own, the only one that all
        workers and hosts share.
        """
        connections = await Connections.open(
            dsn,
            min_size=min_size,
            max_size=max_size,
            connect_timeout_s=connect_timeout_s,
            command_timeout_s=command_timeout_s,
            is_pooled=is_pooled,
        )
        upkeep = await Connections.open(
            dsn,
            min_size=0,
            max_size=1,
            connect_timeout_s=connect_timeout_s,
            command_timeout_s=UPKEEP_TIMEOUT_S,
            is_pooled=is_pooled,
        )
        return cls(connections, PostgresUpkeep(upkeep), now)

    async def touch_keys(self, last_used: Mapping[UUID, datetime]) -> None:
        """Record when keys were last used, by key id. Unknown ids are ignored, and so are times
        before the recorded ones, and keys that somebody changes at this moment."""
        await self._upkeep.touch_keys(last_used)

    async def record_usage(self, event: UsageEvent) -> bool:
        """Append an event to the ledger; False, with nothing changed, if its ``request_id`` is
        there already.

        The same transaction gives back what the request reserved and did not use, and frees its
        slot. A request without a reservation is charged as well. Raises ``ObjectNotFound`` if the
        key is not the tenant's.
        """
        model = normalize_name("model", event.model)
        end_user = event.end_user
        if end_user is not None:
            end_user = normalize_name("end_user", end_user)
        event = msgspec.structs.replace(event, model=model, end_user=end_user)
        return await self._settlements.submit(event)

    async def _settle_many(self, events: Sequence[UsageEvent]) -> Sequence[bool | Exception]:
        try:
            return await self._settle(events)
        except (InvalidValue, ObjectNotFound) as error:
            if len(events) == 1:
                return [error]
        # One of them is refused: each is sent alone, to find out which.
        return [answer for event in events for answer in await self._settle_many([event])]

    async def _settle(self, events: Sequence[UsageEvent]) -> Sequence[bool]:
        violations = {}
        if len(events) == 1:
            violations["usage_event_key_id_fkey"] = ObjectNotFound("key", events[0].key_id)
        columns = zip(*map(event_values, events), strict=True)
        row = await self._one("record_usage", *columns, self._now(), violations=violations)
        written = frozenset(row["written"])
        return [event.request_id in written for event in events]

    async def put_limits(
        self, tenant_id: UUID, scope_kind: ScopeKind, scope_id: UUID, limits: Limits
    ) -> None:
        """Replace the limits of a scope. Its usage so far still counts. Raises
        ``ObjectNotFound``."""
        values = msgspec.structs.astuple(limits)
        row = await self._one(
            "put_limits",
            *(tenant_id, scope_kind, scope_id, *values, self._now()),
            tenant_id=tenant_id,
        )
        if not row["found"]:
            raise ObjectNotFound("scope", f"{scope_kind} {scope_id}")

    async def list_limits(self, tenant_id: UUID) -> Sequence[ScopePolicy]:
        """The limits of a tenant's scopes: tenant, projects, keys."""
        rows = await self._all("list_limits", tenant_id, tenant_id=tenant_id)
        return [policy_of(row) for row in rows]

    async def note_refusals(self, refused: Sequence[Refused]) -> None:
        """Count refusals. Those of tenants that are not there are left out."""
        columns = [list(column) for column in zip(*refused, strict=True)][:4]
        await self._all("note_refusals", *columns)

    async def list_refusals(
        self, tenant_id: UUID | None = None, *, since: datetime, limit: int
    ) -> Sequence[Refused]:
        """Who was refused and why, whole hours from the one of ``since`` on, those first who were
        most often."""
        rows = await self._all("list_refusals", tenant_id, since, limit)
        return [Refused(**row) for row in rows]

    async def list_budgets(self, tenant_id: UUID | None, *, limit: int) -> Sequence[BudgetUse]:
        """What the scopes of a tenant, or of all, have used of their limits: those that have used
        the greatest share of one come first."""
        rows = await self._all("list_budgets", tenant_id, limit)
        return [budget_of(row) for row in rows]

    async def reserve(self, request: QuotaRequest) -> QuotaAnswer:
        """Reserve in all scopes of a request, or in none.

        A second call with the same ``request_id`` reserves nothing: a running request gets the same
        answer, and a queued one learns in this way whether its turn has come.
        """
        return await self._reservations.submit(request)

    async def _reserve_one(self, request: QuotaRequest) -> QuotaAnswer:
        row = await self._one(
            "reserve",
            *(*request_values(request), self._now()),
            violations={"reservation_key_id_fkey": ObjectNotFound("key", request.key_id)},
        )
        return answer_of(row)

    async def _reserve_many(
        self, requests: Sequence[QuotaRequest]
    ) -> Sequence[QuotaAnswer | Exception]:
        if len(requests) > 1:
            columns = zip(*map(request_values, requests), strict=True)
            try:
                rows = await self._all("reserve_many", *columns, self._now())
            except InvalidValue:
                pass  # One of them is refused: each is sent alone, to find out which.
            else:
                return [answer_of(row) for row in rows]
        return await send_each(self._reserve_one, requests)

    async def month_left(self, tenant_id: UUID, scope_ids: Sequence[UUID]) -> Sequence[MonthLeft]:
        """What those of a tenant's scopes have left in which no request runs: key, project,
        tenant."""
        values = (tenant_id, list(scope_ids), self._now())
        return [
            month_left_of(row)
            for row in await self._all("month_left", *values, tenant_id=tenant_id)
        ]

    async def balances(self, scope_ids: Sequence[UUID]) -> Sequence[Balance]:
        """What scopes of any tenants have used of their limits, by id; those without any are left
        out."""
        rows = await self._all("balances", list(scope_ids), self._now())
        return [Balance(**row) for row in rows]

    async def extend(
        self,
        tenant_id: UUID,
        request_id: UUID,
        *,
        tokens: int,
        generated: int,
        lease: timedelta,
        patience_s: float = 0.0,
    ) -> int | None:
        """Reserve more tokens for a running completion; returns how many were granted.

        Only monthly limits can reduce the number; rates go into debt. None if there is no
        reservation. ``patience_s``: how long the call may wait to be sent with others.
        """
        more = _More(request_id, tenant_id, tokens, generated, lease)
        return await self._extensions.submit(more, patience_s=min(patience_s, MAX_PATIENCE_S))

    async def _extend_one(self, more: _More) -> int | None:
        row = await self._one("extend", *more, self._now())
        granted: int | None = row["granted"]
        return granted

    async def _extend_many(self, asked: Sequence[_More]) -> Sequence[int | Exception | None]:
        leases = {more.lease for more in asked}
        if len(asked) == 1 or len(leases) > 1:
            return await send_each(self._extend_one, asked)
        *columns, _ = zip(*asked, strict=True)
        rows = await self._all("extend_many", *columns, *leases, self._now())
        return [row["granted"] for row in rows]

    async def release(self, tenant_id: UUID, request_id: UUID) -> bool:
        """Release a reservation without a row in the ledger; False if there is none."""
        found: bool = (await self._one("release", request_id, tenant_id, self._now()))["found"]
        return found

    async def renew(
        self, owner: UUID, generated: Mapping[UUID, int], lease: timedelta
    ) -> set[UUID]:
        """Renew the leases of an owner's requests; returns those still reserved.

        A reservation whose lease has run out can still be renewed until ``reap`` settles it.
        ``generated``: by request id, the tokens that are charged if the owner dies.
        """
        counts = (list(generated), list(generated.values()))
        rows = await self._all("renew", owner, *counts, lease, self._now())
        return {row["request_id"] for row in rows}

    async def reap(self, *, patience: timedelta = NO_TIME) -> UUID | None:
        """Settle, with the status ``error``, one request whose lease ran out at least ``patience``
        ago; None if there is none. A queued one is released as soon as its lease runs out."""
        request_id: UUID | None = (await self._one("reap", patience, self._now()))["request_id"]
        return request_id

    async def clock(self) -> datetime:
        """What time it is for limits and leases. It may be set, back or forward."""
        now: datetime = (await self._one("clock", self._now()))["now"]
        return now

    async def follow_clock(self, lease: timedelta) -> None:
        """Bring back what a clock that was set back has left in the future: leases, of which none
        is longer than ``lease``, the moments that rates refill from, and months."""
        await self._one("follow_clock", lease, self._now())

    async def sum_usage(
        self,
        tenant_id: UUID | None,
        span: tuple[datetime, datetime],
        *,
        group_by: Sequence[UsageGroup] = (),
        bucket: UsageBucket = "total",
        search: str | None = None,
        after: UsageSum | None = None,
        by_tokens: bool = False,
        limit: int = 10_000,
    ) -> Sequence[UsageSum]:
        """Sums for ``span[0] <= hour < span[1]``, of one tenant or of all, from one snapshot.

        Ordered by time, then by the groups; or, for ``by_tokens``, those with the most tokens
        first. ``search``: a part of the tenants' names, if it is of all.
        """
        check_range(*span)
        what = (*span, check_groups(group_by), check_bucket(bucket))
        place = msgspec.structs.astuple(after or UsageSum())[:5]
        page = (*place, after is None, by_tokens, limit)
        if tenant_id is None:
            rows = await self._all("sum_all_usage", *what, search, *page)
        else:
            rows = await self._all(
                "sum_usage", tenant_id, *what, *page, tenant_id=tenant_id, in_turn=True
            )
        return [UsageSum(**row) for row in rows]

    async def list_usage(
        self, wanted: UsageFilter, *, after: tuple[datetime, UUID] | None = None, limit: int = 1000
    ) -> Sequence[UsageEvent]:
        """Single requests by ``created_at`` and id, the newest first."""
        check_range(wanted.start, wanted.end)
        span = (wanted.start, wanted.end, *(after or (wanted.end, UUID(int=0))))
        filters = (
            *(wanted.key_id, wanted.model, wanted.status, wanted.end_user),
            wanted.endpoint,
        )
        if (tenant_id := wanted.tenant_id) is None:
            rows = await self._all("list_all_usage", *span, *filters, limit)
        else:
            values = (tenant_id, *span, *filters, limit)
            rows = await self._all("list_usage", *values, tenant_id=tenant_id, in_turn=True)
        return [UsageEvent(**row) for row in rows]

    async def list_running(self, tenant_id: UUID | None = None) -> Sequence[RunningRequest]:
        """Requests with a reservation, of one tenant or of all, the oldest first.

        Short requests of tenants without limits have none; only their worker knows them.
        """
        return [RunningRequest(**row) for row in await self._all("list_running", tenant_id)]

    async def kill_request(self, tenant_id: UUID, request_id: UUID) -> None:
        """Tell all workers to end a request, whether or not one of them runs it."""
        await self._one("kill_request", tenant_id, request_id, tenant_id=tenant_id)

    async def maintain(self, *, usage_retention_months: int | None = None) -> None:
        """Daily maintenance: creates the ledger's partitions for the coming months.

        Deletes requests of more than ``usage_retention_months`` whole months ago; their sums stay.
        """
        await self._upkeep.maintain(usage_retention_months=usage_retention_months)

    async def roll_up(self) -> None:
        """Move the sums of the newest settlements to where they are quick to read. ``sum_usage`` is
        exact without it, only slower."""
        await self._upkeep.roll_up()

    async def ping(self) -> None:
        """Return if the store answers. Raises ``StoreUnavailable``."""
        await self._one("ping")

    async def close(self) -> None:
        """Wait for statements under way, then close all connections. Idempotent."""
        await self._upkeep.close()
        await self._connections.close()


def _request_id(item: QuotaRequest | UsageEvent) -> UUID:
    return item.request_id
