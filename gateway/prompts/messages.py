"""Turns the messages of a request into the dictionaries that chat templates expect."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from gateway.errors import InvalidRequestError, UnsupportedParameter
from gateway.schemas.chat import (
    AssistantMessage,
    Content,
    ContentPart,
    DeveloperMessage,
    ImagePart,
    Message,
    Picture,
    RefusalPart,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from gateway.transport.body_shape import JsonCounts

REASONING = "reasoning_content"


def messages_for_template(
    messages: list[Message],
    reasoning_field: str = REASONING,
    pictures: list[Picture] | None = None,
) -> list[dict[str, Any]]:
    """Plain dictionaries, in which contents are strings, or lists of parts where there are
    pictures, and the arguments of calls are objects.

    ``pictures``: takes those of the messages, in their order; None if the model does not see.
    Arguments that are not JSON, because an answer ended in the middle of a call, remain text. The
    role ``developer`` becomes ``system``, its name in templates. Raises ``ApiError`` naming the
    field.
    """
    if not messages:
        raise InvalidRequestError("There must be at least one message.", param="messages")
    _check_arguments(messages)
    return [
        _message(message, f"messages[{i}]", reasoning_field, pictures)
        for i, message in enumerate(messages)
    ]


def _check_arguments(messages: list[Message]) -> None:
    """As texts they may hold what a body may not, and decoding them stops the event loop as well.
    Raises ``PayloadTooLarge``."""
    counts = JsonCounts()
    for message in messages:
        if isinstance(message, AssistantMessage):
            for call in message.tool_calls or ():
                counts.count_text(call.function.arguments.encode())


def _message(
    message: Message, path: str, reasoning_field: str, pictures: list[Picture] | None
) -> dict[str, Any]:
    role = message.__struct_config__.tag
    content: str | list[dict[str, str]] | None = message.content  # type: ignore[assignment]
    if isinstance(message.content, list):
        content = _content(message, message.content, f"{path}.content", pictures)
    elif content is None and pictures is not None:
        content = ""  # Templates of models that see take what is no text for a list.
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
        elif message.content is None:
            plain["content"] = message.refusal or ""
    return plain


def _content(
    message: Message, parts: list[ContentPart], path: str, pictures: list[Picture] | None
) -> str | list[dict[str, str]]:
    """The parts of a message as templates read them."""
    if pictures is None or not any(isinstance(part, ImagePart) for part in parts):
        return text_of(parts, path)
    shown: list[dict[str, str]] = []
    for index, part in enumerate(parts):
        if not isinstance(part, ImagePart):
            shown.append({"type": "text", "text": _text(part, f"{path}[{index}]")})
            continue
        picture = _picture(part, f"{path}[{index}]")
        # In Chat Completions, the results of tools are texts.
        is_result = isinstance(message, ToolMessage) and isinstance(part, Picture)
        if not (isinstance(message, UserMessage) or is_result):
            role = message.__struct_config__.tag
            raise UnsupportedParameter(
                f"Content of type {picture.kind} is not supported in messages of the role {role}.",
                param=picture.place,
                is_renamed=True,
            )
        shown.append({"type": "image"})
        pictures.append(picture)
    return shown


def _picture(part: ImagePart, place: str) -> Picture:
    if isinstance(part, Picture):
        return part
    return Picture(image_url=part.image_url, place=place, field="image_url", kind="image_url")


def text_of(content: Content, path: str) -> str:
    """The text of a message. Parts are joined by line breaks, as in vLLM."""
    if isinstance(content, str):
        return content
    return "\n".join([_text(part, f"{path}[{index}]") for index, part in enumerate(content)])


def _text(part: ContentPart, place: str) -> str:
    if isinstance(part, TextPart):
        return part.text
    if isinstance(part, RefusalPart):
        return part.refusal
    if isinstance(part, ImagePart):
        picture = _picture(part, place)
        raise UnsupportedParameter(
            f"Content of type {picture.kind} is not supported: the model reads text only.",
            param=picture.place,
            is_renamed=isinstance(part, Picture),
        )
    raise UnsupportedParameter(
        f"Content of type {part.__struct_config__.tag} is not supported by this server.",
        param=place,
    )


def _call(call: ToolCall) -> dict[str, Any]:
    arguments: Any = call.function.arguments
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        arguments = msgspec.json.decode(arguments or "{}")
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": call.type, "function": function}
