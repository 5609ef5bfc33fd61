"""``/admin/v1/streams`` and ``/admin/v1/engine``: lists running requests, and ends them."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from engine.client.fleet import sum_of
from gateway.admin.revocations import killed
from gateway.errors import NotFound
from gateway.generation.generation import Generation
from gateway.routes.http import id_of, query_tenant, secret_answer
from gateway.routes.paging import MAX_LIMIT, listing_of_all, page_of
from gateway.schemas.admin import EngineState, StreamObject, TenantLoad
from gateway.services import Services
from tenants.types import Tenant


async def list_streams(services: Services, request: Request) -> Response:
    """All running requests: this worker's as they are now, and those of others as of their last
    heartbeat in the database."""
    page = page_of(request, tuple[int, str], default=MAX_LIMIT)
    tenant_id = await query_tenant(request, services.store)
    here = {
        generation.admitted.id: _here(generation)
        for generation in services.generations.live()
        if tenant_id in (None, generation.admitted.principal.tenant.id)
    }
    elsewhere = [
        StreamObject.of(running, id=str(running.request_id), is_here=False)
        for running in await services.store.list_running(tenant_id)
        if running.request_id not in here
    ]
    return listing_of_all(
        [*here.values(), *elsewhere],
        page,
        lambda row: (row.created_at, row.id),
        lambda row: row,
        lambda row: f"{row.id} {row.tenant_name} {row.model}",
    )


async def kill_stream(services: Services, request: Request) -> Response:
    request_id = id_of(request, "stream_id")
    await services.store.kill_request(await _tenant_of(services, request_id), request_id)
    services.generations.fail_request(request_id, killed())
    return Response(status_code=204)


async def _tenant_of(services: Services, request_id: UUID) -> UUID:
    for generation in services.generations.live():
        if generation.admitted.id == request_id:
            return generation.admitted.principal.tenant.id
    for running in await services.store.list_running():
        if running.request_id == request_id:
            return running.tenant_id
    raise NotFound(f"No request {str(request_id)!r} runs.", param="stream_id")


async def state(services: Services, request: Request) -> Response:
    engine = services.engine
    return secret_answer(
        EngineState(
            ready=engine.ready,
            stats=msgspec.to_builtins(sum_of([one.stats for one in engine.engines])),
            engines=engine.states,
            tenants=_loads(services.generations.live()),
        )
    )


def _here(generation: Generation) -> StreamObject:
    admitted = generation.admitted
    return StreamObject(
        id=str(admitted.id),
        tenant_id=str(admitted.principal.tenant.id),
        tenant_name=admitted.principal.tenant.name,
        key_id=str(admitted.principal.key.id),
        model=admitted.model,
        state="running",
        prompt_tokens=admitted.num_prompt_tokens,
        generated_tokens=generation.num_generated_tokens,
        created_at=generation.created,
        is_here=True,
    )


def _loads(live: Iterable[Generation]) -> list[TenantLoad]:
    by_tenant: dict[UUID, tuple[Tenant, list[Generation]]] = {}
    for generation in live:
        tenant = generation.admitted.principal.tenant
        by_tenant.setdefault(tenant.id, (tenant, []))[1].append(generation)
    loads = [
        TenantLoad(
            tenant_id=str(tenant.id),
            name=tenant.name,
            num_running=len(running),
            prompt_tokens=sum(one.admitted.num_prompt_tokens for one in running),
            generated_tokens=sum(one.num_generated_tokens for one in running),
        )
        for tenant, running in by_tenant.values()
    ]
    return sorted(loads, key=lambda load: load.name)
