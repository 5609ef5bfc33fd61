"""``POST /v1/tokenize`` and ``POST /v1/detokenize``: the tokens of a prompt, and their text."""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from engine.text.tokenizer import Tokenizer
from gateway import context
from gateway.admission import tool_use
from gateway.admission.model import Model
from gateway.errors import InvalidRequestError, PayloadTooLarge, UnsupportedParameter
from gateway.prompts import texts
from gateway.prompts.chat import Ending
from gateway.prompts.threads import PromptThreads
from gateway.routes.http import json_answer
from gateway.schemas.chat import FunctionTool
from gateway.schemas.tokenize import (
    DetokenizeAnswer,
    DetokenizeRequest,
    TokenizeAnswer,
    TokenizeRequest,
)
from gateway.services import Services
from tenants.access import require_scope

MAX_CHARS = 1_000_000
"""The most of a prompt, for which a tokenizer takes up to 200 MB: no limit on a tenant's tokens
holds this route back."""
_ONLY_WITH_MESSAGES = (
    "tools",
    "add_generation_prompt",
    "chat_template_kwargs",
    "reasoning_effort",
    "verbosity",
)


async def tokenize(services: Services, request: Request, body: TokenizeRequest) -> Response:
    tenant, model = _asked(services, request, body.model)
    token_ids = await _token_ids(body, services.admission.prompt_threads, model, tenant)
    names = None
    if body.return_token_strs:
        threads = services.admission.prompt_threads
        name = partial(_names, token_ids, model.tokenizer)
        names = await threads.run(name, tenant=tenant, size=len(token_ids))
    return json_answer(
        TokenizeAnswer(
            count=len(token_ids),
            max_model_len=model.max_model_len,
            tokens=token_ids,
            token_strs=names,
        )
    )


async def detokenize(services: Services, request: Request, body: DetokenizeRequest) -> Response:
    tenant, model = _asked(services, request, body.model)
    tokenizer = model.tokenizer

    def decode() -> str:
        texts.check_ids(body.tokens, tokenizer.vocab_size, param="tokens")
        return tokenizer.decode(body.tokens, skip_special_tokens=False)

    threads = services.admission.prompt_threads
    text = await threads.run(decode, tenant=tenant, size=len(body.tokens))
    return json_answer(DetokenizeAnswer(prompt=text))


def _asked(services: Services, request: Request, model: str) -> tuple[UUID, Model]:
    """The tenant of the request, and the model. Raises unless its key may use it."""
    principal = context.principal_of(request.scope)
    require_scope(principal.key, "chat")
    return principal.tenant.id, services.models.find(principal, model).base


async def _token_ids(
    body: TokenizeRequest, threads: PromptThreads, model: Model, tenant: UUID
) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequestError("Send either prompt or messages.", param="prompt")
    if body.prompt is not None:
        for name in _ONLY_WITH_MESSAGES:
            if getattr(body, name) is not None:
                raise InvalidRequestError("Only allowed with messages.", param=name)
        if len(body.prompt) > MAX_CHARS:
            raise PayloadTooLarge(
                f"At most {MAX_CHARS} characters; send it in parts.", param="prompt"
            )
        has_special = body.add_special_tokens is not False
        encode = partial(model.tokenizer.encode, body.prompt, add_special_tokens=has_special)
        return await threads.run(encode, tenant=tenant, size=len(body.prompt))
    assert body.messages is not None
    if body.add_special_tokens is not None:
        raise InvalidRequestError(
            "Only allowed with prompt: a chat template writes its own.", param="add_special_tokens"
        )
    prompts = model.prompts
    found = await prompts.encode(
        body.messages,
        tenant=tenant,
        tools=_tools(body, model),
        kwargs=prompts.kwargs(body),
        ending=Ending.CLOSED if body.add_generation_prompt is False else Ending.BEGUN,
    )
    return found.token_ids[0]


def _tools(body: TokenizeRequest, model: Model) -> list[dict[str, Any]] | None:
    if not body.tools:
        return None
    if model.tools.format is None:
        raise UnsupportedParameter("The model knows no tools.", param="tools")
    tools: list[FunctionTool] = []
    for index, tool in enumerate(body.tools):
        if not isinstance(tool, FunctionTool):
            raise UnsupportedParameter(
                "Only tools of the type function are supported.", param=f"tools[{index}].type"
            )
        tools.append(tool)
    return tool_use.shown_to_model(tools)


def _names(token_ids: list[int], tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.token_bytes(i).decode(errors="replace") for i in token_ids]
