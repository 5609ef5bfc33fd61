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
        (r"^[\w-.]\p{L}$", [".a", "-a"], ["+a"]),
    ],
)
def test_what_python_cannot_read(source: str, good: list[str], bad: list[str]) -> None:
    with pytest.raises(re.error):
        re.compile(source)
    for text in good:
        assert ecma.matches(source, text), text
    for text in bad:
        assert not ecma.matches(source, text), text


@pytest.mark.parametrize("source", ["a(", "[a", "*", r"\p{Nonsense}", r"\u{110000}", "(" * 5000])
def test_what_nobody_reads(source: str) -> None:
    with pytest.raises(ecma.Unreadable):
        ecma.compiled(source)


@given(st.text("ab.^$*+?()[]{}|\\d-"), st.text("ab.d-"))
def test_what_python_reads_is_left_to_it(source: str, text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        try:
            expected = re.search(source, text) is not None
        except re.error:
            return
    assert ecma.matches(source, text) == expected
