from __future__ import annotations

import json

import pytest

from gateway.answers.chunks import DONE, CompletionEncoder, Head, obfuscated
from gateway.errors import EngineUnavailable
from gateway.generation.events import Event, as_sse
from gateway.generation.generation import usage_of


def encoder(*, has_usage: bool) -> CompletionEncoder:
    return CompletionEncoder(Head("c", 1, "m", has_usage=has_usage), ("body", "chunk"))


@pytest.mark.parametrize("size", range(130))
def test_padding_hides_how_long_a_chunk_is(size: int) -> None:
    data = obfuscated(b'{"text":"%s"}' % (b"x" * size), num_around=len("data: \n\n"))
    assert len(as_sse(Event("", data))) % 64 == 0
    parsed = json.loads(data)
    assert parsed.pop("obfuscation").isascii()
    assert parsed == {"text": "x" * size}


def test_done_comes_last_and_usage_before_it_only_if_asked_for() -> None:
    usage = usage_of(prompt_tokens=3, cached_tokens=0, completion_tokens=4)
    assert encoder(has_usage=False).closing(usage) == [DONE]
    told, done = encoder(has_usage=True).closing(usage)
    assert done == DONE
    assert json.loads(told.data)["usage"]["total_tokens"] == 7


def test_a_failed_stream_does_not_end_with_done() -> None:
    (event,) = encoder(has_usage=True).failure(EngineUnavailable("gone"))
    assert json.loads(event.data)["error"]["message"] == "gone"
