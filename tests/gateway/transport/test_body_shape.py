"""What is counted in the text of a document is what the document has, however it is cut."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import PayloadTooLarge
from gateway.transport import body_shape
from gateway.transport.body_shape import (
    MAX_CONTAINERS,
    MAX_EXPONENTS,
    MAX_STRINGS,
    MAX_VALUES,
    JsonCounts,
    check,
    cut,
)
from tests.gateway.engine_double import EngineDouble
from tests.gateway.raw_http import chat
from tests.gateway.serving import Gateway, chat_body
from tests.gateway.sockets.test_responses_session import connected as responses
from tests.gateway.ws_client import connected

TEXT = st.text(st.sampled_from('ab\\"{}[],:\n\té'), max_size=8)
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=30,
)


def counted(document: Any) -> tuple[int, int, int]:
    """Of a document: arrays and objects, quotation marks, commas."""
    if isinstance(document, str):
        return 0, 2, 0
    if not isinstance(document, dict | list):
        return 0, 0, 0
    inner = [*document, *document.values()] if isinstance(document, dict) else document
    containers, quotes, commas = 1, 0, max(len(document) - 1, 0)
    for value in inner:
        more = counted(value)
        containers, quotes, commas = containers + more[0], quotes + more[1], commas + more[2]
    return containers, quotes, commas


@given(DOCUMENTS, st.booleans(), st.lists(st.integers(1, 7), min_size=1))
def test_it_counts_what_there_is(document: Any, is_ascii: bool, sizes: list[int]) -> None:
    text = json.dumps(document, ensure_ascii=is_ascii).encode()
    counts = JsonCounts()
    counts._size = body_shape.FREE_BYTES  # short texts are counted, too
    start = 0
    while start < len(text):
        size = sizes[start % len(sizes)]
        counts.feed(text[start : start + size])
        start += size
    assert counts.found == counted(document)


FULL = {
    "arrays and objects": ("{},", MAX_CONTAINERS, MAX_CONTAINERS - 1),
    "strings": ('"ab",', MAX_STRINGS, MAX_STRINGS),
    "values": ("12,", MAX_VALUES, MAX_VALUES + 1),
    "numbers with an exponent": ("1234567890e200,1234567890E2,", MAX_EXPONENTS, MAX_EXPONENTS // 2),
}


@pytest.mark.parametrize("what", FULL)
def test_as_many_as_there_may_be(what: str) -> None:
    value, most, num = FULL[what]
    for more in (0, 1):
        text = f"[{(value * (num + more)).removesuffix(',')}]".encode()
        pieces = [*cut(text)]
        assert b"".join(pieces) == text
        if more:
            with pytest.raises(PayloadTooLarge, match=f"more than {most} {what}"):
                asyncio.run(check(text))
        else:
            asyncio.run(check(text))


def test_what_a_string_says_is_no_value() -> None:
    asyncio.run(check(json.dumps({"a": '[{"b": [1, 2e9]}, ' * 200_000}).encode()))


def test_words_have_no_exponent() -> None:
    asyncio.run(check(json.dumps([True, False, None, 0.5] * 100_000).encode()))


def test_a_short_text_is_not_counted() -> None:
    counts = JsonCounts()
    counts.feed(b"[" * body_shape.FREE_BYTES)
    assert counts.found == (0, 0, 0)
    with pytest.raises(PayloadTooLarge):
        counts.feed(b"[")


async def turns_beside(text: bytes) -> int:
    """How often others had their turn while ``text`` was counted."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    await check(text)
    beside.cancel()
    return turns


def test_others_have_their_turn_between_the_pieces() -> None:
    text = b'{"a":"%s"}' % (b"word " * 400_000)
    assert asyncio.run(turns_beside(text)) >= len(text) // body_shape.PIECE_BYTES


MANY: dict[str, Any] = {"stop": [[]] * (MAX_CONTAINERS + 1)}


@pytest.mark.asyncio
async def test_a_body_of_too_many_is_refused(gateway: Gateway, double: EngineDouble) -> None:
    answer = await chat(gateway, chat_body(**MANY))
    assert answer.status == 413
    assert "arrays and objects" in answer.error["message"]
    assert not double.requests


@pytest.mark.asyncio
async def test_a_message_of_too_many_is_refused_and_its_socket_goes_on(gateway: Gateway) -> None:
    headers = {"authorization": f"Bearer {gateway.api_key}"}
    async with connected(gateway, additional_headers=headers) as client:
        assert (await client.receive())["type"] == "ready"
        await client.chat("a", **MANY)
        (refusal,) = await client.turn("a")
        assert (refusal["type"], refusal["status"]) == ("error", 413)
        await client.chat("a")
        assert (await client.turn("a"))[-1]["type"] == "done"
    async with responses(gateway) as other:
        await other.create(**MANY)
        assert (await other.refusal())["status"] == 413
        await other.create()
        assert (await other.response())[-1]["type"] == "response.completed"
