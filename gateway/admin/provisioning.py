"""Creates and replaces tenants' keys: stores their hashes, and returns their texts once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Unpack
from uuid import UUID

from tenants import keys
from tenants.errors import InvalidValue, ObjectNotFound
from tenants.names import normalize_name
from tenants.store import Store
from tenants.types import ApiKey, KeyOptions, Project, Tenant


async def ensure_tenant(store: Store, name: str) -> Tenant:
    """The tenant of this name, created if there is none."""
    try:
        return await store.get_tenant(name)
    except ObjectNotFound:
        return await store.create_tenant(name)


async def ensure_project(store: Store, tenant: Tenant, name: str) -> Project:
    """The tenant's project of this name, created if there is none."""
    wanted = normalize_name("project", name)
    for project in await store.list_projects(tenant.id, search=wanted):
        if project.name == wanted:
            return project
    return await store.create_project(tenant.id, wanted)


async def make_key(
    store: Store, pepper: bytes, tenant_id: UUID, **options: Unpack[KeyOptions]
) -> tuple[ApiKey, str]:
    """Make a key; returns it and its text, which cannot be read again.

    Raises as ``Store.create_key``, and ``InvalidValue`` for a key that could never be used.
    """
    _check_lives(options.get("expires_at"), "must be in the future")
    minted = keys.mint(pepper)
    key = await store.create_key(
        tenant_id, public_id=minted.public_id, key_hash=minted.key_hash, **options
    )
    return key, minted.text


async def replace_key(
    store: Store, pepper: bytes, public_id: str, *, grace: timedelta
) -> tuple[ApiKey, str]:
    """Make a key that replaces another, which goes on working for ``grace``; returns it and its
    text.

    Raises ``ObjectNotFound`` (also when the old key is revoked), ``InvalidValue`` (also when it has
    expired, as its successor would have, too).
    """
    old = await store.find_key(public_id)
    if old is not None:
        _check_lives(old.principal.key.expires_at, "is over for this key: make a new one")
    minted = keys.mint(pepper)
    key = await store.rotate_key(
        public_id, new_public_id=minted.public_id, key_hash=minted.key_hash, grace=grace
    )
    return key, minted.text


def _check_lives(expires_at: datetime | None, reason: str) -> None:
    # The store refuses a time without a time zone.
    if expires_at is not None and expires_at.tzinfo is not None and expires_at <= datetime.now(UTC):
        raise InvalidValue("expires_at", reason)


async def bootstrap(store: Store, pepper: bytes, tenant_name: str, *, name: str) -> str:
    """The text of the first owner's key. Raises ``ObjectExists``, ``InvalidValue``."""
    minted = keys.mint(pepper)
    await store.create_first_admin_key(
        tenant_name, public_id=minted.public_id, key_hash=minted.key_hash, name=name
    )
    return minted.text


async def create_key(
    store: Store,
    pepper: bytes,
    tenant_name: str,
    *,
    project: str | None = None,
    **options: Unpack[KeyOptions],
) -> str:
    """``make_key`` by names; its text. ``project`` is created if there is none.

    Raises ``ObjectNotFound``, ``InvalidValue`` (an unknown scope, a bad name).
    """
    tenant = await store.get_tenant(tenant_name)
    if project is not None:
        options["project_id"] = (await ensure_project(store, tenant, project)).id
    _, text = await make_key(store, pepper, tenant.id, **options)
    return text


async def rotate_key(store: Store, pepper: bytes, public_id: str, *, grace: timedelta) -> str:
    """The text of ``replace_key``. Raises what it raises."""
    _, text = await replace_key(store, pepper, public_id, grace=grace)
    return text
