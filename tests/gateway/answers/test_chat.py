from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.answers.chat import ChatChunks, ChatCompletion, TurnFrames
from gateway.errors import EngineUnavailable, Overloaded
from gateway.generation.delta import Delta
from gateway.generation.generation import usage_of
from gateway.generation.text_events import Text
from gateway.generation.token_logprobs import TokenLogprob
from gateway.parsers.base import call_begins, call_goes_on
from gateway.schemas.common import Compliance

USAGE = usage_of(prompt_tokens=9, cached_tokens=4, completion_tokens=2)


def chunks(
    *,
    num_choices: int = 1,
    has_usage: bool = False,
    model: str = "m",
    is_obfuscated: bool = False,
) -> ChatChunks:
    return ChatChunks(
        completion_id="chatcmpl-1",
        created=1_700_000_000,
        model=model,
        num_choices=num_choices,
        has_usage=has_usage,
        is_obfuscated=is_obfuscated,
    )


def data_of(event: bytes) -> Any:
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2
    return json.loads(event[6:])


@given(text=st.text(st.characters(exclude_categories=["Cs"])), has_usage=st.booleans())
def test_a_chunk_of_text_is_valid_whatever_the_text(text: str, has_usage: bool) -> None:
    chunk = data_of(chunks(has_usage=has_usage).delta(Delta(0, text)))
    (choice,) = chunk["choices"]
    assert choice == {
        "index": 0,
        "delta": {"content": text},
        "logprobs": None,
        "finish_reason": None,
    }
    assert ("usage" in chunk) == has_usage


@given(st.text(min_size=1), st.integers(0, 1))
def test_text_between_what_is_around_it_is_its_chunk(text: str, index: int) -> None:
    around = chunks(num_choices=2, has_usage=True).around_text(index)
    assert around is not None
    piece = Text(orjson.dumps(text)[1:-1])
    expected = chunks(num_choices=2, has_usage=True).delta(Delta(index, text))
    assert around.head + piece + around.tail == expected
    assert chunks(is_obfuscated=True).around_text(0) is None


def test_a_model_name_cannot_break_the_chunk() -> None:
    chunk = data_of(chunks(model='a"},{\n%s').delta(Delta(0, "x")))
    assert chunk["model"] == 'a"},{\n%s'


def test_the_service_tier_is_told_in_every_chunk_and_in_the_whole() -> None:
    common: dict[str, Any] = {"completion_id": "c", "created": 1, "model": "m", "num_choices": 1}
    made = ChatChunks(**common, has_usage=True, service_tier="default")
    closing = made.closing(USAGE).split(b"\n\n")[0] + b"\n\n"
    for event in (made.opening(), made.delta(Delta(0, "x")), made.heartbeat, closing):
        assert data_of(event)["service_tier"] == "default"
    collected = ChatCompletion(**common, service_tier="default", metadata={"a": "b"})
    body = json.loads(collected.body(USAGE))
    assert (body["service_tier"], body["metadata"]) == ("default", {"a": "b"})
    assert "service_tier" not in data_of(chunks().opening())
    assert "service_tier" not in json.loads(completion().body(USAGE))


def test_all_chunks_share_their_head() -> None:
    made = chunks(has_usage=True)
    closing, done = made.closing(USAGE).split(b"\n\n", 1)
    heads = [
        {k: v for k, v in data_of(event).items() if k not in ("choices", "usage")}
        for event in (made.opening(), made.delta(Delta(0, "x")), made.heartbeat, closing + b"\n\n")
    ]
    assert heads == [heads[0]] * 4
    assert done == b"data: [DONE]\n\n"


def test_choices_open_in_order() -> None:
    events = chunks(num_choices=3).opening().split(b"\n\n")[:-1]
    opened = [json.loads(event[6:])["choices"][0] for event in events]
    assert [choice["index"] for choice in opened] == [0, 1, 2]
    assert all(choice["delta"] == {"role": "assistant", "content": ""} for choice in opened)


def test_text_calls_and_the_end_may_come_together() -> None:
    calls = [call_begins(0, "f"), call_goes_on(0, '{"a"'), call_goes_on(0, ":1}")]
    delta = Delta(1, "Hm.", calls, "tool_calls")
    events = chunks(num_choices=2).delta(delta).split(b"\n\n")[:-1]
    choices = [json.loads(event[6:])["choices"][0] for event in events]
    assert [choice["index"] for choice in choices] == [1, 1, 1]
    assert choices[0]["delta"] == {"content": "Hm."}
    (call,) = choices[1]["delta"]["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": '{"a":1}'}
    assert choices[2]["delta"] == {}
    assert [choice["finish_reason"] for choice in choices] == [None, None, "tool_calls"]


def test_each_chunk_holds_a_piece_of_one_call() -> None:
    calls = [call_goes_on(0, "1"), call_goes_on(0, "}"), call_begins(1, "g"), call_goes_on(1, "{")]
    events = chunks().delta(Delta(0, "", calls)).split(b"\n\n")[:-1]
    pieces = [json.loads(event[6:])["choices"][0]["delta"]["tool_calls"] for event in events]
    assert [[piece["index"] for piece in some] for some in pieces] == [[0], [1]]
    assert pieces[0][0]["function"] == {"arguments": "1}"}
    assert pieces[1][0]["function"] == {"name": "g", "arguments": "{"}


def test_padding_hides_how_long_the_text_is() -> None:
    sizes = set()
    for text in ("a", "three", "é" * 20):
        writer = chunks(is_obfuscated=True)
        (event,) = writer.delta(Delta(0, text)).split(b"\n\n")[:-1]
        parsed = json.loads(event[6:])
        assert parsed["choices"][0]["delta"] == {"content": text}
        assert isinstance(parsed["obfuscation"], str)
        sizes.add((len(event) + 2) % 64)
    assert sizes == {0}


def test_reasoning_logprobs_and_compliance_have_their_places() -> None:
    token = TokenLogprob("x", -0.5, [120], [])
    compliance = Compliance(unenforced=[], valid=True)
    delta = Delta(0, "x", (), "stop", reasoning="hm", logprobs=[token], compliance=compliance)
    events = chunks().delta(delta).split(b"\n\n")[:-1]
    first, second, last = (json.loads(event[6:])["choices"][0] for event in events)
    assert first["delta"] == {"reasoning_content": "hm"}
    assert second["delta"] == {"content": "x"}
    assert second["logprobs"]["content"][0]["token"] == "x"
    assert last["structured_outputs"] == {"unenforced": [], "valid": True, "violations": []}
    collected = ChatCompletion(completion_id="c", created=1, model="m", num_choices=1)
    collected.add(delta)
    choice = json.loads(collected.body(USAGE))["choices"][0]
    assert choice["message"]["reasoning_content"] == "hm"
    assert choice["logprobs"]["content"][0]["bytes"] == [120]
    assert choice["structured_outputs"]["valid"]


def test_the_heartbeat_adds_nothing() -> None:
    (choice,) = data_of(chunks().heartbeat)["choices"]
    assert choice["delta"] == {"content": ""}
    assert choice["finish_reason"] is None


def test_an_error_is_no_clean_end() -> None:
    event = chunks().error(EngineUnavailable("gone"))
    assert data_of(event) == {
        "error": {
            "message": "gone",
            "type": "server_error",
            "param": None,
            "code": "engine_unavailable",
        }
    }


def completion(num_choices: int = 1) -> ChatCompletion:
    return ChatCompletion(completion_id="chatcmpl-1", created=1, model="m", num_choices=num_choices)


def test_a_completion_joins_its_deltas() -> None:
    made = completion(2)
    for delta in (
        Delta(1, "b"),
        Delta(0, "He"),
        Delta(0, "y"),
        Delta(1, "", (), "length"),
        Delta(0, "!", (), "stop"),
    ):
        made.add(delta)
    body = json.loads(made.body(USAGE))
    assert [choice["message"]["content"] for choice in body["choices"]] == ["Hey!", "b"]
    assert [choice["finish_reason"] for choice in body["choices"]] == ["stop", "length"]
    assert body["usage"]["total_tokens"] == 11
    assert "metadata" not in body


def test_a_completion_joins_calls() -> None:
    made = completion()
    made.add(Delta(0, "", [call_begins(0, "f"), call_goes_on(0, '{"a"')]))
    made.add(Delta(0, "", [call_goes_on(0, ":1}"), call_begins(1, "g")]))
    made.add(Delta(0, "", [call_goes_on(1, "{}")], "tool_calls"))
    message = json.loads(made.body(USAGE))["choices"][0]["message"]
    assert message["content"] is None
    functions = [call["function"] for call in message["tool_calls"]]
    assert functions == [
        {"name": "f", "arguments": '{"a":1}'},
        {"name": "g", "arguments": "{}"},
    ]


def test_an_empty_answer_is_an_empty_string() -> None:
    made = completion()
    made.add(Delta(0, "", (), "stop"))
    assert json.loads(made.body(USAGE))["choices"][0]["message"]["content"] == ""


class Reader:
    """Puts an answer together from its pieces, as a client does."""

    def __init__(self) -> None:
        self.content = self.reasoning = ""
        self.calls: list[dict[str, str]] = []
        self.logprobs: list[str] = []
        self.finish_reason: str | None = None
        self.compliance: object = None

    def add(self, piece: dict[str, Any], logprobs: dict[str, Any] | None) -> None:
        self.content += piece.get("content", "")
        self.reasoning += piece.get("reasoning_content", "")
        for call in piece.get("tool_calls", ()):
            if call["index"] == len(self.calls):
                self.calls.append(
                    {"id": call["id"], "name": call["function"]["name"], "arguments": ""}
                )
            self.calls[call["index"]]["arguments"] += call["function"].get("arguments", "")
        if logprobs is not None:
            assert logprobs["content"], "none are left out and not empty"
            self.logprobs += [one["token"] for one in logprobs["content"]]


@st.composite
def answers(draw: st.DrawFn) -> list[Delta]:
    """One choice's deltas, of which the last ends it."""
    made, num_calls = [], 0
    text = st.text('ab"\\é\n', max_size=3)
    for _ in range(draw(st.integers(0, 6))):
        calls = []
        for begins in draw(st.lists(st.booleans(), max_size=3)):
            if begins or not num_calls:
                calls.append(call_begins(num_calls, f"f{num_calls}"))
                num_calls += 1
            else:
                calls.append(call_goes_on(num_calls - 1, draw(text)))
        tokens = [TokenLogprob(token, -0.5, [1], []) for token in draw(st.lists(text, max_size=2))]
        delta = Delta(0, draw(text), calls, reasoning=draw(text), logprobs=tokens)
        if not delta.is_empty:
            made.append(delta)
    compliance = draw(st.sampled_from([None, Compliance(unenforced=[], valid=True)]))
    return [*made, Delta(0, draw(text), (), "stop", compliance=compliance)]


@given(answers(), st.booleans())
def test_streamed_whole_or_over_a_websocket_an_answer_is_the_same(
    deltas: list[Delta], is_obfuscated: bool
) -> None:
    sse, socket, collected = Reader(), Reader(), completion()
    writer, frames = chunks(is_obfuscated=is_obfuscated), TurnFrames("t")
    for delta in deltas:
        for event in writer.delta(delta).split(b"\n\n")[:-1]:
            chunk = json.loads(event[6:])
            assert ("obfuscation" in chunk) == is_obfuscated
            (choice,) = chunk["choices"]
            sse.add(choice.pop("delta"), choice.pop("logprobs"))
            sse.finish_reason = choice.pop("finish_reason")
            if sse.finish_reason is not None and delta.compliance is not None:
                sse.compliance = choice.pop("structured_outputs")
            assert choice == {"index": 0}
        frame = json.loads(frames.delta(delta))
        assert ("content" in frame) == bool(
            delta.content or not (delta.tool_calls or delta.reasoning)
        )
        socket.add(frame, frame.get("logprobs"))
        collected.add(delta)
    done = json.loads(frames.done("stop", USAGE, compliance=deltas[-1].compliance))
    socket.finish_reason, socket.compliance = "stop", done.get("structured_outputs")
    assert ("structured_outputs" in done) == (deltas[-1].compliance is not None)
    assert vars(sse) == vars(socket)
    (choice,) = json.loads(collected.body(USAGE))["choices"]
    message = choice.pop("message")
    assert message.pop("content") == (None if sse.calls and not sse.content else sse.content)
    if sse.reasoning:
        assert message.pop("reasoning_content") == sse.reasoning
    if sse.calls:
        functions = [call["function"] | {"id": call["id"]} for call in message.pop("tool_calls")]
        assert functions == sse.calls
    assert message == {"role": "assistant", "refusal": None}
    logprobs = choice.pop("logprobs")
    assert (logprobs is None) == (not sse.logprobs)
    if sse.logprobs:
        assert [one["token"] for one in logprobs["content"]] == sse.logprobs
    if sse.compliance is not None:
        assert choice.pop("structured_outputs") == sse.compliance
    assert choice == {"index": 0, "finish_reason": "stop"}
    assert sse.content == "".join(delta.content for delta in deltas)


def test_without_usage_the_end_is_the_last_word_alone() -> None:
    assert chunks().closing(USAGE) == b"data: [DONE]\n\n"


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
