"""A region that is parsed in blocks, from one mark to the next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from gateway.parsers.base import Event
from gateway.parsers.json_call import JsonObject


class BlockRegion(ABC):
    """A ``Region`` that keeps the text that it cannot parse yet.

    ``_read`` parses one block off ``_rest``, with the help of ``_before``; it returns False if that
    needs more text. Subclasses implement ``_begin``, which reads the first block, and set ``_read``
    to what reads the next one. Every character is searched once for each mark, however the text is
    split.
    """

    def __init__(self) -> None:
        self.closed = False
        self.raw = ""
        self._rest = ""
        self._searched = 0
        self._found: list[Event] = []
        self._read: Callable[[], bool] = self._begin

    @abstractmethod
    def _begin(self) -> bool:
        """As ``_read``."""

    def feed(self, text: str) -> int:
        self._rest += text
        while not self.closed and self._read():
            pass
        used = len(text)
        if self.closed:
            used -= len(self._rest)
        self.raw += text[:used]
        return used

    def end(self) -> None:  # noqa: B027 (most regions have nothing to do)
        """End the region, because the model's text has ended within it."""

    def take(self) -> list[Event]:
        found, self._found = self._found, []
        return found

    def _before(self, *marks: str) -> tuple[str, str] | None:
        """The text before the first of ``marks``, and that mark; both are removed. None if there is
        none yet."""
        longest = max(map(len, marks))
        start = max(0, self._searched - longest + 1)
        found = [(at, mark) for mark in marks if (at := self._rest.find(mark, start)) >= 0]
        if not found:
            self._searched = len(self._rest)
            return None
        at, mark = min(found)
        text = self._rest[:at]
        self._rest = self._rest[at + len(mark) :]
        self._searched = 0
        return text, mark


class CallRegion(BlockRegion):
    """A region of calls whose arguments are JSON. Set ``_arguments`` before ``_in_arguments``;
    subclasses implement ``_tail``, which reads what follows them."""

    def __init__(self) -> None:
        super().__init__()
        self._arguments = JsonObject()

    def _in_arguments(self) -> bool:
        used = self._arguments.feed(self._rest)
        self._found.append(self._rest[:used])
        self._rest = self._rest[used:]
        if self._arguments.closed:
            self._read = self._tail
        return self._arguments.closed

    @abstractmethod
    def _tail(self) -> bool:
        """As ``_read``."""
