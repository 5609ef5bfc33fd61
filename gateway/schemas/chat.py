"""Chat Completions: the request as clients send it.

All fields of OpenAI's specification are declared, so that an unknown name is refused as unknown and
a known one that this server cannot act on is refused as unsupported (``admission.UNSUPPORTED``
lists those with the values at which they mean nothing). The answers are written by ``assembler``.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class TextPart(
    msgspec.Struct, frozen=True, tag_field="type", tag="text", forbid_unknown_fields=True
):
    text: str


class ImagePart(msgspec.Struct, frozen=True, tag_field="type", tag="image_url"):
    """Declared to be refused by name: no model served here sees."""

    image_url: msgspec.Raw


class AudioPart(msgspec.Struct, frozen=True, tag_field="type", tag="input_audio"):
    """Declared to be refused by name: no model served here hears."""

    input_audio: msgspec.Raw


class FilePart(msgspec.Struct, frozen=True, tag_field="type", tag="file"):
    """Declared to be refused by name: there is no file store."""

    file: msgspec.Raw


class RefusalPart(msgspec.Struct, frozen=True, tag_field="type", tag="refusal"):
    """An assistant's earlier refusal, sent back as history."""

    refusal: str


ContentPart = TextPart | ImagePart | AudioPart | FilePart | RefusalPart
Content = str | list[ContentPart]


class FunctionCall(msgspec.Struct, frozen=True):
    name: str
    arguments: str
    """A JSON document, as text."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"
    index: int | None = None
    """Some clients send a streamed call back as they received it."""


class SystemMessage(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="role",
    tag="system",
    forbid_unknown_fields=True,
):
    content: Content
    name: str | None = None


class DeveloperMessage(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="role",
    tag="developer",
    forbid_unknown_fields=True,
):
    content: Content
    name: str | None = None


class UserMessage(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="role",
    tag="user",
    forbid_unknown_fields=True,
):
    content: Content
    name: str | None = None


class AssistantMessage(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="assistant"
):
    """History. Other names are let pass: clients send our own answers back as they came."""

    content: Content | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    refusal: str | None = None
    audio: None = None
    function_call: None = None


class ToolMessage(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="role",
    tag="tool",
    forbid_unknown_fields=True,
):
    content: Content
    tool_call_id: str


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


class TextFormat(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    pass


class JsonObjectFormat(msgspec.Struct, frozen=True, tag_field="type", tag="json_object"):
    pass


class JsonSchema(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    schema: msgspec.Raw
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(msgspec.Struct, frozen=True, tag_field="type", tag="json_schema"):
    json_schema: JsonSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class FunctionDefinition(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema of the arguments."""
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    function: FunctionDefinition
    type: Literal["function"]


class ChatFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a chat says and how it samples: the same over HTTP and over the WebSocket."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    """The older name of ``max_completion_tokens``; only one of them may be set."""
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    user: str | None = None
    """Names the end user in log lines and in the ledger."""
    metadata: dict[str, str] | None = None
    # Not OpenAI's; SDKs send them through ``extra_body``.
    top_k: int | None = None
    min_p: float | None = None
    ignore_eos: bool | None = None


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ChatCompletionRequest(ChatFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /v1/chat/completions``."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    resumable: bool | None = None
    """Ours: the stream outlives its connection; see ``routes.streams``."""
    n: int | None = None

    # Known, and refused by name unless they hold a value at which they mean nothing.
    audio: Any = None
    frequency_penalty: Any = None
    function_call: Any = None
    functions: Any = None
    logit_bias: Any = None
    logprobs: Any = None
    modalities: Any = None
    moderation: Any = None
    parallel_tool_calls: Any = None
    prediction: Any = None
    presence_penalty: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    reasoning_effort: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    store: Any = None
    top_logprobs: Any = None
    verbosity: Any = None
    web_search_options: Any = None
