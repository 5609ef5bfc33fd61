from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.answers.turns import TurnEvents
from gateway.errors import EngineUnavailable, Overloaded
from gateway.generation.delta import Delta
from gateway.generation.events import Event, Text
from gateway.generation.generation import usage_of
from gateway.parsers.base import call_begins, call_goes_on

USAGE = usage_of(prompt_tokens=3, cached_tokens=0, completion_tokens=4)


FIRST: dict[str, Any] = {"request_id": "r", "model": "m", "created": 1, "prompt_tokens": 3}


def decoded(events: list[Event]) -> dict[str, Any]:
    (event,) = events
    found: dict[str, Any] = json.loads(event.data)
    return found


@pytest.mark.parametrize("stream", [{}, {"stream_id": "s"}])
def test_the_first_event_names_the_stream_that_can_be_resumed(stream: dict[str, Any]) -> None:
    turn = TurnEvents("t")
    turn.begin(**FIRST, **stream)
    assert decoded(turn.opening()) == {"type": "started", "id": "t", "seq": 0, **FIRST, **stream}


def test_events_go_on_behind_those_that_were_read() -> None:
    form, text = TurnEvents("t", after_seq=4).text_form(0), Text(b"x")
    data = form.make(text)
    assert data is not None
    assert json.loads(data)["seq"] == 5
    assert form.at is not None
    assert form.at(text, 5) == data


def test_events_count_from_zero() -> None:
    turn = TurnEvents("t")
    turn.begin(**FIRST)
    made = [
        turn.opening(),
        turn.delta(Delta(0, "x")),
        turn.delta(Delta(0, "", [call_begins(0, "f")])),
        turn.delta(Delta(0, "y", [call_goes_on(0, "{}")])),
        turn.closing(USAGE),
    ]
    found = [decoded(events) for events in made]
    assert [event["seq"] for event in found] == [0, 1, 2, 3, 4]
    assert [event["type"] for event in found] == ["started", "delta", "delta", "delta", "done"]
    assert "content" not in found[2]
    assert found[3]["content"] == "y"
    assert found[3]["tool_calls"][0]["function"] == {"arguments": "{}"}


def test_an_end_without_a_reason_was_cancelled() -> None:
    turn = TurnEvents("t")
    assert decoded(turn.closing(USAGE))["finish_reason"] == "cancelled"
    assert turn.delta(Delta(0, finish_reason="length")) == [], "the end has an event of its own"
    assert decoded(turn.closing(USAGE))["finish_reason"] == "length"


@pytest.mark.parametrize("text", ["é", "\x00", '"\\', "\u2028"])
def test_an_event_holds_any_text(text: str) -> None:
    assert decoded(TurnEvents('t"').delta(Delta(0, text))) == {
        "type": "delta",
        "id": 't"',
        "seq": 0,
        "content": text,
    }


@given(st.text(min_size=1))
def test_the_event_of_text_alone_is_that_of_its_delta(text: str) -> None:
    piece = Text(orjson.dumps(text)[1:-1])
    (expected,) = TurnEvents("t").delta(Delta(0, text))
    assert TurnEvents("t").text_form(0).make(piece) == expected.data


def test_a_refused_turn_has_one_event() -> None:
    event = decoded(TurnEvents("t").failure(EngineUnavailable("gone")))
    assert event["seq"] == 0
    assert event["status"] == 503
    assert event["retryable"] is True
    assert "headers" not in event
    event = decoded(TurnEvents("t").failure(Overloaded("busy", retry_after_s=3)))
    assert event["headers"] == {"retry-after": "3"}
