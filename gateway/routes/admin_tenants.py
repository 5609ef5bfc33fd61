"""``/admin/v1/tenants``: tenants, their projects and keys, and the limits of all three."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from gateway import context
from gateway.admin import provisioning
from gateway.errors import InvalidRequestError
from gateway.routes.http import id_of, moment, parse_id, secret_answer
from gateway.routes.paging import listing, listing_of_all, page_of
from gateway.schemas.admin import (
    CreateKey,
    CreateTenant,
    KeyObject,
    LimitsObject,
    NamedProject,
    ProjectObject,
    RotateKey,
    TenantDeleted,
    TenantObject,
    UpdateTenant,
)
from gateway.services import Services
from tenants.access import ROLES, require_scope
from tenants.changes import Change
from tenants.errors import ObjectNotFound
from tenants.keys import is_public_id
from tenants.limits import Limits, ScopeKind
from tenants.types import ApiKey, Scope

_BROADEST_FIRST: tuple[ScopeKind, ...] = ("tenant", "project", "key")


async def create_tenant(services: Services, request: Request, body: CreateTenant) -> Response:
    tenant = await services.store.create_tenant(
        body.name, weight=body.weight, priority=body.priority
    )
    return secret_answer(TenantObject.of(tenant), 201)


async def list_tenants(services: Services, request: Request) -> Response:
    page = page_of(request, str)
    tenants = await services.store.list_tenants(
        search=page.search, after=page.after, limit=page.fetched
    )
    return listing(tenants, page, lambda tenant: tenant.name, TenantObject.of)


async def get_tenant(services: Services, request: Request) -> Response:
    return secret_answer(
        TenantObject.of(await services.store.get_tenant(id_of(request, "tenant_id")))
    )


async def update_tenant(services: Services, request: Request, body: UpdateTenant) -> Response:
    tenant_id = id_of(request, "tenant_id")
    if body.disabled:  # It ends all keys of the tenant.
        now = datetime.now(UTC)
        for key in await services.store.list_keys(tenant_id):
            if key.revoked_at is None and (key.expires_at is None or key.expires_at > now):
                _check_may_hand_out(request, key.scopes)
    tenant = await services.store.update_tenant(
        tenant_id,
        name=body.name,
        weight=body.weight,
        priority=body.priority,
        disabled=body.disabled,
        conversation_days=body.conversation_days,
    )
    services.revocations.on_change(Change(tenant_id=tenant.id))
    return secret_answer(TenantObject.of(tenant))


async def delete_tenant(services: Services, request: Request) -> Response:
    tenant = await services.store.get_tenant(id_of(request, "tenant_id"))
    if tenant.id == context.principal_of(request.scope).tenant.id:
        raise InvalidRequestError("Your own key is this tenant's; use another's.")
    await services.store.delete_tenant(tenant.id)
    services.revocations.on_change(Change(tenant_id=tenant.id))
    return secret_answer(TenantDeleted(id=str(tenant.id), name=tenant.name))


async def create_project(services: Services, request: Request, body: NamedProject) -> Response:
    project = await services.store.create_project(id_of(request, "tenant_id"), body.name)
    return secret_answer(ProjectObject.of(project), 201)


async def list_projects(services: Services, request: Request) -> Response:
    page = page_of(request, str)
    tenant = await services.store.get_tenant(id_of(request, "tenant_id"))
    projects = await services.store.list_projects(
        tenant.id, search=page.search, after=page.after, limit=page.fetched
    )
    return listing(projects, page, lambda project: project.name, ProjectObject.of)


async def rename_project(services: Services, request: Request, body: NamedProject) -> Response:
    project = await services.store.rename_project(
        id_of(request, "tenant_id"), id_of(request, "project_id"), body.name
    )
    return secret_answer(ProjectObject.of(project))


async def create_key(services: Services, request: Request, body: CreateKey) -> Response:
    _check_may_hand_out(request, body.scopes)
    project_id = None if body.project_id is None else parse_id(body.project_id)
    if body.project_id is not None and project_id is None:
        raise ObjectNotFound("project", body.project_id)
    key, text = await provisioning.make_key(
        services.store,
        services.secrets.key_pepper,
        id_of(request, "tenant_id"),
        name=body.name,
        scopes=body.scopes,
        project_id=project_id,
        allowed_models=body.allowed_models,
        model_aliases=body.model_aliases,
        expires_at=None if body.expires_at is None else moment(body.expires_at, "expires_at"),
        user_name=body.user_name,
    )
    return secret_answer(KeyObject.of(key, key=text), 201)


async def list_keys(services: Services, request: Request) -> Response:
    page = page_of(request, tuple[datetime, str])
    tenant = await services.store.get_tenant(id_of(request, "tenant_id"))
    keys = await services.store.list_keys(
        tenant.id, search=page.search, after=page.after, limit=page.fetched
    )
    return listing(keys, page, lambda key: (key.created_at, key.public_id), KeyObject.of)


async def get_key(services: Services, request: Request) -> Response:
    return secret_answer(KeyObject.of(await _key(services, request)))


async def revoke_key(services: Services, request: Request) -> Response:
    found = await _key(services, request)
    _check_may_hand_out(request, found.scopes)
    key = await services.store.revoke_key(found.public_id)
    services.revocations.on_change(Change(public_id=key.public_id))
    return secret_answer(KeyObject.of(key))


async def rotate_key(services: Services, request: Request, body: RotateKey) -> Response:
    if not 0 <= body.grace_seconds <= 366 * 86400:
        raise InvalidRequestError("Must be 0 seconds to 366 days.", param="grace_seconds")
    key = await _key(services, request)
    _check_may_hand_out(request, key.scopes)
    new, text = await provisioning.replace_key(
        services.store,
        services.secrets.key_pepper,
        key.public_id,
        grace=timedelta(seconds=body.grace_seconds),
    )
    services.revocations.on_change(Change(public_id=key.public_id))
    return secret_answer(KeyObject.of(new, key=text), 201)


async def list_limits(services: Services, request: Request) -> Response:
    """The limits of the tenant, and of all its projects and keys that have any."""
    tenant = await services.store.get_tenant(id_of(request, "tenant_id"))
    return listing_of_all(
        await services.store.list_limits(tenant.id),
        page_of(request, tuple[int, UUID]),
        lambda policy: (_BROADEST_FIRST.index(policy.scope_kind), policy.scope_id),
        lambda policy: LimitsObject(
            scope_kind=policy.scope_kind,
            scope_id=str(policy.scope_id),
            limits=policy.limits,
        ),
        lambda policy: f"{policy.scope_kind} {policy.scope_id}",
    )


async def put_tenant_limits(services: Services, request: Request, body: Limits) -> Response:
    tenant_id = id_of(request, "tenant_id")
    return await _put_limits(services, tenant_id, "tenant", tenant_id, body)


async def put_project_limits(services: Services, request: Request, body: Limits) -> Response:
    tenant_id, project_id = id_of(request, "tenant_id"), id_of(request, "project_id")
    return await _put_limits(services, tenant_id, "project", project_id, body)


async def put_key_limits(services: Services, request: Request, body: Limits) -> Response:
    key = await _key(services, request)
    return await _put_limits(services, key.tenant_id, "key", key.id, body)


async def _put_limits(
    services: Services, tenant_id: UUID, kind: ScopeKind, scope_id: UUID, limits: Limits
) -> Response:
    """Replace all limits of a scope: what is left out is no longer limited."""
    await services.store.put_limits(tenant_id, kind, scope_id, limits)
    services.revocations.on_change(Change(tenant_id=tenant_id))
    return secret_answer(LimitsObject(scope_kind=kind, scope_id=str(scope_id), limits=limits))


def _check_may_hand_out(request: Request, scopes: Collection[Scope]) -> None:
    """Raise ``NotAllowed`` for keys that reach beyond their tenant, unless an owner asks: with them
    an administrator could make itself one, and without them nobody would be."""
    if not set(ROLES).isdisjoint(scopes):
        require_scope(context.principal_of(request.scope).key, "owner")


async def _key(services: Services, request: Request) -> ApiKey:
    """The tenant's key with this id or public id. Raises ``ObjectNotFound``."""
    named, tenant_id = request.path_params["key_id"], id_of(request, "tenant_id")
    search = named if is_public_id(named) else None
    for key in await services.store.list_keys(tenant_id, search=search):
        if named in (key.public_id, str(key.id)):
            return key
    raise ObjectNotFound("key", named)
