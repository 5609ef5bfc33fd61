from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from openai.types import Completion

from gateway.answers.chunks import DONE, Head
from gateway.answers.completions import TextEncoder
from gateway.errors import EngineUnavailable
from gateway.generation.delta import Delta
from gateway.generation.events import Event, Text
from gateway.generation.generation import usage_of
from gateway.prompts.prompt import Echo
from gateway.schemas.common import Compliance

USAGE = usage_of(prompt_tokens=3, cached_tokens=1, completion_tokens=2)


def chunks(*echoes: str, has_usage: bool = False) -> TextEncoder:
    head = Head("cmpl-1", 7, "m", has_usage=has_usage)
    return TextEncoder(head, [Echo(text) for text in echoes or ("",)])


def parse(events: Sequence[Event]) -> list[Any]:
    return [json.loads(event.data) for event in events]


def test_the_exact_bytes_of_a_chunk() -> None:
    (event,) = chunks().delta(Delta(0, 'a"\n'))
    assert event.data == (
        b'{"id":"cmpl-1","object":"text_completion","created":7,"model":"m",'
        b'"system_fingerprint":null,"choices":[{"index":0,"text":"a\\"\\n","logprobs":null,'
        b'"finish_reason":null}]}'
    )


def test_text_between_what_is_around_it_is_its_chunk() -> None:
    made = chunks("", "q", has_usage=True)
    around = made.text_form(1)
    assert around is not None
    assert [around.event(Text(b"a b"))] == [event.data for event in made.delta(Delta(1, "a b"))]


def test_only_echoed_prompts_open_a_stream() -> None:
    assert chunks().opening() == []
    events = parse(chunks("", "b", "c").opening())
    assert [event["choices"][0] for event in events] == [
        {"index": index, "text": text, "logprobs": None, "finish_reason": None}
        for index, text in ((1, "b"), (2, "c"))
    ]


def test_the_last_text_and_the_reason_are_one_event() -> None:
    compliance = Compliance(unenforced=[], valid=True)
    (event,) = parse(chunks("", "").delta(Delta(1, "x", (), "length", compliance=compliance)))
    (choice,) = event["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("x", "length")
    assert choice["structured_outputs"] == msgspec.to_builtins(compliance)
    Completion.model_validate(event)


def test_usage_is_the_last_chunk_and_null_before() -> None:
    writer = chunks(has_usage=True)
    assert parse(writer.delta(Delta(0, "x")))[0]["usage"] is None
    *closing, done = writer.closing(USAGE)
    assert done == DONE
    (last,) = parse(closing)
    assert last["choices"] == []
    assert last["usage"] == msgspec.to_builtins(USAGE)
    assert chunks().closing(USAGE) == [DONE]


def test_heartbeats_and_errors() -> None:
    (beat,) = parse([chunks("echoed").heartbeat()])
    assert beat["choices"][0]["text"] == ""
    (event,) = parse(chunks().failure(EngineUnavailable("gone")))
    assert event["error"]["message"] == "gone"


def test_collecting() -> None:
    completion = chunks("p", "q")
    for delta in (Delta(1, "a"), Delta(0, "b"), Delta(1, "c", (), "stop"), Delta(0, "", (), "x")):
        completion.add(delta)
    body = json.loads(completion.body(USAGE))
    assert body["object"] == "text_completion"
    assert [choice["text"] for choice in body["choices"]] == ["pb", "qac"]
    assert [choice["finish_reason"] for choice in body["choices"]] == ["x", "stop"]
    assert body["usage"]["total_tokens"] == 5
