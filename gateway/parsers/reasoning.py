"""Finds the reasoning before an answer: ``<think>...</think>``, as of DeepSeek, Qwen and others.

White space around the tags is layout, and is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple, Protocol

from gateway.parsers.base import overlap

OPEN, CLOSE = "<think>", "</think>"


class ParsedText(NamedTuple):
    reasoning: str
    content: str


class ReasoningParser(Protocol):
    """Parses the text of one answer as it comes. The result does not depend on how it is split."""

    @property
    def is_thinking(self) -> bool: ...

    def push(self, text: str) -> ParsedText:
        """Parse more of the model's text."""

    def finish(self) -> ParsedText:
        """Return what was held back, at the end of the model's text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningFormat:
    """The syntax in which a family of models separates reasoning from its answer."""

    name: str
    """Its name in ``models.reasoning_parser``."""
    sign: str
    """A model whose chat template contains it writes this format."""
    marks: tuple[str, ...]
    """As ``ToolFormat.marks``."""
    begin: str
    """What precedes the reasoning; a prompt may end with it."""
    before_answer: str
    """What precedes the answer; a prompt without reasoning ends with it. From here on a grammar
    applies."""
    before_calls: str
    """The same where the answer may be calls."""
    make_parser: Callable[[bool], ReasoningParser]
    """Makes a parser, given whether the prompt ends with ``begin``."""
    field: str = "reasoning_content"
    """Where the chat template looks for the reasoning of an earlier message."""


class _At(Enum):
    START = auto()  # only white space so far, and perhaps a part of the opening tag
    THINKING = auto()
    BEFORE_ANSWER = auto()  # only white space since the closing tag
    ANSWER = auto()


class ThinkParser:
    """A ``ReasoningParser``."""

    def __init__(self, *, has_begun: bool) -> None:
        """``has_begun``: whether the prompt ends with the opening tag."""
        self._at = _At.THINKING if has_begun else _At.START
        self._held = ""
        self._has_thought = False

    @property
    def is_thinking(self) -> bool:
        return self._at is _At.THINKING

    def push(self, text: str) -> ParsedText:
        if self._at is _At.ANSWER:
            return ParsedText("", text)
        text = self._held + text
        self._held = ""
        if self._at is _At.START:
            if (rest := self._start(text)) is None:
                return ParsedText("", "")
            text = rest
        reasoning = ""
        if self._at is _At.THINKING:
            reasoning, text = self._think(text)
        if self._at is _At.BEFORE_ANSWER and (text := text.lstrip()):
            self._at = _At.ANSWER
        return ParsedText(reasoning, text)

    def finish(self) -> ParsedText:
        """Return what was held back, at the end of the model's text."""
        held, self._held = self._held, ""
        return ParsedText(held.rstrip(), "") if self.is_thinking else ParsedText("", held)

    def _start(self, text: str) -> str | None:
        """The text after the opening tag, or all of it if there is no tag; None while that is not
        known."""
        solid = text.lstrip()
        if solid.startswith(OPEN):
            self._at = _At.THINKING
            return solid[len(OPEN) :]
        if OPEN.startswith(solid):
            self._held = text
            return None
        self._at = _At.ANSWER
        return text

    def _think(self, text: str) -> tuple[str, str]:
        """The text that is certainly reasoning, and the text after the closing tag."""
        if not self._has_thought:
            text = text.lstrip()
        thought, close, rest = text.partition(CLOSE)
        if close:
            self._at = _At.BEFORE_ANSWER
            return thought.rstrip(), rest
        free = len(text[: len(text) - overlap(text, CLOSE)].rstrip())
        self._has_thought = self._has_thought or free > 0
        self._held = text[free:]
        return text[:free], ""


THINK = ReasoningFormat(
    name="think",
    sign=CLOSE,
    marks=(OPEN, CLOSE),
    begin=OPEN,
    before_answer=CLOSE,
    before_calls=CLOSE,
    make_parser=lambda has_begun: ThinkParser(has_begun=has_begun),
)
