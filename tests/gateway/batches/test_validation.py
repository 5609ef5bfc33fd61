"""The lines of a file, however it comes in pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from gateway.batches.validation import Validation

MOST = 6
"""Bytes of a line."""


class Pieces:
    """Stands for the files of a store."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    async def content(self, *_: object) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


class AnyBatch:
    tenant_id = input_file_id = None


@given(
    texts=st.lists(st.sampled_from([b"", b" ", b" \r", b"a", b"ab a", b"\xff", b"abcdefgh"])),
    cuts=st.lists(st.integers(0, 60)),
)
def test_lines_have_their_numbers_and_places(texts: list[bytes], cuts: list[int]) -> None:
    whole = b"\n".join(texts)
    places = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    pieces = [whole[start:end] for start, end in pairwise(places)]

    async def found() -> list[tuple[int, int, bytes, bool]]:
        files: Any = Pieces(pieces)
        texts = Validation(cast("Any", None), files, MOST)._texts(cast("Any", AnyBatch()))
        return [one async for one in texts]

    expected, start = [], 0
    for number, text in enumerate(texts, start=1):
        if text.strip():
            expected.append((number, text, start))
        start += len(text) + 1
    lines = asyncio.run(found())
    assert [number for number, *_ in lines] == [number for number, *_ in expected]
    for (_, at, text, is_too_long), (_, line, start) in zip(lines, expected, strict=True):
        assert is_too_long == (len(line) > MOST)
        if not is_too_long:
            assert (at, text) == (start, line)
