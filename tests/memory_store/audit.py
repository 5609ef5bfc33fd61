"""The audit log of ``memory_store``, with the entries that the database's triggers would
write."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from tenants.audit import actor
from tenants.types import Adapter, ApiKey, AuditEntry, McpServer, Project, Tenant
from tests.memory_store.lists import contains

Audited = Tenant | Project | ApiKey | Adapter | McpServer


class MemoryAudit:
    """An append-only log."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._entries: list[AuditEntry] = []

    def note(self, kind: str, before: Audited | None, after: Audited | None) -> None:
        """Record that a row was created, changed or deleted."""
        row = before if after is None else after
        assert row is not None
        was, now = (None if state is None else _state(state) for state in (before, after))
        if was == now:
            return
        tenant_id = row.id if isinstance(row, Tenant) else row.tenant_id
        object_id = row.public_id if isinstance(row, ApiKey) else str(row.id)
        self.record(f"{kind}.{_verb(was, now)}", tenant_id, object_id, was, now)

    def record(
        self,
        action: str,
        tenant_id: UUID,
        object_id: str,
        before: dict[str, Any] | None = None,
        after: dict[str, Any] | None = None,
    ) -> None:
        entry = AuditEntry(
            id=len(self._entries) + 1,
            tenant_id=tenant_id,
            at=self._now(),
            actor=actor(),
            action=action,
            object_id=object_id,
            before=before,
            after=after,
        )
        self._entries.append(entry)

    def list(
        self, tenant_id: UUID | None, *, search: str | None, after: int | None, limit: int
    ) -> Sequence[AuditEntry]:
        """As ``Store.list_audit``."""
        entries = (
            entry
            for entry in reversed(self._entries)
            if tenant_id in (None, entry.tenant_id)
            and (after is None or entry.id < after)
            and contains(f"{entry.actor} {entry.action} {entry.object_id}", search)
        )
        return list(itertools.islice(entries, limit))


def _state(row: Audited) -> dict[str, Any]:
    state: dict[str, Any] = msgspec.to_builtins(row)
    state.pop("last_used_at", None)
    return state


def _verb(was: dict[str, Any] | None, now: dict[str, Any] | None) -> str:
    if was is None:
        return "create"
    if now is None:
        return "delete"
    if now.get("revoked_at") is not None and was.get("revoked_at") is None:
        return "revoke"
    return "rotate" if now.get("revoke_at") != was.get("revoke_at") else "update"
