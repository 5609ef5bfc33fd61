"""``/admin/v1/tenants``: tenants, their projects and keys, and the limits of all three."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.admin import provisioning
from gateway.errors import InvalidRequestError
from gateway.routes.admin import admin_route, answer, body_of, id_of, moment, parse_id
from gateway.routes.paging import PAGE_QUERY, listing, listing_of_all, page_of
from gateway.schemas.admin import (
    CreateKey,
    CreateTenant,
    KeyObject,
    LimitsObject,
    NamedProject,
    ProjectObject,
    RotateKey,
    TenantObject,
    UpdateTenant,
)
from tenants.changes import Change
from tenants.errors import KeyNotFound, ProjectNotFound
from tenants.keys import is_public_id
from tenants.limits import Limits, ScopeKind
from tenants.store import Store
from tenants.types import ApiKey

_CREATE_TENANT = msgspec.json.Decoder(CreateTenant)
_UPDATE_TENANT = msgspec.json.Decoder(UpdateTenant)
_PROJECT = msgspec.json.Decoder(NamedProject)
_CREATE_KEY = msgspec.json.Decoder(CreateKey)
_ROTATE_KEY = msgspec.json.Decoder(RotateKey)
_LIMITS = msgspec.json.Decoder(Limits)
_BROADEST_FIRST: tuple[ScopeKind, ...] = ("tenant", "project", "key")


class TenantRoutes:
    """Tenants and what they own."""

    def __init__(self, store: Store, pepper: bytes, on_change: Callable[[Change], None]) -> None:
        """on_change: called with changes made here, before the answer is sent. Other workers get
        them from the database a moment later."""
        self._store = store
        self._pepper = pepper
        self._on_change = on_change

    def routes(self) -> list[Route]:
        one, project = "/tenants/{tenant_id}", "/tenants/{tenant_id}/projects/{project_id}"
        key = "/tenants/{tenant_id}/keys/{key_id}"
        return [
            admin_route("/tenants", "POST", self.create_tenant),
            admin_route("/tenants", "GET", self.list_tenants, query=PAGE_QUERY),
            admin_route(one, "GET", self.get_tenant),
            admin_route(one, "PATCH", self.update_tenant),
            admin_route(f"{one}/limits", "GET", self.list_limits, query=PAGE_QUERY),
            admin_route(f"{one}/limits", "PUT", self.put_tenant_limits),
            admin_route(f"{one}/projects", "POST", self.create_project),
            admin_route(f"{one}/projects", "GET", self.list_projects, query=PAGE_QUERY),
            admin_route(project, "PATCH", self.rename_project),
            admin_route(f"{project}/limits", "PUT", self.put_project_limits),
            admin_route(f"{one}/keys", "POST", self.create_key),
            admin_route(f"{one}/keys", "GET", self.list_keys, query=PAGE_QUERY),
            admin_route(key, "GET", self.get_key),
            admin_route(key, "DELETE", self.revoke_key),
            admin_route(f"{key}/revoke", "POST", self.revoke_key),
            admin_route(f"{key}/rotate", "POST", self.rotate_key),
            admin_route(f"{key}/limits", "PUT", self.put_key_limits),
        ]

    async def create_tenant(self, request: Request) -> Response:
        body = await body_of(request, _CREATE_TENANT)
        tenant = await self._store.create_tenant(
            body.name, weight=body.weight, priority=body.priority
        )
        return answer(TenantObject.of(tenant), 201)

    async def list_tenants(self, request: Request) -> Response:
        page = page_of(request, str)
        tenants = await self._store.list_tenants(
            search=page.search, after=page.after, limit=page.fetched
        )
        return listing(tenants, page, lambda tenant: tenant.name, TenantObject.of)

    async def get_tenant(self, request: Request) -> Response:
        return answer(TenantObject.of(await self._store.get_tenant(id_of(request, "tenant_id"))))

    async def update_tenant(self, request: Request) -> Response:
        body = await body_of(request, _UPDATE_TENANT)
        tenant = await self._store.update_tenant(
            id_of(request, "tenant_id"),
            name=body.name,
            weight=body.weight,
            priority=body.priority,
            disabled=body.disabled,
        )
        self._on_change(Change(tenant_id=tenant.id))
        return answer(TenantObject.of(tenant))

    async def create_project(self, request: Request) -> Response:
        body = await body_of(request, _PROJECT)
        project = await self._store.create_project(id_of(request, "tenant_id"), body.name)
        return answer(ProjectObject.of(project), 201)

    async def list_projects(self, request: Request) -> Response:
        page = page_of(request, str)
        tenant = await self._store.get_tenant(id_of(request, "tenant_id"))
        projects = await self._store.list_projects(
            tenant.id, search=page.search, after=page.after, limit=page.fetched
        )
        return listing(projects, page, lambda project: project.name, ProjectObject.of)

    async def rename_project(self, request: Request) -> Response:
        body = await body_of(request, _PROJECT)
        project = await self._store.rename_project(
            id_of(request, "tenant_id"), id_of(request, "project_id"), body.name
        )
        return answer(ProjectObject.of(project))

    async def create_key(self, request: Request) -> Response:
        body = await body_of(request, _CREATE_KEY)
        project_id = None if body.project_id is None else parse_id(body.project_id)
        if body.project_id is not None and project_id is None:
            raise ProjectNotFound(body.project_id)
        key, text = await provisioning.make_key(
            self._store,
            self._pepper,
            id_of(request, "tenant_id"),
            name=body.name,
            scopes=body.scopes,
            project_id=project_id,
            allowed_models=body.allowed_models,
            model_aliases=body.model_aliases,
            expires_at=None if body.expires_at is None else moment(body.expires_at, "expires_at"),
        )
        return answer(KeyObject.of(key, text), 201)

    async def list_keys(self, request: Request) -> Response:
        page = page_of(request, tuple[datetime, str])
        tenant = await self._store.get_tenant(id_of(request, "tenant_id"))
        keys = await self._store.list_keys(
            tenant.id, search=page.search, after=page.after, limit=page.fetched
        )
        return listing(keys, page, lambda key: (key.created_at, key.public_id), KeyObject.of)

    async def get_key(self, request: Request) -> Response:
        return answer(KeyObject.of(await self._key(request)))

    async def revoke_key(self, request: Request) -> Response:
        key = await self._store.revoke_key((await self._key(request)).public_id)
        self._on_change(Change(public_id=key.public_id))
        return answer(KeyObject.of(key))

    async def rotate_key(self, request: Request) -> Response:
        body = await body_of(request, _ROTATE_KEY)
        if not 0 <= body.grace_seconds <= 366 * 86400:
            raise InvalidRequestError("Must be 0 seconds to 366 days.", param="grace_seconds")
        key = await self._key(request)
        new, text = await provisioning.replace_key(
            self._store, self._pepper, key.public_id, grace=timedelta(seconds=body.grace_seconds)
        )
        self._on_change(Change(public_id=key.public_id))
        return answer(KeyObject.of(new, text), 201)

    async def list_limits(self, request: Request) -> Response:
        """The limits of the tenant, and of all its projects and keys that have any."""
        tenant = await self._store.get_tenant(id_of(request, "tenant_id"))
        return listing_of_all(
            await self._store.list_limits(tenant.id),
            page_of(request, tuple[int, UUID]),
            lambda policy: (_BROADEST_FIRST.index(policy.scope_kind), policy.scope_id),
            lambda policy: LimitsObject(
                scope_kind=policy.scope_kind,
                scope_id=str(policy.scope_id),
                limits=policy.limits,
            ),
            lambda policy: f"{policy.scope_kind} {policy.scope_id}",
        )

    async def put_tenant_limits(self, request: Request) -> Response:
        tenant_id = id_of(request, "tenant_id")
        return await self._put_limits(request, tenant_id, "tenant", tenant_id)

    async def put_project_limits(self, request: Request) -> Response:
        tenant_id, project_id = id_of(request, "tenant_id"), id_of(request, "project_id")
        return await self._put_limits(request, tenant_id, "project", project_id)

    async def put_key_limits(self, request: Request) -> Response:
        key = await self._key(request)
        return await self._put_limits(request, key.tenant_id, "key", key.id)

    async def _put_limits(
        self, request: Request, tenant_id: UUID, kind: ScopeKind, scope_id: UUID
    ) -> Response:
        """Replace all limits of a scope: what is left out is no longer limited."""
        limits = await body_of(request, _LIMITS)
        await self._store.put_limits(tenant_id, kind, scope_id, limits)
        self._on_change(Change(tenant_id=tenant_id))
        return answer(LimitsObject(scope_kind=kind, scope_id=str(scope_id), limits=limits))

    async def _key(self, request: Request) -> ApiKey:
        """The tenant's key with this id or public id. Raises ``KeyNotFound``."""
        named, tenant_id = request.path_params["key_id"], id_of(request, "tenant_id")
        search = named if is_public_id(named) else None
        for key in await self._store.list_keys(tenant_id, search=search):
            if named in (key.public_id, str(key.id)):
                return key
        raise KeyNotFound(named)
