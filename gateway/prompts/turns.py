"""Puts the turns of Anthropic's Messages into the messages of Chat Completions, which chat
templates expect."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.errors import InvalidRequestError, UnsupportedParameter, quoted
from gateway.schemas.chat import (
    AssistantMessage,
    ContentPart,
    FunctionCall,
    ImageUrl,
    Message,
    Picture,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from gateway.schemas.messages import (
    Base64Source,
    Block,
    FileSource,
    ImageBlock,
    InputMessage,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UnseenBlock,
)

BILLING = "x-anthropic-billing-header:"
"""Claude Code's first system block begins with this. It is addressed to the server and differs from
request to request, so that a prompt with it could never be found in the prefix cache."""
_FAILED = "Error: "
"""What a tool's result begins with if it is an error, for which templates have no field."""


def chat_messages(
    system: str | Sequence[TextBlock] | None, turns: Sequence[InputMessage]
) -> list[Message]:
    """The messages of a chat. Raises ``ApiError`` naming the block at fault."""
    if not turns:
        raise InvalidRequestError("There must be at least one message.", param="messages")
    messages: list[Message] = []
    if system:
        texts = [system] if isinstance(system, str) else [block.text for block in system]
        if shown := [text for text in texts if not text.startswith(BILLING)]:
            messages.append(SystemMessage(content="\n".join(shown)))
    called: set[str] = set()
    for index, turn in enumerate(turns):
        _add(messages, turn, f"messages[{index}]", called)
    if isinstance(messages[-1], AssistantMessage):
        _check_prefill(messages[-1], f"messages[{len(turns) - 1}]")
    return messages


def _check_prefill(message: AssistantMessage, path: str) -> None:
    """Check the beginning of the answer that is to be given."""
    text = message.content
    if message.tool_calls:
        raise InvalidRequestError(
            "Each tool_use must be followed by a message of the user with its tool_result.",
            param=path,
        )
    if not isinstance(text, str) or not text:
        raise InvalidRequestError("There is no text to continue.", param=f"{path}.content")
    if text != text.rstrip():
        raise InvalidRequestError(
            "The last message, which is the assistant's, must not end with white space.",
            param=f"{path}.content",
        )


def _add(messages: list[Message], turn: InputMessage, path: str, called: set[str]) -> None:
    blocks: Sequence[Block] = (
        [TextBlock(turn.content)] if isinstance(turn.content, str) else turn.content
    )
    if turn.role == "assistant":
        messages.append(_assistant(blocks, path, called))
        return
    if not blocks:
        raise InvalidRequestError("It must not be empty.", param=f"{path}.content")
    parts: list[ContentPart] = []
    for index, block in enumerate(blocks):
        place = f"{path}.content[{index}]"
        match block:
            case TextBlock():
                parts.append(TextPart(block.text))
            case ImageBlock() if turn.role == "user":
                parts.append(_picture(block, place))
            case ToolResultBlock() if turn.role == "user":
                _add_user(messages, parts)
                parts = []
                if block.tool_use_id not in called:
                    raise InvalidRequestError(
                        f"There is no tool_use {quoted(block.tool_use_id)} before this result.",
                        param=f"{place}.tool_use_id",
                    )
                content = _result(block, place)
                messages.append(ToolMessage(tool_call_id=block.tool_use_id, content=content))
            case _:
                raise _misplaced(block, turn.role, place)
    if turn.role == "system":
        messages.append(SystemMessage(content=parts))
    else:
        _add_user(messages, parts)


def _add_user(messages: list[Message], parts: list[ContentPart]) -> None:
    """Add what the user says. Turns of one role that follow each other are one, as at
    Anthropic."""
    if not parts:
        return
    last = messages[-1] if messages else None
    if isinstance(last, UserMessage) and isinstance(last.content, list):
        last.content.extend(parts)  # a list of this function's own
    else:
        messages.append(UserMessage(content=parts))


def _assistant(blocks: Sequence[Block], path: str, called: set[str]) -> AssistantMessage:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for index, block in enumerate(blocks):
        match block:
            case TextBlock():
                texts.append(block.text)
            case ThinkingBlock():
                thoughts.append(block.thinking)
            case ToolUseBlock():
                called.add(block.id)
                arguments = msgspec.json.encode(block.input).decode()
                calls.append(ToolCall(id=block.id, function=FunctionCall(block.name, arguments)))
            case RedactedThinkingBlock():
                pass
            case _:
                raise _misplaced(block, "assistant", f"{path}.content[{index}]")
    return AssistantMessage(
        content="\n".join(texts) if texts else None,
        reasoning_content="\n".join(thoughts) or None,
        tool_calls=calls or None,
    )


def _result(block: ToolResultBlock, path: str) -> str | list[ContentPart]:
    parts: list[ContentPart] = []
    if isinstance(block.content, str):
        parts.append(TextPart(block.content))
    else:
        for index, part in enumerate(block.content or ()):
            place = f"{path}.content[{index}]"
            match part:
                case TextBlock():
                    parts.append(TextPart(part.text))
                case ImageBlock():
                    parts.append(_picture(part, place))
                case _:
                    raise _misplaced(part, "tool_result", place)
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    if len(texts) < len(parts):
        return [TextPart(_FAILED), *parts] if block.is_error else parts
    text = "\n".join(texts)
    return _FAILED + text if block.is_error else text


def _picture(block: ImageBlock, place: str) -> Picture:
    source = block.source
    if isinstance(source, FileSource):
        url, file_id, field = "", source.file_id, "source.file_id"
    elif isinstance(source, Base64Source):
        url, file_id, field = f"data:;base64,{source.data}", None, "source.data"
    else:
        url, file_id, field = source.url, None, "source.url"
    return Picture(
        image_url=ImageUrl(url=url), file_id=file_id, place=place, field=field, kind="image"
    )


def _misplaced(block: Block | UnseenBlock, where: str, param: str) -> InvalidRequestError:
    kind = block.__struct_config__.tag
    if isinstance(block, UnseenBlock):
        return UnsupportedParameter(
            f"Content of type {kind} is not supported by this server.", param=param
        )
    return InvalidRequestError(f"A block of type {kind} cannot be in {where} content.", param=param)
