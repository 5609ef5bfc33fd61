"""Calls the handler of the operation that ``middleware.auth`` has found."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from functools import cache
from typing import Any
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from gateway import context
from gateway.errors import InvalidRequestError, MethodNotAllowed, NotFound, quoted
from gateway.middleware.auth import Operations
from gateway.routes.http import check_media_type
from gateway.schemas.operation import SOCKET, Operation
from gateway.services import Services
from gateway.transport import bodies
from tenants.audit import acting_as

ADMIN = "/admin/v1/"
NOBODY = UUID(int=0)

ELSEWHERE: Mapping[str, str] = {
    "/v1/assistants": "OpenAI's Assistants",
    "/v1/audio": "OpenAI's Audio",
    "/v1/chatkit": "OpenAI's ChatKit",
    "/v1/complete": "Anthropic's Text Completions",
    "/v1/containers": "OpenAI's Containers",
    "/v1/edits": "OpenAI's Edits",
    "/v1/embed": "Cohere's Embed",
    "/v1/engines": "OpenAI's Engines",
    "/v1/evals": "OpenAI's Evals",
    "/v1/fine_tuning": "OpenAI's Fine-tuning",
    "/v1/images": "OpenAI's Images",
    "/v1/messages/batches": "Anthropic's Message Batches",
    "/v1/moderations": "OpenAI's Moderations",
    "/v1/organization": "OpenAI's administration",
    "/v1/organizations": "Anthropic's administration",
    "/v1/realtime": "OpenAI's Realtime",
    "/v1/skills": "OpenAI's and Anthropic's Skills",
    "/v1/threads": "OpenAI's Threads",
    "/v1/uploads": "OpenAI's Uploads",
    "/v1/vector_stores": "OpenAI's Vector stores",
    "/v1/videos": "OpenAI's Videos",
    "/v2/chat": "Cohere's Chat",
    "/v2/embed": "Cohere's Embed",
}
"""APIs that this server does not have, by what their paths begin with."""
_LIST = "/openapi.json lists what it has"
INSTEAD: Mapping[str, str] = {
    "/v1/assistants": "use /v1/responses",
    "/v1/complete": "use /v1/messages",
    "/v1/edits": "use /v1/chat/completions",
    "/v1/embed": "use /v1/embeddings",
    "/v1/engines": "use /v1/models",
    "/v1/messages/batches": "send the messages one by one to /v1/messages",
    "/v1/realtime": "use the WebSocket /v1/responses",
    "/v1/threads": "use /v1/conversations and /v1/responses",
    "/v2/chat": "use /v1/chat/completions",
    "/v2/embed": "use /v1/embeddings",
}
"""What serves in place of some of them."""


def dispatcher(services: Services, operations: Operations) -> ASGIApp:
    """The innermost app, behind all middleware."""

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        operation = context.of(scope).operation
        if operation is None:
            raise _nothing_at(scope, operations)
        if operation.method == SOCKET:
            await operation.handler(services, WebSocket(scope, receive, send))
            return
        response = await _answer(operation, services, Request(scope, receive))
        await response(scope, receive, send)

    return dispatch


async def _answer(operation: Operation, services: Services, request: Request) -> Response:
    if not operation.path.startswith(ADMIN):
        return await _call(operation, services, request)
    _check_query(operation, request)
    # Every change is written to the audit log under the key's public id.
    with acting_as(f"key {context.principal_of(request.scope).key.public_id}"):
        return await _call(operation, services, request)


def _call(operation: Operation, services: Services, request: Request) -> Awaitable[Response]:
    if operation.body is None:
        return operation.handler(services, request)
    return _call_with_body(operation, services, request)


async def _call_with_body(operation: Operation, services: Services, request: Request) -> Response:
    check_media_type(request)
    data = await request.body()
    principal = context.of(request.scope).principal
    # It may have come later. Those without a key, who sign in, have their turn together.
    await services.starts.next(NOBODY if principal is None else principal.tenant.id)
    if not data and operation.path.startswith(ADMIN):
        data = b"{}"
    body = bodies.decode(_decoder(operation.body), data)
    response: Response = await operation.handler(services, request, body)
    return response


@cache
def _decoder(body: type[msgspec.Struct]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(body)


def _check_query(operation: Operation, request: Request) -> None:
    """Refuse parameters that the operation does not read: a misspelt ``tenant_id`` would show the
    sums of all tenants as one tenant's."""
    known = [one.name for one in operation.query]
    for name in request.query_params:
        if name not in known:
            mend = f"; this route takes {', '.join(known)}" if known else ""
            raise InvalidRequestError(
                f"Unknown parameter: {quoted(name)}{mend}.", param=name, code="unknown_parameter"
            )


def _nothing_at(scope: Scope, operations: Operations) -> Exception:
    path = scope["path"]
    if scope["type"] == "websocket":
        return NotFound("There is no WebSocket at this path.")
    found = {one.method for one in operations.at(path)} - {SOCKET}
    if found:
        allow = ", ".join(sorted(found | {"HEAD"} if "GET" in found else found))
        return MethodNotAllowed(
            f"Not allowed with this method; the route takes {allow}.", headers={"allow": allow}
        )
    for beginning, name in ELSEWHERE.items():
        if path == beginning or path.startswith(beginning.rstrip("/") + "/"):
            return NotFound(f"This server does not have {name}; {INSTEAD.get(beginning, _LIST)}.")
    if path.startswith("/v1/v1/"):
        return NotFound(
            "The path begins with /v1 twice: clients that add it themselves, such as Anthropic's, "
            "take a base URL without it."
        )
    if path.startswith(("/v1/", "/v2/", ADMIN)):
        return NotFound("There is nothing at this path; /openapi.json lists what there is.")
    return NotFound(
        "There is nothing at this path. The API's begin with /v1, so a client's base URL ends in "
        "/v1; /openapi.json lists them."
    )
