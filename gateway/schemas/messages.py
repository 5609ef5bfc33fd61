"""Anthropic's Messages: the request as clients send it, and the answers, for the documents.

Blocks that this server cannot show to a model are declared, so that they are refused by name.
``prompts.turns`` puts a request into the words of Chat Completions; ``answers.messages`` writes the
answers. ``cache_control`` changes nothing anywhere: every prefix of a tenant's prompts is cached.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from gateway.schemas.common import Compliance, Typed


class TextBlock(Typed, frozen=True, tag="text"):
    text: str
    cache_control: Any = None
    citations: Any = None
    """Sent back with earlier answers of others; the model does not see them."""


class ThinkingBlock(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    """What the model thought, sent back; templates that show it get it back."""

    thinking: str
    signature: str = ""
    """Not verified: a client may change its own history."""


class RedactedThinkingBlock(msgspec.Struct, frozen=True, tag_field="type", tag="redacted_thinking"):
    """Encrypted by another server, so that no model here can read it; it is left out."""

    data: str


class ToolUseBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A call the model made; other names are let pass, as clients send our answers back."""

    id: str
    name: str
    input: dict[str, Any]


class Base64Source(Typed, frozen=True, kw_only=True, tag="base64"):
    data: str
    media_type: str
    """Changes nothing: what a picture is, its content tells."""


class UrlSource(Typed, frozen=True, kw_only=True, tag="url"):
    url: str


class FileSource(Typed, frozen=True, kw_only=True, tag="file"):
    file_id: str


class ImageBlock(Typed, frozen=True, kw_only=True, tag="image"):
    source: Base64Source | UrlSource | FileSource
    cache_control: Any = None


class DocumentBlock(msgspec.Struct, frozen=True, tag_field="type", tag="document"):
    """Declared to be refused by name: the model reads text only."""


class SearchResultBlock(msgspec.Struct, frozen=True, tag_field="type", tag="search_result"):
    """Declared to be refused by name: the model cites nothing."""


class ToolReferenceBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_reference"):
    """Declared to be refused by name: there is no tool search."""


UnseenBlock = DocumentBlock | SearchResultBlock | ToolReferenceBlock


class ToolResultBlock(Typed, frozen=True, kw_only=True, tag="tool_result"):
    tool_use_id: str
    content: str | list[TextBlock | ImageBlock | UnseenBlock] | None = None
    is_error: bool | None = None
    cache_control: Any = None
    toolset_name: None = None


Block = (
    TextBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ToolReferenceBlock
)


class InputMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class ClientTool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool that the client runs."""

    name: str
    input_schema: dict[str, Any] | None = None
    """Of tools that are no tools of Anthropic's servers it is required."""
    type: str | None = None
    """``custom``; the types of tools that Anthropic's servers run are refused by name."""
    description: str | None = None
    strict: bool | None = None
    cache_control: Any = None
    eager_input_streaming: bool | None = None
    """Changes nothing: input is always streamed as it is generated."""
    input_examples: list[Any] | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None


class ToolChoiceAuto(Typed, frozen=True, tag="auto"):
    disable_parallel_tool_use: bool | None = None


class ToolChoiceAny(Typed, frozen=True, tag="any"):
    disable_parallel_tool_use: bool | None = None


class ToolChoiceTool(Typed, frozen=True, tag="tool"):
    name: str
    disable_parallel_tool_use: bool | None = None


class ToolChoiceNone(Typed, frozen=True, tag="none"):
    pass


class ThinkingEnabled(Typed, frozen=True, tag="enabled"):
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class ThinkingAdaptive(Typed, frozen=True, tag="adaptive"):
    display: Literal["summarized", "omitted"] | None = None


class ThinkingDisabled(Typed, frozen=True, tag="disabled"):
    pass


class MessageFormat(Typed, frozen=True, tag="json_schema"):
    schema: msgspec.Raw


class OutputConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: MessageFormat | None = None


class MessageMetadata(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    user_id: str | None = None


class TokenCountRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /v1/messages/count_tokens``: what a prompt is made of."""

    model: str
    messages: list[InputMessage]
    system: str | list[TextBlock] | None = None
    tools: list[ClientTool] | None = None
    tool_choice: ToolChoiceAuto | ToolChoiceAny | ToolChoiceTool | ToolChoiceNone | None = None
    thinking: ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled | None = None
    output_config: OutputConfig | None = None
    output_format: MessageFormat | None = None
    """The older name of ``output_config.format``."""
    cache_control: Any = None
    context_management: Any = None
    speed: Literal["standard", "fast"] | None = None
    mcp_servers: Any = None


NO_THREADS = "thread_unsupported_request"
"""The code by which Anthropic's clients know that they must go on without a thread."""


class MessagesRequest(TokenCountRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /v1/messages``."""

    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: MessageMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    diagnostics: Any = None

    # Known, and refused by name unless null.
    container: Any = None
    inference_geo: Any = None
    thread: Any = None
    """A conversation that the server keeps; a tool runner asks for one, and goes on without."""


class MessageTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``POST /v1/messages/count_tokens``."""

    input_tokens: int


class MessageUsage(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: int
    """Without those that were read from the cache."""
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: dict[str, int]


class MessageAnswer(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    """Blocks of the types ``thinking``, ``text`` and ``tool_use``."""
    stop_reason: (
        Literal[
            "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
        ]
        | None
    )
    stop_sequence: str | None
    usage: MessageUsage
    structured_outputs: Compliance | msgspec.UnsetType = msgspec.UNSET


class MessageEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What all events have in common; the rest depends on their type, as in Anthropic's."""

    type: Literal[
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "ping",
        "error",
    ]
