"""The port to persistence: ``postgres`` and ``memory`` pass the same contract tests."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

from tenants.types import ApiKey, KeyRecord, Scope, Tenant, UsageEvent, UsageTotals


class Store(Protocol):
    """Tenants, keys and the ledger.

    Every method may raise ``StoreUnavailable``; those that write raise ``InvalidValue`` for a field
    that breaks the rules of ``tenants.names``. Names are kept and found in Unicode NFC.
    """

    async def create_tenant(self, name: str, *, weight: float = 1.0, priority: int = 0) -> Tenant:
        """Raises ``TenantExists`` when the name is taken."""

    async def get_tenant(self, name: str) -> Tenant:
        """Raises ``TenantNotFound``."""

    async def list_tenants(self) -> Sequence[Tenant]:
        """All tenants, by name."""

    async def create_key(
        self,
        tenant_id: UUID,
        *,
        public_id: str,
        key_hash: bytes,
        name: str,
        scopes: Sequence[Scope],
        expires_at: datetime | None = None,
    ) -> ApiKey:
        """Store a key by its hash. Raises ``TenantNotFound``, ``KeyExists`` (public id taken)."""

    async def find_key(self, public_id: str) -> KeyRecord | None:
        """The key, its tenant and its hash, also when revoked or expired; None when unknown."""

    async def list_keys(self, tenant_id: UUID) -> Sequence[ApiKey]:
        """A tenant's keys, oldest first; none for a tenant that does not exist."""

    async def revoke_key(self, public_id: str) -> ApiKey:
        """Idempotent: the first time stays. Raises ``KeyNotFound``."""

    async def record_usage(self, event: UsageEvent) -> bool:
        """Append to the ledger; False when this ``request_id`` is there already: the first stays.

        Raises ``KeyNotFound`` when the key is not the tenant's.
        """

    async def usage_totals(self, tenant_id: UUID) -> UsageTotals:
        """Sums over the tenant's ledger."""

    async def ping(self) -> None:
        """Return when the store answers."""

    async def close(self) -> None:
        """Release connections. Idempotent."""
