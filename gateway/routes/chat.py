"""``POST /v1/chat/completions``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gateway import context
from gateway.admission.client_notes import client_notes
from gateway.answers.chat import ChatChunks, ChatCompletion
from gateway.routes import answers
from gateway.schemas.chat import ChatCompletionRequest
from gateway.services import Services
from gateway.transport.disconnect import until_disconnect


async def create(services: Services, request: Request, body: ChatCompletionRequest) -> Response:
    resumable = answers.is_resumable(request, field=body.resumable, stream=body.stream)
    known = context.of(request.scope)
    known.notes.update(client_notes(body))
    admitted = await until_disconnect(
        request.receive,
        services.admission.admit_completion(
            body,
            request_id=known.request_id,
            principal=context.principal_of(request.scope),
        ),
        known.departure,
    )
    known.admitted(admitted.hold.answer)
    generation = services.generations.begin(admitted)
    completion_id = f"chatcmpl-{admitted.id.hex}"
    if not body.stream:
        completion = ChatCompletion(
            completion_id=completion_id,
            created=generation.created,
            model=admitted.model,
            num_choices=generation.num_choices,
            metadata=body.metadata,
            service_tier=admitted.service_tier,
        )
        return await answers.collect(request, generation, completion)
    chunks = ChatChunks(
        completion_id=completion_id,
        created=generation.created,
        model=admitted.model,
        num_choices=generation.num_choices,
        has_usage=answers.has_usage(body.stream_options),
        service_tier=admitted.service_tier,
        is_obfuscated=answers.is_obfuscated(body.stream_options),
    )
    return await answers.stream(services, request, generation, chunks, resumable=resumable)
