from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.answers.chat import ChatEncoder
from gateway.answers.chunks import Head
from gateway.answers.turns import TurnEvents
from gateway.errors import EngineUnavailable
from gateway.generation.delta import Delta
from gateway.generation.events import Event, Text, as_sse
from gateway.generation.generation import usage_of
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
) -> ChatEncoder:
    head = Head(
        "chatcmpl-1", 1_700_000_000, model, has_usage=has_usage, is_obfuscated=is_obfuscated
    )
    return ChatEncoder(head, num_choices)


def data_of(events: Sequence[Event]) -> Any:
    (event,) = events
    assert event.type == ""
    assert b"\n" not in event.data
    return json.loads(event.data)


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
    around = chunks(num_choices=2, has_usage=True).text_form(index)
    assert around is not None
    piece = Text(orjson.dumps(text)[1:-1])
    (expected,) = chunks(num_choices=2, has_usage=True).delta(Delta(index, text))
    assert around.event(piece) == expected.data
    assert chunks(is_obfuscated=True).text_form(0) is None


def test_a_model_name_cannot_break_the_chunk() -> None:
    chunk = data_of(chunks(model='a"},{\n%s').delta(Delta(0, "x")))
    assert chunk["model"] == 'a"},{\n%s'


def test_the_service_tier_is_told_in_every_chunk_and_in_the_whole() -> None:
    head = Head("c", 1, "m", service_tier="default", has_usage=True)
    made = ChatEncoder(head)
    closing = made.closing(USAGE)[:1]
    for events in (made.opening(), made.delta(Delta(0, "x")), [made.heartbeat()], closing):
        assert data_of(events)["service_tier"] == "default"
    collected = ChatEncoder(head, metadata={"a": "b"})
    body = json.loads(collected.body(USAGE))
    assert (body["service_tier"], body["metadata"]) == ("default", {"a": "b"})
    assert "service_tier" not in data_of(chunks().opening())
    assert "service_tier" not in json.loads(completion().body(USAGE))


def test_all_chunks_share_their_head() -> None:
    made = chunks(has_usage=True)
    closing, done = made.closing(USAGE)
    heads = [
        {k: v for k, v in data_of(events).items() if k not in ("choices", "usage")}
        for events in (made.opening(), made.delta(Delta(0, "x")), [made.heartbeat()], [closing])
    ]
    assert heads == [heads[0]] * 4
    assert done == Event("", b"[DONE]")


def test_choices_open_in_order() -> None:
    events = chunks(num_choices=3).opening()
    opened = [json.loads(event.data)["choices"][0] for event in events]
    assert [choice["index"] for choice in opened] == [0, 1, 2]
    assert all(choice["delta"] == {"role": "assistant", "content": ""} for choice in opened)


def test_text_calls_and_the_end_may_come_together() -> None:
    calls = [call_begins(0, "f"), call_goes_on(0, '{"a"'), call_goes_on(0, ":1}")]
    delta = Delta(1, "Hm.", calls, "tool_calls")
    events = chunks(num_choices=2).delta(delta)
    choices = [json.loads(event.data)["choices"][0] for event in events]
    assert [choice["index"] for choice in choices] == [1, 1, 1]
    assert choices[0]["delta"] == {"content": "Hm."}
    (call,) = choices[1]["delta"]["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": '{"a":1}'}
    assert choices[2]["delta"] == {}
    assert [choice["finish_reason"] for choice in choices] == [None, None, "tool_calls"]


def test_each_chunk_holds_a_piece_of_one_call() -> None:
    calls = [call_goes_on(0, "1"), call_goes_on(0, "}"), call_begins(1, "g"), call_goes_on(1, "{")]
    events = chunks().delta(Delta(0, "", calls))
    pieces = [json.loads(event.data)["choices"][0]["delta"]["tool_calls"] for event in events]
    assert [[piece["index"] for piece in some] for some in pieces] == [[0], [1]]
    assert pieces[0][0]["function"] == {"arguments": "1}"}
    assert pieces[1][0]["function"] == {"name": "g", "arguments": "{"}


def test_padding_hides_how_long_the_text_is() -> None:
    sizes = set()
    for text in ("a", "three", "é" * 20):
        writer = chunks(is_obfuscated=True)
        (event,) = writer.delta(Delta(0, text))
        parsed = json.loads(event.data)
        assert parsed["choices"][0]["delta"] == {"content": text}
        assert isinstance(parsed["obfuscation"], str)
        sizes.add(len(as_sse(event)) % 64)
    assert sizes == {0}


def test_reasoning_logprobs_and_compliance_have_their_places() -> None:
    token = TokenLogprob("x", -0.5, [120], [])
    compliance = Compliance(unenforced=[], valid=True)
    delta = Delta(0, "x", (), "stop", reasoning="hm", logprobs=[token], compliance=compliance)
    events = chunks().delta(delta)
    first, second, last = (json.loads(event.data)["choices"][0] for event in events)
    assert first["delta"] == {"reasoning_content": "hm"}
    assert second["delta"] == {"content": "x"}
    assert second["logprobs"]["content"][0]["token"] == "x"
    assert last["structured_outputs"] == {"unenforced": [], "valid": True, "violations": []}
    collected = ChatEncoder(Head("c", 1, "m"))
    collected.add(delta)
    choice = json.loads(collected.body(USAGE))["choices"][0]
    assert choice["message"]["reasoning_content"] == "hm"
    assert choice["logprobs"]["content"][0]["bytes"] == [120]
    assert choice["structured_outputs"]["valid"]


def test_the_heartbeat_adds_nothing() -> None:
    (choice,) = data_of([chunks().heartbeat()])["choices"]
    assert choice["delta"] == {"content": ""}
    assert choice["finish_reason"] is None


def test_an_error_is_no_clean_end() -> None:
    assert data_of(chunks().failure(EngineUnavailable("gone"))) == {
        "error": {
            "message": "gone",
            "type": "server_error",
            "param": None,
            "code": "engine_unavailable",
        }
    }


def completion(num_choices: int = 1) -> ChatEncoder:
    return ChatEncoder(Head("chatcmpl-1", 1, "m"), num_choices)


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
    writer, frames = chunks(is_obfuscated=is_obfuscated), TurnEvents("t")
    for delta in deltas:
        for event in writer.delta(delta):
            chunk = json.loads(event.data)
            assert ("obfuscation" in chunk) == is_obfuscated
            (choice,) = chunk["choices"]
            sse.add(choice.pop("delta"), choice.pop("logprobs"))
            sse.finish_reason = choice.pop("finish_reason")
            if sse.finish_reason is not None and delta.compliance is not None:
                sse.compliance = choice.pop("structured_outputs")
            assert choice == {"index": 0}
        for event in frames.delta(delta):
            frame = json.loads(event.data)
            assert ("content" in frame) == bool(
                delta.content or not (delta.tool_calls or delta.reasoning)
            )
            socket.add(frame, frame.get("logprobs"))
        collected.add(delta)
    done = data_of(frames.closing(USAGE))
    socket.finish_reason, socket.compliance = done["finish_reason"], done.get("structured_outputs")
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
    assert chunks().closing(USAGE) == [Event("", b"[DONE]")]
