"""``/admin/v1/tenants/{id}/adapters``: the adapters (LoRA) of a tenant."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gateway.routes.http import id_of, secret_answer
from gateway.routes.paging import listing_of_all, page_of
from gateway.schemas.admin import AdapterDeleted, AdapterObject, LoadAdapter
from gateway.services import Services
from tenants.changes import Change


async def load(services: Services, request: Request, body: LoadAdapter) -> Response:
    tenant_id = id_of(request, "tenant_id")
    adapter = await services.adapters.load(tenant_id, body.name, body.path, body.model)
    services.revocations.on_change(Change(tenant_id=tenant_id))
    return secret_answer(AdapterObject.of(adapter), 201)


async def list_all(services: Services, request: Request) -> Response:
    tenant = await services.store.get_tenant(id_of(request, "tenant_id"))
    return listing_of_all(
        await services.store.list_adapters(tenant.id),
        page_of(request, str),
        lambda adapter: adapter.name,
        AdapterObject.of,
        lambda adapter: adapter.name,
    )


async def unload(services: Services, request: Request) -> Response:
    tenant_id = id_of(request, "tenant_id")
    adapter = await services.adapters.unload(tenant_id, request.path_params["adapter"])
    services.revocations.on_change(Change(tenant_id=tenant_id))
    return secret_answer(AdapterDeleted(id=str(adapter.id), name=adapter.name))
