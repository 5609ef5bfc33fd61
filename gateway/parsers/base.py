"""The interface of tool-call parsers, and what they have in common."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import msgspec

from gateway.parsers.json_words import JsonWords
from grammar.schema.document import Schema
from grammar.schema.paths import ROOT
from grammar.structural_tag import Format, JsonSchema


class FunctionDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    arguments: str | msgspec.UnsetType = msgspec.UNSET
    name: str | None = None


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of one call, in the form of Chat Completions' chunks.

    The first piece of a call has its ``id``, ``type`` and name; further ones have fragments of
    ``arguments``, with the same ``index``. Calls are numbered from 0 without gaps.
    """

    index: int
    id: str | None = None
    type: str | None = None
    function: FunctionDelta


def joined_pieces(pieces: Sequence[ToolCallDelta]) -> list[ToolCallDelta]:
    """The pieces, with consecutive ones of the same call joined."""
    joined: list[ToolCallDelta] = []
    for piece in pieces:
        if not joined or joined[-1].index != piece.index:
            joined.append(piece)
            continue
        last = joined[-1].function
        text = (last.arguments or "") + (piece.function.arguments or "")
        function = msgspec.structs.replace(last, arguments=text)
        joined[-1] = msgspec.structs.replace(joined[-1], function=function)
    return joined


Parsed = tuple[str, list[ToolCallDelta]]
"""Content, and pieces of calls."""

Schemas = Mapping[str, Mapping[str, Any]]
"""The JSON schema of each function's arguments, by name."""


class ToolParser(Protocol):
    """Parses the text of one answer as it comes. The result does not depend on how it is split."""

    num_calls: int
    """The number of calls that have begun."""
    max_calls: int | None
    """At the first call beyond this number the answer ends: that call and whatever follows it are
    dropped. None for no limit."""
    is_full: bool
    """Whether that call has come."""

    def push(self, text: str) -> Parsed:
        """Parse more of the model's text."""

    def finish(self) -> Parsed:
        """Return what was held back, at the end of the model's text."""


def as_json(schema: Schema) -> Format:
    return JsonSchema(schema, ROOT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """The syntax in which a family of models writes its calls."""

    name: str
    """Its name in ``models.tool_parser``."""
    signs: tuple[str, ...]
    """A model whose chat template contains one of these writes this format."""
    make_parser: Callable[[Schemas], ToolParser]
    marks: tuple[str, ...]
    """The strings that the parser looks for. Those that are special tokens must not be hidden from
    it."""
    mark: str
    """What begins one or more calls anywhere in the text; empty where a call has to be the whole
    answer."""
    begin: str
    """What precedes a call's arguments, with ``%s`` for the name of its function."""
    end: str
    """What follows the arguments."""
    separator: str
    """What separates two calls."""
    opening: str = ""
    """What comes once, before the first call."""
    closing: str = ""
    """What comes once, after the last call."""
    spell: Callable[[Schema], Format] = as_json
    """How arguments are written, given their schema in OpenAI's strict subset. Raises
    ``UnsupportedKeyword`` for what this notation cannot enforce."""
    has_json_arguments: bool = True
    """Whether arguments are written as the JSON object itself."""
    answer: str = ""
    """What precedes an answer without calls, where there is no ``mark``."""
    text: Format | None = None
    """The format of such an answer."""


@dataclass(frozen=True, slots=True)
class CallName:
    """The beginning of a call to this function."""

    name: str


Event = CallName | str
"""What a region contains: the beginning of a call, or more of the last call's arguments."""


class Region(Protocol):
    """The part of an answer that contains one call or several."""

    @property
    def closed(self) -> bool:
        """Whether ``feed`` has reached the region's end."""

    @property
    def raw(self) -> str:
        """Everything read so far."""

    def feed(self, text: str) -> int:
        """Read up to the region's end at most, and return the number of characters read."""

    def end(self) -> None:
        """End the region, because the model's text has ended within it."""

    def take(self) -> list[Event]:
        """Remove and return what was found since the last call."""


_BLANKS = " \t\r\n"


class MarkedParser:
    """A ``ToolParser`` for calls in regions that begin with a mark. All other text is content.

    White space around a region is layout, and is dropped. A region without a call becomes content,
    so that no text of the model is lost. Arguments are what the model wrote, but for words that
    only Python has (``JsonWords``).
    """

    layout: ClassVar[str] = _BLANKS
    """What is dropped between two calls, and after the last one."""

    def __init__(self, mark: str, make_region: Callable[[], Region]) -> None:
        """mark: opens a region."""
        self.num_calls = 0
        self.max_calls: int | None = None
        self.is_full = False
        self._opens = mark
        self._make_region = make_region
        self._held = ""  # text that may turn out to be layout, or the beginning of a mark
        self._region: Region | None = None
        self._words = JsonWords()  # of the last call's arguments
        self._mark = ""  # the one that opened the region, with the layout before it
        self._calls_before = 0  # calls before the region
        self._after_call = False  # only layout since the last call
        self._has_content = False

    def push(self, text: str) -> Parsed:
        if self._is_plain(text):
            return text, []
        said: list[str] = []
        calls: list[ToolCallDelta] = []
        while text and not self.is_full:
            if self._region is None:
                text = self._read_text(text, said)
            else:
                text = self._read_region(self._region, text, said, calls)
        return "".join(said), calls

    def finish(self) -> Parsed:
        said: list[str] = []
        calls: list[ToolCallDelta] = []
        if self._region is None:
            held, self._held = self._held, ""
            if not self._is_layout(held):
                self._say(held, said)
        elif not self.is_full:
            self._region.end()
            self._close(self._region, said, calls)
        return "".join(said), calls

    def _is_plain(self, text: str) -> bool:
        """Whether ``text`` is content and nothing else: the usual case, which is fast."""
        return (
            self._has_content
            and self._region is None
            and not self._held
            and not self._after_call
            and self._opens[0] not in text
            and not text[-1:].isspace()
        )

    def _is_layout(self, text: str) -> bool:
        """Whether ``text`` only separates a call from what follows it."""
        return self._after_call and not text.strip(self.layout)

    def _find(self, text: str) -> tuple[int, str] | None:
        """The position of the next region's mark, and the mark."""
        start = text.find(self._opens)
        return None if start < 0 else (start, self._opens)

    def _num_certain(self, text: str) -> int:
        """How many characters of ``text``, which contains no mark, cannot be the beginning of
        one."""
        return len(text) - overlap(text, self._opens)

    def _read_text(self, text: str, said: list[str]) -> str:
        """Read up to the next region; returns what follows its mark."""
        text = self._held + text
        found = self._find(text)
        if found is None:
            free = len(text[: self._num_certain(text)].rstrip())
            if self._is_layout(text[:free]):
                free = 0
            self._say(text[:free], said)
            self._held = text[free:]
            return ""
        start, mark = found
        before = text[:start].rstrip()
        if self._is_layout(before):
            before = ""
        self._say(before, said)
        self._held = ""
        # Blanks before it are layout only if it has a call, or comes right after one. Signs that
        # separate calls are text if none follows.
        layout = text[len(before) : start]
        self._mark = (layout.lstrip(_BLANKS) if self._after_call else layout) + mark
        self._region = self._make_region()
        self._calls_before = self.num_calls
        return text[start + len(mark) :]

    def _say(self, text: str, said: list[str]) -> None:
        """Pass on ``text``, which does not end in white space unless it is the last."""
        if self._after_call and not self._has_content:
            text = text.lstrip(_BLANKS)
        if text:
            self._after_call = False
            self._has_content = True
            said.append(text)

    def _read_region(
        self, region: Region, text: str, said: list[str], calls: list[ToolCallDelta]
    ) -> str:
        """Read within a region; returns what follows it."""
        used = region.feed(text)
        if region.closed:
            self._close(region, said, calls)
        else:
            self._pass_on(region, calls)
        return text[used:]

    def _pass_on(self, region: Region, calls: list[ToolCallDelta]) -> None:
        for event in region.take():
            if isinstance(event, CallName):
                if self.num_calls == self.max_calls:
                    self.is_full = True
                    return
                self._end_arguments(calls)
                calls.append(call_begins(self.num_calls, event.name))
                self.num_calls += 1
            elif arguments := self._words.feed(event):
                calls.append(call_goes_on(self.num_calls - 1, arguments))

    def _end_arguments(self, calls: list[ToolCallDelta]) -> None:
        if rest := self._words.flush():
            calls.append(call_goes_on(self.num_calls - 1, rest))
        self._words = JsonWords()

    def _close(self, region: Region, said: list[str], calls: list[ToolCallDelta]) -> None:
        self._pass_on(region, calls)
        self._end_arguments(calls)
        if self.is_full:
            return  # It stays open: whatever follows is dropped.
        self._region = None
        if self.num_calls > self._calls_before:
            self._after_call = True
        else:
            self._after_call = False
            self._has_content = True
            said.append(f"{self._mark}{region.raw}")


def call_begins(index: int, name: str) -> ToolCallDelta:
    return ToolCallDelta(
        index=index,
        id=f"call_{secrets.token_hex(12)}",
        type="function",
        function=FunctionDelta(name=name, arguments=""),
    )


def call_goes_on(index: int, arguments: str) -> ToolCallDelta:
    return ToolCallDelta(index=index, function=FunctionDelta(arguments=arguments))


def encodable(text: str) -> str:
    """``text``, which was decoded from JSON, with lone surrogates escaped as in JSON: UTF-8 cannot
    encode them."""
    return text.encode("utf-8", "backslashreplace").decode()


def overlap(text: str, mark: str) -> int:
    """The length of the longest proper prefix of ``mark`` that ``text`` ends with."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
