from __future__ import annotations

import json

import pytest

from gateway.answers.chunks import DONE, StreamEnds, obfuscated
from gateway.errors import EngineUnavailable
from gateway.generation.generation import usage_of


class Ends(StreamEnds):
    def __init__(self, *, has_usage: bool) -> None:
        self._head = b'data: {"choices":['
        self._has_usage = has_usage


@pytest.mark.parametrize("size", range(130))
def test_padding_hides_how_long_a_chunk_is(size: int) -> None:
    event = obfuscated(b'data: {"text":"%s"}\n\n' % (b"x" * size))
    assert len(event) % 64 == 0
    parsed = json.loads(event.removeprefix(b"data: "))
    assert parsed.pop("obfuscation").isascii()
    assert parsed == {"text": "x" * size}


def test_done_comes_last_and_usage_before_it_only_if_asked_for() -> None:
    usage = usage_of(prompt_tokens=3, cached_tokens=0, completion_tokens=4)
    assert Ends(has_usage=False).closing(usage) == DONE
    told, done, end = Ends(has_usage=True).closing(usage).split(b"\n\n")
    assert (done + b"\n\n", end) == (DONE, b"")
    assert json.loads(told.removeprefix(b"data: "))["usage"]["total_tokens"] == 7


def test_a_failed_stream_does_not_end_with_done() -> None:
    event = Ends(has_usage=True).error(EngineUnavailable("gone"))
    assert DONE not in event
    assert json.loads(event.removeprefix(b"data: "))["error"]["message"] == "gone"
