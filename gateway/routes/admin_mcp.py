"""``/admin/v1/tenants/{id}/mcp_servers``: the MCP servers that a tenant's responses may use."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gateway.routes.http import id_of, secret_answer
from gateway.routes.paging import listing_of_all, page_of
from gateway.schemas.admin import AllowMcpServer, McpServerDeleted, McpServerObject
from gateway.services import Services


async def allow(services: Services, request: Request, body: AllowMcpServer) -> Response:
    tenant_id = id_of(request, "tenant_id")
    server = await services.store.allow_mcp_server(
        tenant_id, body.url, allow_private=body.allow_private
    )
    return secret_answer(McpServerObject.of(server), 201)


async def list_all(services: Services, request: Request) -> Response:
    tenant = await services.store.get_tenant(id_of(request, "tenant_id"))
    return listing_of_all(
        await services.store.list_mcp_servers(tenant.id),
        page_of(request, str),
        lambda server: server.url,
        McpServerObject.of,
        lambda server: server.url,
    )


async def deny(services: Services, request: Request) -> Response:
    server = await services.store.delete_mcp_server(
        id_of(request, "tenant_id"), id_of(request, "server_id")
    )
    return secret_answer(McpServerDeleted(id=str(server.id), url=server.url))
