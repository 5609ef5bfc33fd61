"""HTTP answers to admitted requests: what Chat Completions and Completions have in common."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from typing import TypeVar
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from gateway import context
from gateway.admission.admitted import Admitted
from gateway.admission.client_notes import client_notes
from gateway.admission.request import GenerationRequest
from gateway.answers.chat import ChatEncoder
from gateway.answers.chunks import Head
from gateway.answers.completions import TextEncoder
from gateway.answers.event_stream import EventStream, FollowingEventStream
from gateway.answers.kept import Keep, KeptAnswer, KeptEncoder
from gateway.answers.messages import MessageEncoder
from gateway.answers.refusals import refusal
from gateway.context import RequestContext
from gateway.errors import ApiError, InvalidRequestError
from gateway.generation.answer import Answer
from gateway.generation.generation import Generation
from gateway.routes.http import while_connected
from gateway.schemas.chat import ChatCompletionRequest, StreamOptions
from gateway.schemas.completions import CompletionRequest
from gateway.services import Services
from tenants.types import Principal

B = TypeVar("B", ChatCompletionRequest, CompletionRequest)
WholeEncoder = ChatEncoder | TextEncoder | MessageEncoder

FIRST_OUTPUT_S = 0.1
"""An error of the engine within this time is answered with its HTTP status; a later one is an event
of the stream."""
RESUMABLE_HEADER = "x-sluice-resumable"
IGNORED_HEADER = "x-sluice-ignored"
"""Lists the fields of the request that change nothing."""


async def begin(
    services: Services,
    request: Request,
    body: B,
    of: Callable[[B, UUID, Principal], GenerationRequest],
) -> tuple[Generation, bool]:
    """Note what the client says of its request, admit it by ``of`` and let it run. Also returns
    whether its stream is to be resumable. Raises as ``Admission.admit``."""
    known, principal = context.of(request.scope), context.principal_of(request.scope)
    resumable = is_resumable(request, field=body.resumable, stream=body.stream)
    known.notes.update(client_notes(body))
    asked = of(body, known.request_id, principal)
    return await generate(services, request, asked), resumable


async def generate(services: Services, request: Request, asked: GenerationRequest) -> Generation:
    """Admit a request and let it run, unless its client leaves. Raises as ``Admission.admit``."""
    known = context.of(request.scope)
    admitted = await while_connected(request, services.admission.admit(asked))
    note_admission(known, admitted)
    return services.generations.begin(admitted)


def note_admission(known: RequestContext, admitted: Admitted) -> None:
    """Say in the answer's headers what admission found."""
    known.admitted(admitted.hold.answer)
    if admitted.ignored:
        known.headers[IGNORED_HEADER] = ", ".join(admitted.ignored)


async def send(
    services: Services,
    request: Request,
    generation: Generation,
    encoder: WholeEncoder,
    *,
    stream: bool | None,
    resumable: bool = False,
    keep: Keep | None = None,
) -> Response:
    """The generation as one JSON object, or as server-sent events. It is closed here, by the
    response, or by ``Streams`` if it is resumable. ``keep`` stores the whole answer; a stream's
    encoder must be a ``KeptEncoder`` then."""
    if not stream:
        return await collect(request, generation, encoder, keep)
    await wait_for_refusal(request, generation)
    heartbeat_s = services.config.server.heartbeat_s
    answer = Answer(generation, encoder)
    if keep is not None and isinstance(encoder, KeptEncoder):
        answer = KeptAnswer(generation, encoder, keep)
    if not resumable:
        return EventStream(answer, heartbeat_s=heartbeat_s)
    tenant_id = generation.admitted.principal.tenant.id
    stream_id = services.streams.new_id()
    reader = await services.streams.open(stream_id, answer, tenant_id=tenant_id, kind="sse")
    return FollowingEventStream(reader, heartbeat_s=heartbeat_s)


def is_resumable(request: Request, *, field: bool | None, stream: bool | None) -> bool:
    """Whether a stream is to be resumable, by the body's ``field`` or by a header. Raises
    ``InvalidRequestError``."""
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


async def wait_for_refusal(request: Request, generation: Generation) -> None:
    """Wait a moment for an error of the engine, which can still be answered with its HTTP status.
    Closes the generation if it raises."""
    try:
        await while_connected(request, generation.first_output(FIRST_OUTPUT_S))
    except BaseException:
        generation.close()
        raise


async def collect(
    request: Request, generation: Generation, encoder: WholeEncoder, keep: Keep | None = None
) -> Response:
    """The whole answer as one JSON object. Closes the generation."""
    try:
        return await while_connected(request, _collect(request, generation, encoder, keep))
    finally:  # Not in ``_collect``, which does not run if the client has already left.
        generation.close()


async def _collect(
    request: Request, generation: Generation, encoder: WholeEncoder, keep: Keep | None
) -> Response:
    try:
        async with aclosing(generation.deltas()) as deltas:
            async for delta in deltas:
                encoder.add(delta)
        answer = encoder.body(await generation.usage())
        if keep is not None:
            await keep(answer)
        return Response(answer, media_type="application/json")
    except ApiError as exc:
        return refusal(request.scope, exc, began=generation.num_generated_tokens > 0)


def head_of(generation: Generation, kind: str, options: StreamOptions | None) -> Head:
    """``kind``: what the answer's id begins with."""
    admitted = generation.admitted
    return Head(
        id=f"{kind}-{admitted.id.hex}",
        created=generation.created,
        model=admitted.model,
        service_tier=admitted.service_tier,
        has_usage=options is not None and bool(options.include_usage),
        is_obfuscated=options is not None and bool(options.include_obfuscation),
    )
