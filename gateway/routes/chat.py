"""``POST /v1/chat/completions``."""

from __future__ import annotations

from contextlib import aclosing

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway import bodies, context
from gateway.admission import Admission
from gateway.assembler import ChatChunks, ChatCompletion
from gateway.config import ServerConfig
from gateway.disconnect import until_disconnect
from gateway.errors import ApiError, UnsupportedMediaType, to_api_error
from gateway.generation import Generation, Generations
from gateway.schemas.chat import ChatCompletionRequest
from gateway.streaming import ChatEventStream

FIRST_WORD_S = 0.1
"""A refusal of the engine within this time is a real status; later ones are an event of the stream.
"""

_decoder = msgspec.json.Decoder(ChatCompletionRequest)


def chat_route(admission: Admission, generations: Generations, config: ServerConfig) -> Route:
    async def create(request: Request) -> Response:
        check_media_type(request)
        body = bodies.decode(_decoder, await request.body())
        known = context.of(request.scope)
        if body.user is not None:
            known.notes["user"] = body.user
        admitted = await until_disconnect(
            request.receive,
            admission.admit_completion(
                body,
                request_id=known.request_id,
                principal=context.principal_of(request.scope),
            ),
        )
        generation = generations.begin(admitted)
        if not body.stream:
            return await until_disconnect(request.receive, _collect(generation, body))
        try:
            await until_disconnect(request.receive, generation.first_word(FIRST_WORD_S))
        except BaseException:
            generation.close()
            raise
        options = body.stream_options
        chunks = ChatChunks(
            completion_id=completion_id(generation),
            created=generation.created,
            model=admitted.model,
            num_choices=generation.num_choices,
            has_usage=options is not None and bool(options.include_usage),
        )
        return ChatEventStream(generation, chunks, heartbeat_s=config.heartbeat_s)

    return Route("/v1/chat/completions", create, methods=["POST"])


async def _collect(generation: Generation, body: ChatCompletionRequest) -> Response:
    completion = ChatCompletion(
        completion_id=completion_id(generation),
        created=generation.created,
        model=generation.admitted.model,
        num_choices=generation.num_choices,
        metadata=body.metadata,
    )
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


def completion_id(generation: Generation) -> str:
    return f"chatcmpl-{generation.admitted.id.hex}"


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
