"""Translates the fields of a response into those of a chat, and errors in the other direction.

No field is accepted and ignored: one that the server cannot act on is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from gateway.admission import output_format, tool_use, unsupported
from gateway.errors import (
    ApiError,
    InvalidRequestError,
    UnsupportedParameter,
    quoted,
    to_api_error,
)
from gateway.responses.items import messages_of, place_of
from gateway.schemas.chat import ChatFields
from gateway.schemas.responses import (
    AllowedTools,
    FunctionChoice,
    FunctionTool,
    Item,
    JsonObjectFormat,
    JsonSchemaFormat,
    ResponseFields,
    TextFormat,
)
from gateway.schemas.sampling import SamplingFields
from gateway.transport import bodies
from grammar.spec import GrammarSpec

UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "access_programs": (),
    "context_management": (),
    "conversation": (),
    "image": (),
    "moderation": (),
    "prompt": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": ("in_memory",),
    "response_format": (),
}
"""Fields that are refused unless null or one of these values, at which they change nothing."""

LOGPROBS = "message.output_text.logprobs"
HARMLESS_INCLUDES = frozenset(
    {
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
    }
)
"""Values of ``include`` that change nothing: they concern items of kinds that this server does not
make, or encrypted reasoning, where this server returns reasoning in plain text.
"""

_PARAMS = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
}
"""The names that fields of a chat have in a response."""

_tool_decoder = msgspec.json.Decoder(FunctionTool)


class _Probe(msgspec.Struct):
    type: str


_probe = msgspec.json.Decoder(_Probe)


def check(fields: ResponseFields) -> None:
    """Raise ``InvalidRequestError`` naming a field that the server cannot act on."""
    unsupported.refuse(fields, UNSUPPORTED)
    for index, name in enumerate(fields.include or ()):
        if name not in HARMLESS_INCLUDES and name != LOGPROBS:
            raise UnsupportedParameter(
                f"{quoted(name)} cannot be included by this server.", param=f"include[{index}]"
            )
    if fields.max_tool_calls is not None and fields.max_tool_calls < 1:
        raise InvalidRequestError("Must be at least 1.", param="max_tool_calls")
    if fields.reasoning is not None:
        for name in ("summary", "generate_summary"):
            # "auto" asks for the best summary that there is, and there is none.
            if getattr(fields.reasoning, name) not in (None, "auto"):
                raise UnsupportedParameter(
                    "Reasoning is returned in full, not as a summary; leave this out.",
                    param=f"reasoning.{name}",
                )


def decode_tools(given: Sequence[msgspec.Raw] | None) -> list[FunctionTool]:
    """Decode tools. Raises ``ApiError`` naming the tool; hosted tools are refused by their type."""
    tools: list[FunctionTool] = []
    tool_use.check_number(given or ())  # before the work for each
    for index, raw in enumerate(given or ()):
        try:
            kind = bodies.decode(_probe, bytes(raw), what="tool").type
            if kind != "function":
                raise UnsupportedParameter(
                    f"Tools of type {quoted(kind)} are not hosted by this server.", param="type"
                )
            tools.append(bodies.decode(_tool_decoder, bytes(raw)))
        except ApiError as exc:
            path = f"tools[{index}]"
            param = path if exc.param is None else f"{path}.{exc.param}"
            raise type(exc)(exc.message, param=param, code=exc.code) from None
    return tools


def strict_by_default(tools: Sequence[FunctionTool]) -> list[FunctionTool]:
    """The tools, of which those without ``strict`` are made strict if their schema is within the
    strict subset, as OpenAI does in Responses. Whether it can be enforced is checked later."""
    return [
        msgspec.structs.replace(tool, strict=True)
        if tool.strict is None and _is_in_strict_subset(tool.parameters)
        else tool
        for tool in tools
    ]


def _is_in_strict_subset(schema: dict[str, Any] | None) -> bool:
    if schema is None:
        return False
    try:
        output_format.check_strict(GrammarSpec.from_schema(schema), "tools")
    except InvalidRequestError:
        return False
    return True


def chat_fields(
    fields: ResponseFields, tools: Sequence[FunctionTool], items: Sequence[Item]
) -> ChatFields:
    """The chat that a response asks for. ``items``: those of earlier responses, then its own.

    Raises ``ApiError`` with the names of Chat Completions, which ``in_our_words`` translates.
    """
    if (place := place_of(items)) is not None:
        raise InvalidRequestError(
            "There is no function call with this call_id before it.",
            param=f"input[{place}].call_id",
        )
    document: dict[str, Any] = {
        "messages": messages_of(fields.instructions, items),
        "max_completion_tokens": fields.max_output_tokens,
        "top_logprobs": fields.top_logprobs,
        "logprobs": has_logprobs(fields) or None,
        **{name: getattr(fields, name) for name in _SAME},
    }
    if fields.text is not None:
        document["verbosity"] = fields.text.verbosity
        if fields.text.format is not None:
            document["response_format"] = _response_format(fields.text.format)
    if fields.reasoning is not None:
        document["reasoning_effort"] = fields.reasoning.effort
    if fields.tools is not None:
        document["tools"] = [_chat_tool(tool) for tool in tools]
    if fields.tool_choice is not None:
        document["tool_choice"] = _chat_tool_choice(fields.tool_choice)
    data = msgspec.json.encode({k: v for k, v in document.items() if v is not None})
    chat = bodies.decode(_chat_decoder, data)
    sampling = {name: getattr(fields, name) for name in _SAMPLING}
    return msgspec.structs.replace(chat, **sampling)


def has_logprobs(fields: ResponseFields) -> bool:
    return LOGPROBS in (fields.include or ()) or bool(fields.top_logprobs)


_SAME = (
    "metadata",
    "parallel_tool_calls",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "chat_template_kwargs",
)
"""Fields that have the same name in a chat."""
_SAMPLING = tuple(name for name in SamplingFields.__struct_fields__ if name != "response_format")
_chat_decoder = msgspec.json.Decoder(ChatFields)


def _response_format(wanted: TextFormat | JsonObjectFormat | JsonSchemaFormat) -> dict[str, Any]:
    if not isinstance(wanted, JsonSchemaFormat):
        return {"type": wanted.__struct_config__.tag}
    schema = {
        "name": wanted.name,
        "schema": wanted.schema,
        "description": wanted.description,
        "strict": wanted.strict,
    }
    return {"type": "json_schema", "json_schema": schema}


def _chat_tool(tool: FunctionTool) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
    return {"type": "function", "function": function}


def _chat_tool_choice(choice: str | FunctionChoice | AllowedTools) -> object:
    match choice:
        case FunctionChoice(name=name):
            return {"type": "function", "function": {"name": name}}
        case AllowedTools(mode=mode, tools=tools):
            named = [{"type": "function", "function": {"name": tool.name}} for tool in tools]
            return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}}
        case _:
            return choice


@contextmanager
def in_our_words(*, num_earlier: int) -> Iterator[None]:
    """Let what fails name the fields of the response where it names those of a chat. Raises
    ``ApiError``.

    ``num_earlier``: the number of items before the request's own.
    """
    try:
        yield
    except ApiError as error:
        _rename(error, num_earlier)
        raise
    except Exception as exc:
        failed = to_api_error(exc)
        _rename(failed, num_earlier)
        raise failed from None


def _rename(error: ApiError, num_earlier: int) -> None:
    if error.param is None:
        return
    theirs = error.param
    head, dot, rest = error.param.partition(".")
    name, bracket, place = head.partition("[")
    if name == "tools" and rest.startswith("function"):
        rest = rest.removeprefix("function").removeprefix(".")
        error.param = f"{head}.{rest}" if rest else head
    elif name == "messages" and bracket:
        # Messages and items are numbered differently, so only the field can be named.
        error.param = "input"
    elif name == "response_format":
        error.param = "text.format" + error.param.removeprefix("response_format").removeprefix(
            ".json_schema"
        )
    elif name == "input" and bracket:
        own = int(place.partition("]")[0]) - num_earlier
        error.param = f"input[{own}]{dot}{rest}" if own >= 0 else "previous_response_id"
    else:
        error.param = _PARAMS.get(error.param, error.param)
        if error.message.startswith(f"{theirs} "):
            error.message = error.param + error.message.removeprefix(theirs)
