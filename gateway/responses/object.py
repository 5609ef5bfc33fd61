"""The response object at its beginning: the request's fields, and no output yet."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.admission.admitted import Admitted
from gateway.schemas.responses import (
    ConversationRef,
    McpTool,
    Reasoning,
    ResponseFields,
    Tool,
)


def response_object(
    fields: ResponseFields,
    tools: Sequence[Tool],
    admitted: Admitted | None,
    *,
    response_id: str,
    model: str,
    is_background: bool,
) -> dict[str, Any]:
    """All fields that OpenAI's clients rely on, with the values that are in effect."""
    params = None if admitted is None else admitted.params
    name = conversation_of(fields)
    return {
        **({} if name is None else {"conversation": {"id": name}}),
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "status": "queued" if is_background else "in_progress",
        "background": is_background,
        "completed_at": None,
        "error": None,
        "frequency_penalty": fields.frequency_penalty or 0.0,
        "incomplete_details": None,
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "max_tool_calls": fields.max_tool_calls,
        "metadata": fields.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "presence_penalty": fields.presence_penalty or 0.0,
        "previous_response_id": fields.previous_response_id,
        "prompt_cache_key": fields.prompt_cache_key,
        "reasoning": _reasoning(fields),
        "safety_identifier": fields.safety_identifier,
        "service_tier": (None if admitted is None else admitted.service_tier) or "default",
        "store": fields.store is not False,
        "temperature": _or_one(fields.temperature) if params is None else params.temperature,
        "text": _text(fields),
        "tool_choice": "auto"
        if fields.tool_choice is None
        else msgspec.to_builtins(fields.tool_choice),
        "tools": [_tool(tool) for tool in tools],
        "top_logprobs": fields.top_logprobs or 0,
        "top_p": _or_one(fields.top_p) if params is None else params.top_p,
        "truncation": fields.truncation or "disabled",
        "usage": None,
        "user": fields.user,
    }


def _reasoning(fields: ResponseFields) -> dict[str, str | None]:
    given = fields.reasoning or Reasoning()
    return {"effort": given.effort, "summary": given.summary or given.generate_summary}


def _or_one(value: float | None) -> float:
    return 1.0 if value is None else value


def _tool(tool: Tool) -> Any:
    """As it came, without what is secret."""
    if not isinstance(tool, McpTool):
        return msgspec.to_builtins(tool)
    shown = msgspec.structs.replace(tool, headers=None, authorization=None)
    return {
        name: value
        for name, value in msgspec.to_builtins(shown).items()
        if value is not None or name in ("allowed_tools", "headers")
    } | {"require_approval": msgspec.to_builtins(tool.require_approval or "always")}


def conversation_of(fields: ResponseFields) -> str | None:
    """The id of the conversation that a response belongs to."""
    named = fields.conversation
    return named.id if isinstance(named, ConversationRef) else named


def _text(fields: ResponseFields) -> dict[str, Any]:
    wanted = fields.text.format if fields.text is not None else None
    text_format: object = {"type": "text"} if wanted is None else wanted
    verbosity = None if fields.text is None else fields.text.verbosity
    return {"format": text_format, "verbosity": verbosity or "medium"}
