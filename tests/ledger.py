"""What a tenant's ledger adds up to."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from tenants.store import Store
from tenants.types import UsageSum

_FIRST, _LAST = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)


async def usage_totals(store: Store, tenant_id: UUID) -> UsageSum:
    """Sums over all that was ever recorded for a tenant."""
    sums = await store.sum_usage(tenant_id, (_FIRST, _LAST))
    return sums[0] if sums else UsageSum()
