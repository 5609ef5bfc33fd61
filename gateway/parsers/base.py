"""What every tool-call parser takes and gives."""

from __future__ import annotations

import secrets
from typing import Protocol

import msgspec


class FunctionDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    arguments: str | msgspec.UnsetType = msgspec.UNSET
    name: str | None = None


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of one call, shaped as Chat Completions streams it.

    ``id``, ``type`` and the name come once, in the call's first piece; then fragments of
    ``arguments`` under the same ``index``. Indices are dense, from 0.
    """

    index: int
    id: str | None = None
    type: str | None = None
    function: FunctionDelta


Parsed = tuple[str, list[ToolCallDelta]]
"""Text for the reader, and pieces of calls."""


class ToolParser(Protocol):
    """Incremental, one per answer: the result does not depend on how the text was split."""

    num_calls: int
    """Calls begun so far."""

    def push(self, text: str) -> Parsed:
        """Take more of the model's text."""

    def finish(self) -> Parsed:
        """The model has ended: what was held back."""


def call_begins(index: int, name: str) -> ToolCallDelta:
    return ToolCallDelta(
        index=index,
        id=f"call_{secrets.token_hex(12)}",
        type="function",
        function=FunctionDelta(name=name, arguments=""),
    )


def call_goes_on(index: int, arguments: str) -> ToolCallDelta:
    return ToolCallDelta(index=index, function=FunctionDelta(arguments=arguments))
