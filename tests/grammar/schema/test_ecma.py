from __future__ import annotations

import re
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grammar.schema import ecma


@pytest.mark.parametrize(
    ("source", "good", "bad"),
    [
        (r"^\p{L}+$", ["é", "日"], ["1", ""]),
        (r"^\P{Lu}$", ["a"], ["A"]),
        (r"^[\p{Script=Greek}_]+$", ["λ_"], ["l"]),
        (r"^\p{Emoji_Presentation}$", ["\U0001f600"], ["a"]),
        (r"^(?<first>a|b)\k<first>$", ["aa", "bb"], ["ab"]),
        (r"^\u{1F600}\u{000041}$", ["\U0001f600A"], ["A"]),
        (r"^[\u{61}-\u{63}\cJ]+$", ["abc\n"], ["d"]),
        (r"^\cA\cz$", ["\x01\x1a"], ["cA"]),
        (r"^(?<=^a{0,3})b", ["b"], ["c"]),
        (r"^[^]$", ["a", "\n"], [""]),
        (r"^a$|[]", ["a"], ["", "b"]),
        (r"^\p{L}\[\]\\u{2}$", ["a[]\\uu"], ["a"]),
    ],
)
def test_what_python_cannot_read(source: str, good: list[str], bad: list[str]) -> None:
    with pytest.raises(re.error):
        re.compile(source)
    ecma.check(source)
    for text in good:
        assert ecma.matches(source, text), text
    for text in bad:
        assert not ecma.matches(source, text), text


@pytest.mark.parametrize("source", ["a(", "[a", "*", r"\u{110000}", "(" * 5000])
def test_what_nobody_reads(source: str) -> None:
    for read in (ecma.check, ecma.compiled):
        with pytest.raises(ecma.Unreadable):
            read(source)


def test_a_property_of_the_right_form_that_nobody_knows() -> None:
    ecma.check(r"^\p{RGI_Emoji}$")
    with pytest.raises(ecma.Unreadable):
        ecma.compiled(r"^\p{RGI_Emoji}$")


def test_a_check_costs_no_more_than_the_pattern_is_long() -> None:
    """``regex`` takes all of the memory for these."""
    for quantifier in ("{2}", "{1,9}", "+"):
        ecma.check("(?:" * 90 + r"\p{L}" + f"){quantifier}" * 90)


@given(st.text("ab.^$*+?()[]{}|\\d-"), st.text("ab.d-"))
def test_what_python_reads_is_left_to_it(source: str, text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        try:
            expected = re.search(source, text) is not None
        except re.error:
            return
    assert ecma.matches(source, text) == expected
