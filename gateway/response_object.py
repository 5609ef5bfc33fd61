"""The response object as it begins: what the request says of it, and nothing said yet."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.admitted import Admitted
from gateway.schemas.responses import FunctionTool, ResponseFields


def response_object(
    fields: ResponseFields,
    tools: Sequence[FunctionTool],
    admitted: Admitted | None,
    *,
    response_id: str,
    model: str,
    is_background: bool,
) -> dict[str, Any]:
    """Every field that clients of OpenAI's rely on, with the values that are in effect."""
    params = None if admitted is None else admitted.params
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "status": "queued" if is_background else "in_progress",
        "background": is_background,
        "completed_at": None,
        "error": None,
        "frequency_penalty": 0.0,
        "incomplete_details": None,
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "max_tool_calls": None,
        "metadata": fields.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": True,
        "presence_penalty": 0.0,
        "previous_response_id": fields.previous_response_id,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "store": fields.store is not False,
        "temperature": fields.temperature if params is None else params.temperature,
        "text": _text(fields),
        "tool_choice": "auto"
        if fields.tool_choice is None
        else msgspec.to_builtins(fields.tool_choice),
        "tools": [msgspec.to_builtins(tool) for tool in tools],
        "top_logprobs": 0,
        "top_p": fields.top_p if params is None else params.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": fields.user,
    }


def _text(fields: ResponseFields) -> dict[str, Any]:
    wanted = fields.text.format if fields.text is not None else None
    text_format: object = {"type": "text"} if wanted is None else wanted
    return {"format": text_format, "verbosity": "medium"}
