"""The bodies of answers, for the published documents. ``gateway.answers`` writes them
from prepared parts; tests check that these have the form that is described here."""

from __future__ import annotations

from typing import Literal

import msgspec

from gateway.schemas.common import Compliance, Usage

ChatFinishReason = Literal["stop", "length", "tool_calls"]


class LogprobEntry(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprobEntry(LogprobEntry, frozen=True, kw_only=True):
    top_logprobs: list[LogprobEntry]


class ChoiceLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    content: list[TokenLogprobEntry] | None
    refusal: None = None


class CalledFunction(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    arguments: str
    """A JSON document, as text."""


class FunctionToolCall(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    """What the model thought before it answered."""
    tool_calls: list[FunctionToolCall] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    message: AnswerMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: ChatFinishReason
    structured_outputs: Compliance | msgspec.UnsetType = msgspec.UNSET


class ChatCompletionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Without ``stream``."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: None
    choices: list[ChatChoice]
    usage: Usage
    metadata: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    service_tier: str | msgspec.UnsetType = msgspec.UNSET


class FunctionPiece(msgspec.Struct, frozen=True, kw_only=True):
    name: str | msgspec.UnsetType = msgspec.UNSET
    arguments: str | msgspec.UnsetType = msgspec.UNSET


class ToolCallPiece(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    id: str | msgspec.UnsetType = msgspec.UNSET
    type: Literal["function"] | msgspec.UnsetType = msgspec.UNSET
    function: FunctionPiece


class MessagePiece(msgspec.Struct, frozen=True, kw_only=True):
    role: Literal["assistant"] | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCallPiece] | msgspec.UnsetType = msgspec.UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    delta: MessagePiece
    logprobs: ChoiceLogprobs | None
    finish_reason: ChatFinishReason | None
    structured_outputs: Compliance | msgspec.UnsetType = msgspec.UNSET


class ChatCompletionChunk(msgspec.Struct, frozen=True, kw_only=True):
    """The data of an event, with ``stream``; the last event's data is ``[DONE]``."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: None
    choices: list[ChatChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    service_tier: str | msgspec.UnsetType = msgspec.UNSET
    obfuscation: str | msgspec.UnsetType = msgspec.UNSET


class TextChoiceLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    text: str
    logprobs: TextChoiceLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    """null in the chunks before a choice's last one."""
    structured_outputs: Compliance | msgspec.UnsetType = msgspec.UNSET


class CompletionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Also the data of an event, with ``stream``; the last event's data is ``[DONE]``."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: None
    choices: list[TextChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    obfuscation: str | msgspec.UnsetType = msgspec.UNSET
