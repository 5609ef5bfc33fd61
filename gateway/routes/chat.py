"""``POST /v1/chat/completions``."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from gateway import context
from gateway.admission.request import of_chat
from gateway.answers.chat import ChatEncoder
from gateway.answers.kept import KeptEncoder
from gateway.routes import answers
from gateway.schemas.chat import ChatCompletionRequest
from gateway.services import Services


async def create(services: Services, request: Request, body: ChatCompletionRequest) -> Response:
    known, principal = context.of(request.scope), context.principal_of(request.scope)
    resumable = answers.begin(request, body)
    asked = of_chat(body, request_id=known.request_id, principal=principal)
    generation = await answers.generate(services, request, asked)
    admitted = generation.admitted
    encoder = (KeptEncoder if body.store else ChatEncoder)(
        completion_id=f"chatcmpl-{admitted.id.hex}",
        created=generation.created,
        model=admitted.model,
        num_choices=generation.num_choices,
        metadata=body.metadata,
        service_tier=admitted.service_tier,
        has_usage=answers.has_usage(body.stream_options),
        is_obfuscated=answers.is_obfuscated(body.stream_options),
    )
    return await answers.send(
        services,
        request,
        generation,
        encoder,
        stream=bool(body.stream),
        resumable=resumable,
        keep=partial(services.chats.keep, principal.tenant.id, body) if body.store else None,
    )
