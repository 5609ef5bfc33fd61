from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grammar.regex_size import expanded_size


@pytest.mark.parametrize(
    ("source", "size"),
    [
        ("", 0),
        ("abc", 3),
        ("a{3}", 3),
        ("a{1000000000000}", 10**12),
        ("a{2,5}b", 6),
        ("a{2,}", 2),
        ("a{0,3}", 3),
        (r"\d{4}-\d{2}", 7),
        ("[a-z{3}]{2}", 2),
        (r"[\]()]{2}", 2),
        ("(ab){3}", 6),
        ("((ab){3}c){2}", 14),
        ("(?:a|b){4}", 12),
        ("(?P<x>a){4}", 4),
        ("([a-z]{1,100}){1,100}", 10_000),
        (")){2}((", 3),
        ("a{0}b{1}c", 3),
        ("a{2}{3}", 6),
        ("{3}a", 1),
        ("b({3}a)", 2),
    ],
)
def test_repetitions_multiply(source: str, size: int) -> None:
    assert expanded_size(source) == size


@given(st.text(alphabet="a[](){}?:<>^\\0123456789,|*+", max_size=60))
def test_any_text_has_a_size(source: str) -> None:
    assert expanded_size(source) >= 0


def test_the_time_is_linear() -> None:
    started = time.thread_time()
    for text in ("(", "[", "{9}", "(?P<", "\\"):
        expanded_size(text * 50_000)
    assert time.thread_time() - started < 2
