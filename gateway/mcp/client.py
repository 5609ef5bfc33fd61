"""One exchange with an MCP server: list its tools, or call one.

Imports the ``mcp`` package (the extra ``mcp``), so only ``servers`` imports this, and only once it
is needed. Each exchange has a connection of its own: MCP of 2026-07-28 knows no sessions.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, ResourceLink, TextContent

from gateway import outbound
from gateway.errors import PayloadTooLarge
from gateway.mcp.exchange import CallFailed, Exchange, RemoteTool, Result
from gateway.transport.body_shape import JsonCounts

MAX_PAGES = 20
"""Of one list of tools."""
MAX_CONTAINERS = 8192
"""The most arrays and objects that a server may send in one exchange. The package takes up to 11 us
to read one."""

# They log what servers send and what goes wrong, which is the client's to know.
for _name in ("mcp", "client", "httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


async def list_tools(exchange: Exchange) -> list[RemoteTool]:
    """All tools of a server. Raises ``CallFailed``."""

    async def ask(client: Client) -> list[RemoteTool]:
        tools: list[RemoteTool] = []
        cursor = None
        for _ in range(MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            for tool in page.tools:
                hints = tool.annotations
                tools.append(
                    RemoteTool(
                        name=tool.name,
                        input_schema=tool.input_schema,
                        description=tool.description,
                        annotations=None
                        if hints is None
                        else hints.model_dump(exclude_none=True, by_alias=True),
                    )
                )
            if (cursor := page.next_cursor) is None:
                return tools
        raise CallFailed("http_error", 502, f"Its list of tools has more than {MAX_PAGES} pages.")

    return await _exchange(exchange, ask)


async def call_tool(exchange: Exchange, name: str, arguments: dict[str, Any]) -> Result:
    """What a tool answers, also that it failed. Raises ``CallFailed``."""

    async def ask(client: Client) -> Result:
        result = await client.call_tool(name, arguments)
        return Result(text=_text(result), is_error=result.is_error)

    return await _exchange(exchange, ask)


T = TypeVar("T")


async def _exchange(exchange: Exchange, ask: Callable[[Client], Awaitable[T]]) -> T:
    guard = _Guard(exchange.max_bytes)
    http = outbound.client(exchange.networks, timeout_s=exchange.timeout_s)
    http.headers.update(exchange.headers)
    http.event_hooks = {"response": [guard.on_response]}
    try:
        async with asyncio.timeout(exchange.timeout_s) as deadline:
            guard.on_violation = lambda: deadline.reschedule(0)
            async with (
                http,
                Client(
                    streamable_http_client(exchange.url, http_client=http), cache=None
                ) as client,
            ):
                # A server's own schemas may hold patterns that take for ever on this event loop.
                client.session.validate_tool_result = _trust  # type: ignore[method-assign]
                return await ask(client)
    except Exception as exc:
        raise _failure(exc, guard, exchange) from None


async def _trust(name: str, result: CallToolResult) -> None:
    """What a tool returns is text for a model, which need not hold its schema."""


def _failure(exc: Exception, guard: _Guard, exchange: Exchange) -> CallFailed:
    """What to tell the client. An error behind others, as in groups, is the one that counts."""
    if guard.violation is not None:
        return guard.violation
    while isinstance(exc, ExceptionGroup):
        exc = exc.exceptions[0]
    match exc:
        case CallFailed():
            return exc
        case TimeoutError() | httpx2.TimeoutException():
            return CallFailed("http_error", 504, f"No answer within {exchange.timeout_s:g} s.")
        case httpx2.ConnectError():
            return CallFailed("http_error", 502, str(exc)[:500])
        case MCPError():
            return CallFailed("mcp_protocol_error", exc.error.code, exc.error.message[:500])
    return CallFailed("http_error", 502, f"The exchange failed: {type(exc).__name__}.")


def _text(result: CallToolResult) -> str:
    """What the model reads, which is text only."""
    parts: list[str] = []
    for block in result.content:
        match block:
            case TextContent():
                parts.append(block.text)
            case ResourceLink():
                parts.append(str(block.uri))
            case _:
                parts.append(f"[{block.type} is not shown]")
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content)
    return "\n".join(parts)


class _Guard:
    """Counts what the server sends, before the package reads it: on this event loop, which a
    megabyte of empty objects holds for half a second."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._counts = JsonCounts(MAX_CONTAINERS)
        self.violation: CallFailed | None = None
        self.on_violation: Callable[[], object] = lambda: None

    async def on_response(self, response: httpx2.Response) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Counted(response.stream, self.count)

    def count(self, data: bytes) -> None:
        """Ends the exchange if it is too much: the package would catch an error, and try again."""
        self._num_bytes += len(data)
        if self._num_bytes > self._max_bytes:
            raise self._violated(f"It sent more than {self._max_bytes} bytes.")
        try:
            self._counts.feed(data)
        except PayloadTooLarge as error:
            raise self._violated(f"It sent too much to read: {error.message}") from None

    def _violated(self, message: str) -> CallFailed:
        self.violation = CallFailed("http_error", 502, message)
        self.on_violation()
        return self.violation


class _Counted(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, count: Callable[[bytes], None]) -> None:
        self._inner = inner
        self._count = count

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self._inner:
            self._count(data)
            yield data

    async def aclose(self) -> None:
        await self._inner.aclose()
