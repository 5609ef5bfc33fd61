"""``POST /v1/tokenize`` and ``POST /v1/detokenize``; names and meanings as in vLLM."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from gateway.schemas.chat import Message, ReasoningEffort, Tool


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Either of a ``prompt``, as Completions takes it, or of ``messages``, as Chat Completions."""

    model: str
    prompt: str | None = None
    add_special_tokens: bool | None = None
    """For ``prompt`` only; true by default. A chat template writes its own special tokens."""
    messages: list[Message] | None = None
    tools: list[Tool] | None = None
    add_generation_prompt: bool | None = None
    """For ``messages`` only: whether the prompt ends with the beginning of the answer; true by
    default."""
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: ReasoningEffort | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    return_token_strs: bool | None = None


class TokenizeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    count: int
    max_model_len: int | None
    """None while the engine loads."""
    tokens: list[int]
    token_strs: list[str] | None
    """The text of each token, with ``return_token_strs``; bytes that are not UTF-8 are U+FFFD."""


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: str
    tokens: list[int]


class DetokenizeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    prompt: str
