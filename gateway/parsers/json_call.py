"""Parses a call that is one JSON object, ``{"name": ..., "arguments": {...}}``, as it comes.

The name is passed on as soon as it is complete, the arguments character by character.
"""

from __future__ import annotations

import json
from enum import Enum, auto

from gateway.parsers.base import CallName, Event, encodable
from gateway.parsers.json_strings import JsonStrings
from gateway.parsers.json_words import translate

_ARGUMENTS = frozenset({"arguments", "parameters"})
_KEYS = _ARGUMENTS | {"name", "type", "id"}


class _At(Enum):
    """Where in the call's object the scanner stands."""

    START = auto()  # before the brace
    KEY = auto()  # before a key, or between members
    COLON = auto()
    VALUE = auto()  # before a value
    INSIDE = auto()  # in a value
    END = auto()  # after the closing brace


class JsonCall:
    """A ``Region`` of one object; every character is looked at once.

    Strings are told from structure, so a closing tag inside a string is data. With a closing tag,
    whatever is no JSON leaves only that to be looked for; and if another object comes before it,
    that is another call, whose opening tag the model may have left out or may have said. Without
    one the region ends with the object, or where it turns out to be no call: at what is no JSON, or
    at a foreign key.
    """

    def __init__(self, close: str = "") -> None:
        self.closed = False
        self._close = close
        self._name: str | None = None
        self._has_begun = False
        self._seen: list[str] = []
        self._at = _At.START
        self._broken = False
        self._strings = JsonStrings()
        self._depth = 0  # of braces and brackets, the object's own included
        self._tag = 0  # characters of the closing tag matched so far
        self._key = ""
        self._text: list[str] = []  # of the key or value being read
        self._is_raw_arguments = False  # the value being read is passed on as it comes
        self._arguments: list[str] = []
        self._had_arguments = False
        self._earlier: list[Event] = []  # calls before this one, not taken yet

    @property
    def raw(self) -> str:
        return "".join(self._seen)

    def feed(self, text: str) -> int:
        """Read ``text`` up to the closing tag at most; returns how much was read."""
        used = 0
        for char in text:
            used += 1
            if self._strings.inside and not self._broken:
                self._string(char)
            elif self._close and self._closes(char):
                self.closed = True
            elif not self._broken:
                self._structure(char)
            if not self._close:
                self.closed = self._broken or self._at is _At.END
            if self.closed:
                self.end()
                break
        self._seen.append(text[:used])
        return used

    def take(self) -> list[Event]:
        """Nothing before the name is known."""
        taken, self._earlier = self._earlier, []
        if self._name is None:
            return taken
        if not self._has_begun:
            taken.append(CallName(self._name))
            self._has_begun = True
        if self._arguments:
            taken.append("".join(self._arguments))
            self._arguments.clear()
        return taken

    def end(self) -> None:
        """No more comes. A call without arguments has the empty object."""
        if self._at is _At.END and self._name is not None and not self._had_arguments:
            self._arguments.append("{}")
            self._had_arguments = True

    def _closes(self, char: str) -> bool:
        """Whether ``char`` completes the closing tag; outside strings a ``<`` is never JSON."""
        self._tag = self._tag + 1 if char == self._close[self._tag] else int(char == self._close[0])
        return self._tag == len(self._close)

    def _string(self, char: str) -> None:
        self._keep(char)
        self._strings.read(char)
        if not self._strings.inside and self._depth == 1:
            self._end_text()

    def _structure(self, char: str) -> None:
        if self._tag:
            return  # in what looks like the closing tag: _closes decides
        if self._at is _At.INSIDE:
            self._value(char)
        elif char.isspace():
            return
        elif self._at is _At.START and char == "{":
            self._depth, self._at = 1, _At.KEY
        elif self._at is _At.END:
            if char == "{":
                self._begin_another()
        elif self._at is _At.KEY and char == '"':
            self._begin_text(char)
            self._strings.read(char)
        elif self._at is _At.KEY and char == "}":
            self._depth, self._at = 0, _At.END
        elif self._at is _At.KEY and char == ",":
            return
        elif self._at is _At.COLON and char == ":":
            self._at = _At.VALUE
        elif self._at is _At.VALUE:
            self._is_raw_arguments = self._takes_arguments and char == "{"
            self._at = _At.INSIDE
            self._begin_text("")
            self._value(char)
        else:
            self._broken = True

    @property
    def _takes_arguments(self) -> bool:
        """Whether the member's value is the call's arguments: the first such member's is."""
        return self._key in _ARGUMENTS and not self._had_arguments

    def _begin_another(self) -> None:
        self.end()
        self._earlier = self.take()
        self._name, self._has_begun = None, False
        self._had_arguments = False
        self._depth, self._at = 1, _At.KEY

    def _value(self, char: str) -> None:
        if self._depth == 1 and char in ",}":  # ends a number or a word
            self._end_text()
            if not self._broken:
                self._structure(char)
            return
        self._keep(char)
        self._strings.read(char)
        if char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            if self._depth == 1:
                self._end_text()

    def _begin_text(self, char: str) -> None:
        self._text = [char]

    def _keep(self, char: str) -> None:
        if self._is_raw_arguments:
            self._had_arguments = True
            self._arguments.append(char)
        else:
            self._text.append(char)

    def _end_text(self) -> None:
        """A key or a value of the object is complete."""
        if self._is_raw_arguments:
            self._is_raw_arguments = False
            self._at = _At.KEY
            return
        raw = "".join(self._text)
        try:
            text = json.loads(translate(raw))
        except (ValueError, RecursionError):
            self._malformed(raw)
            return
        if self._at is _At.KEY:
            self._key, self._at = text, _At.COLON
            self._broken = not self._close and text not in _KEYS
            return
        self._at = _At.KEY
        if self._key == "name" and isinstance(text, str) and text:
            self._name = encodable(text)
        elif self._takes_arguments and text is not None:
            self._had_arguments = True
            # Some models write the object as text within the text.
            self._arguments.append(encodable(text) if isinstance(text, str) else raw)

    def _malformed(self, raw: str) -> None:
        """A key or a value is no JSON. As arguments it is still what the model wrote; and a value
        that nobody reads does not matter."""
        if self._at is _At.KEY or self._key == "name":
            self._broken = True
            return
        self._at = _At.KEY
        if self._takes_arguments:
            self._had_arguments = True
            self._arguments.append(raw)


class JsonObject:
    """The characters of one object, from its opening brace to its closing one."""

    def __init__(self) -> None:
        self.closed = False
        self._depth = 0
        self._strings = JsonStrings()

    def feed(self, text: str) -> int:
        """Read up to the object's end at most; returns how much was read."""
        for used, char in enumerate(text, 1):
            if self._strings.read(char):
                continue
            if char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.closed = True
                    return used
        return len(text)
