"""The part of ``MemoryStore`` that has the MCP servers of tenants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from tenants.directory import MAX_MCP_SERVERS, Directory
from tenants.errors import InvalidValue, ObjectNotFound
from tenants.names import check_server_url
from tenants.types import McpServer
from tests.memory_store.audit import MemoryAudit


class MemoryMcpServers(Directory):
    _tenants: Mapping[UUID, Any]
    _mcp_servers: dict[UUID, McpServer]
    _audit: MemoryAudit
    _now: Callable[[], datetime]

    async def allow_mcp_server(
        self, tenant_id: UUID, url: str, *, allow_private: bool = False
    ) -> McpServer:
        if tenant_id not in self._tenants:
            raise ObjectNotFound("tenant", tenant_id)
        own = {server.url: server for server in await self.list_mcp_servers(tenant_id)}
        before = own.get(url := check_server_url(url))
        if before is None and len(own) >= MAX_MCP_SERVERS:
            raise InvalidValue("url", f"must be one of at most {MAX_MCP_SERVERS} of a tenant")
        server = McpServer(
            id=uuid4() if before is None else before.id,
            tenant_id=tenant_id,
            url=url,
            allow_private=allow_private,
            created_at=self._now() if before is None else before.created_at,
        )
        self._mcp_servers[server.id] = server
        self._audit.note("mcp_server", before, server)
        return server

    async def list_mcp_servers(self, tenant_id: UUID) -> Sequence[McpServer]:
        own = (one for one in self._mcp_servers.values() if one.tenant_id == tenant_id)
        return sorted(own, key=lambda server: server.url)

    async def delete_mcp_server(self, tenant_id: UUID, server_id: UUID) -> McpServer:
        server = self._mcp_servers.get(server_id)
        if server is None or server.tenant_id != tenant_id:
            raise ObjectNotFound("mcp_server", server_id)
        del self._mcp_servers[server_id]
        self._audit.note("mcp_server", server, None)
        return server
