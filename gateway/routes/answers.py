"""From an admitted request to its HTTP answer: what Chat Completions and Completions share."""

from __future__ import annotations

from contextlib import aclosing
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from gateway.assembler import Delta
from gateway.disconnect import until_disconnect
from gateway.errors import ApiError, UnsupportedMediaType, to_api_error
from gateway.generation import Generation
from gateway.schemas.chat import StreamOptions
from gateway.schemas.common import Usage
from gateway.streaming import Chunks, EventStream

FIRST_WORD_S = 0.1
"""A refusal of the engine within this time is a real status; later ones are an event of the stream.
"""


class Completion(Protocol):
    """Collects what is not streamed."""

    def add(self, delta: Delta) -> None: ...

    def body(self, usage: Usage) -> bytes: ...


async def stream(
    request: Request, generation: Generation, chunks: Chunks, *, heartbeat_s: float
) -> Response:
    """The generation as server-sent events; the response owns and closes it."""
    await heard(request, generation)
    return EventStream(generation, chunks, heartbeat_s=heartbeat_s)


async def heard(request: Request, generation: Generation) -> None:
    """Let the engine refuse while that can still be a status. Whatever is raised, it is closed."""
    try:
        await until_disconnect(request.receive, generation.first_word(FIRST_WORD_S))
    except BaseException:
        generation.close()
        raise


async def collect(request: Request, generation: Generation, completion: Completion) -> Response:
    """The whole answer as one JSON object. Closes the generation."""
    return await until_disconnect(request.receive, _collect(generation, completion))


async def _collect(generation: Generation, completion: Completion) -> Response:
    try:
        async with aclosing(generation.deltas()) as deltas:
            async for delta in deltas:
                completion.add(delta)
        answer = completion.body(await generation.usage())
        return Response(answer, media_type="application/json")
    except ApiError as exc:
        return error_response(exc, began=generation.num_generated_tokens > 0)
    finally:
        generation.close()


def has_usage(options: StreamOptions | None) -> bool:
    return options is not None and bool(options.include_usage)


def error_response(error: Exception, *, began: bool = False) -> Response:
    answer = to_api_error(error)
    return Response(answer.body(), answer.status, answer.headers(began=began))


def check_media_type(request: Request) -> None:
    """Raises ``UnsupportedMediaType``; a body without a type is taken for JSON."""
    media_type = request.headers.get("content-type", "application/json").partition(";")[0]
    if media_type.strip().lower() != "application/json":
        raise UnsupportedMediaType(
            "Send the body as JSON, with the header content-type: application/json."
        )
