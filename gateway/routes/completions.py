"""``POST /v1/completions``: prompts without a template."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gateway import context
from gateway.admission.request import of_texts
from gateway.answers.completions import TextEncoder
from gateway.routes import answers
from gateway.schemas.completions import CompletionRequest
from gateway.services import Services


async def create(services: Services, request: Request, body: CompletionRequest) -> Response:
    known, principal = context.of(request.scope), context.principal_of(request.scope)
    resumable = answers.begin(request, body)
    asked = of_texts(body, request_id=known.request_id, principal=principal)
    generation = await answers.generate(services, request, asked)
    admitted = generation.admitted
    encoder = TextEncoder(
        completion_id=f"cmpl-{admitted.id.hex}",
        created=generation.created,
        model=admitted.model,
        echoes=admitted.echoes,
        has_usage=answers.has_usage(body.stream_options),
        is_obfuscated=answers.is_obfuscated(body.stream_options),
    )
    return await answers.send(
        services, request, generation, encoder, stream=bool(body.stream), resumable=resumable
    )
