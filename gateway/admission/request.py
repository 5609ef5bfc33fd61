"""A request as admission sees it, whichever API it came by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

import msgspec

from gateway.admission import field_checks, unsupported
from gateway.errors import ApiError, foreseen
from gateway.schemas.chat import ChatCompletionRequest, ChatFields
from gateway.schemas.completions import CompletionRequest
from tenants.types import Principal, Scope


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be generated, for whom, and what the client calls its fields."""

    id: UUID
    principal: Principal
    model: str | None
    """None for the server's default."""
    fields: ChatFields | CompletionRequest
    """A chat, or prompts without a template. Other APIs are put into these words."""
    scope: Scope = "chat"
    num_choices: int = 1
    client_name: Callable[[str], str] | None = None
    """What the client calls a field that ``fields`` calls so; None if it calls them the same."""
    clips_max_tokens: bool = False
    """Whether a limit of new tokens that does not fit the model is lowered, as in Anthropic's API,
    rather than refused."""
    ignored: tuple[str, ...] = ()
    """The client's fields that change nothing and are not in ``fields``."""


def of_chat(
    body: ChatCompletionRequest, request_id: UUID, principal: Principal
) -> GenerationRequest:
    """Raises ``InvalidRequestError``, as ``of_texts`` does."""
    unsupported.refuse(body, unsupported.CHAT)
    return _of(body, request_id, principal)


def of_texts(body: CompletionRequest, request_id: UUID, principal: Principal) -> GenerationRequest:
    unsupported.refuse(body, unsupported.COMPLETIONS)
    return _of(body, request_id, principal)


def _of(
    body: ChatCompletionRequest | CompletionRequest, request_id: UUID, principal: Principal
) -> GenerationRequest:
    ignored = [*unsupported.ignored(body)]
    if body.stream_options is not None and not body.stream:
        ignored.append("stream_options")
    return GenerationRequest(
        id=request_id,
        principal=principal,
        model=body.model,
        fields=body,
        num_choices=field_checks.num_choices(body.n),
        ignored=tuple(ignored),
    )


@contextmanager
def in_the_clients_words(client_name: Callable[[str], str]) -> Iterator[None]:
    """Let what fails name the client's own fields. Raises ``ApiError`` for what is foreseen."""
    try:
        yield
    except Exception as exc:
        error = foreseen(exc)
        if error is None:
            raise
        try:
            _rename(error, client_name)
            raise error from None
        finally:
            del error  # This frame is in its traceback: together they would be a cycle.


def _rename(error: ApiError, client_name: Callable[[str], str]) -> None:
    if error.param is None or error.is_renamed:
        return
    ours, theirs = error.param, client_name(error.param)
    if error.message.startswith(f"{ours} "):
        error.message = theirs + error.message.removeprefix(ours)
    error.param, error.is_renamed = theirs, True
