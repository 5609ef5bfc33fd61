"""``GET /openapi.json`` and ``GET /asyncapi.json``: descriptions of the HTTP and WebSocket APIs."""

from __future__ import annotations

import functools

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.schemas import asyncapi, openapi

OPENAPI_PATH = "/openapi.json"
ASYNCAPI_PATH = "/asyncapi.json"


def document_routes() -> list[Route]:
    return [_route(path, body) for path, body in _documents().items()]


@functools.cache
def _documents() -> dict[str, bytes]:
    """They describe the code and nothing of its settings, so once per process is enough."""
    documents = {OPENAPI_PATH: openapi.document(), ASYNCAPI_PATH: asyncapi.document()}
    return {path: msgspec.json.encode(found) for path, found in documents.items()}


def _route(path: str, body: bytes) -> Route:
    async def get(request: Request) -> Response:
        return Response(body, media_type="application/json")

    return Route(path, get, methods=["GET"])
