from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.parsers.answer import AnswerParser
from gateway.parsers.base import ToolFormat
from gateway.parsers.hermes import HERMES
from gateway.parsers.reasoning import ThinkParser
from tests.gateway.parsers.test_formats import ALL

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
    parser = AnswerParser(reasoning=ThinkParser(has_begun=False), tools=HERMES.make_parser({}))
    text = f"<think>I could {CALL}</think>\nI look.\n{CALL}"
    assert whole(parser, text) == (f"I could {CALL}", "I look.", ["f"])
    assert parser.has_calls


def test_reasoning_can_be_hidden() -> None:
    parser = AnswerParser(reasoning=ThinkParser(has_begun=True), hides_reasoning=True)
    assert whole(parser, "hm</think>yes") == ("", "yes", [])
    parser = AnswerParser(reasoning=ThinkParser(has_begun=True), hides_reasoning=True)
    assert whole(parser, "never ended") == ("", "", [])


def test_what_was_held_back_comes_at_the_end() -> None:
    """What might have become a tag."""
    thinking = AnswerParser(reasoning=ThinkParser(has_begun=True), tools=HERMES.make_parser({}))
    assert whole(thinking, "hm </thi") == ("hm </thi", "", [])
    for text in (" <thi", " <tool_c", "yes <tool_c"):
        parser = AnswerParser(reasoning=ThinkParser(has_begun=False), tools=HERMES.make_parser({}))
        assert whole(parser, text) == ("", text, [])


def test_it_says_where_it_stands() -> None:
    plain = AnswerParser()
    assert (plain.is_thinking, plain.has_calls, plain.is_full) == (False, False, False)
    parser = AnswerParser(reasoning=ThinkParser(has_begun=True), tools=HERMES.make_parser({}))
    assert (parser.is_thinking, parser.has_calls, parser.is_full) == (True, False, False)
    parser.push("</think>")
    assert (parser.is_thinking, parser.has_calls) == (False, False)
    parser.push(CALL)
    assert (parser.is_thinking, parser.has_calls) == (False, True)


def test_one_call_too_many_fills_it() -> None:
    parser = AnswerParser(tools=HERMES.make_parser({}), max_calls=1)
    parser.push(CALL)
    assert not parser.is_full
    piece = parser.push(f" B {CALL} and text")
    assert parser.is_full
    assert (piece.content, piece.calls) == ("B", [])
    assert parser.push("more").content == ""
    assert parser.finish().content == ""


@pytest.mark.parametrize("format", ALL, ids=lambda format: format.name)
@pytest.mark.parametrize("after", ["", " and more", CALL])
def test_what_follows_a_call_too_many_is_dropped_however_it_is_cut(
    format: ToolFormat, after: str
) -> None:
    """Several tokens come together when a draft is right, or when a client reads slowly."""
    inside = '{"a": 1}' if format.has_json_arguments else "<parameter=a>\n1\n</parameter>\n"
    call = format.begin.replace("%s", "f") + inside + format.end
    text = format.opening + format.separator.join([call] * 3) + format.closing + after
    for pieces in ([text], text, [text[: len(text) // 2], text[len(text) // 2 :]]):
        parser = AnswerParser(tools=format.make_parser({}), max_calls=2)
        assert whole(parser, pieces) == ("", "", ["f", "f"])
        assert parser.is_full


@pytest.mark.parametrize("rest", ['{"name": "g"}', '{"name": "g"}</tool_call>'])
def test_a_call_too_many_adds_nothing_to_the_last_one(rest: str) -> None:
    """Its arguments, which are left out here, are none of that one's."""
    parser = AnswerParser(tools=HERMES.make_parser({}), max_calls=1)
    pieces = [parser.push(CALL), parser.push(f"<tool_call>{rest}"), parser.finish()]
    arguments = [call.function.arguments for piece in pieces for call in piece.calls]
    assert "".join(part for part in arguments if isinstance(part, str)) == "{}"
    assert parser.is_full


@given(
    fragments=st.lists(
        st.sampled_from(["<think>", "</think>", CALL, CALL[:20], "<", "</", ">", "a", " ", "\n"]),
        max_size=10,
    ),
    has_begun=st.booleans(),
    hides=st.booleans(),
    has_tools=st.booleans(),
    max_calls=st.none() | st.integers(0, 1),
    data=st.data(),
)
def test_an_answer_is_read_alike_however_it_is_cut(
    fragments: list[str],
    has_begun: bool,
    hides: bool,
    has_tools: bool,
    max_calls: int | None,
    data: st.DataObject,
) -> None:
    def made() -> AnswerParser:
        return AnswerParser(
            reasoning=ThinkParser(has_begun=has_begun),
            hides_reasoning=hides,
            tools=HERMES.make_parser({}) if has_tools else None,
            max_calls=max_calls,
        )

    text = "".join(fragments)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert whole(made(), pieces) == whole(made(), [text]) == whole(made(), text)
