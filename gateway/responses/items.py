"""The items of Responses: decodes them one by one, gives them ids, and makes messages of them.

An item's id contains the token of its response and its place there, so that a reference to an item
tells which response has it: ``msg_<token>_0`` is the first output item of ``resp_<token>``, and
``msg_<token>_i0`` its first input item.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from gateway.errors import ApiError, InvalidRequestError, UnsupportedParameter, quoted
from gateway.responses import compaction
from gateway.schemas import chat
from gateway.schemas.chat import (
    AssistantMessage,
    DeveloperMessage,
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
from gateway.schemas.responses import (
    CompactionItem,
    Content,
    FunctionCallItem,
    FunctionCallOutputItem,
    InputImage,
    InputText,
    Item,
    ItemReference,
    McpApprovalRequestItem,
    McpApprovalResponseItem,
    McpCallItem,
    McpListToolsItem,
    MessageItem,
    OutputText,
    ReasoningItem,
    RefusalText,
)
from gateway.transport import bodies

_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
MAX_ITEMS = 4096
"""The most items of one request."""

_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
    "compaction": "cmp",
    "mcp_list_tools": "mcpl",
    "mcp_call": "mcp",
    "mcp_approval_request": "mcpr",
    "mcp_approval_response": "mcpa",
}
_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    "message": msgspec.json.Decoder(MessageItem),
    "function_call": msgspec.json.Decoder(FunctionCallItem),
    "function_call_output": msgspec.json.Decoder(FunctionCallOutputItem),
    "reasoning": msgspec.json.Decoder(ReasoningItem),
    "compaction": msgspec.json.Decoder(CompactionItem),
    "mcp_list_tools": msgspec.json.Decoder(McpListToolsItem),
    "mcp_call": msgspec.json.Decoder(McpCallItem),
    "mcp_approval_request": msgspec.json.Decoder(McpApprovalRequestItem),
    "mcp_approval_response": msgspec.json.Decoder(McpApprovalResponseItem),
    "item_reference": msgspec.json.Decoder(ItemReference),
}
_HAVE_STATUS = (MessageItem, FunctionCallItem, FunctionCallOutputItem)


class _Probe(msgspec.Struct):
    type: str | None = None
    role: str | None = None


_probe = msgspec.json.Decoder(_Probe)


def decode_input(given: str | Sequence[msgspec.Raw]) -> list[Item | ItemReference]:
    """Decode a request's input. Raises ``InvalidRequestError``, whose ``param`` begins with
    ``input``."""
    if isinstance(given, str):
        return [MessageItem(role="user", content=given)]
    if len(given) > MAX_ITEMS:
        raise InvalidRequestError(f"At most {MAX_ITEMS} items.", param="input")
    return decode_items(given)


def decode_items(given: Sequence[msgspec.Raw], field: str = "input") -> list[Item | ItemReference]:
    """As ``decode_input``, for any number of items of a ``field``."""
    return [_decode(raw, f"{field}[{index}]") for index, raw in enumerate(given)]


def bare(item: Any) -> dict[str, Any]:
    """An item as it is stored and shown: a field that has no value is left out."""
    plain: dict[str, Any] = msgspec.to_builtins(item)
    return {name: value for name, value in plain.items() if value is not None}


def plain_items(raw: Sequence[msgspec.Raw]) -> list[Item]:
    """Decode items that this server stored: they are valid, and none is a reference."""
    items: list[Item] = []
    for item in decode_items(raw):
        assert not isinstance(item, ItemReference)
        items.append(item)
    return items


def _decode(raw: msgspec.Raw, path: str) -> Item | ItemReference:
    try:
        probe = bodies.decode(_probe, bytes(raw), what="item")
        kind = probe.type or ("message" if probe.role is not None else "item_reference")
        decoder = _DECODERS.get(kind)
        if decoder is None:
            raise UnsupportedParameter(
                f"Items of type {quoted(kind)} are not supported by this server.", param="type"
            )
        item: Item | ItemReference = bodies.decode(decoder, bytes(raw))
    except ApiError as exc:
        param = path if exc.param is None else f"{path}.{exc.param}"
        raise type(exc)(exc.message, param=param, code=exc.code) from None
    return item


def name_items(items: Iterable[Item], token: str) -> list[Item]:
    """The items as they are stored and shown: with ids, with a status where Open Responses has one,
    and with the content of messages as parts."""
    return [
        _named(item if not isinstance(item, MessageItem) else _in_parts(item), token, place)
        for place, item in enumerate(items)
    ]


def _named(item: Item, token: str, place: int) -> Item:
    more: dict[str, str] = {}
    if item.id is None:
        more["id"] = f"{_PREFIXES[item.type]}_{token}_i{place:x}"
    if isinstance(item, _HAVE_STATUS) and item.status is None:
        more["status"] = "completed"
    return msgspec.structs.replace(item, **more) if more else item


def _in_parts(item: MessageItem) -> MessageItem:
    if not isinstance(item.content, str):
        return item
    part = OutputText if item.role == "assistant" else InputText
    return msgspec.structs.replace(item, content=[part(item.content)])


def output_id(kind: str, token: str, place: int) -> str:
    """The id of a response's output item number ``place``."""
    return f"{_PREFIXES[kind]}_{token}_{place:x}"


def token_of(item_id: str) -> str | None:
    """The token of the response that an item of ours belongs to; None for a foreign id."""
    kind, _, rest = item_id.partition("_")
    token, _, place = rest.rpartition("_")
    return token if kind in _PREFIXES.values() and token and place else None


def messages_of(
    instructions: str | None, items: Sequence[Item], place: Callable[[int], str]
) -> list[Message]:
    """The items as messages of Chat Completions, which chat templates expect.

    Consecutive calls, and text directly before them, make one assistant message, as the model
    generated them. Raises ``ApiError`` naming ``place`` of the item.
    """
    messages: list[Message] = []
    if instructions is not None:
        messages.append(SystemMessage(content=instructions))
    reasoning: str | None = None
    requests = {item.id: item for item in items if isinstance(item, McpApprovalRequestItem)}
    for index, item in enumerate(items):
        match item:
            case ReasoningItem():
                thought = "".join(part.text for part in item.content or item.summary)
                reasoning = thought or compaction.plain(item.encrypted_content or "") or None
            case MessageItem(role="assistant"):
                content = _content(item.content, place(index), "content")
                messages.append(AssistantMessage(content=content, reasoning_content=reasoning))
                reasoning = None
            case MessageItem():
                content = _content(item.content, place(index), "content")
                messages.append(_MESSAGES[item.role](content=content))
                reasoning = None
            case CompactionItem():
                messages.append(UserMessage(content=compaction.summary_in(item, place(index))))
                reasoning = None
            case FunctionCallItem():
                _add_call(messages, item, reasoning)
                reasoning = None
            case FunctionCallOutputItem():
                output = _content(item.output, place(index), "output")
                messages.append(ToolMessage(tool_call_id=item.call_id, content=output))
            case McpCallItem():
                _add_remote_call(messages, item, reasoning, _outcome(item))
                reasoning = None
            case McpApprovalResponseItem(approve=False):
                if (request := requests.get(item.approval_request_id)) is not None:
                    refusal = f"The user did not allow this call. {item.reason or ''}".rstrip()
                    _add_remote_call(messages, request, reasoning, refusal)
                    reasoning = None
    return messages


_MESSAGES: Mapping[str, type[SystemMessage | UserMessage | DeveloperMessage]] = {
    "system": SystemMessage,
    "user": UserMessage,
    "developer": DeveloperMessage,
}


def _add_call(messages: list[Message], item: FunctionCallItem, reasoning: str | None) -> None:
    last = messages[-1] if messages else None
    if not isinstance(last, AssistantMessage):
        last = AssistantMessage()
        messages.append(last)
    if last.tool_calls is None or reasoning is not None:
        last = messages[-1] = msgspec.structs.replace(
            last,
            tool_calls=last.tool_calls or [],
            reasoning_content=reasoning or last.reasoning_content,
        )
    assert last.tool_calls is not None
    function = FunctionCall(name=item.name, arguments=item.arguments)
    last.tool_calls.append(ToolCall(id=item.call_id, function=function))


def _add_remote_call(
    messages: list[Message],
    item: McpCallItem | McpApprovalRequestItem,
    reasoning: str | None,
    outcome: str,
) -> None:
    call_id = item.id or ""
    _add_call(
        messages,
        FunctionCallItem(call_id=call_id, name=function_name(item.name), arguments=item.arguments),
        reasoning,
    )
    messages.append(ToolMessage(tool_call_id=call_id, content=outcome))


def _outcome(item: McpCallItem) -> str:
    if item.error is None:
        return item.output if item.output is not None else "The call did not end."
    told = item.error if isinstance(item.error, str) else msgspec.json.encode(item.error).decode()
    return f"The call failed: {told}"


def function_name(name: str) -> str:
    """What the model calls a tool of an MCP server."""
    return _NO_NAME.sub("_", name)[:64] or "_"


def _content(content: Content, place: str, field: str) -> chat.Content:
    """The content of an item, as of a message of Chat Completions."""
    if isinstance(content, str):
        return content
    parts: list[chat.ContentPart] = []
    is_own = place.startswith("input")
    for index, part in enumerate(content):
        path = f"{place}.{field}[{index}]" if is_own else place
        match part:
            case InputText() | OutputText():
                parts.append(TextPart(part.text))
            case RefusalText():
                parts.append(TextPart(part.refusal))
            case InputImage():
                parts.append(_picture(part, path, is_own=is_own))
            case _:
                kind = part.__struct_config__.tag
                raise UnsupportedParameter(
                    f"Content of type {kind} is not supported by this server.",
                    param=path,
                )
    if any(isinstance(part, Picture) for part in parts):
        return parts
    return "\n".join([part.text for part in parts if isinstance(part, TextPart)])


def _picture(part: InputImage, place: str, *, is_own: bool) -> Picture:
    """``is_own``: whether it is of the request itself, which has a path for it."""
    file_id = part.file_id or None
    if bool(part.image_url) == bool(file_id):
        raise InvalidRequestError("Set either image_url or file_id.", param=place)
    return Picture(
        image_url=ImageUrl(url=part.image_url or "", detail=part.detail),
        file_id=file_id,
        place=place,
        field="" if not is_own else "image_url" if file_id is None else "file_id",
        kind="input_image",
    )


def place_of(call_outputs: Sequence[Item]) -> int | None:
    """The first function call output whose call is not among the items before it, if any."""
    called: set[str] = set()
    for index, item in enumerate(call_outputs):
        if isinstance(item, FunctionCallItem):
            called.add(item.call_id)
        elif isinstance(item, FunctionCallOutputItem) and item.call_id not in called:
            return index
    return None


def without_oldest(items: Sequence[Item], number: int) -> list[Item]:
    """All items except for the first ``number`` that are not instructions.

    Outputs of calls that are left out are left out as well. Empty if the last item would be.
    """
    kept: list[Item] = []
    called: set[str] = set()
    for index, item in enumerate(items):
        is_instruction = isinstance(item, MessageItem) and item.role in ("system", "developer")
        if not is_instruction and number > 0:
            number -= 1
            if index == len(items) - 1:
                return []
            continue
        if isinstance(item, FunctionCallItem):
            called.add(item.call_id)
        elif isinstance(item, FunctionCallOutputItem) and item.call_id not in called:
            continue
        kept.append(item)
    return kept if kept and kept[-1] is items[-1] else []
