from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from engine.errors import QueueFull
from gateway.admission.request import in_the_clients_words
from gateway.errors import InvalidRequestError, Overloaded
from gateway.responses.fields import (
    chat_fields,
    check,
    client_name,
    decode_tools,
)
from gateway.responses.items import decode_input
from gateway.schemas.chat import ChatFields
from gateway.schemas.responses import Item, ItemReference, ResponseFields

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}


def fields(**given: Any) -> ResponseFields:
    return msgspec.json.decode(json.dumps({"input": "x", **given}), type=ResponseFields)


def chat(**given: Any) -> ChatFields:
    asked = fields(**given)
    check(asked)
    items: list[Item] = []
    for item in decode_input(asked.input or ""):
        assert not isinstance(item, ItemReference)
        items.append(item)
    return chat_fields(asked, decode_tools(asked.tools), items, num_own=len(items))


def test_every_field_goes_somewhere_or_is_refused() -> None:
    """What is added to the request is not forgotten here."""
    handled = {
        "model", "input", "instructions", "previous_response_id", "store", "include", "text",
        "tools", "tool_choice", "reasoning", "stream_options", "max_output_tokens",
        "max_tool_calls", "top_logprobs", "truncation", "prompt_cache_options",
        "prompt_cache_retention", "conversation",
    }  # fmt: skip
    from gateway.responses import fields as response_fields

    passed = {*response_fields._SAME, *response_fields.UNSUPPORTED}
    assert handled | passed == set(ResponseFields.__struct_fields__)
    assert not handled & passed


def test_fields_of_the_same_name() -> None:
    found = chat(
        temperature=0.5, seed=3, stop=["a"], top_k=2, logit_bias={"3": 1}, user="ann",
        metadata={"a": "b"}, parallel_tool_calls=False, service_tier="flex",
        structured_outputs={"regex": "a+"}, guided_json={"type": "object"},
    )  # fmt: skip
    assert (found.temperature, found.seed, found.stop, found.top_k) == (0.5, 3, ["a"], 2)
    assert (found.logit_bias, found.user, found.metadata) == ({"3": 1.0}, "ann", {"a": "b"})
    assert (found.parallel_tool_calls, found.service_tier) == (False, "flex")
    assert found.structured_outputs is not None
    assert found.structured_outputs.regex == "a+"
    assert json.loads(bytes(found.guided_json)) == {"type": "object"}


def test_fields_of_another_name() -> None:
    found = chat(
        max_output_tokens=7,
        reasoning={"effort": "low", "summary": "auto"},
        text={"verbosity": "low", "format": {"type": "json_object"}},
        include=["message.output_text.logprobs", "reasoning.encrypted_content"],
        top_logprobs=3,
        tools=[TOOL],
        tool_choice={"type": "function", "name": "f"},
    )
    assert found.max_completion_tokens == 7
    assert (found.reasoning_effort, found.verbosity) == ("low", "low")
    assert (found.logprobs, found.top_logprobs) == (True, 3)
    assert msgspec.to_builtins(found.response_format) == {"type": "json_object"}
    assert msgspec.to_builtins(found.tools) == [
        {
            "type": "function",
            "function": {"name": "f", "parameters": {"type": "object"}, "strict": True},
        }
    ]
    assert msgspec.to_builtins(found.tool_choice) == {"type": "function", "function": {"name": "f"}}


def test_a_choice_among_some_tools_says_auto_if_nothing_else() -> None:
    some = {"type": "allowed_tools", "tools": [{"type": "function", "name": "f"}]}
    found = msgspec.to_builtins(chat(tools=[TOOL], tool_choice=some).tool_choice)
    assert found["allowed_tools"]["mode"] == "auto"
    assert chat(tools=[TOOL], tool_choice=some | {"mode": "none"}).tool_choice == "none"


def test_a_choice_among_some_tools() -> None:
    allowed = {"type": "allowed_tools", "mode": "required"}
    found = chat(tools=[TOOL], tool_choice=allowed | {"tools": [{"type": "function", "name": "f"}]})
    assert msgspec.to_builtins(found.tool_choice) == {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "required",
            "tools": [{"type": "function", "function": {"name": "f"}}],
        },
    }


@pytest.mark.parametrize(
    ("param", "ours"),
    [
        ("max_completion_tokens", "max_output_tokens"),
        ("messages", "input"),
        ("messages[3].content", "input"),
        ("response_format.json_schema.name", "text.format.name"),
        ("response_format", "text.format"),
        ("tools[2].function.name", "tools[2].name"),
        ("tools[2].function", "tools[2]"),
        ("tools", "tools"),
        ("reasoning_effort", "reasoning.effort"),
        ("verbosity", "text.verbosity"),
        ("temperature", "temperature"),
    ],
)
def test_fields_of_chats_in_the_words_of_responses(param: str, ours: str) -> None:
    with pytest.raises(InvalidRequestError) as caught, in_the_clients_words(client_name):
        raise InvalidRequestError("x", param=param)
    assert caught.value.param == ours


def test_what_names_no_field_or_is_not_foreseen_passes() -> None:
    with pytest.raises(InvalidRequestError) as caught, in_the_clients_words(client_name):
        raise InvalidRequestError("x")
    assert caught.value.param is None
    with pytest.raises(ZeroDivisionError), in_the_clients_words(client_name):
        raise ZeroDivisionError
    with pytest.raises(Overloaded), in_the_clients_words(client_name):
        raise QueueFull


@pytest.mark.parametrize(
    ("num_own", "param"),
    [(2, "input[1].call_id"), (1, "input[0].call_id"), (0, "previous_response_id")],
)
def test_items_are_named_by_their_place_in_the_request(num_own: int, param: str) -> None:
    output = {"type": "function_call_output", "call_id": "c", "output": "x"}
    asked = fields(input=[{"role": "user", "content": "x"}, output])
    items: Any = decode_input(asked.input or "")
    with pytest.raises(InvalidRequestError) as caught:
        chat_fields(asked, [], items, num_own=num_own)
    assert caught.value.param == param


def test_an_error_in_the_words_of_responses_is_no_cycle() -> None:
    with pytest.raises(InvalidRequestError) as caught, in_the_clients_words(client_name):
        raise InvalidRequestError("x", param="messages")
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_a_message_that_begins_with_a_field_gets_its_name_in_a_response() -> None:
    with pytest.raises(InvalidRequestError) as caught, in_the_clients_words(client_name):
        raise InvalidRequestError(
            "max_completion_tokens must be at least 1.", param="max_completion_tokens"
        )
    assert caught.value.object().message == "max_output_tokens must be at least 1."


def test_too_many_tools_are_not_looked_at() -> None:
    with pytest.raises(InvalidRequestError, match="At most 128 tools") as caught:
        decode_tools([msgspec.Raw(b"{")] * 129)
    assert caught.value.param == "tools"
