"""Making tenants' keys: mint, store the hash, hand out the text once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import cast

from tenants import keys
from tenants.errors import TenantNotFound
from tenants.store import Store
from tenants.types import Scope, Tenant


async def ensure_tenant(store: Store, name: str) -> Tenant:
    """The tenant of this name, created if there is none."""
    try:
        return await store.get_tenant(name)
    except TenantNotFound:
        return await store.create_tenant(name)


async def create_key(
    store: Store,
    pepper: bytes,
    tenant_name: str,
    *,
    name: str,
    scopes: Sequence[str],
    expires_at: datetime | None = None,
) -> str:
    """A new key's text: nobody can read it again.

    Raises ``TenantNotFound``, ``InvalidValue`` (an unknown scope, a bad name).
    """
    tenant = await store.get_tenant(tenant_name)
    minted = keys.mint(pepper)
    await store.create_key(
        tenant.id,
        public_id=minted.public_id,
        key_hash=minted.key_hash,
        name=name,
        scopes=cast("Sequence[Scope]", scopes),  # the store refuses what is no scope
        expires_at=expires_at,
    )
    return minted.text
