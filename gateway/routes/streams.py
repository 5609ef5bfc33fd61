"""``GET /v1/streams/{id}?from=N`` continues a resumable stream; ``DELETE`` stops it.

N is the number of events that the client has read completely, heartbeats included. The answer
continues with the next event, byte for byte, while the stream runs and for
``server.stream_retention_s`` after its end. Another tenant's stream is a 404, as is an unknown one.

A stream that was stopped ends with ``finish_reason: "stop"``, the closest reason that OpenAI's
clients know.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gateway import context
from gateway.answers.event_stream import FollowingEventStream
from gateway.errors import InvalidRequestError
from gateway.services import Services


async def resume(services: Services, request: Request) -> Response:
    reader = await services.streams.follow_as(
        context.principal_of(request.scope),
        request.path_params["stream_id"],
        kind="sse",
        after=_position(request.query_params.get("from", "0")),
    )
    return FollowingEventStream(reader, heartbeat_s=services.config.server.heartbeat_s)


async def stop(services: Services, request: Request) -> Response:
    tenant = context.principal_of(request.scope).tenant
    await services.streams.stop(request.path_params["stream_id"], tenant.id)
    return Response(status_code=204)


def _position(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InvalidRequestError("Must be a number of events, 0 or more.", param="from")
    return int(text)
