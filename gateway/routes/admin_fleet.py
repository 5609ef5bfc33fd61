"""``/admin/v1/fleet``: the engines of all hosts."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import NotFound
from gateway.routes.paging import listing_of_all, page_of
from gateway.schemas.admin import EngineObject
from gateway.services import Services


async def show(services: Services, request: Request) -> Response:
    return listing_of_all(
        await services.store.shared.list_engines(),
        page_of(request, str),
        lambda engine: engine.id,
        EngineObject.of,
        lambda engine: f"{engine.id} {engine.model}",
    )


async def drain(services: Services, request: Request) -> Response:
    return await _set_drained(services, request, is_drained=True)


async def undrain(services: Services, request: Request) -> Response:
    return await _set_drained(services, request, is_drained=False)


async def _set_drained(services: Services, request: Request, *, is_drained: bool) -> Response:
    engine_id = request.path_params["engine_id"]
    if not await services.store.shared.drain_engine(engine_id, is_drained=is_drained):
        raise NotFound(f"No engine {engine_id!r} is registered.", param="engine_id")
    return Response(status_code=204)
