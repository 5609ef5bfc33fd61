"""From an admitted request to its HTTP answer: what Chat Completions and Completions share."""

from __future__ import annotations

from contextlib import aclosing
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from gateway import context
from gateway.assembler import Delta
from gateway.disconnect import until_disconnect
from gateway.errors import ApiError, InvalidRequestError, UnsupportedMediaType, to_api_error
from gateway.generation import Generation
from gateway.schemas.chat import StreamOptions
from gateway.schemas.common import Usage
from gateway.streaming import Chunks, EventStream, open_event_stream
from gateway.streams import Streams

FIRST_OUTPUT_S = 0.1
"""A refusal of the engine within this time is a real status; later ones are an event of the stream.
"""
RESUMABLE_HEADER = "x-sluice-resumable"


class Completion(Protocol):
    """Collects what is not streamed."""

    def add(self, delta: Delta) -> None: ...

    def body(self, usage: Usage) -> bytes: ...


class Answers:
    """How generations are sent; one for all routes."""

    def __init__(self, streams: Streams, *, heartbeat_s: float) -> None:
        self._streams = streams
        self._heartbeat_s = heartbeat_s

    async def stream(
        self, request: Request, generation: Generation, chunks: Chunks, *, resumable: bool
    ) -> Response:
        """The generation as server-sent events. Closes it, or ``Streams`` does if resumable."""
        await heard(request, generation)
        if not resumable:
            return EventStream(generation, chunks, heartbeat_s=self._heartbeat_s)
        return await open_event_stream(
            self._streams, generation, chunks, heartbeat_s=self._heartbeat_s
        )


def is_resumable(request: Request, *, field: bool | None, stream: bool | None) -> bool:
    """Asked for by the body's ``resumable`` or by the header, which SDKs can send as easily."""
    header = request.headers.get(RESUMABLE_HEADER, "0")
    if header not in ("0", "1"):
        raise InvalidRequestError("Must be 0 or 1.", param=RESUMABLE_HEADER)
    if not (field or header == "1"):
        return False
    if not stream:
        raise InvalidRequestError(
            "Only allowed when stream is true.", param="resumable" if field else RESUMABLE_HEADER
        )
    return True


async def heard(request: Request, generation: Generation) -> None:
    """Let the engine refuse while that can still be a status. Whatever is raised, it is closed."""
    departure = context.of(request.scope).departure
    try:
        await until_disconnect(request.receive, generation.first_output(FIRST_OUTPUT_S), departure)
    except BaseException:
        generation.close()
        raise


async def collect(request: Request, generation: Generation, completion: Completion) -> Response:
    """The whole answer as one JSON object. Closes the generation."""
    departure = context.of(request.scope).departure
    try:
        return await until_disconnect(request.receive, _collect(generation, completion), departure)
    finally:  # out here: for a client that has left already nothing of it runs
        generation.close()


async def _collect(generation: Generation, completion: Completion) -> Response:
    try:
        async with aclosing(generation.deltas()) as deltas:
            async for delta in deltas:
                completion.add(delta)
        answer = completion.body(await generation.usage())
        return Response(answer, media_type="application/json")
    except ApiError as exc:
        return error_response(exc, began=generation.num_generated_tokens > 0)


def has_usage(options: StreamOptions | None) -> bool:
    return options is not None and bool(options.include_usage)


def is_obfuscated(options: StreamOptions | None) -> bool:
    return options is not None and bool(options.include_obfuscation)


def error_response(error: Exception, *, began: bool = False) -> Response:
    answer = to_api_error(error)
    return Response(answer.body(), answer.status, answer.headers(began=began))


def check_media_type(request: Request) -> None:
    """Raises ``UnsupportedMediaType``; a body without a type is taken for JSON.

    Compressed bodies are refused: their limits would be those of what they unpack to.
    """
    media_type = request.headers.get("content-type", "application/json").partition(";")[0]
    if media_type.strip().lower() != "application/json":
        raise UnsupportedMediaType(
            "Send the body as JSON, with the header content-type: application/json."
        )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise UnsupportedMediaType(
            "Send the body as it is, without the header content-encoding.",
            param="content-encoding",
        )
