from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.errors import ApiError, PayloadTooLarge, UnsupportedParameter
from gateway.prompts.messages import messages_for_template
from gateway.schemas.chat import Message


def render(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return messages_for_template(msgspec.convert(list(messages), list[Message]))


def test_roles_and_names() -> None:
    assert render(
        {"role": "developer", "content": "d"},
        {"role": "system", "content": "s", "name": "n"},
        {"role": "user", "content": "u", "name": "Ann"},
        {"role": "assistant", "content": "a"},
        {"role": "tool", "content": "t", "tool_call_id": "c", "name": "f"},
    ) == [
        {"role": "system", "content": "d"},
        {"role": "system", "content": "s", "name": "n"},
        {"role": "user", "content": "u", "name": "Ann"},
        {"role": "assistant", "content": "a"},
        {"role": "tool", "content": "t", "tool_call_id": "c", "name": "f"},
    ]


def test_parts_stand_on_their_own_lines() -> None:
    hint = {"cache_control": {"type": "ephemeral"}}  # other APIs', which clients send to all
    parts = [{"type": "text", "text": "a"} | hint, {"type": "text", "text": "b"}]
    assert render({"role": "user", "content": parts})[0]["content"] == "a\nb"
    refusal = [{"type": "refusal", "refusal": "no"}]
    assert render({"role": "assistant", "content": refusal})[0]["content"] == "no"


def test_an_assistant_may_have_said_nothing() -> None:
    assert render({"role": "assistant"})[0] == {"role": "assistant", "content": ""}
    assert render({"role": "assistant", "refusal": "no"})[0]["content"] == "no"


def test_arguments_become_objects() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
    empty = {"id": "d", "function": {"name": "g", "arguments": ""}}
    (message,) = render({"role": "assistant", "content": None, "tool_calls": [call, empty]})
    assert message["content"] is None
    assert message["tool_calls"] == [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": [1]}}},
        {"id": "d", "type": "function", "function": {"name": "g", "arguments": {}}},
    ]


@pytest.mark.parametrize(
    "arguments", ['{"city": "Pa', "[" * 10_000, '{"half": "\\ud800"}', '{"a": NaN}']
)
def test_a_call_that_broke_off_does_not_end_the_conversation(arguments: str) -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    (message,) = render({"role": "assistant", "tool_calls": [call]})
    assert message["tool_calls"][0]["function"]["arguments"] == arguments


@pytest.mark.parametrize("value", ["1e300,", "[],", '"",'])
def test_the_arguments_of_all_calls_may_hold_as_much_as_a_body(value: str) -> None:
    text = f"[{value * 2000}0]"
    calls = [{"id": "c", "function": {"name": "f", "arguments": text}}] * 41
    assert render({"role": "assistant", "tool_calls": calls[:2]})
    with pytest.raises(PayloadTooLarge):
        render(*({"role": "assistant", "tool_calls": [call]} for call in calls))


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
def test_other_media_are_refused_by_name(kind: str) -> None:
    parts = [{"type": "text", "text": "see"}, {"type": kind, kind: {"url": "data:"}}]
    raw = msgspec.json.encode([{"role": "user", "content": parts}])
    with pytest.raises(UnsupportedParameter) as caught:
        messages_for_template(msgspec.json.decode(raw, type=list[Message]))
    assert caught.value.param == "messages[0].content[1]"
    assert kind in caught.value.message


def test_no_messages() -> None:
    with pytest.raises(ApiError) as caught:
        render()
    assert caught.value.param == "messages"


def test_harmony_gets_the_reasoning_before_a_call_as_one_text() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    given: list[dict[str, Any]] = [
        {"role": "assistant", "content": "Yes", "reasoning_content": "Hm."},
        {
            "role": "assistant",
            "content": "I look",
            "reasoning_content": "Hm.",
            "tool_calls": [call],
        },
        {"role": "assistant", "reasoning_content": "Hm.", "tool_calls": [call]},
    ]
    made = messages_for_template(msgspec.convert(given, list[Message]), "thinking")
    assert [(one["content"], one["thinking"]) for one in made] == [
        ("Yes", "Hm."),
        ("", "Hm.\nI look"),
        (None, "Hm."),
    ]
    assert not any("reasoning_content" in one for one in made)
