"""``GET /v1/streams/{id}?from=N`` reads a resumable stream on; ``DELETE`` stops it.

N is the number of events that the client has read, whole ones, heartbeats included. The answer
continues with event N + 1 byte for byte, while the stream runs and for
``server.stream_retention_s`` after its end. Ids are known to their tenant only: anybody else gets
404, as for an id that never was.

Whoever reads a stream that was stopped sees it end with ``finish_reason: "stop"``, the nearest word
that OpenAI's clients know.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway import context
from gateway.config import ServerConfig
from gateway.errors import InvalidRequestError
from gateway.streaming import FollowingEventStream
from gateway.streams import Streams


def stream_routes(streams: Streams, config: ServerConfig) -> list[Route]:
    async def resume(request: Request) -> Response:
        reader = await streams.follow_as(
            context.principal_of(request.scope),
            request.path_params["stream_id"],
            kind="sse",
            after=_position(request.query_params.get("from", "0")),
        )
        return FollowingEventStream(reader, heartbeat_s=config.heartbeat_s)

    async def stop(request: Request) -> Response:
        tenant = context.principal_of(request.scope).tenant
        await streams.stop(request.path_params["stream_id"], tenant.id)
        return Response(status_code=204)

    path = "/v1/streams/{stream_id}"
    return [Route(path, resume, methods=["GET"]), Route(path, stop, methods=["DELETE"])]


def _position(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InvalidRequestError("Must be a number of events, 0 or more.", param="from")
    return int(text)
