"""Turns the messages of a request into the dictionaries that chat templates expect."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from gateway.errors import InvalidRequestError, UnsupportedParameter
from gateway.schemas.chat import (
    AssistantMessage,
    Content,
    DeveloperMessage,
    Message,
    RefusalPart,
    TextPart,
    ToolCall,
    ToolMessage,
)
from gateway.transport.body_shape import JsonCounts

REASONING = "reasoning_content"


def messages_for_template(
    messages: list[Message], reasoning_field: str = REASONING
) -> list[dict[str, Any]]:
    """Plain dictionaries, in which contents are strings and the arguments of calls are objects.

    Arguments that are not JSON, because an answer ended in the middle of a call, remain text. The
    role ``developer`` becomes ``system``, its name in templates. Raises ``ApiError`` naming the
    field.
    """
    if not messages:
        raise InvalidRequestError("There must be at least one message.", param="messages")
    _check_arguments(messages)
    return [
        _message(message, f"messages[{i}]", reasoning_field) for i, message in enumerate(messages)
    ]


def _check_arguments(messages: list[Message]) -> None:
    """As texts they may hold what a body may not, and decoding them stops the event loop as well.
    Raises ``PayloadTooLarge``."""
    counts = JsonCounts()
    for message in messages:
        if isinstance(message, AssistantMessage):
            for call in message.tool_calls or ():
                counts.count_text(call.function.arguments.encode())


def _message(message: Message, path: str, reasoning_field: str) -> dict[str, Any]:
    role = message.__struct_config__.tag
    content = None if message.content is None else text_of(message.content, f"{path}.content")
    plain: dict[str, Any] = {"role": role, "content": content}
    if isinstance(message, DeveloperMessage):
        plain["role"] = "system"
    if isinstance(message, ToolMessage):
        plain["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        plain["name"] = message.name
    if isinstance(message, AssistantMessage):
        if message.reasoning_content is not None:
            plain[reasoning_field] = message.reasoning_content
        if message.tool_calls:
            plain["tool_calls"] = [*map(_call, message.tool_calls)]
            if reasoning_field != REASONING and content and reasoning_field in plain:
                # Harmony's template takes one of both: what was said before a call is part of it.
                plain |= {reasoning_field: f"{message.reasoning_content}\n{content}", "content": ""}
        elif content is None:
            plain["content"] = message.refusal or ""
    return plain


def text_of(content: Content, path: str) -> str:
    """The text of a message. Parts are joined by line breaks, as in vLLM."""
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for index, part in enumerate(content):
        if isinstance(part, TextPart):
            texts.append(part.text)
        elif isinstance(part, RefusalPart):
            texts.append(part.refusal)
        else:
            kind = part.__struct_config__.tag
            raise UnsupportedParameter(
                f"Content of type {kind} is not supported: the model reads text only.",
                param=f"{path}[{index}]",
            )
    return "\n".join(texts)


def _call(call: ToolCall) -> dict[str, Any]:
    arguments: Any = call.function.arguments
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        arguments = msgspec.json.decode(arguments or "{}")
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": call.type, "function": function}
