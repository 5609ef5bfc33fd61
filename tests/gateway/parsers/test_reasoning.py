from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.parsers.reasoning import CLOSE, OPEN, ReasoningParser

CASES: dict[str, tuple[bool, str, str, str]] = {
    "in tags": (False, f"{OPEN}\nHm, well.\n{CLOSE}\n\nYes.", "Hm, well.", "Yes."),
    "begun by the prompt": (True, f"\nHm.\n\n{CLOSE}\n\nYes. ", "Hm.", "Yes. "),
    "blanks before": (False, f" \n{OPEN}a b{CLOSE}c", "a b", "c"),
    "none": (False, " Yes, <think> so.", "", " Yes, <think> so."),
    "empty": (False, f"{OPEN}\n\n{CLOSE}\n\nYes", "", "Yes"),
    "never ended": (False, f"{OPEN}so  far ", "so  far", ""),
    "ended in half a tag": (True, "so far </thi", "so far </thi", ""),
    "nearly a tag": (True, f"a </thin b{CLOSE}c", "a </thin b", "c"),
    "nearly the first tag": (False, "<thin", "", "<thin"),
    "a second one is text": (False, f"{OPEN}a{CLOSE}b{OPEN}c{CLOSE}", "a", f"b{OPEN}c{CLOSE}"),
    "nothing": (False, "", "", ""),
}


def parse(pieces: Iterable[str], *, has_begun: bool) -> tuple[str, str]:
    parser = ReasoningParser(has_begun=has_begun)
    said = [parser.push(piece) for piece in pieces]
    said.append(parser.finish())
    return "".join(one.reasoning for one in said), "".join(one.content for one in said)


@pytest.mark.parametrize("name", CASES)
def test_split_at_every_position(name: str) -> None:
    has_begun, text, reasoning, content = CASES[name]
    for cut in range(len(text) + 1):
        found = parse([text[:cut], text[cut:]], has_begun=has_begun)
        assert found == (reasoning, content), cut
    assert parse(text, has_begun=has_begun) == (reasoning, content)


@given(
    fragments=st.lists(st.sampled_from([OPEN, CLOSE, "<", "th", " ", "\n", "a"]), max_size=10),
    has_begun=st.booleans(),
)
def test_any_text_character_by_character(fragments: list[str], has_begun: bool) -> None:
    text = "".join(fragments)
    assert parse(text, has_begun=has_begun) == parse([text], has_begun=has_begun)


def test_thinking_is_passed_on_as_it_comes() -> None:
    parser = ReasoningParser(has_begun=True)
    assert parser.push("a b") == ("a b", "")
    assert parser.is_thinking
    parser.push(CLOSE)
    assert not parser.is_thinking


def test_what_cannot_be_a_tag_is_not_held_back() -> None:
    parser = ReasoningParser(has_begun=False)
    assert parser.push(" <thi") == ("", "")
    assert parser.push("s") == ("", " <this")
    assert parser.push(" <think>") == ("", " <think>")
