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
    generation, resumable = await answers.begin(services, request, body, of_chat)
    head = answers.head_of(generation, "chatcmpl", body.stream_options)
    encoder = (KeptEncoder if body.store else ChatEncoder)(
        head, generation.num_choices, body.metadata
    )
    tenant_id = context.principal_of(request.scope).tenant.id
    keep = partial(services.chats.keep, tenant_id, body) if body.store else None
    return await answers.send(
        services, request, generation, encoder, stream=body.stream, resumable=resumable, keep=keep
    )
