"""Answers of gpt-oss (https://cookbook.openai.com/articles/openai-harmony): messages in channels.

    <|channel|>analysis<|message|>The user asks ...<|end|>
    <|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>
    {"city": "Oslo"}<|call|>
    <|start|>assistant<|channel|>final<|message|>It rains.<|return|>

(without the line breaks). The prompt ends with ``<|start|>assistant``. ``analysis`` is reasoning, a
message to a function is a call, and all else is for the user. The recipient may stand behind the
role as well: ``<|start|>assistant to=functions.get_weather<|channel|>commentary``.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gateway.parsers.base import CallName, MarkedParser, ToolFormat, overlap
from gateway.parsers.blocks import CallRegion
from gateway.parsers.reasoning import ParsedText, ReasoningFormat
from grammar.structural_tag import AnyText

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
_MARKS = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN)
_ENDS = (END, CALL, RETURN, START)
"""What ends a message; ``START`` where the model forgot to."""
_TO_FUNCTION = f"{CHANNEL}commentary to=functions."
_FUNCTION = re.compile(r"\bto=functions\.([^\s<]+)")
_FINAL = f"{CHANNEL}final{MESSAGE}"


class HarmonyParser:
    """A ``ReasoningParser``. A call is passed on as content that the parser of calls reads."""

    def __init__(self, *, has_begun: bool) -> None:
        """``has_begun``: whether the prompt ends with the beginning of an analysis."""
        self._read: Callable[[bool], bool] = self._message if has_begun else self._first
        self.is_thinking = has_begun
        self._is_call = False
        self._rest = ""
        self._between = {False: "", True: ""}
        """What separates the next message of a kind, reasoning or not, from the one before."""
        self._reasoning: list[str] = []
        self._content: list[str] = []

    def push(self, text: str) -> ParsedText:
        return self._parse(text, is_last=False)

    def finish(self) -> ParsedText:
        """Return what was held back, at the end of the model's text."""
        return self._parse("", is_last=True)

    def _parse(self, text: str, *, is_last: bool) -> ParsedText:
        self._rest += text
        while self._rest and self._read(is_last):
            pass
        said = ParsedText("".join(self._reasoning), "".join(self._content))
        self._reasoning, self._content = [], []
        return said

    def _first(self, is_last: bool) -> bool:
        """Before the first header. Text without one continues a message of the prompt."""
        text = self._rest.lstrip()
        begins = (CHANNEL, START, "to=")
        if text.startswith(begins):
            self._read = self._header
        elif is_last or not any(mark.startswith(text) for mark in begins):
            self._read = self._message
        else:
            return False
        return True

    def _header(self, is_last: bool) -> bool:
        """Up to the message; a header that is cut off says nothing."""
        header, mark, rest = self._rest.partition(MESSAGE)
        if not mark:
            return False
        self._rest = rest
        function = _FUNCTION.search(header) if CHANNEL in header else None
        self._is_call = function is not None
        self.is_thinking = not self._is_call and f"{CHANNEL}analysis" in header
        if function is not None:
            self._content.append(f"{_TO_FUNCTION}{function[1]}{MESSAGE}")
        self._read = self._message
        return True

    def _message(self, is_last: bool) -> bool:
        found = [(at, mark) for mark in _ENDS if (at := self._rest.find(mark)) >= 0]
        if found:
            at, mark = min(found)
            self._say(self._rest[:at])
            self._rest = self._rest[at + len(mark) :]
            if self._is_call:
                self._content.append(CALL)
            else:
                self._between[self.is_thinking] = self._between[self.is_thinking] and "\n"
            self.is_thinking = self._is_call = False
            self._read = self._header
            return True
        held = 0 if is_last else max(overlap(self._rest, mark) for mark in _ENDS)
        free = len(self._rest) - held
        self._say(self._rest[:free])
        self._rest = self._rest[free:]
        return False

    def _say(self, text: str) -> None:
        if not text:
            return
        said = self._reasoning if self.is_thinking else self._content
        if not self._is_call:
            if self._between[self.is_thinking] == "\n":
                said.append("\n")
            self._between[self.is_thinking] = " "
        said.append(text)


class _Call(CallRegion):
    def _begin(self) -> bool:
        if (found := self._before("{", CALL)) is None:
            return False
        head, mark = found
        name = re.split(r"[\s<]", head, maxsplit=1)[0]
        if name:
            self._found.append(CallName(name))
        if mark == CALL:
            self._found += ["{}"] if name else []
            self.closed = True
        else:
            self._rest = "{" + self._rest
            self._read = self._in_arguments if name else self._tail
        return True

    def _tail(self) -> bool:
        self.closed = self._before(CALL) is not None
        return self.closed

    def end(self) -> None:
        """The engine ends an answer with ``CALL`` and does not show it."""
        if self._read == self._begin and MESSAGE in self._rest:
            self.feed(CALL)


HARMONY_REASONING = ReasoningFormat(
    name="harmony",
    sign=f"{CHANNEL}analysis",
    marks=_MARKS,
    begin=f"{CHANNEL}analysis{MESSAGE}",
    before_answer=_FINAL,
    before_calls=f"{START}assistant",
    make_parser=lambda has_begun: HarmonyParser(has_begun=has_begun),
    field="thinking",
)

HARMONY = ToolFormat(
    name="harmony",
    signs=(f"{CHANNEL}commentary", f"{CHANNEL}analysis"),
    make_parser=lambda schemas: MarkedParser(_TO_FUNCTION, _Call),
    marks=_MARKS,
    mark="",
    begin=f"{_TO_FUNCTION}%s {CONSTRAIN}json{MESSAGE}",
    end=CALL,
    separator="",  # the model stops behind a call
    answer=_FINAL,
    text=AnyText(excludes=(CHANNEL,)),  # no call is without it
)
