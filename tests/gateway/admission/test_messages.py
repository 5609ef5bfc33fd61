"""Anthropic's Messages in the words of Chat Completions."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.messages import of_messages
from gateway.admission.request import GenerationRequest
from gateway.errors import InvalidRequestError
from gateway.prompts.messages import messages_for_template
from gateway.schemas.chat import ChatFields
from gateway.schemas.messages import MessagesRequest
from gateway.schemas.output_format import JsonSchemaFormat
from tenants.names import MAX_NAME_LENGTH
from tests.gateway.admission.test_served_models import principal

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"name": "get_weather", "description": "Of a city.", "input_schema": SCHEMA}
HI = [{"role": "user", "content": "hi"}]
CALL = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oslo"}}
IMAGE = {"type": "image", "source": {"type": "url", "url": "https://a/b"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "7 degrees"}
CALLED: list[Any] = [*HI, {"role": "assistant", "content": [CALL]}]


class Model(msgspec.Struct, frozen=True):
    has_reasoning: bool = False
    can_switch_reasoning: bool = False


def read(model: Model | None = None, **fields: Any) -> GenerationRequest:
    body: dict[str, Any] = {"model": "tiny", "messages": HI, "max_tokens": 9, **fields}
    request = msgspec.json.decode(json.dumps(body), type=MessagesRequest)
    return of_messages(request, request_id=uuid4(), principal=principal(), model=model or Model())


def chat(model: Model | None = None, **fields: Any) -> ChatFields:
    found = read(model, **fields).fields
    assert isinstance(found, ChatFields)
    return found


def shown(*turns: Any, **fields: Any) -> list[dict[str, Any]]:
    return messages_for_template(chat(messages=[*turns], **fields).messages)


def test_a_whole_conversation() -> None:
    thought = {"type": "thinking", "thinking": "Oslo, then.", "signature": "x"}
    text = {"type": "text", "text": "I look.", "cache_control": {"type": "ephemeral"}}
    assert shown(
        {"role": "user", "content": "Weather?"},
        {"role": "user", "content": [{"type": "text", "text": "In Oslo."}]},
        {"role": "assistant", "content": [thought, text, CALL]},
        {"role": "user", "content": [RESULT, {"type": "text", "text": "And?"}]},
        system=[
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=0a1b2;"},
            {"type": "text", "text": "Be brief."},
            {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}},
        ],
    ) == [
        {"role": "system", "content": "Be brief.\nBe kind."},
        {"role": "user", "content": "Weather?\nIn Oslo."},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Oslo, then.",
            "tool_calls": [
                {
                    "id": "toolu_1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": {"city": "Oslo"}},
                }
            ],
        },
        {"role": "tool", "content": "7 degrees", "tool_call_id": "toolu_1"},
        {"role": "user", "content": "And?"},
    ]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"content": "a"}, "a"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "a\nb"),
        ({"content": "a", "is_error": True}, "Error: a"),
        ({}, ""),
    ],
)
def test_results_of_tools(content: dict[str, Any], text: str) -> None:
    result = {"type": "tool_result", "tool_use_id": "toolu_1", **content}
    assert shown(*CALLED, {"role": "user", "content": [result]})[-1]["content"] == text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [*HI, {"role": "assistant", "content": "The "}]}, "messages[1].content"),
        ({"messages": [*HI, {"role": "assistant", "content": []}]}, "messages[1].content"),
        ({"messages": [*HI, {"role": "assistant", "content": [CALL]}]}, "messages[1]"),
        (
            {"messages": [{"role": "user", "content": [RESULT]}]},
            "messages[0].content[0].tool_use_id",
        ),
        ({"messages": [{"role": "user", "content": [CALL]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "system", "content": [IMAGE]}]},
            "messages[0].content[0]",
        ),
        (
            {
                "messages": [
                    *CALLED,
                    {"role": "user", "content": [{**RESULT, "content": [{"type": "document"}]}]},
                ]
            },
            "messages[2].content[0].content[0]",
        ),
        ({"tools": [{"type": "web_search_20260318", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [{**TOOL, "allowed_callers": ["x"]}]}, "tools[0].allowed_callers"),
        ({"container": "c"}, "container"),
        ({"thread": {"type": "new"}}, "thread"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read(**fields)
    assert caught.value.param == param


def test_the_fields_have_their_places() -> None:
    fields = chat(
        tools=[{**TOOL, "type": "custom", "strict": True, "eager_input_streaming": True}],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        stop_sequences=["END"],
        temperature=0.5,
        top_k=3,
        metadata={"user_id": "u"},
        output_config={"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
        cache_control={"type": "ephemeral"},
    )
    (tool,) = msgspec.to_builtins(fields.tools)
    assert tool["function"] == {
        "name": "get_weather",
        "description": "Of a city.",
        "parameters": SCHEMA,
        "strict": True,
    }
    assert (fields.tool_choice, fields.parallel_tool_calls) == ("required", False)
    assert (fields.max_tokens, fields.stop, fields.temperature) == (9, ["END"], 0.5)
    assert (fields.top_k, fields.user, fields.reasoning_effort) == (3, "u", "low")
    assert isinstance(fields.response_format, JsonSchemaFormat)
    assert fields.response_format.json_schema.strict is True
    assert json.loads(bytes(fields.response_format.json_schema.schema)) == SCHEMA


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ({"type": "auto"}, None),
        ({"type": "none"}, "none"),
        ({"type": "any"}, "required"),
        ({"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_tool_choices(choice: dict[str, Any], wanted: object) -> None:
    assert msgspec.to_builtins(chat(tools=[TOOL], tool_choice=choice).tool_choice) == wanted


ENABLED = {"type": "enabled", "budget_tokens": 1024}
SWITCH, ALWAYS, NEVER = Model(True, True), Model(True, False), Model(False, False)


@pytest.mark.parametrize(
    ("model", "thinking", "effort", "shows", "ignored"),
    [
        (SWITCH, ENABLED, "high", None, ("thinking.budget_tokens",)),
        (SWITCH, {"type": "disabled"}, "none", False, ()),
        (SWITCH, {"type": "adaptive"}, None, None, ()),
        (ALWAYS, {"type": "adaptive", "display": "omitted"}, None, False, ()),
        (ALWAYS, {"type": "enabled"}, None, None, ()),
        (ALWAYS, {"type": "disabled"}, None, False, ("thinking",)),
        (NEVER, {"type": "disabled"}, None, False, ()),
        (NEVER, ENABLED, None, None, ("thinking.budget_tokens", "thinking")),
    ],
)
def test_thinking(
    model: Model,
    thinking: dict[str, Any],
    effort: str | None,
    shows: bool | None,
    ignored: tuple[str, ...],
) -> None:
    request = read(model, thinking=thinking)
    assert isinstance(request.fields, ChatFields)
    assert request.fields.reasoning_effort == effort
    assert request.fields.include_reasoning is shows
    assert request.ignored == ignored


def test_hints_are_listed_as_ignored() -> None:
    hints: dict[str, Any] = {
        "context_management": {"edits": []},
        "diagnostics": {},
        "speed": "fast",
    }
    assert read(**hints).ignored == tuple(hints)
    assert read(speed="standard").ignored == ()


def test_a_long_user_id_is_named_by_its_digest() -> None:
    """Claude Code's names machine, account and session."""
    long = "u" * (MAX_NAME_LENGTH + 1)
    name = chat(metadata={"user_id": long}).user
    assert name is not None
    assert name.startswith("sha256:")
    assert len(name) <= MAX_NAME_LENGTH
    assert chat(metadata={"user_id": long + "v"}).user != name


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("tools[3].function.parameters", "tools[3].input_schema"),
        ("tools[3].function.name", "tools[3].name"),
        ("tools", "tools"),
        ("tool_choice.function.name", "tool_choice.name"),
        ("messages[2].content", "messages"),
        ("stop", "stop_sequences"),
        ("max_tokens", "max_tokens"),
        ("response_format.json_schema.schema", "output_config.format.schema"),
        ("temperature", "temperature"),
    ],
)
def test_errors_name_the_clients_fields(ours: str, theirs: str) -> None:
    name = read().client_name
    assert name is not None
    assert name(ours) == theirs


BLOCKS = st.sampled_from(
    [
        {"type": "text", "text": "a"},
        {"type": "thinking", "thinking": "t"},
        {"type": "redacted_thinking", "data": "d"},
        CALL,
        RESULT,
        IMAGE,
        {"type": "document"},
        {"type": "tool_reference"},
    ]
)
ANY_TURNS = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "system"]),
            "content": st.lists(BLOCKS, max_size=4) | st.just("text"),
        }
    ),
    max_size=6,
)


@given(ANY_TURNS)
def test_any_turns_are_shown_in_their_order_or_refused_by_place(turns: list[Any]) -> None:
    found: list[dict[str, Any]] = []
    param: str | None = "messages"
    try:
        found = messages_for_template(chat(messages=turns).messages)
    except InvalidRequestError as error:
        param = error.param
    assert (param or "").startswith("messages")
    if not found:
        return
    # Only texts of users may be joined, and only a turn of results alone has no message of its own.
    said = [message["role"] for message in found if message["role"] != "tool"]
    asked = [
        turn["role"]
        for turn in turns
        if turn["role"] != "user"
        or isinstance(turn["content"], str)
        or any(block["type"] == "text" for block in turn["content"])
    ]
    assert [r for i, r in enumerate(asked) if r != "user" or i == 0 or asked[i - 1] != "user"] == [
        r for i, r in enumerate(said) if r != "user" or i == 0 or said[i - 1] != "user"
    ]
