from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import GenerationFailed, InvalidRequestError, RateLimited
from gateway.generation.delta import Delta
from gateway.generation.events import Event, Text
from gateway.generation.token_logprobs import TokenLogprob
from gateway.parsers.base import call_begins, call_goes_on
from gateway.responses.events import TEXT_DELTA, ResponseEvents, error_object
from gateway.schemas.common import CompletionTokensDetails, Compliance, PromptTokensDetails, Usage

USAGE = Usage(
    prompt_tokens=9,
    completion_tokens=4,
    total_tokens=13,
    prompt_tokens_details=PromptTokensDetails(cached_tokens=5),
    completion_tokens_details=CompletionTokensDetails(reasoning_tokens=2),
)


def make(*, status: str = "in_progress", is_obfuscated: bool = False) -> ResponseEvents:
    response: dict[str, Any] = {
        "id": "resp_abc",
        "status": status,
        "output": [],
        "usage": None,
    }
    return ResponseEvents(response, is_obfuscated=is_obfuscated)


def play(
    deltas: list[Delta], *, finish_reason: str | None = "stop", is_obfuscated: bool = False
) -> list[dict[str, Any]]:
    events = make(is_obfuscated=is_obfuscated)
    told = events.opening()
    for delta in deltas:
        told += events.delta(delta)
    events.finish_reason = finish_reason
    told += events.closing(USAGE)
    told.append(events.last())
    return decoded(told)


def decoded(told: list[Event]) -> list[dict[str, Any]]:
    found = [json.loads(event.data) for event in told]
    assert [event.type for event in told] == [event["type"] for event in found]
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_text() -> None:
    events = play([Delta(0, "Hé"), Delta(0, "llo"), Delta(0, finish_reason="stop")])
    assert types(events) == [
        "created", "in_progress", "output_item.added", "content_part.added",
        "output_text.delta", "output_text.delta", "output_text.done", "content_part.done",
        "output_item.done", "completed",
    ]  # fmt: skip
    assert events[4] == {
        "type": "response.output_text.delta",
        "sequence_number": 4,
        "item_id": "msg_abc_0",
        "output_index": 0,
        "content_index": 0,
        "delta": "Hé",
        "logprobs": [],
    }
    assert events[6]["text"] == "Héllo"
    response = events[-1]["response"]
    assert response["output"] == [events[8]["item"]]
    assert response["usage"] == {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 13,
    }


def test_reasoning_text_and_calls_are_items_of_their_own() -> None:
    events = play(
        [
            Delta(0, reasoning="Hm"),
            Delta(0, "Let me see.", reasoning="m."),
            Delta(0, tool_calls=[call_begins(0, "f"), call_goes_on(0, '{"a"')]),
            Delta(0, tool_calls=[call_goes_on(0, ":1}"), call_begins(1, "g")]),
            Delta(0, "after"),
        ]
    )
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == [
        "reasoning", "message", "function_call", "function_call", "message",
    ]  # fmt: skip
    assert [item["id"] for item in output] == [
        "rs_abc_0", "msg_abc_1", "fc_abc_2", "fc_abc_3", "msg_abc_4",
    ]  # fmt: skip
    assert output[0]["content"] == [{"type": "reasoning_text", "text": "Hmm."}]
    assert output[0]["summary"] == [{"type": "summary_text", "text": "Hmm."}]
    assert (output[2]["arguments"], output[3]["arguments"]) == ('{"a":1}', "")
    assert len({output[2]["call_id"], output[3]["call_id"]}) == 2
    done = [event for event in events if event["type"].endswith("arguments.done")]
    assert [event["name"] for event in done] == ["f", "g"]
    thoughts = [e for e in events if "reasoning_summary" in e["type"]]
    assert "".join(e.get("delta", "") for e in thoughts) == "Hmm."
    assert all("logprobs" not in e and e["summary_index"] == 0 for e in thoughts)


def test_an_answer_without_text_is_an_empty_message() -> None:
    for deltas in ([], [Delta(0, reasoning="Hm")]):
        output = play(deltas)[-1]["response"]["output"]
        assert output[-1]["content"][0]["text"] == ""
    assert play([], finish_reason=None)[-1]["response"]["output"] == []
    assert play([], finish_reason="length")[-1]["response"]["output"] == []


def test_ends() -> None:
    for reason, status, kind in (
        ("tool_calls", "completed", "completed"),
        ("length", "incomplete", "incomplete"),
        ("cancelled", "cancelled", "incomplete"),
    ):
        events = play([Delta(0, "x")], finish_reason=reason)
        response = events[-1]["response"]
        assert (types(events)[-1], response["status"]) == (kind, status)
        item = response["output"][0]["status"]
        assert item == ("completed" if status == "completed" else "incomplete")


def test_the_end_is_that_of_a_delta_and_stays() -> None:
    events = make()
    compliance = Compliance(unenforced=[], valid=True)
    told = events.opening()
    told += events.delta(Delta(0, "x", (), "length", compliance=compliance))
    told += [*events.delta(Delta(0, "")), *events.closing(USAGE), events.last()]
    response = decoded(told)[-1]["response"]
    assert response["status"] == "incomplete"
    assert response["structured_outputs"]["valid"] is True


def test_a_failure_keeps_what_was_said() -> None:
    events = make()
    told = [*events.opening(), *events.delta(Delta(0, "half"))]
    told += [*events.failure(GenerationFailed("gone")), events.last()]
    last = decoded(told)[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["output"][0]["content"][0]["text"] == "half"
    assert last["response"]["error"] == {"code": "server_error", "message": "gone"}
    assert error_object(RateLimited("x"))["code"] == "rate_limit_exceeded"
    assert error_object(InvalidRequestError("x"))["code"] == "invalid_prompt"


def test_one_in_the_background_is_queued_first() -> None:
    events = make(status="queued")
    opening = decoded(events.opening())
    assert types(opening) == ["created", "queued", "in_progress"]
    assert [e["response"]["status"] for e in opening] == ["queued", "queued", "in_progress"]


def test_heartbeats_are_numbered_too() -> None:
    events = make()
    told = events.opening()
    beat = events.heartbeat()
    assert beat is not None
    told += [beat, *events.delta(Delta(0, "x"))]
    assert types(decoded(told))[2] == "in_progress"


@pytest.mark.parametrize("fails", [False, True])
def test_no_heartbeat_comes_between_numbered_events_and_the_last_one(fails: bool) -> None:
    events = make()
    told = [*events.opening(), *events.delta(Delta(0, "x"))]
    told += events.failure(GenerationFailed("no")) if fails else events.closing(USAGE)
    assert events.heartbeat() is None
    decoded([*told, events.last()])


def text_data(events: ResponseEvents, text: Text) -> bytes | None:
    form = events.text_form(0)
    assert form is not None
    assert form.type == TEXT_DELTA
    return form.make(text)


@given(
    st.lists(
        st.tuples(st.sampled_from(["text", "known", "reasoning"]), st.text(min_size=1)), min_size=1
    )
)
def test_known_text_is_the_same_event(said: list[tuple[str, str]]) -> None:
    events, expected = make(), make()
    told, wanted = events.opening(), expected.opening()
    for kind, text in said:
        delta = Delta(0, reasoning=text) if kind == "reasoning" else Delta(0, text)
        wanted += expected.delta(delta)
        known = Text(orjson.dumps(text)[1:-1])
        if kind == "known" and (data := text_data(events, known)) is not None:
            told.append(Event(TEXT_DELTA, data))
        else:  # it opens a message
            told += events.delta(delta)
    events.finish_reason = expected.finish_reason = "stop"
    told += [*events.closing(USAGE), events.last()]
    wanted += [*expected.closing(USAGE), expected.last()]
    events.response["completed_at"] = expected.response["completed_at"]
    assert decoded(told[:-1]) == decoded(wanted[:-1])
    assert events.response == expected.response


def test_text_that_is_more_than_one_plain_event_is_left_to_delta() -> None:
    events, known = make(), Text(b"x")
    assert text_data(events, known) is None, "no message is open"
    events.delta(Delta(0, "x"))
    assert text_data(events, known) is not None
    events.delta(Delta(0, logprobs=[logprob("a")]))
    assert text_data(events, known) is None, "it takes these along"
    padded = make(is_obfuscated=True)
    assert padded.text_form(0) is None


def logprob(token: str) -> TokenLogprob:
    return TokenLogprob(token, -0.5, list(token.encode()), [])


def test_logprobs_wait_for_the_text_of_their_tokens() -> None:
    events = play(
        [
            Delta(0, logprobs=[logprob("a")]),
            Delta(0, "ab", logprobs=[logprob("b")]),
            Delta(0, logprobs=[logprob("c")]),
        ]
    )
    (delta,) = [event for event in events if event["type"].endswith("text.delta")]
    assert [one["token"] for one in delta["logprobs"]] == ["a", "b"]
    assert delta["logprobs"][0] == {
        "token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [],
    }  # fmt: skip
    part = events[-1]["response"]["output"][0]["content"][0]
    assert [one["token"] for one in part["logprobs"]] == ["a", "b", "c"]


@given(st.lists(st.text(min_size=1), min_size=1))
def test_padding_hides_the_length_of_texts(texts: list[str]) -> None:
    events = make(is_obfuscated=True)
    said = []
    for text in texts:
        for event in events.delta(Delta(0, text)):
            if event.type.endswith("delta"):
                assert len(event.data + b"\n\n") % 64 == 0
                said.append(json.loads(event.data)["delta"])
    assert said == texts


def test_a_lane_is_named_last_in_each_event_padding_or_not() -> None:
    for is_obfuscated in (False, True):
        events = make(is_obfuscated=is_obfuscated)
        events.set_lane("a")
        told = [*events.opening(), *events.delta(Delta(0, "x"))]
        if (form := events.text_form(0)) is not None:
            told.append(Event(form.type, form.make(Text(b"y")) or b""))
        assert all(event.data.endswith(b',"stream_id":"a"}') for event in told)
        assert all(event["stream_id"] == "a" for event in decoded(told))
