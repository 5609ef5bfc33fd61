"""What a parser makes of a recorded output, whole or in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from gateway.parsers.base import Parsed, ToolParser

Expected = tuple[str, list[tuple[str, str]]]
"""The text, and each call's name and arguments."""


@dataclass
class Call:
    id: str
    name: str
    arguments: str = ""


@dataclass
class Collected:
    content: str = ""
    calls: list[Call] = field(default_factory=list)

    def add(self, parsed: Parsed) -> None:
        msgspec.json.encode(parsed)  # as it is sent to clients
        text, pieces = parsed
        self.content += text
        for piece in pieces:
            if piece.id is not None:
                assert piece.index == len(self.calls), "indices are dense"
                assert piece.type == "function"
                assert piece.function.name is not None
                self.calls.append(Call(piece.id, piece.function.name))
            else:
                assert piece.index == len(self.calls) - 1
                assert piece.function.name is None
                assert piece.function.arguments, "nothing is sent for nothing"
            assert isinstance(piece.function.arguments, str)
            self.calls[piece.index].arguments += piece.function.arguments

    @property
    def plain(self) -> tuple[str, list[tuple[str, str]]]:
        return self.content, [(call.name, call.arguments) for call in self.calls]


def replay(parser: ToolParser, pieces: Iterable[str]) -> Collected:
    collected = Collected()
    for piece in pieces:
        collected.add(parser.push(piece))
    collected.add(parser.finish())
    assert parser.num_calls == len(collected.calls)
    return collected


def check_splits(make: Callable[[], ToolParser], text: str, expected: Expected) -> None:
    """The same in one piece, in two with every cut, and character by character."""
    assert replay(make(), [text]).plain == expected
    for cut in range(len(text) + 1):
        assert replay(make(), [text[:cut], text[cut:]]).plain == expected, cut
    assert replay(make(), text).plain == expected
