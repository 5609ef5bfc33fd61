from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from gateway.parsers.answer import AnswerParser
from gateway.parsers.hermes import HermesParser
from gateway.parsers.reasoning import ReasoningParser

CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


def whole(parser: AnswerParser, text: Iterable[str]) -> tuple[str, str, list[str | None]]:
    """Reasoning, content, and the names of the calls, of pieces, or character by character."""
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


@given(
    fragments=st.lists(
        st.sampled_from(["<think>", "</think>", CALL, CALL[:20], "<", "</", ">", "a", " ", "\n"]),
        max_size=10,
    ),
    has_begun=st.booleans(),
    hides=st.booleans(),
    has_tools=st.booleans(),
    data=st.data(),
)
def test_an_answer_is_read_alike_however_it_is_cut(
    fragments: list[str], has_begun: bool, hides: bool, has_tools: bool, data: st.DataObject
) -> None:
    def made() -> AnswerParser:
        return AnswerParser(
            reasoning=ReasoningParser(has_begun=has_begun),
            hides_reasoning=hides,
            tools=HermesParser() if has_tools else None,
        )

    text = "".join(fragments)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert whole(made(), pieces) == whole(made(), [text]) == whole(made(), text)
