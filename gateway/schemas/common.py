"""Structs that all APIs share: the error object and the usage object of OpenAI's API."""

from __future__ import annotations

from typing import Any

import msgspec


class Typed(msgspec.Struct, frozen=True, tag_field="type", forbid_unknown_fields=True):
    """Base of what clients send as one of several kinds, told apart by ``type``."""


class ErrorObject(msgspec.Struct, frozen=True, kw_only=True):
    """What is inside ``{"error": ...}``; clients rely on all four fields being there."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every failed HTTP response, and the data of a failed stream's last event."""

    error: ErrorObject


class UnenforcedKeyword(msgspec.Struct, frozen=True, kw_only=True):
    keyword: str
    path: str
    """The keyword's path in the schema."""
    function: str | msgspec.UnsetType = msgspec.UNSET
    """The function in whose ``parameters`` the keyword stands; left out for an answer's own schema.
    The keyword ``parameters`` at ``$`` means that none of them was enforced."""


class SchemaViolation(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    """The path in the answer's document, or in the call's arguments."""
    message: str
    call_id: str | msgspec.UnsetType = msgspec.UNSET
    """The call's, where it is about one."""


class Compliance(msgspec.Struct, frozen=True, kw_only=True):
    """``structured_outputs`` of a choice: where a schema could not be enforced while the answer or
    the arguments of its calls were generated, what became of it. Left out where everything was
    enforced."""

    unenforced: list[UnenforcedKeyword]
    valid: bool | None
    """Whether all of it satisfies its schema nevertheless; null if that could not be found out in
    time."""
    violations: list[SchemaViolation] = []
    """The first ten."""


class PromptTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    cached_tokens: int = 0
    image_tokens: int | msgspec.UnsetType = msgspec.UNSET
    """What images take of the prompt; left out if there are none."""


class CompletionTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    reasoning_tokens: int = 0
    accepted_prediction_tokens: int = 0
    """The completion's tokens that speculative decoding had drafted."""
    rejected_prediction_tokens: int = 0
    """Drafted in vain: part of no count above, and billed to nobody."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one request; with ``n`` choices the prompt counts once, as OpenAI counts it."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails = CompletionTokensDetails()

    def __add__(self, other: Usage) -> Usage:
        """Of several requests together."""
        return msgspec.convert(_sum(msgspec.to_builtins(self), msgspec.to_builtins(other)), Usage)


def _sum(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {
        name: (
            _sum(one[name], other[name])
            if isinstance(one.get(name), dict)
            else one.get(name, 0) + other.get(name, 0)
        )
        for name in {**one, **other}
    }


NO_USAGE = Usage(
    prompt_tokens=0,
    completion_tokens=0,
    total_tokens=0,
    prompt_tokens_details=PromptTokensDetails(),
)
