"""Calls of gpt-oss, behind ``HarmonyParser`` and by themselves."""

from __future__ import annotations

from functools import partial

import pytest

from gateway.parsers.answer import AnswerParser
from gateway.parsers.harmony import HARMONY, HarmonyParser
from tests.gateway.parsers.replay import check_splits

make_tools = partial(HARMONY.make_parser, {})

TO = "<|channel|>commentary to=functions."
CASES: dict[str, tuple[str, str, list[tuple[str, str]]]] = {
    "text": ("a <|b", "a <|b", []),
    "a call": (
        f'{TO}f <|constrain|>json<|message|>{{"a": "{{<|call|>"}}<|call|>',
        "",
        [("f", '{"a": "{<|call|>"}')],
    ),
    "its end is not shown": (f'{TO}f<|message|>{{"a": 1}}', "", [("f", '{"a": 1}')]),
    "no arguments": (f"{TO}f<|message|><|call|>", "", [("f", "{}")]),
    "no arguments and no end": (f"{TO}f<|message|>", "", [("f", "{}")]),
    "cut off in its name": (f"{TO}get_w", f"{TO}get_w", []),
    "cut off in its arguments": (f'{TO}f<|message|>{{"a', "", [("f", '{"a')]),
    "no name": (f"{TO}<|message|>{{}}<|call|>", f"{TO}<|message|>{{}}<|call|>", []),
    "two": (
        f"Hm{TO}f<|message|>{{}}<|call|>{TO}g<|message|>{{}}<|call|>",
        "Hm",
        [("f", "{}"), ("g", "{}")],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_split_at_every_position(name: str) -> None:
    text, content, calls = CASES[name]
    check_splits(make_tools, text, (content, calls))


@pytest.mark.parametrize("to", [" to=functions.f<|channel|>commentary", f"{TO}f"])
@pytest.mark.parametrize("end", ["<|call|>", ""])
def test_reasoning_a_preamble_and_a_call(to: str, end: str) -> None:
    text = (
        "<|channel|>analysis<|message|>Look it up.<|end|><|start|>assistant"
        "<|channel|>commentary<|message|>One moment.<|end|><|start|>assistant"
        f'{to} <|constrain|>json<|message|>{{"city": "Oslo"}}{end}'
    )
    for size in (1, 3, len(text)):
        parser = AnswerParser(reasoning=HarmonyParser(has_begun=False), tools=make_tools())
        pieces = [parser.push(text[at : at + size]) for at in range(0, len(text), size)]
        pieces.append(parser.finish())
        assert "".join(piece.reasoning for piece in pieces) == "Look it up."
        assert "".join(piece.content for piece in pieces) == "One moment."
        calls = [call.function for piece in pieces for call in piece.calls]
        assert calls[0].name == "f"
        assert "".join(str(call.arguments) for call in calls) == '{"city": "Oslo"}'
        assert parser.has_calls


def test_arguments_are_passed_on_as_they_come() -> None:
    parser = AnswerParser(reasoning=HarmonyParser(has_begun=False), tools=make_tools())
    parser.push(f'{TO}f<|message|>{{"city":')
    (piece,) = parser.push(' "Os').calls
    assert piece.function.arguments == ' "Os'
