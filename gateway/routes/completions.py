"""``POST /v1/completions``: prompts without a template."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gateway.admission.request import of_texts
from gateway.answers.completions import TextEncoder
from gateway.routes import answers
from gateway.schemas.completions import CompletionRequest
from gateway.services import Services


async def create(services: Services, request: Request, body: CompletionRequest) -> Response:
    generation, resumable = await answers.begin(services, request, body, of_texts)
    head = answers.head_of(generation, "cmpl", body.stream_options)
    encoder = TextEncoder(head, generation.admitted.echoes)
    return await answers.send(
        services, request, generation, encoder, stream=body.stream, resumable=resumable
    )
