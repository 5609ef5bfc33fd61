"""Calls of Mistral's models: an array after a tag, or, since 2025, one by one.

[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo"}}, ...]
[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]...
"""

from __future__ import annotations

from dataclasses import replace

from gateway.parsers.base import CallName, Event, MarkedParser, ToolFormat
from gateway.parsers.json_call import JsonCall, JsonObject

TAG = "[TOOL_CALLS]"
_AFTER_NAME = ("[ARGS]", "[CALL_ID]")


class _Calls:
    """A ``Region`` that decides by its first character which of the two notations follows."""

    def __init__(self) -> None:
        self._blanks = ""
        self._inner: _Array | _Single | None = None

    @property
    def closed(self) -> bool:
        return self._inner is not None and self._inner.closed

    @property
    def raw(self) -> str:
        return self._blanks + (self._inner.raw if self._inner is not None else "")

    def feed(self, text: str) -> int:
        if self._inner is not None:
            return self._inner.feed(text)
        rest = text.lstrip()
        num_blanks = len(text) - len(rest)
        self._blanks += text[:num_blanks]
        if not rest:
            return num_blanks
        self._inner = _Array() if rest[0] == "[" else _Single()
        return num_blanks + self._inner.feed(rest)

    def end(self) -> None:
        """Nothing to do: what is cut off was reported as it came."""

    def take(self) -> list[Event]:
        return [] if self._inner is None else self._inner.take()


class _Array:
    """``[{...}, {...}]``"""

    def __init__(self) -> None:
        self.closed = False
        self.raw = ""
        self._call: JsonCall | None = None
        self._found: list[Event] = []

    def feed(self, text: str) -> int:
        used = 0
        while used < len(text) and not self.closed:
            if self._call is None:
                used += self._between(text[used])
            else:
                used += self._call.feed(text[used:])
                self._found += self._call.take()
                if self._call.closed:
                    self._call = None
        self.raw += text[:used]
        return used

    def _between(self, char: str) -> bool:
        """Whether ``char`` is read."""
        if char == "{":
            self._call = JsonCall()
            return False
        if not char.isspace() and char not in "[,":
            self.closed = True  # by "]", or before text that belongs to no call
            return char == "]"
        return True

    def take(self) -> list[Event]:
        found, self._found = self._found, []
        return found


class _Single:
    """``name[ARGS]{...}``, with ``[CALL_ID]...`` between in some versions."""

    def __init__(self) -> None:
        self.closed = False
        self.raw = ""
        self._head = ""
        self._arguments: JsonObject | None = None
        self._found: list[Event] = []

    def feed(self, text: str) -> int:
        used = 0
        if self._arguments is None:
            head, brace, _ = text.partition("{")
            self._head += head
            used = len(head)
            if brace:
                self._begin()
        if self._arguments is not None and not self.closed:
            read = self._arguments.feed(text[used:])
            self._found.append(text[used : used + read])
            used += read
            self.closed = self._arguments.closed
        self.raw += text[:used]
        return used

    def _begin(self) -> None:
        name = self._head
        for mark in _AFTER_NAME:
            name = name.partition(mark)[0]
        self._arguments = JsonObject()
        if name := name.strip():
            self._found.append(CallName(name))
        else:
            self.closed = True

    def take(self) -> list[Event]:
        found, self._found = self._found, []
        return found


MISTRAL = ToolFormat(
    name="mistral",
    signs=(TAG,),
    make_parser=lambda schemas: MarkedParser(TAG, _Calls),
    marks=(TAG, *_AFTER_NAME),
    mark=TAG,
    opening=f"{TAG}[",
    begin='{"name": "%s", "arguments": ',
    end="}",
    separator=", ",
    closing="]",
)

MISTRAL_V11 = replace(MISTRAL, opening="", begin=f"{TAG}%s[ARGS]", end="", separator="", closing="")
