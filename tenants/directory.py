"""Tenants, projects, keys, adapters, MCP servers, and the log of their changes: what the store has
that seldom changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Unpack
from uuid import UUID, uuid4

import msgspec
from msgspec import UNSET, UnsetType

from tenants import queries
from tenants.connections import NO_VIOLATIONS, Connections, Row, Violations
from tenants.errors import (
    InvalidValue,
    ObjectExists,
    ObjectNotFound,
    TenantsError,
)
from tenants.keys import is_public_id
from tenants.names import (
    check_aliases,
    check_days,
    check_grace,
    check_key,
    check_models,
    check_priority,
    check_scopes,
    check_server_url,
    check_weight,
    normalize_name,
)
from tenants.rows import audit_entry_of, key_of, record_of
from tenants.types import (
    Adapter,
    ApiKey,
    AuditEntry,
    KeyOptions,
    KeyRecord,
    McpServer,
    Project,
    Tenant,
)

MAX_AUDIT_ID = 2**63 - 1
MAX_MCP_SERVERS = 100
"""Of one tenant."""

_SQL = queries.load()


class Directory:
    """The part of ``Store`` that people change and requests only read.

    Lists are read in pages: at most ``limit`` rows (None: all) that follow ``after``, which names
    the last row of the page before by what the list is ordered by. ``search`` is a part of a text,
    in any case.

    Every method may raise ``StoreUnavailable``; those that write raise ``InvalidValue`` for a field
    that breaks the rules of ``tenants.names``. Names are kept and found in Unicode NFC.
    """

    def __init__(self, connections: Connections, purge: Callable[[UUID], Awaitable[None]]) -> None:
        """purge: deletes what a deleted tenant has stored."""
        self._connections = connections
        self._purge = purge

    async def create_tenant(self, name: str, *, weight: float = 1.0, priority: int = 0) -> Tenant:
        """Create a tenant, with its default project. Raises ``ObjectExists``."""
        name = normalize_name("name", name)
        tenant_id = uuid4()
        row = await self._one(
            "create_tenant",
            *(tenant_id, name, check_weight(weight), check_priority(priority)),
            tenant_id=tenant_id,
            violations={"tenant_name_key": ObjectExists("tenant", name)},
        )
        return Tenant(**row)

    async def get_tenant(self, tenant: str | UUID) -> Tenant:
        """The tenant with this name or id. Raises ``ObjectNotFound``."""
        missing = ObjectNotFound("tenant", tenant)
        if isinstance(tenant, UUID):
            return Tenant(**await self._one("get_tenant_by_id", tenant, missing=missing))
        name = normalize_name("name", tenant)
        return Tenant(**await self._one("get_tenant", name, missing=missing))

    async def list_tenants(
        self, *, search: str | None = None, after: str | None = None, limit: int | None = None
    ) -> Sequence[Tenant]:
        """Tenants by name; ``search``: a part of it."""
        return [Tenant(**row) for row in await self._all("list_tenants", search, after, limit)]

    async def update_tenant(
        self,
        tenant_id: UUID,
        *,
        name: str | None = None,
        weight: float | None = None,
        priority: int | None = None,
        disabled: bool | None = None,
        conversation_days: int | UnsetType | None = UNSET,
    ) -> Tenant:
        """Change the fields that are neither None nor unset. Disabling a tenant again keeps the
        first time; ``conversation_days`` None leaves it to the server's settings.

        Raises ``ObjectNotFound``, ``ObjectExists``.
        """
        name = None if name is None else normalize_name("name", name)
        weight = None if weight is None else check_weight(weight)
        priority = None if priority is None else check_priority(priority)
        days = None if conversation_days is UNSET else check_days(conversation_days)
        row = await self._one(
            "update_tenant",
            *(tenant_id, name, weight, priority, disabled, conversation_days is not UNSET, days),
            tenant_id=tenant_id,
            violations={"tenant_name_key": ObjectExists("tenant", name or "")},
            missing=ObjectNotFound("tenant", tenant_id),
        )
        return Tenant(**row)

    async def delete_tenant(self, tenant_id: UUID) -> None:
        """Delete a tenant with all that it has stored; its keys are revoked, and its name is free.
        The ledger and the audit log keep its id. Raises ``ObjectNotFound``."""
        missing = ObjectNotFound("tenant", tenant_id)
        await self._one("delete_tenant", tenant_id, missing=missing)
        await self._purge(tenant_id)

    async def create_project(self, tenant_id: UUID, name: str) -> Project:
        """Create a project. Raises ``ObjectNotFound``, ``ObjectExists``."""
        name = normalize_name("name", name)
        row = await self._one(
            "create_project",
            *(uuid4(), tenant_id, name),
            tenant_id=tenant_id,
            violations={
                "project_tenant_id_name_key": ObjectExists("project", name),
                "project_tenant_id_fkey": ObjectNotFound("tenant", tenant_id),
            },
        )
        return Project(**row)

    async def list_projects(
        self,
        tenant_id: UUID,
        *,
        search: str | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> Sequence[Project]:
        """A tenant's projects by name, including the default one; ``search``: a part of it."""
        values = (tenant_id, search, after, limit)
        rows = await self._all("list_projects", *values, tenant_id=tenant_id)
        return [Project(**row) for row in rows]

    async def rename_project(self, tenant_id: UUID, project_id: UUID, name: str) -> Project:
        """Rename a project. Raises ``ObjectNotFound``, ``ObjectExists``."""
        name = normalize_name("name", name)
        row = await self._one(
            "rename_project",
            *(tenant_id, project_id, name),
            tenant_id=tenant_id,
            violations={"project_tenant_id_name_key": ObjectExists("project", name)},
            missing=ObjectNotFound("project", project_id),
        )
        return Project(**row)

    async def create_key(
        self,
        tenant_id: UUID,
        *,
        public_id: str,
        key_hash: bytes,
        **options: Unpack[KeyOptions],
    ) -> ApiKey:
        """Store a key by its hash. Raises ``ObjectNotFound`` (also for another tenant's project),
        ``ObjectExists`` (the public id is taken)."""
        expires_at, project_id = options.get("expires_at"), options.get("project_id")
        user_name = options.get("user_name")
        check_key(public_id, key_hash, expires_at)
        row = await self._one(
            "create_key",
            *(uuid4(), tenant_id, project_id, public_id, key_hash),
            normalize_name("name", options["name"]),
            check_scopes(options["scopes"]),
            check_models(options.get("allowed_models", ())),
            msgspec.json.encode(check_aliases(options.get("model_aliases", {}))).decode(),
            expires_at,
            None if user_name is None else normalize_name("user_name", user_name),
            tenant_id=tenant_id,
            violations={
                "api_key_public_id_key": ObjectExists("key", public_id),
                "api_key_tenant_id_fkey": ObjectNotFound("tenant", tenant_id),
                "api_key_project_id_fkey": ObjectNotFound("project", project_id),
            },
        )
        return key_of(row)

    async def rotate_key(
        self, public_id: str, *, new_public_id: str, key_hash: bytes, grace: timedelta
    ) -> ApiKey:
        """Replace a key by a new one with the same rights; returns the new one.

        The old one keeps working for ``grace``, or until it expires if that is sooner. Raises
        ``ObjectNotFound`` (also if the old one is revoked), ``ObjectExists``.
        """
        check_key(new_public_id, key_hash, None)
        missing = ObjectNotFound("key", public_id)
        if not is_public_id(public_id):
            raise missing
        row = await self._one(
            "rotate_key",
            *(public_id, uuid4(), new_public_id, key_hash, check_grace(grace)),
            violations={"api_key_public_id_key": ObjectExists("key", new_public_id)},
            missing=missing,
        )
        return key_of(row)

    async def create_first_admin_key(
        self, tenant_name: str, *, public_id: str, key_hash: bytes, name: str
    ) -> None:
        """Create the first key with the scope ``owner``, and the tenant if it does not exist.
        Raises ``ObjectExists``."""
        check_key(public_id, key_hash, None)
        row = await self._one(
            "create_first_admin_key",
            *(uuid4(), normalize_name("tenant", tenant_name), uuid4(), public_id, key_hash),
            normalize_name("name", name),
        )
        if not row["made"]:
            raise ObjectExists("admin key")

    async def has_keys(self) -> bool:
        """Whether there is a key of anybody, also one that is revoked."""
        has_keys: bool = (await self._one("has_keys"))["has_keys"]
        return has_keys

    async def find_key(self, public_id: str) -> KeyRecord | None:
        """The key, its tenant and its hash, even if it is revoked or expired; None if unknown."""
        if not is_public_id(public_id):
            return None
        rows = await self._all("find_key", public_id)
        return record_of(rows[0]) if rows else None

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
        values = (tenant_id, search, *(after or (None, None)), limit)
        rows = await self._all("list_keys", *values, tenant_id=tenant_id)
        return [key_of(row) for row in rows]

    async def names(self, ids: Collection[UUID]) -> Mapping[UUID, str]:
        """What tenants, projects and keys are called, by their ids. Keys have their public id in
        parentheses; unknown ids are left out."""
        return {row["id"]: row["name"] for row in await self._all("names", list(ids))}

    async def revoke_key(self, public_id: str) -> ApiKey:
        """Revoke a key. Revoking it again keeps the first time. Raises ``ObjectNotFound``."""
        missing = ObjectNotFound("key", public_id)
        if not is_public_id(public_id):
            raise missing
        return key_of(await self._one("revoke_key", public_id, missing=missing))

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
        """Store an adapter. Raises ``ObjectNotFound``, ``ObjectExists``."""
        name = normalize_name("name", name)
        row = await self._one(
            "create_adapter",
            *(adapter_id, tenant_id, name, parent, path, base_model, rank, digest),
            tenant_id=tenant_id,
            violations={
                "adapter_tenant_id_name_key": ObjectExists("adapter", name),
                "adapter_tenant_id_fkey": ObjectNotFound("tenant", tenant_id),
            },
        )
        return Adapter(**row)

    async def list_adapters(self, tenant_id: UUID) -> Sequence[Adapter]:
        """A tenant's adapters by name; none for a tenant that does not exist."""
        rows = await self._all("list_adapters", tenant_id, tenant_id=tenant_id)
        return [Adapter(**row) for row in rows]

    async def delete_adapter(self, tenant_id: UUID, adapter_id: UUID) -> Adapter:
        """Delete an adapter and return it. Raises ``ObjectNotFound``."""
        row = await self._one(
            "delete_adapter",
            *(tenant_id, adapter_id),
            tenant_id=tenant_id,
            missing=ObjectNotFound("adapter", adapter_id),
        )
        return Adapter(**row)

    async def allow_mcp_server(
        self, tenant_id: UUID, url: str, *, allow_private: bool = False
    ) -> McpServer:
        """Let a tenant's responses use a server. Raises ``InvalidValue``, ``ObjectNotFound``."""
        url = check_server_url(url)
        row = await self._one(
            "allow_mcp_server",
            *(tenant_id, url, allow_private, MAX_MCP_SERVERS),
            tenant_id=tenant_id,
            violations={"mcp_server_tenant_id_fkey": ObjectNotFound("tenant", tenant_id)},
            missing=InvalidValue("url", f"must be one of at most {MAX_MCP_SERVERS} of a tenant"),
        )
        return McpServer(**row)

    async def list_mcp_servers(self, tenant_id: UUID) -> Sequence[McpServer]:
        """A tenant's servers by URL; none for a tenant that does not exist."""
        rows = await self._all("list_mcp_servers", tenant_id, tenant_id=tenant_id, in_turn=True)
        return [McpServer(**row) for row in rows]

    async def delete_mcp_server(self, tenant_id: UUID, server_id: UUID) -> McpServer:
        """Allow a server no longer, and return it. Raises ``ObjectNotFound``."""
        row = await self._one(
            "delete_mcp_server",
            *(tenant_id, server_id),
            tenant_id=tenant_id,
            missing=ObjectNotFound("mcp_server", server_id),
        )
        return McpServer(**row)

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
        newest = MAX_AUDIT_ID if after is None else max(0, min(after, MAX_AUDIT_ID))
        which = (search, newest, limit)
        if tenant_id is None:
            rows = await self._all("list_all_audit", *which)
        else:
            rows = await self._all("list_audit", tenant_id, *which, tenant_id=tenant_id)
        return [audit_entry_of(row) for row in rows]

    async def _all(
        self,
        name: str,
        *values: object,
        tenant_id: UUID | None = None,
        violations: Violations = NO_VIOLATIONS,
        in_turn: bool = False,
    ) -> Sequence[Row]:
        """in_turn: a tenant asks for it, as often as it likes."""
        if in_turn:
            assert tenant_id is not None
            return await self._connections.fetch_in_turn(_SQL[name], values, tenant_id=tenant_id)
        return await self._connections.fetch(
            _SQL[name], values, tenant_id=tenant_id, violations=violations
        )

    async def _one(
        self,
        name: str,
        *values: object,
        tenant_id: UUID | None = None,
        violations: Violations = NO_VIOLATIONS,
        missing: TenantsError | None = None,
    ) -> Row:
        rows = await self._all(name, *values, tenant_id=tenant_id, violations=violations)
        if not rows and missing is not None:
            raise missing
        assert len(rows) == 1
        return rows[0]
