"""``/admin/v1/tenants/{id}/adapters``: the adapters (LoRA) of a tenant."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.admin.adapters import Adapters
from gateway.routes.admin import admin_route, answer, body_of, id_of
from gateway.routes.paging import PAGE_QUERY, listing_of_all, page_of
from gateway.schemas.admin import AdapterDeleted, AdapterObject, LoadAdapter
from tenants.changes import Change
from tenants.store import Store

_LOAD = msgspec.json.Decoder(LoadAdapter)


def adapter_routes(
    adapters: Adapters, store: Store, on_change: Callable[[Change], None]
) -> list[Route]:
    """on_change: called with changes made here, before the answer is sent."""

    async def load(request: Request) -> Response:
        tenant_id, body = id_of(request, "tenant_id"), await body_of(request, _LOAD)
        adapter = await adapters.load(tenant_id, body.name, body.path)
        on_change(Change(tenant_id=tenant_id))
        return answer(AdapterObject.of(adapter), 201)

    async def list_all(request: Request) -> Response:
        tenant = await store.get_tenant(id_of(request, "tenant_id"))
        return listing_of_all(
            await store.list_adapters(tenant.id),
            page_of(request, str),
            lambda adapter: adapter.name,
            AdapterObject.of,
            lambda adapter: adapter.name,
        )

    async def unload(request: Request) -> Response:
        tenant_id = id_of(request, "tenant_id")
        adapter = await adapters.unload(tenant_id, request.path_params["adapter"])
        on_change(Change(tenant_id=tenant_id))
        return answer(AdapterDeleted(id=str(adapter.id), name=adapter.name))

    path = "/tenants/{tenant_id}/adapters"
    return [
        admin_route(path, "POST", load),
        admin_route(path, "GET", list_all, query=PAGE_QUERY),
        admin_route(path + "/{adapter:path}", "DELETE", unload),
    ]
