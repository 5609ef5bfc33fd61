"""Translates the fields of Anthropic's Messages into those of a chat, and their names in the other
direction."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Protocol
from uuid import UUID

from gateway.admission.request import GenerationRequest
from gateway.admission.tool_use import check_number
from gateway.errors import InvalidRequestError, UnsupportedParameter, quoted
from gateway.prompts.turns import chat_messages
from gateway.schemas import chat
from gateway.schemas import output_format as formats
from gateway.schemas.messages import (
    NO_THREADS,
    ClientTool,
    MessageFormat,
    MessagesRequest,
    ThinkingDisabled,
    ThinkingEnabled,
    TokenCountRequest,
    ToolChoiceAny,
    ToolChoiceNone,
    ToolChoiceTool,
)
from tenants.names import MAX_NAME_LENGTH
from tenants.types import Principal

_UNSUPPORTED = ("container", "inference_geo", "mcp_servers")
"""Fields that are refused unless null."""
_IGNORED = ("context_management", "diagnostics", "speed")
"""Hints, which change nothing here: the answer's header lists those that a request sets."""

_NAMES = {
    "max_completion_tokens": "max_tokens",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "stop": "stop_sequences",
    "user": "metadata.user_id",
}
"""The names that fields of a chat have in Messages, where they differ."""


class Reasons(Protocol):
    """What thinking depends on; ``ChatPrompts`` has it."""

    @property
    def has_reasoning(self) -> bool: ...

    @property
    def can_switch_reasoning(self) -> bool: ...


def of_messages(
    body: TokenCountRequest, *, request_id: UUID, principal: Principal, model: Reasons
) -> GenerationRequest:
    """Raises ``ApiError`` with the names of Messages."""
    for name in _UNSUPPORTED:
        if getattr(body, name, None) is not None:
            raise UnsupportedParameter("This server does not have it; leave it out.", param=name)
    if getattr(body, "thread", None):
        raise UnsupportedParameter(
            "This server keeps no threads; send the whole conversation.",
            param="thread",
            code=NO_THREADS,
        )
    return GenerationRequest(
        id=request_id,
        principal=principal,
        model=body.model,
        fields=_chat_fields(body, model),
        client_name=_client_name,
        clips_max_tokens=True,
        ignored=tuple(_ignored(body, model)),
    )


def _ignored(body: TokenCountRequest, model: Reasons) -> list[str]:
    ignored = [name for name in _IGNORED if getattr(body, name, None) not in (None, "standard")]
    thinking = body.thinking
    if isinstance(thinking, ThinkingEnabled) and thinking.budget_tokens is not None:
        ignored.append("thinking.budget_tokens")
    is_needless = isinstance(thinking, ThinkingEnabled) and not model.has_reasoning
    # Reasoning that nobody wants to see is hidden, at least.
    is_vain = isinstance(thinking, ThinkingDisabled) and model.has_reasoning
    if (is_needless or is_vain) and not model.can_switch_reasoning:
        ignored.append("thinking")
    if any(tool.input_examples for tool in body.tools or ()):
        ignored.append("tools.input_examples")
    return ignored


def _chat_fields(body: TokenCountRequest, model: Reasons) -> chat.ChatFields:
    config, choice, thinking = body.output_config, body.tool_choice, body.thinking
    wanted = body.output_format if config is None or config.format is None else config.format
    is_single = bool(getattr(choice, "disable_parallel_tool_use", None))
    is_hidden = isinstance(thinking, ThinkingDisabled) or (
        thinking is not None and thinking.display == "omitted"
    )
    more: dict[str, Any] = {}
    if isinstance(body, MessagesRequest):
        user_id = None if body.metadata is None else body.metadata.user_id
        more = {
            "max_tokens": body.max_tokens,
            "stop": body.stop_sequences,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "top_k": body.top_k,
            "user": None if user_id is None else _end_user(user_id),
        }
    messages = chat_messages(body.system, body.messages)
    is_begun = isinstance(messages[-1], chat.AssistantMessage)
    if is_begun and isinstance(thinking, ThinkingEnabled) and model.has_reasoning:
        raise InvalidRequestError(
            "An answer that is begun (a last message of the assistant) cannot begin with thinking.",
            param="thinking",
        )
    return chat.ChatFields(
        messages=messages,
        continue_final_message=is_begun or None,
        tools=None if body.tools is None else _tools(body.tools),
        tool_choice=_tool_choice(choice),
        parallel_tool_calls=False if is_single else None,
        reasoning_effort=_effort(body, model),
        include_reasoning=False if is_hidden else None,
        response_format=None if wanted is None else _response_format(wanted),
        **more,
    )


def _effort(body: TokenCountRequest, model: Reasons) -> chat.ReasoningEffort | None:
    effort = None if body.output_config is None else body.output_config.effort
    if model.can_switch_reasoning:
        match body.thinking:
            case ThinkingDisabled():
                return "none"
            case ThinkingEnabled():
                return effort or "high"  # Anthropic's default
    return effort


def _tools(tools: Sequence[ClientTool]) -> list[chat.Tool]:
    check_number(tools)
    return [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]


def _tool(tool: ClientTool, path: str) -> chat.FunctionTool:
    if tool.type not in (None, "custom"):
        raise UnsupportedParameter(
            f"Tools of type {quoted(tool.type)} are not run by this server.", param=f"{path}.type"
        )
    if tool.input_schema is None:
        raise InvalidRequestError(
            f"Missing required parameter: {path}.input_schema.",
            param=f"{path}.input_schema",
            code="missing_required_parameter",
        )
    if tool.defer_loading:
        raise UnsupportedParameter(
            "There is no tool search, so all tools are shown to the model; leave this out.",
            param=f"{path}.defer_loading",
        )
    if tool.allowed_callers is not None and "direct" not in tool.allowed_callers:
        raise UnsupportedParameter(
            "Only the model itself calls tools, so that direct must be among them.",
            param=f"{path}.allowed_callers",
        )
    function = chat.FunctionDefinition(
        name=tool.name,
        description=tool.description,
        parameters=tool.input_schema,
        strict=tool.strict,
    )
    return chat.FunctionTool(function=function)


def _tool_choice(choice: object) -> chat.ToolChoice | None:
    match choice:
        case ToolChoiceNone():
            return "none"
        case ToolChoiceAny():
            return "required"
        case ToolChoiceTool(name=name):
            return chat.NamedFunction(chat.FunctionName(name))
    return None


def _response_format(wanted: MessageFormat) -> formats.JsonSchemaFormat:
    return formats.JsonSchemaFormat(
        formats.JsonSchema(name="answer", schema=wanted.schema, strict=True)
    )


def _end_user(user_id: str) -> str:
    """The end user as the ledger names it. Claude Code sends more than names may have, about
    machine, account and session: such a text is replaced by its digest."""
    if len(user_id) <= MAX_NAME_LENGTH:
        return user_id
    return "sha256:" + hashlib.sha256(user_id.encode(errors="replace")).hexdigest()


def _client_name(name: str) -> str:
    """What Messages call a field that a chat calls ``name``."""
    head, _, rest = name.partition(".")
    first = head.partition("[")[0]
    if first == "tools" and rest.startswith("function"):
        rest = rest.removeprefix("function").removeprefix(".")
        rest = rest.replace("parameters", "input_schema")
        return f"{head}.{rest}" if rest else head
    if name == "tool_choice.function.name":
        return "tool_choice.name"
    if first == "messages":
        # These messages and the chat's are numbered differently, so only the field can be named.
        return first
    if first == "response_format":
        first, rest = _NAMES[first], name.removeprefix("response_format")
        return first + rest.removeprefix(".json_schema")
    return _NAMES.get(name, name)
