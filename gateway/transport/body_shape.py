"""Limits how many values a JSON text has, by counting them before it is decoded.

A decoder holds the GIL until it is done, so it stops the event loop even from another thread. Four
megabytes of ``[],[],[]`` make a million objects, which takes seconds. Within these limits a text
takes about 20 ms. It is counted in pieces, between which the event loop runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from engine.garbage import received
from gateway.errors import PayloadTooLarge

FREE_BYTES = 32_768
"""Texts of up to this size are not counted, because they cannot have too many values."""
PIECE_BYTES = 65_536
"""The size of a piece, which takes about a millisecond to count."""
MAX_CONTAINERS = 16_384
"""The most arrays and objects."""
MAX_STRINGS = 81_920
"""The most strings, including the names of fields."""
MAX_VALUES = 524_288
"""The most commas between values of any kind, such as the token ids of a prompt."""
MAX_EXPONENTS = 4096
"""The most numbers such as ``1e300``, of which msgspec reads no more than a hundred thousand in a
second."""


class JsonCounts:
    """Counts the values of a text that comes in pieces. The counts of a text that is not JSON have
    no meaning."""

    def __init__(self, max_containers: int = MAX_CONTAINERS) -> None:
        self._max_containers = max_containers
        self._early: list[bytes] = []  # pieces that are counted once there are FREE_BYTES
        self._size = 0
        self._in_string = False
        self._carry = b""
        """A backslash at the end of a piece, which escapes the first character of the next."""
        self._quotes = self._containers = self._commas = self._exponents = 0

    def feed(self, piece: bytes) -> None:
        """Count a piece. Raises ``PayloadTooLarge``."""
        self._size += len(piece)
        received.add(len(piece))
        if self._size <= FREE_BYTES:
            self._early.append(piece)
            return
        if self._early:
            piece = b"".join((*self._early, piece))
            self._early = []
        self._count(piece)

    @property
    def found(self) -> tuple[int, int, int]:
        """The number of arrays and objects, of quotation marks, and of commas between values."""
        return self._containers, self._quotes, self._commas

    def _count(self, piece: bytes) -> None:
        """Count a piece of a text that is not short. Raises ``PayloadTooLarge``."""
        piece = self._carry + piece
        self._carry = b"\\" if _ends_in_escape(piece) else b""
        piece = piece.removesuffix(self._carry)
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"')
        outside = b"".join(parts[self._in_string :: 2])
        self._quotes += len(parts) - 1
        self._in_string ^= len(parts) % 2 == 0
        self._containers += outside.count(b"[") + outside.count(b"{")
        self._commas += outside.count(b",")
        # Beside exponents, only ``true`` and ``false`` have this letter.
        self._exponents += outside.count(b"E") + outside.count(b"e")
        self._exponents -= outside.count(b"ue") + outside.count(b"se")
        _check(self._containers, self._max_containers, "arrays and objects")
        _check(self._quotes // 2, MAX_STRINGS, "strings")
        _check(self._commas, MAX_VALUES, "values")
        _check(self._exponents, MAX_EXPONENTS, "numbers with an exponent")

    def count_text(self, text: bytes) -> None:
        """Count a whole text, whatever its size, with those before it. Raises
        ``PayloadTooLarge``."""
        for piece in cut(text):
            self._count(piece)
        self._in_string, self._carry = False, b""


async def check(text: bytes) -> None:
    """Count a whole text. Raises ``PayloadTooLarge``."""
    if len(text) <= FREE_BYTES:
        return
    counts = JsonCounts()
    for piece in cut(text):
        counts.feed(piece)
        await asyncio.sleep(0)


def cut(text: bytes) -> Iterator[bytes]:
    """The text in pieces of ``PIECE_BYTES``."""
    for start in range(0, len(text), PIECE_BYTES):
        yield text[start : start + PIECE_BYTES]


def _ends_in_escape(piece: bytes) -> bool:
    return (len(piece) - len(piece.rstrip(b"\\"))) % 2 == 1


def _check(count: int, most: int, what: str) -> None:
    if count > most:
        raise PayloadTooLarge(
            f"The body has more than {most} {what}.", headers={"connection": "close"}
        )
