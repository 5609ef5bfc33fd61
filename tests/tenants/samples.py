"""Makers of valid records, for tests that then change one thing."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from uuid import uuid4

import msgspec

from tenants import keys
from tenants.store import Store
from tenants.types import ApiKey, Principal, UsageEvent

PEPPER = b"a pepper for the tests"


async def make_key(
    store: Store, tenant_name: str = "acme", *, expires_at: datetime | None = None
) -> tuple[str, Principal]:
    """A new key of a new tenant: its text, and who it stands for."""
    tenant = await store.create_tenant(tenant_name)
    minted = keys.mint(PEPPER)
    key = await store.create_key(
        tenant.id,
        public_id=minted.public_id,
        key_hash=minted.key_hash,
        name="laptop",
        scopes=["chat"],
        expires_at=expires_at,
    )
    return minted.text, Principal(tenant=tenant, key=key)


def make_event(key: ApiKey | None = None, **changes: object) -> UsageEvent:
    """One finished request of a key, or of nobody's."""
    event = UsageEvent(
        request_id=uuid4(),
        tenant_id=key.tenant_id if key else uuid4(),
        key_id=key.id if key else uuid4(),
        model="demo",
        status="stop",
        prompt_tokens=100,
        cached_tokens=64,
        completion_tokens=20,
        created_at=datetime.now(UTC),
    )
    return msgspec.structs.replace(event, **changes)


def random_hash() -> bytes:
    """A hash no key has."""
    return os.urandom(32)
