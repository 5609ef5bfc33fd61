from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grammar.schema.languages import ANYTHING, EMPTY, NOTHING, Language, TooComplex, all_but, union
from tests.grammar.schema.rust import rust_matches

CHARS = Language.of_chars(all_but(()))
texts = st.text("abc", max_size=4)
words = st.lists(texts, max_size=4).map(Language.of_texts)
sets = st.sampled_from(["a", "ab", "bc", "abc"]).map(
    lambda chars: Language.of_chars(union((ord(c), ord(c)) for c in chars))
)


def combine(inner: st.SearchStrategy[Language]) -> st.SearchStrategy[Language]:
    pairs = st.tuples(inner, inner)
    counts = st.sampled_from([(0, None), (1, None), (0, 1), (2, 2), (1, 3)])
    return st.one_of(
        pairs.map(lambda p: p[0] & p[1]),
        pairs.map(lambda p: p[0] | p[1]),
        pairs.map(lambda p: p[0] - p[1]),
        pairs.map(lambda p: p[0] + p[1]),
        inner.map(lambda one: ~one),
        st.tuples(inner, counts).map(lambda p: p[0].repeated(*p[1])),
    )


languages = st.recursive(words | sets, combine, max_leaves=6)


@given(languages, st.lists(st.text("abcd", max_size=6), max_size=20))
def test_the_expression_matches_what_is_in_the_language(
    language: Language, tried: list[str]
) -> None:
    expression = re.compile(language.regex())
    for text in tried:
        assert (expression.fullmatch(text) is not None) == (text in language)
    assert language.is_nullable == ("" in language)


@given(languages, languages, st.lists(st.text("abcd", max_size=5), max_size=20))
def test_operations_are_those_of_sets(one: Language, two: Language, tried: list[str]) -> None:
    for text in tried:
        assert (text in one & two) == (text in one and text in two)
        assert (text in one | two) == (text in one or text in two)
        assert (text in one - two) == (text in one and text not in two)
        assert (text in ~one) == (text not in one)
    if one.is_disjoint(two):
        assert not any(text in one and text in two for text in tried)
    assert (one - one).is_empty()
    assert (one & ~one).is_empty()
    assert one.is_empty() == (one.regex() == NOTHING.regex())


@given(st.sets(st.text('ab\n"\\é日\U0001f600.*-^', max_size=3), max_size=5), st.text(max_size=3))
def test_rust_reads_the_expression_of_what_is_not_listed(listed: set[str], other: str) -> None:
    expression = (~Language.of_texts(listed)).regex()
    for text in {*listed, other}:
        assert rust_matches(expression, text) == (text not in listed)


def test_hundreds_of_names_are_a_short_expression() -> None:
    names = [f"property_{i}" for i in range(400)]
    others = ~Language.of_texts(names)
    assert len(others.regex()) < 500
    assert "property_7" not in others
    assert "property_400" in others


def test_halves_of_surrogate_pairs_are_no_characters() -> None:
    assert all_but(()) == ((0, 0xD7FF), (0xE000, 0x10FFFF))
    assert all_but(((0, 0xDBFF),)) == ((0xE000, 0x10FFFF),)


def test_work_is_limited() -> None:
    tail = CHARS.repeated(20, 20)
    a = Language.of_texts(["a"])
    with pytest.raises(TooComplex, match="states"):
        (~(ANYTHING + a + tail)).regex()
    with pytest.raises(TooComplex, match="states"):
        (CHARS.repeated(0, 5000) - EMPTY).regex()
    assert (CHARS.repeated(0, 5000)).regex() == r"[\s\S]{0,5000}"
    with pytest.raises(TooComplex):
        (CHARS.repeated(0, 500) - a).regex()
