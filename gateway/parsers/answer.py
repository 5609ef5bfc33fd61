"""Splits a model's text into reasoning, content and tool calls."""

from __future__ import annotations

from typing import NamedTuple

from gateway.parsers.base import ToolCallDelta, ToolParser
from gateway.parsers.reasoning import ReasoningParser


class Piece(NamedTuple):
    reasoning: str
    content: str
    calls: list[ToolCallDelta]


class AnswerParser:
    """Parses the text of one choice, as it comes."""

    def __init__(
        self,
        *,
        reasoning: ReasoningParser | None = None,
        hides_reasoning: bool = False,
        tools: ToolParser | None = None,
        max_calls: int | None = None,
    ) -> None:
        """``hides_reasoning``: drop the reasoning. ``max_calls``: see ``ToolParser.max_calls``."""
        self._reasoning = reasoning
        self._hides_reasoning = hides_reasoning
        self._tools = tools
        if tools is not None:
            tools.max_calls = max_calls

    @property
    def is_thinking(self) -> bool:
        return self._reasoning is not None and self._reasoning.is_thinking

    @property
    def has_calls(self) -> bool:
        return self._tools is not None and self._tools.num_calls > 0

    @property
    def is_full(self) -> bool:
        """Whether there was a call beyond ``max_calls``, so that the answer can be ended."""
        return self._tools is not None and self._tools.is_full

    def push(self, text: str) -> Piece:
        reasoning = ""
        if self._reasoning is not None:
            reasoning, text = self._reasoning.push(text)
        return self._piece(reasoning, text)

    def finish(self) -> Piece:
        """Return what was held back, at the end of the model's text."""
        reasoning, text = "", ""
        if self._reasoning is not None:
            reasoning, text = self._reasoning.finish()
        piece = self._piece(reasoning, text)
        if self._tools is None:
            return piece
        content, calls = self._tools.finish()
        return Piece(piece.reasoning, piece.content + content, [*piece.calls, *calls])

    def _piece(self, reasoning: str, text: str) -> Piece:
        if self._hides_reasoning:
            reasoning = ""
        if self._tools is None or not text:
            return Piece(reasoning, text, [])
        content, calls = self._tools.push(text)
        return Piece(reasoning, content, calls)
