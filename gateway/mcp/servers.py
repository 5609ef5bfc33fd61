"""The MCP servers that tenants may use, and exchanges with them."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from gateway.config import Config
from gateway.errors import PermissionDenied, UnsupportedParameter, quoted
from gateway.mcp.exchange import Exchange, RemoteTool, Result
from tenants.directory import Directory
from tenants.errors import InvalidValue
from tenants.names import check_server_url

_PRIVATE = (
    *("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"),
    *("::1/128", "fc00::/7"),
)
"""Addresses of servers that are not public. Those of a link are not among them: clouds serve their
machines' secrets there."""


class McpServers:
    """Servers by tenant. Imports the ``mcp`` package at its first exchange, in a thread, because
    that takes a second."""

    def __init__(self, config: Config, directory: Directory) -> None:
        self.max_calls = config.mcp.max_calls
        self._config = config.mcp
        self._networks = config.server.outbound_networks
        self._directory = directory

    async def find(self, tenant_id: UUID, url: str, headers: Mapping[str, str]) -> Exchange:
        """What an exchange with a server needs. Raises ``ApiError`` for one that the tenant may not
        use, and ``TenantsError``."""
        if importlib.util.find_spec("mcp") is None:
            raise UnsupportedParameter(
                "This server was installed without the extra mcp.", param="type"
            )
        try:
            wanted = check_server_url(url)
        except InvalidValue as error:
            raise UnsupportedParameter(str(error), param="server_url") from None
        for server in await self._directory.list_mcp_servers(tenant_id):
            if server.url == wanted:
                return Exchange(
                    url=url,
                    networks=(*self._networks, *(_PRIVATE if server.allow_private else ())),
                    headers=headers,
                    timeout_s=self._config.timeout_s,
                    max_bytes=self._config.max_answer_bytes,
                )
        raise PermissionDenied(
            f"No administrator has allowed the MCP server {quoted(url)} for your tenant; "
            "`sluice mcp allow` does.",
            code="mcp_server_not_allowed",
            param="server_url",
        )

    async def list_tools(self, exchange: Exchange) -> list[RemoteTool]:
        """Raises ``CallFailed``."""
        tools: list[RemoteTool] = await (await _client()).list_tools(exchange)
        return tools

    async def call(self, exchange: Exchange, name: str, arguments: dict[str, Any]) -> Result:
        """Raises ``CallFailed``."""
        result: Result = await (await _client()).call_tool(exchange, name, arguments)
        return result


async def _client() -> Any:
    return await asyncio.to_thread(importlib.import_module, "gateway.mcp.client")
