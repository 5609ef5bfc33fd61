"""``POST /v1/completions``: prompts without a template."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gateway import context
from gateway.admission.client_notes import client_notes
from gateway.answers.completions import TextChunks, TextCompletion
from gateway.routes import answers
from gateway.schemas.completions import CompletionRequest
from gateway.services import Services
from gateway.transport.disconnect import until_disconnect


async def create(services: Services, request: Request, body: CompletionRequest) -> Response:
    resumable = answers.is_resumable(request, field=body.resumable, stream=body.stream)
    known = context.of(request.scope)
    known.notes.update(client_notes(body))
    admitted, prompts = await until_disconnect(
        request.receive,
        services.admission.admit_text_completion(
            body,
            request_id=known.request_id,
            principal=context.principal_of(request.scope),
        ),
        known.departure,
    )
    echoes = [
        services.admission.echo(body, prompt)
        for prompt in prompts
        for _ in range(admitted.num_choices)
    ]
    known.admitted(admitted.hold.answer)
    generation = services.generations.begin(admitted)
    completion_id = f"cmpl-{admitted.id.hex}"
    if not body.stream:
        completion = TextCompletion(
            completion_id=completion_id,
            created=generation.created,
            model=admitted.model,
            echoes=echoes,
        )
        return await answers.collect(request, generation, completion)
    chunks = TextChunks(
        completion_id=completion_id,
        created=generation.created,
        model=admitted.model,
        echoes=echoes,
        has_usage=answers.has_usage(body.stream_options),
        is_obfuscated=answers.is_obfuscated(body.stream_options),
    )
    return await answers.stream(services, request, generation, chunks, resumable=resumable)
