"""A region that is parsed in blocks, from one mark to the next."""

from __future__ import annotations

from abc import ABC, abstractmethod

from gateway.parsers.base import Event


class BlockRegion(ABC):
    """A ``Region`` that keeps the text that it cannot parse yet.

    Subclasses implement ``_step``, which parses one block off ``_rest``, with the help of
    ``_before``. Every character is searched once for each mark, however the text is split.
    """

    def __init__(self) -> None:
        self.closed = False
        self.raw = ""
        self._rest = ""
        self._searched = 0
        self._found: list[Event] = []

    @abstractmethod
    def _step(self) -> bool:
        """Parse one block; False if that needs more text."""

    def feed(self, text: str) -> int:
        self._rest += text
        while not self.closed and self._step():
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
