"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``: Anthropic's Messages."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from gateway import context
from gateway.admission.messages import of_messages
from gateway.admission.request import GenerationRequest
from gateway.answers.messages import MessageEncoder
from gateway.routes import answers
from gateway.routes.http import json_answer, while_connected
from gateway.schemas.messages import MessagesRequest, MessageTokens, TokenCountRequest
from gateway.services import Services


async def create(services: Services, request: Request, body: MessagesRequest) -> Response:
    asked = await _asked(services, request, body)
    generation = await answers.generate(services, request, asked)
    admitted = generation.admitted
    encoder = MessageEncoder(
        message_id=f"msg_{admitted.id.hex}",
        model=admitted.model,
        num_prompt_tokens=admitted.num_prompt_tokens,
        num_cached_tokens=lambda: generation.num_cached_tokens,
        room=admitted.params.max_tokens if admitted.params.max_tokens != body.max_tokens else None,
    )
    return await answers.send(services, request, generation, encoder, stream=body.stream)


async def count_tokens(services: Services, request: Request, body: TokenCountRequest) -> Response:
    asked = await _asked(services, request, body)
    num_tokens = await while_connected(request, services.admission.count(asked))
    return json_answer(MessageTokens(input_tokens=num_tokens))


async def _asked(
    services: Services, request: Request, body: TokenCountRequest
) -> GenerationRequest:
    known, principal = context.of(request.scope), context.principal_of(request.scope)
    known.headers["request-id"] = str(known.request_id)
    translate = partial(
        of_messages,
        body,
        request_id=known.request_id,
        principal=principal,
        model=services.models.find(principal, body.model).base.prompts,
    )
    # In a thread, because a request may have thousands of blocks.
    threads = services.admission.prompt_threads
    asked = await threads.run(translate, tenant=principal.tenant.id, size=0)
    if (user := asked.fields.user) is not None:
        known.notes["user"] = user
    return asked
