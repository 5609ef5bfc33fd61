"""Calls as Hermes, Qwen and the demo model write them.

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Oslo"}}
    </tool_call>

The name is passed on as soon as it is complete, the arguments character by character. White space
around a call is layout and is dropped. A call whose JSON breaks before its name was known is given
back as text, so that nothing the model said is lost.
"""

from __future__ import annotations

import json
from enum import Enum, auto

from gateway.parsers.base import Parsed, ToolCallDelta, call_begins, call_goes_on

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


class HermesParser:
    """A ``ToolParser``."""

    def __init__(self) -> None:
        self.num_calls = 0
        self._held = ""  # text that may turn out to be layout, or the beginning of a tag
        self._call: _Call | None = None
        self._after_call = False  # nothing but layout since the last call
        self._has_spoken = False

    def push(self, text: str) -> Parsed:
        if self._is_plain(text):
            self._has_spoken = True
            return text, []
        said: list[str] = []
        calls: list[ToolCallDelta] = []
        while text:
            if self._call is None:
                text = self._read_text(text, said)
            else:
                text = self._read_call(text, said, calls)
        return "".join(said), calls

    def finish(self) -> Parsed:
        if self._call is None:
            held, self._held = self._held, ""
            return ("" if self._after_call and held.isspace() else held), []
        said: list[str] = []
        calls: list[ToolCallDelta] = []
        self._end_call(self._call, said, calls, closed=False)
        return "".join(said), calls

    def _is_plain(self, text: str) -> bool:
        """Whether ``text`` can be passed on as it is: the usual case, and the fast one."""
        return (
            self._call is None
            and not self._held
            and not self._after_call
            and text != ""
            and "<" not in text
            and not text[-1:].isspace()
        )

    def _read_text(self, text: str, said: list[str]) -> str:
        """Read up to the next call; returns what follows its opening tag."""
        text = self._held + text
        start = text.find(OPEN)
        if start >= 0:
            self._say(text[:start].rstrip(), said)
            self._held = ""
            self._call = _Call()
            return text[start + len(OPEN) :]
        free = len(text) - _overlap(text, OPEN)
        free = len(text[:free].rstrip())
        self._say(text[:free], said)
        self._held = text[free:]
        return ""

    def _say(self, text: str, said: list[str]) -> None:
        """``text`` ends in no white space."""
        if self._after_call and not self._has_spoken:
            text = text.lstrip()
        if text:
            self._after_call = False
            self._has_spoken = True
            said.append(text)

    def _read_call(self, text: str, said: list[str], calls: list[ToolCallDelta]) -> str:
        """Read within a call; returns what follows its closing tag."""
        call = self._call
        assert call is not None
        used = call.feed(text)
        if call.closed:
            self._end_call(call, said, calls, closed=True)
        else:
            self._pass_on(call, calls)
        return text[used:]

    def _pass_on(self, call: _Call, calls: list[ToolCallDelta]) -> None:
        if call.name is None:
            return
        if call.index is None:
            call.index = self.num_calls
            self.num_calls += 1
            calls.append(call_begins(call.index, call.name))
        if fragment := call.take_arguments():
            calls.append(call_goes_on(call.index, fragment))

    def _end_call(
        self, call: _Call, said: list[str], calls: list[ToolCallDelta], *, closed: bool
    ) -> None:
        self._call = None
        call.end()
        self._pass_on(call, calls)
        if call.index is not None:
            self._after_call = True
        else:
            said.append(f"{OPEN}{call.raw}{CLOSE if closed else ''}")


class _At(Enum):
    """Where in the call's object the scanner stands."""

    START = auto()  # before the brace
    KEY = auto()  # before a key, or between members
    COLON = auto()
    VALUE = auto()  # before a value
    INSIDE = auto()  # in a value
    END = auto()  # after the closing brace


class _Call:
    """Scans one call's object; every character is looked at once.

    Strings are told from structure, so a closing tag inside a string is data. Anything that is no
    JSON sets ``_broken``: then only the closing tag is looked for.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.index: int | None = None
        self.closed = False
        self._seen: list[str] = []
        self._at = _At.START
        self._broken = False
        self._in_string = False
        self._escaped = False
        self._depth = 0  # of braces and brackets, the object's own included
        self._tag = 0  # characters of the closing tag matched so far
        self._key = ""
        self._text: list[str] = []  # of the key or value being read
        self._is_raw_arguments = False  # the value being read is passed on as it comes
        self._arguments: list[str] = []
        self._had_arguments = False

    @property
    def raw(self) -> str:
        """Everything between the tags."""
        text = "".join(self._seen)
        return text[: -len(CLOSE)] if self.closed else text

    def feed(self, text: str) -> int:
        """Read ``text`` up to the closing tag at most; returns how much was read."""
        used = 0
        for char in text:
            used += 1
            if self._in_string and not self._broken:
                self._string(char)
            elif self._closes(char):
                self.closed = True
                break
            elif not self._broken:
                self._structure(char)
        self._seen.append(text[:used])
        return used

    def take_arguments(self) -> str:
        taken = "".join(self._arguments)
        self._arguments.clear()
        return taken

    def end(self) -> None:
        """No more comes. A call without arguments has the empty object."""
        if self._at is _At.END and self.name is not None and not self._had_arguments:
            self._arguments.append("{}")
            self._had_arguments = True

    def _closes(self, char: str) -> bool:
        """Whether ``char`` completes the closing tag; outside strings a ``<`` is never JSON."""
        self._tag = self._tag + 1 if char == CLOSE[self._tag] else int(char == CLOSE[0])
        return self._tag == len(CLOSE)

    def _string(self, char: str) -> None:
        self._keep(char)
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False
            if self._depth == 1:
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
        elif self._at is _At.KEY and char == '"':
            self._begin_text(char)
            self._in_string = True
        elif self._at is _At.KEY and char == "}":
            self._depth, self._at = 0, _At.END
        elif self._at is _At.KEY and char == ",":
            return
        elif self._at is _At.COLON and char == ":":
            self._at = _At.VALUE
        elif self._at is _At.VALUE:
            self._is_raw_arguments = self._key == "arguments" and char == "{"
            self._at = _At.INSIDE
            self._begin_text("")
            self._value(char)
        else:
            self._broken = True

    def _value(self, char: str) -> None:
        if self._depth == 1 and char in ",}":  # ends a number or a word
            self._end_text()
            self._structure(char)
            return
        self._keep(char)
        if char == '"':
            self._in_string = True
        elif char in "{[":
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
            text = json.loads(raw)
        except (ValueError, RecursionError):
            self._broken = True
            return
        if self._at is _At.KEY:
            self._key, self._at = text, _At.COLON
            return
        self._at = _At.KEY
        if self._key == "name" and isinstance(text, str):
            self.name = text
        elif self._key == "arguments" and text is not None:
            self._had_arguments = True
            # Some models write the object as text within the text.
            self._arguments.append(text if isinstance(text, str) else raw)


def _overlap(text: str, tag: str) -> int:
    """Length of the longest proper prefix of ``tag`` that ``text`` ends with."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0
