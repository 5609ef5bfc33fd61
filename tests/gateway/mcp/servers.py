"""Real MCP servers on ports of this machine, and one that does what none should."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from gateway.config import ServerConfig
from gateway.processes.server import bind
from tests.gateway.serving import until


class Weather:
    """A server with tools, of the ``mcp`` package. It notes what it was asked."""

    def __init__(self) -> None:
        # Here, as all files of tests are imported before the first test runs: it takes a second.
        from mcp.server import MCPServer
        from mcp_types import ToolAnnotations

        self.asked: list[str] = []
        self.begun = asyncio.Event()
        self.num_cancelled = 0
        self.server = server = MCPServer("weather")

        @server.tool(annotations=ToolAnnotations(read_only_hint=True))
        def get_weather(city: str) -> str:
            """The weather in a city."""
            self.asked.append(city)
            return f"It is 7 degrees in {city}."

        @server.tool()
        def fail(city: str) -> str:
            """Fails."""
            raise ValueError(f"no weather in {city}")

        @server.tool()
        async def wait(city: str) -> str:
            """Never answers."""
            self.begun.set()
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                self.num_cancelled += 1
                raise
            return city

        @server.tool()
        def long(city: str) -> str:
            """Answers at length."""
            return city * 2**20

    def app(self) -> Starlette:
        return self.server.streamable_http_app()


class Hostile:
    """A server that redirects, or sends without end."""

    def __init__(self, location: str = "") -> None:
        self.location = location
        self.num_sent = 0
        self.paths: list[str] = []

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/redirect", self._redirect, methods=["POST", "GET"]),
                Route("/endless", self._endless, methods=["POST", "GET"]),
                Route("/many", self._many, methods=["POST", "GET"]),
                Route("/silent", self._silent, methods=["POST", "GET"]),
                Route("/page", self._page, methods=["POST", "GET"]),
            ]
        )

    async def _redirect(self, request: Request) -> Response:
        return RedirectResponse(self.location, 307)

    async def _page(self, request: Request) -> Response:
        self.paths.append(request.url.path)
        return Response("<h1>Hello</h1>", media_type="text/html")

    async def _many(self, request: Request) -> Response:
        asked = await request.json()
        tools = b",".join(b'{"name":"t%d","inputSchema":{}}' % number for number in range(20_000))
        data = b'{"jsonrpc":"2.0","id":%s,"result":{"tools":[%s]}}'
        return Response(
            data % (str(asked.get("id")).encode(), tools), media_type="application/json"
        )

    async def _silent(self, request: Request) -> Response:
        await asyncio.sleep(600)
        return Response()

    async def _endless(self, request: Request) -> Response:
        async def data() -> AsyncIterator[bytes]:
            while True:
                self.num_sent += 1
                yield b" " * 65536
                await asyncio.sleep(0)

        return StreamingResponse(data(), media_type="application/json")


@asynccontextmanager
async def on_a_port(app: Starlette) -> AsyncIterator[str]:
    """The URL at which it is served until the block ends."""
    listener = bind(ServerConfig(port=0))
    config = uvicorn.Config(app, log_level="critical", lifespan="on", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    serving = asyncio.create_task(server._serve(sockets=[listener]))
    try:
        await until(lambda: server.started or serving.done())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
        listener.close()
