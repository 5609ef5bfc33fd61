"""Making tenants' keys: mint, store the hash, hand out the text once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import cast

from tenants import keys
from tenants.errors import TenantNotFound
from tenants.names import normalize_name
from tenants.store import Store
from tenants.types import Project, Scope, Tenant


async def ensure_tenant(store: Store, name: str) -> Tenant:
    """The tenant of this name, created if there is none."""
    try:
        return await store.get_tenant(name)
    except TenantNotFound:
        return await store.create_tenant(name)


async def ensure_project(store: Store, tenant: Tenant, name: str) -> Project:
    """The tenant's project of this name, created if there is none."""
    wanted = normalize_name("project", name)
    for project in await store.list_projects(tenant.id):
        if project.name == wanted:
            return project
    return await store.create_project(tenant.id, wanted)


async def create_key(
    store: Store,
    pepper: bytes,
    tenant_name: str,
    *,
    name: str,
    scopes: Sequence[str],
    expires_at: datetime | None = None,
    project: str | None = None,
    allowed_models: Sequence[str] = (),
) -> str:
    """A new key's text: nobody can read it again. ``project`` is created if there is none.

    Raises ``TenantNotFound``, ``InvalidValue`` (an unknown scope, a bad name).
    """
    tenant = await store.get_tenant(tenant_name)
    project_id = None
    if project is not None:
        project_id = (await ensure_project(store, tenant, project)).id
    minted = keys.mint(pepper)
    await store.create_key(
        tenant.id,
        public_id=minted.public_id,
        key_hash=minted.key_hash,
        name=name,
        scopes=cast("Sequence[Scope]", scopes),  # the store refuses what is no scope
        expires_at=expires_at,
        project_id=project_id,
        allowed_models=allowed_models,
    )
    return minted.text


async def rotate_key(store: Store, pepper: bytes, public_id: str, *, grace: timedelta) -> str:
    """The text of a key that replaces another, which works on for ``grace``.

    Raises ``KeyNotFound`` (also when the old key is revoked), ``InvalidValue``.
    """
    minted = keys.mint(pepper)
    await store.rotate_key(
        public_id, new_public_id=minted.public_id, key_hash=minted.key_hash, grace=grace
    )
    return minted.text
