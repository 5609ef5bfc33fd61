from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import EngineUnavailable, Overloaded
from gateway.generation.delta import Delta
from gateway.generation.generation import usage_of
from gateway.generation.text_events import Text
from gateway.parsers.base import call_begins, call_goes_on
from gateway.sockets.frames import TurnFrames

USAGE = usage_of(prompt_tokens=3, cached_tokens=0, completion_tokens=4)


def test_the_first_frame_names_the_stream_that_can_be_resumed() -> None:
    first: dict[str, Any] = {"request_id": "r", "model": "m", "created": 1, "prompt_tokens": 3}
    frame = json.loads(TurnFrames("t").started(**first, stream_id="s"))
    assert frame == {"type": "started", "id": "t", "seq": 0, "stream_id": "s", **first}
    assert "stream_id" not in json.loads(TurnFrames("t").started(**first))


def test_frames_go_on_behind_those_that_were_read() -> None:
    frames, text = TurnFrames("t", after_seq=4), Text(b"x")
    assert json.loads(frames.text(text))["seq"] == 5
    assert frames.text_at(text, 5) == TurnFrames("t", after_seq=4).text(text)


def test_frames_count_from_zero() -> None:
    frames = TurnFrames("t")
    made = [
        frames.started(request_id="r", model="m", created=1, prompt_tokens=3),
        frames.delta(Delta(0, "x")),
        frames.delta(Delta(0, "", [call_begins(0, "f")])),
        frames.delta(Delta(0, "y", [call_goes_on(0, "{}")])),
        frames.done("stop", USAGE),
    ]
    decoded = [json.loads(frame) for frame in made]
    assert [frame["seq"] for frame in decoded] == [0, 1, 2, 3, 4]
    assert [frame["type"] for frame in decoded] == ["started", "delta", "delta", "delta", "done"]
    assert "content" not in decoded[2]
    assert decoded[3]["content"] == "y"
    assert decoded[3]["tool_calls"][0]["function"] == {"arguments": "{}"}


@pytest.mark.parametrize("text", ["", "é", "\x00", '"\\', "\u2028"])
def test_a_frame_holds_any_text(text: str) -> None:
    assert json.loads(TurnFrames('t"').delta(Delta(0, text))) == {
        "type": "delta",
        "id": 't"',
        "seq": 0,
        "content": text,
    }


@given(st.text(min_size=1))
def test_a_frame_of_text_alone_is_its_frame(text: str) -> None:
    piece = Text(orjson.dumps(text)[1:-1])
    assert TurnFrames("t").text(piece) == TurnFrames("t").delta(Delta(0, text))


def test_a_refused_turn_has_one_frame() -> None:
    frame = json.loads(TurnFrames("t").error(EngineUnavailable("gone")))
    assert frame["seq"] == 0
    assert frame["status"] == 503
    assert frame["retryable"] is True
    assert "headers" not in frame
    frame = json.loads(TurnFrames("t").error(Overloaded("busy", retry_after_s=3)))
    assert frame["headers"] == {"retry-after": "3"}
