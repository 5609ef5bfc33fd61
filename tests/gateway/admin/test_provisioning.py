"""Keys as the command line and the demo make them, on the in-memory store."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from gateway.admin import provisioning
from tenants.authenticator import Authenticator
from tenants.errors import AuthenticationFailed, InvalidValue, ObjectNotFound
from tests.memory_store.store import MemoryStore

PEPPER = b"p" * 32


@pytest.mark.asyncio
async def test_a_new_key_opens_the_door() -> None:
    store = MemoryStore()
    tenant = await provisioning.ensure_tenant(store, "acme")
    text = await provisioning.create_key(store, PEPPER, "acme", name="ci", scopes=["chat"])
    principal = await Authenticator(store, PEPPER).authenticate(text)
    assert principal.tenant == tenant
    assert (principal.key.name, principal.key.scopes) == ("ci", ("chat",))


@pytest.mark.asyncio
async def test_a_tenant_is_made_once() -> None:
    store = MemoryStore()
    first = await provisioning.ensure_tenant(store, "acme")
    assert await provisioning.ensure_tenant(store, "acme") == first
    assert len(await store.list_tenants()) == 1


@pytest.mark.asyncio
async def test_an_expired_key_is_refused() -> None:
    store = MemoryStore()
    await provisioning.ensure_tenant(store, "acme")
    soon = datetime.now(UTC) + timedelta(seconds=1)
    text = await provisioning.create_key(
        store, PEPPER, "acme", name="old", scopes=["chat"], expires_at=soon
    )
    await asyncio.sleep(1.05)
    with pytest.raises(AuthenticationFailed, match="has expired"):
        await Authenticator(store, PEPPER).authenticate(text)


@pytest.mark.asyncio
async def test_what_cannot_be_is_refused_by_name() -> None:
    store = MemoryStore()
    with pytest.raises(ObjectNotFound, match="nobody"):
        await provisioning.create_key(store, PEPPER, "nobody", name="x", scopes=["chat"])
    await provisioning.ensure_tenant(store, "acme")
    with pytest.raises(InvalidValue, match="root"):
        await provisioning.create_key(store, PEPPER, "acme", name="x", scopes=cast("Any", ["root"]))
