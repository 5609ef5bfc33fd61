"""Responses: the request as clients send it, and the items it is made of.

All fields of OpenAI's specification are declared, so that an unknown name is refused as unknown and
a known one that this server cannot act on is refused as unsupported (``responses.fields``). Items
and tools come as raw JSON and are decoded one by one, so that an error names its place and a kind
of item that needs a hosted tool is refused by its name.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from gateway.schemas.chat import Detail, ReasoningEffort, ServiceTier
from gateway.schemas.common import Typed
from gateway.schemas.sampling import SamplingFields
from gateway.schemas.shown import IdList

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "cancelled", "failed"]


class InputText(Typed, frozen=True, tag="input_text"):
    text: str


class OutputText(msgspec.Struct, frozen=True, tag_field="type", tag="output_text"):
    """A part of an earlier answer, sent back as it came. The model does not see its annotations."""

    text: str
    annotations: list[Any] = []
    logprobs: list[Any] | None = []


class RefusalText(msgspec.Struct, frozen=True, tag_field="type", tag="refusal"):
    refusal: str


class InputImage(Typed, frozen=True, kw_only=True, tag="input_image"):
    """A picture: at ``image_url``, as in Chat Completions, or in a file of the tenant."""

    image_url: str | msgspec.UnsetType | None = msgspec.UNSET
    file_id: str | msgspec.UnsetType | None = msgspec.UNSET
    detail: Detail | None = "auto"


class InputFile(msgspec.Struct, frozen=True, tag_field="type", tag="input_file"):
    """Declared to be refused by name: the model reads no documents."""


class InputAudio(msgspec.Struct, frozen=True, tag_field="type", tag="input_audio"):
    """Declared to be refused by name: no model served here hears."""


ContentPart = InputText | OutputText | RefusalText | InputImage | InputFile | InputAudio
Content = str | list[ContentPart]


class MessageItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message of any role; ``type`` may be left out, as in ``{"role": ..., "content": ...}``."""

    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    type: Literal["message"] = "message"
    id: str | None = None
    status: ItemStatus | None = None
    phase: Literal["commentary", "final_answer"] | None = None
    """Sent back with our answers by SDKs; templates do not know it."""
    parent_id: str | None = None
    """In a conversation: the item that this message follows, if not the one before it; empty: none.
    So messages can stand beside each other. Responses continue the line of the last one."""
    client_data: dict[str, Any] | None = None
    """What a client keeps with a message; templates do not know it."""


class DirectCaller(Typed, frozen=True, tag="direct"):
    pass


class FunctionCallItem(msgspec.Struct, frozen=True, kw_only=True):
    """A call the model made; other names are let pass, as SDKs send our own items back."""

    call_id: str
    name: str
    arguments: str
    """A JSON document, as text."""
    type: Literal["function_call"] = "function_call"
    id: str | None = None
    status: ItemStatus | None = None
    caller: DirectCaller | None = None
    """The model itself: no programs run here."""
    namespace: None = None
    """All functions are in one."""


class FunctionCallOutputItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the client's function answered."""

    call_id: str
    output: Content
    type: Literal["function_call_output"] = "function_call_output"
    id: str | None = None
    status: ItemStatus | None = None


class ReasoningText(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    type: Literal["reasoning_text", "summary_text"] = "reasoning_text"


class ReasoningItem(msgspec.Struct, frozen=True, kw_only=True):
    """What the model thought before an answer; templates that show it get it back."""

    type: Literal["reasoning"] = "reasoning"
    id: str | None = None
    summary: list[ReasoningText] = []
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None
    status: ItemStatus | None = None


class CompactionItem(msgspec.Struct, frozen=True, kw_only=True):
    """What ``POST /v1/responses/compact`` made of items, which it stands for."""

    encrypted_content: str
    """Opaque to clients: a summary, which the model is shown."""
    type: Literal["compaction"] = "compaction"
    id: str | None = None


class McpListedTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of an MCP server, as that describes it."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    annotations: dict[str, Any] | None = None


class McpListToolsItem(msgspec.Struct, frozen=True, kw_only=True):
    """The tools of an MCP server. Sent back, it saves listing them again."""

    server_label: str
    tools: list[McpListedTool]
    type: Literal["mcp_list_tools"] = "mcp_list_tools"
    id: str | None = None
    error: str | None = None


class McpCallItem(msgspec.Struct, frozen=True, kw_only=True):
    """A call of an MCP server's tool, and what came of it."""

    server_label: str
    name: str
    arguments: str
    """A JSON document, as text."""
    type: Literal["mcp_call"] = "mcp_call"
    id: str | None = None
    output: str | None = None
    error: Any = None
    approval_request_id: str | None = None
    status: Literal["in_progress", "calling", "completed", "incomplete", "failed"] | None = None


class McpApprovalRequestItem(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waits until its client allows it."""

    server_label: str
    name: str
    arguments: str
    type: Literal["mcp_approval_request"] = "mcp_approval_request"
    id: str | None = None


class McpApprovalResponseItem(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """The client's answer to ``mcp_approval_request``."""

    approval_request_id: str
    approve: bool
    type: Literal["mcp_approval_response"] = "mcp_approval_response"
    id: str | None = None
    reason: str | None = None


class ItemReference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Stands for an item of a stored response."""

    id: str
    type: Literal["item_reference"] | None = "item_reference"


Item = (
    MessageItem
    | FunctionCallItem
    | FunctionCallOutputItem
    | ReasoningItem
    | CompactionItem
    | McpListToolsItem
    | McpCallItem
    | McpApprovalRequestItem
    | McpApprovalResponseItem
)
"""What a model is shown and what it says."""


class FunctionTool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    type: Literal["function"] = "function"
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema of the arguments."""
    strict: bool | None = None


class McpFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Some tools of an MCP server: those of these names, and those that say they only read."""

    tool_names: list[str] | None = None
    read_only: bool | None = None


class McpApproval(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    always: McpFilter | None = None
    never: McpFilter | None = None


class McpTool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tools of an MCP server."""

    server_label: str
    type: Literal["mcp"] = "mcp"
    server_url: str | None = None
    allowed_tools: list[str] | McpFilter | None = None
    require_approval: Literal["always", "never"] | McpApproval | None = None
    headers: dict[str, str] | None = None
    authorization: str | None = None
    server_description: str | None = None
    allowed_callers: list[Literal["direct"]] | None = None

    # Known, and refused by name unless they hold a value at which they mean nothing.
    connector_id: Any = None
    tunnel_id: Any = None
    defer_loading: Any = None


Tool = FunctionTool | McpTool


class McpChoice(Typed, frozen=True, kw_only=True, tag="mcp"):
    """A tool of an MCP server, or all of them."""

    server_label: str
    name: str | None = None


class FunctionChoice(Typed, frozen=True, tag="function"):
    name: str


class AllowedTools(Typed, frozen=True, kw_only=True, tag="allowed_tools"):
    mode: Literal["none", "auto", "required"] = "auto"
    tools: list[FunctionChoice | McpChoice]


ToolChoice = Literal["none", "auto", "required"] | FunctionChoice | McpChoice | AllowedTools


class TextFormat(Typed, frozen=True, tag="text"):
    pass


class JsonObjectFormat(Typed, frozen=True, tag="json_object"):
    pass


class JsonSchemaFormat(Typed, frozen=True, kw_only=True, tag="json_schema"):
    name: str
    schema: msgspec.Raw
    description: str | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


ReasoningSummary = Literal["auto", "concise", "detailed"]


class Reasoning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    effort: ReasoningEffort | None = None
    summary: ReasoningSummary | None = None
    generate_summary: ReasoningSummary | None = None
    """The older name of ``summary``."""


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    include_obfuscation: bool | None = None


class ConversationRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str


class ResponseFields(SamplingFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a response is asked for: the same over HTTP and over the WebSocket."""

    model: str | None = None
    input: str | list[msgspec.Raw] | None = None
    instructions: str | None = None
    """A system message for this response only."""
    previous_response_id: str | None = None
    conversation: str | ConversationRef | None = None
    """The conversation that it goes on with, and whose items it becomes."""
    store: bool | None = None
    """Whether it can be retrieved and continued; it can by default."""
    metadata: dict[str, str] | None = None
    max_output_tokens: int | None = None
    text: TextConfig | None = None
    tools: list[msgspec.Raw] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    """The most calls of tools of MCP servers; further ones are not made."""
    include: list[str] | None = None
    top_logprobs: int | None = None
    reasoning: Reasoning | None = None
    service_tier: ServiceTier | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    """Changes nothing: every prefix of a tenant's prompts is cached anyway."""
    truncation: Literal["auto", "disabled"] | None = None
    """Whether the oldest items are left out where they do not fit; else that is an error."""
    stream_options: StreamOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """As in Chat Completions."""

    # Known, and refused by name unless they hold a value at which they mean nothing.
    access_programs: Any = None
    context_management: Any = None
    image: Any = None
    moderation: Any = None
    prompt: Any = None

    # Hints, which are taken and change nothing.
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None


class ResponseRequest(ResponseFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /v1/responses``."""

    stream: bool | None = None
    background: bool | None = None
    resumable: bool | None = None
    """Ours: the stream outlives its connection, as ``background`` without the wait."""


class CompactionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``POST /v1/responses/compact``; ``output`` is the input of what follows."""

    id: str
    object: str = "response.compaction"
    created_at: int
    output: list[Any]
    usage: dict[str, Any]


class InputItemList(IdList[Any], frozen=True, kw_only=True):
    """The answer of ``GET /v1/responses/{id}/input_items``."""


class InputTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``POST /v1/responses/input_tokens``."""

    input_tokens: int
    object: str = "response.input_tokens"


class DeletedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``DELETE /v1/responses/{id}``."""

    id: str
    object: str = "response"
    deleted: bool = True
