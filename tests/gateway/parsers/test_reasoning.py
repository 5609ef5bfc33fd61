from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.parsers.harmony import HARMONY_REASONING
from gateway.parsers.reasoning import CLOSE, OPEN, THINK, ReasoningFormat

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


ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
NEXT = "<|end|><|start|>assistant"
TO_F = "<|channel|>commentary to=functions.f<|message|>"
HARMONY_CASES: dict[str, tuple[bool, str, str, str]] = {
    "in channels": (False, f"{ANALYSIS}Hm. {NEXT}{FINAL} Yes.<|return|>", "Hm. ", " Yes."),
    "begun by the prompt": (True, f"Hm.{NEXT}{FINAL}Yes.", "Hm.", "Yes."),
    "no reasoning": (False, f"{FINAL}a < b<|ret", "", "a < b<|ret"),
    "no channel": (False, "A text <|of <|en its own", "", "A text <|of <|en its own"),
    "a message without a channel": (False, "<|start|>assistant<|message|>Hi", "", "Hi"),
    "a preamble": (
        False,
        f"<|channel|>commentary<|message|>I look.{NEXT}{FINAL}Done.<|return|>",
        "",
        "I look.\nDone.",
    ),
    "reasoning twice": (False, f"{ANALYSIS}a{NEXT}{ANALYSIS}b{NEXT}{FINAL}c", "a\nb", "c"),
    "no end": (False, f"{ANALYSIS}a<|start|>assistant{FINAL}c", "a", "c"),
    "cut off in a header": (False, f"{ANALYSIS}a{NEXT}<|channel|>fin", "a", ""),
    "a call": (
        False,
        f"{ANALYSIS}a{NEXT}<|channel|>commentary to=functions.f <|constrain|>json<|message|>{{}}"
        "<|call|>",
        "a",
        f"{TO_F}{{}}<|call|>",
    ),
    "a call behind the role": (
        False,
        f"{ANALYSIS}a{NEXT} to=functions.f<|channel|>commentary json<|message|>{{}}",
        "a",
        f"{TO_F}{{}}",
    ),
    "a call as the first": (False, f" to=functions.f{ANALYSIS}{{}}", "", f"{TO_F}{{}}"),
    "a tool of its own": (False, f" to=python{ANALYSIS}1+1<|call|>", "1+1", ""),
    "nothing": (False, "", "", ""),
}
ALL = [
    *((THINK, *case) for case in CASES.values()),
    *((HARMONY_REASONING, *case) for case in HARMONY_CASES.values()),
]


def parse(
    pieces: Iterable[str], *, has_begun: bool, format: ReasoningFormat = THINK
) -> tuple[str, str]:
    parser = format.make_parser(has_begun)
    said = [parser.push(piece) for piece in pieces]
    said.append(parser.finish())
    return "".join(one.reasoning for one in said), "".join(one.content for one in said)


@pytest.mark.parametrize(
    ("format", "has_begun", "text", "reasoning", "content"),
    ALL,
    ids=[
        f"{case[0].name} {name}" for case, name in zip(ALL, [*CASES, *HARMONY_CASES], strict=True)
    ],
)
def test_split_at_every_position(
    format: ReasoningFormat, has_begun: bool, text: str, reasoning: str, content: str
) -> None:
    for cut in range(len(text) + 1):
        found = parse([text[:cut], text[cut:]], has_begun=has_begun, format=format)
        assert found == (reasoning, content), cut
    assert parse(text, has_begun=has_begun, format=format) == (reasoning, content)


FRAGMENTS = [
    *(OPEN, CLOSE, *HARMONY_REASONING.marks, ANALYSIS, FINAL, NEXT, TO_F),
    *("<", "th", "<|", " to=functions.f", "assistant", " ", "\n", "a"),
]


@given(
    format=st.sampled_from([THINK, HARMONY_REASONING]),
    fragments=st.lists(st.sampled_from(FRAGMENTS), max_size=10),
    has_begun=st.booleans(),
)
def test_any_text_character_by_character(
    format: ReasoningFormat, fragments: list[str], has_begun: bool
) -> None:
    text = "".join(fragments)
    found = parse(text, has_begun=has_begun, format=format)
    assert found == parse([text], has_begun=has_begun, format=format)


@pytest.mark.parametrize("format", [THINK, HARMONY_REASONING], ids=["think", "harmony"])
def test_what_a_format_says_is_read_by_its_parser(format: ReasoningFormat) -> None:
    """A prompt may have begun the reasoning, and a grammar applies to what follows it."""
    before = {THINK: "", HARMONY_REASONING: NEXT}[format]
    text = f"Hm.{before}{format.before_answer}Yes"
    assert parse([text], has_begun=True, format=format) == ("Hm.", "Yes")
    assert parse([format.begin + text], has_begun=False, format=format) == ("Hm.", "Yes")
    assert format.before_calls in before + format.before_answer


def test_thinking_is_passed_on_as_it_comes() -> None:
    parser = THINK.make_parser(True)
    assert parser.push("a b") == ("a b", "")
    assert parser.is_thinking
    parser.push(CLOSE)
    assert not parser.is_thinking


def test_what_cannot_be_a_tag_is_not_held_back() -> None:
    parser = THINK.make_parser(False)
    assert parser.push(" <thi") == ("", "")
    assert parser.push("s") == ("", " <this")
    assert parser.push(" <think>") == ("", " <think>")
