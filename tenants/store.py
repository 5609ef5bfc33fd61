"""The interface of stores. ``postgres`` and ``memory`` implement it, and pass the same tests."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Protocol
from uuid import UUID

from tenants.limits import (
    Balance,
    Limits,
    MonthLeft,
    QuotaAnswer,
    QuotaRequest,
    ScopeKind,
    ScopePolicy,
)
from tenants.shared import SharedState
from tenants.types import (
    Adapter,
    ApiKey,
    AuditEntry,
    KeyRecord,
    Project,
    RunningRequest,
    Scope,
    Tenant,
    UsageBucket,
    UsageEvent,
    UsageFilter,
    UsageGroup,
    UsageSum,
)

NO_TIME = timedelta()


class Store(Protocol):
    """Tenants, projects, keys and the ledger.

    Lists are read in pages: at most ``limit`` rows (None: all) that follow ``after``, which names
    the last row of the page before by what the list is ordered by. ``search`` is a part of a text,
    in any case.

    Every method may raise ``StoreUnavailable``; those that write raise ``InvalidValue`` for a field
    that breaks the rules of ``tenants.names``. Names are kept and found in Unicode NFC.
    """

    shared: SharedState
    """Other state that gateway workers share."""

    async def create_tenant(self, name: str, *, weight: float = 1.0, priority: int = 0) -> Tenant:
        """Create a tenant, with its default project. Raises ``TenantExists``."""

    async def get_tenant(self, tenant: str | UUID) -> Tenant:
        """The tenant with this name or id. Raises ``TenantNotFound``."""

    async def list_tenants(
        self, *, search: str | None = None, after: str | None = None, limit: int | None = None
    ) -> Sequence[Tenant]:
        """Tenants by name; ``search``: a part of it."""

    async def update_tenant(
        self,
        tenant_id: UUID,
        *,
        name: str | None = None,
        weight: float | None = None,
        priority: int | None = None,
        disabled: bool | None = None,
    ) -> Tenant:
        """Change the fields that are not None. Disabling a tenant again keeps the first time.

        Raises ``TenantNotFound``, ``TenantExists``.
        """

    async def create_project(self, tenant_id: UUID, name: str) -> Project:
        """Create a project. Raises ``TenantNotFound``, ``ProjectExists``."""

    async def list_projects(
        self,
        tenant_id: UUID,
        *,
        search: str | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> Sequence[Project]:
        """A tenant's projects by name, including the default one; ``search``: a part of it."""

    async def rename_project(self, tenant_id: UUID, project_id: UUID, name: str) -> Project:
        """Rename a project. Raises ``ProjectNotFound``, ``ProjectExists``."""

    async def create_key(
        self,
        tenant_id: UUID,
        *,
        public_id: str,
        key_hash: bytes,
        name: str,
        scopes: Sequence[Scope],
        expires_at: datetime | None = None,
        project_id: UUID | None = None,
        allowed_models: Sequence[str] = (),
        model_aliases: Mapping[str, str] = MappingProxyType({}),
    ) -> ApiKey:
        """Store a key by its hash. ``project_id``: None for the tenant's default project.

        Raises ``TenantNotFound``, ``ProjectNotFound`` (also for another tenant's), ``KeyExists``
        (the public id is taken).
        """

    async def rotate_key(
        self, public_id: str, *, new_public_id: str, key_hash: bytes, grace: timedelta
    ) -> ApiKey:
        """Replace a key by a new one with the same rights; returns the new one.

        The old one keeps working for ``grace``, or until it expires if that is sooner. Raises
        ``KeyNotFound`` (also if the old one is revoked), ``KeyExists``.
        """

    async def create_first_admin_key(
        self, tenant_name: str, *, public_id: str, key_hash: bytes, name: str
    ) -> None:
        """Create the first key with the scope ``admin``, and the tenant if it does not exist.
        Raises ``AdminKeyExists``."""

    async def find_key(self, public_id: str) -> KeyRecord | None:
        """The key, its tenant and its hash, even if it is revoked or expired; None if unknown."""

    async def list_keys(
        self,
        tenant_id: UUID,
        *,
        search: str | None = None,
        after: tuple[datetime, str] | None = None,
        limit: int | None = None,
    ) -> Sequence[ApiKey]:
        """A tenant's keys by ``created_at`` and public id, the oldest first; none for a tenant that
        does not exist. ``search``: a part of the name or the public id."""

    async def names(self, ids: Collection[UUID]) -> Mapping[UUID, str]:
        """What tenants, projects and keys are called, by their ids. Keys have their public id in
        parentheses; unknown ids are left out."""

    async def revoke_key(self, public_id: str) -> ApiKey:
        """Revoke a key. Revoking it again keeps the first time. Raises ``KeyNotFound``."""

    async def create_adapter(
        self,
        tenant_id: UUID,
        *,
        adapter_id: UUID,
        name: str,
        parent: str,
        path: str,
        base_model: str | None,
        rank: int,
        digest: str,
    ) -> Adapter:
        """Store an adapter. Raises ``TenantNotFound``, ``AdapterExists``."""

    async def list_adapters(self, tenant_id: UUID) -> Sequence[Adapter]:
        """A tenant's adapters by name; none for a tenant that does not exist."""

    async def delete_adapter(self, tenant_id: UUID, adapter_id: UUID) -> Adapter:
        """Delete an adapter and return it. Raises ``AdapterNotFound``."""

    async def touch_keys(self, last_used: Mapping[UUID, datetime]) -> None:
        """Record when keys were last used, by key id. Unknown ids are ignored, and so are times
        before the recorded ones, and keys that somebody changes at this moment."""

    async def record_usage(self, event: UsageEvent) -> bool:
        """Append an event to the ledger; False, with nothing changed, if its ``request_id`` is
        there already.

        The same transaction gives back what the request reserved and did not use, and frees its
        slot. A request without a reservation is charged as well. Raises ``KeyNotFound`` if the key
        is not the tenant's.
        """

    async def put_limits(
        self, tenant_id: UUID, scope_kind: ScopeKind, scope_id: UUID, limits: Limits
    ) -> None:
        """Replace the limits of a scope. Its usage so far still counts. Raises
        ``ScopeNotFound``."""

    async def list_limits(self, tenant_id: UUID) -> Sequence[ScopePolicy]:
        """The limits of a tenant's scopes: tenant, projects, keys."""

    async def reserve(self, request: QuotaRequest) -> QuotaAnswer:
        """Reserve in all scopes of a request, or in none.

        A second call with the same ``request_id`` reserves nothing: a running request gets the same
        answer, and a queued one learns in this way whether its turn has come.
        """

    async def month_left(self, tenant_id: UUID, scope_ids: Sequence[UUID]) -> Sequence[MonthLeft]:
        """What those of a tenant's scopes have left in which no request runs: key, project,
        tenant."""

    async def balances(self, scope_ids: Sequence[UUID]) -> Sequence[Balance]:
        """What scopes of any tenants have used of their limits, by id; those without any are left
        out."""

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

    async def release(self, tenant_id: UUID, request_id: UUID) -> bool:
        """Release a reservation without a row in the ledger; False if there is none."""

    async def renew(
        self, owner: UUID, generated: Mapping[UUID, int], lease: timedelta
    ) -> set[UUID]:
        """Renew the leases of an owner's requests; returns those still reserved.

        A reservation whose lease has run out can still be renewed until ``reap`` settles it.
        ``generated``: by request id, the tokens that are charged if the owner dies.
        """

    async def reap(self, *, patience: timedelta = NO_TIME) -> UUID | None:
        """Settle, with the status ``error``, one request whose lease ran out at least ``patience``
        ago; None if there is none. A queued one is released as soon as its lease runs out."""

    async def clock(self) -> datetime:
        """What time it is for limits and leases. It may be set, back or forward."""

    async def follow_clock(self, lease: timedelta) -> None:
        """Bring back what a clock that was set back has left in the future: leases, of which none
        is longer than ``lease``, the moments that rates refill from, and months."""

    async def sum_usage(
        self,
        tenant_id: UUID | None,
        start: datetime,
        end: datetime,
        *,
        group_by: Sequence[UsageGroup] = (),
        bucket: UsageBucket = "total",
        search: str | None = None,
        after: UsageSum | None = None,
        limit: int = 10_000,
    ) -> Sequence[UsageSum]:
        """Sums for ``start <= hour < end``, of one tenant or of all, from one snapshot.

        Ordered by time, then by the groups. ``search``: a part of the tenants' names, if it is of
        all.
        """

    async def list_usage(
        self, wanted: UsageFilter, *, after: tuple[datetime, UUID] | None = None, limit: int = 1000
    ) -> Sequence[UsageEvent]:
        """Single requests by ``created_at`` and id, the newest first."""

    async def list_running(self, tenant_id: UUID | None = None) -> Sequence[RunningRequest]:
        """Requests with a reservation, of one tenant or of all, the oldest first.

        Short requests of tenants without limits have none; only their worker knows them.
        """

    async def kill_request(self, tenant_id: UUID, request_id: UUID) -> None:
        """Tell all workers to end a request, whether or not one of them runs it."""

    async def list_audit(
        self,
        tenant_id: UUID | None = None,
        *,
        search: str | None = None,
        after: int | None = None,
        limit: int = 100,
    ) -> Sequence[AuditEntry]:
        """Changes of one tenant or of all by id, the newest first; ``search``: a part of the actor,
        the action or the object's id."""

    async def maintain(self, *, usage_retention_months: int | None = None) -> None:
        """Daily maintenance: creates the ledger's partitions for the coming months.

        Deletes requests of more than ``usage_retention_months`` whole months ago; their sums stay.
        """

    async def roll_up(self) -> None:
        """Move the sums of the newest settlements to where they are quick to read. ``sum_usage`` is
        exact without it, only slower."""

    async def ping(self) -> None:
        """Return if the store answers. Raises ``StoreUnavailable``."""

    async def close(self) -> None:
        """Release connections. Idempotent."""
