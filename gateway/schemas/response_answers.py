"""The response object and the events, for the published documents. ``responses.object`` and
``responses.events`` write them; tests check that these have the form that is described here."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from gateway.schemas.common import Compliance
from gateway.schemas.responses import ItemStatus, McpListedTool, ResponseStatus


class OutputTextPart(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"
):
    text: str
    annotations: list[Any]
    logprobs: list[Any]
    """As in Chat Completions, if asked for."""


class OutputMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    id: str
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputTextPart]


class ReasoningTextPart(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning_text"
):
    text: str


class SummaryTextPart(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="summary_text"
):
    text: str


class OutputReasoning(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    id: str
    status: ItemStatus
    summary: list[SummaryTextPart]
    """The reasoning itself, as in ``content``: nothing sums it up."""
    content: list[ReasoningTextPart]


class OutputFunctionCall(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"
):
    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str
    """A JSON document, as text."""


class OutputMcpListTools(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp_list_tools"
):
    id: str
    server_label: str
    tools: list[McpListedTool]
    error: str | None


class OutputMcpCall(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp_call"):
    id: str
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    server_label: str
    name: str
    arguments: str
    """A JSON document, as text."""
    approval_request_id: str | None
    output: str | None
    error: dict[str, Any] | None
    """With a ``type``: ``mcp_protocol_error``, ``mcp_tool_execution_error`` or ``http_error``."""


class OutputMcpApprovalRequest(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp_approval_request"
):
    id: str
    server_label: str
    name: str
    arguments: str


class ResponseError(msgspec.Struct, frozen=True, kw_only=True):
    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True, kw_only=True):
    reason: Literal["max_output_tokens"]


class InputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    cached_tokens: int
    cache_write_tokens: int
    image_tokens: int | msgspec.UnsetType = msgspec.UNSET
    """What images take of the input; left out if there are none."""


class OutputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A response, at any stage of its life."""

    id: str
    object: Literal["response"]
    created_at: int
    status: ResponseStatus
    background: bool
    completed_at: int | None
    error: ResponseError | None
    frequency_penalty: float
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[
        OutputMessage
        | OutputReasoning
        | OutputFunctionCall
        | OutputMcpListTools
        | OutputMcpCall
        | OutputMcpApprovalRequest
    ]
    parallel_tool_calls: bool
    presence_penalty: float
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float | None
    text: dict[str, Any]
    tool_choice: Any
    tools: list[Any]
    top_logprobs: int
    top_p: float | None
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None
    user: str | None
    conversation: dict[str, str] | msgspec.UnsetType | None = msgspec.UNSET
    """Null if the response could not be added to its conversation."""
    structured_outputs: Compliance | msgspec.UnsetType = msgspec.UNSET


class ResponseEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What all events have in common; the rest depends on their type, as in OpenAI's."""

    type: str
    sequence_number: int
