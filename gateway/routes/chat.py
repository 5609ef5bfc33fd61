"""``POST /v1/chat/completions``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gateway import context
from gateway.admission.request import of_chat
from gateway.answers.chat import ChatChunks, ChatCompletion
from gateway.routes import answers
from gateway.schemas.chat import ChatCompletionRequest
from gateway.services import Services


async def create(services: Services, request: Request, body: ChatCompletionRequest) -> Response:
    known, principal = context.of(request.scope), context.principal_of(request.scope)
    resumable = answers.begin(request, body)
    asked = of_chat(body, request_id=known.request_id, principal=principal)
    generation = await answers.generate(services, request, asked)
    admitted = generation.admitted
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
