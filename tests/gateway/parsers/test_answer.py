from __future__ import annotations

from gateway.parsers.answer import AnswerParser
from gateway.parsers.hermes import HermesParser
from gateway.parsers.reasoning import ReasoningParser

CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


def whole(parser: AnswerParser, text: str) -> tuple[str, str, list[str | None]]:
    """Character by character: reasoning, content, and the names of the calls."""
    pieces = [*map(parser.push, text), parser.finish()]
    calls = [call.function.name for piece in pieces for call in piece.calls if call.id is not None]
    return (
        "".join(piece.reasoning for piece in pieces),
        "".join(piece.content for piece in pieces),
        calls,
    )


def test_reasoning_and_then_a_call() -> None:
    parser = AnswerParser(reasoning=ReasoningParser(has_begun=False), tools=HermesParser())
    text = f"<think>I could {CALL}</think>\nI look.\n{CALL}"
    assert whole(parser, text) == (f"I could {CALL}", "I look.", ["f"])
    assert parser.has_calls


def test_reasoning_can_be_hidden() -> None:
    parser = AnswerParser(reasoning=ReasoningParser(has_begun=True), hides_reasoning=True)
    assert whole(parser, "hm</think>yes") == ("", "yes", [])
    parser = AnswerParser(reasoning=ReasoningParser(has_begun=True), hides_reasoning=True)
    assert whole(parser, "never ended") == ("", "", [])


def test_one_call_too_many_fills_it() -> None:
    parser = AnswerParser(tools=HermesParser(), max_calls=1)
    parser.push(CALL)
    assert not parser.is_full
    piece = parser.push(f" {CALL} and text")
    assert parser.is_full
    assert piece.calls == []
    assert parser.push("more").content == ""
