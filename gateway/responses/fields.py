"""Translates the fields of a response into those of a chat, and their names in the other direction.

No field is accepted and ignored: one that the server cannot act on is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from gateway.admission import tool_use, unsupported
from gateway.errors import ApiError, InvalidRequestError, UnsupportedParameter, quoted
from gateway.responses.items import messages_of, place_of
from gateway.responses.remote import RemoteTools
from gateway.schemas import chat
from gateway.schemas import output_format as output_fields
from gateway.schemas.chat import ChatFields
from gateway.schemas.responses import (
    AllowedTools,
    FunctionChoice,
    FunctionTool,
    Item,
    JsonObjectFormat,
    JsonSchemaFormat,
    McpChoice,
    McpTool,
    ResponseFields,
    TextConfig,
    TextFormat,
    Tool,
    ToolChoice,
)
from gateway.schemas.sampling import SamplingFields
from gateway.transport import bodies

UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "access_programs": (),
    "context_management": (),
    "image": (),
    "moderation": (),
    "prompt": (),
    "response_format": (),
}
"""Fields that are refused unless null or one of these values, at which they change nothing."""

ENCRYPTED = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"
HARMLESS_INCLUDES = frozenset(
    {
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        ENCRYPTED,
        "web_search_call.action.sources",
        "web_search_call.results",
    }
)
"""Values of ``include`` that change nothing: they concern items of kinds that this server does not
make, or reasoning, which has its text beside what stands for it in ``encrypted_content``.
"""

_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
}
"""The names that fields of a chat have in a response, where they differ."""

_tool_decoders: Mapping[str, msgspec.json.Decoder[Any]] = {
    "function": msgspec.json.Decoder(FunctionTool),
    "mcp": msgspec.json.Decoder(McpTool),
}


class _Probe(msgspec.Struct):
    type: str


_probe = msgspec.json.Decoder(_Probe)


def check(fields: ResponseFields) -> None:
    """Raise ``InvalidRequestError`` naming a field that the server cannot act on."""
    unsupported.refuse(fields, UNSUPPORTED)
    if fields.conversation is not None and fields.previous_response_id is not None:
        raise InvalidRequestError("Set it or previous_response_id, not both.", param="conversation")
    for index, name in enumerate(fields.include or ()):
        if name not in HARMLESS_INCLUDES and name != LOGPROBS:
            raise UnsupportedParameter(
                f"{quoted(name)} cannot be included by this server.", param=f"include[{index}]"
            )
    if fields.max_tool_calls is not None and fields.max_tool_calls < 1:
        raise InvalidRequestError("Must be at least 1.", param="max_tool_calls")


def ignored(fields: ResponseFields) -> tuple[str, ...]:
    """The fields that change nothing. Reasoning is returned in full, whatever summary is asked for,
    so that only "concise" asks for what it does not get."""
    return (
        *unsupported.ignored(fields),
        *(
            f"reasoning.{name}"
            for name in ("summary", "generate_summary")
            if getattr(fields.reasoning, name, None) == "concise"
        ),
    )


def decode_tools(given: Sequence[msgspec.Raw] | None) -> list[Tool]:
    """Decode tools. Raises ``ApiError`` naming the tool; hosted tools are refused by their type."""
    tools: list[Tool] = []
    tool_use.check_number(given or ())  # before the work for each
    for index, raw in enumerate(given or ()):
        try:
            kind = bodies.decode(_probe, bytes(raw), what="tool").type
            if kind not in _tool_decoders:
                raise UnsupportedParameter(
                    f"Tools of type {quoted(kind)} are not hosted by this server.", param="type"
                )
            tools.append(bodies.decode(_tool_decoders[kind], bytes(raw)))
        except ApiError as exc:
            path = f"tools[{index}]"
            param = path if exc.param is None else f"{path}.{exc.param}"
            raise type(exc)(exc.message, param=param, code=exc.code) from None
    return tools


def chat_fields(
    fields: ResponseFields,
    tools: Sequence[Tool],
    items: Sequence[Item],
    *,
    num_own: int,
    remote: RemoteTools | None = None,
) -> ChatFields:
    """The chat that a response asks for. items: those of earlier responses, then the ``num_own``
    of the request. remote: the tools of MCP servers. Raises ``ApiError`` with the names of
    Responses."""

    def place(index: int) -> str:
        own = index - (len(items) - num_own)
        earlier = "previous_response_id" if fields.conversation is None else "conversation"
        return f"input[{own}]" if own >= 0 else earlier

    if (lost := place_of(items)) is not None:
        path = place(lost)
        raise InvalidRequestError(
            "There is no function call with this call_id before it.",
            param=f"{path}.call_id" if path.startswith("input") else path,
        )
    text, effort = fields.text or TextConfig(), fields.reasoning
    functions = [tool for tool in tools if isinstance(tool, FunctionTool)]
    functions += [] if remote is None else remote.functions
    return ChatFields(
        messages=messages_of(fields.instructions, items, place),
        max_completion_tokens=fields.max_output_tokens,
        logprobs=has_logprobs(fields) or None,
        top_logprobs=fields.top_logprobs,
        tools=None if fields.tools is None else [_chat_tool(tool) for tool in functions],
        tool_choice=_chat_tool_choice(fields.tool_choice, remote),
        verbosity=text.verbosity,
        reasoning_effort=None if effort is None else effort.effort,
        response_format=_response_format(text.format),
        **{name: getattr(fields, name) for name in _SAME},
    )


def has_logprobs(fields: ResponseFields) -> bool:
    return LOGPROBS in (fields.include or ()) or bool(fields.top_logprobs)


_SAME = (
    "metadata",
    "parallel_tool_calls",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "chat_template_kwargs",
    *(name for name in SamplingFields.__struct_fields__ if name != "response_format"),
)
"""Fields that have the same name in a chat."""


def _response_format(
    wanted: TextFormat | JsonObjectFormat | JsonSchemaFormat | None,
) -> output_fields.ResponseFormat | None:
    match wanted:
        case None:
            return None
        case TextFormat():
            return output_fields.TextFormat()
        case JsonObjectFormat():
            return output_fields.JsonObjectFormat()
    schema = output_fields.JsonSchema(
        name=wanted.name,
        schema=wanted.schema,
        description=wanted.description,
        strict=wanted.strict,
    )
    return output_fields.JsonSchemaFormat(schema)


def _chat_tool(tool: FunctionTool) -> chat.FunctionTool:
    return chat.FunctionTool(
        function=chat.FunctionDefinition(
            name=tool.name,
            description=tool.description,
            parameters=tool.parameters,
            strict=tool.strict,
        )
    )


def _chat_tool_choice(
    choice: ToolChoice | None, remote: RemoteTools | None
) -> chat.ToolChoice | None:
    match choice:
        case FunctionChoice(name=name):
            return chat.NamedFunction(chat.FunctionName(name))
        case McpChoice():
            return _allowed("required", [choice], remote)
        case AllowedTools(mode=mode, tools=tools):
            return mode if mode == "none" else _allowed(mode, tools, remote)
    return choice


def _allowed(
    mode: Literal["auto", "required"],
    tools: Sequence[FunctionChoice | McpChoice],
    remote: RemoteTools | None,
) -> chat.AllowedToolsChoice:
    named: list[chat.NamedFunction | chat.NamedCustomTool] = []
    for tool in tools:
        names = [tool.name] if isinstance(tool, FunctionChoice) else []
        if isinstance(tool, McpChoice):
            names = [] if remote is None else remote.names(tool.server_label, tool.name)
            if not names:
                raise InvalidRequestError(
                    f"There is no such tool of {quoted(tool.server_label)}.", param="tool_choice"
                )
        named += [chat.NamedFunction(chat.FunctionName(name)) for name in names]
    return chat.AllowedToolsChoice(chat.AllowedTools(mode=mode, tools=named))


def client_name(name: str) -> str:
    """What a response calls a field that a chat calls ``name``."""
    head, _, rest = name.partition(".")
    first, bracket, _ = head.partition("[")
    if first == "tools" and rest.startswith("function"):
        rest = rest.removeprefix("function").removeprefix(".")
        return f"{head}.{rest}" if rest else head
    if first == "messages" and bracket:
        # Messages and items are numbered differently, so only the field can be named.
        return "input"
    if first == "response_format":
        return "text.format" + name.removeprefix("response_format").removeprefix(".json_schema")
    return _NAMES.get(name, name)
