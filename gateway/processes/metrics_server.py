"""Serves ``/metrics`` on a port of its own, for networks that only the operator can reach."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Generator

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.metrics.metrics import CONTENT_TYPE, Metrics


class _Server(uvicorn.Server):
    """uvicorn beside another server in the same loop, whose signals are not its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


@contextlib.asynccontextmanager
async def served(listener: socket.socket, metrics: Metrics) -> AsyncIterator[None]:
    """Answer on ``listener`` while the block runs. Nobody needs a key."""

    async def render(request: Request) -> Response:
        return Response(metrics.render(), media_type=CONTENT_TYPE)

    config = uvicorn.Config(
        Starlette(routes=[Route("/metrics", render)]),
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="metrics server")
    try:
        yield
    finally:
        server.should_exit = True
        await serving
