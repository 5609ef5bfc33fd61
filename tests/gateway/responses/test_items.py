from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.errors import ApiError, InvalidRequestError, UnsupportedParameter
from gateway.prompts.messages import messages_for_template
from gateway.responses.compaction import opaque
from gateway.responses.items import (
    MAX_ITEMS,
    decode_input,
    messages_of,
    name_items,
    output_id,
    place_of,
    plain_items,
    token_of,
    without_oldest,
)
from gateway.schemas.responses import FunctionCallOutputItem, Item, ItemReference, MessageItem

CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "7"}


def raw(*items: object) -> list[msgspec.Raw]:
    return [msgspec.Raw(json.dumps(item).encode()) for item in items]


def items(*given: object) -> list[Item]:
    return plain_items(raw(*given))


def messages(*given: object, instructions: str | None = None) -> list[dict[str, Any]]:
    return messages_for_template(messages_of(instructions, items(*given), "input[{}]".format))


def test_a_text_is_a_message_of_the_user() -> None:
    assert decode_input("hi") == [MessageItem(role="user", content="hi")]


def test_types_may_be_left_out() -> None:
    given = decode_input(raw({"role": "user", "content": "x"}, {"id": "msg_1"}))
    assert isinstance(given[0], MessageItem)
    assert isinstance(given[1], ItemReference)


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "web_search_call"}, "input[1].type"),
        ({"type": "mcp_call"}, "input[1].server_label"),
        ({"role": "user"}, "input[1].content"),
        ({"role": "user", "content": [{"type": "odd"}]}, "input[1].content[0].type"),
        ({"role": "user", "content": "x", "odd": 1}, "input[1].odd"),
        (CALL | {"arguments": 3}, "input[1].arguments"),
        (CALL | {"namespace": "n"}, "input[1].namespace"),
        (CALL | {"caller": {"type": "program", "caller_id": "c"}}, "input[1].caller.type"),
        ("x", "input[1]"),
    ],
)
def test_errors_say_where(item: object, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        decode_input(raw({"role": "user", "content": "x"}, item))
    assert caught.value.param == param


def test_the_number_of_items_is_bounded() -> None:
    with pytest.raises(InvalidRequestError):
        decode_input(raw(*[CALL] * (MAX_ITEMS + 1)))


def test_ids_lead_back_to_their_response() -> None:
    named = name_items(items({"role": "user", "content": "x"}, CALL | {"id": "own"}, OUTPUT), "abc")
    assert [item.id for item in named] == ["msg_abc_i0", "own", "fco_abc_i2"]
    assert output_id("reasoning", "abc", 17) == "rs_abc_11"
    for item_id in ("msg_abc_i0", "fc_abc_0", output_id("message", "abc", 255)):
        assert token_of(item_id) == "abc"
    for foreign in ("", "own", "msg_", "msg_abc", "resp_abc_0", "msg__0"):
        assert token_of(foreign) is None


def test_what_is_kept_of_a_message_is_parts() -> None:
    given = items(*({"role": role, "content": "x"} for role in ("user", "developer", "assistant")))
    kept = name_items(given, "abc")
    parts = [{"type": "input_text", "text": "x"}] * 2
    said = {"type": "output_text", "text": "x", "annotations": [], "logprobs": []}
    assert [part for item in msgspec.to_builtins(kept) for part in item["content"]] == [
        *parts,
        said,
    ]
    assert name_items(kept, "def") == kept
    place = "input[{}]".format
    assert messages_of(None, kept, place) == messages_of(None, given, place)


@pytest.mark.parametrize(("content", "thought"), [(opaque("Hm, ü"), "Hm, ü"), ("gAAAA-x", None)])
def test_reasoning_without_its_text(content: str, thought: str | None) -> None:
    item = {"type": "reasoning", "summary": [], "encrypted_content": content}
    (message,) = messages(item, {"role": "assistant", "content": "No."})
    assert message.get("reasoning_content") == thought


def test_a_turn_with_calls() -> None:
    said = {"role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]}
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm"}]}
    assert messages(
        {"role": "user", "content": [{"type": "input_text", "text": t} for t in "ab"]},
        thought, said, CALL, CALL | {"call_id": "d"}, OUTPUT,
        instructions="Be kind.",
    ) == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "a\nb"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "reasoning_content": "Hm",
            "tool_calls": [
                {"id": call_id, "type": "function", "function": {"name": "f", "arguments": {}}}
                for call_id in "cd"
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "7"},
    ]  # fmt: skip


def test_calls_without_text_before_them() -> None:
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}]}
    (_, message) = messages({"role": "user", "content": "x"}, thought, CALL)
    assert message["content"] is None
    assert message["reasoning_content"] == "Hm"
    (_, message) = messages({"role": "user", "content": "x"}, CALL, thought, CALL)
    assert (len(message["tool_calls"]), message["reasoning_content"]) == (2, "Hm")
    # Thoughts are of the answer right after them.
    later = messages(thought, {"role": "user", "content": "x"}, CALL)
    assert not any("reasoning_content" in message for message in later)


def test_what_no_model_here_reads() -> None:
    for part in ({"type": "input_image", "image_url": "x"}, {"type": "input_file"}):
        with pytest.raises(UnsupportedParameter) as caught:
            messages({"role": "user", "content": [part]})
        assert caught.value.param == "input[0].content[0]"
        with pytest.raises(ApiError) as refused:
            messages(CALL, OUTPUT | {"output": [part]})
        assert refused.value.param == "input[1].output[0]"


def test_outputs_answer_calls() -> None:
    assert place_of(items(CALL, OUTPUT)) is None
    assert place_of(items(OUTPUT, CALL)) == 0
    assert place_of([*items(CALL), FunctionCallOutputItem(call_id="d", output="x")]) == 1


def test_the_oldest_are_left_out_with_what_needs_them() -> None:
    system = {"role": "system", "content": "s"}
    user, last = {"role": "user", "content": "u"}, {"role": "user", "content": "last"}
    given = items(system, user, CALL, OUTPUT, user, last)

    def left(number: int) -> list[Item]:
        return without_oldest(given, number)

    assert left(0) == given
    assert left(1) == [given[0], *given[2:]]
    assert left(2) == [given[0], *given[4:]]  # the call, and so its output
    assert left(4) == [given[0], given[5]]
    assert left(5) == left(99) == []
    assert without_oldest(items(CALL, OUTPUT), 1) == []
